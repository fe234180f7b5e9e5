"""Knows how models are commonly divided over devices: what the planner is compared with.

Each way gives routes. A device takes, of its configurations, the best one for its part: that which
takes least time, or for the throughput least time over the runs that go on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, groupby
from types import MappingProxyType

from edge_agent.devices import DeviceId
from edge_agent.distributions import Metrics, PlacedSubgraph, Route
from edge_agent.planning.cost import inner_border_s_per_byte, is_divisible
from edge_agent.planning.legality import objections
from edge_agent.planning.metrics import (
    crossing_bytes,
    evaluate,
    sending_s,
)
from edge_agent.planning.present import slowdown
from edge_agent.planning.tables import usable
from edge_agent.plans import Target
from edge_agent.problems import PlannedDevice, Problem
from edge_agent.profiles import HOST_UNIT, SegmentTimes
from edge_agent.subgraphs import SegmentRange

Routes = tuple[Route, ...]
Choice = tuple[PlannedDevice, SegmentTimes]


class NotPossible(Exception):
    """A way to divide gives nothing that may be deployed; the message says why."""


def even_split(problem: Problem, target: Target) -> Routes:
    """As many segments for each device, in a pipeline over the devices in their order."""
    amounts = [1.0] * len(problem.summary.segments)
    return _pipeline(problem, target, amounts, [1.0] * len(problem.devices))


def split_by_memory(problem: Problem, target: Target) -> Routes:
    """A pipeline in which each device has its share of all memory as its share of the weights."""
    amounts = [float(segment.weight_bytes) for segment in problem.summary.segments]
    shares = [float(device.memory_bytes) for device in problem.devices]
    return _pipeline(problem, target, amounts, shares)


def split_by_speed(problem: Problem, target: Target) -> Routes:
    """A pipeline in which each device has its share of all speed as its share of the work.

    The speed is 1 over the time of the whole model alone; the work of a segment its share of that
    time, the mean over the devices. What sending takes does not count.
    """
    whole = SegmentRange(start=0, stop=len(problem.summary.segments))
    speeds, amounts = [], [0.0] * len(whole)
    for device in problem.devices:
        found = _best(problem, device, whole, target)
        if found is None:
            speeds.append(0.0)
            continue
        took_s = _part_s(problem, device, found, whole, target)
        speeds.append(1.0 / took_s if took_s else 0.0)
        total_s = sum(found.segment_s) or 1.0
        amounts = [a + s / total_s for a, s in zip(amounts, found.segment_s, strict=True)]
    return _pipeline(problem, target, amounts, speeds)


def greedy(problem: Problem, target: Target) -> Routes:
    """Each segment where it is done soonest, with the data where the one before has left it.

    Of these configurations, and of the best one for all that a device does in a row, the better.
    """
    here: Choice | None = None
    chosen: list[Choice] = []
    choices = [(d, t) for d in problem.devices for t in usable(problem, d, target)]
    for place in range(len(problem.summary.segments)):
        done_s = [_next_s(problem, here, choice, place, target) for choice in choices]
        least_s = min(done_s, default=float("inf"))
        if least_s == float("inf"):
            raise NotPossible(f"segment {place} can run nowhere from where the data is")
        here = choices[done_s.index(least_s)]
        chosen.append(here)
    as_chosen = _joined(chosen, lambda choice: (choice[0].id, choice[1].configuration))
    by_device = _joined(chosen, lambda choice: (choice[0].id,))
    found = [_whole(tuple(_step(choice, part) for choice, part in as_chosen))]
    with suppress(NotPossible):  # it may be that no single configuration runs all of a part
        found.append(_placed(problem, target, [(c[0], part) for c, part in by_device]))
    return min(found, key=lambda routes: _cost(problem, target, routes))


def best_single_device(problem: Problem, target: Target) -> Routes:
    """All of the model on one device in one configuration, whichever is best."""
    found = [routes for _, routes in _singles(problem, target)]
    if not found:
        raise NotPossible("no device runs the whole model in one configuration")
    return min(found, key=lambda routes: _cost(problem, target, routes))


def replicas(problem: Problem, target: Target) -> Routes:
    """The whole model on every device that can, each with its share of all rates as its traffic."""
    best: dict[DeviceId, Routes] = {}
    for device, routes in _singles(problem, target):
        before = best.get(device)
        if before is None or _cost(problem, target, routes) < _cost(problem, target, before):
            best[device] = routes
    rates = [1.0 / _cost(problem, Target.THROUGHPUT, routes) for routes in best.values()]
    if not rates:
        raise NotPossible("no device runs the whole model in one configuration")
    return tuple(
        replace(route, share=rate / sum(rates))
        for (route,), rate in zip(best.values(), rates, strict=True)
    )


WAYS: Mapping[str, Callable[[Problem, Target], Routes]] = MappingProxyType(
    {
        "even split": even_split,
        "by memory": split_by_memory,
        "by speed": split_by_speed,
        "greedy": greedy,
        "single device": best_single_device,
    }
)
RATE_WAYS: Mapping[str, Callable[[Problem, Target], Routes]] = MappingProxyType(
    {**WAYS, "replicas": replicas}
)
"""For the throughput, where requests may take several routes."""


def priced(problem: Problem, target: Target, way: Callable[[Problem, Target], Routes]) -> Metrics:
    """What a way to divide is predicted to give.

    Raises:
        NotPossible: it gives nothing that may be deployed.
    """
    routes = way(problem, target)
    reasons = objections(problem, routes)
    if reasons:
        raise NotPossible("; ".join(reasons))
    return evaluate(problem, routes)


def divided(amounts: Sequence[float], shares: Sequence[float]) -> list[tuple[int, SegmentRange]]:
    """Segments of these amounts in a row, divided in shares: (which share, its segments).

    A segment belongs where its middle lies. Shares that get none are left out. If all amounts are
    0, each counts 1.
    """
    if not any(amounts):
        amounts = [1.0] * len(amounts)
    total, ends = sum(amounts), list(accumulate(shares))
    before = (0.0, *accumulate(amounts))
    owners = []
    for start, amount in zip(before, amounts, strict=False):
        middle = (start + amount / 2) / total * ends[-1]
        inside = [i for i, end in enumerate(ends) if shares[i] > 0 and middle < end]
        owners.append(inside[0] if inside else max(i for i, s in enumerate(shares) if s > 0))
    found, at = [], 0
    for owner, group in groupby(owners):
        count = len(list(group))
        found.append((owner, SegmentRange(start=at, stop=at + count)))
        at += count
    return found


def _pipeline(
    problem: Problem, target: Target, amounts: Sequence[float], shares: Sequence[float]
) -> Routes:
    if not any(shares):
        raise NotPossible("every device would get a share of 0")
    parts = [(problem.devices[i], part) for i, part in divided(amounts, shares)]
    return _placed(problem, target, parts)


def _placed(
    problem: Problem, target: Target, parts: Sequence[tuple[PlannedDevice, SegmentRange]]
) -> Routes:
    steps = []
    for device, part in parts:
        found = _best(problem, device, part, target)
        if found is None:
            raise NotPossible(f"{device.id} runs segments {part} in no configuration")
        steps.append(_step((device, found), part))
    return _whole(tuple(steps))


def _best(
    problem: Problem, device: PlannedDevice, part: SegmentRange, target: Target
) -> SegmentTimes | None:
    is_whole = len(part) == len(problem.summary.segments)
    able = [
        times
        for times in usable(problem, device, target)
        if (is_whole or is_divisible(times))
        and not any(part.start <= place < part.stop for place in times.refused)
    ]
    return min(able, key=lambda t: _part_s(problem, device, t, part, target), default=None)


def _part_s(
    problem: Problem,
    device: PlannedDevice,
    times: SegmentTimes,
    part: SegmentRange,
    target: Target,
) -> float:
    """Seconds of a part between two others, of each request if several run at once."""
    inner = [b for b in (part.start, part.stop) if 0 < b < len(problem.summary.segments)]
    crossing = sum(problem.summary.cuts[b - 1].crossing_bytes or 0 for b in inner)
    took_s = times.overhead_s + sum(times.segment_s[part.start : part.stop])
    took_s += times.border_s_per_byte * crossing
    return took_s * slowdown(problem, device.id, times.configuration.unit) / _at_once(times, target)


def _at_once(times: SegmentTimes, target: Target) -> int:
    return times.configuration.instances if target is Target.THROUGHPUT else 1


def _next_s(
    problem: Problem, here: Choice | None, choice: Choice, place: int, target: Target
) -> float:
    """Seconds until the segment is done, from when the one before is."""
    device, times = choice
    count = len(problem.summary.segments)
    if place in times.refused or (count > 1 and not is_divisible(times)):
        return float("inf")
    slow = slowdown(problem, device.id, times.configuration.unit)
    own_s = times.segment_s[place] * slow / _at_once(times, target)
    if here is not None and here[1] is times:
        return own_s
    size = crossing_bytes(problem, place)
    at = problem.owner if here is None else here[0].id
    sent_s = 0.0 if at == device.id else _sent_s(problem, at, device, size)
    own_s += times.overhead_s * slow / _at_once(times, target)
    if here is None:
        return sent_s + own_s
    if size is None:
        return float("inf")
    before = here[1]
    is_inner = at == device.id
    for side, other, where in ((before, times, at), (times, before, device.id)):
        per_byte = side.border_s_per_byte
        if is_inner:
            per_byte = inner_border_s_per_byte(side, other.configuration)
        slow = slowdown(problem, where, side.configuration.unit)
        own_s += per_byte * size * slow / _at_once(side, target)
    return sent_s + own_s


def _sent_s(problem: Problem, source: DeviceId, target: PlannedDevice, size: int | None) -> float:
    link = problem.link(source, target.id)
    most = target.most_crossing_bytes
    if link is None or size is None or (most is not None and size > most):
        return float("inf")
    return sending_s(
        size,
        latency_s=link.latency_s,
        wire_s_per_byte=1.0 / link.goodput_bytes_per_s,
        send_s_per_byte=problem.device(source).send_s_per_byte
        * slowdown(problem, source, HOST_UNIT),
        receive_s_per_byte=target.receive_s_per_byte * slowdown(problem, target.id, HOST_UNIT),
        chunk_bytes=problem.chunk_bytes,
    )


def _joined(
    chosen: Sequence[Choice], key: Callable[[Choice], tuple[object, ...]]
) -> list[tuple[Choice, SegmentRange]]:
    found, at = [], 0
    for _, group in groupby(chosen, key):
        row = list(group)
        found.append((row[0], SegmentRange(start=at, stop=at + len(row))))
        at += len(row)
    return found


def _singles(problem: Problem, target: Target) -> list[tuple[DeviceId, Routes]]:
    whole = SegmentRange(start=0, stop=len(problem.summary.segments))
    found = []
    for device in problem.devices:
        for times in usable(problem, device, target):
            routes = _whole((_step((device, times), whole),))
            if not objections(problem, routes):
                found.append((device.id, routes))
    return found


def _step(choice: Choice, part: SegmentRange) -> PlacedSubgraph:
    device, times = choice
    return PlacedSubgraph(segments=part, device=device.id, configuration=times.configuration)


def _whole(steps: tuple[PlacedSubgraph, ...]) -> Routes:
    return (Route(steps=steps),)


def _cost(problem: Problem, target: Target, routes: Routes) -> float:
    try:
        return evaluate(problem, routes).cost(target)
    except ValueError:
        return float("inf")
