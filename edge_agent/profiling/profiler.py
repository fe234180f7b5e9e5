"""What to measure of a model in a given time, in which order, and when to stop.

First the whole model in every configuration worth measuring, interleaved with plain ONNX Runtime:
on the processor, then on other units, which may take long to open and to run. Where a unit refuses
segments, its longest runs without them take the place of the whole model. Then, for the
configurations that are not clearly slower, windows: halves, the middle half, quarters and eighths
of the model's cost. Few large windows come first, so that a budget that ends early costs detail
and nothing else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Protocol

from edge_agent.clock import precise_s
from edge_agent.devices import DeviceState, UnitId
from edge_agent.errors import EdgeAgentError, ModelRefused, RunFailed, RuntimeUnavailable
from edge_agent.planning.score import ProcessorRates, estimate_s, worth_measuring
from edge_agent.plans import Target
from edge_agent.profiles import (
    HOST_UNIT,
    Configuration,
    LatencyProfile,
    Placement,
    Rejection,
    SegmentTimes,
    Window,
)
from edge_agent.profiling.fit import allowed_runs, fit_all
from edge_agent.profiling.losers import clear_losers
from edge_agent.profiling.ratio import Run, median_interval, timing_of
from edge_agent.profiling.windows import window_levels
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary

# What a node costs beside its arithmetic, so that a run of reshapes is not expected to be free.
_NODE_S = 2e-6
# A unit may take this many times as long as plain ONNX Runtime for one run, an accelerator for the
# throughput more: measured, a software GPU takes 7 s where the processor takes 20 ms.
_PATIENCE = 10.0
_PIPELINE_PATIENCE = 8.0
_LEAST_PATIENCE_S = 0.05
_OPEN_AT_ONCE = 6
_SCREENING_ROUNDS = 3
_MOST_ROUNDS = 9
_LEAST_SAMPLES = 5
_PRECISE_FRACTION = 0.02
_REPEATS = 3
_WHOLE_SHARE = 0.45
_OTHER_UNITS_SHARE = 0.7
_UNDIVIDED_SHARE = 0.6
_LEAST_OPENING_SHARE = 0.2


class Unfit(Exception):
    """A configuration that can be opened and must not be used."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        """As in `Rejection`: slower or inaccurate."""
        self.detail = detail


class Bench(Protocol):
    """Runs parts of one model on this device, one user at a time."""

    def runner(
        self,
        segments: SegmentRange,
        configuration: Configuration,
        patience_s: float | None = None,
    ) -> AbstractContextManager[Run]:
        """A compiled, warmed callable that runs `segments` once and returns its seconds.

        With k instances, one call is one round of k runs at once, and the seconds are the round's.

        Raises, on opening and on each run:
            RuntimeUnavailable: the unit refuses the graph.
            ModelRefused: the part cannot be cut out or compiled.
            RunFailed: it was compiled and does not run.
            Unfit: it runs, and takes longer than `patience_s` or computes something else.
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
    target: Target,
    budget_s: float,
    rng: random.Random,
    device_key: str,
    state: DeviceState,
    processor: ProcessorRates,
    refused: Mapping[Configuration, frozenset[int]] = MappingProxyType({}),
    placements: tuple[Placement, ...] = (),
    wanted: Collection[UnitId] = (),
    clock_s: Run = precise_s,
) -> LatencyProfile:
    """Measure `summary`'s model in `configurations` within about `budget_s` seconds.

    `refused` holds the segments that a configuration does not run; the others are measured in runs
    as long as possible. Units in `wanted` are measured whether that can pay or not. The budget is
    kept to within the opening of one runner or one run, and the first configuration of each unit is
    measured in any case. A configuration that is not worth measuring, refused, failing, unfit,
    clearly slower or never reached has a rejection; all that were measured whole, or in one of
    those runs, have times.

    Raises:
        EdgeAgentError: plain ONNX Runtime does not run the model either.
    """
    prior = [
        estimate_s([s], state, processor) + _NODE_S * (s.stop - s.start) for s in summary.segments
    ]
    campaign = _Campaign(
        summary=summary,
        bench=bench,
        target=target,
        rng=rng,
        clock_s=clock_s,
        budget_s=budget_s,
        prior=prior,
        refused={c: frozenset(places) for c, places in refused.items() if places},
    )
    doubtful = [c for c in configurations if c.unit not in wanted]
    worth = worth_measuring(summary.segments, doubtful, state, processor)
    campaign.rejections += worth.rejections
    campaign.measure_whole(
        [c for c in configurations if c.unit in wanted or c in worth.configurations]
    )
    campaign.measure_windows()
    return LatencyProfile(
        model=summary.model,
        device_key=device_key,
        shapes=summary.shapes,
        times=campaign.fitted(),
        windows=campaign.windows(),
        plain_s=median(campaign.samples[_PLAIN]),
        profiling_s=campaign.elapsed_s(),
        rejections=tuple(campaign.rejections),
        disturbed_fraction=campaign.disturbed_runs / max(campaign.runs, 1),
        placements=placements,
    )


