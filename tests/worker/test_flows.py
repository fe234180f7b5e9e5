"""What goes out comes in, within the window, whatever its sizes; and nothing else is taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.errors import ProtocolError
from edge_agent.tensors import ElementType
from edge_agent.wire.parts import TensorHead
from edge_agent.wire.streaming import (
    MAX_CHUNK_BYTES,
    TOGETHER_BYTES,
    WITH_MESSAGE_BYTES,
    Abort,
    Cancel,
    Credit,
    Opening,
    RunFailed,
    Stale,
    Tensors,
)
from edge_agent.worker.flows import (
    COPIED_BYTES,
    CREDIT_SHARE,
    HEAD_BYTES,
    Arrived,
    Inflow,
    Outflow,
)
from tests.wire.made_streams import EPOCH, NUMERIC, array_of, is_all_same, named_values, tensors_of
from tests.worker.made_flows import CODEC, Line, cost_of, part_of, parts_of

LARGE = WITH_MESSAGE_BYTES + 1
"""Bytes of a tensor that does not go with its message."""
MIB = 1 << 20
CANCEL = Cancel(epoch=EPOCH, run=7)
ABORT = CODEC.message(Abort())


def bytes_of(size: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def a_line(*sizes: int, chunk_bytes: int = MIB, window_bytes: int = 1 << 26) -> Line:
    """With one message that has tensors of these sizes."""
    line = Line(window_bytes, chunk_bytes)
    line.put({f"t{i}": bytes_of(size, i) for i, size in enumerate(sizes)})
    return line


large_values = st.lists(
    st.tuples(
        st.sampled_from(NUMERIC),
        st.sampled_from([(0,), (), (3,), (0, 5), (3, 40_001), (140_000,), (2, 0, 300_000)]),
        st.integers(0, 9),
    ).map(lambda drawn: array_of(*drawn)),
    max_size=4,
).map(lambda some: {f"t{i}": value for i, value in enumerate(some)})
chunk_sizes = st.sampled_from([4096, 65_537, 131_072, 999_999, 1 << 20, 1 << 30])


@settings(max_examples=100)
@given(
    st.lists(st.one_of(named_values, large_values), min_size=1, max_size=8),
    chunk_sizes,
    st.integers(0, 100_000),
    st.lists(st.tuples(st.sampled_from(["step", "release", "credit"]), st.integers(0, 9))),
)
def test_what_goes_out_comes_in_within_any_window_that_holds_the_largest(
    sent: list[dict[str, Any]], chunk_bytes: int, more_bytes: int, moves: list[tuple[str, int]]
) -> None:
    line = Line(max(map(cost_of, sent)) + more_bytes, chunk_bytes)
    for values in sent:
        line.put(values)
    for move, at in moves:
        if move == "step":
            line.step()
        elif move == "credit":
            line.credit()
        elif line.held:
            line.release(at % len(line.held))
    line.drain()
    assert [found.message.run for found in line.arrived] == list(range(len(sent)))
    assert line.is_whole_again()


@pytest.mark.parametrize("kind", [t for t in NUMERIC if t.bits < 8] + [ElementType.BFLOAT16])
def test_large_tensors_of_types_that_numpy_lacks_come_in_chunks(kind: ElementType) -> None:
    line = Line(1 << 24, 65_537)
    line.put({"x": array_of(kind, (3, 400_001)), "y": array_of(kind, (5,))})
    line.drain()
    assert len(line.arrived) == 1


def test_large_texts_and_values_that_are_no_tensors_come_in_chunks() -> None:
    line = Line(1 << 24, 65_537)
    line.put(
        {
            "text": np.array(["é" * i for i in range(600)], object),
            "list": [np.arange(50_000), {"a": 1.5}, None],
            "map": {i: i / 7 for i in range(30_000)},
            "nothing": None,
        }
    )
    line.drain()
    assert len(line.arrived) == 1


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("count", [1, 2])
def test_empty_tensors_may_be_anywhere_among_large_ones(at: int, count: int) -> None:
    sizes = [LARGE, 2 * MIB, 5]
    sizes[at:at] = [0] * count
    line = a_line(*sizes)
    line.drain()
    assert len(line.arrived) == 1


def test_a_message_may_have_no_tensors_or_only_empty_ones() -> None:
    line = Line(HEAD_BYTES)
    for values in ({}, {"x": np.zeros((0, 3))}, {"x": np.zeros(0), "y": np.zeros((2, 0), np.int8)}):
        line.put(values)
    line.drain()
    assert len(line.arrived) == 3
    assert line.is_whole_again()


def test_a_message_that_comes_without_its_small_tensors_gets_them_in_chunks() -> None:
    line = Line(1 << 20)
    sent: list[dict[str, Any]] = [{}, {"x": np.zeros((0, 2))}, {"x": bytes_of(5)}]
    for number, values in enumerate(sent):
        line._values[number] = values
        message, buffers = tensors_of(values, number)
        line.take([part_of(CODEC.message(message))])
        for at, buffer in enumerate(buffers):
            if buffer.nbytes:
                line.take([part_of(CODEC.chunk(at, 0)), part_of(bytes(buffer))])
    assert len(line.arrived) == 3


# ---- without copying


def test_a_chunk_of_a_large_tensor_is_its_memory() -> None:
    array = array_of(ElementType.FLOAT32, (3, MIB))
    line = Line(1 << 26)
    line.put({"x": array})
    line.step()
    for at in range(12):
        sent = line.outflow.next()
        assert sent is not None
        assert sent.is_shared
        chunk = np.frombuffer(sent.parts[1], np.uint8)
        start = chunk.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        assert (start, chunk.size) == (at * MIB, MIB)
        line.take(parts_of(sent))
    assert line.outflow.next() is None


def test_a_tensor_that_comes_in_one_part_shares_its_memory() -> None:
    for size, has_chunk in ((MIB, True), (1000, False)):
        line = a_line(size)
        sent = line.outflow.next()
        assert sent is not None
        if has_chunk:
            line.take(parts_of(sent))
            sent = line.outflow.next()
            assert sent is not None
        parts = parts_of(sent)
        line.take(parts)
        assert np.shares_memory(line.arrived[0].arrays["t0"], np.frombuffer(parts[-1], np.uint8))


@pytest.mark.parametrize("off_by", range(1, 8))
@pytest.mark.parametrize("count", [1000, MIB // 8])
def test_a_part_that_lies_badly_is_copied(off_by: int, count: int) -> None:
    line = Line(1 << 24)
    line.put({"x": np.arange(count, dtype=np.float64)})
    while (sent := line.outflow.next()) is not None:
        line.take([part_of(part, off_by=off_by) for part in sent.parts])
    assert line.arrived[0].arrays["x"].flags.aligned


def test_only_what_is_small_is_copied_to_be_sent() -> None:
    line = a_line(1000)
    sent = line.outflow.next()
    assert sent is not None
    assert not sent.is_shared
    assert len(sent.parts[0]) <= COPIED_BYTES


# ---- records that share a part


def test_small_messages_share_a_part_up_to_a_size() -> None:
    line = Line(1 << 26)
    for _ in range(100):
        line.put({"x": bytes_of(60_000)})
    sizes = []
    while (sent := line.outflow.next()) is not None:
        (part,) = sent.parts
        sizes.append(memoryview(part).nbytes)
        line.take(parts_of(sent))
    assert len(line.arrived) == 100
    assert all(TOGETHER_BYTES <= size < TOGETHER_BYTES + 61_000 for size in sizes[:-1])


def test_a_large_message_begins_in_the_part_of_those_before_it() -> None:
    line = Line(1 << 26)
    line.put({"x": bytes_of(10)})
    line.put({"x": bytes_of(LARGE)})
    line.put({"x": bytes_of(10)})
    line.outflow.steer(CANCEL)
    line.step()
    assert (len(line.arrived), line.steered) == (1, [CANCEL])
    line.step()
    assert len(line.arrived) == 2
    line.drain()
    assert len(line.arrived) == 3


def test_what_steers_goes_between_the_chunks_of_a_message() -> None:
    line = a_line(5 * MIB)
    line.step()
    for number in range(5):
        line.outflow.steer(Stale(epoch=EPOCH, run=number))
        assert line.step()
        assert len(line.steered) == number + 1
        assert not line.arrived
        assert line.step()
    assert len(line.arrived) == 1


@pytest.mark.parametrize(
    "message",
    [
        Opening(5),
        Credit(5),
        CANCEL,
        RunFailed(epoch=EPOCH, run=0, stage=0, code="x", message="x"),
        Stale(epoch=EPOCH, run=0),
    ],
)
def test_a_message_without_tensors_needs_no_credit(message: Any) -> None:
    outflow, inflow = Outflow(CODEC), Inflow(CODEC, 1)
    outflow.put(*tensors_of({}))
    outflow.steer(message)
    sent = outflow.next()
    assert sent is not None
    assert list(inflow.take(parts_of(sent))) == [message]
    assert outflow.next() is None


# ---- credit


def test_nothing_leaves_before_the_other_side_has_opened() -> None:
    outflow = Outflow(CODEC)
    outflow.put(*tensors_of({}))
    assert outflow.next() is None
    assert outflow.is_too_large is None
    outflow.open(HEAD_BYTES)
    assert outflow.next() is not None


@pytest.mark.parametrize("size", [0, 1, 1000, WITH_MESSAGE_BYTES, LARGE, 3 * MIB])
def test_no_message_begins_before_there_is_credit_for_all_of_it(size: int) -> None:
    cost = HEAD_BYTES + size
    line = Line(2 * cost - 1)
    for _ in range(2):
        line.put({"x": bytes_of(size)})
    line.run()
    assert len(line.arrived) == 1
    assert line.inflow.held_bytes == cost
    assert line.outflow.next() is None
    line.outflow.grant(1)
    assert line.outflow.next() is not None


def test_a_small_message_does_not_overtake_one_that_waits_for_credit() -> None:
    line = Line(HEAD_BYTES + 1000)
    for size in (500, 600, 0):
        line.put({"x": bytes_of(size)})
    line.run()
    assert len(line.arrived) == 1
    line.release()
    line.run()
    assert len(line.arrived) == 2


def test_a_message_that_the_other_side_can_never_take_is_told_when_it_is_next() -> None:
    line = Line(HEAD_BYTES + 1000)
    line.put({"x": bytes_of(1000)})
    large = line.put({"x": bytes_of(1001)})
    assert line.outflow.is_too_large is None
    line.run()
    told = line.outflow.is_too_large
    assert told is not None
    assert told.run == large
    line.outflow.cancel(large)
    assert line.outflow.is_too_large is None
    line.put({"x": bytes_of(3)})
    line.drain()
    assert len(line.arrived) == 2


def test_a_second_opening_is_refused() -> None:
    outflow = Outflow(CODEC)
    outflow.open(10)
    with pytest.raises(ProtocolError, match="got a second opening"):
        outflow.open(10)


def test_credit_for_more_than_was_sent_is_refused() -> None:
    outflow = Outflow(CODEC)
    with pytest.raises(ProtocolError, match="got credit for more than was sent"):
        outflow.grant(1)
    line = a_line(100)
    line.run()
    line.outflow.grant(HEAD_BYTES + 100)
    with pytest.raises(ProtocolError, match="got credit for more than was sent"):
        line.outflow.grant(1)


def test_little_credit_is_told_with_what_follows() -> None:
    line = Line(CREDIT_SHARE * (HEAD_BYTES + 96))
    for _ in range(CREDIT_SHARE):
        line.put({"x": bytes_of(95)})
    line.run()
    line.release()
    assert not line.credit()
    line.release()
    assert line.credit()
    while line.held:
        line.release()
    assert line.credit()
    assert line.is_whole_again()


@given(st.data())
def test_credit_that_is_not_told_blocks_nobody_who_leaves_its_share_of_the_window_free(
    data: st.DataObject,
) -> None:
    """Even if what is held is held until the next message comes, as when inputs are joined."""
    window = data.draw(st.integers(20 * HEAD_BYTES, 40 * HEAD_BYTES))
    line = Line(window)
    for _ in range(data.draw(st.integers(1, 12))):
        line.put({"x": bytes_of(data.draw(st.integers(0, 5000)))})
    line.run()
    while len(line.held) > data.draw(st.integers(0, 5)):
        line.release(data.draw(st.integers(0, len(line.held) - 1)))
        line.credit()
    line.run()
    room = window - window // CREDIT_SHARE - line.inflow.held_bytes
    if line.outflow.waiting or room < HEAD_BYTES:
        return
    before = len(line.arrived)
    line.put({"x": bytes_of(room - HEAD_BYTES)})
    line.run()
    assert len(line.arrived) == before + 1


# ---- cancelled


def test_what_is_cancelled_before_it_begins_is_not_sent() -> None:
    line = Line(HEAD_BYTES + LARGE)
    first, second, third = (line.put({"x": bytes_of(LARGE)}) for _ in range(3))
    line.outflow.cancel(second)
    line.drain()
    assert [found.message.run for found in line.arrived] == [first, third]
    line.outflow.cancel(first)
    assert line.outflow.next() is None
    assert line.is_whole_again()


@pytest.mark.parametrize("chunks", range(5))
def test_what_is_cancelled_after_it_began_ends_and_gives_its_credit_back(chunks: int) -> None:
    line = Line(HEAD_BYTES + 5 * MIB)
    first = line.put({"x": bytes_of(2 * MIB + 5), "y": bytes_of(0), "z": bytes_of(3 * MIB - 5)})
    for _ in range(1 + chunks):
        line.step()
    second = line.put({"x": bytes_of(LARGE)})
    line.outflow.cancel(first)
    line.run()
    assert [found.message.run for found in line.arrived] == [second]
    line.drain()
    assert line.is_whole_again()


def test_what_is_cancelled_after_its_last_chunk_arrives() -> None:
    line = a_line(MIB)
    line.step()
    sent = line.outflow.next()
    assert sent is not None
    line.outflow.cancel(0)
    assert line.outflow.next() is None
    line.take(parts_of(sent))
    assert len(line.arrived) == 1


def test_all_messages_of_a_run_are_cancelled() -> None:
    line = Line(1 << 26)
    for _ in range(3):
        line.outflow.put(*tensors_of({"x": bytes_of(LARGE)}, 7))
    line.step()
    line.outflow.cancel(8)
    assert line.outflow.waiting == 3
    line.outflow.cancel(7)
    assert line.outflow.waiting == 0
    line.run()
    assert line.inflow.held_bytes == 0


# ---- what breaks the rules


def heads_of(*sizes: int) -> Tensors:
    heads = tuple(TensorHead(f"t{i}", ElementType.UINT8, (size,)) for i, size in enumerate(sizes))
    return Tensors(epoch=EPOCH, run=0, source=0, target=1, tensors=heads, left_s=None, narrowed=())


def take(inflow: Inflow, *parts: bytes) -> list[Any]:
    return list(inflow.take([part_of(part) for part in parts]))


def begun(*sizes: int, window_bytes: int = 1 << 24) -> Inflow:
    inflow = Inflow(CODEC, window_bytes)
    take(inflow, CODEC.message(heads_of(*sizes)))
    return inflow


def chunk(tensor: int, offset: int, size: int) -> tuple[bytes, bytes]:
    return CODEC.chunk(tensor, offset), bytes(size)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (chunk(1, 0, 10), "got a chunk of tensor 1 at 0, want 0 at 0"),
        (chunk(0, 1, 10), "got a chunk of tensor 0 at 1, want 0 at 0"),
        (chunk(2**32 - 1, 0, 10), "want 0 at 0"),
        (chunk(0, 2**64 - 1, 10), "want 0 at 0"),
        (chunk(0, 0, 0), "got a chunk of 0 bytes, want at most 3145728"),
        (chunk(0, 0, MAX_CHUNK_BYTES + 1), "got a chunk of 1048577 bytes"),
        ((CODEC.chunk(0, 0)[:-1], b"x"), "got 15 bytes before a chunk"),
        ((b"", b""), "got 0 bytes before a chunk"),
        ((CODEC.chunk(0, 0), b"x", b""), "got a message of 3 parts"),
        ((), "got a message of 0 parts"),
        ((CODEC.message(heads_of(1)),), "got a message before the tensors of the last one"),
        ((CODEC.message(heads_of()),), "got a message before the tensors of the last one"),
        (
            (b"".join(CODEC.whole(heads_of(1), [b"x"])),),
            "got a message before the tensors of the last one",
        ),
    ],
)
def test_what_may_not_come_inside_of_a_message_is_refused(
    parts: tuple[bytes, ...], told: str
) -> None:
    with pytest.raises(ProtocolError) as error:
        take(begun(3 * MIB, 5), *parts)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (chunk(0, 0, 10), "got a chunk of tensor 0 at 0, want 0 at 1048576"),
        (chunk(0, MIB, MIB + 1), "got a chunk of 1048577 bytes"),
        (chunk(1, 0, 5), "got a chunk of tensor 1 at 0, want 0 at 1048576"),
    ],
)
def test_a_chunk_that_does_not_follow_the_last_one_is_refused(
    parts: tuple[bytes, ...], told: str
) -> None:
    inflow = begun(2 * MIB, 5)
    assert take(inflow, *chunk(0, 0, MIB)) == []
    with pytest.raises(ProtocolError) as error:
        take(inflow, *parts)
    assert told in str(error.value)


def test_a_chunk_may_not_reach_over_the_end_of_its_tensor() -> None:
    inflow = begun(MIB + 10, 5)
    take(inflow, *chunk(0, 0, MIB))
    with pytest.raises(ProtocolError, match="got a chunk of 11 bytes, want at most 10"):
        take(inflow, *chunk(0, MIB, 11))
    with pytest.raises(ProtocolError, match="got a chunk of 11 bytes, want at most 10"):
        take(begun(10), *chunk(0, 0, 11))


@pytest.mark.parametrize(
    "before",
    [
        lambda _: None,
        lambda inflow: take(inflow, CODEC.message(heads_of())),
        lambda inflow: take(inflow, CODEC.message(heads_of(0, 0))),
        lambda inflow: take(inflow, b"".join(CODEC.whole(heads_of(1), [b"x"]))),
        lambda inflow: take(inflow, CODEC.message(heads_of(1))) + take(inflow, *chunk(0, 0, 1)),
        lambda inflow: take(inflow, CODEC.message(heads_of(1))) + take(inflow, ABORT),
    ],
)
def test_a_chunk_or_an_end_of_no_message_is_refused(before: Callable[[Inflow], Any]) -> None:
    for parts, told in ((chunk(0, 0, 1), "a chunk of no message"), ((ABORT,), "had not begun")):
        inflow = Inflow(CODEC, MIB)
        before(inflow)
        with pytest.raises(ProtocolError, match=told):
            take(inflow, *parts)


def test_messages_beyond_the_window_are_refused() -> None:
    inflow = Inflow(CODEC, 3 * HEAD_BYTES - 1)
    for _ in range(2):
        take(inflow, CODEC.message(heads_of()))
    with pytest.raises(ProtocolError, match="got 4096 bytes of tensors, want at most 4095"):
        take(inflow, CODEC.message(heads_of()))
    # What is given back and not told yet may not be taken for granted, but does no harm.
    inflow.release(HEAD_BYTES)
    assert len(take(inflow, CODEC.message(heads_of()))) == 1


@pytest.mark.parametrize("size", [MIB + 1, 2**40, 2**48])
@pytest.mark.parametrize("count", [1, 64])
def test_a_lie_about_the_size_of_tensors_allocates_nothing(size: int, count: int) -> None:
    inflow = Inflow(CODEC, HEAD_BYTES + MIB)
    part = CODEC.message(heads_of(*[size] * count))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="bytes of tensors, want at most 1052672"):
            take(inflow, part)
        # Of a tensor that would fit, nothing is allocated before a byte of it came.
        take(inflow, CODEC.message(heads_of(MIB)))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 200_000


@pytest.mark.parametrize(
    ("head", "data"),
    [
        (TensorHead("x", ElementType.STRING, (2,), 9), b"\x01\0\0\0\0\0\0\0\xff"),
        (TensorHead("x", ElementType.STRING, (2**40,), 9), bytes(9)),
        (TensorHead("x", ElementType.STRING, (2,), 9), bytes(9)),
        (TensorHead("x", ElementType.UINT8, (), 9, is_nested=True), b"\x91" * 9),
        (TensorHead("x", ElementType.UINT8, (), 0, is_nested=True), b""),
        (TensorHead("x", ElementType.FLOAT32, (0,) + (2**48,) * 3), b""),
        (TensorHead("x", ElementType.BFLOAT16, (0,) + (2**48,) * 3), b""),
        (TensorHead("x", ElementType.INT4, (0,) + (2**48,) * 3), b""),
        (TensorHead("x", ElementType.STRING, (0,) + (2**48,) * 3), b""),
    ],
)
def test_values_that_are_none_are_refused(head: TensorHead, data: bytes) -> None:
    message = Tensors(
        epoch=EPOCH, run=0, source=0, target=1, tensors=(head,), left_s=None, narrowed=()
    )
    with pytest.raises(ProtocolError, match='"x"'):
        take(Inflow(CODEC, MIB), b"".join(CODEC.whole(message, [data])))
    inflow = Inflow(CODEC, MIB)
    with pytest.raises(ProtocolError, match='"x"'):
        take(inflow, CODEC.message(message)) + take(inflow, CODEC.chunk(0, 0), data)


@given(st.lists(st.lists(st.binary(max_size=40), max_size=3), max_size=5), st.booleans())
def test_random_parts_are_never_anything_but_a_protocol_error(
    messages: list[list[bytes]], has_begun: bool
) -> None:
    inflow = begun(10) if has_begun else Inflow(CODEC, MIB)
    try:
        for parts in messages:
            assert not [one for one in take(inflow, *parts) if isinstance(one, Arrived)]
    except ProtocolError:
        return


def test_both_ways_of_a_stream_drain_with_windows_that_hold_one_message() -> None:
    there, back = Line(HEAD_BYTES + LARGE), Line(HEAD_BYTES + LARGE)
    for _ in range(5):
        there.put({"x": bytes_of(LARGE)})
        back.put({"x": bytes_of(LARGE)})
    while there.outflow.waiting or back.outflow.waiting:
        for line in (there, back):
            line.step()
            if line.held:
                line.release()
            line.credit()
    assert len(there.arrived) == len(back.arrived) == 5
    assert is_all_same(there.arrived[4].arrays, {"x": bytes_of(LARGE)})
