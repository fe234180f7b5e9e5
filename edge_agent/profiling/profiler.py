"""What to measure of a model in a given time, in which order, and when to stop.

First the whole model in every configuration worth measuring, interleaved with plain ONNX Runtime;
then, for the configurations that are not clearly slower, windows: halves, the middle half,
quarters and eighths of the model's cost. Few large windows come first, so that a budget that ends
early costs detail and nothing else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import median
from typing import Protocol

from edge_agent.clock import precise_s
from edge_agent.devices import DeviceState
from edge_agent.errors import EdgeAgentError, ModelRefused, RunFailed, RuntimeUnavailable
from edge_agent.planning.cost import border_bytes
from edge_agent.planning.score import ProcessorRates, estimate_s, worth_measuring
from edge_agent.profiles import (
    Configuration,
    LatencyProfile,
    Rejection,
    SegmentTimes,
    Window,
)
from edge_agent.profiling.fit import fit_segments
from edge_agent.profiling.ratio import Run, median_interval, timing_of
from edge_agent.subgraphs import ModelSummary, SegmentRange

# What a node costs beside its arithmetic, so that a run of reshapes is not expected to be free.
_NODE_S = 2e-6
_LOSER_RATIO = 1.5
_OPEN_AT_ONCE = 6
_SCREENING_ROUNDS = 3
_MOST_ROUNDS = 9
_LEAST_SAMPLES = 5
_PRECISE_FRACTION = 0.02
_REPEATS = 3
_WHOLE_SHARE = 0.45
_LEAST_OPENING_SHARE = 0.2


class Bench(Protocol):
    """Runs parts of one model on this device, one user at a time."""

    def runner(
        self, segments: SegmentRange, configuration: Configuration
    ) -> AbstractContextManager[Run]:
        """A compiled, warmed callable that runs `segments` once and returns its seconds.

        With k instances, one call is one round of k runs at once, and the seconds are the round's.

        Raises:
            RuntimeUnavailable: the unit refuses the graph.
            ModelRefused: the part cannot be cut out or compiled.
            RunFailed: it was compiled and does not run.
        """
        ...

    def plain(self) -> AbstractContextManager[Run]:
        """As `runner`, for the whole model on plain ONNX Runtime with default options."""
        ...

    def quiet(self) -> bool:
        """Whether nothing else worked on the device since the last call."""
        ...

    def grant(self) -> None:
        """Block until the agent allows the next slice of work."""
        ...

    def progress(self, done: float, what: str) -> None:
        """Report the share that is done, 0 to 1, and what is being measured."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is sampled: a run of segments in a configuration; None and None is plain."""

    segments: SegmentRange | None = None
    configuration: Configuration | None = None

    def __str__(self) -> str:
        return "plain" if self.segments is None else f"[{self.segments}] {self.configuration}"


_PLAIN = _Job()


def profile(
    summary: ModelSummary,
    configurations: Sequence[Configuration],
    bench: Bench,
    *,
    budget_s: float,
    rng: random.Random,
    device_key: str,
    state: DeviceState,
    processor: ProcessorRates,
    clock_s: Run = precise_s,
) -> LatencyProfile:
    """Measure `summary`'s model in `configurations` within about `budget_s` seconds.

    The budget is kept to within the opening of one runner or one run. A configuration that is not
    worth measuring, refused, failing, clearly slower or never reached has a rejection; all that
    were measured whole have times.

    Raises:
        EdgeAgentError: plain ONNX Runtime does not run the model either.
    """
    campaign = _Campaign(summary=summary, bench=bench, rng=rng, clock_s=clock_s, budget_s=budget_s)
    worth = worth_measuring(summary.segments, configurations, state, processor)
    campaign.rejections += worth.rejections
    prior = [
        estimate_s([s], state, processor) + _NODE_S * (s.stop - s.start) for s in summary.segments
    ]
    campaign.measure_whole(worth.configurations)
    campaign.measure_windows(prior)
    windows = campaign.windows()
    return LatencyProfile(
        model=summary.model,
        device_key=device_key,
        shapes=summary.shapes,
        times=_fitted(summary, windows, prior, campaign.indivisible),
        windows=windows,
        plain_s=median(campaign.samples[_PLAIN]),
        profiling_s=campaign.elapsed_s(),
        rejections=tuple(campaign.rejections),
        disturbed_fraction=campaign.disturbed_runs / max(campaign.runs, 1),
    )


