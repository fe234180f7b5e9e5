"""Measuring on other units than the processor: what is told, what is unfit, whose turn it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder import benches
from edge_agent.builder.benches import PartBench, Slices, Subject, WholeBench
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.workshop import NO_NAMES, Names, Workshop
from edge_agent.devices import Layout, UnitId
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.session import Session
from edge_agent.errors import RunFailed
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.plans import CandidatePlan
from edge_agent.profiles import HOST_UNIT, Configuration
from edge_agent.profiling.profiler import Unfit
from edge_agent.profiling.ratio import Run
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Arrays
from tests.builder.made_units import GPU, ON_OTHER, OTHER
from tests.builder.test_workshop import X, made_workshop, open_pool, whole
from tests.made_plans import chosen_plan
from tests.model.made_models import graph_of, held, model, node, value

NPU = UnitId("npu0")
ON_HOST = Configuration(unit=HOST_UNIT, layout=Layout.BLOCKED, threads=1)


class Told:
    """What the agent was told of units that are at work."""

    def __init__(self) -> None:
        self.told: list[tuple[tuple[UnitId, ...], bool]] = []
        self.slices = Slices(lambda: None, lambda _fraction, _what: None, self._tell)

    def _tell(self, units: tuple[UnitId, ...], is_keeping: bool) -> None:
        self.told.append((units, is_keeping))

    def take(self) -> list[tuple[tuple[UnitId, ...], bool]]:
        told, self.told = self.told, []
        return told


BEGIN, END = ((GPU,), False), ((), False)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[Compiler]:
    with Compiler(open_pool(tmp_path), ModelId("m"), "a device") as made:
        yield made


@pytest.fixture
def workshop(tmp_path: Path, compiler: Compiler) -> Workshop:
    return made_workshop(tmp_path, compiler)


class WrongWorkshop(Workshop):
    """What it gives to other units computes something else."""

    def kept(
        self,
        segments: SegmentRange,
        *,
        is_half: bool = False,  # noqa: ARG002
        last: Names = NO_NAMES,
    ) -> Path:
        source = self.source(segments, last)
        damaged = onnx.load(source)
        weights = damaged.graph.initializer[0]
        kernel = numpy_helper.to_array(weights) * np.float32(1.5)
        weights.CopyFrom(numpy_helper.from_array(kernel, weights.name))
        path = source.with_suffix(".wrong.onnx")
        onnx.save(damaged, path)
        return path


def wrong(workshop: Workshop, compiler: Compiler) -> Workshop:
    return WrongWorkshop(workshop.graph, workshop.summary, workshop.specs, compiler)


def subject(
    workshop: Workshop, *, samples: tuple[Arrays, ...] = ({"v0": X},), is_patient: bool = False
) -> Subject:
    return Subject(
        workshop=workshop,
        samples=samples,
        cores=(0,),
        plain_threads=1,
        is_quantised=False,
        units=(OTHER, replace(OTHER, id=NPU)),
        is_patient=is_patient,
    )


# ---- what is told


def test_it_is_told_when_units_are_tried_and_when_no_more(told: Told) -> None:
    with told.slices.trying([NPU, HOST_UNIT, GPU, NPU]):
        assert told.take() == [((GPU, NPU), False)]
    assert told.take() == [END]


def test_it_is_told_that_what_is_tried_can_be_done_without(told: Told) -> None:
    with told.slices.trying([GPU], is_keeping=True):
        assert told.take() == [((GPU,), True)]
    assert told.take() == [END]


def test_that_no_more_is_tried_is_told_also_when_it_failed(told: Told) -> None:
    with pytest.raises(RunFailed), told.slices.trying([GPU]):
        raise RunFailed("no")
    assert told.take() == [BEGIN, END]


def test_of_the_processor_nothing_is_told(told: Told) -> None:
    with told.slices.trying([HOST_UNIT]):
        pass
    with told.slices.trying([]):
        pass
    assert told.slices.watched(lambda: 1.5, [HOST_UNIT])() == 1.5
    assert told.take() == []


def test_each_run_that_is_watched_is_told(told: Told) -> None:
    run = told.slices.watched(lambda: 1.5, [GPU, HOST_UNIT])
    assert told.take() == []
    assert [run(), run()] == [1.5, 1.5]
    assert told.take() == [BEGIN, END] * 2


# ---- parts


def test_a_part_on_a_unit_is_timed_and_each_step_is_told(workshop: Workshop, told: Told) -> None:
    bench = PartBench(subject(workshop), told.slices)
    part = SegmentRange(start=1, stop=2)
    with bench.runner(part, ON_OTHER) as run:
        assert told.take() == [BEGIN, END] * 2  # opened and tried; warmed up
        assert 0.0 < run() < 1.0
        assert told.take() == [BEGIN, END]
    with bench.runner(part, ON_HOST) as run:
        assert 0.0 < run() < 1.0
    assert told.take() == []


def test_a_part_that_a_unit_computes_wrongly_is_unfit(
    workshop: Workshop, compiler: Compiler, told: Told
) -> None:
    bench = PartBench(subject(wrong(workshop, compiler)), told.slices)
    part = SegmentRange(start=1, stop=2)
    with pytest.raises(Unfit) as found, bench.runner(part, ON_OTHER, 100.0):
        raise AssertionError("it was timed")
    assert found.value.reason == "inaccurate"
    name = workshop.summary.cuts[1].crossing[0].name
    assert found.value.detail.startswith(f'output "{name}": differs by ')
    assert told.take() == [BEGIN, END]


def test_patience_excuses_nothing_that_is_wrong(
    workshop: Workshop, compiler: Compiler, told: Told
) -> None:
    bench = PartBench(subject(wrong(workshop, compiler), is_patient=True), told.slices)
    with pytest.raises(Unfit, match="inaccurate"), bench.runner(whole(workshop), ON_OTHER, 100.0):
        raise AssertionError("it was timed")


def counting(tmp_path: Path, compiler: Compiler, times: int) -> Workshop:
    """y = x + times, counted one by one: some milliseconds for ten thousand."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["sum", "one"], ["more"])],
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("go", [], TensorProto.BOOL),
            value("sum", [1]),
        ],
        [value("on", [], TensorProto.BOOL), value("more", [1])],
    )
    made = model(
        [node("Loop", ["times", "", "x"], ["y"], body=body)],
        [value("x", [1])],
        [value("y", [1])],
        [held("times", np.array(times, np.int64)), held("one", np.ones(1, np.float32))],
    )
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    return Workshop(graph, summarise(graph, ModelId("m"), {}, specs), specs, compiler)


