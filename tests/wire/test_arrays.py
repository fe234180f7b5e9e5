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
from edge_agent.wire.parts import TensorHead

DTYPES = [t.numpy_dtype for t in ElementType if t.is_native]
EXTENDED = [t for t in ElementType if not t.is_native and t is not ElementType.STRING]

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


@pytest.mark.parametrize("kind", EXTENDED)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 4), (3, 5)])
def test_types_that_numpy_lacks_arrive_in_those_of_ml_dtypes(
    kind: ElementType, shape: tuple[int, ...]
) -> None:
    bits = np.random.default_rng(0).integers(0, 2 ** min(kind.bits, 7), shape, np.uint8)
    dtype = kind.numpy_dtype
    assert dtype is not None
    sent = bits.astype(np.uint16).view(dtype) if kind.bits == 16 else bits.view(dtype)
    ((head,), (tensor,)) = pack_arrays({"x": sent})
    assert head == TensorHead("x", kind, shape)
    assert tensor.nbytes == head.size_bytes == (sent.size * kind.bits + 7) // 8
    got = unpack_arrays((head,), bytes(tensor))["x"]
    assert got.dtype == dtype
    assert got.shape == shape
    assert got.tobytes() == sent.tobytes()


def test_the_first_of_two_packed_elements_is_in_the_low_bits() -> None:
    int4 = ElementType.INT4.numpy_dtype
    _, view = pack_array("x", np.array([-8, 7, 1], np.int8).astype(int4))
    assert view.tobytes() == bytes([0x78, 0x01])
    (got,) = unpack_arrays((TensorHead("x", ElementType.INT4, (3,)),), b"\x78\x01").values()
    assert got.astype(np.int8).tolist() == [-8, 7, 1]


texts = stnp.arrays(
    dtype=st.just(np.dtype(object)),
    shape=stnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    elements=st.text(),
    fill=st.just("é"),
)


@given(texts, arrays)
def test_text_arrives_beside_other_tensors(sent: Array, other: Array) -> None:
    heads, tensors = pack_arrays({"t": sent, "o": other})
    frame = b"".join(bytes(part) for part in frame_parts(b"", tensors))
    got = unpack_arrays(heads, frame[PREFIX.size :])
    assert got["t"].dtype == object
    assert got["t"].shape == sent.shape
    assert got["t"].tolist() == sent.tolist()
    assert got["o"].tobytes() == other.tobytes()


def test_text_of_numpys_own_types_arrives_as_objects() -> None:
    for sent in (np.array(["a", "é"]), np.array(["a", "é"], object)):
        heads, tensors = pack_arrays({"t": sent})
        assert bytes(tensors[0]) == b"\1\0\0\0\2\0\0\0a\xc3\xa9"
        assert unpack_arrays(heads, bytes(tensors[0]))["t"].tolist() == ["a", "é"]
    ((head,), (tensor,)) = pack_arrays({"t": np.array([b"a\0b", b"c"])})
    assert unpack_arrays((head,), bytes(tensor))["t"].tolist() == ["a\0b", "c"]


def test_an_object_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(InputMismatch, match='tensor "x": got an object of type int in it'):
        pack_array("x", np.array(["a", 3], object))
    with pytest.raises(InputMismatch, match="no Unicode"):
        pack_array("x", np.array(["\ud800"], object))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1\0\0",
        b"\1\0\0\0",
        b"\1\0\0\0ab",
        b"\xff\xff\xff\xffa",
        b"\1\0\0\0\xff",
    ],
)
def test_damaged_text_is_refused(payload: bytes) -> None:
    head = TensorHead("x", ElementType.STRING, (1,), len(payload))
    with pytest.raises(ProtocolError, match='"x"'):
        unpack_arrays((head,), payload)


def test_more_elements_than_the_payload_can_hold_are_refused_before_they_are_made() -> None:
    for kind in (ElementType.STRING, ElementType.INT4, ElementType.BFLOAT16):
        head = TensorHead("x", kind, (2**40,), 4)
        with pytest.raises(ProtocolError):
            unpack_arrays((head,), b"\0\0\0\0")
