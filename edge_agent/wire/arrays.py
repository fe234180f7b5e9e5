"""numpy arrays as tensor heads and raw bytes, without copying where memory allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edge_agent.errors import InputMismatch
from edge_agent.tensors import Array, Arrays, ElementType
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
    flat = np.ascontiguousarray(array).reshape(-1)
    view = flat.view(np.uint8).data if flat.size else memoryview(b"")
    return TensorHead(name=name, element_type=kind, shape=array.shape), view


def pack_arrays(arrays: Mapping[str, Array]) -> tuple[tuple[TensorHead, ...], list[memoryview]]:
    """Heads and bytes of several arrays, in their order."""
    packed = [pack_array(name, array) for name, array in arrays.items()]
    return tuple(head for head, _ in packed), [view for _, view in packed]


def unpack_arrays(heads: Sequence[TensorHead], views: Sequence[memoryview]) -> Arrays:
    """Arrays over received bytes, which the frame has aligned.

    The heads were checked before: every type has a numpy dtype and every length fits.
    """
    arrays: Arrays = {}
    for head, view in zip(heads, views, strict=True):
        dtype = head.element_type.numpy_dtype
        assert dtype is not None
        arrays[head.name] = np.frombuffer(view, dtype=dtype).reshape(head.shape)
    return arrays
