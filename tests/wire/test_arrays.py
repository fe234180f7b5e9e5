"""Arrays as heads and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp

from edge_agent.errors import InputMismatch, ProtocolError
from edge_agent.tensors import Array, ElementType
from edge_agent.wire.arrays import (
    element_type,
    pack_array,
    pack_arrays,
    payload_bytes,
    unpack_arrays,
)
from edge_agent.wire.frames import ALIGNMENT_BYTES, PREFIX, frame_parts
from edge_agent.wire.messages import TensorHead

DTYPES = [t.numpy_dtype for t in ElementType if t.numpy_dtype is not None]

arrays = stnp.arrays(
    dtype=st.sampled_from(DTYPES), shape=stnp.array_shapes(min_dims=0, max_dims=4, min_side=0)
)


@given(st.lists(arrays, max_size=4))
def test_arrays_arrive_bit_equal_with_type_and_shape(sent: list[Array]) -> None:
    named = {f"t{i}": array for i, array in enumerate(sent)}
    heads, tensors = pack_arrays(named)
    frame = b"".join(bytes(part) for part in frame_parts(b"", tensors))
    payload = frame[PREFIX.size :]
    assert len(payload) == payload_bytes(heads)
    got = unpack_arrays(heads, payload)
    assert list(got) == list(named)
    for name, array in named.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


def test_a_contiguous_array_is_sent_without_a_copy() -> None:
    array = np.zeros((3, 4), np.float32)
    _, view = pack_array("x", array)
    array[0, 0] = 1.0
    assert view.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
        np.arange(12, dtype=np.int32)[::-2],
        np.broadcast_to(np.float32(3.0), (2, 5)),
        np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    ],
)
def test_an_array_in_another_memory_order_is_sent_in_row_major_order(array: Array) -> None:
    head, view = pack_array("x", array)
    assert head.shape == array.shape
    assert view.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, ">f4"),
        np.zeros(2, object),
        np.array(["a"]),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, np.longdouble),
        np.zeros(2, [("a", np.int32)]),
    ],
)
def test_an_array_that_has_no_type_here_is_refused_by_name(array: Array) -> None:
    with pytest.raises(InputMismatch, match='tensor "x": got dtype'):
        pack_array("x", array)


def test_every_name_that_numpy_has_for_a_type_is_known() -> None:
    assert element_type(np.zeros(1, np.longlong)) is ElementType.INT64
    assert element_type(np.zeros(1, np.ulonglong)) is ElementType.UINT64
    assert element_type(np.zeros(1, np.intc)) is ElementType.INT32
    assert element_type(np.zeros(1, bool)) is ElementType.BOOL


def test_tensors_of_a_payload_start_at_multiples_of_the_alignment() -> None:
    sent = {"a": np.array([1, 2, 3], np.uint8), "b": np.array([4], np.int64)}
    heads, _ = pack_arrays(sent)
    payload = bytearray(ALIGNMENT_BYTES + 8)
    payload[:3], payload[ALIGNMENT_BYTES] = b"\1\2\3", 4
    got = unpack_arrays(heads, payload)
    np.testing.assert_array_equal(got["a"], sent["a"])
    np.testing.assert_array_equal(got["b"], sent["b"])
    payload[0] = 9
    assert got["a"][0] == 9  # no copy


@pytest.mark.parametrize(
    ("shape", "length"),
    [((2,), 7), ((2,), 9), ((2, 2), 8), ((2**48, 2**48), 8), ((2**40,), 8), ((0,), 8), ((), 0)],
)
def test_a_payload_of_another_length_is_refused(shape: tuple[int, ...], length: int) -> None:
    head = TensorHead("x", ElementType.FLOAT32, shape)
    with pytest.raises(ProtocolError, match=f"payload of {length} bytes"):
        unpack_arrays((head,), bytes(length))


def test_a_tensor_of_a_type_that_numpy_lacks_is_refused() -> None:
    with pytest.raises(ProtocolError, match='"x" of type string'):
        unpack_arrays((TensorHead("x", ElementType.STRING, (1,)),), b"")
