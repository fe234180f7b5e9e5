"""How a single tensor is read from a file of ONNX test data (`input_0.pb`)."""

from __future__ import annotations

import math

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, numpy_helper

from edge_agent.errors import UsageError
from edge_agent.model.external import is_external
from edge_agent.model.values import spec_of_tensor, stored_elements
from edge_agent.tensors import Array, ElementType, TensorSpec


def parse_tensor(content: bytes) -> TensorProto:
    """The tensor in the bytes of a file.

    Raises: UsageError if they are none.
    """
    tensor = TensorProto()
    try:
        tensor.ParseFromString(content)
    except DecodeError as error:
        raise UsageError(f"is no TensorProto ({error}); sequences cannot be read") from error
    return tensor


def tensor_spec(tensor: TensorProto) -> TensorSpec:
    """Its type and shape, checked against what it holds.

    Raises: UsageError if it does not hold as many values as it says, or refers to another file.
    """
    spec = spec_of_tensor(tensor)
    if spec is None or any(size < 0 for size in tensor.dims):
        got = f"type {tensor.data_type}[{','.join(map(str, tensor.dims))}]"
        raise UsageError(f"got a tensor of {got}, want a known type and shape")
    if is_external(tensor):
        raise UsageError("refers to another file; want the values in it")
    if tensor.HasField("raw_data") and spec.element_type is not ElementType.STRING:
        want = (spec.element_type.bits * math.prod(tensor.dims) + 7) // 8
        found = len(tensor.raw_data)
    else:
        found, want = stored_elements(tensor)
    if found != want:
        raise UsageError(f"holds {found} entries, want {want} for {spec}")
    return spec


def tensor_array(tensor: TensorProto) -> Array:
    """Its values, if `tensor_spec` found it sound.

    Raises: ValueError: text in it is no UTF-8, or numpy has no array of that shape.
    """
    array: Array = numpy_helper.to_array(tensor)
    return array
