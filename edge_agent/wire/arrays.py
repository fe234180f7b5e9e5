"""numpy arrays as tensor heads and raw bytes, without copying where memory allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from edge_agent.errors import InputMismatch, ProtocolError
from edge_agent.tensors import Array, Arrays, ElementType
from edge_agent.wire.frames import Buffer, nbytes, padded_total, padding
from edge_agent.wire.messages import TensorHead

_TYPES = {t.numpy_dtype: t for t in ElementType if t.numpy_dtype is not None}


def element_type(array: Array) -> ElementType | None:
    """The ONNX type of a numpy array in native byte order, or None if it has none here."""
    return _TYPES.get(array.dtype)


def pack_array(name: str, array: Array) -> tuple[TensorHead, memoryview]:
    """Head and bytes of an array; a copy is made only if it is not C-contiguous.

    Raises:
        InputMismatch: its dtype cannot be sent.
    """
    kind = element_type(array)
    if kind is None:
        raise InputMismatch(
            f'tensor "{name}": got dtype {array.dtype}, want a numeric or boolean one in native '
            "byte order"
        )
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return TensorHead(name, kind, array.shape), array.data


def pack_arrays(arrays: Mapping[str, Array]) -> tuple[tuple[TensorHead, ...], list[memoryview]]:
    """Heads and bytes of several arrays, in their order."""
    heads, tensors = [], []
    for name, array in arrays.items():
        head, tensor = pack_array(name, array)
        heads.append(head)
        tensors.append(tensor)
    return tuple(heads), tensors


@lru_cache(maxsize=256)
def payload_bytes(heads: tuple[TensorHead, ...]) -> int:
    """Bytes of a payload with these tensors. The few shapes that a model is asked with recur."""
    return padded_total([head.size_bytes for head in heads])


def unpack_arrays(heads: Sequence[TensorHead], payload: Buffer) -> Arrays:
    """Arrays over a received payload, by name.

    Raises:
        ProtocolError: a type is none of numpy's, or the payload is not exactly as long as these
            tensors need.
    """
    arrays: Arrays = {}
    end = 0
    for head in heads:
        dtype = head.element_type.numpy_dtype
        if dtype is None:
            raise ProtocolError(f'tensor "{head.name}" of type {head.element_type} cannot be sent')
        start = end + padding(end)
        try:
            array: Array = np.ndarray(head.shape, dtype, payload, start)
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f'tensor "{head.name}" of shape {list(head.shape)} does not fit into a payload of '
                f"{nbytes(payload)} bytes: {error}"
            ) from error
        arrays[head.name] = array
        end = start + array.nbytes
    if end != nbytes(payload):
        raise ProtocolError(f"payload of {nbytes(payload)} bytes, want {end} for its tensors")
    return arrays
