from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.resident import value_sizes
from edge_agent.model.specs import infer_specs
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import ModelSummary, Segment
from tests.model.made_models import graph_of, held, model, node, value

ID = ModelId("00")


def summary_of(made: Any, folder: Path, **rest: Any) -> ModelSummary:
    graph = graph_of(made, folder)
    return summarise(graph, ID, {}, infer_specs(graph, {}), **rest)


def test_values_that_enter_and_pass_by_count_beside_those_computed(tmp_path: Path) -> None:
    made = model(
        [
            node("Tanh", ["x"], ["a"]),
            node("Concat", ["a", "a"], ["b"], axis=0),
            node("ReduceSum", ["b"], ["c"], keepdims=1),
            node("Mul", ["c", "x"], ["y"]),
        ],
        [value("x", [100])],
        [value("y", [100])],
    )
    segments = summary_of(made, tmp_path, apart=(1, 2, 3)).segments
    assert [(s.start, s.stop) for s in segments] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    # x and a; x, a and b; x, b and c; x, c and y.
    assert [s.working_bytes for s in segments] == [800, 1600, 1204, 804]


def test_a_value_is_dropped_behind_its_last_reader_and_an_output_is_kept(tmp_path: Path) -> None:
    nodes = [
        node("Tanh", ["x"], ["a"]),
        node("Sin", ["a"], ["b"]),
        node("Sin", ["b"], ["c"]),
        node("Sin", ["c"], ["unread"]),
        node("Sin", ["c"], ["y"]),
    ]
    ends = [value("x", [100])], [value("y", [100])]
    (segment,) = summary_of(model(nodes, *ends), tmp_path, max_segments=1).segments
    assert segment.working_bytes == 800
    given_too = model(nodes, ends[0], [*ends[1], value("a", [100])])
    (segment,) = summary_of(given_too, tmp_path, max_segments=1).segments
    assert segment.working_bytes == 1200


def test_constants_and_values_of_unknown_size_do_not_count(tmp_path: Path) -> None:
    made = model(
        [node("Mul", ["x", "w"], ["a"]), node("Mul", ["a", "n"], ["y"])],
        [value("x", [100]), value("n", ["unknown"])],
        [value("y", None)],
        [held("w", np.ones(100))],
    )
    (segment,) = summary_of(made, tmp_path, max_segments=1).segments
    assert segment.working_bytes == 800


def test_the_graph_inputs_that_a_model_reads_late_are_there_from_the_start(tmp_path: Path) -> None:
    made = model(
        [node("Tanh", ["x"], ["a"]), node("Concat", ["a", "late"], ["y"], axis=0)],
        [value("x", [100]), value("late", [50]), value("unread", [999])],
        [value("y", [150])],
    )
    segments = summary_of(made, tmp_path, apart=(1,)).segments
    assert [s.working_bytes for s in segments] == [1000, 1200]


def _tied(first: str) -> Any:
    """Three products, the first and the last with one matrix, or a lookup in it and a product."""
    start = [node(first, ["w", "i"] if first == "Gather" else ["x", "w"], ["a"])]
    return model(
        [
            *start,
            node("MatMul", ["a", "v"], ["b"]),
            node("Add", ["b", "bias"], ["d"]),
            node("Tanh", ["d"], ["e"]),
            node("Sin", ["e"], ["f"]),
            node("Add", ["f", "bias"], ["g"]),
            node("MatMul", ["g", "w"], ["y"]),
        ],
        [value("i", [2], 7)] if first == "Gather" else [value("x", [2, 64])],
        [value("y", None)],
        [held("w", np.ones((64, 64))), held("v", np.ones((64, 64))), held("bias", np.ones(64))],
    )


def test_a_weight_that_several_segments_read_is_counted_in_each_and_once_in_the_model(
    tmp_path: Path,
) -> None:
    summary = summary_of(_tied("MatMul"), tmp_path, apart=(1, 4, 6), max_segments=4)
    assert [s.weight_bytes for s in summary.segments] == [16384, 16640, 256, 16384]
    assert summary.weight_bytes == 2 * 16384 + 256


