from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from edge_agent.model.graph import ModelGraph
from edge_agent.model.naming import write_named
from edge_agent.model.scopes import model_nodes
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import TensorName, ValueSpecs
from tests.model.made_models import body, graph_of, held, model, node, run, value


def rewritten(made: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    copy = folder / "named.onnx"
    names = write_named(graph_of(made, folder), copy, ValueSpecs())
    return onnx.load(copy, load_external_data=False), names


def test_unnamed_and_equally_named_nodes_are_told_apart_by_position(tmp_path: Path) -> None:
    nodes = [
        node("Add", ["a", "b"], ["y"], name="same"),
        node("Relu", ["x"], ["a"], name="same"),
        node("Constant", [], ["c"], value_float=2.0),
        node("Neg", ["c"], ["b"]),
    ]
    copy, names = rewritten(model(nodes, [value("x", [2])], [value("y", [2])]), tmp_path)
    assert names == ("n0", "n1")
    assert [(n.name, n.op_type) for n in copy.graph.node] == [
        ("c0", "Neg"),
        ("n0", "Relu"),
        ("n1", "Add"),
    ]


def test_nodes_in_bodies_and_functions_carry_the_position_of_the_node_around(
    tmp_path: Path,
) -> None:
    inner = helper.make_function(
        "local", "Inner", ["a"], ["b"], [node("Sin", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    twice = helper.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [node("Add", ["a", "a"], ["t"]), node("Inner", ["t"], ["b"], domain="local")],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )
    branch = body([node("Twice", ["x"], ["r"], domain="local")], [value("r", [2])])
    other = body([node("Neg", ["x"], ["s"]), node("Abs", ["s"], ["t"])], [value("t", [2])])
    nodes = [
        node("Twice", ["x"], ["d"], domain="local"),
        node("If", ["f"], ["e"], then_branch=branch, else_branch=other),
        node("Add", ["d", "e"], ["y"]),
    ]
    made = model(
        nodes,
        [value("x", [2]), value("f", [], TensorProto.BOOL)],
        [value("y", [2])],
        functions=[inner, twice],
        domains=["local"],
    )
    copy, _ = rewritten(made, tmp_path)
    names = Counter(n.name for n in model_nodes(copy))
    assert set(names.values()) == {1}
    assert sorted(names) == [
        *("n0", "n0.0", "n0.1", "n0.1.0"),
        *("n1", "n1.0", "n1.1", "n1.2", "n1.2.0", "n1.2.1", "n1.2.1.0", "n2"),
    ]
    x = np.float32([0.5, -2.0])
    for flag in (True, False):
        feeds = {"x": x, "f": np.array(flag)}
        for name, array in run(tmp_path / "named.onnx", feeds).items():
            want = np.sin(2 * x) + (np.sin(2 * x) if flag else np.abs(x))
            np.testing.assert_allclose(array, want, rtol=1e-6, err_msg=name)


def test_large_constants_lie_beside_the_copy_or_stay_where_they_are(tmp_path: Path) -> None:
    weight = np.arange(4096, dtype=np.float32).reshape(64, 64)
    made = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", [1, 64])],
        [value("y", [1, 64])],
        [held("w", weight)],
    )
    graph = graph_of(made, tmp_path)
    first = tmp_path / "first.onnx"
    write_named(graph, first, ValueSpecs())
    assert (tmp_path / "first.onnx.weights").stat().st_size == weight.nbytes
    write_named(ModelGraph.load(first), tmp_path / "second.onnx", ValueSpecs())
    assert not (tmp_path / "second.onnx.weights").exists()
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(run(tmp_path / "second.onnx", {"x": x})["y"], x @ weight)


def test_the_copy_has_the_shapes_in_use(tmp_path: Path) -> None:
    made = model([node("Relu", ["x"], ["y"])], [value("x", ["n", 3])], [value("y", ["n", 3])])
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {TensorName("x"): (5, 3)})
    write_named(graph, tmp_path / "fixed.onnx", specs, is_fixed=True)
    copy = onnx.load(tmp_path / "fixed.onnx")
    for declared in (*copy.graph.input, *copy.graph.output):
        assert [d.dim_value for d in declared.type.tensor_type.shape.dim] == [5, 3]


def test_no_node_has_a_name_that_one_made_after_a_value_may_have(tmp_path: Path) -> None:
    """ONNX Runtime calls a cast before a node `InsertedPrecisionFreeCast_` and the value."""
    nodes = [node("Relu", ["n1"], ["nn3"]), node("Neg", ["nn3"], ["y"])]
    _, names = rewritten(model(nodes, [value("n1", [2])], [value("y", [2])]), tmp_path)
    assert names == ("nnn0", "nnn1")
