"""How a model file is read without its weights: it is rewritten as if they were external data that
lie in the model file itself, so that they are neither copied nor held in memory.

Works on the wire format of protobuf, so that the bytes of a weight are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from edge_agent.errors import ModelRefused
from edge_agent.model.external import external_place
from edge_agent.model.values import tensor_bytes

_LEAST_BYTES = 4096
"""Smaller tensors stay inside: shapes, axes and bounds among them must be at hand."""
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_RAW_DATA = 9
_PLAIN_FIELDS = frozenset({1, 2, 8, _RAW_DATA, 12})
"""Dimensions, type, name, data, documentation: a tensor with any other field stays as it is."""


class _Kind(Enum):
    MODEL = 0
    GRAPH = 1
    NODE = 2
    ATTRIBUTE = 3
    TENSOR = 4


_INSIDE: Mapping[_Kind, Mapping[int, _Kind]] = {
    _Kind.MODEL: {7: _Kind.GRAPH},
    _Kind.GRAPH: {1: _Kind.NODE, 5: _Kind.TENSOR},
    _Kind.NODE: {5: _Kind.ATTRIBUTE},
    _Kind.ATTRIBUTE: {5: _Kind.TENSOR},
    _Kind.TENSOR: {},
}
"""Where the weights of the main graph are: its initializers, and what Constant nodes hold. The
numbers are those of onnx.proto."""


class _Malformed(Exception):
    """The bytes are no protobuf message that this module understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    number: int
    wire_type: int
    start: int
    """Of its tag."""
    value_start: int
    stop: int


def without_weights(content: memoryview, file_name: str) -> bytes | memoryview:
    """The serialized model `content` with its larger tensors as external data in `file_name`.

    `file_name` is the name of the file whose bytes `content` are. What cannot be rewritten, and
    what is damaged, is left as it is, for the parser to judge.
    """
    try:
        rewritten = _rewritten(content, 0, len(content), _Kind.MODEL, file_name)
    except _Malformed:
        return content
    return content if rewritten is None else rewritten


def _rewritten(
    content: memoryview, start: int, stop: int, kind: _Kind, file_name: str
) -> bytes | None:
    """The message in [start, stop) with its larger tensors left out; None if it has none."""
    if kind is _Kind.TENSOR:
        return _stub(content, start, stop, file_name)
    inside = _INSIDE[kind]
    pieces: list[bytes | memoryview] = []
    kept_from = start
    for field in _fields(content, start, stop):
        member = inside.get(field.number)
        if (
            member is None
            or field.wire_type != _LENGTH
            or field.stop - field.value_start < _LEAST_BYTES
        ):
            continue
        new = _rewritten(content, field.value_start, field.stop, member, file_name)
        if new is not None:
            pieces += [content[kept_from : field.start], _with_tag(field.number, new)]
            kept_from = field.stop
    if not pieces:
        return None
    return b"".join((*pieces, content[kept_from:stop]))


def _stub(content: memoryview, start: int, stop: int, file_name: str) -> bytes | None:
    """The tensor in [start, stop) with a reference in place of its data; None to keep it."""
    fields = list(_fields(content, start, stop))
    data = [field for field in fields if field.number == _RAW_DATA]
    if len(data) != 1 or any(field.number not in _PLAIN_FIELDS for field in fields):
        return None
    (raw,) = data
    described = bytes(content[start : raw.start]) + bytes(content[raw.stop : stop])
    length_bytes = raw.stop - raw.value_start
    reference = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (
        ("location", file_name),
        ("offset", str(raw.value_start)),
        ("length", str(length_bytes)),
    ):
        reference.external_data.add(key=key, value=value)
    # Fields of messages that follow each other are merged.
    stub = described + bytes(reference.SerializeToString())
    return stub if raw.wire_type == _LENGTH and _is_sound(stub, length_bytes) else None


def _is_sound(stub: bytes, length_bytes: int) -> bool:
    """Whether type and shape ask for so many bytes, and the file may be referred to by its name."""
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(stub)
        if tensor.data_type == onnx.TensorProto.STRING or min(tensor.dims, default=0) < 0:
            return False
        external_place(tensor, "")
    except (DecodeError, ModelRefused):
        return False
    return tensor_bytes(tensor) == length_bytes


def _fields(content: memoryview, start: int, stop: int) -> Iterator[_Field]:
    at = start
    while at < stop:
        tag, value_start = _varint(content, at, stop)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _LENGTH:
            length, value_start = _varint(content, value_start, stop)
            end = value_start + length
        elif wire_type == _VARINT:
            _, end = _varint(content, value_start, stop)
        elif wire_type in _FIXED_BYTES:
            end = value_start + _FIXED_BYTES[wire_type]
        else:
            raise _Malformed
        if end > stop:
            raise _Malformed
        yield _Field(
            number=number, wire_type=wire_type, start=at, value_start=value_start, stop=end
        )
        at = end


def _varint(content: memoryview, at: int, stop: int) -> tuple[int, int]:
    """The number that starts at `at`, and where it ends."""
    found = shift = 0
    while at < stop and shift < 64:
        byte = content[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
    raise _Malformed


def _with_tag(number: int, value: bytes) -> bytes:
    head = bytearray()
    for part in (number << 3 | _LENGTH, len(value)):
        rest = part
        while rest > 0x7F:
            head.append(rest & 0x7F | 0x80)
            rest >>= 7
        head.append(rest)
    return bytes(head) + value
