"""The benches of profiling, on real sessions: parts of a model, whole plans, and plain."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_agent import clock
from edge_agent.builder.crew import Crew
from edge_agent.builder.workshop import NO_NAMES, Names, Values, Workshop, fed
from edge_agent.devices import ComputeUnit, Layout, ProviderUse, UnitId
from edge_agent.engine.cancel import cancelled_after
from edge_agent.engine.chain import Chain, Turns
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import DeadlineExceeded
from edge_agent.model.borders import crossing_value
from edge_agent.plans import CandidatePlan
from edge_agent.profiles import HOST_UNIT, Configuration
from edge_agent.profiling.profiler import Unfit
from edge_agent.profiling.ratio import Run
from edge_agent.profiling.tolerance import FLOAT_TOLERANCE, disagreement, largest_difference
from edge_agent.subgraphs import SegmentRange
from edge_agent.telemetry.host import OtherLoad
from edge_agent.tensors import Arrays, required

BURST_S = 0.03
"""How long the timed runs of one sample last together, if one run is shorter."""
MOST_RUNS = 50
LONG_RUN_S = 0.2
"""To a run as long as this, waking threads and filling caches makes no difference."""
SPIN_S = 0.06
"""How long the threads of a plain session go on spinning after a run (45 ms measured)."""
QUIET_FRACTION = 0.15
"""Share of the processor that others may use beside a sample."""
FIRST_RUN_S = 30.0
"""How long the first run on a unit may take, which may compile."""
_RUNS_IN_TURN = 4
"""Of each caller, so that a pipeline is full for most of a round."""
GRANT_S = 0.02
LOOK_S = 0.2
"""Shortest window over which other load is judged."""


class Slices:
    """Asks the agent for leave now and then, reports progress, and watches for other load."""

    def __init__(
        self,
        ask_grant: Callable[[], None],
        report: Callable[[float, str], None],
        tell_tried: Callable[[tuple[UnitId, ...], bool], None] = lambda _units, _is_keeping: None,
    ) -> None:
        self._tell_tried = tell_tried
        self._ask_grant = ask_grant
        self._report = report
        self._granted_s = float("-inf")
        self._slice_s = GRANT_S
        self._waited_s = 0.0
        self._other = OtherLoad((os.getpid(),))
        self._looked_s = clock.monotonic_s()
        self._is_quiet = True
        self.first_fraction = 0.0
        self.last_fraction = 1.0

    @contextmanager
    def trying(self, units: Collection[UnitId], *, is_keeping: bool = False) -> Iterator[None]:
        """While the providers of `units` are at work, which may end or block this process: the
        agent then knows whose fault it was. `is_keeping`: at what they can do without."""
        tried = tuple(sorted({unit for unit in units if unit != HOST_UNIT}))
        if not tried:
            yield
            return
        self._tell_tried(tried, is_keeping)
        try:
            yield
        finally:
            self._tell_tried((), False)

    def watched(self, run: Run, units: Collection[UnitId]) -> Run:
        """`run` as something that is tried on `units`."""
        if all(unit == HOST_UNIT for unit in units):
            return run

        def watched() -> float:
            with self.trying(units):
                return run()

        return watched

    def grant(self) -> None:
        """Block until the agent allows the next slice; asks every 20 ms, and less often when it
        had to wait long."""
        now_s = clock.monotonic_s()
        if now_s - self._granted_s >= self._slice_s:
            self._ask_grant()
            self._granted_s = clock.monotonic_s()
            took_s = self._granted_s - now_s
            self._waited_s += took_s
            self._slice_s = max(GRANT_S, took_s / 4)

    def working_s(self) -> float:
        """Seconds since an unknown start, without those spent waiting for leave."""
        return clock.precise_s() - self._waited_s

    def progress(self, done: float, what: str) -> None:
        """Report a share of the present step."""
        span = self.last_fraction - self.first_fraction
        self._report(self.first_fraction + span * done, what)

    def quiet(self) -> bool:
        """Whether others left the processor alone lately.

        The kernel counts in ticks of 10 ms, so that only windows of some length tell anything;
        until the next one is full, the last one counts.
        """
        now_s = clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_S:
            self._is_quiet = self._other.fraction() <= QUIET_FRACTION
            self._looked_s = now_s
        return self._is_quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: a model with sample inputs, on the cores it may use."""

    workshop: Workshop
    samples: tuple[Arrays, ...]
    cores: tuple[int, ...]
    plain_threads: int | None
    """Threads of plain ONNX Runtime; None: its default."""
    is_quantised: bool
    units: tuple[ComputeUnit, ...] = ()
    """All that may be used beside the processor."""
    pinned: tuple[UnitId | None, ...] = ()
    """The unit that each segment is pinned to by the user."""
    half_bound: float | None = None
    """How far outputs of what computes in float16 may be from the reference, as a share of their
    range; None: float16 is not allowed."""
    is_patient: bool = False
    """Whether units may be as slow as they are, because the user wants them."""

    def use(self, configuration: Configuration) -> ProviderUse | None:
        """The provider that a configuration runs on; None for that of the processor."""
        unit = next((u for u in self.units if u.id == configuration.unit), None)
        if unit is None:
            return None
        return unit.use(configuration.layout, configuration.threads)

    def bound(self, configurations: Iterable[Configuration]) -> float | None:
        """How far floats may be off that come out of these, if that is the user's word."""
        return self.half_bound if any(c.is_half for c in configurations) else None

    def open_part(
        self, segments: SegmentRange, configuration: Configuration, last: Names = NO_NAMES
    ) -> Session:
        """A run of segments in a configuration, as a worker would open it; values in `last` cross
        channels-last."""
        threads = configuration.threads
        use = self.use(configuration)
        if use is not None:
            return Session.open(
                self.workshop.kept(segments, is_half=configuration.is_half, last=last),
                threads=threads or 1,
                level=OptimisationLevel.ALL,
                use=use,
                is_whole=not configuration.falls_back,
            )
        return Session.open(
            self.workshop.compiled(segments, configuration.layout, last),
            threads=threads,
            level=OptimisationLevel.NONE,
            pinned_cores=self.cores if is_pinned(configuration, self.cores) else None,
        )

    def open_plain(self) -> Session:
        """The whole model as a user's own session, to be timed.

        A large one is opened from its compiled form, which is as fast and equal bit by bit, and
        maps its packed weights where a user's session would make a copy of them.
        """
        path = self.workshop.graph.path
        if self.workshop.is_large:
            whole = SegmentRange(start=0, stop=len(self.workshop.summary.segments))
            path = self.workshop.compiled(whole, Layout.BLOCKED)
        return Session.open(
            path, threads=self.plain_threads, level=OptimisationLevel.ALL, plain=True
        )

    def open_reference(self) -> Session:
        """The whole model as a user's own session, to be compared with."""
        return Session.open(
            self.workshop.graph.path,
            threads=self.plain_threads,
            level=OptimisationLevel.ALL,
            plain=True,
            lean=self.workshop.is_large,
        )