def test_a_table_is_in_memory_whole_though_a_lookup_reads_a_few_of_its_rows(tmp_path: Path) -> None:
    summary = summary_of(_tied("Gather"), tmp_path, apart=(1, 4, 6), max_segments=4)
    assert [s.weight_bytes for s in summary.segments] == [512, 16640, 256, 16384]
    assert [s.unread_bytes for s in summary.segments] == [16384 - 512, 0, 0, 0]
    assert [s.constant_bytes for s in summary.segments] == [16384, 16640, 256, 16384]


@st.composite
def _graphs(draw: st.DrawFn) -> Any:
    """Random graphs of values of different sizes, with dead nodes and outputs read later."""
    sizes = {"x": 3, "z": 5}
    nodes = []
    for index in range(draw(st.integers(2, 12))):
        made, names = f"v{index}", list(sizes)
        first, second = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        if draw(st.booleans()):
            nodes.append(node("Concat", [first, second], [made], axis=0))
            sizes[made] = sizes[first] + sizes[second]
        else:
            nodes.append(node("Mul", [first, "w"], [made]))
            sizes[made] = sizes[first]
    outputs = draw(st.lists(st.sampled_from(list(sizes)[2:]), min_size=1, max_size=4, unique=True))
    return model(
        nodes,
        [value("x", [3]), value("z", [5])],
        [value(name, [sizes[name]]) for name in outputs],
        [held("w", [0.5])],
    )


def _counted(graph: ModelGraph, segment: Segment) -> int:
    """The most bytes over all nodes of what is there when they end, by the definition."""
    sizes = value_sizes(graph, infer_specs(graph, {}).tensors)
    most = 0
    for at in range(segment.start, segment.stop):
        alive = 0
        for name, made in graph.producers.items():
            is_read = graph.users.get(name, (-1,))[-1] >= at
            is_given = name in graph.outputs and made >= segment.start
            if made == at or (made < at and (is_read or is_given)):
                alive += sizes[name]
        most = max(most, alive)
    return most


@settings(max_examples=80)
@given(made=_graphs(), apart=st.frozensets(st.integers(1, 11)))
def test_working_bytes_of_random_graphs_are_what_a_plain_count_says(
    made: Any, apart: frozenset[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_of(made, Path(folder))
        for segment in summarise(graph, ID, {}, infer_specs(graph, {}), apart=apart).segments:
            assert segment.working_bytes == _counted(graph, segment)


def test_the_weights_in_bodies_and_functions_count_where_they_are_run(tmp_path: Path) -> None:
    x = value("x", [100])

    def scaled(constant: str, size: int) -> onnx.GraphProto:
        """A body that holds a tensor of its own, as an initializer or from a node."""
        weight = numpy_helper.from_array(np.ones(size, np.float32), constant)
        nodes = [node("Mul", ["a", constant], [f"{constant}y"])]
        if size == 1:
            nodes.insert(0, node("Constant", [], [constant], value=weight))
        return helper.make_graph(
            nodes, constant, [], [value(f"{constant}y", [100])], [weight] if size > 1 else []
        )

    function = helper.make_function(
        "own",
        "shifted",
        ["b"],
        ["c"],
        [
            node("Constant", [], ["d"], value=numpy_helper.from_array(np.ones(100, np.float32))),
            node("Add", ["b", "d"], ["c"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    branches = {"then_branch": scaled("t", 100), "else_branch": scaled("e", 1)}
    made = model(
        [
            node("Tanh", ["x"], ["a"]),
            node("If", ["is"], ["b"], **branches),
            helper.make_node("shifted", ["b"], ["c"], domain="own"),
            node("Sin", ["c"], ["y"]),
        ],
        [x, value("is", [], TensorProto.BOOL)],
        [value("y", [100])],
    )
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    summary = summary_of(made, tmp_path, apart=(1, 2, 3))
    assert [s.constant_bytes for s in summary.segments] == [0, 404, 400, 0]
    assert summary.weight_bytes == 804
