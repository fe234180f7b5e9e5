"""Whether a planned division may replace plain ONNX Runtime: right answers, and measurably faster.

Candidates are checked against the reference, then measured beside plain ONNX Runtime in rounds of
random order, the slower half dropping out each time (successive halving: Jamieson and Talwalkar,
Non-stochastic Best Arm Identification, AISTATS 2016). If a division is left, it is compared with
the best undivided candidate, which takes its place unless the division is faster beyond the noise.
What is left then is measured anew, with plain ONNX Runtime against itself as control: choosing the
best of several flatters it, so the samples that chose it do not judge it. Undecided or equal means
plain ONNX Runtime.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Protocol

from edge_agent.clock import precise_s
from edge_agent.devices import DeviceState
from edge_agent.errors import EdgeAgentError, ModelRefused, RunFailed, RuntimeUnavailable
from edge_agent.planning.explain import explain, interval_text, plain_candidate
from edge_agent.planning.score import NOT_WORTH_MEASURING, ProcessorRates
from edge_agent.plans import CandidatePlan, ExecutionPlan, Target
from edge_agent.profiles import HOST_UNIT, Configuration, LatencyProfile, RatioInterval, Rejection
from edge_agent.profiling.ratio import (
    LEAST_PAIRS,
    Run,
    compare,
    compare_with_control,
    interval_of,
    is_better,
)
from edge_agent.summaries import ModelSummary

MEASURED = 5
"""So many candidates are measured at most."""
_CHECKING_SHARE = 0.4
_HALVING_SHARE = 0.3
_HALVING_PAIRS = 24
_LEAST_HALVING_PAIRS = 3
_FINAL_PAIRS = 12
_SIMPLER_SHARE = 0.15
_EFFECT_SHARE = 0.2
_LEAST_FINAL_SHARE = 0.3
_PROMISING = 1.05
"""A gain like that is worth more time if it drowns in the noise,"""
_LONGER = 3.0
"""so many times as long."""
_REPEATS = 3
# Predictions that far off are rare enough, and a smaller gain than that cannot be told from noise.
_CLEARLY_SLOWER = 1.3
_LEAST_GAIN = 0.01
_REFUSALS = (RuntimeUnavailable, ModelRefused, RunFailed)


class PlanBench(Protocol):
    """Runs whole plans of one model on this device, one user at a time."""

    def check(self, plan: CandidatePlan) -> str | None:
        """What is wrong with the plan's outputs against the CPU reference; None if nothing is.

        Raises:
            RuntimeUnavailable, ModelRefused, RunFailed: the plan cannot be run.
        """
        ...

    def runner(self, plan: CandidatePlan) -> AbstractContextManager[Run]:
        """A compiled, warmed callable that runs the plan once and returns its seconds.

        With k instances, one call is one round of k requests at once, and the seconds are the
        round's. Raises: as `check`.
        """
        ...

    def parts(self, plan: CandidatePlan) -> tuple[float, ...]:
        """Seconds of each subgraph in the latest call of the plan's open runner."""
        ...

    def plain(self) -> AbstractContextManager[Run]:
        """As `runner`, for plain ONNX Runtime: the seconds are those per request."""
        ...

    def quiet(self) -> bool:
        """Whether nothing else worked on the device since the last call."""
        ...

    def grant(self) -> None:
        """Block until the agent allows the next slice of work."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was measured of the candidates, and which one may be used."""

    chosen: CandidatePlan | None
    """None means plain ONNX Runtime."""
    reason: str
    """Why, in one sentence."""
    ratio: RatioInterval | None
    """Plain over the last candidate, per request; None if none came to be measured."""
    control: RatioInterval | None
    measured_s: float | None
    """Median time of the last candidate: of one round, with several instances."""
    plain_s: float | None
    """Median time of one request on plain ONNX Runtime."""
    parts_s: tuple[float, ...]
    """Median time of each subgraph of the last candidate."""
    rejections: tuple[Rejection, ...]


