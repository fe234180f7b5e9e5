"""What a plan was chosen over: the best without one of its devices, and through one that it leaves
out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.distributions import Distribution, LeftOut
from edge_agent.planning.metrics import FULL, legs, resource_loads, resource_text
from edge_agent.planning.missing import why_idle
from edge_agent.planning.planner import EFFORT, attempt, is_free, tables_of
from edge_agent.planning.short import value_text
from edge_agent.planning.shortest import Paths, Weights, cheapest
from edge_agent.planning.tables import Floats
from edge_agent.planning.unreached import why_unreached
from edge_agent.plans import ADDITIVE, Target
from edge_agent.problems import PlannedDevice, Problem, SegmentPin

_MOST_EFFORT = 300_000.0
"""For each alternative that has to be planned, at most."""
_VERBS = {Target.THROUGHPUT: "gives", Target.MEMORY: "needs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a distribution was chosen over."""

    left_out: tuple[LeftOut, ...]
    """Each device that takes no part, and why. Of one that might, what the best that uses it gives,
    in the target's own measure."""
    runner_up: Distribution | None
    """The best found that is not over the same devices: of plans made without one of its devices,
    and of those with a segment on a device that it leaves out."""
    alone: Distribution | None
    """The best that one device can do without the others, as of the function `alone`."""


def devices_of(found: Distribution) -> frozenset[DeviceId]:
    """The devices that compute something."""
    return frozenset(part.device for route in found.routes for part in route.parts())


def compare(
    problem: Problem,
    found: Distribution,
    effort: float = EFFORT,
    report: Callable[[float], None] = lambda _: None,
) -> Compared:
    """Plan what could have been done instead of `found`.

    `effort` limits the searches of all alternatives together, as that of `planner.plan`; `report`
    takes how much is done, 0 to 1.
    """
    sought = _Sought.of(problem, found.target)
    without = _without_each(problem, found)
    through = dict(_with_each(problem, found, sought))
    single = _single_devices(problem)
    steps = len(without) + len(through) + len(single)
    each = min(_MOST_EFFORT, effort / max(steps, 1))
    done = itertools.count(1)

    def attempted(other: Problem) -> Distribution | None:
        made = attempt(other, found.target, each)
        report(next(done) / steps)
        return made

    used = devices_of(found)
    others = [d for d in map(attempted, (*without, *through.values())) if d is not None]
    singles = [d for d in map(attempted, single) if d is not None]
    made = (*others, *singles)
    return Compared(
        left_out=tuple(
            LeftOut(device=device.id, reason=_why_left(problem, device, found, sought, made))
            for device in problem.devices
            if device.id not in used
        ),
        runner_up=_best(found.target, [d for d in others if devices_of(d) != used]),
        alone=_best(found.target, singles),
    )


def alone(problem: Problem, target: Target, effort: float = EFFORT) -> Distribution | None:
    """The best that one device can do without the others, its inputs and outputs sent as needed;
    None if the model fits on none. `effort` as that of `compare`."""
    return next(iter(each_alone(problem, target, effort)), None)


def each_alone(
    problem: Problem, target: Target, effort: float = EFFORT
) -> tuple[Distribution, ...]:
    """The best that each device can do without the others, the best of them first; nothing of one
    on which the model does not fit. `effort` as that of `compare`."""
    single = _single_devices(problem)
    each = min(_MOST_EFFORT, effort / max(len(single), 1))
    found = [attempt(other, target, each) for other in single]
    made = [one for one in found if one is not None]
    return tuple(sorted(made, key=lambda one: one.metrics.cost(target)))


def over_several(
    problem: Problem, found: Distribution, effort: float = EFFORT
) -> Distribution | None:
    """The best that was found in which two devices or more compute, where in `found`, the best of
    all, one does; None if none was found. `effort` as that of `compare`.

    Each other device is made to run the segment that is cheapest there, and where it then runs all
    of the others too, the one of `found` is made to run the first or the last one.
    """
    used = devices_of(found)
    if len(used) > 1:
        return found
    (single,) = used
    through = [other for _, other in _with_each(problem, found, _Sought.of(problem, found.target))]
    last = len(problem.summary.segments) - 1
    each = min(_MOST_EFFORT, effort / max(3 * len(through), 1))
    made: list[Distribution] = []
    for other in through:
        pinned = {pin.segment for pin in other.pins}
        ends = (
            replace(other, pins=(*other.pins, SegmentPin(segment=end, device=single)))
            for end in dict.fromkeys((0, last))
            if end not in pinned
        )
        for tried in (other, *ends):
            best = attempt(tried, found.target, each)
            if best is not None and len(devices_of(best)) > 1:
                made.append(best)
    best = _best(found.target, made)
    return None if best is None else replace(best, bound=found.bound)


def _best(target: Target, found: Sequence[Distribution]) -> Distribution | None:
    return min(found, key=lambda one: one.metrics.cost(target), default=None)