def is_pinned(configuration: Configuration, cores: tuple[int, ...]) -> bool:
    """Whether the threads of a configuration are bound to cores: only where it uses them all,
    for else two models could be bound to the same core while another one idles."""
    threads = configuration.threads
    if configuration.unit != HOST_UNIT:
        return False
    return configuration.instances == 1 and threads == len(cores) and threads > 1


@contextmanager
def timed(task: Callable[[], None], count: int, prepare: Callable[[], None]) -> Iterator[Run]:
    """Runs as in a stream of requests: the first of a burst wakes threads and fills caches and is
    not timed; the others are, together, so that short ones are not lost in the noise."""
    with Crew(count, prepare) as crew:
        warm_s = min(crew.round_s(task) for _ in range(2))
        burst = min(max(1, int(BURST_S / max(warm_s, 1e-6))), MOST_RUNS)

        def run() -> float:
            if warm_s < LONG_RUN_S:
                crew.round_s(task)
            return sum(crew.round_s(task) for _ in range(burst)) / burst

        yield run


@contextmanager
def _timed_plain(subject: Subject, callers: int) -> Iterator[Run]:
    session = subject.open_plain()
    outputs = session.output_names

    def run_once() -> None:
        session.run(subject.samples[0], outputs)

    with timed(run_once, callers, lambda: None) as run:

        def run_and_settle() -> float:
            took_s = run() / callers
            if len(subject.cores) > 1 and subject.plain_threads != 1:
                # Its threads would take a core from whatever is timed next.
                clock.sleep_s(SPIN_S)
            return took_s

        yield run_and_settle