def verify(
    candidates: Sequence[CandidatePlan],
    bench: PlanBench,
    *,
    budget_s: float,
    rng: random.Random,
    most_measured: int = MEASURED,
    disturbed_fraction: float = 0.0,
    clock_s: Run = precise_s,
) -> Verification:
    """Choose among `candidates` (best predicted first) by measurement, within about `budget_s`.

    At most `most_measured` (at least 1) are measured: the best by prediction, the best
    undivided one always among them, and the best undivided one of another unit than the
    processor if it is predicted to be nearly as good, which is taken the less strictly the more
    of the profile was made beside other work (`disturbed_fraction`); a division only if it is
    predicted to beat the best undivided one by 1 %. One that seems 5 % better and is not beyond
    the noise is measured anew, up to three times as long. Others take the place of those that
    give wrong answers, cannot be run or fail, as far as the time for checks reaches. A
    candidate is chosen only if it is better than plain ONNX Runtime beyond the noise of the
    measurement, a division only if it is also better than the best undivided candidate; every
    other one has a rejection.

    Raises:
        EdgeAgentError: plain ONNX Runtime does not run the model either.
    """
    trial = _Trial(
        bench=bench,
        rng=rng,
        clock_s=clock_s,
        budget_s=budget_s,
        disturbed_fraction=disturbed_fraction,
    )
    finalists = trial.accurate(candidates, most_measured)
    if not finalists:
        return trial.unmeasured("no candidate gave the right answers")
    with ExitStack() as stack:
        plain = stack.enter_context(bench.plain())
        runs = trial.opened(finalists, stack)
        best = trial.halved(runs, plain)
        if best is None:
            return trial.unmeasured("no candidate could be run")
        best = trial.simplest(best, runs)
        try:
            ratio, control = trial.judged(best, runs[best], plain, trial.left_s())
            if ratio.median > _PROMISING and not is_better(ratio, control):
                # It would be given up for want of samples: these are new ones, and more.
                longer_s = _LONGER * trial.left_s()
                ratio, control = trial.judged(best, runs[best], plain, longer_s)
        except RunFailed:
            if best not in trial.failed:
                raise
            return trial.unmeasured("the best candidate failed while it was measured")
    return trial.verdict(best, ratio, control)


def explained(
    verification: Verification,
    summary: ModelSummary,
    profile: LatencyProfile,
    *,
    target: Target,
    plain: Configuration,
    state: DeviceState,
    processor: ProcessorRates,
) -> ExecutionPlan:
    """The execution plan that follows from `verification`.

    `plain` is the configuration that describes plain ONNX Runtime on this device.
    """
    chosen = verification.chosen
    plain_s = profile.plain_s if verification.plain_s is None else verification.plain_s
    if chosen is None:
        return explain(
            summary,
            profile,
            plain_candidate(summary, plain, profile.plain_s),
            target=target,
            is_plain=True,
            reason=verification.reason,
            state=state,
            processor=processor,
            measured_s=plain_s,
            measured_parts_s=(plain_s,),
            plain_s=plain_s,
            rejections=verification.rejections,
        )
    return explain(
        summary,
        profile,
        chosen,
        target=target,
        is_plain=False,
        reason=verification.reason,
        state=state,
        processor=processor,
        measured_s=verification.measured_s,
        measured_parts_s=verification.parts_s,
        plain_s=plain_s,
        plain_over_plan=verification.ratio,
        control=verification.control,
        rejections=verification.rejections,
    )


