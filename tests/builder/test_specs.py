"""Types of inner values: shape inference first, ONNX Runtime for what it leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.specs import inner_specs
from edge_agent.model.divide import legal_cuts
from edge_agent.model.graph import ModelGraph
from edge_agent.model.probe import open_values
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import ElementType, TensorName

SHAPES = {TensorName("x"): (2, 4)}
HIDDEN = [TensorName(n) for n in ("gelu", "product", "sum", "out")]
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def loaded(
    folder: Path, nodes: Sequence[Any], output: Any, held: Sequence[Any] = (), inner: Any = ()
) -> ModelGraph:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "made", [x], [output], held, value_info=inner)
    path = folder / "made.onnx"
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=8), path)
    return ModelGraph.load(path)


def hidden(folder: Path, operator: str = "FastGelu", inner: Any = ()) -> ModelGraph:
    """The operator is one of com.microsoft, of which onnx does not know what it gives."""
    nodes = [
        helper.make_node("Relu", ["x"], ["relu"]),
        helper.make_node(operator, ["relu"], ["gelu"], domain="com.microsoft"),
        helper.make_node("MatMul", ["gelu", "w"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["sum"], keepdims=0),
        helper.make_node("Add", ["product", "sum"], ["out"]),
    ]
    weight = numpy_helper.from_array(np.arange(4000, dtype=np.float32).reshape(4, 1000), "w")
    return loaded(folder, nodes, onnx.ValueInfoProto(name="out"), [weight], inner)


def test_what_shape_inference_leaves_open_is_asked_of_the_runtime(tmp_path: Path) -> None:
    graph = hidden(tmp_path)
    assert TensorName("gelu") not in infer_specs(graph, SHAPES)
    found = inner_specs(graph, SHAPES, tmp_path / "probe.onnx")
    assert found.tensors[TensorName("gelu")].dims == (2, 4)
    assert found.tensors[TensorName("product")].dims == (2, 1000)
    assert {found.tensors[name].element_type for name in HIDDEN} == {ElementType.FLOAT32}
    assert legal_cuts(graph, found) == (1, 2, 3, 4)


def test_without_shapes_the_symbols_stay(tmp_path: Path) -> None:
    found = inner_specs(hidden(tmp_path), {}, tmp_path / "probe.onnx")
    assert found.tensors[TensorName("product")].dims == ("n", 1000)


def test_nothing_is_asked_where_every_type_is_known(tmp_path: Path) -> None:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = loaded(tmp_path, nodes, y)
    assert open_values(graph, inner_specs(graph, SHAPES, tmp_path / "probe.onnx")) == ()
    assert not (tmp_path / "probe.onnx").exists()


def test_a_model_that_the_runtime_refuses_keeps_what_inference_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = hidden(tmp_path, "NoSuchOperator")
    with caplog.at_level("INFO"):
        found = inner_specs(graph, SHAPES, tmp_path / "probe.onnx")
    assert found == infer_specs(graph, SHAPES)
    assert "NoSuchOperator" in caplog.text


def test_what_a_file_wrongly_declares_of_an_inner_value_does_not_reach_the_runtime(
    tmp_path: Path,
) -> None:
    wrong = helper.make_tensor_value_info("product", TensorProto.FLOAT, [7])
    found = inner_specs(hidden(tmp_path, inner=[wrong]), SHAPES, tmp_path / "probe.onnx")
    assert found.tensors[TensorName("gelu")].dims == (2, 4)
    assert found.tensors[TensorName("product")].dims == (2, 1000)
    assert found.tensors[TensorName("product")].element_type is ElementType.FLOAT32


def test_the_runtime_tells_the_types_of_values_that_are_no_tensors(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("FastGelu", ["x"], ["gelu"], domain="com.microsoft"),
        helper.make_node("SequenceConstruct", ["gelu"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = loaded(tmp_path, nodes, y)
    found = inner_specs(graph, SHAPES, tmp_path / "probe.onnx")
    assert found.others == {"s": "seq(tensor(float))"}
    assert legal_cuts(graph, found) == (1, 2)
    assert open_values(graph, found) == ()
