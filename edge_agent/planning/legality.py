"""Whether routes may be deployed: everything that a problem asks of a distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedArm, PlacedFork, PlacedSubgraph, Route, Step
from edge_agent.planning.cost import is_divisible
from edge_agent.planning.metrics import (
    Sending,
    evaluate,
    legs,
    memory_bytes,
    resource_of,
    times_of,
    unit_of,
)
from edge_agent.planning.present import is_banned, is_spared, pool_bytes
from edge_agent.planning.short import apart_texts
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.subgraphs import SegmentRange

_ROOM = 1.0 + 1e-8
"""Sums of floats may be off by so much."""


def objections(problem: Problem, routes: Sequence[Route]) -> tuple[str, ...]:
    """Why these routes, with their shares, must not be deployed; none if they may be.

    Devices, units and latency profiles that are gone, segments that are refused, pins, bans,
    batteries, branches at once, links, sizes of messages, budgets and bounds; and forks and shares
    that are none. The home of a fork is judged as a device that works, also where it runs no arm.
    """
    if not routes:
        return ("there are no routes",)
    found = [text for route in routes for text in _of_route(problem, route)]
    shares = [route.share for route in routes]
    if abs(sum(shares) - 1.0) > 1e-6 or min(shares) < 0.0:
        found.append(f"got shares {shares}, want a sum of 1, none below 0")
    if not found:
        found = [*_of_memory(problem, routes), *_of_bounds(problem, routes)]
    if problem.most_routes is not None and len(routes) > problem.most_routes:
        found.append(f"{len(routes)} routes, at most {problem.most_routes} are asked for")
    return tuple(dict.fromkeys(found))


def _of_route(problem: Problem, route: Route) -> Iterator[str]:
    known = {device.id for device in problem.devices}
    forks = tuple(route.forks())
    if forks and not problem.with_branches:
        yield "branches run at once, which they must not"
    gone = [device for device in _devices(route) if device not in known]
    if gone:
        yield f"device {gone[0]} is gone"
        return
    objected = [text for fork in forks for text in _of_fork(problem, fork)]
    objected = objected or [text for step in route.steps for text in _of_step(problem, route, step)]
    yield from objected
    if objected:
        return
    try:
        found = legs(problem, route)
    except ValueError as error:
        yield str(error)
        return
    for leg in found:
        if isinstance(leg, Sending):
            most = problem.device(leg.link.target).most_crossing_bytes
            if most is not None and leg.size_bytes > most:
                limit, size = apart_texts(Target.BYTES, most, leg.size_bytes)
                yield f"{leg.link.target} takes {limit} at once, {size} would cross"


def _devices(route: Route) -> Iterator[DeviceId]:
    yield from (fork.home for fork in route.forks())
    yield from (part.device for part in route.parts())


def _of_fork(problem: Problem, step: PlacedFork) -> Iterator[str]:
    """Whether it is one of the model's, each of its branches in one arm of several."""
    forks = problem.summary.forks
    if step.fork >= len(forks) or step.segments != forks[step.fork].segments:
        yield f"the model has no fork {step.fork} of segments {step.segments}"
        return
    done = sorted(branch for arm in step.arms for branch in arm.branches)
    wanted = list(range(len(forks[step.fork].branches)))
    if done != wanted or len(step.arms) < 2:
        arms = f"{len(step.arms)} arm{'s' if len(step.arms) != 1 else ''}"
        yield (
            f"a fork runs branches {', '.join(map(str, done))} in {arms}, want "
            f"{', '.join(map(str, wanted))} in two or more"
        )
    # Another device is sent what all of its branches need at once.
    places = [
        resource_of(arm.device, arm.configuration) if arm.device == step.home else arm.device
        for arm in step.arms
    ]
    if len(set(places)) < len(places):
        yield "two arms of a fork are in one place"


def _of_step(problem: Problem, route: Route, step: Step) -> Iterator[str]:
    match step:
        case PlacedSubgraph():
            yield from _of_part(problem, step, step.segments, is_whole=len(route.steps) == 1)
        case PlacedFork():
            yield from _of_home(problem, step.home)
            for arm in step.arms:
                yield from _of_part(problem, arm, step.segments, is_whole=False)


def _of_home(problem: Problem, home: DeviceId) -> Iterator[str]:
    """Whether a device may hold what branches need and give, although it may run none of them."""
    if is_spared(problem, home):
        yield _spared_text(home)
    if is_banned(problem, home):
        reason = problem.device(home).units[0].banned_because
        yield f"{home} must not be used: {reason}"


def _spared_text(device: DeviceId) -> str:
    return f"the battery of {device} is too low to work for others"


def _of_part(
    problem: Problem,
    what: PlacedSubgraph | PlacedArm,
    segments: SegmentRange,
    *,
    is_whole: bool,
) -> Iterator[str]:
    device = problem.device(what.device)
    which = what.configuration
    if is_spared(problem, device.id):
        yield _spared_text(device.id)
    if which.unit not in {unit.id for unit in device.units}:
        yield f"{device.id} has no unit {which.unit}"
        return
    if banned := unit_of(device, which).banned_because:
        yield f"{device.id}/{which.unit} must not be used: {banned}"
    try:
        times = times_of(problem, device.id, which)
    except ValueError as error:
        yield str(error)
        return
    inside = range(segments.start, segments.stop)
    if refused := [place for place in times.refused if place in inside]:
        yield f"{device.id}/{which} refuses segment {refused[0]}"
    if not is_whole and not is_divisible(times):
        yield f"{device.id}/{which} runs the whole model only"
    for pin in problem.pins:
        if pin.segment in inside and not _is_pinned(what, pin.device, pin.unit):
            yield f'segment {pin.segment} is pinned to {pin.device} by "{pin.pattern}"'


def _is_pinned(what: PlacedSubgraph | PlacedArm, device: DeviceId, unit: str | None) -> bool:
    return what.device == device and unit in (None, what.configuration.unit)


def _of_memory(problem: Problem, routes: Sequence[Route]) -> Iterator[str]:
    for pool, used in memory_bytes(problem, routes).items():
        most = pool_bytes(problem, pool)
        if used > most * _ROOM:
            limit, needed = apart_texts(Target.MEMORY, most, used)
            yield f"{pool} has {limit} of memory, {needed} are needed"


def _of_bounds(problem: Problem, routes: Sequence[Route]) -> Iterator[str]:
    together = evaluate(problem, routes)
    for bound in problem.bounds:
        worst = together.value(bound.target)
        if bound.target is Target.THROUGHPUT:
            if worst * _ROOM < bound.limit:
                limit, shown = apart_texts(bound.target, bound.limit, worst)
                yield f"{bound.target} {shown}, at least {limit} is asked"
            continue
        if bound.target in (Target.ENERGY, Target.BYTES):
            alone = (evaluate(problem, [_whole(route)]) for route in routes if route.share)
            worst = max(metrics.value(bound.target) for metrics in alone)
        if worst > bound.limit * _ROOM:
            limit, shown = apart_texts(bound.target, bound.limit, worst)
            yield f"{bound.target} {shown}, at most {limit} is asked"


def _whole(route: Route) -> Route:
    return Route(steps=route.steps, share=1.0)
