"""How ONNX protos declare values: element types, dimensions, and the bytes that they take."""

from __future__ import annotations

import math

import numpy as np
import onnx

from edge_agent.tensors import (
    ElementType,
    TensorName,
    TensorSpec,
    element_type_named,
    size_bytes,
    size_name,
)

_ELEMENT_TYPES: dict[int, ElementType] = {
    number: element_type
    for name, number in onnx.TensorProto.DataType.items()
    if (element_type := element_type_named(name.lower())) is not None
}
_DATA_TYPES = {element_type: number for number, element_type in _ELEMENT_TYPES.items()}


def element_type_of(data_type: int) -> ElementType | None:
    """The element type of a `TensorProto.DataType` number; None if we do not know it."""
    return _ELEMENT_TYPES.get(data_type)


def data_type_of(element_type: ElementType) -> int:
    """The `TensorProto.DataType` number of an element type."""
    return _DATA_TYPES[element_type]


def spec_of(value: onnx.ValueInfoProto) -> TensorSpec | None:
    """What `value` declares; None if it is no tensor or its element type is not known.

    A size below 0, as exporters write for one that they do not know, becomes None.
    """
    if value.type.WhichOneof("value") != "tensor_type":
        return None
    declared = value.type.tensor_type
    element_type = element_type_of(declared.elem_type)
    if element_type is None:
        return None
    dims = tuple(_dim_of(d) for d in declared.shape.dim) if declared.HasField("shape") else None
    return TensorSpec(name=TensorName(value.name), element_type=element_type, dims=dims)


def interface_spec(value: onnx.ValueInfoProto) -> TensorSpec | None:
    """What `value` declares as an input or output of a model, sequences, maps and optionals
    included; None if it is a sparse tensor or its type is not known."""
    kind = value.type.WhichOneof("value")
    if kind == "tensor_type":
        return spec_of(value)
    text = type_text(value.type)
    if text is None or "sparse_tensor" in text:
        return None
    inside = value.type
    while (kind := inside.WhichOneof("value")) != "tensor_type":
        held = getattr(inside, kind)
        inside = held.value_type if kind == "map_type" else held.elem_type
    element_type = element_type_of(inside.tensor_type.elem_type)
    assert element_type is not None  # else there is no text
    return TensorSpec(
        name=TensorName(value.name),
        element_type=element_type,
        dims=None,
        has_default=text.startswith("optional"),
        container=text,
    )


