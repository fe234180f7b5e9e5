from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from edge_agent.errors import ModelRefused
from edge_agent.model.graph import random_operator
from edge_agent.model.scopes import reads
from tests.model.made_models import body, graph_of, held, model, node, value


def test_a_node_reads_its_inputs_and_what_its_bodies_capture() -> None:
    deep = node(
        "If",
        ["c2"],
        ["u"],
        then_branch=body([node("Add", ["m", "far"], ["t2"])], [value("t2", None)]),
        else_branch=body([node("Neg", ["near"], ["e2"])], [value("e2", None)]),
    )
    outer = node(
        "If",
        ["c"],
        ["y"],
        then_branch=body([node("Abs", ["near"], ["m"]), deep], [value("u", None)]),
        else_branch=body([], [value("given", None)]),
    )
    assert sorted(reads(outer)) == ["c", "c2", "far", "given", "near"]


def test_a_body_hides_names_by_inputs_initializers_and_outputs_of_its_nodes() -> None:
    inner = body(
        [
            node("Add", ["i", "k"], ["s"]),
            node("Add", ["s", "late"], ["r"]),
            node("Neg", ["i"], ["late"]),
        ],
        [value("r", None)],
        inputs=[value("i", None)],
        held=[held("k", 1.0)],
    )
    assert reads(node("Scan", ["x"], ["y"], body=inner, num_scan_inputs=1)) == ("x",)


def test_constants_are_no_nodes_and_no_values(tmp_path: Path) -> None:
    made = model(
        [
            node("Constant", [], ["k"], value_floats=[1.0, 2.0]),
            node("Constant", [], ["n"], value_int=3),
            node("Constant", [], ["s"], value_strings=[b"a"]),
            node("Exp", ["k"], ["e"]),
            node("Mul", ["e", "k"], ["m"]),
            node("Add", ["x", "m"], ["y"]),
        ],
        [value("x", [2])],
        [value("y", [2])],
    )
    graph = graph_of(made, tmp_path)
    assert [n.op_type for n in graph.nodes] == ["Add"]
    assert [n.op_type for n in graph.constant_nodes] == ["Exp", "Mul"]
    assert graph.producers == {"x": -1, "y": 0}
    assert graph.users == {"x": (0,)}
    assert graph.constant_roots("m") == ("k",)
    assert graph.weight_bytes == 8
    assert list(graph.constants["n"].dims) == []
    assert graph.constants["s"].string_data == [b"a"]


def test_sparse_constants_are_constants(tmp_path: Path) -> None:
    sparse = TensorProto(name="", data_type=TensorProto.FLOAT, dims=[1], float_data=[5.0])
    places = TensorProto(data_type=TensorProto.INT64, dims=[1], int64_data=[1])
    constant = node("Constant", [], ["k"])
    attribute = constant.attribute.add(name="sparse_value", type=11)
    attribute.sparse_tensor.values.CopyFrom(sparse)
    attribute.sparse_tensor.indices.CopyFrom(places)
    attribute.sparse_tensor.dims.append(3)
    made = model([constant, node("Add", ["x", "k"], ["y"])], [value("x", [3])], [value("y", [3])])
    graph = graph_of(made, tmp_path)
    assert list(graph.sparse_constants) == ["k"]
    assert graph.weight_bytes == 4 + 8


def test_random_numbers_are_never_constants(tmp_path: Path) -> None:
    made = model(
        [
            node("RandomNormalLike", ["k"], ["r"]),
            node("RandomNormalLike", ["k"], ["seeded"], seed=1.0),
            node("Add", ["r", "seeded"], ["y"]),
        ],
        [],
        [value("y", [2])],
        [held("k", [1.0, 2.0])],
    )
    graph = graph_of(made, tmp_path)
    assert len(graph.nodes) == 3
    assert [random_operator(graph, n) for n in graph.nodes] == ["RandomNormalLike", None, None]


def test_dropout_is_random_only_in_training(tmp_path: Path) -> None:
    made = model(
        [
            node("Constant", [], ["on"], value=held("", np.array(True))),
            node("Dropout", ["x"], ["a"]),
            node("Dropout", ["a", "", "off"], ["b"]),
            node("Dropout", ["b", "", "on"], ["c"]),
            node("Dropout", ["c", "", "asked"], ["y"]),
        ],
        [value("x", [2]), value("asked", [], TensorProto.BOOL)],
        [value("y", [2])],
        [held("off", np.array(False))],
    )
    graph = graph_of(made, tmp_path)
    found = [random_operator(graph, n) for n in graph.nodes]
    assert found == [None, None, "Dropout", "Dropout"]


def test_a_random_operator_is_found_in_a_body(tmp_path: Path) -> None:
    made = model(
        [
            node(
                "If",
                ["c"],
                ["y"],
                then_branch=body([node("RandomNormal", [], ["t"], shape=[2])], [value("t", [2])]),
                else_branch=body([node("Abs", ["x"], ["e"])], [value("e", [2])]),
            )
        ],
        [value("x", [2]), value("c", [], TensorProto.BOOL)],
        [value("y", [2])],
    )
    graph = graph_of(made, tmp_path)
    assert random_operator(graph, graph.nodes[0]) == "RandomNormal"


def test_a_cycle_is_refused_by_the_name_of_a_node_on_it(tmp_path: Path) -> None:
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Add", ["a", "c"], ["b"], name="plus"),
            node("Neg", ["b"], ["c"]),
        ],
        [value("x", [2])],
        [value("c", [2])],
    )
    with pytest.raises(ModelRefused, match=r'model.onnx: node 1 "plus" \(Add\) lies on a cycle'):
        graph_of(made, tmp_path)
