"""Whether routes may be deployed: everything that a problem asks of a distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedArm, PlacedFork, PlacedSubgraph, Route
from edge_agent.planning.cost import is_divisible
from edge_agent.planning.metrics import (
    Sending,
    evaluate,
    legs,
    memory_bytes,
    times_of,
    unit_of,
)
from edge_agent.planning.present import is_spared, pool_bytes
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.subgraphs import SegmentRange

_ROOM = 1.0 + 1e-8
"""Sums of floats may be off by so much."""


def objections(problem: Problem, routes: Sequence[Route]) -> tuple[str, ...]:
    """Why these routes, with their shares, must not be deployed; none if they may be.

    Devices, units and latency profiles that are gone, segments that are refused, pins, bans,
    batteries, branches at once, links, sizes of messages, budgets and bounds; and shares that are
    none.
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
    if not problem.with_branches and any(isinstance(step, PlacedFork) for step in route.steps):
        yield "branches run at once, which they must not"
    objected = 0
    for what, segments in _parts(route):
        if what.device not in known:
            yield f"device {what.device} is gone"
            return
        for text in _of_part(problem, what, segments, is_whole=len(route.steps) == 1):
            objected += 1
            yield text
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
                yield f"{leg.link.target} takes {most} bytes at once, {leg.size_bytes} would cross"


def _parts(route: Route) -> Iterator[tuple[PlacedSubgraph | PlacedArm, SegmentRange]]:
    for step in route.steps:
        match step:
            case PlacedSubgraph():
                yield step, step.segments
            case PlacedFork():
                for arm in step.arms:
                    yield arm, step.segments


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
        yield f"the battery of {device.id} is too low to work for others"
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
            yield f"{pool} has {most} bytes of memory, {used:.0f} are needed"


def _of_bounds(problem: Problem, routes: Sequence[Route]) -> Iterator[str]:
    together = evaluate(problem, routes)
    for bound in problem.bounds:
        if bound.target is Target.THROUGHPUT:
            if together.throughput_per_s * _ROOM < bound.limit:
                yield f"throughput {together.throughput_per_s:g}, at least {bound.limit:g} is asked"
            continue
        worst = together.value(bound.target)
        if bound.target in (Target.ENERGY, Target.BYTES):
            alone = (evaluate(problem, [_whole(route)]) for route in routes if route.share)
            worst = max(metrics.value(bound.target) for metrics in alone)
        if worst > bound.limit * _ROOM:
            yield f"{bound.target} {worst:g}, at most {bound.limit:g} is asked"


def _whole(route: Route) -> Route:
    return Route(steps=route.steps, share=1.0)
