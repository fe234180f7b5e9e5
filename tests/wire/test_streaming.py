"""What workers send each other: every message survives the way, and nothing else is understood."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.errors import OtherVersion, ProtocolError
from edge_agent.tensors import ElementType
from edge_agent.wire.arrays import unpack_arrays
from edge_agent.wire.frames import Buffer
from edge_agent.wire.messages import AgentMessage, ClientMessage, Message
from edge_agent.wire.parts import MAX_TENSORS, TensorHead
from edge_agent.wire.streaming import (
    ELEMENT_BYTES,
    MAX_HEAD_BYTES,
    MAX_PART_BYTES,
    PROTOCOL,
    TOGETHER_BYTES,
    WITH_MESSAGE_BYTES,
    Abort,
    Cancel,
    Chunk,
    Credit,
    Narrowed,
    Opening,
    RunFailed,
    Stale,
    StreamCodec,
    StreamMessage,
    Tensors,
)
from tests.wire.made_streams import (
    EPOCH,
    NESTED,
    NUMERIC,
    TEXTS,
    array_of,
    is_all_same,
    named_values,
    tensors_of,
)

CODEC = StreamCodec()
HEAD = TensorHead("x", ElementType.FLOAT32, (2, 3))
TENSORS = Tensors(
    epoch=EPOCH, run=2**53, source=-1, target=4096, tensors=(HEAD,), left_s=1e6, narrowed=()
)
EXAMPLES: list[Message] = [
    Opening(1),
    Opening(2**48),
    Credit(1),
    Credit(2**48),
    TENSORS,
    Tensors(epoch=EPOCH, run=0, source=0, target=-1, tensors=(), left_s=None, narrowed=()),
    Tensors(
        epoch=EPOCH,
        run=0,
        source=0,
        target=1,
        tensors=(HEAD, HEAD),
        left_s=None,
        narrowed=(Narrowed(tensor=0), Narrowed(tensor=1, scale=0.5, zero_point=255)),
    ),
    Abort(),
    Cancel(epoch=EPOCH, run=0),
    RunFailed(epoch=EPOCH, run=1, stage=-1, code="model-failed", message="é" * 4096),
    RunFailed(epoch=EPOCH, run=1, stage=4096, code="", message=""),
    Stale(epoch=EPOCH, run=2**53),
]
VALUES: list[dict[str, Any]] = [
    {},
    {"x": np.float32(1.5).reshape(())},
    {"x": np.zeros((0, 7), np.float64)},
    {"x": np.zeros((0,), np.int8), "y": np.zeros((3, 0, 2), np.int16)},
    {"x": np.zeros(3, np.int8), "y": np.zeros((0,), np.int8)},
    {"x": TEXTS},
    *({"x": value, "y": np.arange(3, dtype=np.int8)} for value in NESTED),
    *({"x": array_of(kind, (3, 5))} for kind in NUMERIC),
    *({"x": array_of(kind, ()), "y": array_of(kind, (7,))} for kind in NUMERIC),
    *({"x": np.arange(size, dtype=np.uint8)} for size in range(1, 18)),
    {f"t{i}": np.arange(i, dtype=np.uint8) for i in range(100)},
]


def record(kind: int, raw: bytes, gap: int = 0, version: int = PROTOCOL) -> bytes:
    return struct.pack("<BBHI", version, kind, gap, len(raw)) + raw


def fields(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return found


def plain(value: Any, kind: int = 0) -> bytes:
    return record(kind, msgspec.msgpack.encode(value))


def joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(buffers)


def decoded(part: bytes) -> list[tuple[StreamMessage, memoryview | None]]:
    return list(CODEC.decode(memoryview(part)))


def only_read(parts: Iterator[object]) -> None:
    """Decode; nothing but a protocol error may come of it."""
    with suppress(ProtocolError):
        for _ in parts:
            pass


def a_part() -> bytes:
    """One with all kinds of records in it."""
    message, buffers = tensors_of({"x": np.arange(5, dtype=np.float32), "y": TEXTS, "z": [None]})
    steering = [CODEC.message(one) for one in EXAMPLES if not isinstance(one, RunFailed)]
    return joined([*steering, *CODEC.whole(message, buffers), CODEC.message(Abort())])


def test_every_kind_of_message_is_among_the_examples() -> None:
    assert {type(message) for message in EXAMPLES} == {*get_args(StreamMessage)}


@pytest.mark.parametrize("message", EXAMPLES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    raw = CODEC.message(message)
    assert raw[0] == PROTOCOL == 1
    assert len(raw) % ELEMENT_BYTES == 0
    assert decoded(raw) == [(message, None)]


def test_the_records_of_a_part_come_in_their_order() -> None:
    raws = [CODEC.message(message) for message in EXAMPLES]
    assert decoded(joined(raws)) == [(message, None) for message in EXAMPLES]
    assert decoded(b"") == []


@pytest.mark.parametrize("values", VALUES, ids=lambda values: ",".join(map(str, values))[:20])
def test_tensors_come_with_their_message_as_they_were(values: dict[str, Any]) -> None:
    message, buffers = tensors_of(values)
    part = joined(CODEC.whole(message, buffers))
    ((got, payload),) = decoded(part)
    assert got == message
    assert payload is not None
    assert is_all_same(values, unpack_arrays(message.tensors, payload))
    assert len(part) % ELEMENT_BYTES == 0


@given(st.lists(st.one_of(named_values, st.sampled_from(EXAMPLES)), max_size=6))
def test_tensors_and_steering_share_a_part(sent: list[dict[str, Any] | Message]) -> None:
    raws: list[Buffer] = []
    for one in sent:
        raws += CODEC.whole(*tensors_of(one)) if isinstance(one, dict) else [CODEC.message(one)]
    got = decoded(joined(raws))
    assert len(got) == len(sent)
    for one, (message, payload) in zip(sent, got, strict=True):
        if isinstance(one, dict):
            assert isinstance(message, Tensors)
            assert payload is not None
            assert is_all_same(one, unpack_arrays(message.tensors, payload))
        else:
            assert (message, payload) == (one, None)


@given(st.lists(named_values, max_size=4), st.integers(0, 7))
def test_tensors_begin_at_a_multiple_of_eight_bytes_of_their_part(
    sent: list[dict[str, Any]], text_length: int
) -> None:
    steering = RunFailed(epoch=EPOCH, run=0, stage=0, code="x", message="x" * text_length)
    raws: list[Buffer] = [CODEC.message(steering)]
    for values in sent:
        raws += CODEC.whole(*tensors_of(values))
    part = joined(raws)
    start = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
    for _, payload in decoded(part):
        if payload is not None and payload.nbytes:
            at = np.frombuffer(payload, np.uint8).__array_interface__["data"][0]
            assert (at - start) % ELEMENT_BYTES == 0


@pytest.mark.parametrize(
    ("tensor", "offset_bytes"), [(0, 0), (4095, 2**48), (2**32 - 1, 2**64 - 1)]
)
def test_what_stands_before_a_chunk_comes_back(tensor: int, offset_bytes: int) -> None:
    raw = CODEC.chunk(tensor, offset_bytes)
    want = Chunk(tensor=tensor, offset_bytes=offset_bytes)
    assert CODEC.decode_chunk(memoryview(raw)) == want
    with pytest.raises(ProtocolError, match="got a record of kind 2"):
        decoded(raw)


def test_nothing_else_stands_before_a_chunk() -> None:
    raw = CODEC.chunk(1, 2)
    for other in (*(raw[:length] for length in range(len(raw))), raw + b"\0"):
        with pytest.raises(ProtocolError, match="bytes before a chunk, want 16"):
            CODEC.decode_chunk(memoryview(other))
    for kind, gap in ((0, 0), (1, 0), (3, 0), (255, 0), (2, 1), (2, 65535)):
        bad = struct.pack("<BBHIQ", PROTOCOL, kind, gap, 0, 0)
        with pytest.raises(ProtocolError, match=f"got kind {kind} with a gap of {gap} bytes"):
            CODEC.decode_chunk(memoryview(bad))


def test_another_version_says_so() -> None:
    for version in range(256):
        if version == PROTOCOL:
            continue
        with pytest.raises(OtherVersion, match=rf"got version {version} of the .* want 1: update"):
            decoded(record(9, b"\xc1" * 3, 9, version))
        with pytest.raises(OtherVersion, match="update edge-agent on the older device"):
            CODEC.decode_chunk(memoryview(struct.pack("<BBHIQ", version, 9, 9, 0, 0)))


@pytest.mark.parametrize("message", EXAMPLES)
def test_a_message_cut_short_anywhere_is_a_protocol_error(message: Message) -> None:
    raw = CODEC.message(message)
    for length in range(1, len(raw)):
        with pytest.raises(ProtocolError) as told:
            decoded(raw[:length])
        assert not isinstance(told.value, OtherVersion)


def test_a_part_cut_short_anywhere_has_fewer_messages_or_an_error() -> None:
    part = a_part()
    whole = decoded(part)
    for length in range(len(part)):
        found = []
        with suppress(ProtocolError):
            for one in CODEC.decode(memoryview(part)[:length]):
                found.append(one)
        assert found == whole[: len(found)]
        assert len(found) < len(whole)


def test_a_part_with_any_byte_changed_is_understood_or_a_protocol_error() -> None:
    part = bytearray(a_part())
    for at in range(len(part)):
        for changed in (part[at] ^ 1, part[at] ^ 0x80, part[at] ^ 0xFF, 0, 255):
            before, part[at] = part[at], changed
            only_read(CODEC.decode(memoryview(bytes(part))))
            part[at] = before


@given(st.binary(max_size=300), st.sampled_from([0, 1, 2, 3, 255]), st.integers(0, 9))
@example(b"\x91" * 100_000, 0, 0)
@example(b"\x81\xa1x" * 100_000, 1, 0)
def test_random_bytes_are_never_anything_but_a_protocol_error(
    raw: bytes, kind: int, gap: int
) -> None:
    for part in (raw, record(kind, raw, gap), record(kind, raw, gap) + raw):
        if part:
            with pytest.raises(ProtocolError):
                decoded(part)


@pytest.mark.parametrize("size", [2**32 - 1, 2**31, MAX_HEAD_BYTES + 1, 9])
def test_a_lie_about_the_length_of_a_message_allocates_nothing(size: int) -> None:
    raw = CODEC.message(Abort())
    lie = struct.pack("<BBHI", PROTOCOL, 0, 0, size) + raw[8:16]
    with pytest.raises(ProtocolError, match=f"got a message of {size} bytes in a part of 16"):
        _without_allocating(lie)


def test_a_message_over_the_limit_is_refused_though_it_is_there() -> None:
    raw = record(0, bytes(MAX_HEAD_BYTES + 1))
    with pytest.raises(ProtocolError, match=f"got a message of {MAX_HEAD_BYTES + 1} bytes"):
        decoded(raw)


@pytest.mark.parametrize(
    "shape",
    [(7,), (2**48,), (2**48,) * 64, (2**48, 2**48), (1, 2**40)],
)
@pytest.mark.parametrize("kind", ["float32", "int2", "complex128", "bfloat16"])
def test_a_lie_about_the_size_of_tensors_allocates_nothing(
    shape: tuple[int, ...], kind: str
) -> None:
    head = TensorHead("x", ElementType(kind), shape)
    lie = msgspec.structs.replace(TENSORS, tensors=(head, head))
    with pytest.raises(ProtocolError, match=r"got a part of .* bytes, want .* for its tensors"):
        _without_allocating(record(1, msgspec.msgpack.encode(lie)))


def _without_allocating(part: bytes) -> None:
    tracemalloc.start()
    try:
        decoded(part)
    finally:
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most_bytes < 256 * 1024


def test_tensors_come_only_with_a_message_that_has_some() -> None:
    for message in EXAMPLES:
        if not isinstance(message, Tensors):
            with pytest.raises(ProtocolError, match="got tensors with a message that has none"):
                decoded(plain(fields(message), kind=1))


def test_a_record_in_front_is_given_before_the_one_that_is_no_record() -> None:
    found = CODEC.decode(memoryview(CODEC.message(Abort()) + b"\x01" * 8))
    assert next(found) == (Abort(), None)
    with pytest.raises(ProtocolError):
        next(found)


@pytest.mark.parametrize("message", EXAMPLES)
def test_an_unknown_or_missing_field_is_refused(message: Message) -> None:
    known = fields(message)
    with pytest.raises(ProtocolError, match="contains unknown field `more`"):
        decoded(plain(known | {"more": 1}))
    for name in known.keys() - {"kind"}:
        with pytest.raises(ProtocolError, match=f"missing required field `{name}`"):
            decoded(plain({k: v for k, v in known.items() if k != name}))


FAILED = RunFailed(epoch=EPOCH, run=1, stage=0, code="x", message="x")
BOUNDS: list[tuple[Message, str, Any]] = [
    *((Opening(1), "window_bytes", bad) for bad in (0, -1, 2**48 + 1, 2**64 - 1, 1.5, None)),
    *((Credit(1), "granted_bytes", bad) for bad in (0, -1, 2**48 + 1, "1", True)),
    *(
        (message, "run", bad)
        for message in (TENSORS, Cancel(epoch=EPOCH, run=0), FAILED, Stale(epoch=EPOCH, run=0))
        for bad in (-1, 2**53 + 1, 0.5, "1", None, True)
    ),
    *((TENSORS, field, bad) for field in ("source", "target") for bad in (-2, 4097, 0.5, None)),
    *((FAILED, "stage", bad) for bad in (-2, 4097, None)),
    *((TENSORS, "left_s", bad) for bad in (-1e-300, 1e6 + 1e-9, math.nan, math.inf, "1", True)),
    (FAILED, "code", "x" * 4097),
    (FAILED, "message", "x" * 4097),
    (TENSORS, "tensors", [{"name": "x"}]),
    (TENSORS, "tensors", [msgspec.to_builtins(HEAD)] * (MAX_TENSORS + 1)),
    *(
        (TENSORS, "tensors", [msgspec.to_builtins(HEAD) | bad])
        for bad in (
            {"shape": [-1]},
            {"shape": [2**48 + 1]},
            {"shape": [1] * 65},
            {"own_bytes": -1},
            {"own_bytes": 2**48 + 1},
            {"element_type": "float128"},
            {"name": "x" * 4097},
            {"more": 1},
        )
    ),
]


@pytest.mark.parametrize(("message", "field", "bad"), BOUNDS)
def test_a_value_out_of_bounds_is_refused_naming_the_field(
    message: Message, field: str, bad: Any
) -> None:
    with pytest.raises(ProtocolError) as told:
        decoded(plain(fields(message) | {field: bad}))
    assert f"$.{field}" in str(told.value)


@pytest.mark.parametrize("kind", [*get_args(ClientMessage), *get_args(AgentMessage)])
def test_no_kind_of_message_of_the_local_socket_is_known(kind: type[Message]) -> None:
    tag = kind.__struct_config__.tag
    with pytest.raises(ProtocolError, match=f"Invalid value '{tag}'"):
        decoded(plain({"kind": tag}))


def test_the_largest_records_that_share_a_part_fit_into_one() -> None:
    names = [f"{i:04}" for i in range(MAX_TENSORS)]
    room = (MAX_HEAD_BYTES - _whole_size(names)) // MAX_TENSORS
    message, buffers = _many([name + "x" * room for name in names])
    assert sum(buffer.nbytes for buffer in buffers) <= WITH_MESSAGE_BYTES
    size = len(joined(CODEC.whole(message, buffers)))
    assert size > MAX_HEAD_BYTES
    assert TOGETHER_BYTES - 1 + size <= MAX_PART_BYTES


def _many(names: Sequence[str]) -> tuple[Tensors, list[memoryview]]:
    each = WITH_MESSAGE_BYTES // MAX_TENSORS
    return tensors_of({name: np.zeros(each, np.uint8) for name in names})


def _whole_size(names: Sequence[str]) -> int:
    return len(CODEC.message(_many(names)[0]))
