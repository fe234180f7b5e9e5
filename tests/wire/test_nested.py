"""Sequences, maps and optionals as bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.errors import InputMismatch, ProtocolError
from edge_agent.tensors import ElementType
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.parts import TensorHead


def there_and_back(value: Any) -> Any:
    heads, tensors = pack_arrays({"x": value})
    assert heads[0].is_nested
    return unpack_arrays(heads, bytes(tensors[0]))["x"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {1: 2.5, -7: float("inf")},
        {"a": 1, "é": -(2**63)},
        {3: "three"},
        [{0: 0.25, 1: 0.75}, {0: 1.0, 1: 0.0}],
        [None, [None]],
    ],
)
def test_maps_and_nothing_arrive_equal(value: Any) -> None:
    assert there_and_back(value) == value


def test_arrays_inside_arrive_with_type_and_shape() -> None:
    sent = [
        np.float32([[1, 2]]),
        np.array(["é", ""], object),
        np.zeros((0, 3), np.int8),
        np.array(7),
        np.array([1, -2], ElementType.INT4.numpy_dtype),
        np.arange(6, dtype=np.int16).reshape(2, 3).T,
    ]
    got = there_and_back(sent)
    for one, other in zip(got, sent, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tolist() == other.tolist()
        one[...] = other  # they can be written to


def test_a_nested_value_travels_beside_arrays() -> None:
    array = np.float32([1, 2, 3])
    heads, tensors = pack_arrays({"m": {1: 2.0}, "a": array})
    gap = bytes(-tensors[0].nbytes % 64)
    payload = tensors[0].tobytes() + gap + tensors[1].tobytes()
    got = unpack_arrays(heads, payload)
    assert got["m"] == {1: 2.0}
    assert got["a"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "what"),
    [([object()], "object"), ({1: [2]}, "list"), ({b"k": 1}, "bytes"), ({1: True}, "bool")],
)
def test_what_no_model_takes_is_refused_by_name(value: Any, what: str) -> None:
    with pytest.raises(InputMismatch, match=f'value "x": got a {what} in'):
        pack_arrays({"x": value})


def _nested(data: bytes) -> tuple[TensorHead, bytes]:
    return TensorHead("x", ElementType.UINT8, (), len(data), is_nested=True), data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "sequence"}),
        msgspec.msgpack.encode({"type": "other"}),
        msgspec.msgpack.encode({"type": "map", "pairs": [[1]]}),
        msgspec.msgpack.encode(
            {"type": "tensor", "data": b"", "head": {"name": "x", "element_type": "float32"}}
        ),
        msgspec.msgpack.encode(
            {
                "type": "tensor",
                "data": b"abc",
                "head": {"name": "x", "element_type": "float32", "shape": [2**40]},
            }
        ),
        b"\x82\xa4type\xa8sequence\xa5items\x91" * 100_000,
    ],
)
def test_bytes_that_are_no_value_are_refused(data: bytes) -> None:
    head, payload = _nested(data)
    with pytest.raises(ProtocolError):
        unpack_arrays((head,), payload)
