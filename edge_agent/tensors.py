"""What a tensor is: element types, declared dimensions, concrete shapes, sizes in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

import numpy as np
import numpy.typing as npt

TensorName = NewType("TensorName", str)
Shape = tuple[int, ...]
ShapeSet = tuple[Shape, ...]
"""One shape for each input that `shape_names` tells, in that order."""
Array = npt.NDArray[np.generic]
Arrays = dict[str, Array]


class ElementType(StrEnum):
    """ONNX element types, by the names that numpy and ml_dtypes use."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    FLOAT8E8M0 = "float8e8m0"
    FLOAT4E2M1 = "float4e2m1"
    INT2 = "int2"
    UINT2 = "uint2"
    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    STRING = "string"

    # That of enumerations is written in Python, and every request looks up its types.
    __hash__ = str.__hash__

    @property
    def numpy_dtype(self) -> np.dtype[np.generic] | None:
        """The numpy dtype of this type, or None where numpy has none (strings are not numeric)."""
        return _NUMPY.get(self)

    @property
    def bits(self) -> int:
        """Bits of one element; 0 for strings, whose size is not fixed."""
        return _BITS[self]


_NUMPY: dict[ElementType, np.dtype[np.generic]] = {
    t: np.dtype(t.value)
    for t in (
        ElementType.FLOAT32,
        ElementType.FLOAT64,
        ElementType.FLOAT16,
        ElementType.INT8,
        ElementType.UINT8,
        ElementType.INT16,
        ElementType.UINT16,
        ElementType.INT32,
        ElementType.UINT32,
        ElementType.INT64,
        ElementType.UINT64,
        ElementType.BOOL,
        ElementType.COMPLEX64,
        ElementType.COMPLEX128,
    )
}
_BITS: dict[ElementType, int] = {t: d.itemsize * 8 for t, d in _NUMPY.items()} | {
    ElementType.BFLOAT16: 16,
    ElementType.FLOAT8E4M3FN: 8,
    ElementType.FLOAT8E4M3FNUZ: 8,
    ElementType.FLOAT8E5M2: 8,
    ElementType.FLOAT8E5M2FNUZ: 8,
    ElementType.FLOAT8E8M0: 8,
    ElementType.FLOAT4E2M1: 4,
    ElementType.INT2: 2,
    ElementType.UINT2: 2,
    ElementType.INT4: 4,
    ElementType.UINT4: 4,
    ElementType.STRING: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor as a model declares it.

    `dims` holds, per axis, a fixed size, the name of a symbolic size, or None for a size that is
    not known; `dims` itself is None where not even the rank is known.
    """

    name: TensorName
    element_type: ElementType
    dims: tuple[int | str | None, ...] | None

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a fixed number."""
        return self.dims is not None and all(isinstance(d, int) for d in self.dims)

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.element_type}[any rank]"
        return f"{self.element_type}[{','.join('?' if d is None else str(d) for d in self.dims)}]"


def shape_names(inputs: Iterable[TensorSpec]) -> tuple[TensorName, ...]:
    """The inputs whose shapes make a `ShapeSet`, of all inputs of a model."""
    return tuple(spec.name for spec in inputs)


def size_bytes(element_type: ElementType, shape: Shape) -> int:
    """Bytes of a packed tensor of that type and shape; types below 8 bits are packed."""
    return (math.prod(shape) * element_type.bits + 7) // 8
