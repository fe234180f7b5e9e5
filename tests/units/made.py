"""Small convolutional models that every kind of unit can run, and what runs them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SIDE = 16
CHANNELS = 8
CONVOLUTIONS = 3
OPSET = 17
STEP = 4.0 / 255
"""Of every quantised activation, which are 0 to 4."""
WEIGHT_STEP = 1.0 / 127


def picture(batch: int = 1) -> NDArray[np.float32]:
    """float32[batch,CHANNELS,SIDE,SIDE] of whole steps."""
    steps = np.random.default_rng(7).integers(0, 128, (batch, CHANNELS, SIDE, SIDE))
    return (steps * STEP).astype(np.float32)


def float_net() -> bytes:
    """Three convolutions with Relu, a pooling and a sum, all of fixed shape."""
    nodes, constants, name = [], [], "x"
    for i in range(CONVOLUTIONS):
        weight = f"w{i}"
        constants.append(numpy_helper.from_array(_weight(i), weight))
        nodes += [
            helper.make_node("Conv", [name, weight], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"),
        ]
        name = f"r{i}"
    nodes += [
        helper.make_node("Add", ["r0", name], ["sum"], "add"),
        helper.make_node("MaxPool", ["sum"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    return _model(nodes, constants, 1, SIDE // 2)


def quantised_net(batch: int | str = 1) -> bytes:
    """Three convolutions with Relu in QDQ form; `batch` is a number, or the name of an open one."""
    zero, signed_zero = np.uint8(0), np.int8(0)
    constants = [
        numpy_helper.from_array(np.float32(STEP), "step"),
        numpy_helper.from_array(np.array(zero), "zero"),
        numpy_helper.from_array(np.float32(WEIGHT_STEP), "weight_step"),
        numpy_helper.from_array(np.array(signed_zero), "signed_zero"),
    ]
    nodes = [*_requantised("x", "x")]
    name = "x_d"
    for i in range(CONVOLUTIONS):
        weight = np.clip(np.rint(_weight(i) / WEIGHT_STEP), -127, 127).astype(np.int8)
        constants.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes += [
            helper.make_node(
                "DequantizeLinear", [f"w{i}", "weight_step", "signed_zero"], [f"w{i}_d"], f"w{i}_d"
            ),
            helper.make_node("Conv", [name, f"w{i}_d"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"),
            *_requantised(f"r{i}", "y" if i == CONVOLUTIONS - 1 else f"r{i}"),
        ]
        name = f"r{i}_d"
    nodes[-1].output[0] = "y"
    return _model(nodes, constants, batch, SIDE)


def _requantised(name: str, label: str) -> Iterator[onnx.NodeProto]:
    quantised, back = f"{label}_q", f"{label}_d"
    yield helper.make_node("QuantizeLinear", [name, "step", "zero"], [quantised], quantised)
    yield helper.make_node("DequantizeLinear", [quantised, "step", "zero"], [back], back)


def _weight(seed: int) -> NDArray[np.float32]:
    """Such that Relu of the convolution has about the size of its input."""
    drawn = np.random.default_rng(seed).standard_normal((CHANNELS, CHANNELS, 3, 3))
    return (drawn * np.sqrt(2 / (CHANNELS * 9))).astype(np.float32)


def _model(
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    batch: int | str,
    side_out: int,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "made",
        [_value("x", batch, SIDE)],
        [_value("y", batch, side_out)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _value(name: str, batch: int | str, side: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, CHANNELS, side, side])


def mixed_net() -> bytes:
    """Two convolutions in float32 called front/…, three in QDQ form called quant/…, and two in
    float32 called tail/…, of fixed shape."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    name = "x"
    quantised = onnx.load_from_string(quantised_net())
    renamed = {"x": "front1", "y": "quant"}
    for i in range(2):
        nodes += _float_layer(f"front/{i}", name, f"front{i}", constants)
        name = f"front{i}"
    for node in quantised.graph.node:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.name = f"quant/{node.name}"
        made.input[:] = [renamed.get(n, n) for n in node.input]
        made.output[:] = [renamed.get(n, n) for n in node.output]
        nodes.append(made)
    constants += quantised.graph.initializer
    nodes += _float_layer("tail/0", "quant", "tail0", constants)
    nodes += _float_layer("tail/1", "tail0", "y", constants)
    return _model(nodes, constants, 1, SIDE)


def _float_layer(
    label: str, name: str, output: str, constants: list[onnx.TensorProto]
) -> Iterator[onnx.NodeProto]:
    weight = f"{label}/w"
    constants.append(numpy_helper.from_array(_weight(len(constants)), weight))
    between = f"{label}/c"
    yield helper.make_node("Conv", [name, weight], [between], f"{label}/conv", pads=[1, 1, 1, 1])
    yield helper.make_node("Relu", [between], [output], f"{label}/relu")
