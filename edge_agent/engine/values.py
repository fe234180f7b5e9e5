"""How the values of ONNX Runtime become specs and arrays of ours, and back.

Types that numpy lacks travel as their bits: bfloat16 as uint16, float8 as uint8. Types below one
byte, sequences, maps and optionals stay inside: they pass from session to session, never outside.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from edge_agent.engine.runtime import load_runtime
from edge_agent.errors import InputMismatch, RunFailed
from edge_agent.tensors import Array, ElementType, TensorName, TensorSpec, size_bytes

_ELEMENT_TYPES: Final[Mapping[str, ElementType]] = {
    {"float32": "float", "float64": "double"}.get(t.value, t.value): t for t in ElementType
}
_CARRIERS: Final[Mapping[ElementType, tuple[np.dtype[np.generic], int]]] = {
    ElementType.BFLOAT16: (np.dtype(np.uint16), 16),
    ElementType.FLOAT8E4M3FN: (np.dtype(np.uint8), 17),
    ElementType.FLOAT8E4M3FNUZ: (np.dtype(np.uint8), 18),
    ElementType.FLOAT8E5M2: (np.dtype(np.uint8), 19),
    ElementType.FLOAT8E5M2FNUZ: (np.dtype(np.uint8), 20),
    ElementType.FLOAT8E8M0: (np.dtype(np.uint8), 24),
}
"""numpy dtype of the same width, and TensorProto.DataType, of types that numpy lacks."""


def carrier_dtype(element_type: ElementType) -> np.dtype[np.generic] | None:
    """The dtype of arrays of that type here: numpy's own, else unsigned integers of equal width.

    None for types below one byte and for strings (those come as object, str or bytes arrays).
    """
    if element_type in _CARRIERS:
        return _CARRIERS[element_type][0]
    return element_type.numpy_dtype


def element_type_of(type_text: str) -> ElementType | None:
    """The element type in a type of ONNX Runtime such as `tensor(float)`; None if no tensor."""
    found = re.fullmatch(r"tensor\((\w+)\)", type_text)
    return _ELEMENT_TYPES.get(found[1]) if found else None


def spec_of(declared: Any) -> TensorSpec | None:
    """The spec of a NodeArg; None if it is a sequence, a map, an optional or a sparse tensor.

    ONNX Runtime shows a scalar and a tensor of unknown rank alike, without dimensions; both get
    `dims=None`, which is never wrong.
    """
    element_type = element_type_of(declared.type)
    if element_type is None:
        return None
    dims = tuple(_dimension(d) for d in declared.shape) or None
    return TensorSpec(name=TensorName(declared.name), element_type=element_type, dims=dims)


def _dimension(declared: int | str | None) -> int | str | None:
    # Shape inference makes up `unk__3` for a size it cannot name: no name that anyone shares.
    if isinstance(declared, str) and (not declared or declared.startswith("unk__")):
        return None
    return declared


def check_array(spec: TensorSpec, array: Array) -> None:
    """Compare an array with its declaration.

    Raises: InputMismatch, which says what came and what is wanted.
    """
    if _fits_type(spec.element_type, array) and _fits_dims(spec.dims, array.shape):
        return
    got = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    raise InputMismatch(f'input "{spec.name}": got {got}, want {spec}')


def _fits_type(element_type: ElementType, array: Array) -> bool:
    if element_type is ElementType.STRING:
        return array.dtype.kind in "OUS"
    return array.dtype == carrier_dtype(element_type)


def _fits_dims(dims: tuple[int | str | None, ...] | None, shape: tuple[int, ...]) -> bool:
    if dims is None:
        return True
    return len(dims) == len(shape) and all(
        not isinstance(want, int) or want == got for want, got in zip(dims, shape, strict=True)
    )


def value_of(array: Array, element_type: ElementType | None) -> Any:
    """What a session takes as input for `array`: an OrtValue only where numpy lacks the type."""
    # Not ascontiguousarray, which turns a scalar into a vector.
    array = np.asarray(array, order="C")
    if element_type is not None and element_type in _CARRIERS:
        return load_runtime().OrtValue.ortvalue_from_numpy_with_onnx_type(
            array, _CARRIERS[element_type][1]
        )
    return array


def array_of(name: str, value: Any) -> Array:
    """The array of an output, without a copy where numpy has the type.

    Raises: RunFailed if it is no tensor, or its elements are smaller than a byte.
    """
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "data_type"):
        raise RunFailed(f'output "{name}" is a {type(value).__name__}; only tensors can be sent')
    element_type = element_type_of(value.data_type())
    if element_type is not None and element_type in _CARRIERS:
        return _bits_of(value, element_type)
    if element_type is None or (carrier_dtype(element_type) is None and element_type.bits):
        raise RunFailed(f'output "{name}" is a {value.data_type()}, which numpy cannot hold')
    array: Array = value.numpy()
    return array


def _bits_of(value: Any, element_type: ElementType) -> Array:
    shape = tuple(value.shape())
    carrier = _CARRIERS[element_type][0]
    raw = ctypes.string_at(value.data_ptr(), size_bytes(element_type, shape))
    return np.frombuffer(bytearray(raw), carrier).reshape(shape)
