from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from edge_agent.errors import ModelRefused
from edge_agent.model.cuts import crossings, places
from edge_agent.model.divide import legal_cuts, summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import ModelSummary
from tests.counting import lines_of
from tests.model.made_models import body, graph_of, held, model, node, value

ID = ModelId("00")


def summary_of(made: Any, folder: Path, **rest: Any) -> ModelSummary:
    graph = graph_of(made, folder)
    shapes = rest.get("shapes", {})
    return summarise(
        graph,
        ID,
        shapes,
        infer_specs(graph, shapes),
        rest.get("max_segments", 64),
        rest.get("apart", ()),
    )


def _convolutions(count: int, **changes: Any) -> Any:
    """Conv and Relu pairs on 4 channels of 8 x 8."""
    nodes = []
    for i in range(count):
        source = "x" if i == 0 else f"a{i - 1}"
        target = "y" if i == count - 1 else f"a{i}"
        nodes += [node("Conv", [source, f"w{i}"], [f"c{i}"]), node("Relu", [f"c{i}"], [target])]
    weights = [held(f"w{i}", np.ones((4, 4, 1, 1), np.float32)) for i in range(count)]
    return model(
        nodes, [value("x", ["n", 4, 8, 8])], [value("y", ["n", 4, 8, 8])], weights, **changes
    )


def test_a_chain_is_divided_between_its_fused_pairs(tmp_path: Path) -> None:
    found = summary_of(_convolutions(3), tmp_path, shapes={"x": (2, 4, 8, 8)})
    assert [(s.start, s.stop) for s in found.segments] == [(0, 2), (2, 4), (4, 6)]
    assert [c.position for c in found.cuts] == [2, 4]
    assert [c.crossing_bytes for c in found.cuts] == [2048, 2048]
    assert found.undivided_because is None
    assert found.nodes == 6
    assert found.weight_bytes == 3 * 64
    assert found.shapes == (("x", (2, 4, 8, 8)),)
    first = found.segments[0]
    elements = 2 * 4 * 64
    assert first.operators == (("Conv", 1), ("Relu", 1))
    assert first.operations == first.parallel_operations == elements * 8 + elements
    assert first.activation_bytes == 4 * 4 * elements
    assert first.weight_bytes == 64


def test_a_residual_block_is_not_cut_inside(tmp_path: Path) -> None:
    def convolution(source: str, target: str) -> Any:
        return node("Conv", [source, "w"], [target])

    made = model(
        [
            convolution("x", "s"),
            convolution("s", "a"),
            convolution("a", "b"),
            node("Add", ["b", "s"], ["t"]),
            convolution("t", "c"),
            convolution("c", "d"),
            node("Add", ["d", "t"], ["u"]),
            convolution("u", "y"),
        ],
        [value("x", [1, 4, 8, 8])],
        [value("y", None)],
        [held("w", np.ones((4, 4, 1, 1), np.float32))],
    )
    assert [c.position for c in summary_of(made, tmp_path).cuts] == [1, 4, 7]


def test_where_two_values_always_cross_the_narrow_places_are_taken(tmp_path: Path) -> None:
    """An encoder and decoder: the input skips to the end, the middle is small."""
    made = model(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", ["b", "w"], ["c"]),
            node("ConvTranspose", ["c", "v"], ["d"], strides=[2, 2]),
            node("Concat", ["d", "x"], ["e"], axis=1),
            node("Conv", ["e", "u"], ["y"]),
        ],
        [value("x", [1, 4, 16, 16])],
        [value("y", None)],
        [
            held("w", np.ones((4, 4, 1, 1), np.float32)),
            held("v", np.ones((4, 4, 2, 2), np.float32)),
            held("u", np.ones((4, 8, 1, 1), np.float32)),
        ],
    )
    cuts = summary_of(made, tmp_path).cuts
    assert [c.position for c in cuts] == [2, 3, 5]
    assert [c.crossing_bytes for c in cuts] == [4096 + 1024, 4096 + 1024, 8192]


