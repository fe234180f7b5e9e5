"""How ONNX models of a node or a constant are spelled in protobuf bytes, without the onnx package.

Field numbers are those of onnx.proto3 (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from edge_agent.tensors import Shape

_FLOAT = 1
_UINT8 = 2
_STRING = 8
_INT = 2
"""Type of an attribute that is a whole number."""
_IR_VERSION = 8


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _nested(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _declaration(field: int, name: str, shape: Shape, data_type: int = _FLOAT) -> bytes:
    dims = _nested(2, *(_nested(1, _number(1, size)) for size in shape))
    tensor = _nested(1, _number(1, data_type), dims)
    return _nested(field, _nested(1, name.encode()), _nested(2, tensor))


def one_node_model(
    operator: str, *, opset: int, inputs: tuple[str, ...] = ("x",), shape: Shape = (2,)
) -> bytes:
    """A model of one ai.onnx node from float32 `inputs`, each of `shape`, to "y" of that shape."""
    node = _nested(
        1,
        *(_nested(1, name.encode()) for name in inputs),
        _nested(2, b"y"),
        _nested(3, b"node"),
        _nested(4, operator.encode()),
    )
    graph = _nested(
        7,
        node,
        _nested(2, b"tiny"),
        *(_declaration(11, name, shape) for name in inputs),
        _declaration(12, "y", shape),
    )
    return _number(1, _IR_VERSION) + graph + _nested(8, _nested(1), _number(2, opset))


def chain_model(nodes: int, elements: int = 2) -> bytes:
    """A model of so many ai.onnx Relu nodes, one after the other, on a float32 vector, from "v0"
    to "v" with the number of nodes."""
    relus = (
        _nested(
            1,
            _nested(1, f"v{i}".encode()),
            _nested(2, f"v{i + 1}".encode()),
            _nested(4, b"Relu"),
        )
        for i in range(nodes)
    )
    ends = (_declaration(11, "v0", (elements,)), _declaration(12, f"v{nodes}", (elements,)))
    graph = _nested(7, *relus, _nested(2, b"tiny"), *ends)
    return _number(1, _IR_VERSION) + graph + _nested(8, _nested(1), _number(2, 17))


def text_model(texts: Sequence[bytes], shape: Shape) -> bytes:
    """A model without inputs that gives `texts` as the tensor "y" of that shape."""
    tensor = _nested(
        5,
        *(_number(1, size) for size in shape),
        _number(2, _STRING),
        *(_nested(6, text) for text in texts),
        _nested(8, b"y"),
    )
    graph = _nested(7, _nested(2, b"tiny"), tensor, _declaration(12, "y", shape, _STRING))
    return _number(1, _IR_VERSION) + graph + _nested(8, _nested(1), _number(2, 17))


def quantised_model(side: int, weight: bytes, out_scale: float) -> bytes:
    """y = x · w for float32[side,side] with all of it quantised to uint8, in QDQ form (opset 13).

    x and `weight`, side² bytes, hold whole numbers from 0 to 255 (scale 1); y is rounded to
    multiples of `out_scale`. Every dimension is fixed, as NPUs want it.
    """
    square = (side, side)
    nodes = (
        _node("QuantizeLinear", ("x", "one", "zero"), "xq"),
        _node("DequantizeLinear", ("xq", "one", "zero"), "xd"),
        _node("DequantizeLinear", ("wq", "one", "zero"), "wd"),
        _node("MatMul", ("xd", "wd"), "p"),
        _node("QuantizeLinear", ("p", "scale", "zero"), "pq"),
        _node("DequantizeLinear", ("pq", "scale", "zero"), "y"),
    )
    constants = (
        _tensor("one", _FLOAT, (), struct.pack("<f", 1.0)),
        _tensor("scale", _FLOAT, (), struct.pack("<f", out_scale)),
        _tensor("zero", _UINT8, (), bytes(1)),
        _tensor("wq", _UINT8, square, weight),
    )
    ends = (_declaration(11, "x", square), _declaration(12, "y", square))
    graph = _nested(7, *nodes, _nested(2, b"tiny"), *constants, *ends)
    return _number(1, _IR_VERSION) + graph + _nested(8, _nested(1), _number(2, 13))


def vector_model(
    operator: str,
    *,
    opset: int,
    inputs: Sequence[tuple[str, int]],
    outputs: Sequence[tuple[str, int]],
    attributes: Sequence[tuple[str, int]] = (),
) -> bytes:
    """A model of one ai.onnx node with whole numbers as attributes.

    `inputs` and `outputs` are (name, data type as in onnx.TensorProto). The first of each is a
    vector of any length, the others are scalars.
    """
    node = _nested(
        1,
        *(_nested(1, name.encode()) for name, _ in inputs),
        *(_nested(2, name.encode()) for name, _ in outputs),
        _nested(4, operator.encode()),
        *(
            _nested(5, _nested(1, name.encode()), _number(3, value), _number(20, _INT))
            for name, value in attributes
        ),
    )
    ends = [
        _open_declaration(field, name, kind, is_vector=not at)
        for field, values in ((11, inputs), (12, outputs))
        for at, (name, kind) in enumerate(values)
    ]
    graph = _nested(7, node, _nested(2, b"tiny"), *ends)
    return _number(1, _IR_VERSION) + graph + _nested(8, _nested(1), _number(2, opset))


def _open_declaration(field: int, name: str, data_type: int, *, is_vector: bool) -> bytes:
    dims = _nested(2, *([_nested(1, _nested(2, b"N"))] if is_vector else []))
    tensor = _nested(1, _number(1, data_type), dims)
    return _nested(field, _nested(1, name.encode()), _nested(2, tensor))


def _node(operator: str, inputs: tuple[str, ...], output: str) -> bytes:
    return _nested(
        1,
        *(_nested(1, name.encode()) for name in inputs),
        _nested(2, output.encode()),
        _nested(3, f"make_{output}".encode()),
        _nested(4, operator.encode()),
    )


def _tensor(name: str, data_type: int, shape: Shape, raw: bytes) -> bytes:
    dims = (_number(1, size) for size in shape)
    return _nested(5, *dims, _number(2, data_type), _nested(8, name.encode()), _nested(9, raw))
