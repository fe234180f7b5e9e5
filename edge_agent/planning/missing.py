"""Why no distribution keeps to what is asked, and what is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from edge_agent.distributions import MissingMemory, Route
from edge_agent.planning.amounts import CLOSE, Aim, Bottleneck, Caps, amounts
from edge_agent.planning.blocks import in_blocks
from edge_agent.planning.branches import with_forks
from edge_agent.planning.duals import Effort
from edge_agent.planning.labels import Found, best_route
from edge_agent.planning.mixing import mix
from edge_agent.planning.mixture import Wish
from edge_agent.planning.present import spared_text
from edge_agent.planning.short import apart_texts, bytes_text, value_text
from edge_agent.planning.shortest import Pieces, Weights, as_route, cheapest
from edge_agent.planning.tables import Tables, is_at_rate, tabulate, usable
from edge_agent.planning.unlisted import least_cost, least_held
from edge_agent.planning.unreached import what_blocks
from edge_agent.plans import Bound, Target
from edge_agent.problems import PlannedDevice, Problem

_MOST_EFFORT = 300_000.0
"""For one search."""
_LEAST_EFFORT = 2_000.0
_SEARCHES = 2
"""In a memory, about."""
_SHOWN = 4
_ROUNDS = 8
"""So often it is tried whether less memory would do."""
_NEARLY = 0.002
"""To that part of a memory it is told what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why there is no distribution."""

    text: str
    """One or two sentences."""
    is_certain: bool = False
    """Whether it is proven here that none fits."""
    fitting: Route | None = None
    """One that fits the memories and was met on the way, after all."""
    missing: tuple[MissingMemory, ...] = ()
    """As that of `Infeasible`."""


def obstacle(problem: Problem, target: Target, effort: float) -> Obstacle:
    """The first obstacle of devices, segments, links, memory and bounds; `effort` limits all
    searches for it together, as that of `planner.plan`."""
    tables = tabulate(problem, target)
    if tables is None:
        return _certain(
            "no device may do anything: "
            + "; ".join(f"{d.id}: {why_idle(problem, d, target)}" for d in problem.devices)
        )
    stuck = _stuck_segments(tables)
    if stuck:
        return _certain(stuck)
    forked = with_forks(tables, target, is_quickest=False)
    paths = cheapest(forked, Weights.none(forked))
    if not np.isfinite(paths.totals[0]):
        return Obstacle(text=_unlinked(problem, target, tables), is_certain=forked.forks.is_whole)
    single = _for_one_request(tables, target)
    alone = forked if single is tables else with_forks(single, target, is_quickest=False)
    searches = _Searches(effort=Effort(most=effort))
    least = searches.least_bytes(alone)
    if least.pieces is None:
        return _over_budget(alone, searches, is_proven=_is_proven(forked, alone, least, searches))
    over = _over_bound(forked, least if alone is forked else None, searches)
    told = over or _out_of_bounds(problem, forked, searches)
    return replace(told, fitting=as_route(alone, least.pieces))


def _certain(text: str) -> Obstacle:
    return Obstacle(text=text, is_certain=True)


def _is_proven(tables: Tables, alone: Tables, least: Found, searches: _Searches) -> bool:
    """Whether no route fits: of those that run one request at a time, and of all others; or by what
    has to be held alone."""
    largest, together = least_held(tables)
    if largest > tables.budgets.max() or together > tables.budgets.sum():
        return True
    if not np.isinf(least.bound):
        return False
    return alone is tables or bool(np.isinf(searches.least_bytes(tables).bound))


@dataclass(slots=True, kw_only=True)
class _Searches:
    """What is searched for, each with its part of what is left of an effort."""

    effort: Effort
    to_come: int = 4
    """How many more searches there may be, about."""

    def best(self, tables: Tables, aim: Aim, caps: Caps) -> Found:
        """As `best_route`."""
        found = best_route(tables, aim, caps, effort=self.share())
        self.effort.spend(found.spent)
        return found

    def share(self) -> float:
        """The effort of the next search."""
        self.to_come = max(self.to_come - 1, 1)
        return max(min(_MOST_EFFORT, self.effort.left / (self.to_come + 1)), _LEAST_EFFORT)

    def least_bytes(self, tables: Tables) -> Found:
        """The route that needs least of the fullest memory and fits the budgets."""
        caps = replace(Caps.none(tables), memory=tables.budgets)
        return _of_all(tables, self.best(tables, Bottleneck.MEMORY, caps))


def why_idle(problem: Problem, device: PlannedDevice, target: Target) -> str:
    """Why a device cannot be used at all; empty if it can."""
    spared = spared_text(problem, device.id)
    if spared:
        return spared
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


def _unlinked(problem: Problem, target: Target, tables: Tables) -> str:
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
    because = what_blocks(problem, lambda other: _leads(other, target)) or (
        "where the devices would have to change, nothing can be handed over"
    )
    return f"no route leads through the model from {problem.owner} and back: {because}"


def _leads(problem: Problem, target: Target) -> bool:
    tables = tabulate(problem, target)
    if tables is None:
        return False
    return bool(np.isfinite(cheapest(tables, Weights.none(tables)).totals[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """With so much more in one memory it would fit."""

    pool: str
    more_bytes: float
    is_least: bool
    """Whether less is known not to do."""
    pieces: Pieces
    """What fits then."""


def _over_budget(tables: Tables, searches: _Searches, *, is_proven: bool) -> Obstacle:
    """What memory is missing."""
    fits = "it fits nowhere" if is_proven else "nothing was found that fits"
    needs = []
    for pool in range(len(tables.pools)):
        searches.to_come = (len(tables.pools) - pool) * _SEARCHES
        need = _need(tables, pool, searches)
        if need is None:
            continue
        if need.more_bytes <= 0.0:
            fitting = as_route(tables, need.pieces)
            return Obstacle(text="nothing was found at first that fits", fitting=fitting)
        needs.append(need)
    whole = tables.problem.summary.weight_bytes
    has = ", ".join(
        f"{name} {_room(budget)}" for name, budget in zip(tables.pools, tables.budgets, strict=True)
    )
    if not needs:
        text = (
            f"{fits}, divided or not: its weights are {_room(whole)}, and there are "
            f"{has}; more memory on one device alone does not help, add to several or add devices"
        )
        return Obstacle(text=text, is_certain=is_proven)
    needs.sort(key=lambda need: (need.more_bytes, need.pool))
    least = _missing(needs[0].more_bytes)
    # Each is told its own amount: what is enough on one may be too little on another.
    alike = [need.pool for need in needs if _missing(need.more_bytes) == least]
    others = [f"{_missing(n.more_bytes)} on {n.pool}" for n in needs if n.pool not in alike]
    on = f"any of {', '.join(alike)}" if len(alike) > 1 else alike[0]
    instead = f", or {', or '.join(others[:_SHOWN])}" if others else ""
    more = f"{least} more on {on}{instead}"
    text = f"it needs {more}"
    # Ways to run forks that were left out may need less.
    is_least = is_proven and tables.forks.is_whole
    if not (is_least and all(need.is_least for need in needs)):
        text = f"{more} would be enough, less may be"
    return Obstacle(
        text=f"{fits}, divided or not: {text} (there are {has})",
        is_certain=is_proven,
        missing=tuple(
            MissingMemory(
                memory=need.pool,
                more_bytes=math.ceil(need.more_bytes),
                is_least=is_least and need.is_least,
            )
            for need in needs
        ),
    )


def _need(tables: Tables, pool: int, searches: _Searches) -> _Need | None:
    """What is missing in one memory, as little as is found; None: more there alone is no help."""
    weights = Weights.none(tables)
    weights.memory[0, pool] = 1.0
    budgets = tables.budgets.copy()
    budgets[pool] = np.inf
    caps = replace(Caps.none(tables), memory=budgets)
    found = searches.best(tables, weights, caps)
    pieces = found.pieces
    if pieces is None:
        return None
    own = float(tables.budgets[pool])
    enough, least = found.value, max(found.bound, own)
    low, is_open = least, False
    for _ in range(_ROUNDS):
        if enough <= low * (1.0 + CLOSE) or searches.effort.left <= 0:
            break
        budgets[pool] = (enough + low) / 2.0
        tried = in_blocks(tables, budgets, searches.effort)
        if tried is None and not is_open:
            # Another search than before, which may find what that one did not.
            other = searches.best(tables, Weights.of_time(tables), replace(caps, memory=budgets))
            tried, is_open = other.pieces, other.pieces is None and not np.isinf(other.bound)
        if tried is not None:
            pieces, enough = tried, float(amounts(tables, tried).memory[pool])
            continue
        low = float(budgets[pool])
        if not is_open:
            least = low
    is_least = enough <= least * (1.0 + _NEARLY)
    return _Need(pool=tables.pools[pool], more_bytes=enough - own, is_least=is_least, pieces=pieces)


def _for_one_request(tables: Tables, target: Target) -> Tables:
    """One request at a time needs the least memory, and of its configurations there are fewer."""
    problem = tables.problem
    if is_at_rate(problem, target) == is_at_rate(problem, Target.LATENCY):
        return tables
    alone = tabulate(problem, Target.LATENCY)
    return alone if alone is not None and alone.devices == tables.devices else tables


def _over_bound(tables: Tables, known: Found | None, searches: _Searches) -> Obstacle | None:
    """That the bound on the memory is beyond reach, if it is. `known`: the route that needs least,
    if it was searched for."""
    limit = tables.problem.bound(Target.MEMORY)
    if limit is None:
        return None
    least = known or searches.least_bytes(tables)
    if least.value <= limit:
        return None
    is_certain = least.bound > limit
    reach = "beyond reach" if is_certain else "not reached"
    most, shown = apart_texts(Target.MEMORY, limit, least.value)
    return Obstacle(
        text=(
            f"{reach}: {Target.MEMORY} of at most {most} on the fullest device: {_least(least)} is "
            f"{shown}"
        ),
        is_certain=is_certain,
    )


def _of_all(tables: Tables, found: Found) -> Found:
    """The same; where ways to run forks were left out, nothing bounds what these may reach."""
    return found if tables.forks.is_whole else replace(found, bound=0.0)


def _least(found: Found) -> str:
    return "the least" if found.value <= found.bound * (1.0 + CLOSE) else "the least found"


def _room(size_bytes: float) -> str:
    return bytes_text(size_bytes) if math.isfinite(size_bytes) else "no limit"


def _missing(size_bytes: float) -> str:
    """Rounded up, because less would not do."""
    if size_bytes < 1024.0:
        return bytes_text(math.ceil(size_bytes))
    unit = 2.0 ** (10 * min(int(math.log2(size_bytes) // 10), 3))
    step = 10.0 ** (math.floor(math.log10(size_bytes / unit)) - 2) * unit
    return bytes_text(math.ceil(size_bytes / step) * step)


def _out_of_bounds(problem: Problem, tables: Tables, searches: _Searches) -> Obstacle:
    """Which bound is beyond reach, or that they exclude each other."""
    caps = replace(Caps.none(tables), memory=tables.memory_limits)
    told, proven = [], []
    for bound in problem.bounds:
        if bound.target is Target.THROUGHPUT:
            most = _most_per_s(tables, caps, searches)
            if most < bound.limit * (1.0 - CLOSE):
                proven.append(True)
                limit, shown = apart_texts(bound.target, bound.limit, most)
                told.append(f"{bound.target} at least {limit}: no more than {shown} can be had")
            continue
        if bound.target is Target.MEMORY:
            continue  # It can be kept to: see `_over_bound`.
        best = _best(tables, caps, bound.target, searches)
        if best is not None and best.value > bound.limit:
            proven.append(best.bound > bound.limit * (1.0 + CLOSE))
            limit, shown = apart_texts(bound.target, bound.limit, best.value)
            told.append(f"{bound.target} of at most {limit}: {_least(best)} is {shown}")
    if told:
        reach = "beyond reach" if all(proven) else "not reached"
        return Obstacle(text=f"{reach}: " + "; ".join(told), is_certain=any(proven))
    asked = ", ".join(map(_asked, problem.bounds))
    if not asked:
        return Obstacle(text="no distribution was found in the effort that was given")
    if len(problem.bounds) == 1:
        return Obstacle(text=f"no distribution was found that keeps to {asked}; loosen it")
    return Obstacle(
        text=(
            f"no distribution was found that keeps to all of these at once: {asked}; each alone "
            "may be kept to, so loosen one"
        )
    )


def _most_per_s(tables: Tables, caps: Caps, searches: _Searches) -> float:
    """Requests per second that no distribution can beat."""
    if tables.problem.most_routes == 1:
        least_s = searches.best(tables, Bottleneck.LOADS, caps).bound
    else:
        least_s = mix(tables, Wish(target=Target.THROUGHPUT), caps, searches.share()).bound
    if not tables.forks.is_whole:
        least_s = min(least_s, least_cost(tables, Target.THROUGHPUT, caps, searches.share()))
    return 1.0 / least_s if least_s else math.inf


def _best(tables: Tables, caps: Caps, target: Target, searches: _Searches) -> Found | None:
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
    found = searches.best(tables, weights, caps)
    return None if found.pieces is None else _of_all(tables, found)


def _asked(bound: Bound) -> str:
    word = "at least" if bound.target is Target.THROUGHPUT else "at most"
    return f"{bound.target} {word} {value_text(bound.target, bound.limit)}"
