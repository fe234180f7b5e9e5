"""Planning again while something is deployed: a change must be worth what it costs.

A change is made when the gain is beyond what the predictions may be off, and pays for itself: in
`horizon_s` it saves more time than it takes to prepare. What is deployed and illegal by now (a
device is gone, a budget shrank) is replaced whatever that costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge_agent.distributions import Distribution, Infeasible, PlacedArm, Route
from edge_agent.planning.changes import Change, change
from edge_agent.planning.legality import objections
from edge_agent.planning.metrics import Computing, evaluate, legs
from edge_agent.planning.planner import EFFORT, plan
from edge_agent.planning.shares import best_shares
from edge_agent.plans import Target
from edge_agent.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanPolicy:
    """How readily a deployed distribution is replaced."""

    horizon_s: float = 60.0
    """For how long the present state is expected to last."""
    compile_s: float = 1.0
    """What compiling one subgraph takes."""
    least_gain: float = 0.02
    """A smaller gain is not worth a change, however certain it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """What to do, and why."""

    distribution: Distribution
    """What should be deployed from now on; what is deployed, if nothing is to change."""
    is_change: bool
    gain: float
    """Share of the target's cost that the best distribution saves against the deployed one; 1 if
    that cannot go on at all."""
    noise: float
    """Share by which that gain may be off."""
    change: Change
    """What going to the best distribution takes."""
    reason: str


def replan(
    problem: Problem,
    target: Target,
    previous: Sequence[Route],
    policy: ReplanPolicy | None = None,
    effort: float = EFFORT,
) -> Replanned | Infeasible:
    """The distribution to go on with, `previous` being deployed.

    Of what can be had without sending or compiling anything (other shares for the deployed
    routes), the best is what the new one is compared with.
    """
    policy = policy or ReplanPolicy()
    best = plan(problem, target, effort)
    deployed = _served(problem, previous)
    broken = objections(problem, deployed)
    if isinstance(best, Infeasible):
        if broken:
            return best
        kept = _kept(problem, target, deployed, bound=None)
        reason = f"nothing else was found: {best.reason}"
        nothing = change(problem, previous, previous, compile_s=policy.compile_s)
        return Replanned(
            distribution=kept,
            is_change=tuple(kept.routes) != tuple(previous),
            gain=0.0,
            noise=0.0,
            change=nothing,
            reason=reason,
        )
    cost = change(problem, previous, best.routes, compile_s=policy.compile_s)
    if broken:
        return Replanned(
            distribution=best,
            is_change=True,
            gain=1.0,
            noise=0.0,
            change=cost,
            reason=f"what is deployed cannot go on: {broken[0]}",
        )
    kept = _kept(problem, target, deployed, bound=best.bound)
    return _compared(problem, target, previous, kept, best, cost, policy)


def _compared(
    problem: Problem,
    target: Target,
    previous: Sequence[Route],
    kept: Distribution,
    best: Distribution,
    cost: Change,
    policy: ReplanPolicy,
) -> Replanned:
    before, after = kept.metrics.cost(target), best.metrics.cost(target)
    gain = 1.0 - after / before if before > 0.0 else 0.0
    noise = _noise(problem, kept.routes, best.routes)
    least = max(noise, policy.least_gain)
    is_reshared = tuple(kept.routes) != tuple(previous)
    stays = f"deployed {before:.4g}, best {after:.4g}: gain {gain:.1%}"
    if gain <= least:
        reason = f"{stays} is within {least:.1%}, by which predictions may be off"
        is_change = False
    elif gain * policy.horizon_s <= cost.seconds:
        saved_s = gain * policy.horizon_s
        reason = (
            f"{stays} saves {saved_s:.3g} s in {policy.horizon_s:g} s, and the change takes "
            f"{cost.seconds:.3g} s"
        )
        is_change = False
    else:
        reason = f"{stays}, more than {least:.1%}, by which predictions may be off"
        is_change = True
    if not is_change and is_reshared:
        reason += "; the deployed routes get other shares"
    return Replanned(
        distribution=best if is_change else kept,
        is_change=is_change or is_reshared,
        gain=gain,
        noise=noise,
        change=cost,
        reason=reason,
    )


def _served(problem: Problem, previous: Sequence[Route]) -> Sequence[Route]:
    """The deployed routes, with the shares of most throughput where theirs alone are too slow."""
    others = tuple(bound for bound in problem.bounds if bound.target is not Target.THROUGHPUT)
    if not objections(problem, previous) or objections(replace(problem, bounds=others), previous):
        return previous
    return best_shares(problem, Target.THROUGHPUT, previous)


def _kept(
    problem: Problem, target: Target, previous: Sequence[Route], bound: float | None
) -> Distribution:
    """The deployed routes, with the shares that are best now."""
    routes = best_shares(problem, target, previous)
    metrics = evaluate(problem, routes)
    if bound is None:
        bound = float("inf") if target is Target.THROUGHPUT else 0.0
    return Distribution(target=target, routes=routes, metrics=metrics, bound=bound)


def _noise(problem: Problem, before: Sequence[Route], after: Sequence[Route]) -> float:
    """By which share the ratio of the two may be off: the errors of what they have not in common.

    What runs in both is off in both alike.
    """
    first, second = _errors(problem, before), _errors(problem, after)
    alone = set(first) ^ set(second)
    errors = {**first, **second}
    total_s = max(_seconds(problem, before), _seconds(problem, after))
    return sum(errors[key] for key in alone) / total_s if total_s else 0.0


_Run = tuple[object, ...]


def _errors(problem: Problem, routes: Sequence[Route]) -> dict[_Run, float]:
    """Seconds by which each subgraph may be off, times the share of its route."""
    found: dict[_Run, float] = {}
    for route in routes:
        for leg in legs(problem, route):
            if isinstance(leg, Computing):
                branches = leg.what.branches if isinstance(leg.what, PlacedArm) else ()
                key = (leg.device, leg.what.configuration, leg.segments, branches)
                found[key] = found.get(key, 0.0) + leg.error_s * route.share
    return found


def _seconds(problem: Problem, routes: Sequence[Route]) -> float:
    return sum(leg.took_s * route.share for route in routes for leg in legs(problem, route))
