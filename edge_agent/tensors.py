"""What a tensor is: element types, declared dimensions, concrete shapes, sizes in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
        """The dtype of arrays of this type: numpy's own, else that of ml_dtypes; None for strings,
        whose arrays hold objects."""
        return _NUMPY.get(self) or _extended_dtype(self)

    @property
    def is_native(self) -> bool:
        """Whether numpy itself has the type."""
        return self in _NUMPY

    @property
    def runtime_name(self) -> str:
        """What ONNX Runtime calls the type in `tensor(float)`."""
        return _RUNTIME_NAMES.get(self, self.value)

    @property
    def bits(self) -> int:
        """Bits of one element; 0 for strings, whose size is not fixed."""
        return _BITS[self]


class WireType(StrEnum):
    """As what float32 tensors are sent to another device, where the user allows it; every other
    type is sent as it is."""

    FP16 = "fp16"
    INT8 = "int8"
    """Quantised to eight bits, anew for each message: DynamicQuantizeLinear of ONNX."""

    @property
    def ratio(self) -> float:
        """Bytes that are sent for each byte of float32."""
        return 0.5 if self is WireType.FP16 else 0.25


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
_EXTENDED: dict[ElementType, str] = {
    ElementType.BFLOAT16: "bfloat16",
    ElementType.FLOAT8E4M3FN: "float8_e4m3fn",
    ElementType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    ElementType.FLOAT8E5M2: "float8_e5m2",
    ElementType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    ElementType.FLOAT8E8M0: "float8_e8m0fnu",
    ElementType.FLOAT4E2M1: "float4_e2m1fn",
    ElementType.INT2: "int2",
    ElementType.UINT2: "uint2",
    ElementType.INT4: "int4",
    ElementType.UINT4: "uint4",
}
"""What ml_dtypes calls the types that numpy lacks."""
_BY_DTYPE: dict[str, ElementType] = {d.name: t for t, d in _NUMPY.items()} | {
    name: t for t, name in _EXTENDED.items()
}


def _extended_dtype(element_type: ElementType) -> np.dtype[np.generic] | None:
    name = _EXTENDED.get(element_type)
    if name is None:
        return None
    # Few models need it, and every client and agent would wait for it.
    import ml_dtypes

    dtype: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    return dtype


_RUNTIME_NAMES: dict[ElementType, str] = {
    ElementType.FLOAT32: "float",
    ElementType.FLOAT64: "double",
}
_BY_RUNTIME_NAME: dict[str, ElementType] = {t.runtime_name: t for t in ElementType}


def element_type_named(runtime_name: str) -> ElementType | None:
    """The inverse of `ElementType.runtime_name`; None if no type is called so."""
    return _BY_RUNTIME_NAME.get(runtime_name)


def element_type_of(dtype: np.dtype[np.generic]) -> ElementType | None:
    """The ONNX type of arrays of `dtype`: strings for text and objects; None if there is none, or
    if it is not in native byte order."""
    if dtype.kind in "OUS":
        return ElementType.STRING
    return _BY_DTYPE.get(dtype.name) if dtype.isnative else None


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


def size_name(text: str) -> str | None:
    """The symbolic size that a `dim_param` names; None if it stands for a size that is not known.

    Exporters write "", "?", "*", "-1" or "None" for any such size. ONNX wants an identifier, and
    equal names for equal sizes; formulas such as "past + 1" are names here too.
    """
    is_name = text != "None" and any(c.isalpha() or c == "_" for c in text)
    return text if is_name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor as a model declares it.

    `dims` holds, per axis, a fixed size, the name of a symbolic size, or None for a size that is
    not known; `dims` itself is None where not even the rank is known.
    """

    name: TensorName
    element_type: ElementType
    dims: tuple[int | str | None, ...] | None
    has_default: bool = False
    """Whether it is an input that a request may leave out."""
    container: str = ""
    """What it is if it is no tensor, as ONNX Runtime writes it: `seq(tensor(float))`. Then
    `element_type` is that of what it holds, and `dims` is None."""

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a fixed number."""
        return self.dims is not None and all(isinstance(d, int) for d in self.dims)

    def __str__(self) -> str:
        if self.container:
            return self.container
        if self.dims is None:
            return f"{self.element_type}[any rank]"
        return f"{self.element_type}[{','.join('?' if d is None else str(d) for d in self.dims)}]"


def required(inputs: Iterable[TensorSpec]) -> list[TensorName]:
    """The names of those inputs that every request gives."""
    return [spec.name for spec in inputs if not spec.has_default]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpecs:
    """What is known of the values of a model, by name."""

    tensors: Mapping[TensorName, TensorSpec] = field(default_factory=dict)
    others: Mapping[TensorName, str] = field(default_factory=dict)
    """Sequences, maps and optionals, with their type as ONNX Runtime writes it:
    `seq(tensor(float))`, `map(int64,tensor(float))`, `optional(tensor(float))`."""

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or name in self.others

    def described(self, name: str) -> str:
        """The type of a value, for people: `float32[1,64]`, `seq(tensor(float))` or `unknown`."""
        key = TensorName(name)
        return str(self.tensors.get(key) or self.others.get(key) or "unknown")


def pack_bits(array: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Elements of 4 or 2 bits, one to a byte, as ONNX packs them: the first in the lowest bits.

    The result has one dimension; what is left of its last byte is zero.
    """
    per_byte = 8 // bits
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-flat.size // per_byte) * per_byte, np.uint8)
    padded[: flat.size] = flat
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    shifted = padded.reshape(-1, per_byte) << shifts
    return np.asarray(np.bitwise_or.reduce(shifted, axis=1), np.uint8)


def unpack_bits(packed: npt.NDArray[np.uint8], element_type: ElementType, shape: Shape) -> Array:
    """The inverse of `pack_bits`, in the dtype of `element_type`."""
    dtype, bits = element_type.numpy_dtype, element_type.bits
    assert dtype is not None
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    flat = ((packed[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[: math.prod(shape)]
    return flat.view(dtype).reshape(shape)


def shape_names(inputs: Iterable[TensorSpec]) -> tuple[TensorName, ...]:
    """The inputs whose shapes make a `ShapeSet`, of all inputs of a model: tensors that every
    request gives."""
    return tuple(spec.name for spec in inputs if not spec.has_default and not spec.container)


def size_bytes(element_type: ElementType, shape: Shape) -> int:
    """Bytes of a packed tensor of that type and shape; types below 8 bits are packed."""
    return (math.prod(shape) * element_type.bits + 7) // 8