ONE_X = ({"x": np.ones(1, np.float32)},)
SHORT_S = 0.001


def slow_bench(tmp_path: Path, compiler: Compiler, told: Told, *, is_patient: bool) -> PartBench:
    made = counting(tmp_path, compiler, 30_000)
    return PartBench(subject(made, samples=ONE_X, is_patient=is_patient), told.slices)


WHOLE = SegmentRange(start=0, stop=1)


def test_a_unit_that_takes_longer_than_anybody_would_wait_is_unfit(
    tmp_path: Path, compiler: Compiler, told: Told
) -> None:
    bench = slow_bench(tmp_path, compiler, told, is_patient=False)
    with pytest.raises(Unfit) as found, bench.runner(WHOLE, ON_OTHER, SHORT_S):
        raise AssertionError("it was timed")
    assert (found.value.reason, found.value.detail) == ("slower", "a run takes more than 1 ms")
    assert told.take() == [BEGIN, END]


@pytest.mark.parametrize(
    ("configuration", "patience_s", "is_patient"),
    [(ON_OTHER, SHORT_S, True), (ON_OTHER, None, False), (ON_HOST, SHORT_S, False)],
    ids=["the user wants it", "as long as it takes", "the processor"],
)
def test_else_it_is_timed_however_long_it_takes(
    tmp_path: Path,
    compiler: Compiler,
    told: Told,
    configuration: Configuration,
    patience_s: float | None,
    is_patient: bool,
) -> None:
    bench = slow_bench(tmp_path, compiler, told, is_patient=is_patient)
    with bench.runner(WHOLE, configuration, patience_s) as run:
        assert run() > SHORT_S