def test_shapes_and_other_small_values_do_not_forbid_a_cut(tmp_path: Path) -> None:
    made = _convolutions(3)
    made.graph.node.insert(0, node("Shape", ["x"], ["size"]))
    made.graph.node.append(node("Expand", ["y", "size"], ["z"]))
    made.graph.output.append(value("z", None))
    found = summary_of(made, tmp_path, shapes={"x": (2, 4, 8, 8)})
    cuts = {cut.position: cut for cut in found.cuts}
    assert set(cuts) == {3, 5, 7}
    assert [spec.name for spec in cuts[3].crossing] == ["size", "a0"]


def test_without_shapes_cuts_are_found_but_not_weighed(tmp_path: Path) -> None:
    found = summary_of(_convolutions(3), tmp_path)
    assert [c.position for c in found.cuts] == [2, 4]
    assert [c.crossing_bytes for c in found.cuts] == [None, None]
    assert found.shapes == ()


def test_segments_are_merged_down_to_the_limit_and_stay_balanced(tmp_path: Path) -> None:
    found = summary_of(_convolutions(16), tmp_path, shapes={"x": (1, 4, 8, 8)}, max_segments=4)
    lengths = [s.stop - s.start for s in found.segments]
    assert len(lengths) == 4
    assert sum(lengths) == 32
    assert max(lengths) <= 2 * min(lengths)


def test_of_two_cuts_the_one_with_fewer_bytes_stays(tmp_path: Path) -> None:
    made = model(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", ["b", "w2"], ["y"]),
        ],
        [value("x", [1, 4, 16, 16])],
        [value("y", None)],
        [
            held("w", np.ones((4, 4, 1, 1), np.float32)),
            held("w2", np.ones((32, 4, 1, 1), np.float32)),
        ],
    )
    assert [c.position for c in summary_of(made, tmp_path).cuts] == [1, 2]
    assert [c.position for c in summary_of(made, tmp_path, max_segments=2).cuts] == [2]


def test_next_to_nothing_is_no_segment_of_its_own(tmp_path: Path) -> None:
    made = _convolutions(2)
    made.graph.node.append(node("ReduceSum", ["y"], ["total"], keepdims=0))
    made.graph.node.append(node("Neg", ["total"], ["minus"]))
    made.graph.node.append(node("Exp", ["minus"], ["z"]))
    made.graph.output.append(value("z", None))
    del made.graph.output[0]
    found = summary_of(made, tmp_path, shapes={"x": (8, 4, 8, 8)})
    assert [s.stop for s in found.segments] == [2, 4, 7]


def positions(found: ModelSummary) -> list[int]:
    return [cut.position for cut in found.cuts]


def test_what_is_to_be_apart_is_parted_even_inside_a_fusion(tmp_path: Path) -> None:
    shapes = {"x": (2, 4, 8, 8)}
    assert positions(summary_of(_convolutions(3), tmp_path, shapes=shapes)) == [2, 4]
    found = summary_of(_convolutions(3), tmp_path, shapes=shapes, apart=(3,))
    assert positions(found) == [2, 3, 4]
    assert [(s.start, s.stop) for s in found.segments] == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert found.undivided_because is None


def test_what_is_to_be_apart_is_parted_where_several_large_values_cross(tmp_path: Path) -> None:
    made = model(
        [
            node("Conv", ["x", "w"], ["s"]),
            node("Conv", ["s", "w"], ["a"]),
            node("Conv", ["a", "w"], ["b"]),
            node("Add", ["b", "s"], ["t"]),
            node("Conv", ["t", "w"], ["y"]),
        ],
        [value("x", [1, 4, 8, 8])],
        [value("y", None)],
        [held("w", np.ones((4, 4, 1, 1), np.float32))],
    )
    assert positions(summary_of(made, tmp_path)) == [1, 4]
    assert positions(summary_of(made, tmp_path, apart=(2, 3))) == [1, 2, 3, 4]


