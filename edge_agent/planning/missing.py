"""Why no distribution keeps to what is asked, and what is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edge_agent.planning.amounts import Bottleneck, Caps
from edge_agent.planning.branches import with_forks
from edge_agent.planning.labels import best_route
from edge_agent.planning.mixing import mix
from edge_agent.planning.mixture import Wish
from edge_agent.planning.present import is_spared
from edge_agent.planning.short import bytes_text
from edge_agent.planning.shortest import Weights, cheapest
from edge_agent.planning.tables import Tables, tabulate, usable
from edge_agent.plans import Bound, Target
from edge_agent.problems import PlannedDevice, Problem

_EFFORT = 300_000.0
_SHOWN = 4


def why_infeasible(problem: Problem, target: Target) -> str:
    """One or two sentences: the first obstacle of devices, segments, links, memory and bounds."""
    tables = tabulate(problem, target)
    if tables is None:
        return "no device may do anything: " + "; ".join(
            f"{d.id}: {why_idle(problem, d, target)}" for d in problem.devices
        )
    stuck = _stuck_segments(tables)
    if stuck:
        return stuck
    paths = cheapest(tables, Weights.none(tables))
    if not np.isfinite(paths.totals[0]):
        return _unlinked(problem, tables)
    forked = with_forks(tables, target, is_quickest=False)
    return _over_budget(forked) or _over_bound(forked) or _out_of_bounds(problem, forked)


def why_idle(problem: Problem, device: PlannedDevice, target: Target) -> str:
    """Why a device cannot be used at all; empty if it can."""
    if is_spared(problem, device.id):
        charge = problem.statistics_of(device.id).battery_fraction
        least = problem.least_battery_fraction
        return f"its battery is at {charge:.0%}; it works for others from {least:.0%} on"
    if not device.times:
        return "it has no latency profile"
    if not usable(problem, device, target):
        banned = [f"{u.id}: {u.banned_because}" for u in device.units if u.banned_because]
        return "; ".join(banned) or "none of its configurations runs one request at a time"
    return ""


def _stuck_segments(tables: Tables) -> str:
    (stuck,) = np.nonzero(np.isinf(tables.refusal).all(axis=1))
    if not len(stuck):
        return ""
    segment = tables.problem.summary.segments[int(stuck[0])]
    operators = ", ".join(name for name, _ in segment.operators[:_SHOWN])
    pins = [pin for pin in tables.problem.pins if pin.segment == segment.index]
    where = f"segment {segment.index} (nodes {segment.start} to {segment.stop - 1}: {operators})"
    more = f", and {len(stuck) - 1} more," if len(stuck) > 1 else ""
    if pins:
        wanted = ", ".join(
            f'"{pin.pattern}" on {pin.device}' + (f"/{pin.unit}" if pin.unit else "")
            for pin in pins
        )
        return (
            f"{where}{more} cannot run where it is pinned ({wanted}): no unit there takes it and "
            "may be used; pin it elsewhere, or not at all"
        )
    return f"{where}{more} is refused by every unit that may be used"


def _unlinked(problem: Problem, tables: Tables) -> str:
    links = {(k.source, k.target) for k in problem.links}
    others = [device for device in tables.devices if device != problem.owner]
    missing = [
        f"{a} to {b}"
        for device in others
        for a, b in ((problem.owner, device), (device, problem.owner))
        if (a, b) not in links
    ]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (" and others" if len(missing) > _SHOWN else "")
        return (
            f"no route leads through the model from {problem.owner} and back: there is no link "
            f"from {shown}; add links, or let other devices do more"
        )
    return (
        f"no route leads through the model from {problem.owner} and back: where the devices would "
        "have to change, what crosses cannot be sent (its size is not known, it cannot leave the "
        "device, or it is more than the receiver takes)"
    )


def _over_budget(tables: Tables) -> str:
    """What memory is missing; empty if memory alone does not stand in the way."""
    budgets = tables.budgets
    if np.isfinite(_least_bytes(tables)):
        return ""
    caps = replace(Caps.none(tables), memory=budgets)
    needs: list[tuple[float, str]] = []
    for pool, name in enumerate(tables.pools):
        open_budgets = budgets.copy()
        open_budgets[pool] = np.inf
        weights = Weights.none(tables)
        weights.memory[0, pool] = 1.0
        found = best_route(tables, weights, replace(caps, memory=open_budgets), effort=_EFFORT)
        if found.pieces is not None:
            needs.append((found.value - budgets[pool], name))
    whole = tables.problem.summary.weight_bytes
    has = ", ".join(
        f"{name} {_room(budget)}" for name, budget in zip(tables.pools, budgets, strict=True)
    )
    if not needs:
        return (
            f"it fits nowhere, divided or not: its weights are {_room(whole)}, and there are "
            f"{has}; more memory on one device alone does not help, add to several or add devices"
        )
    least_bytes = min(needs)[0]
    alike = [name for more, name in sorted(needs) if more <= least_bytes * 1.05 + 4096]
    others = [(m, name) for m, name in sorted(needs) if name not in alike]
    more = [f"{_missing(m)} on {name}" for m, name in others]
    on = f"any of {', '.join(alike)}" if len(alike) > 1 else alike[0]
    instead = f", or {', or '.join(more[:_SHOWN])}" if more else ""
    least = _missing(least_bytes)
    return (
        f"it fits nowhere, divided or not: it needs {least} more on {on}{instead} (there are {has})"
    )


def _over_bound(tables: Tables) -> str:
    """That the bound on the memory is beyond reach; empty if it is not."""
    limit = tables.problem.bound(Target.MEMORY)
    least = _least_bytes(tables)
    if limit is None or least <= limit:
        return ""
    return (
        f"beyond reach: {Target.MEMORY} of at most {_bytes(limit)} on the fullest device: the "
        f"least is {_bytes(least)}"
    )


def _least_bytes(tables: Tables) -> float:
    """What the fullest memory of a route must hold; infinity if none fits the budgets."""
    caps = replace(Caps.none(tables), memory=tables.budgets)
    found = best_route(tables, Bottleneck.MEMORY, caps, effort=_EFFORT)
    return math.inf if found.pieces is None else found.value


def _bytes(size_bytes: float) -> str:
    """Exact enough to tell a limit from what misses it by little."""
    return f"{size_bytes / 2**20:.4g} MiB" if size_bytes >= 2**20 else f"{size_bytes:.0f} bytes"


def _room(size_bytes: float) -> str:
    return bytes_text(size_bytes) if math.isfinite(size_bytes) else "no limit"


def _missing(size_bytes: float) -> str:
    """Rounded up, because less would not do."""
    if size_bytes < 1024.0:
        return bytes_text(math.ceil(size_bytes))
    unit = 2.0 ** (10 * min(int(math.log2(size_bytes) // 10), 3))
    step = 10.0 ** (math.floor(math.log10(size_bytes / unit)) - 2) * unit
    return bytes_text(math.ceil(size_bytes / step) * step)


def _out_of_bounds(problem: Problem, tables: Tables) -> str:
    """Which bound is beyond reach, or that they exclude each other."""
    caps = replace(Caps.none(tables), memory=tables.memory_limits)
    told = []
    for bound in problem.bounds:
        if bound.target is Target.THROUGHPUT:
            most = _most_per_s(tables, caps)
            if most < bound.limit:
                shown = _shown(bound.target, most)
                told.append(f"{_asked(bound)}: no more than {shown} can be had")
            continue
        if bound.target is Target.MEMORY:
            continue  # It can be kept to: see `_over_bound`.
        best = _best(tables, caps, bound.target)
        if best is not None and best > bound.limit:
            told.append(
                f"{bound.target} of at most {_shown(bound.target, bound.limit)}: the least "
                f"is {_shown(bound.target, best)}"
            )
    if told:
        return "beyond reach: " + "; ".join(told)
    asked = ", ".join(map(_asked, problem.bounds))
    if not asked:
        return "no distribution was found in the effort that was given"
    if len(problem.bounds) == 1:
        return f"no distribution was found that keeps to {asked}; loosen it"
    return (
        f"no distribution was found that keeps to all of these at once: {asked}; each alone may be "
        "kept to, so loosen one"
    )


def _most_per_s(tables: Tables, caps: Caps) -> float:
    """Requests per second that no distribution can beat."""
    if tables.problem.most_routes == 1:
        least_s = best_route(tables, Bottleneck.LOADS, caps, effort=_EFFORT).bound
    else:
        least_s = mix(tables, Wish(target=Target.THROUGHPUT), caps, _EFFORT).bound
    return 1.0 / least_s if least_s else math.inf


def _best(tables: Tables, caps: Caps, target: Target) -> float | None:
    weights = Weights.none(tables)
    match target:
        case Target.LATENCY:
            weights.seconds[0] = 1.0
        case Target.ENERGY:
            weights.joules[0] = 1.0
        case Target.BYTES:
            weights.size_bytes[0] = 1.0
        case Target.THROUGHPUT | Target.MEMORY:
            raise AssertionError(f"{target} does not add up over a route")
    found = best_route(tables, weights, caps, effort=_EFFORT)
    return None if found.pieces is None else found.value


def _shown(target: Target, value: float) -> str:
    match target:
        case Target.LATENCY:
            return f"{value * 1e3:.4g} ms"
        case Target.THROUGHPUT:
            return f"{value:.4g}/s"
        case Target.ENERGY:
            return f"{value:.4g} J"
        case Target.MEMORY | Target.BYTES:
            return _bytes(value)


def _asked(bound: Bound) -> str:
    word = "at least" if bound.target is Target.THROUGHPUT else "at most"
    return f"{bound.target} {word} {_shown(bound.target, bound.limit)}"