def _why_left(
    problem: Problem,
    device: PlannedDevice,
    found: Distribution,
    sought: _Sought,
    made: Sequence[Distribution],
) -> str:
    """`made`: other distributions, whatever they use."""
    idle = why_idle(problem, device, found.target)
    if idle:
        return idle
    target = found.target
    least, _ = sought.through(device.id)
    if not np.isfinite(least):
        return why_unreached(problem, device.id, lambda other: _leads(other, target, device.id))
    of_all = float(sought.paths.totals[0])
    if sought.is_free and target in ADDITIVE:
        return _compared_text(target, "the best route", least, "the best of all", of_all)
    with_it = _best(target, [one for one in made if device.id in devices_of(one)])
    own = found.metrics.value(target)
    if with_it is not None:
        which = "the best route found" if target in ADDITIVE else "the best found"
        value = with_it.metrics.value(target)
        text = _compared_text(target, which, value, "this one", own)
        if target is Target.THROUGHPUT and value_text(target, value) == value_text(target, own):
            return f"{text}; this one is limited by {_bottlenecks_text(problem, found)}"
        return text
    if target not in ADDITIVE:
        aim = "" if sought.is_free else ", within memory and bounds"
        return f"nothing was found that uses it{aim}"
    aside = _compared_text(target, "the best route", least, "the best of all", of_all)
    return (
        "no route that uses it was found to keep to memory and bounds; with memory and bounds set "
        f"aside, {aside}"
    )


def _compared_text(
    target: Target, what: str, value: float, other_what: str, other_value: float
) -> str:
    """What the best with a device comes to, and what is had without it: `20 ms` and `18 ms`."""
    verb = _VERBS.get(target, "takes")
    shown, other_shown = value_text(target, value), value_text(target, other_value)
    if shown == other_shown:
        return f"no better with it: {what} that uses it {verb} {shown} as well"
    return f"{what} that uses it {verb} {shown}, {other_what} {other_shown}"


def _bottlenecks_text(problem: Problem, found: Distribution) -> str:
    walked = [(route.share, legs(problem, route)) for route in found.routes]
    loads = resource_loads(problem, walked)
    full = [name for name, load in loads.items() if load >= FULL * max(loads.values())]
    return " and ".join(resource_text(problem, name) for name in sorted(full))


def _leads(problem: Problem, target: Target, device: DeviceId) -> bool:
    """Whether any route runs a segment on a device, whatever it costs or needs."""
    least, _ = _Sought.of(problem, target).through(device)
    return bool(np.isfinite(least))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sought:
    """The cheapest routes through each device, in the measure of a target where that adds up over a
    route, else in time."""

    paths: Paths
    reached: Floats
    """As `forward`."""
    is_free: bool
    """Whether no budget or bound can bind, so that these are the best."""

    @classmethod
    def of(cls, problem: Problem, target: Target) -> _Sought:
        tables = tables_of(problem, target)
        assert tables is not None, "there is a distribution"
        paths = cheapest(tables, Weights.of(tables, target))
        return cls(
            paths=paths, reached=forward(paths), is_free=is_free(tables) and tables.forks.is_whole
        )

    def through(self, device: DeviceId) -> tuple[float, int]:
        """(the cost of the cheapest route that runs at least one segment on a device, which
        segment); infinity where there is none."""
        tables = self.paths.tables
        if device not in tables.devices:
            return np.inf, 0
        (own,) = np.nonzero(tables.device_of == tables.devices.index(device))
        costs = (self.reached[:, own] + self.paths.tails[1:, 0][:, own]).min(axis=1)
        segment = int(costs.argmin())
        return float(costs[segment]), segment


def forward(paths: Paths) -> Floats:
    """(n, c): cheapest way to have run segments 0..p, the last of them in c; for weighting 0."""
    tables, costs = paths.tables, paths.costs
    n, device_of = tables.places, tables.device_of
    reached = np.empty((n, len(device_of)))
    reached[0] = costs.first[0, device_of] + costs.begin[0, 0] + costs.segment[0, 0]
    for place in range(1, n):
        before = reached[place - 1]
        out = np.minimum.reduceat(before + costs.leave[place, 0], tables.first_of)
        arrived = (out[:, None] + costs.send[place, 0]).min(axis=0)
        entered = np.minimum(before, arrived[device_of] + costs.begin[place, 0])
        if len(tables.grouped):
            left = before[tables.grouped] + costs.inner_leave[place, 0]
            mates = np.minimum.reduceat(left, tables.group_starts)[tables.group_of]
            mates = mates + costs.inner_begin[place, 0]
            entered[tables.grouped] = np.minimum(entered[tables.grouped], mates)
        reached[place] = entered + costs.segment[place, 0]
    return reached


def _with_each(
    problem: Problem, found: Distribution, sought: _Sought
) -> Iterator[tuple[DeviceId, Problem]]:
    """With a segment pinned to each device that is not used, the one that is cheapest there."""
    for device in problem.devices:
        if device.id in devices_of(found) or why_idle(problem, device, found.target):
            continue
        least, segment = sought.through(device.id)
        if np.isfinite(least):
            pin = SegmentPin(segment=segment, device=device.id)
            yield device.id, replace(problem, pins=(*problem.pins, pin))


def _without_each(problem: Problem, found: Distribution) -> list[Problem]:
    return [
        _over(problem, [other.id for other in problem.devices if other.id != device])
        for device in sorted(devices_of(found))
        if not any(pin.device == device for pin in problem.pins)
    ]


def _single_devices(problem: Problem) -> list[Problem]:
    return [
        _over(problem, [device.id])
        for device in problem.devices
        if all(pin.device == device.id for pin in problem.pins)
    ]


def _over(problem: Problem, workers: Collection[DeviceId]) -> Problem:
    """Only these devices compute."""
    devices = tuple(d if d.id in workers else replace(d, times=()) for d in problem.devices)
    return replace(problem, devices=devices)