def test_what_is_to_be_apart_stays_apart_though_it_does_next_to_nothing(tmp_path: Path) -> None:
    made = _convolutions(2)
    made.graph.node.append(node("ReduceSum", ["y"], ["total"], keepdims=0))
    made.graph.node.append(node("Neg", ["total"], ["minus"]))
    made.graph.node.append(node("Exp", ["minus"], ["z"]))
    made.graph.output.append(value("z", None))
    del made.graph.output[0]
    found = summary_of(made, tmp_path, shapes={"x": (8, 4, 8, 8)}, apart=(5, 6))
    assert positions(found) == [2, 4, 5, 6]
    found = summary_of(made, tmp_path, shapes={"x": (8, 4, 8, 8)}, apart=(5,))
    assert positions(found) == [2, 4, 5]


def test_what_is_to_be_apart_is_never_merged_away(tmp_path: Path) -> None:
    shapes = {"x": (1, 4, 8, 8)}
    apart = (3, 5, 8)
    few = summary_of(_convolutions(16), tmp_path, shapes=shapes, max_segments=2, apart=apart)
    assert positions(few) == [3, 5, 8]
    some = summary_of(_convolutions(16), tmp_path, shapes=shapes, max_segments=6, apart=apart)
    assert len(some.segments) == 6
    assert set(positions(some)) > set(apart)
    lengths = [s.stop - s.start for s in some.segments]
    assert max(lengths) <= 12  # the rest, of 24 nodes, is still divided where it is worth most


def test_what_cannot_be_parted_is_not_where_it_is_to_be_apart(tmp_path: Path) -> None:
    # Before node 1 a value of an unknown type crosses.
    made = model(
        [
            node("Unheard", ["x"], ["s"], domain="com.microsoft"),
            node("Softmax", ["s"], ["a"]),
            node("Softmax", ["x"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
        domains=["com.microsoft"],
    )
    graph = graph_of(made, tmp_path)
    legal = legal_cuts(graph, infer_specs(graph, {}))
    assert 1 not in legal
    found = summarise(graph, ID, {}, infer_specs(graph, {}), apart=(1, 2, 3))
    assert set(positions(found)) == set(legal) & {1, 2, 3}


def test_a_model_that_stays_whole_is_not_parted_either(tmp_path: Path) -> None:
    found = summary_of(_random(), tmp_path, apart=(2,))
    assert positions(found) == []
    assert found.undivided_because is not None
    assert "draws random numbers" in found.undivided_because


def test_a_model_that_would_stay_whole_is_divided_where_it_is_to_be_apart(tmp_path: Path) -> None:
    found = summary_of(_convolutions(1), tmp_path, apart=(1,))
    assert positions(found) == [1]
    assert found.undivided_because is None


def test_equal_models_are_divided_equally(tmp_path: Path) -> None:
    found = [
        summary_of(_convolutions(20), tmp_path, shapes={"x": (1, 4, 8, 8)}, max_segments=5)
        for _ in range(2)
    ]
    assert found[0] == found[1]


def _random() -> Any:
    made = _convolutions(2)
    made.graph.node[1].CopyFrom(node("RandomUniformLike", ["c0"], ["a0"], name="noise"))
    return made


def _sparse() -> Any:
    return model(
        [node("Unheard", ["x"], ["s"], domain="com.microsoft"), node("Neg", ["s"], ["y"])],
        [value("x", [3])],
        [value("y", [3])],
        domains=["com.microsoft"],
    )


def _one_node() -> Any:
    return model(
        [node("Constant", [], ["k"], value_float=1.0), node("Add", ["x", "k"], ["y"])],
        [value("x", [3])],
        [value("y", [3])],
    )


def _one_group() -> Any:
    return _convolutions(1)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_random(), 'node 1 "noise" (RandomUniformLike) draws random numbers without a seed'),
        (_sparse(), 'before node 1 (Neg), value "s" is of a type that is not known'),
        (_one_node(), "it has 1 node that computes more than constants"),
        (_one_group(), "nodes would be parted that run as one"),
    ],
)
def test_a_model_that_stays_whole_says_why(made: Any, reason: str, tmp_path: Path) -> None:
    found = summary_of(made, tmp_path)
    assert len(found.segments) == 1
    assert found.undivided_because is not None
    assert reason in found.undivided_because