@dataclass(slots=True, kw_only=True)
class _Campaign:
    """The samples of one profile while it is being made, and the time that is left for it."""

    summary: ModelSummary
    bench: Bench
    target: Target
    rng: random.Random
    clock_s: Run
    budget_s: float
    prior: Sequence[float]
    """Relative cost of each segment."""
    refused: dict[Configuration, frozenset[int]]
    """Segments that a configuration does not run, where there are any."""
    samples: dict[_Job, list[float]] = field(default_factory=dict)
    rejections: list[Rejection] = field(default_factory=list)
    indivisible: set[Configuration] = field(default_factory=set)
    """Configurations in which a part of the model was refused."""
    unfit: set[Configuration] = field(default_factory=set)
    runs: int = 0
    disturbed_runs: int = 0
    """Those beside which others used the processor."""
    start_s: float = field(init=False)
    _first: dict[UnitId, Configuration] = field(default_factory=dict)
    """Of each unit, the configuration that must be measured."""
    _opening_s: dict[UnitId, list[float]] = field(default_factory=dict)
    """What opening the whole model takes, by unit."""
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

    def fitted(self) -> tuple[SegmentTimes, ...]:
        """Times of all configurations that were measured whole, or in a run as long as possible."""
        measured = {
            job.configuration for job in self.samples if job.configuration and self._is_top(job)
        }
        windows = [w for w in self.windows() if w.configuration in measured]
        return tuple(
            replace(t, is_divisible=not (c in self.indivisible or c.falls_back))
            for t in fit_all(self.summary, windows, self.prior, self.refused)
            for c in (t.configuration,)
        )

    def tops(self, configuration: Configuration) -> tuple[SegmentRange, ...]:
        """The whole model, or the longest runs that a configuration takes of it."""
        return allowed_runs(self.summary, self.refused.get(configuration, ()))

    def _is_top(self, job: _Job) -> bool:
        return job.configuration is not None and job.segments in self.tops(job.configuration)

    def measure_whole(self, configurations: Sequence[Configuration]) -> None:
        """Sample the whole model in each configuration, and plain beside every group of them.

        Those on the processor come first: other units are held to a multiple of plain's time.
        """
        on_host = [c for c in configurations if c.unit == HOST_UNIT]
        others = sorted(
            (c for c in configurations if c.unit != HOST_UNIT), key=lambda c: c.threads == 0
        )
        jobs = [job for c in on_host for job in self._whole_jobs(c)]
        is_divided = len(self.summary.segments) > 1
        share = _WHOLE_SHARE if is_divided else _UNDIVIDED_SHARE if others else 1.0
        groups = [[_PLAIN, *group] for group in _groups(jobs, _OPEN_AT_ONCE) or [[]]]
        self._measure_groups(groups, share * self.budget_s)
        by_unit: dict[UnitId, list[_Job]] = {}
        for configuration in others:
            by_unit.setdefault(configuration.unit, []).extend(self._whole_jobs(configuration))
        groups = [group for own in by_unit.values() for group in _groups(own, _OPEN_AT_ONCE)]
        share = _OTHER_UNITS_SHARE if is_divided else 1.0
        self._measure_groups(groups, share * self.budget_s)
        for slow, fastest in self._losers().items():
            self.rejections.append(self._slower(slow, fastest))

    def _whole_jobs(self, configuration: Configuration) -> list[_Job]:
        """The whole model, or the runs that a configuration takes of it, the costliest first."""
        tops = sorted(self.tops(configuration), key=lambda part: (-self._cost(part), part.start))
        if not tops:
            rejection = Rejection(
                candidate=str(_Job(segments=self.whole, configuration=configuration)),
                reason="refused",
                detail="it takes no part of the model that could be divided off",
            )
            self.rejections.append(rejection)
        return [_Job(segments=part, configuration=configuration) for part in tops]

    def _measure_groups(self, groups: Sequence[Sequence[_Job]], share_s: float) -> None:
        for index, group in enumerate(groups):
            if self.elapsed_s() >= share_s:
                self._reject_unreached(job for job in group if not self._is_owed(job))
                group = [job for job in group if self._is_owed(job)]
                if not group:
                    continue
            left_s = share_s - self.elapsed_s()
            until_s = self.elapsed_s() + left_s / (len(groups) - index)
            # Other units may take long for each run: those must not eat what windows need.
            self._sample_group(group, until_s, None if _PLAIN in group else until_s)

    def measure_windows(self) -> None:
        """Sample parts of the model in the configurations that are not clear losers.

        Those come first that have another one to be mixed with in a division.
        """
        levels = window_levels(self.summary, self.prior)
        groups = [
            group
            for configurations in self._windowed()
            for level in levels
            for group in _groups(
                [
                    _Job(segments=part, configuration=c)
                    for part in level
                    for c in configurations
                    if self._is_inside(part, c)
                ],
                _OPEN_AT_ONCE,
            )
        ]
        for index, group in enumerate(groups):
            left_s = self.budget_s - self.elapsed_s()
            fitting: list[_Job] = []
            for job in group:
                if job.configuration in self.indivisible:
                    continue
                expected_s = self._expected_s(job)
                if expected_s <= left_s:
                    fitting.append(job)
                    left_s -= expected_s
            if fitting:
                left_s = self.budget_s - self.elapsed_s()
                self._sample_group(fitting, self.elapsed_s() + left_s / (len(groups) - index))

    def _is_inside(self, part: SegmentRange, configuration: Configuration) -> bool:
        """Whether `part` is a true part of what a configuration takes in one run."""
        return any(
            top.start <= part.start and part.stop <= top.stop and part != top
            for top in self.tops(configuration)
        )

    def _windowed(self) -> tuple[list[Configuration], list[Configuration]]:
        """The configurations that are not clear losers: (mixable, alone), those on the processor's
        cores first, then the fastest first."""
        lost = {job.configuration for job in self._losers()}
        measured = {
            job.configuration
            for job in self.samples
            if job.configuration is not None and self._is_top(job)
        }
        survivors = sorted(
            (c.threads == 0, self._whole_s(c), c) for c in measured - lost if not c.falls_back
        )
        alike = Counter(configuration.instances for *_, configuration in survivors)
        has_accelerator = any(c.threads == 0 for *_, c in survivors) and len(survivors) > 1

        def is_mixable(configuration: Configuration) -> bool:
            return has_accelerator or alike[configuration.instances] > 1

        mixable = [c for *_, c in survivors if is_mixable(c)]
        return mixable, [c for *_, c in survivors if not is_mixable(c)]

    def _cost(self, part: SegmentRange) -> float:
        """The share of the whole model's cost that `part` has before any measurement."""
        total = sum(self.prior)
        return sum(self.prior[part.start : part.stop]) / total if total else 1.0

    def _whole_s(self, configuration: Configuration) -> float:
        """What the whole model takes, or would take at the rate of what was measured of it."""
        measured = [
            (median(self.samples[job]), self._cost(part))
            for part in self.tops(configuration)
            if (job := _Job(segments=part, configuration=configuration)) in self.samples
        ]
        return sum(took_s for took_s, _ in measured) / sum(share for _, share in measured)

    def _expected_s(self, job: _Job) -> float:
        """What opening and screening a window will take, by its share of the whole model."""
        assert job.segments is not None
        assert job.configuration is not None
        share = self._cost(job.segments)
        opening_s = median(self._opening_s[job.configuration.unit])
        opening_s *= max(share, _LEAST_OPENING_SHARE)
        return opening_s + _SCREENING_ROUNDS * share * self._whole_s(job.configuration)

    def _sample_group(
        self, jobs: Sequence[_Job], until_s: float, screening_until_s: float | None = None
    ) -> None:
        """Open all `jobs`, then run them in rounds of random order until they are precise.

        The screening rounds are made until `screening_until_s`, by default as long as the whole
        budget allows; after them, those that are clear losers stop, and the others go on until
        `until_s`.
        """
        if screening_until_s is None:
            screening_until_s = self.budget_s
        with ExitStack() as stack:
            runs = self._opened(jobs, stack, screening_until_s)
            for rounds in range(_MOST_ROUNDS):
                end_s = screening_until_s if rounds < _SCREENING_ROUNDS else until_s
                going = self._unfinished(runs, rounds)
                if not going or (rounds and self.elapsed_s() >= end_s):
                    break
                for job in self.rng.sample(going, len(going)):
                    if job in runs and (self.elapsed_s() < self.budget_s or self._is_needed(job)):
                        self._sample(job, runs)
        self._settle_disturbed(runs)
        self._reject_unreached(job for job in runs if job not in self.samples)

    def _is_needed(self, job: _Job) -> bool:
        """Whether `job` must have a sample even beyond the budget: the whole model on the
        processor, where no run takes long, and what must be opened as well."""
        if job.configuration is not None and job.configuration.unit == HOST_UNIT:
            return job not in self.samples and self._is_top(job)
        return self._is_owed(job)

    def _is_owed(self, job: _Job) -> bool:
        """Whether `job` must be measured however little time is left: plain, and what the first
        configuration of each unit takes of the model, else nothing would be known of the unit."""
        if job in self.samples or job.configuration is None:
            return job not in self.samples
        first = self._first.setdefault(job.configuration.unit, job.configuration)
        return self._is_top(job) and first == job.configuration

    def _opened(self, jobs: Sequence[_Job], stack: ExitStack, until_s: float) -> dict[_Job, Run]:
        """The runners of `jobs`: the first one, and others as long as it is before `until_s`."""
        runs: dict[_Job, Run] = {}
        for job in jobs:
            if job.configuration in self.indivisible | self.unfit:
                continue
            if runs and self.elapsed_s() >= until_s and not self._is_owed(job):
                self._reject_unreached([job])
                continue
            self.bench.progress(min(self.elapsed_s() / self.budget_s, 1.0), str(job))
            self.bench.grant()
            before_s = self.clock_s()
            is_top = self._is_top(job)
            try:
                runs[job] = stack.enter_context(self._context(job))
            except (RuntimeUnavailable, ModelRefused, RunFailed) as error:
                self._reject_refused(job, error)
            except Unfit as unfit:
                self._reject_unfit(job, unfit)
            if job.segments is not None and job.configuration is not None and is_top:
                took_s = self.clock_s() - before_s
                share = max(self._cost(job.segments), _LEAST_OPENING_SHARE)
                self._opening_s.setdefault(job.configuration.unit, []).append(took_s / share)
        return {job: run for job, run in runs.items() if job.configuration not in self.unfit}

    def _context(self, job: _Job) -> AbstractContextManager[Run]:
        if job.segments is None or job.configuration is None:
            return self.bench.plain()
        return self.bench.runner(job.segments, job.configuration, self._patience_s(job))

    def _patience_s(self, job: _Job) -> float | None:
        """How long one run may take; None on the processor, as long as it likes."""
        if job.configuration is None or job.configuration.unit == HOST_UNIT:
            return None
        is_beside = self.target is Target.THROUGHPUT and job.configuration.threads == 0
        factor = _PATIENCE * (_PIPELINE_PATIENCE if is_beside else 1.0)
        return max(factor * median(self.samples[_PLAIN]), _LEAST_PATIENCE_S)

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
        except (RuntimeUnavailable, ModelRefused, RunFailed) as error:
            self._reject_refused(job, error)
            self._forget([job])
            del runs[job]
        except Unfit as unfit:
            self._reject_unfit(job, unfit)
            for other in [j for j in runs if j == job or j.configuration in self.unfit]:
                del runs[other]

    def _settle_disturbed(self, jobs: Iterable[_Job]) -> None:
        """Where no sample was undisturbed, the least disturbed one is better than none."""
        for job in jobs:
            if job in self._disturbed and job not in self.samples:
                self.samples[job] = [min(self._disturbed[job])]

    def _losers(self) -> dict[_Job, _Job]:
        """Clear losers on the whole model, each with the one that it lost to."""
        least_s = {
            job.configuration: min(samples)
            for job, samples in self.samples.items()
            if job.configuration is not None and job.segments == self.whole
        }
        lost = clear_losers(least_s, self.target)
        return {self._whole_job(slow): self._whole_job(fast) for slow, fast in lost.items()}

    def _whole_job(self, configuration: Configuration) -> _Job:
        return _Job(segments=self.whole, configuration=configuration)

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
        if job.segments is None or job.configuration is None:
            raise error
        reason = "failed" if isinstance(error, RunFailed) else "refused"
        self.rejections.append(Rejection(candidate=str(job), reason=reason, detail=str(error)))
        if not self._is_top(job):
            self.indivisible.add(job.configuration)
        elif job.segments != self.whole:
            places = frozenset(range(job.segments.start, job.segments.stop))
            self.refused[job.configuration] |= places

    def _reject_unfit(self, job: _Job, unfit: Unfit) -> None:
        assert job.configuration is not None
        rejection = Rejection(candidate=str(job), reason=unfit.reason, detail=unfit.detail)
        self.rejections.append(rejection)
        if self._is_top(job):
            self.unfit.add(job.configuration)
            self._forget([j for j in self.samples if j.configuration == job.configuration])
        else:
            self.indivisible.add(job.configuration)
            self._forget([job])

    def _forget(self, jobs: Iterable[_Job]) -> None:
        for job in jobs:
            self.samples.pop(job, None)

    def _reject_unreached(self, jobs: Iterable[_Job]) -> None:
        detail = f"the {self.budget_s:.3g} s for profiling were used up before it was measured"
        self.rejections += [
            Rejection(candidate=str(job), reason="undecided", detail=detail)
            for job in jobs
            if self._is_top(job)
        ]


def _precise(samples: Sequence[float]) -> bool:
    if len(samples) < _LEAST_SAMPLES:
        return False
    middle, low, high = median_interval(samples)
    return (high - low) / 2.0 <= _PRECISE_FRACTION * middle


def _groups(jobs: Sequence[_Job], size: int) -> list[list[_Job]]:
    return [list(jobs[start : start + size]) for start in range(0, len(jobs), size)]