@dataclass(slots=True, kw_only=True)
class _Trial:
    """The samples of one verification while it goes on, and the time that is left for it."""

    bench: PlanBench
    rng: random.Random
    clock_s: Run
    budget_s: float
    disturbed_fraction: float = 0.0
    rejections: list[Rejection] = field(default_factory=list)
    halving: dict[CandidatePlan, RatioInterval] = field(default_factory=dict)
    """Plain over each candidate, when it was measured last."""
    plain_s: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    parts_s: list[tuple[float, ...]] = field(default_factory=list)
    failed: set[CandidatePlan] = field(default_factory=set)
    start_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.start_s = self.clock_s()

    def elapsed_s(self) -> float:
        return self.clock_s() - self.start_s

    def reject(self, plan: CandidatePlan, reason: str, detail: str) -> None:
        self.rejections.append(Rejection(candidate=str(plan), reason=reason, detail=detail))

    def accurate(self, candidates: Sequence[CandidatePlan], most: int) -> list[CandidatePlan]:
        """At most `most` plans whose measurement may change the outcome and whose outputs are
        right, in order, as far as the time for checks reaches.

        After wrong ones, those that do not use what was wrong come first: else all the time would
        go to one unit that computes nothing right.
        """
        left = list(candidates)
        right: list[CandidatePlan] = []
        doubted: set[Configuration] = set()
        checked = 0
        while True:
            kept, rejections = shortlist(left, most, right, self.disturbed_fraction)
            unchecked = [plan for plan in kept if plan not in right]
            if not unchecked:
                break
            # A division opens more, which may take long on other units; it goes after what is sure.
            plan = min(unchecked, key=lambda p: (_uses(p, doubted), len(p.subgraphs) > 1))
            if (right or checked >= most) and self.elapsed_s() > _CHECKING_SHARE * self.budget_s:
                for late in unchecked:
                    detail = f"the {self.budget_s:.3g} s to verify were used up"
                    self.reject(late, "undecided", detail)
                break
            checked += 1
            if self._is_right(plan):
                right.append(plan)
                doubted -= {s.configuration for s in plan.subgraphs}
                continue
            left.remove(plan)
            doubted |= _suspects(plan)
            left.sort(key=lambda p: _uses(p, doubted))
        self.rejections += rejections
        return [plan for plan in candidates if plan in right]

    def _is_right(self, plan: CandidatePlan) -> bool:
        self.bench.grant()
        try:
            wrong = self.bench.check(plan)
        except _REFUSALS as error:
            self._reject_error(plan, error)
            return False
        if wrong is not None:
            self.reject(plan, "inaccurate", wrong)
        return wrong is None

    def opened(self, plans: Sequence[CandidatePlan], stack: ExitStack) -> dict[CandidatePlan, Run]:
        """The runners of `plans`, each giving seconds per request."""
        runs: dict[CandidatePlan, Run] = {}
        for plan in plans:
            self.bench.grant()
            try:
                run = stack.enter_context(self.bench.runner(plan))
            except _REFUSALS as error:
                self._reject_error(plan, error)
            else:
                runs[plan] = _per_request(run, plan.instances)
        return runs

    def halved(self, runs: Mapping[CandidatePlan, Run], plain: Run) -> CandidatePlan | None:
        """The best of `runs` against `plain`, the slower half dropping out after each level."""
        going = list(runs)
        levels = max((len(going) - 1).bit_length(), 1)
        level_s = _HALVING_SHARE * self.budget_s / levels
        while len(going) > 1:
            ratios = self._compared(going, runs, plain, level_s)
            self.halving |= ratios
            ranked = sorted(ratios, key=lambda plan: -ratios[plan].median)
            going = ranked[: (len(ranked) + 1) // 2]
            for plan in ranked[len(going) :]:
                detail = (
                    f"plain over this plan {interval_text(ratios[plan])}, over the best "
                    f"candidate {interval_text(ratios[ranked[0]])}"
                )
                self.reject(plan, "slower", detail)
        return going[0] if going else None

    def simplest(self, best: CandidatePlan, runs: Mapping[CandidatePlan, Run]) -> CandidatePlan:
        """`best`; or the best undivided candidate, if `best` is a division that is not measured
        faster beyond the noise: a few rounds among several do not tell."""
        undivided = [p for p in self.halving if len(p.subgraphs) == 1 and p not in self.failed]
        if len(best.subgraphs) == 1 or not undivided:
            return best
        whole = max(undivided, key=lambda plan: self.halving[plan].median)
        if self.halving[whole].high < self.halving[best].low:
            return best
        try:
            ratio = compare(
                runs[whole],
                runs[best],
                rng=self.rng,
                min_pairs=_FINAL_PAIRS,
                effect_share=_EFFECT_SHARE,
                budget_s=_SIMPLER_SHARE * self.budget_s,
                clock_s=self.clock_s,
                grant=self.bench.grant,
                quiet=self.bench.quiet,
            )
        except RunFailed:
            return best  # which of them it was shows when the best one is measured
        if is_better(ratio):
            return best
        self.rejections = [r for r in self.rejections if r.candidate != str(whole)]
        detail = f"not faster than undivided: {whole} over this plan {interval_text(ratio)}"
        self.reject(best, "slower" if ratio.high < 1.0 else "undecided", detail)
        return whole

    def _compared(
        self, plans: Sequence[CandidatePlan], runs: Mapping[CandidatePlan, Run], plain: Run,
        level_s: float,
    ) -> dict[CandidatePlan, RatioInterval]:  # fmt: skip
        """Plain over each plan, in rounds that run all of them; one that fails is left out."""
        until_s = self.elapsed_s() + level_s
        ratios: dict[CandidatePlan, list[float]] = {plan: [] for plan in plans}
        for index in range(_HALVING_PAIRS):
            if index >= _LEAST_HALVING_PAIRS and self.elapsed_s() >= until_s:
                break
            took_s = self._round(list(ratios), runs, plain)
            for plan in list(ratios):
                if plan in took_s:
                    ratios[plan].append(took_s[None] / took_s[plan])
                else:
                    del ratios[plan]
        return {plan: interval_of(taken) for plan, taken in ratios.items()}

    def _round(
        self, plans: Sequence[CandidatePlan], runs: Mapping[CandidatePlan, Run], plain: Run
    ) -> dict[CandidatePlan | None, float]:
        """Seconds of one run each (None is plain), repeated while other load disturbs it."""
        took_s: dict[CandidatePlan | None, float] = {}
        for _ in range(1 + _REPEATS):
            self.bench.grant()
            self.bench.quiet()
            for plan in self.rng.sample([None, *plans], len(plans) + 1):
                if plan is None:
                    took_s[None] = plain()
                elif plan not in self.failed:
                    try:
                        took_s[plan] = runs[plan]()
                    except RunFailed as error:
                        self._fail(plan, error)
                        took_s.pop(plan, None)
            if self.bench.quiet() or self.elapsed_s() >= self.budget_s:
                break
        return took_s

    def left_s(self) -> float:
        """How long the last one may be measured."""
        return max(self.budget_s - self.elapsed_s(), _LEAST_FINAL_SHARE * self.budget_s)

    def judged(
        self, plan: CandidatePlan, run: Run, plain: Run, budget_s: float
    ) -> tuple[RatioInterval, RatioInterval]:
        """(plain over plan, plain over itself), from samples of their own."""
        for samples in (self.rounds_s, self.parts_s, self.plain_s):
            samples.clear()

        def watched_plan() -> float:
            try:
                took_s = run()
            except RunFailed as error:
                self._fail(plan, error)
                raise
            self.rounds_s.append(took_s * plan.instances)
            self.parts_s.append(self.bench.parts(plan))
            return took_s

        def watched_plain() -> float:
            took_s = plain()
            self.plain_s.append(took_s)
            return took_s

        return compare_with_control(
            watched_plain,
            watched_plan,
            rng=self.rng,
            min_pairs=_FINAL_PAIRS,
            effect_share=_EFFECT_SHARE,
            budget_s=budget_s,
            clock_s=self.clock_s,
            grant=self.bench.grant,
            quiet=self.bench.quiet,
        )

    def verdict(
        self, plan: CandidatePlan, ratio: RatioInterval, control: RatioInterval
    ) -> Verification:
        """`plan` if it is better than plain beyond the noise, else plain."""
        evidence = f"plain over plan {interval_text(ratio)}; plain over itself "
        evidence += interval_text(control)
        better = is_better(ratio, control)
        if better:
            reason = f"measured faster than plain ONNX Runtime: {evidence}"
        elif ratio.high < 1.0 and ratio.pairs >= LEAST_PAIRS:
            reason = "the best candidate was measured slower than plain ONNX Runtime"
            self.reject(plan, "slower", evidence)
        else:
            reason = "no candidate was measured faster than plain ONNX Runtime beyond the noise"
            self.reject(plan, "undecided", evidence)
        return Verification(
            chosen=plan if better else None,
            reason=reason,
            ratio=ratio,
            control=control,
            measured_s=median(self.rounds_s),
            plain_s=median(self.plain_s),
            parts_s=tuple(median(part) for part in zip(*self.parts_s, strict=True)),
            rejections=tuple(self.rejections),
        )

    def unmeasured(self, reason: str) -> Verification:
        """Plain, because no candidate came to be measured."""
        return Verification(
            chosen=None,
            reason=reason,
            ratio=None,
            control=None,
            measured_s=None,
            plain_s=None,
            parts_s=(),
            rejections=tuple(self.rejections),
        )

    def _fail(self, plan: CandidatePlan, error: RunFailed) -> None:
        self._reject_error(plan, error)
        self.failed.add(plan)

    def _reject_error(self, plan: CandidatePlan, error: EdgeAgentError) -> None:
        self.reject(plan, "failed" if isinstance(error, RunFailed) else "refused", str(error))


def shortlist(
    candidates: Sequence[CandidatePlan],
    most: int,
    sure: Collection[CandidatePlan] = (),
    disturbed_fraction: float = 0.0,
) -> tuple[list[CandidatePlan], list[Rejection]]:
    """The candidates whose measurement may change the outcome, in order, and why no others; at
    most `most`, those in `sure` among them; `disturbed_fraction` as for `verify`."""
    undivided = [plan for plan in candidates if len(plan.subgraphs) == 1]
    wanted = [*sure, *undivided[:1]]
    if undivided:
        # Times beside other work are as much as twice as long, of some and not of others.
        limit_s = _CLEARLY_SLOWER * (1.0 + disturbed_fraction) * _per_request_s(candidates[0])
        elsewhere = (p for p in undivided if p.subgraphs[0].configuration.unit != HOST_UNIT)
        wanted += [p for p in islice(elsewhere, 1) if _per_request_s(p) <= limit_s]
    wanted = list(dict.fromkeys(wanted))[:most]
    kept: list[CandidatePlan] = []
    alike: set[tuple[Configuration, ...]] = set()
    rejections: list[Rejection] = []
    for plan in candidates:
        missing = sum(1 for p in wanted if p not in kept)
        doubt = _doubt(plan, candidates[0], undivided[0] if undivided else None)
        if plan in wanted:
            kept.append(plan)
        elif doubt is not None:
            rejections.append(doubt)
        elif _form(plan) in alike:
            detail = "a better division with other cuts runs in the same configurations"
            rejections.append(
                Rejection(candidate=str(plan), reason=NOT_WORTH_MEASURING, detail=detail)
            )
        elif len(kept) < most - missing:
            kept.append(plan)
            if any(c.unit != HOST_UNIT for c in _form(plan)):
                # Opening its parts may take long, and others like it would be measured alike.
                alike.add(_form(plan))
        else:
            detail = f"only the {most} best predictions are measured, its was "
            detail += f"{_per_request_s(plan) * 1e3:.3g} ms"
            rejections.append(Rejection(candidate=str(plan), reason="slower", detail=detail))
    return kept, rejections


def _form(plan: CandidatePlan) -> tuple[Configuration, ...]:
    return tuple(s.configuration for s in plan.subgraphs)


def _uses(plan: CandidatePlan, doubted: Set[Configuration]) -> bool:
    return not doubted.isdisjoint(_form(plan))


def _suspects(plan: CandidatePlan) -> set[Configuration]:
    """What of a plan that went wrong is likely to go wrong elsewhere: other units first."""
    used = {s.configuration for s in plan.subgraphs}
    return {c for c in used if c.unit != HOST_UNIT} or used


def _doubt(
    plan: CandidatePlan, best: CandidatePlan, undivided: CandidatePlan | None
) -> Rejection | None:
    """Why measuring `plan` cannot pay, by predictions."""
    own_s = _per_request_s(plan)
    if own_s > _CLEARLY_SLOWER * _per_request_s(best):
        against, reason = best, "slower"
    elif len(plan.subgraphs) > 1 and undivided is not None:
        if own_s <= (1.0 - _LEAST_GAIN) * _per_request_s(undivided):
            return None
        against, reason = undivided, NOT_WORTH_MEASURING
    else:
        return None
    against_s = _per_request_s(against)
    detail = f"predicted {own_s * 1e3:.3g} ms per request, {against} {against_s * 1e3:.3g} ms"
    return Rejection(candidate=str(plan), reason=reason, detail=detail)


def _per_request(run: Run, instances: int) -> Run:
    return run if instances == 1 else lambda: run() / instances


def _per_request_s(plan: CandidatePlan) -> float:
    return plan.predicted_s / plan.instances