@dataclass(slots=True, kw_only=True)
class _Campaign:
    """The samples of one profile while it is being made, and the time that is left for it."""

    summary: ModelSummary
    bench: Bench
    rng: random.Random
    clock_s: Run
    budget_s: float
    samples: dict[_Job, list[float]] = field(default_factory=dict)
    rejections: list[Rejection] = field(default_factory=list)
    indivisible: set[Configuration] = field(default_factory=set)
    """Configurations in which a part of the model was refused."""
    runs: int = 0
    disturbed_runs: int = 0
    """Those beside which others used the processor."""
    start_s: float = field(init=False)
    _opening_s: list[float] = field(default_factory=list)
    _disturbed: dict[_Job, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start_s = self.clock_s()

    @property
    def whole(self) -> SegmentRange:
        return SegmentRange(start=0, stop=len(self.summary.segments))

    def elapsed_s(self) -> float:
        return self.clock_s() - self.start_s

    def windows(self) -> tuple[Window, ...]:
        return tuple(
            Window(
                segments=job.segments, configuration=job.configuration, timing=timing_of(samples)
            )
            for job, samples in self.samples.items()
            if job.segments is not None and job.configuration is not None
        )

    def measure_whole(self, configurations: Sequence[Configuration]) -> None:
        """Sample the whole model in each configuration, and plain beside every group of them."""
        jobs = [_Job(segments=self.whole, configuration=c) for c in configurations]
        groups = _groups(jobs, _OPEN_AT_ONCE) or [[]]
        share_s = self.budget_s * (_WHOLE_SHARE if len(self.summary.segments) > 1 else 1.0)
        for index, group in enumerate(groups):
            if index and self.elapsed_s() >= share_s:
                self._reject_unreached(group)
                continue
            left_s = share_s - self.elapsed_s()
            until_s = self.elapsed_s() + left_s / (len(groups) - index)
            self._sample_group([_PLAIN, *group], until_s)
        for slow, fastest in self._losers().items():
            self.rejections.append(self._slower(slow, fastest))

    def measure_windows(self, prior: Sequence[float]) -> None:
        """Sample parts of the model in the configurations that are not clear losers.

        Those come first that have another one to be mixed with in a division.
        """
        levels = window_levels(self.summary, prior)
        groups = [
            group
            for configurations in self._windowed()
            for level in levels
            for group in _groups(
                [_Job(segments=part, configuration=c) for part in level for c in configurations],
                _OPEN_AT_ONCE,
            )
        ]
        for index, group in enumerate(groups):
            left_s = self.budget_s - self.elapsed_s()
            expected_s = accumulate(self._expected_s(job, prior) for job in group)
            fitting = [job for job, s in zip(group, expected_s, strict=True) if s <= left_s]
            if not fitting:
                return
            self._sample_group(fitting, self.elapsed_s() + left_s / (len(groups) - index))

    def _windowed(self) -> tuple[list[Configuration], list[Configuration]]:
        """The configurations that are not clear losers: (mixable, alone), fastest first."""
        losers = self._losers()
        survivors = sorted(
            (median(samples), job.configuration)
            for job, samples in self.samples.items()
            if job.configuration is not None and job not in losers
        )
        alike = Counter(configuration.instances for _, configuration in survivors)
        mixable = [c for _, c in survivors if alike[c.instances] > 1]
        alone = [c for _, c in survivors if alike[c.instances] == 1]
        return mixable, alone

    def _expected_s(self, job: _Job, prior: Sequence[float]) -> float:
        """What opening and screening a window will take, by its share of the whole model."""
        assert job.segments is not None
        total = sum(prior)
        share = sum(prior[job.segments.start : job.segments.stop]) / total if total else 1.0
        once_s = median(self.samples[_Job(segments=self.whole, configuration=job.configuration)])
        opening_s = median(self._opening_s) * max(share, _LEAST_OPENING_SHARE)
        return opening_s + _SCREENING_ROUNDS * share * once_s

    def _sample_group(self, jobs: Sequence[_Job], until_s: float) -> None:
        """Open all `jobs`, then run them in rounds of random order until they are precise.

        The screening rounds are made as long as the whole budget allows; after them, those that
        are clear losers stop, and the others go on until `until_s`.
        """
        with ExitStack() as stack:
            runs = self._opened(jobs, stack)
            for rounds in range(_MOST_ROUNDS):
                end_s = self.budget_s if rounds < _SCREENING_ROUNDS else until_s
                going = self._unfinished(runs, rounds)
                if not going or (rounds and self.elapsed_s() >= end_s):
                    break
                for job in self.rng.sample(going, len(going)):
                    if self.elapsed_s() < self.budget_s or self._is_needed(job):
                        self._sample(job, runs)
        self._settle_disturbed(runs)

    def _is_needed(self, job: _Job) -> bool:
        """Whether `job` must have a sample even beyond the budget: the whole model, and plain."""
        return job not in self.samples and job.segments in (None, self.whole)

    def _opened(self, jobs: Sequence[_Job], stack: ExitStack) -> dict[_Job, Run]:
        runs: dict[_Job, Run] = {}
        for job in jobs:
            if job.configuration in self.indivisible:
                continue
            if runs and self.elapsed_s() >= self.budget_s:
                self._reject_unreached([job])
                continue
            self.bench.progress(min(self.elapsed_s() / self.budget_s, 1.0), str(job))
            self.bench.grant()
            before_s = self.clock_s()
            try:
                runs[job] = stack.enter_context(self._context(job))
            except (RuntimeUnavailable, ModelRefused, RunFailed) as error:
                self._reject_refused(job, error)
            if job.segments == self.whole:
                self._opening_s.append(self.clock_s() - before_s)
        return runs

    def _context(self, job: _Job) -> AbstractContextManager[Run]:
        if job.segments is None or job.configuration is None:
            return self.bench.plain()
        return self.bench.runner(job.segments, job.configuration)

    def _unfinished(self, runs: dict[_Job, Run], rounds: int) -> list[_Job]:
        if rounds < _SCREENING_ROUNDS:
            return list(runs)
        losers = self._losers()
        return [j for j in runs if j not in losers and not _precise(self.samples.get(j, []))]

    def _sample(self, job: _Job, runs: dict[_Job, Run]) -> None:
        """One sample; one that was taken beside other load is set aside and repeated."""
        self.bench.grant()
        try:
            for _ in range(1 + _REPEATS):
                self.bench.quiet()
                took_s = runs[job]()
                self.runs += 1
                if self.bench.quiet():
                    self.samples.setdefault(job, []).append(took_s)
                    return
                self.disturbed_runs += 1
                self._disturbed.setdefault(job, []).append(took_s)
                if self.elapsed_s() >= self.budget_s:
                    return
        except RunFailed as error:
            self._reject_refused(job, error)
            self.samples.pop(job, None)
            del runs[job]

    def _settle_disturbed(self, jobs: Iterable[_Job]) -> None:
        """Where no sample was undisturbed, the least disturbed one is better than none."""
        for job in jobs:
            if job in self._disturbed and job not in self.samples:
                self.samples[job] = [min(self._disturbed[job])]

    def _losers(self) -> dict[_Job, _Job]:
        """Clear losers on the whole model, each with the one that it lost to.

        Divisions mix configurations of equal instances, so each is compared with those; several
        instances are for the throughput, so they must also keep up in time per request.
        """
        measured = {
            job: (min(samples), job.configuration.instances)
            for job, samples in self.samples.items()
            if job.configuration is not None and job.segments == self.whole
        }
        losers: dict[_Job, _Job] = {}
        for job, (took_s, instances) in measured.items():
            like = [other for other in measured if measured[other][1] == instances]
            fastest = min(like, key=lambda other: measured[other][0])
            busiest = min(measured, key=lambda other: measured[other][0] / measured[other][1])
            if took_s > _LOSER_RATIO * measured[fastest][0]:
                losers[job] = fastest
            elif instances > 1:
                per_request_s = measured[busiest][0] / measured[busiest][1]
                if took_s / instances > _LOSER_RATIO * per_request_s:
                    losers[job] = busiest
        return losers

    def _slower(self, slow: _Job, fastest: _Job) -> Rejection:
        return Rejection(
            candidate=str(slow),
            reason="slower",
            detail=(
                f"{median(self.samples[slow]) * 1e3:.3g} ms on the whole model, "
                f"{fastest.configuration} takes {median(self.samples[fastest]) * 1e3:.3g} ms"
            ),
        )

    def _reject_refused(self, job: _Job, error: EdgeAgentError) -> None:
        if job == _PLAIN:
            raise error
        if job.segments != self.whole and job.configuration is not None:
            self.indivisible.add(job.configuration)
        reason = "failed" if isinstance(error, RunFailed) else "refused"
        self.rejections.append(Rejection(candidate=str(job), reason=reason, detail=str(error)))

    def _reject_unreached(self, jobs: Iterable[_Job]) -> None:
        detail = f"the {self.budget_s:.3g} s for profiling were used up before it was measured"
        self.rejections += [
            Rejection(candidate=str(job), reason="undecided", detail=detail)
            for job in jobs
            if job.segments == self.whole
        ]


def window_levels(
    summary: ModelSummary, prior: Sequence[float]
) -> tuple[tuple[SegmentRange, ...], ...]:
    """Parts of a model worth measuring, most telling first: halves with the middle half, quarters,
    eighths, each balanced by `prior` (relative cost per segment); none twice, never the whole.

    Parts whose border bytes are not known are left out: they could not be fitted.
    """
    count = len(summary.segments)
    bounds = {parts: _balanced(prior, parts) for parts in (2, 4, 8)}
    halves = [*_parts(bounds[2])]
    if len(bounds[4]) == 5:
        halves.append(SegmentRange(start=bounds[4][1], stop=bounds[4][3]))
    levels: list[tuple[SegmentRange, ...]] = []
    seen = {(0, count)}
    for parts in (halves, _parts(bounds[4]), _parts(bounds[8])):
        new = []
        for part in parts:
            ends = (part.start, part.stop)
            if ends not in seen and all(border_bytes(summary, end) is not None for end in ends):
                seen.add(ends)
                new.append(part)
        if new:
            levels.append(tuple(new))
    return tuple(levels)


def _balanced(prior: Sequence[float], parts: int) -> list[int]:
    """Boundaries of at most `parts` non-empty runs of about equal cost."""
    total = sum(prior)
    before = [0.0]
    for cost in prior:
        before.append(before[-1] + cost)
    inner = {
        min(range(len(before)), key=lambda b: abs(before[b] - total * part / parts))
        for part in range(1, parts)
    }
    return sorted(inner | {0, len(prior)})


def _parts(bounds: Sequence[int]) -> list[SegmentRange]:
    return [SegmentRange(start=a, stop=b) for a, b in pairwise(bounds)]


def _fitted(
    summary: ModelSummary,
    windows: Sequence[Window],
    prior: Sequence[float],
    indivisible: Collection[Configuration],
) -> tuple[SegmentTimes, ...]:
    """Times of every configuration that was measured whole, in the order of `Configuration`.

    One without windows of its own gets its segments in the proportions of the fastest that has
    them: its share of a mixed plan would otherwise rest on the prior alone.
    """
    count = len(summary.segments)
    whole_s = {w.configuration: w.timing.median_s for w in windows if len(w.segments) == count}
    divided = {w.configuration for w in windows if len(w.segments) < count}
    times = {c: fit_segments(summary, windows, prior, c) for c in sorted(whole_s) if c in divided}
    for configuration in sorted(whole_s.keys() - times.keys()):
        alike = min(
            divided & times.keys(),
            key=lambda c: (c.instances != configuration.instances, whole_s[c], c),
            default=None,
        )
        shares = prior if alike is None else times[alike].segment_s
        times[configuration] = fit_segments(summary, windows, shares, configuration)
    return tuple(replace(times[c], is_divisible=c not in indivisible) for c in sorted(times))


def _precise(samples: Sequence[float]) -> bool:
    if len(samples) < _LEAST_SAMPLES:
        return False
    middle, low, high = median_interval(samples)
    return (high - low) / 2.0 <= _PRECISE_FRACTION * middle


def _groups(jobs: Sequence[_Job], size: int) -> list[list[_Job]]:
    return [list(jobs[start : start + size]) for start in range(0, len(jobs), size)]
