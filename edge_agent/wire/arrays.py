"""numpy arrays as tensor heads and raw bytes, without copying where memory allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from edge_agent.errors import InputMismatch, ProtocolError
from edge_agent.tensors import Array, Arrays, ElementType, element_type_of, pack_bits, unpack_bits
from edge_agent.wire.frames import Buffer, nbytes, padded_total, padding
from edge_agent.wire.nested import pack_nested, unpack_nested
from edge_agent.wire.parts import TensorHead

_DTYPES = {t: t.numpy_dtype for t in ElementType if t.is_native}
_NATIVE = {dtype: t for t, dtype in _DTYPES.items()}
_LENGTH_BYTES = 4


def element_type(array: Array) -> ElementType | None:
    """The ONNX type of a numpy array in native byte order, or None if it has none here."""
    return _NATIVE.get(array.dtype) or element_type_of(array.dtype)


def pack_array(name: str, array: Array) -> tuple[TensorHead, memoryview]:
    """Head and bytes of an array; a copy is made only if it is not C-contiguous, its elements are
    smaller than a byte, or it holds text.

    Text, in UTF-8, follows the lengths of all elements in bytes, 32 bits each.

    Raises:
        InputMismatch: its dtype cannot be sent, or an object in it is no text.
    """
    kind = _NATIVE.get(array.dtype)
    if kind is not None:
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return TensorHead(name, kind, array.shape), array.data
    kind = element_type_of(array.dtype)
    if kind is None:
        raise InputMismatch(
            f'tensor "{name}": got dtype {array.dtype}, want a numeric, boolean or text one in '
            "native byte order"
        )
    if kind is ElementType.STRING:
        text = _pack_text(name, array)
        return TensorHead(name, kind, array.shape, len(text)), memoryview(text)
    if kind.bits < 8:
        return TensorHead(name, kind, array.shape), pack_bits(array, kind.bits).data
    # No format of the buffer protocol describes these types.
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return TensorHead(name, kind, array.shape), raw.data


def _pack_nested(name: str, value: Any) -> tuple[TensorHead, memoryview]:
    data = pack_nested(name, value, pack_array)
    head = TensorHead(name, ElementType.UINT8, (), len(data), is_nested=True)
    return head, memoryview(data)


def _pack_text(name: str, array: Array) -> bytes:
    encoded = []
    for element in array.reshape(-1).tolist():
        if isinstance(element, str):
            try:
                encoded.append(element.encode())
            except UnicodeEncodeError as error:
                raise InputMismatch(
                    f'tensor "{name}": got text that is no Unicode ({error.reason}), want any '
                    "valid text"
                ) from error
        elif isinstance(element, bytes):
            encoded.append(element)
        else:
            raise InputMismatch(
                f'tensor "{name}": got an object of type {type(element).__name__} in it, want '
                "only texts"
            )
    lengths = np.array([len(text) for text in encoded], "<u4")
    return lengths.tobytes() + b"".join(encoded)


def _unpack_text(head: TensorHead, payload: memoryview) -> Array:
    count = math.prod(head.shape)
    if payload.nbytes < count * _LENGTH_BYTES:
        raise ProtocolError(
            f'tensor "{head.name}": {payload.nbytes} bytes of text for {count} elements'
        )
    lengths = np.frombuffer(payload[: count * _LENGTH_BYTES], "<u4")
    ends = np.cumsum(lengths, dtype=np.int64) + count * _LENGTH_BYTES
    if (int(ends[-1]) if count else 0) != payload.nbytes:
        raise ProtocolError(f'tensor "{head.name}": its texts do not fill {payload.nbytes} bytes')
    array = np.empty(count, object)
    for at, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
        try:
            array[at] = str(payload[end - length : end], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f'tensor "{head.name}": element {at} is no UTF-8') from error
    return array.reshape(head.shape)


def pack_arrays(arrays: Mapping[str, Any]) -> tuple[tuple[TensorHead, ...], list[memoryview]]:
    """Heads and bytes of several arrays, in their order.

    Lists, dicts and None stand for sequences, maps and empty optionals.

    Raises:
        InputMismatch: a dtype, or something in a list or dict, cannot be sent.
    """
    heads, tensors = [], []
    for name, array in arrays.items():
        head, tensor = (pack_array if isinstance(array, np.ndarray) else _pack_nested)(name, array)
        heads.append(head)
        tensors.append(tensor)
    return tuple(heads), tensors


@lru_cache(maxsize=256)
def payload_bytes(heads: tuple[TensorHead, ...]) -> int:
    """Bytes of a payload with these tensors. The few shapes that a model is asked with recur."""
    return padded_total([head.size_bytes for head in heads])


def unpack_arrays(heads: Sequence[TensorHead], payload: Buffer) -> Arrays:
    """Arrays over a received payload, by name; lists, dicts and None for what is no tensor.

    Raises:
        ProtocolError: the payload is not exactly as long as these tensors need, or no valid text.
    """
    arrays: Arrays = {}
    end = 0
    for head in heads:
        start = end + padding(end)
        dtype = _DTYPES.get(head.element_type)
        try:
            if dtype is not None and not head.is_nested:
                array: Array = np.ndarray(head.shape, dtype, payload, start)
                end = start + array.nbytes
            else:
                end = start + head.size_bytes
                array = _unpack_other(head, memoryview(payload)[start:end])
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f'tensor "{head.name}" of shape {list(head.shape)} does not fit into a payload of '
                f"{nbytes(payload)} bytes: {error}"
            ) from error
        arrays[head.name] = array
    if end != nbytes(payload):
        raise ProtocolError(f"payload of {nbytes(payload)} bytes, want {end} for its tensors")
    return arrays


def _unpack_one(head: TensorHead, part: memoryview) -> Array:
    return unpack_arrays((head,), part)[head.name]


def _unpack_other(head: TensorHead, part: memoryview) -> Any:
    if part.nbytes != head.size_bytes:
        raise ValueError(f"{part.nbytes} of {head.size_bytes} bytes are there")
    if head.is_nested:
        return unpack_nested(head, part, _unpack_one)
    raw = np.frombuffer(part, np.uint8)
    dtype = head.element_type.numpy_dtype
    if dtype is None:
        return _unpack_text(head, part)
    if head.element_type.bits < 8:
        return unpack_bits(raw, head.element_type, head.shape)
    return raw.view(dtype).reshape(head.shape)
