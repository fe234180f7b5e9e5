from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edge_agent.errors import ModelRefused
from edge_agent.model.cost import operator_cost
from edge_agent.model.divide import legal_cuts, summarise
from edge_agent.model.extract import extract, extract_branch
from edge_agent.model.fusion import held_together
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.summaries import Fork, ModelSummary, SharedInput
from edge_agent.tensors import Arrays, TensorName, ValueSpecs
from tests.counting import lines_of
from tests.model.made_models import body, graph_of, held, model, node, run, value

ID = ModelId("00")


def forks_of(graph: ModelGraph, **rest: Any) -> ModelSummary:
    return summarise(graph, ID, {}, infer_specs(graph, {}), with_forks=True, **rest)


def _convolution(source: str, target: str, weight: str = "w") -> Any:
    return node("Conv", [source, weight], [target], pads=[1, 1, 1, 1])


def _module(source: str, name: str) -> list[Any]:
    """Three branches of one, two and one convolutions on 4 channels, joined on 12."""
    return [
        _convolution(source, f"{name}a"),
        _convolution(source, f"{name}b"),
        _convolution(f"{name}b", f"{name}c"),
        node("MaxPool", [source], [f"{name}p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        _convolution(f"{name}p", f"{name}d"),
        node("Concat", [f"{name}a", f"{name}c", f"{name}d"], [f"{name}j"], axis=1),
    ]


def _modules(count: int) -> Any:
    """Modules that each read four channels, and a convolution between that makes them four."""
    nodes, source = [], "x"
    for index in range(count):
        nodes += [*_module(source, f"m{index}"), _convolution(f"m{index}j", f"s{index}", "v")]
        source = f"s{index}"
    return model(
        nodes,
        [value("x", [1, 4, 8, 8])],
        [value(source, [1, 4, 8, 8])],
        [held("w", np.ones((4, 4, 3, 3))), held("v", np.ones((4, 12, 3, 3)))],
    )


def check_runs(graph: ModelGraph, specs: ValueSpecs, summary: ModelSummary, feeds: Arrays) -> None:
    """Run each fork whole and branch by branch, from what was computed before: bit for bit."""
    bounds = [segment.start for segment in summary.segments] + [len(graph.nodes)]
    with tempfile.TemporaryDirectory() as folder:
        for fork in summary.forks:
            start, stop = bounds[fork.segments.start], bounds[fork.segments.stop]
            values = dict(feeds)
            if start:
                before = extract(graph, 0, start, Path(folder) / "before.onnx", specs)
                values |= run(before.path, {n: values[n] for n in before.inputs if n in values})
            whole = extract(graph, start, stop, Path(folder) / "whole.onnx", specs)
            wanted = run(whole.path, {n: values[n] for n in whole.inputs if n in values})
            got: Arrays = {}
            for branch in fork.branches:
                part = extract_branch(graph, branch.nodes, Path(folder) / "branch.onnx", specs)
                onnx.checker.check_model(str(part.path))
                if part.outputs:
                    got |= run(part.path, {n: values[n] for n in part.inputs if n in values})
            assert got.keys() == wanted.keys()
            for name, want in wanted.items():
                np.testing.assert_array_equal(got[name], want, err_msg=name)


def test_a_module_of_branches_is_a_fork_up_to_where_they_join(tmp_path: Path) -> None:
    graph = graph_of(_modules(1), tmp_path)
    summary = forks_of(graph)
    (fork,) = summary.forks
    assert fork.segments == SegmentRange(start=0, stop=len(summary.segments) - 2)
    assert [(s.start, s.stop) for s in summary.segments[-2:]] == [(5, 6), (6, 7)]
    assert [branch.nodes for branch in fork.branches] == [(0,), (1, 2), (3, 4)]
    size = 4 * 4 * 64
    assert [branch.input_bytes for branch in fork.branches] == [size] * 3
    assert fork.shared == (SharedInput(size_bytes=size, branches=(0, 1, 2)),)
    assert [fork.input_bytes(some) for some in ((), (1,), (0, 2), (0, 1, 2))] == [0, *[size] * 3]
    assert [branch.output_bytes for branch in fork.branches] == [size] * 3
    assert [branch.weight_bytes for branch in fork.branches] == [4 * 4 * 9 * 4] * 3
    assert [branch.working_bytes for branch in fork.branches] == [2 * size] * 3
    for shares in zip(*(branch.work for branch in fork.branches), strict=True):
        assert sum(shares) == pytest.approx(1, abs=1e-9)


def test_forks_are_found_only_if_asked_for(tmp_path: Path) -> None:
    graph = graph_of(_modules(1), tmp_path)
    assert summarise(graph, ID, {}, infer_specs(graph, {})).forks == ()


def test_every_other_cut_stays(tmp_path: Path) -> None:
    graph = graph_of(_modules(4), tmp_path)
    specs = infer_specs(graph, {})
    plain = summarise(graph, ID, {}, specs)
    forked = summarise(graph, ID, {}, specs, with_forks=True)
    assert len(forked.forks) == 4
    cuts = {cut.position for cut in forked.cuts}
    assert {cut.position for cut in plain.cuts} < cuts
    assert len(forked.segments) == len(plain.segments) + 4


def test_forks_take_at_most_half_of_the_cuts_and_the_greatest_stay(tmp_path: Path) -> None:
    made = _modules(3)
    wide = held("wide", np.ones((4, 4, 5, 5)))
    made.graph.initializer.append(wide)
    for at in (7, 8):  # two branches of the second module
        made.graph.node[at].input[1] = "wide"
        made.graph.node[at].attribute[0].ints[:] = [2, 2, 2, 2]
    graph = graph_of(made, tmp_path)
    summary = forks_of(graph, max_segments=5)
    assert len(summary.segments) <= 5
    (fork,) = summary.forks
    assert fork.branches[0].nodes == (7,)


def test_what_is_to_be_apart_leaves_forks_fewer_cuts(tmp_path: Path) -> None:
    graph = graph_of(_modules(3), tmp_path)
    apart = tuple(range(1, 8))
    for max_segments, wanted in ((8, 0), (9, 1), (64, 3)):
        summary = forks_of(graph, apart=apart, max_segments=max_segments)
        assert len(summary.forks) == wanted
        assert len(summary.segments) <= max_segments
        assert {cut.position for cut in summary.cuts} >= set(apart)


def _from_x_to_y(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A model of convolutions with the weights `w`."""
    return model(
        list(nodes),
        [value("x", [1, 4, 8, 8])],
        [value("y", [1, 4, 8, 8])],
        [held("w", np.ones((4, 4, 3, 3)))],
    )


def test_branches_that_an_addition_joins_are_a_fork_up_to_it(tmp_path: Path) -> None:
    made = _from_x_to_y(
        _convolution("x", "a"),
        _convolution("x", "b"),
        node("Add", ["a", "b"], ["c"]),
        _convolution("c", "y"),
    )
    # The addition could run in the kernel of one of the convolutions, but not of both.
    graph = graph_of(made, tmp_path)
    assert held_together(graph)[:4] == [False, True, True, False]
    (fork,) = forks_of(graph).forks
    assert [branch.nodes for branch in fork.branches] == [(0,), (1,)]


def test_a_fork_parts_no_branch_from_its_activation(tmp_path: Path) -> None:
    made = _from_x_to_y(
        _convolution("x", "a"),
        _convolution("x", "b"),
        node("Relu", ["b"], ["c"]),
        node("Add", ["a", "c"], ["d"]),
        _convolution("d", "y"),
    )
    summary = forks_of(graph_of(made, tmp_path))
    assert [branch.nodes for branch in summary.forks[0].branches] == [(0,), (1, 2)]
    assert 2 not in {cut.position for cut in summary.cuts}


def test_a_fork_ends_before_a_sum_of_its_branches(tmp_path: Path) -> None:
    made = _modules(1)
    graph = graph_of(made, tmp_path)
    assert not any(held_together(graph))
    made.graph.node[5].op_type = "Sum"
    del made.graph.node[5].attribute[:]
    made.graph.initializer[1].CopyFrom(held("v", np.ones((4, 4, 3, 3))))
    graph = graph_of(made, tmp_path)
    assert held_together(graph)[5]
    (fork,) = forks_of(graph).forks
    assert [branch.nodes for branch in fork.branches] == [(0,), (1, 2), (3, 4)]


def test_light_nodes_go_along_with_the_branch_that_reads_what_they_read(tmp_path: Path) -> None:
    made = model(
        [
            _convolution("x", "a"),
            _convolution("z", "b"),
            node("Shape", ["z"], ["s"]),
            node("Concat", ["a", "b"], ["j"], axis=1),
            node("Reshape", ["j", "s"], ["r"]),
        ],
        [value("x", [1, 4, 8, 8]), value("z", [1, 8, 8, 8])],
        [value("r", None)],
        [held("w", np.ones((4, 4, 3, 3)))],
    )
    made.graph.initializer.append(held("u", np.ones((4, 8, 3, 3))))
    made.graph.node[1].input[1] = "u"
    (fork,) = forks_of(graph_of(made, tmp_path)).forks
    assert [branch.nodes for branch in fork.branches] == [(0,), (1, 2)]
    assert [branch.output_bytes for branch in fork.branches] == [1024, 1024 + 4 * 8]


def test_many_light_parts_become_branches_together(tmp_path: Path) -> None:
    heads = [node("Tanh", [f"x{i}"], [f"h{i}"]) for i in range(400)]
    made = model(
        [
            node("Split", ["x"], [f"x{i}" for i in range(400)], axis=0),
            *heads,
            node("Concat", [f"h{i}" for i in range(400)], ["y"], axis=0),
        ],
        [value("x", [400, 100])],
        [value("y", None)],
        opset=13,
    )
    (fork,) = forks_of(graph_of(made, tmp_path)).forks
    sizes = [len(branch.nodes) for branch in fork.branches]
    assert sum(sizes) == 400
    assert min(sizes) * 2 > max(sizes) > 1


def test_what_is_of_unknown_size_or_no_tensor_makes_no_fork(tmp_path: Path) -> None:
    made = _modules(1)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    graph = graph_of(made, tmp_path)
    assert forks_of(graph).forks == ()
    shapes = {TensorName("x"): (1, 4, 8, 8)}
    assert summarise(graph, ID, shapes, infer_specs(graph, shapes), with_forks=True).forks

    listed = model(
        [
            node("Tanh", ["x"], ["a"]),
            node("SequenceConstruct", ["a"], ["s"]),
            node("Sin", ["x"], ["b"]),
            node("SequenceInsert", ["s", "b"], ["t"]),
            node("ConcatFromSequence", ["t"], ["y"], axis=0),
        ],
        [value("x", [64, 64])],
        [value("y", None)],
    )
    assert forks_of(graph_of(listed, tmp_path)).forks == ()


def test_a_value_that_passes_by_may_be_a_sequence(tmp_path: Path) -> None:
    made = model(
        [
            node("SequenceConstruct", ["x"], ["s"]),
            node("Tanh", ["x"], ["a"]),
            node("Sin", ["x"], ["b"]),
            node("Concat", ["a", "b"], ["j"], axis=0),
            node("SequenceInsert", ["s", "j"], ["t"]),
            node("ConcatFromSequence", ["t"], ["y"], axis=0),
        ],
        [value("x", [64, 64])],
        [value("y", None)],
    )
    graph = graph_of(made, tmp_path)
    summary = forks_of(graph)
    (fork,) = summary.forks
    assert [branch.nodes for branch in fork.branches] == [(1,), (2,)]
    assert summary.cuts[fork.segments.start - 1].others


def test_two_models_in_one_are_a_fork_without_any_cut(tmp_path: Path) -> None:
    made = model(
        [
            node("Tanh", ["x"], ["a"]),
            node("Sin", ["z"], ["b"]),
            node("Sin", ["a"], ["y"]),
            node("Tanh", ["b"], ["w"]),
        ],
        [value("x", [8]), value("z", [8])],
        [value("y", [8]), value("w", [8])],
    )
    (fork,) = forks_of(graph_of(made, tmp_path), max_segments=1).forks
    assert [branch.nodes for branch in fork.branches] == [(0, 2), (1, 3)]
    assert [(b.input_bytes, b.output_bytes) for b in fork.branches] == [(32, 32)] * 2


def test_constants_that_are_outputs_belong_to_no_branch(tmp_path: Path) -> None:
    made = model(
        [node("Tanh", ["x"], ["y"]), node("Sin", ["x"], ["z"])],
        [value("x", [8])],
        [value("y", [8]), value("z", [8]), value("c", [1])],
        [held("c", [1.0])],
    )
    assert forks_of(graph_of(made, tmp_path)).forks == ()


def test_a_model_with_unseeded_randomness_has_no_forks(tmp_path: Path) -> None:
    made = _modules(1)
    made.graph.node.append(node("RandomNormalLike", ["s0"], ["noise"]))
    assert forks_of(graph_of(made, tmp_path)).forks == ()


def test_branches_with_bodies_that_capture_run_alone(tmp_path: Path) -> None:
    def chosen(index: int, first: str, second: str) -> Any:
        return node(
            "If",
            ["c"],
            [f"y{index}"],
            then_branch=body([node("Sub", [first, "w"], ["t"])], [value("t", [64])]),
            else_branch=body([node("Mul", [first, second], ["e"])], [value("e", [64])]),
        )

    looped = body(
        [node("Add", ["carried", "b"], ["next"]), node("Identity", ["on"], ["on_next"])],
        [value("on_next", [], TensorProto.BOOL), value("next", [64])],
        inputs=[
            value("i", [], TensorProto.INT64),
            value("on", [], TensorProto.BOOL),
            value("carried", [64]),
        ],
    )
    made = model(
        [
            node("Sin", ["x"], ["s"]),
            node("Tanh", ["s"], ["a"]),
            chosen(0, "a", "s"),
            node("Cos", ["s"], ["b"]),
            node("Loop", ["three", "", "s"], ["l"], body=looped),
            node("Reshape", ["l", "many"], ["y1"]),
            node("Concat", ["y0", "y1"], ["y"], axis=0),
        ],
        [value("x", [64]), value("c", [], TensorProto.BOOL)],
        [value("y", [128])],
        [held("w", np.ones(64)), held("three", np.array(3, np.int64)), held("many", [64])],
    )
    graph = graph_of(made, tmp_path)
    summary = forks_of(graph)
    (fork,) = summary.forks
    assert [branch.nodes for branch in fork.branches] == [(1, 2), (3, 4, 5)]
    assert fork.branches[0].input_bytes == 256 + 1
    specs = infer_specs(graph, {})
    for condition in (True, False):
        feeds = {"x": np.linspace(-1, 1, 64, dtype=np.float32), "c": np.array(condition)}
        check_runs(graph, specs, summary, feeds)


def test_a_branch_takes_the_defaults_that_it_reads_and_skips_the_nodes_between(
    tmp_path: Path,
) -> None:
    made = model(
        [
            node("Mul", ["x", "scale"], ["a"]),
            node("Sin", ["x"], ["b"]),
            node("Neg", ["a"], ["y"]),
            node("Neg", ["b"], ["z"]),
        ],
        [value("x", [8]), value("scale", [1])],
        [value("y", [8]), value("z", [8])],
        [held("scale", [2.0])],
    )
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    parts = [
        extract_branch(graph, nodes, tmp_path / "branch.onnx", specs) for nodes in ((0, 2), (1, 3))
    ]
    assert [part.inputs for part in parts] == [("x", "scale"), ("x",)]
    assert [part.outputs for part in parts] == [("y",), ("z",)]
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    part = extract_branch(graph, (0, 2), tmp_path / "branch.onnx", specs)
    np.testing.assert_array_equal(run(part.path, {"x": x})["y"], -2 * x)
    changed = run(part.path, {"x": x, "scale": np.float32([3])})
    np.testing.assert_array_equal(changed["y"], -3 * x)


@pytest.mark.long
def test_forks_of_four_thousand_nodes_are_found_in_proportion(tmp_path: Path) -> None:
    """A mask that every layer reads is alive from the first to the last of them."""
    nodes, last = [], "x"
    for layer in range(571):
        for k in "qkv":
            nodes.append(node("Tanh", [last], [f"{k}{layer}"]))
            nodes.append(node("Sin", [f"{k}{layer}"], [f"{k}s{layer}"]))
        read = [f"{k}s{layer}" for k in "qkv"]
        nodes.append(node("Sum", [*read, "mask"], [f"s{layer}"]))
        last = f"s{layer}"
    ends = [value(name, [1, 64]) for name in ("x", "mask", last)]
    graph = graph_of(model(nodes, ends[:2], ends[2:]), tmp_path)
    specs = infer_specs(graph, {})
    lines = []
    for with_forks in (False, True):
        summarised = partial(summarise, graph, ID, {}, specs, with_forks=with_forks)
        assert len(summarised().segments) == 64
        lines.append(lines_of(summarised))
    assert lines[1] < 3 * lines[0]


def test_a_branch_that_gives_what_cannot_be_passed_is_refused(tmp_path: Path) -> None:
    made = model(
        [
            node("Tanh", ["x"], ["a"]),
            node("Unknown", ["a"], ["b"], domain="nobody"),
            node("Unknown", ["b"], ["y"], domain="nobody"),
        ],
        [value("x", [8])],
        [value("y", [8])],
        domains=["nobody"],
    )
    graph = graph_of(made, tmp_path)
    with pytest.raises(ModelRefused, match='value "b" is of a type that is not known'):
        extract_branch(graph, (0, 1), tmp_path / "branch.onnx", infer_specs(graph, {}))


@st.composite
def _graphs(draw: st.DrawFn) -> Any:
    """Random graphs of values of different sizes, with constants, dead nodes and bodies."""
    sizes = {"x": 3, "z": 5}
    nodes = []
    for index in range(draw(st.integers(2, 12))):
        made = f"v{index}"
        # Late values are likely, so that chains arise; early ones too, so that these fork.
        names = list(sizes)
        first = draw(st.sampled_from(names[-3:] + names[:2]))
        second = draw(st.sampled_from(names[-3:] + names[:2]))
        kind = draw(st.sampled_from(["Tanh", "Tanh", "Mul", "Add", "Concat", "If", "Split"]))
        if kind == "Concat":
            nodes.append(node("Concat", [first, second], [made], axis=0))
            sizes[made] = sizes[first] + sizes[second]
        elif kind == "If":
            bodies = {
                "then_branch": body([node("Sin", [first], ["t"])], [value("t", [sizes[first]])]),
                "else_branch": body(
                    [node("Mul", [first, second + "s"], ["e"])], [value("e", [sizes[first]])]
                ),
            }
            nodes.append(node("ReduceSum", [second], [second + "s" + made], keepdims=1))
            bodies["else_branch"].node[0].input[1] = second + "s" + made
            nodes.append(node("If", ["c"], [made], **bodies))
            sizes[made] = sizes[first]
        elif kind == "Split" and sizes[first] > 1:
            rest = sizes[first] - 1
            nodes.append(node("Split", [first, f"split{rest}"], [made, f"{made}r"], axis=0))
            sizes[made], sizes[f"{made}r"] = 1, rest
        elif kind in ("Mul", "Add"):
            other = second if sizes[second] == sizes[first] else "w"
            nodes.append(node(kind, [first, other], [made]))
            sizes[made] = sizes[first]
        else:
            nodes.append(node("Tanh", [first], [made]))
            sizes[made] = sizes[first]
    outputs = draw(st.lists(st.sampled_from(list(sizes)[2:]), min_size=1, max_size=4, unique=True))
    splits = {n.input[1] for n in nodes if n.op_type == "Split"}
    return model(
        nodes,
        [value("x", [3]), value("z", [5]), value("c", [], TensorProto.BOOL)],
        [value(name, [sizes[name]]) for name in outputs],
        [held("w", [0.5])]
        + [held(name, np.array([1, int(name[5:])], np.int64)) for name in sorted(splits)],
    )


def _parts(graph: ModelGraph, start: int, stop: int) -> list[set[int]]:
    """Connected parts of nodes [start, stop), found by joining neighbours until none is left."""
    parts = [{at} for at in range(start, stop)]
    for at in range(start, stop):
        for name in graph.reads[at]:
            made = graph.producers.get(name, -1)
            if made >= start:
                together = [part for part in parts if at in part or made in part]
                parts = [p for p in parts if p not in together] + [set().union(*together)]
    return parts


def _bytes(specs: ValueSpecs, names: set[str]) -> int:
    found = 0
    for name in names:
        spec = specs.tensors[TensorName(name)]
        assert spec.dims is not None
        found += int(np.prod([int(str(d)) for d in spec.dims])) * (spec.element_type.bits // 8)
    return found


def _check_fork(
    graph: ModelGraph, specs: ValueSpecs, summary: ModelSummary, fork: Fork, work: Sequence[int]
) -> None:
    inside = summary.segments[fork.segments.start : fork.segments.stop]
    start, stop = inside[0].start, inside[-1].stop
    assert sorted(itertools.chain(*(b.nodes for b in fork.branches))) == list(range(start, stop))
    for part in _parts(graph, start, stop):
        assert sum(part.issubset(branch.nodes) for branch in fork.branches) == 1
    before = {n for n, made in graph.producers.items() if made < start}
    reads = [{n for at in b.nodes for n in graph.reads[at]} & before for b in fork.branches]
    for count in range(len(reads) + 1):
        for some in itertools.combinations(range(len(reads)), count):
            together = set().union(*(reads[b] for b in some))
            assert fork.input_bytes(some) == _bytes(specs, together)
    for branch in fork.branches:
        read = {name for at in branch.nodes for name in graph.reads[at]}
        assert branch.input_bytes == _bytes(specs, read & before)
        given = {name for at in branch.nodes for name in graph.nodes[at].output}
        read_behind = {name for names in graph.reads[stop:] for name in names}
        assert branch.output_bytes == _bytes(specs, given & (read_behind | set(graph.outputs)))
        assert branch.weight_bytes == sum(
            graph.root_bytes(name) for name in read if name in graph.constants
        )
        for segment, share in zip(inside, branch.work, strict=True):
            own = [at for at in branch.nodes if segment.start <= at < segment.stop]
            whole = sum(work[segment.start : segment.stop])
            assert share == pytest.approx(sum(work[at] for at in own) / whole)
        kept = given & (read_behind | set(graph.outputs))
        assert branch.working_bytes == max(
            _bytes(
                specs,
                {
                    name
                    for name in (read | given) & set(graph.producers)
                    if (name in before or graph.producers[name] <= at)
                    and (
                        name in kept
                        or graph.producers[name] == at
                        or any(name in graph.reads[b] for b in branch.nodes if b >= at)
                    )
                },
            )
            for at in branch.nodes
        )
    for shares in zip(*(branch.work for branch in fork.branches), strict=True):
        assert sum(shares) == pytest.approx(1, abs=1e-9)
    loads = [sum(work[at] for at in branch.nodes) for branch in fork.branches]
    assert len(loads) > 1
    assert sum(loads) - max(loads) >= int(0.01 * sum(work))


@settings(max_examples=80)
@given(made=_graphs(), condition=st.booleans())
def test_forks_of_random_graphs_are_what_a_plain_count_says_and_run_in_branches(
    made: Any, condition: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_of(made, Path(folder))
        specs = infer_specs(graph, {})
        summary = summarise(graph, ID, {}, specs, with_forks=True)
        work = [operator_cost(graph, at, specs.tensors).work for at in range(len(graph.nodes))]
        for fork in summary.forks:
            _check_fork(graph, specs, summary, fork, work)
        for one, other in itertools.pairwise(summary.forks):
            assert one.segments.stop <= other.segments.start
        plain = summarise(graph, ID, {}, specs)
        assert {c.position for c in plain.cuts} <= {c.position for c in summary.cuts}
        feeds = {
            "x": np.float32([1, -2, 3]),
            "z": np.float32([1, 0, -1, 0.5, 2]),
            "c": np.array(condition),
        }
        check_runs(graph, specs, summary, {n: a for n, a in feeds.items() if n in graph.inputs})


@settings(max_examples=80)
@given(made=_graphs())
def test_no_run_of_a_random_graph_gains_more_than_the_forks_found(made: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_of(made, Path(folder))
        specs = infer_specs(graph, {})
        n = len(graph.nodes)
        work = [operator_cost(graph, at, specs.tensors).work for at in range(n)]
        held_at = held_together(graph, with_joins=False)
        edges = [0, *(at for at in legal_cuts(graph, specs) if not held_at[at]), n]
        best = 0
        for start, stop in itertools.combinations(edges, 2):
            loads = [sum(work[at] for at in part) for part in _parts(graph, start, stop)]
            best = max(best, sum(loads) - max(loads))
        found = 0
        for fork in summarise(graph, ID, {}, specs, with_forks=True).forks:
            loads = [sum(work[at] for at in branch.nodes) for branch in fork.branches]
            found += sum(loads) - max(loads)
        # Parts too light for a branch may be with the heaviest.
        assert found >= best - 0.02 * sum(work)
