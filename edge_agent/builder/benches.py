"""The benches of profiling, on real sessions: parts of a model, whole plans, and plain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from edge_agent import clock
from edge_agent.builder.crew import Crew
from edge_agent.builder.tolerance import disagreement
from edge_agent.builder.workshop import Workshop, fed
from edge_agent.devices import Layout
from edge_agent.engine.chain import Chain
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.plans import CandidatePlan
from edge_agent.profiles import Configuration
from edge_agent.profiling.ratio import Run
from edge_agent.subgraphs import SegmentRange
from edge_agent.telemetry.host import OtherLoad
from edge_agent.tensors import Arrays, required

BURST_S = 0.03
"""How long the timed runs of one sample last together, if one run is shorter."""
MOST_RUNS = 50
SPIN_S = 0.06
"""How long the threads of a plain session go on spinning after a run (45 ms measured)."""
QUIET_FRACTION = 0.15
"""Share of the processor that others may use beside a sample."""
GRANT_S = 0.02
LOOK_S = 0.2
"""Shortest window over which other load is judged."""


class Slices:
    """Asks the agent for leave now and then, reports progress, and watches for other load."""

    def __init__(self, ask_grant: Callable[[], None], report: Callable[[float, str], None]) -> None:
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

    def open_part(self, segments: SegmentRange, configuration: Configuration) -> Session:
        """A run of segments in a configuration, as a worker would open it."""
        threads = configuration.threads
        return Session.open(
            self.workshop.compiled(segments, configuration.layout),
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
    return configuration.instances == 1 and threads == len(cores) and threads > 1


@contextmanager
def timed(task: Callable[[], None], count: int, prepare: Callable[[], None]) -> Iterator[Run]:
    """Runs as in a stream of requests: the first of a burst wakes threads and fills caches and is
    not timed; the others are, together, so that short ones are not lost in the noise."""
    with Crew(count, prepare) as crew:
        warm_s = min(crew.round_s(task) for _ in range(2))
        burst = min(max(1, int(BURST_S / max(warm_s, 1e-6))), MOST_RUNS)

        def run() -> float:
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
        self.grant = slices.grant
        self.progress = slices.progress
        self.quiet = slices.quiet
        subject.workshop.feed(subject.samples[0])

    @contextmanager
    def runner(self, segments: SegmentRange, configuration: Configuration) -> Iterator[Run]:
        """See `Bench.runner`."""
        session = self._subject.open_part(segments, configuration)
        values = self._subject.workshop.values_before(segments.start)
        feeds = fed(session, values)
        outputs = session.output_names

        runs = session.run_inside if session.containers else session.run

        def run_once() -> None:
            runs(feeds, outputs)

        with timed(run_once, configuration.instances, session.pin_caller) as run:
            yield run

    def plain(self) -> AbstractContextManager[Run]:
        """See `Bench.plain`."""
        return _timed_plain(self._subject, 1)


class WholeBench:
    """`profiling.verify.PlanBench` on real sessions."""

    def __init__(self, subject: Subject, slices: Slices, plain_callers: int) -> None:
        self._subject = subject
        self._plain_callers = plain_callers
        self._parts_s: dict[CandidatePlan, tuple[float, ...]] = {}
        self._references: list[Arrays] = []
        self.grant = slices.grant
        self.progress = slices.progress
        self.quiet = slices.quiet

    def check(self, plan: CandidatePlan) -> str | None:
        """See `PlanBench.check`: every subgraph and the whole, on every sample."""
        if not self._references:
            session = self._subject.open_reference()
            self._references = [
                session.run(sample, session.output_names) for sample in self._subject.samples
            ]
        sessions = self._open(plan)
        for sample, reference in zip(self._subject.samples, self._references, strict=True):
            wrong = self._check_parts(plan, sessions, sample)
            if wrong is None:
                outputs = self._chain(sessions).run(sample, list(reference))
                wrong = disagreement(outputs, reference, is_quantised=self._subject.is_quantised)
            if wrong is not None:
                return wrong
        return None

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
            got = session.run_inside(feeds, session.output_names)
            # What is no tensor is compared by what comes of it.
            tensors = [spec.name for spec in session.outputs if not spec.container]
            reference: Arrays = {name: want[name] for name in tensors}
            wrong = disagreement(got, reference, is_quantised=self._subject.is_quantised)
            if wrong is not None:
                return f"subgraph [{chosen.segments}]: {wrong}"
        return None

    def _open(self, plan: CandidatePlan) -> list[Session]:
        return [self._subject.open_part(s.segments, s.configuration) for s in plan.subgraphs]

    def _chain(self, sessions: Sequence[Session]) -> Chain:
        summary = self._subject.workshop.summary
        return Chain(sessions, required(summary.inputs), [s.name for s in summary.outputs])

    @contextmanager
    def runner(self, plan: CandidatePlan) -> Iterator[Run]:
        """See `PlanBench.runner`."""
        sessions = self._open(plan)
        sample = self._subject.samples[0]

        def run_once() -> None:
            values: dict[str, object] = dict(sample)
            ends_s = [clock.precise_s()]
            for session in sessions:
                feeds = {n: session.value_of(n, values[n]) for n in session.input_names}
                values |= session.compute(feeds, session.output_names, None)
                ends_s.append(clock.precise_s())
            self._parts_s[plan] = tuple(end - start for start, end in pairwise(ends_s))

        pinned = next((s for s in sessions if s.pinned_cores), sessions[0])
        with timed(run_once, plan.instances, pinned.pin_caller) as run:
            yield run

    def parts(self, plan: CandidatePlan) -> tuple[float, ...]:
        """See `PlanBench.parts`."""
        return self._parts_s[plan]

    def plain(self) -> AbstractContextManager[Run]:
        """See `PlanBench.plain`."""
        return _timed_plain(self._subject, self._plain_callers)
