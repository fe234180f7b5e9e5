"""Every place is listed with what crosses it, and with what keeps a model from being divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from edge_agent.errors import UsageError
from edge_agent.model.graph import ModelGraph
from edge_agent.model.listing import listed_places
from edge_agent.model.pointing import cut_position
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import ValueSpecs
from tests.model.made_models import graph_of, held, model, node, value


def branching() -> Any:
    """y = (|−x| + x) · |−x|, with a node that nothing needs before and one behind."""
    nodes = [
        node("Sqrt", ["x"], ["unused"], name="first"),
        node("Neg", ["x"], ["a"], name="n"),
        node("Abs", ["a"], ["3"], name="n"),
        node("Add", ["3", "x"], ["b"], name="b"),
        node("Mul", ["b", "3"], ["y"], name="a"),
        node("Exp", ["y"], ["nobody"], name="last"),
    ]
    return model(nodes, [value("x", [3])], [value("y", [3])], [held("w", [1.0])])


@pytest.fixture
def graph(tmp_path: Path) -> ModelGraph:
    return graph_of(branching(), tmp_path)


def test_what_crosses_is_what_is_made_before_and_read_behind(graph: ModelGraph) -> None:
    places = list(listed_places(graph, infer_specs(graph, {})))
    assert [place.position for place in places] == [1, 2, 3, 4, 5]
    assert [place.crossing for place in places] == [
        ("x",),
        ("x", "a"),
        ("x", "3"),
        ("3", "b"),
        ("y",),
    ]


def test_no_part_may_be_left_without_an_output(graph: ModelGraph) -> None:
    places = listed_places(graph, infer_specs(graph, {}))
    assert [place.obstacle for place in places] == [
        'node 0 "first" (Sqrt) before it gives nothing that is used',
        None,
        None,
        None,
        "nothing behind it is an output of the model or leads to one",
    ]


def test_a_value_that_cannot_cross_is_named(tmp_path: Path) -> None:
    nodes = [
        node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        node("Relu", ["g"], ["y"]),
    ]
    made = model(nodes, [value("x", [3])], [value("y", [3])], domains=["com.microsoft"])
    graph = graph_of(made, tmp_path)
    (place,) = listed_places(graph, infer_specs(graph, {}))
    assert place.obstacle is not None
    assert '"g"' in place.obstacle


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("2", 2),
        ("position:3", 3),
        ("value:3", 3),
        ("3", 3),
        ("value:a", 2),
        ("node:a", 5),
        ("y", 5),
        ("node:b", 4),
        ("b", 4),
        ("first", 1),
    ],
)
def test_a_cut_is_called_by_number_value_or_node(
    text: str, position: int, graph: ModelGraph
) -> None:
    assert cut_position(graph, text) == position


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "--at a: 2 places are called so; say which: value:a, position:5"),
        ("n", "2 places are called so; say which: position:2, position:3"),
        ("x", "--at x: no node lies before it; want a place between two of the 6 nodes"),
        ("0", "no node lies before it"),
        ("6", "no node lies behind it"),
        ("99999999999999999999", "no node lies behind it"),
        ("last", "no node lies behind it"),
        ("w", '"w" is a constant, which every part has'),
        ("firts", "no value or node of the main graph is called so; did you mean first?"),
        ("", "--at : no value or node of the main graph is called so; see --list"),
        ("node:", "no value or node"),
        ("-1", "no value or node"),
        ("²", "no value or node"),
    ],
)
def test_a_wrong_name_is_told_with_what_to_write(text: str, says: str, graph: ModelGraph) -> None:
    with pytest.raises(UsageError) as told:
        cut_position(graph, text)
    assert says in str(told.value)


def test_a_number_that_is_a_name_elsewhere_has_to_be_told_apart(tmp_path: Path) -> None:
    nodes = [node("Neg", ["x"], ["2"]), node("Abs", ["2"], ["q"]), node("Neg", ["q"], ["y"])]
    made = model(nodes, [value("x", [3])], [value("y", [3])])
    graph = graph_of(made, tmp_path)
    with pytest.raises(UsageError, match="say which: position:2, value:2"):
        cut_position(graph, "2")
    assert cut_position(graph, "value:2") == 1


def test_a_model_of_one_node_has_no_places(tmp_path: Path) -> None:
    made = model([node("Neg", ["x"], ["y"])], [value("x", [3])], [value("y", [3])])
    graph = graph_of(made, tmp_path)
    assert list(listed_places(graph, infer_specs(graph, {}))) == []


def test_a_model_whose_outputs_are_inputs_cannot_be_divided(tmp_path: Path) -> None:
    made = model(
        [node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["b"])],
        [value("x", [3], TensorProto.FLOAT)],
        [value("x", [3])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    (place,) = listed_places(ModelGraph.load(path), ValueSpecs())
    assert place.obstacle is not None