def _dim_of(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.WhichOneof("value") == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return size_name(dim.dim_param)


def type_text(declared: onnx.TypeProto) -> str | None:
    """What ONNX Runtime calls a type: `seq(map(int64,tensor(float)))`; None if it is not given."""
    kind = declared.WhichOneof("value")
    match kind:
        case "tensor_type" | "sparse_tensor_type":
            element = _runtime_name(getattr(declared, kind).elem_type)
            return element and f"{kind.removesuffix('_type')}({element})"
        case "sequence_type" | "optional_type":
            inner = type_text(getattr(declared, kind).elem_type)
            return inner and f"{'seq' if kind == 'sequence_type' else 'optional'}({inner})"
        case "map_type":
            key = _runtime_name(declared.map_type.key_type)
            inner = type_text(declared.map_type.value_type)
            return key and inner and f"map({key},{inner})"
        case _:
            return None


def _runtime_name(data_type: int) -> str | None:
    element_type = element_type_of(data_type)
    return None if element_type is None else element_type.runtime_name


def type_of_text(text: str) -> onnx.TypeProto:
    """The inverse of `type_text`, without shapes.

    Raises:
        ValueError: it is no such type.
    """
    outer, opened, rest = text.partition("(")
    inner = rest.removesuffix(")")
    declared = onnx.TypeProto()
    if not opened or inner == rest:
        raise ValueError(f"got the type {text!r}, want one as in seq(tensor(float))")
    match outer:
        case "tensor" | "sparse_tensor":
            getattr(declared, f"{outer}_type").elem_type = _data_type_named(inner)
        case "seq":
            declared.sequence_type.elem_type.CopyFrom(type_of_text(inner))
        case "optional":
            declared.optional_type.elem_type.CopyFrom(type_of_text(inner))
        case "map":
            key, _, value = inner.partition(",")
            declared.map_type.key_type = _data_type_named(key)
            declared.map_type.value_type.CopyFrom(type_of_text(value))
        case _:
            raise ValueError(f"got the type {text!r}, want a tensor, seq, map or optional")
    return declared


def _data_type_named(name: str) -> int:
    element_type = element_type_named(name)
    if element_type is None:
        raise ValueError(f"got the element type {name!r}, want one as in tensor(float)")
    return data_type_of(element_type)


def value_info_of(spec: TensorSpec) -> onnx.ValueInfoProto:
    """The declaration of `spec` in ONNX."""
    data_type = data_type_of(spec.element_type)
    dims = None if spec.dims is None else list(spec.dims)
    return onnx.helper.make_tensor_value_info(spec.name, data_type, dims)


def spec_of_tensor(tensor: onnx.TensorProto) -> TensorSpec | None:
    """Type and shape of a constant; None if its element type is not known."""
    element_type = element_type_of(tensor.data_type)
    if element_type is None:
        return None
    dims = tuple(int(d) for d in tensor.dims)
    return TensorSpec(name=TensorName(tensor.name), element_type=element_type, dims=dims)


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a constant by its type and shape; 0 for strings and types that we do not know."""
    element_type = element_type_of(tensor.data_type)
    return 0 if element_type is None else size_bytes(element_type, tuple(tensor.dims))


def spec_bytes(spec: TensorSpec | None) -> int | None:
    """Bytes of a value; None where its type or a dimension is not known."""
    if spec is None or spec.dims is None or spec.element_type is ElementType.STRING:
        return None
    shape = tuple(d for d in spec.dims if isinstance(d, int))
    return size_bytes(spec.element_type, shape) if len(shape) == len(spec.dims) else None


def stored_elements(tensor: onnx.TensorProto) -> tuple[int, int]:
    """(entries found, entries wanted) in the typed field of a tensor without `raw_data`.

    Which field holds which type, and how narrow types share an entry, is laid down in the
    comments of onnx.proto (TensorProto).
    """
    count = math.prod(tensor.dims)
    kind = element_type_of(tensor.data_type)
    match kind:
        case ElementType.FLOAT32:
            return len(tensor.float_data), count
        case ElementType.COMPLEX64:
            return len(tensor.float_data), 2 * count
        case ElementType.FLOAT64:
            return len(tensor.double_data), count
        case ElementType.COMPLEX128:
            return len(tensor.double_data), 2 * count
        case ElementType.INT64:
            return len(tensor.int64_data), count
        case ElementType.UINT32 | ElementType.UINT64:
            return len(tensor.uint64_data), count
        case ElementType.STRING:
            return len(tensor.string_data), count
        case _:
            bits = kind.bits if kind is not None else 32
            return len(tensor.int32_data), (count * bits + 7) // 8 if bits < 8 else count


def raw_bytes(tensor: onnx.TensorProto) -> bytes:
    """The values of a tensor that holds them itself, as its `raw_data` would be; no strings.

    A typed field holds narrow values one to an entry, those below a byte packed into bytes
    (onnx.proto, TensorProto).
    """
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    match element_type_of(tensor.data_type):
        case ElementType.FLOAT32 | ElementType.COMPLEX64:
            field, width = tensor.float_data, "<f4"
        case ElementType.FLOAT64 | ElementType.COMPLEX128:
            field, width = tensor.double_data, "<f8"
        case ElementType.INT64:
            field, width = tensor.int64_data, "<i8"
        case ElementType.UINT32:
            field, width = tensor.uint64_data, "<u4"
        case ElementType.UINT64:
            field, width = tensor.uint64_data, "<u8"
        case kind:
            field = tensor.int32_data
            bits = kind.bits if kind is not None else 32
            width = "<i4" if bits == 32 else "<i2" if bits == 16 else "i1"
    # Entries of narrow types may have a sign or not: their low bits are what counts.
    entry = width if width in ("<f4", "<f8", "<u8") else "<i8"
    return bytes(np.fromiter(field, entry, len(field)).astype(width).tobytes())
