"""What a plan was chosen over: the best without one of its devices, and with another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.distributions import Distribution
from edge_agent.planning.missing import why_idle
from edge_agent.planning.planner import attempt, tables_of
from edge_agent.planning.short import bytes_text
from edge_agent.planning.shortest import Paths, Weights, cheapest
from edge_agent.planning.tables import Floats, Tables
from edge_agent.plans import ADDITIVE, Target
from edge_agent.problems import Problem, SegmentPin

EFFORT = 300_000.0
"""For each alternative that has to be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A device that a plan does not use, and why."""

    device: DeviceId
    reason: str


def devices_of(found: Distribution) -> frozenset[DeviceId]:
    """The devices that compute something."""
    return frozenset(part.device for route in found.routes for part in route.parts())


def left_out(problem: Problem, found: Distribution) -> tuple[LeftOut, ...]:
    """Why each device that `found` does not use is left out.

    Of one that might be used, what the best route through it costs in the target's own measure,
    where that adds up over a route; else in latency.
    """
    used = devices_of(found)
    sought = _Sought.of(problem, found.target)
    told = []
    for device in problem.devices:
        if device.id in used:
            continue
        reason = why_idle(problem, device, found.target)
        if not reason:
            least, _ = sought.through(device.id)
            reason = "no route can go there and back"
            if np.isfinite(least):
                reason = (
                    f"the best route that uses it takes {sought.shown(least)}, the best of all "
                    f"{sought.shown(float(sought.paths.totals[0]))}"
                )
        told.append(LeftOut(device=device.id, reason=reason))
    return tuple(told)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sought:
    """The cheapest routes through each device, in the measure of a target."""

    paths: Paths
    reached: Floats
    """As `forward`."""
    shown: Callable[[float], str]

    @classmethod
    def of(cls, problem: Problem, target: Target) -> _Sought:
        tables = tables_of(problem, target)
        assert tables is not None, "there is a distribution"
        weights, shown = _measure(tables, target)
        paths = cheapest(tables, weights)
        return cls(paths=paths, reached=forward(paths), shown=shown)

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


def _measure(tables: Tables, target: Target) -> tuple[Weights, Callable[[float], str]]:
    none = Weights.none(tables)
    match target:
        case Target.ENERGY:
            return replace(none, joules=none.joules + 1.0), lambda joules: f"{joules:.4g} J"
        case Target.BYTES:
            return replace(none, size_bytes=none.size_bytes + 1.0), bytes_text
        case Target.LATENCY | Target.THROUGHPUT | Target.MEMORY:
            return Weights.of_time(tables), lambda s: f"{s * 1e3:.4g} ms"


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


def runner_up(problem: Problem, found: Distribution) -> Distribution | None:
    """The best distribution over other devices than `found`: without one of its devices or, where
    the target adds up over a route, with one more; None if there is none."""
    best: Distribution | None = None
    used = devices_of(found)
    for other in (*_without_each(problem, found), *_with_each(problem, found)):
        made = attempt(other, found.target, EFFORT)
        if made is None or devices_of(made) == used:
            continue
        if best is None or made.metrics.cost(found.target) < best.metrics.cost(found.target):
            best = made
    return best


def _with_each(problem: Problem, found: Distribution) -> Iterator[Problem]:
    """With a segment pinned to each device that is not used, the one that is cheapest there."""
    if found.target not in ADDITIVE:
        return
    sought = _Sought.of(problem, found.target)
    for device in problem.devices:
        if device.id in devices_of(found) or why_idle(problem, device, found.target):
            continue
        least, segment = sought.through(device.id)
        if np.isfinite(least):
            pin = SegmentPin(segment=segment, device=device.id)
            yield replace(problem, pins=(*problem.pins, pin))


def _without_each(problem: Problem, found: Distribution) -> Iterator[Problem]:
    for device in sorted(devices_of(found)):
        others = tuple(replace(d, times=()) if d.id == device else d for d in problem.devices)
        if not any(pin.device == device for pin in problem.pins):
            yield replace(problem, devices=others)


def alone(problem: Problem, target: Target) -> Distribution | None:
    """The best that one device can do without the others, its inputs and outputs sent as needed;
    None if the model fits on none."""
    best: Distribution | None = None
    for device in problem.devices:
        others = tuple(d if d.id == device.id else replace(d, times=()) for d in problem.devices)
        if any(pin.device != device.id for pin in problem.pins):
            continue
        made = attempt(replace(problem, devices=others), target, EFFORT)
        if made is None:
            continue
        if best is None or made.metrics.cost(target) < best.metrics.cost(target):
            best = made
    return best
