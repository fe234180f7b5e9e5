"""Quantised graphs get channels-last and unsigned kernels and keep their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.model.nhwc_graphs import (
    MICROSOFT,
    Nodes,
    assert_equal_outputs,
    feeds_for,
    node,
    operators,
    rewritten,
    run,
    value,
    write,
)


def quantised_chain(dtype: type, group: int = 1) -> tuple[Nodes, dict[str, Any]]:
    """Two quantised convolutions with a residual, pools and a concatenation between them."""
    generator = np.random.default_rng(0)
    zero = dtype(np.iinfo(dtype).min // 2 + np.iinfo(dtype).max // 2 + 3)
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("QLinearConv", "q s z w0 ws wz s z b0", "c", pads=[1, 1, 1, 1]),
        node("QLinearConv", "c s z w1 ws wz s z", "d", pads=[1, 1, 1, 1], group=group),
        node("QLinearMul", "c s z d s z s z", "e", domain=MICROSOFT),
        node("QLinearConcat", "s z c s z e s z", "f", domain=MICROSOFT, axis=1),
        node("MaxPool", "f", "g", kernel_shape=[2, 2], strides=[2, 2]),
        node("QLinearAveragePool", "g s z s z", "h", domain=MICROSOFT, kernel_shape=[2, 2]),
        node("QLinearGlobalAveragePool", "h s z s z", "i", domain=MICROSOFT),
        node("QLinearAdd", "h s z i s z s z", "k", domain=MICROSOFT),
        node("DequantizeLinear", "k s z", "y"),
    ]
    constants = {
        "s": np.float32(0.05),
        "z": zero,
        "w0": generator.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
        "w1": generator.integers(-127, 128, (8, 8 // group, 3, 3)).astype(np.int8),
        "ws": np.linspace(0.002, 0.004, 8, dtype=np.float32),
        "wz": np.zeros(8, np.int8),
        "b0": generator.integers(-500, 500, 8).astype(np.int32),
    }
    return nodes, constants


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantised_operators_get_their_channels_last_kernels(dtype: type, tmp_path: Path) -> None:
    nodes, constants = quantised_chain(dtype)
    inputs, outputs = [value("x", [1, 4, 12, 12])], [value("y", [1, 16, 5, 5])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    result, destination = rewritten(source)
    assert dict(result.converted) == {
        "QLinearConv": 2,
        "MaxPool": 1,
        "QLinearAveragePool": 1,
        "QLinearGlobalAveragePool": 1,
    }
    assert result.transposes == 2
    assert operators(destination)["NhwcMaxPool"] == 1
    # ONNX Runtime's average pools round int8 and uint8 differently: a step in each summand.
    assert_equal_outputs(source, destination, allowed=0.101 if dtype is np.int8 else 0)


def test_signed_images_and_weights_become_unsigned_without_changing_a_bit(
    tmp_path: Path,
) -> None:
    nodes, constants = quantised_chain(np.int8)
    nodes = [
        *nodes[:3],
        node("QLinearAdd", "c s z d s z s z", "e", domain=MICROSOFT),
        *nodes[4:6],
        node("DequantizeLinear", "g s z", "y"),
    ]
    inputs, outputs = [value("x", [1, 4, 12, 12])], [value("y", [1, 16, 6, 6])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    _, destination = rewritten(source)
    kept = {t.data_type for t in onnx.load(destination).graph.initializer}
    assert TensorProto.INT8 not in kept
    feeds = feeds_for(source)
    assert np.array_equal(run(source, feeds)[0], run(destination, feeds)[0])


@pytest.mark.parametrize("allow_saturation", [False, True])
def test_weights_of_qdq_models_stay_signed_only_where_saturation_is_allowed(
    allow_saturation: bool, tmp_path: Path
) -> None:
    nodes, constants = qdq_graph(np.int8)
    inputs, outputs = [value("x", [1, 4, 12, 12])], [value("y", [1, 8, 11, 11])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    _, destination = rewritten(source, allow_saturation=allow_saturation)
    graph = onnx.load(destination).graph
    conv = next(n for n in graph.node if n.op_type == "QLinearConv")
    weight = next(t for t in graph.initializer if t.name == conv.input[3])
    assert weight.data_type == (TensorProto.INT8 if allow_saturation else TensorProto.UINT8)


def test_a_signed_image_that_leaves_the_graph_stays_signed(tmp_path: Path) -> None:
    nodes, constants = quantised_chain(np.int8)
    outputs = [value("y", [1, 16, 5, 5]), value("c", [1, 8, 12, 12], TensorProto.INT8)]
    source = write(tmp_path / "a.onnx", nodes, [value("x", [1, 4, 12, 12])], outputs, constants)
    result, destination = rewritten(source)
    assert result.changed
    assert_equal_outputs(source, destination)


def test_grouped_quantised_convolutions_stay_channels_first(tmp_path: Path) -> None:
    nodes, constants = quantised_chain(np.uint8, group=4)
    inputs, outputs = [value("x", [1, 4, 12, 12])], [value("y", [1, 16, 5, 5])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    _, destination = rewritten(source)
    grouped = [n for n in onnx.load(destination).graph.node if "w1" in n.input]
    assert [n.domain for n in grouped] == [""]
    assert_equal_outputs(source, destination)


def qdq_graph(dtype: type) -> tuple[Nodes, dict[str, Any]]:
    generator = np.random.default_rng(0)
    zero = dtype(np.iinfo(dtype).min)
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("DequantizeLinear", "w ws wz", "wd", axis=0),
        node("DequantizeLinear", "b bs bz", "bd", axis=0),
        node("Conv", "xd wd bd", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("QuantizeLinear", "r s z", "rq"),
        node("DequantizeLinear", "rq s z", "rd"),
        node("MaxPool", "rd", "m", kernel_shape=[2, 2]),
        node("QuantizeLinear", "m s z", "mq"),
        node("DequantizeLinear", "mq s z", "y"),
    ]
    scales = np.linspace(0.002, 0.004, 8, dtype=np.float32)
    constants = {
        "s": np.float32(0.03),
        "z": zero,
        "w": generator.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
        "ws": scales,
        "wz": np.zeros(8, np.int8),
        "b": generator.integers(-500, 500, 8).astype(np.int32),
        "bs": np.float32(0.03) * scales,
        "bz": np.zeros(8, np.int32),
    }
    return nodes, constants


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_convolution_between_dequantize_and_quantize_is_fused(
    dtype: type, tmp_path: Path
) -> None:
    nodes, constants = qdq_graph(dtype)
    inputs, outputs = [value("x", [1, 4, 12, 12])], [value("y", [1, 8, 11, 11])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    result, destination = rewritten(source)
    assert dict(result.converted) == {"QLinearConv": 1, "MaxPool": 1}
    assert operators(destination)["Conv"] == operators(destination)["Relu"] == 0
    feeds = feeds_for(source)
    step = np.abs(run(source, feeds)[0] - run(destination, feeds)[0]).max() / 0.03
    assert step <= 1.001


def test_a_bias_in_other_steps_than_the_products_is_not_fused(tmp_path: Path) -> None:
    nodes, constants = qdq_graph(np.uint8)
    constants["bs"] = constants["bs"] * np.float32(2)
    inputs, outputs = [value("x", [1, 4, 12, 12])], [value("y", [1, 8, 11, 11])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    result, destination = rewritten(source)
    if result.changed:
        assert "QLinearConv" not in dict(result.converted)
        assert_equal_outputs(source, destination)


def test_a_dequantize_is_repeated_rather_than_parted_from_its_operator(tmp_path: Path) -> None:
    nodes, constants = quantised_chain(np.uint8)
    kernel = np.random.default_rng(0).standard_normal((3, 16, 3, 3)).astype(np.float32)
    nodes = [*nodes[:-1], node("DequantizeLinear", "k s z", "j"), node("Conv", "j kernel", "y")]
    inputs, outputs = [value("x", [1, 4, 12, 12])], [value("y", [1, 3, 3, 3])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants | {"kernel": kernel})
    _, destination = rewritten(source)
    graph = onnx.load(destination).graph
    makers = {name: n for n in graph.node for name in n.output}
    conv = next(n for n in graph.node if n.op_type == "Conv")
    assert makers[conv.input[0]].op_type == "DequantizeLinear"
    assert_equal_outputs(source, destination)
