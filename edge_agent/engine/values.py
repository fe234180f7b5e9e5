"""How the values of ONNX Runtime become specs and arrays of ours, and back.

Arrays of types that numpy lacks have dtypes of ml_dtypes, which ONNX Runtime does not know: their
bits are copied. Sequences, maps and optionals pass from session to session, never outside.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from edge_agent.engine.runtime import CPU, ERRORS_ONLY, load_runtime
from edge_agent.engine.tiny import text_model
from edge_agent.errors import InputMismatch, RunFailed
from edge_agent.tensors import (
    Array,
    ElementType,
    TensorName,
    TensorSpec,
    element_type_named,
    pack_bits,
    size_bytes,
    size_name,
    unpack_bits,
)

_DATA_TYPES: Final[Mapping[ElementType, int]] = {
    ElementType.BFLOAT16: 16,
    ElementType.FLOAT8E4M3FN: 17,
    ElementType.FLOAT8E4M3FNUZ: 18,
    ElementType.FLOAT8E5M2: 19,
    ElementType.FLOAT8E5M2FNUZ: 20,
    ElementType.UINT4: 21,
    ElementType.INT4: 22,
    ElementType.FLOAT4E2M1: 23,
    ElementType.FLOAT8E8M0: 24,
    ElementType.UINT2: 25,
    ElementType.INT2: 26,
}
"""TensorProto.DataType of the types that numpy lacks (onnx.proto)."""


def element_type_of(type_text: str) -> ElementType | None:
    """The element type in a type of ONNX Runtime such as `tensor(float)`; None if no tensor."""
    found = re.fullmatch(r"tensor\((\w+)\)", type_text)
    return element_type_named(found[1]) if found else None


def spec_of(declared: Any) -> TensorSpec | None:
    """The spec of a NodeArg; None if it is a sparse tensor.

    ONNX Runtime shows a scalar and a tensor of unknown rank alike, without dimensions; both get
    `dims=None`, which is never wrong.
    """
    element_type = element_type_of(declared.type)
    if element_type is None:
        return _container_of(declared)
    dims = tuple(_dimension(d) for d in declared.shape) or None
    return TensorSpec(name=TensorName(declared.name), element_type=element_type, dims=dims)


def _container_of(declared: Any) -> TensorSpec | None:
    if "sparse" in declared.type:
        return None
    inside = element_type_of(f"tensor({re.findall(r'[a-z0-9]+', declared.type)[-1]})")
    if inside is None:
        return None
    return TensorSpec(
        name=TensorName(declared.name),
        element_type=inside,
        dims=None,
        has_default=declared.type.startswith("optional"),
        container=declared.type,
    )


def _dimension(declared: int | str | None) -> int | str | None:
    if not isinstance(declared, str):
        return declared
    # Shape inference makes up `unk__3` for a size it cannot name: no name that anyone shares.
    return None if declared.startswith("unk__") else size_name(declared)


def check_array(spec: TensorSpec, array: Array) -> None:
    """Compare an array with its declaration; what is no tensor is for ONNX Runtime to compare.

    Raises: InputMismatch, which says what came and what is wanted.
    """
    if spec.container and not isinstance(array, np.ndarray):
        return
    if not isinstance(array, np.ndarray):
        raise InputMismatch(f'input "{spec.name}": got a {type(array).__name__}, want {spec}')
    if _fits_type(spec.element_type, array) and _fits_dims(spec.dims, array.shape):
        return
    got = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    raise InputMismatch(f'input "{spec.name}": got {got}, want {spec}')


def _fits_type(element_type: ElementType, array: Array) -> bool:
    if element_type is ElementType.STRING:
        return array.dtype.kind in "OUS"
    return array.dtype == element_type.numpy_dtype


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
    data_type = None if element_type is None else _DATA_TYPES.get(element_type)
    if element_type is None or data_type is None or array.dtype != element_type.numpy_dtype:
        return array
    values = load_runtime().OrtValue
    if element_type.bits >= 8:
        bits = array.view(f"u{array.dtype.itemsize}")
        return values.ortvalue_from_numpy_with_onnx_type(bits, data_type)
    packed = pack_bits(array, element_type.bits)
    value = values.ortvalue_from_shape_and_type(array.shape, data_type)
    ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
    return value


def inner_value(value: Any) -> Any:
    """An OrtValue of what `value_of` gave, text included.

    Raises: RunFailed for lists, maps and empty optionals, of which none can be made (1.32).
    """
    runtime = load_runtime()
    if value is None or isinstance(value, (list, dict)):
        raise RunFailed(
            f"a {type(value).__name__} and types that numpy lacks cannot pass in one run"
        )
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "OUS":
        return runtime.OrtValue.ortvalue_from_numpy(value)
    # Nothing makes one of text (1.32), but a model that holds it gives one.
    texts = [t if isinstance(t, bytes) else str(t).encode() for t in value.reshape(-1).tolist()]
    options = runtime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(text_model(texts, value.shape), options, providers=[CPU])
    return session.run_with_ort_values(["y"], {})[0]


def array_of(name: str, value: Any) -> Any:
    """The array of an output, without a copy where numpy has the type; a list, a dict or None if
    it is no tensor.

    Raises: RunFailed if it holds types that numpy lacks and is no tensor.
    """
    if isinstance(value, (np.ndarray, list, dict)) or value is None:
        return value
    element_type = element_type_of(value.data_type())
    if element_type is None:
        raise RunFailed(f'output "{name}" is a {value.data_type()}, which Python cannot hold')
    if element_type in _DATA_TYPES:
        return _copied(value, element_type)
    array: Array = value.numpy()
    return array


def _copied(value: Any, element_type: ElementType) -> Array:
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), size_bytes(element_type, shape))
    bits = np.frombuffer(bytearray(raw), np.uint8)
    if element_type.bits < 8:
        return unpack_bits(bits, element_type, shape)
    dtype = element_type.numpy_dtype
    assert dtype is not None
    return bits.view(dtype).reshape(shape)