class PartBench:
    """`profiling.profiler.Bench` on real sessions."""

    def __init__(self, subject: Subject, slices: Slices) -> None:
        self._subject = subject
        self._slices = slices
        self.grant = slices.grant
        self.progress = slices.progress
        self.quiet = slices.quiet
        subject.workshop.feed(subject.samples[0])

    @contextmanager
    def runner(
        self,
        segments: SegmentRange,
        configuration: Configuration,
        patience_s: float | None = None,
    ) -> Iterator[Run]:
        """See `Bench.runner`."""
        units = (configuration.unit,)
        values = self._subject.workshop.values_before(segments.start)
        want: Values | None = None
        if configuration.unit != HOST_UNIT:
            # Before the unit is tried: the processor's time for it is not the unit's.
            want = self._subject.workshop.values_before(segments.stop)
        with self._slices.trying(units):
            session = self._subject.open_part(segments, configuration)
            feeds = fed(session, values)
            if want is not None:
                self._try(session, feeds, want, configuration, patience_s)
        outputs = session.output_names

        runs = session.run_inside if session.containers else session.run

        def run_once() -> None:
            runs(feeds, outputs)

        with ExitStack() as stack:
            with self._slices.trying(units):
                run = stack.enter_context(
                    timed(run_once, configuration.instances, session.pin_caller)
                )
            yield self._slices.watched(run, units)

    def _try(
        self,
        session: Session,
        feeds: Values,
        want: Values,
        configuration: Configuration,
        patience_s: float | None,
    ) -> None:
        """Run a part on a unit for the first time, and once more. `want` are the right values.

        Raises: Unfit if it is wrong, or slower than anybody would wait.
        """
        with cancelled_after(FIRST_RUN_S) as cancel:
            try:
                got = session.run_inside(feeds, session.output_names, cancel)
            except DeadlineExceeded as error:
                detail = f"its first run took longer than {FIRST_RUN_S:.0f} s"
                raise Unfit("slower", detail) from error
        subject = self._subject
        wrong = _part_disagreement(subject, session, got, want, configuration)
        if wrong is not None:
            raise Unfit("inaccurate", wrong)
        if patience_s is None or subject.is_patient:
            return
        with cancelled_after(patience_s) as cancel:
            try:
                session.run_inside(feeds, session.output_names, cancel)
            except DeadlineExceeded as error:
                detail = f"a run takes more than {patience_s * 1e3:.3g} ms"
                raise Unfit("slower", detail) from error

    def plain(self) -> AbstractContextManager[Run]:
        """See `Bench.plain`."""
        return _timed_plain(self._subject, 1)


def _part_disagreement(
    subject: Subject, session: Session, got: Values, want: Values, configuration: Configuration
) -> str | None:
    """How what a part gave differs from the right values beyond what is allowed; None if not."""
    # What is no tensor is compared by what comes of it.
    told = [spec.name for spec in session.outputs if not spec.container]
    tensors: Arrays = {name: crossing_value(want, name) for name in told}
    bound = subject.bound([configuration])
    return disagreement(got, tensors, is_quantised=subject.is_quantised, bound=bound)


