"""Divisions whose parts hand over channels-last, from the cut to the files that a worker opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge_agent.builder.benches import Subject, WholeBench
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.plan_files import PlanFiles
from edge_agent.builder.workshop import NO_NAMES, Workshop
from edge_agent.devices import Layout, ProviderUse
from edge_agent.engine.compiled_form import write_optimised
from edge_agent.engine.session import Session
from edge_agent.errors import ModelRefused
from edge_agent.model.borders import count_transposes
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.plans import CandidatePlan, Target
from edge_agent.profiles import Configuration
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays, TensorName
from edge_agent.wire.messages import Build
from tests.builder.made_units import OTHER, device
from tests.builder.test_workshop import configuration, open_pool, quiet_slices
from tests.made_plans import chosen_plan
from tests.model.nhwc_graphs import node, value, write

SHAPE = (1, 8, 12, 12)
NHWC = configuration(Layout.NHWC)
ON_OTHER = Configuration(unit=OTHER.id, layout=Layout.NHWC, threads=0)


def write_quantised(path: Path, count: int = 4) -> Path:
    """`count` pairs of quantised convolutions; float32 goes in and comes out. A pair is what pays
    to be computed channels-last."""
    generator = np.random.default_rng(0)
    nodes = [node("QuantizeLinear", "x s z", "q0")]
    constants = {"s": np.float32(0.05), "z": np.uint8(128), "ws": np.float32(0.002)}
    constants["wz"] = np.int8(0)
    for i in range(count):
        for name, at in (("w", f"q{i}"), ("v", f"c{i}")):
            constants[f"{name}{i}"] = generator.integers(-99, 99, (8, 8, 3, 3)).astype(np.int8)
            inputs = f"{at} s z {name}{i} ws wz s z"
            made = f"c{i}" if name == "w" else f"q{i + 1}"
            nodes.append(node("QLinearConv", inputs, made, pads=[1, 1, 1, 1]))
    nodes.append(node("DequantizeLinear", f"q{count} s z", "y"))
    return write(path, nodes, [value("x", SHAPE)], [value("y", SHAPE)], constants)


@contextmanager
def made_workshop(tmp_path: Path, graph: ModelGraph) -> Iterator[Workshop]:
    """One for a model with an input "x" of that shape."""
    specs = infer_specs(graph, {})
    summary = summarise(graph, ModelId("m"), {TensorName("x"): SHAPE}, specs)
    with Compiler(open_pool(tmp_path), ModelId("m"), "a device") as compiler:
        yield Workshop(graph, summary, specs, compiler)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    with made_workshop(tmp_path, ModelGraph.load(write_quantised(tmp_path / "m.onnx"))) as made:
        assert len(made.summary.segments) == len(made.graph.nodes) == 10
        yield made


def sample() -> Arrays:
    return {"x": np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)}


def subject(workshop: Workshop) -> Subject:
    return Subject(
        workshop=workshop, samples=(sample(),), cores=(0,), plain_threads=1, is_quantised=True
    )


def divided(workshop: Workshop, *cuts: int, using: Configuration = NHWC) -> CandidatePlan:
    return chosen_plan(workshop, cuts, [using] * (len(cuts) + 1))


def on_host(_: Configuration) -> None:
    return None


def transposes(path: Path) -> int:
    return sum(n.op_type == "Transpose" for n in onnx.load(path).graph.node)


def files(workshop: Workshop, plan: CandidatePlan) -> list[Path]:
    message = Build(
        model=ModelId("m"),
        target=Target.LATENCY,
        threads=1,
        shapes=(),
        subgraphs=None,
        is_fresh=False,
    )
    making = PlanFiles(message, workshop, device(), "a device", quiet_slices(), 9.0)
    last = workshop.last_between(plan.subgraphs, on_host)
    return [Path(file.path) for file in making.files(plan, last)]


def test_between_two_channels_last_subgraphs_no_transpose_is_left(workshop: Workshop) -> None:
    plan = divided(workshop, 5)
    last = workshop.last_between(plan.subgraphs, on_host)
    assert last == {spec.name for spec in workshop.summary.cuts[4].crossing}
    whole = [workshop.compiled(s.segments, Layout.NHWC) for s in plan.subgraphs]
    assert [transposes(path) for path in whole] == [2, 2]
    assert [transposes(path) for path in files(workshop, plan)] == [1, 1]
    three = divided(workshop, 3, 7)
    assert [transposes(path) for path in files(workshop, three)] == [1, 0, 1]


def test_they_compute_what_the_whole_does_part_by_part(workshop: Workshop) -> None:
    bench = WholeBench(subject(workshop), quiet_slices(), 1)
    for cuts in ((3,), (4,), (5,), (3, 7), (3, 5, 7)):
        plan = divided(workshop, *cuts)
        assert workshop.last_between(plan.subgraphs, on_host)
        assert bench.check(plan) is None
        with bench.runner(plan) as run:
            assert run() > 0


def test_a_wrong_part_is_found_though_its_values_cross_channels_last(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = divided(workshop, 5)
    good = Subject.open_part

    class Wrong:
        """The first part, whose values are a step off."""

        def __init__(self, session: Session) -> None:
            self._session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        def run_inside(self, *arguments: object) -> Arrays:
            got = self._session.run_inside(*arguments)  # type: ignore[arg-type]
            return {name: array + np.uint8(40) for name, array in got.items()}

    def open_part(own: Subject, segments, which, last=NO_NAMES):  # type: ignore[no-untyped-def]
        session = good(own, segments, which, last)
        return session if segments.start else Wrong(session)

    monkeypatch.setattr(Subject, "open_part", open_part)
    wrong = WholeBench(subject(workshop), quiet_slices(), 1).check(plan)
    assert wrong is not None
    assert wrong.startswith("subgraph [0-4]: ")


def test_beside_another_layout_values_cross_in_the_usual_order(workshop: Workshop) -> None:
    mixed = chosen_plan(workshop, (5,), [NHWC, configuration(Layout.BLOCKED)])
    assert workshop.last_between(mixed.subgraphs, on_host) == NO_NAMES
    assert transposes(files(workshop, mixed)[0]) == 2


def test_where_both_sides_hold_it_in_the_usual_order_it_crosses_so(tmp_path: Path) -> None:
    """Nothing here is computed channels-last: transposes would only be added."""
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "a", "y")]
    ends = [[value(name, SHAPE)] for name in "xy"]
    graph = ModelGraph.load(write(tmp_path / "m.onnx", nodes, *ends, {}))
    with made_workshop(tmp_path, graph) as workshop:
        assert workshop.last_between(divided(workshop, 1).subgraphs, on_host) == NO_NAMES


def test_bytes_that_another_unit_may_not_turn_cross_in_the_usual_order(workshop: Workshop) -> None:
    use = OTHER.use(Layout.NATIVE, 0)
    plan = divided(workshop, 5, using=ON_OTHER)
    assert workshop.last_between(plan.subgraphs, lambda _: use) == NO_NAMES


def test_what_another_unit_makes_of_it_decides_and_a_refusal_is_no_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "a", "y")]
    ends = [[value(name, SHAPE)] for name in "xy"]
    graph = ModelGraph.load(write(tmp_path / "m.onnx", nodes, *ends, {}))
    use = OTHER.use(Layout.NATIVE, 0)
    with made_workshop(tmp_path, graph) as workshop:
        subgraphs = divided(workshop, 1, using=ON_OTHER).subgraphs
        assert workshop.last_between(subgraphs, lambda _: use) == NO_NAMES

        def write_some(source: Path, provider: ProviderUse, graph: Path) -> None:
            assert provider == use
            turn = node("Transpose", "x", "y", perm=[0, 2, 3, 1])
            left = 1 if ".last" in source.name else 2
            write(graph, [turn] * left, [value("x", SHAPE)], [value("y", None)], {})

        monkeypatch.setattr("edge_agent.builder.workshop.write_optimised", write_some)
        with made_workshop(tmp_path, graph) as other:
            assert other.last_between(subgraphs, lambda _: use) == {"a"}

        def refuse(source: Path, provider: ProviderUse, _: Path) -> None:
            raise ModelRefused(f"{source} on {provider}")

        monkeypatch.setattr("edge_agent.builder.workshop.write_optimised", refuse)
        with made_workshop(tmp_path, graph) as third:
            assert third.last_between(subgraphs, lambda _: use) == NO_NAMES


def test_transposes_are_counted_in_what_onnx_runtime_makes_of_a_graph(tmp_path: Path) -> None:
    there, back = [0, 2, 3, 1], [0, 3, 1, 2]
    nodes = [
        node("Transpose", "x", "a", perm=there),
        node("Transpose", "a", "b", perm=back),
        node("Transpose", "b", "c", perm=there),
        node("Softmax", "c", "d"),
        node("Flatten", "d", "e"),
        node("Transpose", "e", "y", perm=[1, 0]),
    ]
    source = write(tmp_path / "m.onnx", nodes, [value("x", SHAPE)], [value("y", None)], {})
    assert count_transposes(source) == 3
    made = tmp_path / "made.onnx"
    write_optimised(source, ProviderUse(provider="CPUExecutionProvider"), made)
    assert count_transposes(made) == 1
