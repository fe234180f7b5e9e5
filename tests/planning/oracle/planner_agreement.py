"""Holds the planner's answers against brute force: legal, priced right, bounded right, and good."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from edge_agent.distributions import Distribution, Infeasible, Metrics
from edge_agent.planning import planner
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.planning.oracle.brute_force import Optimum, optima
from tests.planning.oracle.legality import budgets, faults
from tests.planning.oracle.prices import pool_of, price
from tests.planning.oracle.problems_made import small_problem

CLOSE = 1e-6
"""Relative; the oracles solve to within this."""
WORST_GAP = 0.05
MEAN_GAP = 0.02
EXACT = "exact"
ADDITIVE = (Target.LATENCY, Target.ENERGY, Target.BYTES)


@dataclass(slots=True)
class Tally:
    """What came of many comparisons."""

    disagreements: list[str] = field(default_factory=list)
    """Where the planner is wrong, whatever its quality."""
    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """How much worse than the best, by kind of problem; infinite where it found none."""
    compared: int = 0
    undecided: int = 0
    """Where rounding decides whether a bound is kept to."""

    def problems(self) -> Iterator[str]:
        """What is not good enough, in words."""
        yield from self.disagreements
        for kind, gaps in sorted(self.gaps.items()):
            worst = max(gaps)
            mean = sum(gaps) / len(gaps)
            if kind.startswith(EXACT):
                if worst > CLOSE:
                    yield f"{kind}: a gap of {worst:.3g}, there should be none"
            elif worst > WORST_GAP or mean > MEAN_GAP:
                yield f"{kind}: gaps of {mean:.3g} on average, {worst:.3g} at worst"


def small_problems_from(seed: int, count: int) -> Iterator[Problem]:
    """The problems of a seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield small_problem(rng)


def compare(problems: Iterable[Problem], *, twice: bool = False) -> Tally:
    """Plan each problem for every target, and hold the answers against brute force; `twice`, also
    against a second answer to an equal problem."""
    tally = Tally()
    for number, problem in enumerate(problems):
        best, is_close = optima(problem)
        for target in Target:
            answer = planner.plan(problem, target)
            if twice and planner.plan(copy.deepcopy(problem), target) != answer:
                tally.disagreements.append(f"problem {number}, {target}: two different answers")
            if is_close or _falls_short(problem, best[target]):
                tally.undecided += 1
                continue
            tally.compared += 1
            for text in disagreements(problem, target, answer, best[target]):
                tally.disagreements.append(f"problem {number}, {target}: {text}")
            gap = gap_of(answer, best[target])
            if gap is not None:
                tally.gaps[kind_of(problem, target)].append(gap)
    return tally


def _falls_short(problem: Problem, best: Optimum | None) -> bool:
    """Whether the oracle's solver kept to the rate only within its tolerance: where times and
    energies differ by many orders, what it gained so may be much."""
    rate = problem.bound(Target.THROUGHPUT)
    if best is None or rate is None:
        return False
    return price(problem, best.routes).throughput_per_s < rate * (1.0 - 1e-12)


def kind_of(problem: Problem, target: Target) -> str:
    """Which problems must be solved exactly, and what makes the others hard."""
    made_hard = [
        name
        for name, is_so in (
            ("mixtures", target not in (*ADDITIVE, Target.MEMORY) or _has_rate(problem)),
            ("bounds", any(b.target in ADDITIVE for b in problem.bounds)),
            ("memory", target is Target.MEMORY or _may_bind(problem)),
            ("branches", problem.with_branches and bool(problem.summary.forks)),
        )
        if is_so
    ]
    return f"{target} with {' and '.join(made_hard)}" if made_hard else f"{EXACT} {target}"


def _has_rate(problem: Problem) -> bool:
    return problem.bound(Target.THROUGHPUT) is not None


def _may_bind(problem: Problem) -> bool:
    """Whether there is a memory that does not hold everything at once."""
    parts = problem.summary.segments
    limits = budgets(problem)
    for device in problem.devices:
        most = max((t.configuration.instances for t in device.times), default=1)
        need = sum(part.constant_bytes + most * part.working_bytes for part in parts)
        pools = {pool_of(problem, device.id, t.configuration.unit) for t in device.times}
        if any(need > limits[pool] for pool in pools):
            return True
    return False


def gap_of(answer: Distribution | Infeasible, best: Optimum | None) -> float | None:
    """How much worse an answer is than the best, as a share of that; None if there is none."""
    if best is None:
        return None
    if isinstance(answer, Infeasible):
        return float("inf")
    target = answer.target
    got, want = answer.metrics.value(target), best.value
    if target is Target.THROUGHPUT:
        got, want = 1.0 / got, 1.0 / want
    if got <= want * (1 + CLOSE):
        return 0.0
    return got / want - 1.0 if want > 0 else float("inf")


def disagreements(
    problem: Problem, target: Target, answer: Distribution | Infeasible, best: Optimum | None
) -> Iterator[str]:
    """What is wrong with an answer, beside how good it is."""
    if isinstance(answer, Infeasible):
        if answer.target is not target or not answer.reason:
            yield f"no reason, or another target: {answer}"
        if answer.is_certain and best is not None:
            yield f"said to be infeasible ({answer.reason}), but there is {best}"
        return
    if answer.target is not target:
        yield f"made for {answer.target}"
    for fault in faults(problem, target, answer.routes):
        yield f"not legal: {fault}"
        return
    if [r.share for r in answer.routes] != sorted((r.share for r in answer.routes), reverse=True):
        yield "the greatest share is not first"
    yield from _differences(answer.metrics, price(problem, answer.routes))
    if best is None:
        yield f"a legal plan where brute force finds none: {answer}"
        return
    value, bound, is_most = answer.metrics.value(target), answer.bound, target is Target.THROUGHPUT
    if is_most:
        value, bound = -value, -bound
    optimum = -best.value if is_most else best.value
    slack = CLOSE * abs(optimum) if abs(optimum) != float("inf") else 0.0
    if bound > optimum + slack:
        yield f"bound {answer.bound!r} is beyond the optimum {best.value!r}: {best.routes}"
    if value < optimum - slack:
        yield f"{answer.metrics.value(target)!r} is better than the optimum {best.value!r}"
    if answer.is_optimal and value > optimum + slack:
        yield f"called optimal, but {best.value!r} is better than {answer.metrics.value(target)!r}"


def _differences(got: Metrics, want: Metrics) -> Iterator[str]:
    # Of two routes that are as slow, either may say how far off that is.
    want = replace(want, latency_error_s=got.latency_error_s)
    for target in Target:
        mine, theirs = got.value(target), want.value(target)
        if mine != theirs and not abs(mine - theirs) <= 1e-9 * abs(theirs):
            yield f"{target} is {mine!r}, should be {theirs!r}"
