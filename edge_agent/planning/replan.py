"""Planning again while something is deployed: a change must be worth what it costs.

A change is made when the gain is beyond what the predictions may be off, and pays for itself in
`horizon_s`, for which the present state is expected to last. What is deployed and illegal by now (a
device is gone, a budget shrank) is replaced whatever that costs.

**What the predictions may be off.** Times are measured or estimated, and are off by the error of
their profiles; energies follow from times, and are off by as much of what each run draws. Memory
and bytes are counted, and not off at all.

**What pays** is judged in the unit of the target:

- latency and throughput: the gain is a share of the time that requests take. If one request
  follows another, it saves `gain * horizon_s` seconds; the change must take less than that.
- bytes and energy: each request saves some from when the change is ready until the horizon ends:
  in `horizon_s - seconds`. That times the requests in it must be more than what the change itself
  sends, or draws. As many requests come as a bound on the throughput asks for. Without one it is
  not known how many do, but no more than what is deployed can serve: a change that does not pay
  at that rate pays at none.
- memory: what is sent and compiled is in no unit of memory, so that the gain alone decides; only
  must the change be ready before the horizon ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge_agent.distributions import Distribution, Infeasible, PlacedArm, Route
from edge_agent.planning.amounts import CLOSE
from edge_agent.planning.changes import Change, change
from edge_agent.planning.legality import objections
from edge_agent.planning.metrics import Computing, evaluate, legs, route_joules, times_of
from edge_agent.planning.planner import EFFORT, plan
from edge_agent.planning.shares import best_shares
from edge_agent.planning.short import bytes_text, number_text, rate_text, value_text
from edge_agent.plans import Target
from edge_agent.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanPolicy:
    """How readily a deployed distribution is replaced."""

    horizon_s: float = 60.0
    """For how long the present state is expected to last; a change must pay for itself in it."""
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
    """Share by which that gain may be off; 0 of memory and bytes, which are counted."""
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
    gain = _gain(target, kept, best)
    noise = _noise(problem, target, kept.routes, best.routes)
    is_reshared = tuple(kept.routes) != tuple(previous)
    was, could_be = (value_text(target, d.metrics.value(target)) for d in (kept, best))
    told = f"deployed {was}, best {could_be}: gain {gain:.1%}"
    least = f"{policy.least_gain:.1%}, the least that is worth a change"
    if noise > policy.least_gain:
        least = f"{noise:.1%}, by which predictions may be off"
    if gain <= max(noise, policy.least_gain):
        is_change, reason = False, f"{told} is within {least}"
    else:
        is_change, balance = _balance(problem, target, kept, best, gain, cost, policy)
        reason = f"{told}, more than {least}; it {balance}" if is_change else f"{told} {balance}"
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


def _gain(target: Target, kept: Distribution, best: Distribution) -> float:
    """Share of the cost that the best saves."""
    before, after = kept.metrics.cost(target), best.metrics.cost(target)
    gain = 1.0 - after / before if before > 0.0 else 0.0
    return gain if abs(gain) > CLOSE else 0.0


def _balance(
    problem: Problem,
    target: Target,
    kept: Distribution,
    best: Distribution,
    gain: float,
    cost: Change,
    policy: ReplanPolicy,
) -> tuple[bool, str]:
    """Whether a change pays for itself in the horizon, and the words for it: see the module."""
    horizon_s = policy.horizon_s
    in_the_horizon = f"in {horizon_s:g} s"
    if target in (Target.LATENCY, Target.THROUGHPUT):
        saved_s = gain * horizon_s
        return saved_s > cost.seconds, (
            f"saves {saved_s:.3g} s {in_the_horizon}, and the change takes {cost.seconds:.3g} s"
        )
    left_s = horizon_s - cost.seconds
    if left_s <= 0.0:
        return False, f"saves nothing {in_the_horizon}: the change takes {cost.seconds:.3g} s"
    if target is Target.MEMORY:
        return True, "decides alone: what the change sends and compiles is no memory"
    return _balance_at_rate(problem, target, kept, best, cost, left_s)


def _balance_at_rate(
    problem: Problem,
    target: Target,
    kept: Distribution,
    best: Distribution,
    cost: Change,
    left_s: float,
) -> tuple[bool, str]:
    """The same of bytes or energy, which every request saves in the seconds that are left."""
    asked_per_s = problem.bound(Target.THROUGHPUT)
    per_s = asked_per_s or kept.metrics.throughput_per_s
    at_rate = f"at {'' if asked_per_s else 'most '}{rate_text(per_s)} requests per second"
    per_request = kept.metrics.cost(target) - best.metrics.cost(target)
    saved, sent = per_request * per_s * left_s, float(sum(size for _, size in cost.bytes_to_send))
    is_energy = target is Target.ENERGY
    spent = cost.joules if is_energy else sent
    gives, takes = (_joules_text(x) if is_energy else bytes_text(x) for x in (saved, spent))
    return saved > spent, (
        f"saves {gives} in the {left_s:.3g} s after the change, {at_rate}, and the change "
        f"{'draws' if is_energy else 'sends'} {takes}"
    )


def _joules_text(joules: float) -> str:
    return f"{number_text(joules, 3)} J (modelled)"


def _served(problem: Problem, previous: Sequence[Route]) -> Sequence[Route]:
    """The deployed routes, with the shares of most throughput where theirs alone are too slow."""
    others = tuple(bound for bound in problem.bounds if bound.target is not Target.THROUGHPUT)
    if not objections(problem, previous) or objections(replace(problem, bounds=others), previous):
        return previous
    return best_shares(problem, Target.THROUGHPUT, previous)


def _kept(
    problem: Problem, target: Target, previous: Sequence[Route], bound: float | None
) -> Distribution:
    """The deployed routes, with the shares that are best now; their own if none are better but for
    rounding."""
    routes, metrics = tuple(previous), evaluate(problem, previous)
    reshared = best_shares(problem, target, previous)
    then = evaluate(problem, reshared)
    if then.cost(target) < metrics.cost(target) * (1.0 - CLOSE):
        routes, metrics = reshared, then
    if bound is None:
        bound = float("inf") if target is Target.THROUGHPUT else 0.0
    return Distribution(target=target, routes=routes, metrics=metrics, bound=bound)


def _noise(
    problem: Problem, target: Target, before: Sequence[Route], after: Sequence[Route]
) -> float:
    """By which share the ratio of the two may be off: the errors of what they have not in common.

    What runs in both is off in both alike. What is counted, not measured, is not off.
    """
    if target in (Target.MEMORY, Target.BYTES):
        return 0.0
    first, second = (_errors(problem, target, routes) for routes in (before, after))
    alone = set(first) ^ set(second)
    errors = {**first, **second}
    total = max(_total(problem, target, routes) for routes in (before, after))
    return sum(errors[key] for key in alone) / total if total else 0.0


_Run = tuple[object, ...]


def _errors(problem: Problem, target: Target, routes: Sequence[Route]) -> dict[_Run, float]:
    """Seconds by which each subgraph may be off, times the share of its route; of the energy,
    joules."""
    found: dict[_Run, float] = {}
    for route in routes:
        for leg in legs(problem, route):
            if isinstance(leg, Computing):
                branches = leg.what.branches if isinstance(leg.what, PlacedArm) else ()
                key = (leg.device, leg.what.configuration, leg.segments, branches)
                off = _joules_off(problem, leg) if target is Target.ENERGY else leg.error_s
                found[key] = found.get(key, 0.0) + off * route.share
    return found


def _joules_off(problem: Problem, leg: Computing) -> float:
    error = times_of(problem, leg.device, leg.what.configuration).error_fraction
    return route_joules(problem, [leg]) * error


def _total(problem: Problem, target: Target, routes: Sequence[Route]) -> float:
    """Seconds of all that happens to a request, one after the other; of the energy, joules."""
    found = [(route.share, legs(problem, route)) for route in routes]
    if target is Target.ENERGY:
        return sum(share * route_joules(problem, walked) for share, walked in found)
    return sum(share * leg.took_s for share, walked in found for leg in walked)
