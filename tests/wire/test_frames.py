"""Frames: exact bytes, any chunking, any garbage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edge_agent.errors import ProtocolError
from edge_agent.wire.frames import (
    ALIGNMENT_BYTES,
    MAGIC,
    MAX_MESSAGE_BYTES,
    PREFIX,
    FrameReader,
    fill,
    frame_parts,
    joined_frame,
    pack_prefix,
    padded_total,
    unpack_prefix,
    whole_frame,
)

Frame = tuple[bytes, list[bytes]]

frames = st.lists(
    st.tuples(st.binary(max_size=300), st.lists(st.binary(max_size=200), max_size=4)), max_size=4
)
chunk_sizes = st.lists(st.integers(1, 97), min_size=1, max_size=8)


def joined(message: bytes, tensors: list[bytes]) -> bytes:
    return b"".join(bytes(part) for part in frame_parts(message, [memoryview(t) for t in tensors]))


def read_all(data: bytes, sizes: list[int], *, is_discarding: bool = False) -> list[Frame]:
    """What a reader finds in `data`, given in pieces of these sizes again and again; every second
    piece of a payload is put straight into `wanted()`."""
    reader, found = FrameReader(), []
    at = turn = 0
    while at < len(data):
        piece = memoryview(data)[at : at + sizes[turn % len(sizes)]]
        turn += 1
        wanted = reader.wanted()
        if wanted is not None and turn % 2:
            taken = min(wanted.nbytes, piece.nbytes)
            wanted[:taken] = piece[:taken]
            reader.filled(taken)
        else:
            had_message = reader.message is not None
            taken = reader.feed(piece)
            if reader.message is not None and not had_message:
                if is_discarding:
                    reader.discard()
                else:
                    reader.accept_new()
        at += taken
        if reader.is_complete:
            message, payload = reader.take()
            found.append((message, [bytes(payload)]))
    return found


def test_the_prefix_has_the_bytes_that_the_format_says() -> None:
    assert pack_prefix(3, 5) == b"EAG\x01" + b"\x03\0\0\0" + b"\x05" + bytes(7)
    assert unpack_prefix(pack_prefix(3, 2**63)) == (3, 2**63)


def test_a_frame_starts_every_tensor_at_a_multiple_of_64_bytes() -> None:
    frame = joined(b"m", [b"abc", b"", b"de"])
    assert frame == pack_prefix(1, 66) + b"m" + b"abc" + bytes(61) + b"de"


def test_an_empty_last_tensor_ends_at_the_padding_before_it() -> None:
    assert padded_total([3, 0]) == ALIGNMENT_BYTES
    assert len(joined(b"", [b"abc", b""])) == PREFIX.size + ALIGNMENT_BYTES


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_a_payload_has_the_bytes_that_its_tensors_need(tensors: list[bytes]) -> None:
    assert len(joined(b"", tensors)) == PREFIX.size + padded_total([len(t) for t in tensors])


@given(
    st.binary(max_size=300),
    st.lists(
        arrays(
            st.sampled_from(["f4", "f2", "c8", "?", "i8"]),
            array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        ),
        max_size=3,
    ),
)
def test_a_frame_in_one_piece_has_the_bytes_of_its_parts(
    message: bytes, values: list[np.ndarray]
) -> None:
    tensors = [value.tobytes() for value in values]
    assert joined_frame(message, [value.data for value in values]) == joined(message, tensors)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_tensors_are_filled_in_as_they_lie_in_a_payload(tensors: list[bytes]) -> None:
    room = memoryview(bytearray(2000))
    fill(room, tensors)
    payload = joined(b"", tensors)[PREFIX.size :]
    assert bytes(room) == payload.ljust(2000, b"\0")


@given(st.binary(max_size=300), st.lists(st.binary(max_size=200), max_size=4), st.data())
def test_one_whole_frame_is_known_from_anything_shorter_or_longer(
    message: bytes, tensors: list[bytes], data: st.DataObject
) -> None:
    frame = joined(message, tensors)
    assert whole_frame(memoryview(frame)) == (message, joined(b"", tensors)[PREFIX.size :])
    assert whole_frame(memoryview(frame + b"E")) is None
    assert whole_frame(memoryview(frame)[: data.draw(st.integers(0, len(frame) - 1))]) is None


@given(frames, chunk_sizes)
def test_frames_are_read_whole_in_any_chunking(sent: list[Frame], sizes: list[int]) -> None:
    data = b"".join(joined(*frame) for frame in sent)
    want = [(message, [joined(b"", tensors)[PREFIX.size :]]) for message, tensors in sent]
    assert read_all(data, sizes) == want


@given(frames, chunk_sizes)
def test_a_discarded_payload_leaves_the_reader_at_the_next_frame(
    sent: list[Frame], sizes: list[int]
) -> None:
    data = b"".join(joined(*frame) for frame in sent)
    found = read_all(data, sizes, is_discarding=True)
    assert found == [(message, [b""]) for message, _ in sent]


@given(frames, chunk_sizes, st.integers(0, 10_000))
def test_a_frame_cut_short_is_never_complete(sent: list[Frame], sizes: list[int], cut: int) -> None:
    data = b"".join(joined(*frame) for frame in sent)
    ends = [0]
    for frame in sent:
        ends.append(ends[-1] + len(joined(*frame)))
    cut = min(cut, len(data))
    assert len(read_all(data[:cut], sizes)) == sum(end <= cut for end in ends[1:])


@given(st.binary(min_size=1, max_size=200), chunk_sizes)
def test_random_bytes_give_an_error_or_nothing(data: bytes, sizes: list[int]) -> None:
    try:
        found = read_all(data, sizes)
    except ProtocolError:
        return
    assert found == [] or data.startswith(MAGIC)


@given(frames.filter(bool), st.data())
def test_a_damaged_frame_gives_an_error_or_frames_but_nothing_else(
    sent: list[Frame], data: st.DataObject
) -> None:
    content = bytearray(b"".join(joined(*frame) for frame in sent))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    # Only what was announced and is short is taken: a length of 2**60 must not be allocated.
    reader, at = FrameReader(), 0
    try:
        while at < len(content):
            at += reader.feed(memoryview(content)[at : at + 33])
            if reader.message is not None and not reader.is_complete:
                reader.discard()
            if reader.is_complete:
                reader.take()
    except ProtocolError:
        return
    assert at == len(content)


def test_another_protocol_is_refused_at_its_first_16_bytes() -> None:
    with pytest.raises(ProtocolError, match="GET "):
        FrameReader().feed(memoryview(b"GET / HTTP/1.1\r\n\r\n"))


def test_a_message_over_the_limit_is_refused_before_it_comes() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_MESSAGE_BYTES + 1)):
        FrameReader().feed(memoryview(pack_prefix(MAX_MESSAGE_BYTES + 1, 0)))


def test_an_announced_message_takes_no_memory_before_it_comes() -> None:
    readers = [FrameReader() for _ in range(100)]
    for reader in readers:
        reader.feed(memoryview(pack_prefix(MAX_MESSAGE_BYTES, 2**60)))
        assert reader.message is None
        assert not reader.is_idle


def test_a_reader_is_idle_only_between_frames() -> None:
    reader = FrameReader()
    assert reader.is_idle
    reader.feed(memoryview(MAGIC))
    assert not reader.is_idle
    reader.feed(memoryview(pack_prefix(0, 0)[len(MAGIC) :]))
    assert reader.is_complete
    assert reader.take() == (b"", memoryview(b""))
    assert reader.is_idle
