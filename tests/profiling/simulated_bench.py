"""A simulated device: runs take the time of a known truth with seeded noise on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from edge_agent.errors import EdgeAgentError
from edge_agent.planning.cost import subgraph_s
from edge_agent.plans import CandidatePlan
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.profiling.profiler import Unfit
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary


@dataclass(kw_only=True)
class SimulatedBench:
    """Takes what `truth` says, lognormal noise on top; implements Bench and PlanBench."""

    model: ModelSummary
    truth: Mapping[Configuration, SegmentTimes]
    plain_s: float
    noise: float = 0.03
    seed: int = 0
    opening_s: float = 0.3
    checking_s: float = 0.5
    load_chance: float = 0.0
    """How often a run falls beside other load, which makes it take three times as long."""
    refuses: Mapping[Configuration, EdgeAgentError] = field(default_factory=dict)
    refuses_parts: Mapping[tuple[Configuration, str], EdgeAgentError] = field(default_factory=dict)
    fails_while_running: Mapping[Configuration, EdgeAgentError] = field(default_factory=dict)
    wrong: Mapping[Configuration, str] = field(default_factory=dict)
    opens_in_s: Mapping[Configuration, float] = field(default_factory=dict)
    """What opening the whole model takes, where it is not `opening_s`."""
    unfit: Mapping[tuple[Configuration, int], Unfit] = field(default_factory=dict)
    """What a run of so many segments raises."""
    patience_s: dict[Configuration, float | None] = field(default_factory=dict)
    now_s: float = 100.0
    open_now: int = 0
    most_open: int = 0
    grants: int = 0
    ran: list[str] = field(default_factory=list)
    reports: list[tuple[float, str]] = field(default_factory=list)
    _was_quiet: bool = True
    _parts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def clock_s(self) -> float:
        return self.now_s

    @contextmanager
    def runner(  # type: ignore[misc]
        self,
        what: SegmentRange | CandidatePlan,
        configuration: Configuration | None = None,
        patience_s: float | None = None,
    ) -> Iterator[Callable[[], float]]:
        if isinstance(what, CandidatePlan):
            pieces = [(s.segments, s.configuration) for s in what.subgraphs]
        else:
            assert configuration is not None
            pieces = [(what, configuration)]
        for segments, used in pieces:
            share = len(segments) / len(self.model.segments)
            self.now_s += self.opens_in_s.get(used, self.opening_s) * (0.2 + 0.8 * share)
            self.patience_s[used] = patience_s
            if used in self.refuses:
                raise self.refuses[used]
            if (used, str(segments)) in self.refuses_parts:
                raise self.refuses_parts[used, str(segments)]
        with self._opened():
            yield lambda: self._run(pieces)

    @contextmanager
    def plain(self) -> Iterator[Callable[[], float]]:
        self.now_s += self.opening_s
        with self._opened():
            yield lambda: self._took("plain", self.plain_s)

    def check(self, plan: CandidatePlan) -> str | None:
        self.now_s += self.checking_s
        for part in plan.subgraphs:
            if part.configuration in self.refuses:
                raise self.refuses[part.configuration]
        return next(
            (self.wrong[s.configuration] for s in plan.subgraphs if s.configuration in self.wrong),
            None,
        )

    def parts(self, plan: CandidatePlan) -> tuple[float, ...]:
        assert len(self._parts) == len(plan.subgraphs)
        return self._parts

    def quiet(self) -> bool:
        was_quiet, self._was_quiet = self._was_quiet, True
        return was_quiet

    def grant(self) -> None:
        self.grants += 1
        self.now_s += 1e-4

    def progress(self, done: float, what: str) -> None:
        self.reports.append((done, what))

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            yield
        finally:
            self.open_now -= 1

    def _run(self, pieces: list[tuple[SegmentRange, Configuration]]) -> float:
        parts = []
        for segments, used in pieces:
            if used in self.fails_while_running:
                raise self.fails_while_running[used]
            exact_s = subgraph_s(self.model, self.truth[used], segments)
            parts.append(self._took(f"[{segments}] {used}", exact_s))
            if (used, len(segments)) in self.unfit:
                raise self.unfit[used, len(segments)]
            if self.patience_s[used] is not None and parts[-1] > self.patience_s[used]:
                raise Unfit("slower", f"one run took {parts[-1]:.3g} s")
        self._parts = tuple(parts)
        return sum(parts)

    def _took(self, what: str, exact_s: float) -> float:
        took_s = exact_s * self.rng.lognormvariate(0.0, self.noise)
        if self.rng.random() < self.load_chance:
            took_s *= 3.0
            self._was_quiet = False
        self.now_s += took_s
        self.ran.append(what)
        return took_s
