"""What a plan may be: every rule of the problem, as reasons why a distribution is none."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedArm, PlacedFork, PlacedSubgraph, Route, Step
from edge_agent.plans import Target
from edge_agent.problems import PlannedDevice, Problem
from edge_agent.profiles import Configuration, SegmentTimes
from tests.planning.oracle.prices import (
    brought_bytes,
    bytes_at,
    link_between,
    place_of,
    route_cost,
    run_resource,
    used_bytes,
)

TOLERANCE = 1e-9
"""Relative; sums in another order differ by less."""


def budgets(problem: Problem) -> dict[str, float]:
    """Most bytes in every memory, a bound on the peak included."""
    most: dict[str, float] = {}
    for device in problem.devices:
        free = problem.statistics_of(device.id).free_memory_bytes
        most[device.id] = min(device.memory_bytes, device.memory_bytes if free is None else free)
        for unit in device.units:
            if unit.memory_bytes is not None:
                most[f"{device.id}/{unit.id}"] = unit.memory_bytes
    peak = problem.bound(Target.MEMORY)
    return most if peak is None else {pool: min(size, peak) for pool, size in most.items()}


def is_idle(problem: Problem, device: DeviceId) -> bool:
    """Whether a device does nothing, to spare its battery."""
    charge = problem.statistics_of(device).battery_fraction
    if device == problem.owner or charge is None:
        return False
    return charge < problem.least_battery_fraction


def is_shut(problem: Problem, device: DeviceId) -> bool:
    """Whether a device may not be used at all: every one of its units is banned."""
    bans = [u.banned_because for d in problem.devices if d.id == device for u in d.units]
    return device != problem.owner and bans != [] and "" not in bans


def may_use(problem: Problem, target: Target, device: PlannedDevice, times: SegmentTimes) -> bool:
    """Whether a configuration may be in a plan for `target` at all."""
    which = times.configuration
    (unit,) = (u for u in device.units if u.id == which.unit)
    if unit.banned_because or is_idle(problem, device.id):
        return False
    counts = target is Target.THROUGHPUT or problem.bound(Target.THROUGHPUT) is not None
    return which.instances == 1 or counts


def is_only_whole(times: SegmentTimes) -> bool:
    """Whether it runs the whole model or nothing."""
    return times.configuration.falls_back or not times.is_divisible


def may_run(problem: Problem, device: DeviceId, times: SegmentTimes, segment: int) -> bool:
    """Whether a segment may run in that configuration: pins and refusals."""
    if segment in times.refused:
        return False
    return all(
        pin.device == device and pin.unit in (None, times.configuration.unit)
        for pin in problem.pins
        if pin.segment == segment
    )


def may_run_arm(problem: Problem, device: DeviceId, times: SegmentTimes, fork: int) -> bool:
    """Whether an arm of a fork may run so, whatever its branches: segments are refused and pinned
    as wholes."""
    inside = problem.summary.forks[fork].segments
    return all(may_run(problem, device, times, i) for i in range(inside.start, inside.stop))


def may_send(problem: Problem, source: DeviceId, target: DeviceId, size: int | None) -> bool:
    """Whether so many bytes get there."""
    if size is None or link_between(problem, source, target) is None:
        return False
    most = problem.device(target).most_crossing_bytes
    return most is None or size <= most


def faults(problem: Problem, target: Target, routes: Sequence[Route]) -> list[str]:
    """Why these routes are no plan for `target`; [] if they are one."""
    found = [fault for route in routes for fault in _route_faults(problem, target, route)]
    if abs(sum(route.share for route in routes) - 1.0) > 1e-6:
        found.append(f"shares {[route.share for route in routes]} do not add up to 1")
    if any(route.share <= 0 for route in routes):
        found.append("a route has no share")
    if problem.most_routes is not None and len(routes) > problem.most_routes:
        found.append(f"{len(routes)} routes, at most {problem.most_routes} are allowed")
    if found:
        return found
    most = budgets(problem)
    for pool, used in used_bytes(problem, routes).items():
        if used > most[pool]:
            found.append(f"{used:g} bytes in {pool}, at most {most[pool]:g} are allowed")
    costs = [route_cost(problem, route) for route in routes]
    for kind, values in (
        (Target.LATENCY, [cost.latency_s for cost in costs]),
        (Target.ENERGY, [cost.joules for cost in costs]),
        (Target.BYTES, [cost.wire_bytes for cost in costs]),
    ):
        limit = problem.bound(kind)
        if limit is not None and max(values) > limit * (1 + TOLERANCE):
            found.append(f"{kind} of a route is {max(values)!r}, bound {limit!r}")
    rate = problem.bound(Target.THROUGHPUT)
    if rate is not None:
        names = {name for cost in costs for name in cost.busy_s}
        for name in sorted(names):
            busy = sum(
                r.share * c.busy_s.get(name, 0.0) for r, c in zip(routes, costs, strict=True)
            )
            if busy * rate > 1 + 1e-6:
                found.append(f"{name} is busy {busy!r} s per request, bound {rate!r} per second")
    return found


def _route_faults(problem: Problem, target: Target, route: Route) -> Iterator[str]:
    at, here, before = 0, problem.owner, None
    for step in route.steps:
        if step.segments.start != at:
            yield f"{step} starts at segment {step.segments.start}, not {at}"
        if place_of(step) != here and not may_send(
            problem, here, place_of(step), bytes_at(problem, at)
        ):
            yield f"{step}: nothing can be sent there from {here}"
        if before is not None:
            yield from _border_faults(problem, before, step)
        if isinstance(step, PlacedFork):
            yield from _fork_faults(problem, target, step)
        else:
            yield from _subgraph_faults(problem, target, step)
        at, here, before = step.segments.stop, place_of(step), step
    if at != len(problem.summary.segments):
        yield f"ends before segment {at}"
    if here != problem.owner and not may_send(problem, here, problem.owner, problem.output_bytes):
        yield "the outputs cannot be sent to the owner"


def _border_faults(problem: Problem, before: Step, step: Step) -> Iterator[str]:
    if isinstance(before, PlacedFork) and isinstance(step, PlacedFork):
        return
    if problem.summary.cuts[step.segments.start - 1].crossing_bytes is None:
        yield f"{step}: the bytes at its border are not known"


def _subgraph_faults(problem: Problem, target: Target, step: PlacedSubgraph) -> Iterator[str]:
    times = yield from _configuration_faults(problem, target, step.device, step.configuration)
    if times is None:
        return
    if is_only_whole(times) and len(step.segments) < len(problem.summary.segments):
        yield f"{step} is a part in a configuration that runs the whole model only"
    for segment in range(step.segments.start, step.segments.stop):
        if not may_run(problem, step.device, times, segment):
            yield f"{step}: segment {segment} may not run there"


def _configuration_faults(
    problem: Problem, target: Target, device: DeviceId, which: Configuration
) -> Generator[str, None, SegmentTimes | None]:
    where = problem.device(device)
    for times in where.times:
        if times.configuration == which:
            if not may_use(problem, target, where, times):
                yield f"{device}/{which} may not be used"
            return times
    yield f"{device} has no times of {which}"
    return None


def _fork_faults(problem: Problem, target: Target, step: PlacedFork) -> Iterator[str]:
    fork = problem.summary.forks[step.fork]
    if not problem.with_branches:
        yield f"{step}: branches are not to run at once"
    if step.segments != fork.segments:
        yield f"{step}: the fork has segments {fork.segments}"
    if is_idle(problem, step.home):
        yield f"{step}: {step.home} spares its battery"
    if is_shut(problem, step.home):
        yield f"{step}: {step.home} is banned"
    done = sorted(b for arm in step.arms for b in arm.branches)
    if done != list(range(len(fork.branches))) or len(step.arms) < 2:
        yield f"{step}: branches {done} in {len(step.arms)} arms"
    resources = [run_resource(arm.device, arm.configuration) for arm in step.arms]
    away = [arm.device for arm in step.arms if arm.device != step.home]
    if len(set(resources)) < len(resources) or len(set(away)) < len(away):
        yield f"{step}: two arms in one place"
    for arm in step.arms:
        yield from _arm_faults(problem, target, step, arm)


def _arm_faults(
    problem: Problem, target: Target, step: PlacedFork, arm: PlacedArm
) -> Iterator[str]:
    times = yield from _configuration_faults(problem, target, arm.device, arm.configuration)
    if times is None:
        return
    if is_only_whole(times):
        yield f"{step}: an arm in a configuration that runs the whole model only"
    if not may_run_arm(problem, arm.device, times, step.fork):
        yield f"{step}: a segment of the fork may not run on {arm.device}/{arm.configuration}"
    fork = problem.summary.forks[step.fork]
    if arm.device != step.home:
        brings = brought_bytes(fork, arm)
        returns = sum(fork.branches[b].output_bytes for b in arm.branches)
        if not may_send(problem, step.home, arm.device, brings):
            yield f"{step}: nothing can be sent to {arm.device}"
        if not may_send(problem, arm.device, step.home, returns):
            yield f"{step}: nothing can be sent back from {arm.device}"