def test_a_unit_whose_first_run_does_not_end_is_unfit_however_patient_the_user_is(
    tmp_path: Path, compiler: Compiler, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = slow_bench(tmp_path, compiler, told, is_patient=True)
    monkeypatch.setattr(benches, "FIRST_RUN_S", SHORT_S)
    with pytest.raises(Unfit) as found, bench.runner(WHOLE, ON_OTHER, None):
        raise AssertionError("it was timed")
    assert found.value.reason == "slower"
    assert found.value.detail == "its first run took longer than 0 s"
    assert told.take() == [BEGIN, END]


# ---- whole plans


def plan(workshop: Workshop, *each: Configuration, instances: int = 1) -> CandidatePlan:
    """One segment in each of the configurations; the last takes the rest."""
    return chosen_plan(workshop, range(1, len(each)), each, instances)


ON_NPU = replace(ON_OTHER, unit=NPU)


def test_a_plan_over_several_units_is_checked_and_timed_and_told(
    workshop: Workshop, told: Told
) -> None:
    bench = WholeBench(subject(workshop), told.slices, plain_callers=1)
    over_three = plan(workshop, ON_OTHER, ON_HOST, ON_NPU)
    assert bench.check(over_three) is None
    begin = ((GPU, NPU), False)
    # Opened, each part beside its reference, and together: nothing else is told as theirs.
    gpu, npu = (((GPU,), False), END), (((NPU,), False), END)
    samples = len(subject(workshop).samples)
    assert told.take() == [begin, END, *(*gpu, *npu, begin, END) * samples]
    with bench.runner(over_three) as run:
        assert told.take() == [begin, END]
        assert 0.0 < run() < 1.0
        assert told.take() == [begin, END]
    parts_s = bench.parts(over_three)
    assert len(parts_s) == 3
    assert all(0.0 < part_s < 1.0 for part_s in parts_s)


def test_a_plan_with_a_part_that_a_unit_computes_wrongly_is_found_out(
    workshop: Workshop, compiler: Compiler, told: Told
) -> None:
    bench = WholeBench(subject(wrong(workshop, compiler)), told.slices, plain_callers=1)
    found = bench.check(plan(workshop, ON_HOST, ON_OTHER))
    assert found is not None
    assert found.startswith(f'subgraph [1-{len(workshop.summary.segments) - 1}]: output "v4": ')
    assert told.take() == [BEGIN, END] * 2


Timed = Callable[[Callable[[], None], int, Callable[[], None]], Any]


def timing(took_s: float, counts: list[int]) -> Timed:
    """As if a round took that long; runs it once on this thread."""

    @contextmanager
    def timed(task: Callable[[], None], count: int, _prepare: Callable[[], None]) -> Iterator[Run]:
        counts.append(count)

        def run() -> float:
            task()
            return took_s

        yield run

    return timed


class Gauge:
    """How many runs are on a unit at once."""

    def __init__(self, waits_s: float) -> None:
        self._waits_s = waits_s
        self._running = 0
        self._came = threading.Condition()
        self.most_at_once = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A run, which waits a little for more to come than any test here allows."""
        with self._came:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            self._came.notify_all()
            self._came.wait_for(lambda: self.most_at_once > 2, self._waits_s)
        try:
            yield
        finally:
            with self._came:
                self._running -= 1


class RecordingSession(Session):
    """Tells how often it ran."""

    def __init__(self, opened: Session, gauge: Gauge) -> None:
        super().__init__(opened._inner, opened.path, None)
        self._gauge = gauge
        self.runs = 0

    def compute(
        self,
        values: Mapping[str, Any],
        outputs: Sequence[str],
        cancel: Cancellation | None,
        **rest: Any,
    ) -> dict[str, Any]:
        with self._gauge.counted():
            self.runs += 1
            return super().compute(values, outputs, cancel, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSubject(Subject):
    """Its sessions are recorded."""

    waits_s: float
    gauges: dict[UnitId, Gauge] = field(default_factory=dict)
    opened: list[RecordingSession] = field(default_factory=list)

    def open_part(
        self, segments: SegmentRange, configuration: Configuration, last: Names = NO_NAMES
    ) -> Session:
        gauge = self.gauges.setdefault(configuration.unit, Gauge(self.waits_s))
        session = RecordingSession(Subject.open_part(self, segments, configuration, last), gauge)
        self.opened.append(session)
        return session


def recording(workshop: Workshop, waits_s: float = 0.0) -> RecordingSubject:
    plain = subject(workshop)
    known = {name.name: getattr(plain, name.name) for name in fields(plain)}
    return RecordingSubject(waits_s=waits_s, **known)


@pytest.mark.parametrize(
    ("each", "instances", "in_turn"),
    [
        ((ON_HOST, ON_OTHER), 2, 4),
        ((ON_OTHER, ON_NPU), 2, 4),
        ((ON_HOST, ON_OTHER), 1, 1),
        ((replace(ON_HOST, instances=2), replace(ON_HOST, instances=2)), 2, 1),
    ],
    ids=["pipeline", "pipeline of two units", "one at a time", "one resource"],
)
def test_the_time_of_a_round_is_that_of_one_request_of_each_caller(
    workshop: Workshop,
    told: Told,
    each: tuple[Configuration, ...],
    instances: int,
    in_turn: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(benches, "timed", timing(8.0, counts))
    of = recording(workshop)
    bench = WholeBench(of, told.slices, plain_callers=1)
    with bench.runner(plan(workshop, *each, instances=instances)) as run:
        assert run() == 8.0 / in_turn
    assert counts == [instances]
    assert [session.runs for session in of.opened] == [in_turn] * 2


def test_no_unit_runs_more_at_once_than_was_planned_for_it(workshop: Workshop, told: Told) -> None:
    of = recording(workshop, waits_s=0.005)
    bench = WholeBench(of, told.slices, plain_callers=1)
    twice = replace(ON_HOST, instances=2)
    piped = plan(workshop, twice, ON_OTHER, twice, ON_OTHER, instances=3)
    with bench.runner(piped) as run:
        assert run() > 0.0
    assert of.gauges[GPU].most_at_once == 1
    assert of.gauges[HOST_UNIT].most_at_once == 2
    # Three callers, each with four requests, in two rounds to warm up and at least one that counts.
    assert {session.runs % 12 for session in of.opened} == {0}
    assert of.opened[0].runs >= 36


def test_what_a_configuration_runs_on_is_said_by_its_unit(workshop: Workshop) -> None:
    of = subject(workshop)
    assert of.use(ON_HOST) is None
    assert of.use(ON_OTHER) == OTHER.use(Layout.NATIVE, 0)


def test_a_graph_loads_as_the_unit_gets_it(workshop: Workshop) -> None:
    opened = subject(workshop).open_part(whole(workshop), ON_OTHER)
    assert opened.path == workshop.kept(whole(workshop))
    assert len(ModelGraph.load(opened.path).nodes) == 8