def test_a_model_whose_defaults_a_request_may_override_is_divided(tmp_path: Path) -> None:
    made = _convolutions(2)
    made.graph.input.append(value("w1", [4, 4, 1, 1]))
    found = summary_of(made, tmp_path, shapes={"x": (1, 4, 8, 8)})
    assert len(found.segments) == 2
    assert [(spec.name, spec.has_default) for spec in found.inputs] == [("x", False), ("w1", True)]


def test_a_cut_tells_what_cannot_leave_the_device(tmp_path: Path) -> None:
    made = model(
        [
            node("Exp", ["x"], ["a"]),
            node("SplitToSequence", ["a"], ["s"], axis=0),
            node("SequenceAt", ["s", "at"], ["b"]),
            node("Exp", ["b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", None)],
        [held("at", np.array(0, np.int64))],
    )
    graph = graph_of(made, tmp_path)
    found = crossings(graph, (1, 2, 3), infer_specs(graph, {}))
    assert [cut.others for cut in found] == [(), (("s", "seq(tensor(float))"),), ()]
    assert [cut.crossing_bytes for cut in found] == [12, None, 4]
    assert [place.is_local for place in places(graph, infer_specs(graph, {}))] == [
        False,
        True,
        False,
    ]


def test_a_model_of_constants_alone_has_one_empty_segment(tmp_path: Path) -> None:
    made = model([node("Exp", ["w"], ["y"])], [], [value("y", [3])], [held("w", [1.0, 2.0, 3.0])])
    found = summary_of(made, tmp_path)
    assert [(s.start, s.stop) for s in found.segments] == [(0, 0)]
    assert found.weight_bytes == 12


def test_a_body_is_one_node_of_the_order(tmp_path: Path) -> None:
    branch = body([node("Exp", ["a"], ["t"])], [value("t", [3])])
    made = model(
        [
            node("Softmax", ["x"], ["a"]),
            node("If", ["c"], ["b"], then_branch=branch, else_branch=branch),
            node("Softmax", ["b"], ["y"]),
        ],
        [value("x", [3]), value("c", [], TensorProto.BOOL)],
        [value("y", [3])],
    )
    found = summary_of(made, tmp_path)
    assert [(s.start, s.stop) for s in found.segments] == [(0, 1), (1, 2), (2, 3)]


def _transformer(layers: int) -> Any:
    """Layers of twenty nodes with the shape computations that exporters add."""
    nodes: list[Any] = []
    source = "x"
    for i in range(layers):
        n = [f"l{i}_{k}" for k in range(20)]
        nodes += [
            node("MatMul", [source, "w"], [n[0]]),
            node("Add", [n[0], "b"], [n[1]]),
            node("MatMul", [source, "w"], [n[2]]),
            node("MatMul", [source, "w"], [n[3]]),
            node("Shape", [n[1]], [n[4]]),
            node("Gather", [n[4], "one"], [n[5]]),
            node("Unsqueeze", [n[5], "axis"], [n[6]]),
            node("Concat", ["head", n[6], "tail"], [n[7]], axis=0),
            node("Reshape", [n[1], n[7]], [n[8]]),
            node("Reshape", [n[2], n[7]], [n[9]]),
            node("Reshape", [n[3], n[7]], [n[10]]),
            node("Transpose", [n[9]], [n[11]], perm=[0, 2, 1]),
            node("MatMul", [n[8], n[11]], [n[12]]),
            node("Softmax", [n[12]], [n[13]]),
            node("MatMul", [n[13], n[10]], [n[14]]),
            node("MatMul", [n[14], "w"], [n[15]]),
            node("Add", [n[15], source], [n[16]]),
            node("MatMul", [n[16], "w"], [n[17]]),
            node("Relu", [n[17]], [n[18]]),
            node("Add", [n[18], n[16]], [n[19]]),
        ]
        source = n[19]
    nodes.append(node("Softmax", [source], ["y"]))
    return model(
        nodes,
        [value("x", [1, "length", 16])],
        [value("y", None)],
        [
            held("w", np.ones((16, 16), np.float32)),
            held("b", np.ones(16)),
            held("one", np.array(1, np.int64)),
            held("axis", np.array([0], np.int64)),
            held("head", np.array([1], np.int64)),
            held("tail", np.array([16], np.int64)),
        ],
    )


def test_a_transformer_is_divided_between_its_blocks_only(tmp_path: Path) -> None:
    graph = graph_of(_transformer(6), tmp_path)
    shapes = {"x": (1, 32, 16)}
    found = summarise(graph, ID, shapes, infer_specs(graph, shapes))
    assert [c.position for c in found.cuts] == [20 * i + k for i in range(6) for k in (17, 20)]
    assert {c.crossing_bytes for c in found.cuts} == {32 * 16 * 4}


@pytest.mark.long
def test_four_thousand_nodes_are_divided_with_twice_the_work_of_two_thousand(
    tmp_path: Path,
) -> None:
    lines = []
    for blocks in (100, 200):
        graph_of(_transformer(blocks), tmp_path)

        def divided() -> ModelSummary:
            graph = ModelGraph.load(tmp_path / "model.onnx")
            return summarise(graph, ID, {}, infer_specs(graph, {}))

        found = divided()
        assert found.segments[-1].stop == 20 * blocks + 1
        assert len(found.segments) == 64
        lines.append(lines_of(divided))
    assert len(ModelGraph.load(tmp_path / "model.onnx").nodes) == 4001
    assert lines[1] < 2.5 * lines[0]


def test_a_division_that_was_chosen_before_is_made_again(tmp_path: Path) -> None:
    graph = graph_of(_convolutions(4), tmp_path)
    shapes = {"x": (2, 4, 8, 8)}
    specs = infer_specs(graph, shapes)
    chosen = summarise(graph, ID, shapes, specs)
    starts = tuple(segment.start for segment in chosen.segments)
    assert summarise(graph, ID, shapes, specs, starts=starts) == chosen


def test_segments_may_begin_where_no_division_would_be_chosen(tmp_path: Path) -> None:
    graph = graph_of(_convolutions(3), tmp_path)
    shapes = {"x": (2, 4, 8, 8)}
    specs = infer_specs(graph, shapes)
    found = summarise(graph, ID, shapes, specs, starts=(0, 1, 4))
    assert [(s.start, s.stop) for s in found.segments] == [(0, 1), (1, 4), (4, 6)]
    assert [[str(v.name) for v in cut.crossing] for cut in found.cuts] == [["c0"], ["a1"]]
    assert sum(s.weight_bytes for s in found.segments) == found.weight_bytes
    whole = summarise(graph, ID, shapes, specs, starts=(0,))
    assert len(whole.segments) == 1
    assert whole.undivided_because == "it was asked for in one segment"
    assert whole.segments[0].operations == sum(s.operations for s in found.segments)


@pytest.mark.parametrize("starts", [(), (1,), (0, 0), (0, 3, 2), (0, 6), (0, -1)])
def test_segments_that_cannot_be_are_refused(tmp_path: Path, starts: tuple[int, ...]) -> None:
    graph = graph_of(_convolutions(3), tmp_path)
    with pytest.raises(ModelRefused, match="want them ascending from 0 and below 6"):
        summarise(graph, ID, {}, infer_specs(graph, {}), starts=starts)


def test_segments_that_begin_where_nothing_can_be_passed_on_are_refused(tmp_path: Path) -> None:
    made = model(
        [node("Foo", ["x"], ["u"], domain="com.unknown"), node("Relu", ["u"], ["y"])],
        [value("x", [1])],
        [value("y", [1])],
        domains=["com.unknown"],
    )
    graph = graph_of(made, tmp_path)
    with pytest.raises(ModelRefused, match='value "u" is of a type that is not known'):
        summarise(graph, ID, {}, infer_specs(graph, {}), starts=(0, 1))