class WholeBench:
    """`profiling.verify.PlanBench` on real sessions."""

    def __init__(self, subject: Subject, slices: Slices, plain_callers: int) -> None:
        self._subject = subject
        self._slices = slices
        self._plain_callers = plain_callers
        self._parts_s: dict[CandidatePlan, tuple[float, ...]] = {}
        self._references: list[Arrays] = []
        self.differences: dict[CandidatePlan, float] = {}
        """How far outputs of plans that compute in float16 were from the reference at most, as a
        share of their range."""
        self.grant = slices.grant
        self.progress = slices.progress
        self.quiet = slices.quiet

    def check(self, plan: CandidatePlan) -> str | None:
        """See `PlanBench.check`: every subgraph and the whole, on every sample."""
        if not self._references:
            session = self._subject.open_reference()
            references = []
            for sample in self._subject.samples:
                self.grant()
                references.append(session.run(sample, session.output_names))
            self._references = references
        with self._slices.trying(_units(plan)):
            sessions = self._open(plan)
        chain = self._chain(sessions)
        for sample, reference in zip(self._subject.samples, self._references, strict=True):
            self.grant()
            wrong = self._check_parts(plan, sessions, sample)
            if wrong is None:
                with self._slices.trying(_units(plan)):
                    outputs = chain.run(sample, list(reference))
                bound = self._subject.bound(s.configuration for s in plan.subgraphs)
                wrong = disagreement(
                    outputs, reference, is_quantised=self._subject.is_quantised, bound=bound
                )
                if bound is not None:
                    self._note(plan, outputs, reference)
            if wrong is not None:
                return wrong
        return None

    def _note(
        self, plan: CandidatePlan, outputs: Mapping[str, Any], reference: Mapping[str, Any]
    ) -> None:
        errors = [
            largest_difference(outputs[name], want)[1]
            for name, want in reference.items()
            if isinstance(want, np.ndarray) and want.dtype.name in FLOAT_TOLERANCE
        ]
        self.differences[plan] = max([self.differences.get(plan, 0.0), *errors])

    def _check_parts(
        self, plan: CandidatePlan, sessions: Sequence[Session], sample: Arrays
    ) -> str | None:
        if len(sessions) == 1:
            return None
        workshop = self._subject.workshop
        workshop.feed(sample)
        for chosen, session in zip(plan.subgraphs, sessions, strict=True):
            values = workshop.values_before(chosen.segments.start)
            want = workshop.values_before(chosen.segments.stop)
            feeds = fed(session, values)
            with self._slices.trying([chosen.configuration.unit]):
                got = session.run_inside(feeds, session.output_names)
            wrong = _part_disagreement(self._subject, session, got, want, chosen.configuration)
            if wrong is not None:
                return f"subgraph [{chosen.segments}]: {wrong}"
        return None

    def _open(self, plan: CandidatePlan) -> list[Session]:
        subject = self._subject
        last = subject.workshop.last_between(plan.subgraphs, subject.use)
        return [subject.open_part(s.segments, s.configuration, last) for s in plan.subgraphs]

    def _chain(
        self,
        sessions: Sequence[Session],
        turns: Sequence[AbstractContextManager[object]] | None = None,
    ) -> Chain:
        summary = self._subject.workshop.summary
        outputs = [s.name for s in summary.outputs]
        return Chain(sessions, required(summary.inputs), outputs, turns)

    @contextmanager
    def runner(self, plan: CandidatePlan) -> Iterator[Run]:
        """See `PlanBench.runner`."""
        units = _units(plan)
        sample = self._subject.samples[0]
        with ExitStack() as stack:
            with self._slices.trying(units):
                sessions = self._open(plan)
                chain = self._chain(sessions, _turns(plan))
                runs = _RUNS_IN_TURN if _is_pipeline(plan) else 1

                def run_once() -> None:
                    for _ in range(runs):
                        took_s: dict[Session, float] = {}
                        chain.run_checked(sample, chain.outputs, took_s=took_s)
                        self._parts_s[plan] = tuple(
                            took_s.get(session, 0.0) for session in sessions
                        )

                pinned = next((s for s in sessions if s.pinned_cores), sessions[0])
                timing = timed(run_once, plan.instances, pinned.pin_caller)
                round_s = stack.enter_context(timing)
            yield self._slices.watched(lambda: round_s() / runs, units)

    def parts(self, plan: CandidatePlan) -> tuple[float, ...]:
        """See `PlanBench.parts`."""
        return self._parts_s[plan]

    def plain(self) -> AbstractContextManager[Run]:
        """See `PlanBench.plain`."""
        return _timed_plain(self._subject, self._plain_callers)


def _units(plan: CandidatePlan) -> set[UnitId]:
    return {s.configuration.unit for s in plan.subgraphs}


def _turns(plan: CandidatePlan) -> list[AbstractContextManager[object]]:
    turns, used = Turns(plan.instances), [s.configuration for s in plan.subgraphs]
    return [turns.of(c.resource, c.instances) for c in used]


def _is_pipeline(plan: CandidatePlan) -> bool:
    """Whether several requests are at work at once, on several resources."""
    return plan.instances > 1 and len({s.configuration.resource for s in plan.subgraphs}) > 1
