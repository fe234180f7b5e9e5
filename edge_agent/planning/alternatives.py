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
from edge_agent.plans import Target
from edge_agent.problems import Problem

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
    tables = tables_of(problem, found.target)
    assert tables is not None, "there is a distribution"
    weights, shown = _measure(tables, found.target)
    paths = cheapest(tables, weights)
    reached = forward(paths)
    told = []
    for device in problem.devices:
        if device.id in used:
            continue
        reason = why_idle(problem, device, found.target)
        if not reason:
            least = _through(paths, reached, tables.devices.index(device.id))
            own = float(paths.totals[0])
            reason = "no route can go there and back"
            if np.isfinite(least):
                reason = (
                    f"the best route that uses it takes {shown(least)}, the best of all "
                    f"{shown(own)}"
                )
        told.append(LeftOut(device=device.id, reason=reason))
    return tuple(told)


def _measure(tables: Tables, target: Target) -> tuple[Weights, Callable[[float], str]]:
    none = Weights.none(tables)
    match target:
        case Target.ENERGY:
            return replace(none, joules=none.joules + 1.0), lambda joules: f"{joules:.4g} J"
        case Target.BYTES:
            return replace(none, size_bytes=none.size_bytes + 1.0), bytes_text
        case Target.LATENCY | Target.THROUGHPUT | Target.MEMORY:
            return replace(none, seconds=none.seconds + 1.0), lambda s: f"{s * 1e3:.4g} ms"


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


def _through(paths: Paths, reached: Floats, device: int) -> float:
    """The cheapest route that runs at least one segment on a device."""
    (own,) = np.nonzero(paths.tables.device_of == device)
    return float((reached[:, own] + paths.tails[1:, 0][:, own]).min())


def runner_up(problem: Problem, found: Distribution) -> Distribution | None:
    """The best distribution that does without one of the devices of `found`; None if there is
    none."""
    best: Distribution | None = None
    for other in _without_each(problem, found):
        made = attempt(other, found.target, EFFORT)
        if made is None:
            continue
        if best is None or made.metrics.cost(found.target) < best.metrics.cost(found.target):
            best = made
    return best


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
