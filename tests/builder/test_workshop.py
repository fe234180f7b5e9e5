"""Pieces of a small model: cut, compiled, fed; and what is measured on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.allowed import configurations
from edge_agent.builder.benches import PartBench, Slices, Subject, WholeBench, is_pinned
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.made_up import find_samples
from edge_agent.builder.workshop import Workshop, fed
from edge_agent.devices import ComputeUnit, Layout, UnitId, UnitKind
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.plans import CandidatePlan, Target
from edge_agent.profiles import Configuration
from edge_agent.profiling.profiler import Unfit
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Arrays, ElementType, TensorName, TensorSpec
from tests.made_plans import chosen_plan

X = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
CPU = UnitId("cpu")
ENOUGH_BYTES = 1 << 20


def write_convolutions(path: Path, count: int = 4) -> Path:
    """`count` times Conv and Relu, float32[1,3,16,16] throughout."""
    rng = np.random.default_rng(1)
    nodes, weights = [], []
    for i in range(count):
        kernel = rng.standard_normal((3, 3, 3, 3)).astype(np.float32) / 5
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        nodes.append(helper.make_node("Conv", [f"v{i}", f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"v{i + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 16, 16])
        for name in ("v0", f"v{count}")
    ]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


def open_pool(folder: Path) -> Pool:
    return Pool(folder / "pool", max_compiled_bytes=1 << 30)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    with Compiler(open_pool(tmp_path), ModelId("m"), "a device") as compiler:
        yield made_workshop(tmp_path, compiler)


def made_workshop(tmp_path: Path, compiler: Compiler) -> Workshop:
    graph = ModelGraph.load(write_convolutions(tmp_path / "m.onnx"))
    shapes = {TensorName("v0"): X.shape}
    specs = infer_specs(graph, shapes)
    summary = summarise(graph, ModelId("m"), shapes, specs)
    assert len(summary.segments) >= 3
    return Workshop(graph, summary, specs, compiler)


def whole(workshop: Workshop) -> SegmentRange:
    return SegmentRange(start=0, stop=len(workshop.summary.segments))


def reference(workshop: Workshop) -> Arrays:
    session = Session.open(workshop.graph.path, threads=1, level=OptimisationLevel.NONE)
    return session.run({"v0": X}, session.output_names)


def subject(workshop: Workshop) -> Subject:
    return Subject(
        workshop=workshop,
        samples=({"v0": X}, {"v0": X * 2}),
        cores=(0,),
        plain_threads=1,
        is_quantised=False,
    )


def quiet_slices() -> Slices:
    return Slices(lambda: None, lambda _fraction, _what: None)


def configuration(layout: Layout = Layout.BLOCKED, **changes: int) -> Configuration:
    known = {"threads": 1, "instances": 1} | changes
    return Configuration(unit=CPU, layout=layout, **known)


def plan(workshop: Workshop, *cuts: int, layout: Layout = Layout.BLOCKED) -> CandidatePlan:
    return chosen_plan(workshop, cuts, [configuration(layout)] * (len(cuts) + 1))


def test_the_nodes_of_all_segments_are_all_nodes(workshop: Workshop) -> None:
    assert workshop.nodes(whole(workshop)) == (0, 8)


@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.BLOCKED])
def test_the_compiled_whole_computes_what_the_model_does(
    workshop: Workshop, layout: Layout
) -> None:
    path = workshop.compiled(whole(workshop), layout)
    session = Session.open(path, threads=1, level=OptimisationLevel.NONE)
    got = session.run({"v0": X}, session.output_names)
    np.testing.assert_allclose(got["v4"], reference(workshop)["v4"], rtol=1e-4, atol=1e-5)


def test_what_was_made_once_is_not_made_again(workshop: Workshop) -> None:
    part = SegmentRange(start=1, stop=2)
    assert workshop.source(part) is workshop.source(part)
    first = workshop.compiled(part, Layout.NCHW)
    written_ns = first.stat().st_mtime_ns
    assert workshop.compiled(part, Layout.NCHW) == first
    assert first.stat().st_mtime_ns == written_ns
    assert workshop.compiled(part, Layout.BLOCKED) != first


def test_a_form_that_a_part_cannot_have_is_refused_every_time(workshop: Workshop) -> None:
    part = SegmentRange(start=0, stop=1)
    if workshop.has_form(part, Configuration(unit=CPU, layout=Layout.NHWC, threads=1)):
        assert workshop.compiled(part, Layout.NHWC).exists()
        return
    for _ in range(2):
        with pytest.raises(ModelRefused, match="no NHWC form"):
            workshop.compiled(part, Layout.NHWC)


def test_values_between_segments_are_those_of_the_whole_model(workshop: Workshop) -> None:
    workshop.feed({"v0": X})
    count = len(workshop.summary.segments)
    last = workshop.values_before(count)
    np.testing.assert_allclose(last["v4"], reference(workshop)["v4"], rtol=1e-4, atol=1e-5)
    middle = workshop.values_before(1)
    assert [spec.name for spec in workshop.summary.cuts[0].crossing] == [
        name for name in middle if name != "v0"
    ]
    workshop.feed({"v0": X * 0})
    assert not workshop.values_before(count)["v4"].any()


def test_a_part_is_fed_only_what_it_reads(workshop: Workshop) -> None:
    workshop.feed({"v0": X})
    values = workshop.values_before(2)
    part = SegmentRange(start=2, stop=3)
    session = Session.open(workshop.source(part), threads=1, level=OptimisationLevel.NONE)
    assert set(fed(session, values)) == set(session.input_names)
    assert len(values) > len(session.input_names)


def test_a_part_and_plain_can_be_timed(workshop: Workshop) -> None:
    bench = PartBench(subject(workshop), quiet_slices())
    with bench.runner(SegmentRange(start=1, stop=2), configuration()) as run:
        assert 0.0 < run() < 1.0
    with bench.runner(SegmentRange(start=1, stop=2), configuration(instances=2)) as run:
        assert 0.0 < run() < 1.0
    with bench.plain() as run:
        assert 0.0 < run() < 1.0


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2)])
def test_a_right_plan_is_found_right_and_its_parts_are_timed(
    workshop: Workshop, cuts: tuple[int, ...]
) -> None:
    bench = WholeBench(subject(workshop), quiet_slices(), plain_callers=1)
    divided = plan(workshop, *cuts)
    assert bench.check(divided) is None
    with bench.runner(divided) as run:
        took_s = run()
    parts_s = bench.parts(divided)
    assert len(parts_s) == len(cuts) + 1
    assert 0.0 < sum(parts_s) < 1.0
    assert took_s > 0.0


def test_a_plan_with_a_wrong_part_is_found_out(workshop: Workshop) -> None:
    bench = WholeBench(subject(workshop), quiet_slices(), plain_callers=1)
    part = SegmentRange(start=0, stop=1)
    path = workshop.source(part)
    damaged = onnx.load(path)
    weights = damaged.graph.initializer[0]
    kernel = numpy_helper.to_array(weights) * np.float32(1.5)
    weights.CopyFrom(numpy_helper.from_array(kernel, weights.name))
    # The reference of the part is the damaged part itself: only the whole shows it.
    onnx.save(damaged, path)
    found = bench.check(plan(workshop, 1))
    assert found is not None
    assert found.startswith('output "v4": differs by')


# ---- float16


HALF = Configuration(unit=UnitId("gpu"), layout=Layout.NATIVE, threads=0, is_half=True)


def on_a_unit(workshop: Workshop, half_bound: float) -> Subject:
    """The processor in the part of a unit that computes in float16."""
    provider = ComputeUnit(
        id=HALF.unit,
        kind=UnitKind.GPU,
        provider="CPUExecutionProvider",
        provider_version="1",
        layouts=(Layout.NATIVE,),
        cores=0,
    )
    return replace(subject(workshop), units=(provider,), half_bound=half_bound)


def half_plan(workshop: Workshop, *cuts: int) -> CandidatePlan:
    """In float16 from the last cut on."""
    found = plan(workshop, *cuts)
    last = replace(found.subgraphs[-1], configuration=HALF)
    return replace(found, subgraphs=(*found.subgraphs[:-1], last))


def test_the_float16_form_of_a_part_is_made_once_and_lies_in_the_pool(workshop: Workshop) -> None:
    part = SegmentRange(start=1, stop=2)
    assert workshop.has_form(part, HALF)
    path = workshop.kept(part, is_half=True)
    assert path == workshop.kept(part, is_half=True)
    assert path != workshop.kept(part)
    kinds = {tensor.data_type for tensor in onnx.load(path).graph.initializer}
    assert kinds == {TensorProto.FLOAT16}


def test_float16_is_timed_within_its_bound_and_unfit_beyond_it(workshop: Workshop) -> None:
    bench = PartBench(on_a_unit(workshop, 1e-2), quiet_slices())
    with bench.runner(whole(workshop), HALF) as run:
        assert 0.0 < run() < 1.0
    bench = PartBench(on_a_unit(workshop, 1e-6), quiet_slices())
    with pytest.raises(Unfit, match=r"inaccurate: .*of its range, want 1e-06"):
        opened(bench, whole(workshop))


def opened(bench: PartBench, segments: SegmentRange) -> None:
    with bench.runner(segments, HALF):
        pass


@pytest.mark.parametrize("cuts", [(), (1,)])
def test_a_plan_in_float16_is_compared_with_float32_within_its_bound(
    workshop: Workshop, cuts: tuple[int, ...]
) -> None:
    wanted = half_plan(workshop, *cuts)
    bench = WholeBench(on_a_unit(workshop, 1e-2), quiet_slices(), plain_callers=1)
    assert bench.check(wanted) is None
    assert 1e-5 < bench.differences[wanted] < 1e-2
    strict = WholeBench(on_a_unit(workshop, 1e-6), quiet_slices(), plain_callers=1)
    assert "of its range, want 1e-06" in str(strict.check(wanted))


def test_what_computes_in_float32_is_held_to_its_own_tolerance_beside_it(
    workshop: Workshop,
) -> None:
    bench = WholeBench(on_a_unit(workshop, 1e-9), quiet_slices(), plain_callers=1)
    assert bench.check(plan(workshop, 1)) is None
    assert bench.differences == {}


# ---- what is tried


def unit() -> ComputeUnit:
    return ComputeUnit(
        id=CPU,
        kind=UnitKind.CPU,
        provider="CPUExecutionProvider",
        provider_version="1",
        layouts=(Layout.NCHW, Layout.BLOCKED),
        cores=6,
    )


def test_for_latency_every_layout_is_tried_with_one_run_on_up_to_all_cores() -> None:
    tried = configurations(unit(), Target.LATENCY, 6)
    assert [c.threads for c in tried if c.layout is Layout.NCHW] == [1, 2, 4, 6]
    assert {c.layout for c in tried} == {Layout.NCHW, Layout.BLOCKED}
    assert {c.instances for c in tried} == {1}


def test_for_throughput_as_many_runs_go_at_once_as_the_cores_take() -> None:
    tried = [c for c in configurations(unit(), Target.THROUGHPUT, 6) if c.layout is Layout.NCHW]
    assert [(c.threads, c.instances) for c in tried] == [(1, 6), (2, 3), (4, 1), (6, 1)]


def test_one_core_leaves_one_thread_count() -> None:
    assert {c.threads for c in configurations(unit(), Target.LATENCY, 1)} == {1}


def test_threads_are_bound_to_cores_only_where_one_run_uses_them_all() -> None:
    assert is_pinned(configuration(threads=2), (0, 1))
    assert not is_pinned(configuration(threads=1), (0,))
    assert not is_pinned(configuration(threads=2), (0, 1, 2))
    assert not is_pinned(configuration(threads=2, instances=2), (0, 1))


def test_open_dimensions_are_tried_until_the_model_runs(tmp_path: Path) -> None:
    # x[N,K] times w[48,2]: only K = 48 runs.
    weights = numpy_helper.from_array(np.ones((48, 2), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", ["N", "K"]), ("y", ["N", 2]))
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "m.onnx")
    session = Session.open(tmp_path / "m.onnx", threads=1, level=OptimisationLevel.ALL)
    found = find_samples(session, {}, ENOUGH_BYTES)
    assert found is not None
    assert found.shapes == {"x": (1, 48)}
    assert len(found.arrays) == 2
    assert not np.array_equal(found.arrays[0]["x"], found.arrays[1]["x"])
    given = find_samples(session, {TensorName("x"): (5, 48)}, ENOUGH_BYTES)
    assert given is not None
    assert given.shapes == {"x": (5, 48)}
    assert find_samples(session, {TensorName("x"): (5, 47)}, ENOUGH_BYTES) is None


def test_the_declared_interface_is_that_of_the_model(workshop: Workshop) -> None:
    floats = ElementType.FLOAT32
    dims = (1, 3, 16, 16)
    assert workshop.summary.inputs == (
        TensorSpec(name=TensorName("v0"), element_type=floats, dims=dims),
    )
    assert [spec.name for spec in workshop.summary.outputs] == ["v4"]
