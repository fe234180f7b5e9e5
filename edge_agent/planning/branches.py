"""Independent branches of a model at once: the ways to run its forks, as choices beside the others.

Which branches go where is scheduling on unrelated machines, with what has to be sent before and
after. The machines are the units of the home device and every other device. What one way demands
is a row of amounts; of all ways of a fork those are offered that no other one equals or beats in
every amount. Where there are too many, only some are: the one that ends soonest (schedules.py), and
those that spread over the devices what is short (spread.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, product
from typing import TypeVar

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedFork, Route
from edge_agent.planning.amounts import (
    FIRST_LOAD,
    JOULES,
    SECONDS,
    SIZE_BYTES,
    column_count,
    memory_columns,
)
from edge_agent.planning.arms import (
    able_in,
    arm_of,
    is_order_open,
    is_way,
    machines_of,
    orders_of,
    parted,
)
from edge_agent.planning.known import Flags
from edge_agent.planning.metrics import (
    fork_legs,
    held_bytes,
    latency_s,
    memory_bytes,
    resource_loads,
    route_bytes,
    route_joules,
)
from edge_agent.planning.present import is_banned, is_spared
from edge_agent.planning.schedules import Ending, Schedule, schedules
from edge_agent.planning.shortest import Weights, sweep, weigh
from edge_agent.planning.spread import spread_ways
from edge_agent.planning.tables import Choice, Floats, Forks, Tables, is_at_rate, tabulate
from edge_agent.plans import Target
from edge_agent.summaries import Fork

_MOST_LOOKED_AT = 4000
"""Ways of all forks of a model that are looked at, to offer all that are worth it."""
_MOST_CHOICES = 96
_MOST_CELLS = 4000
"""Choices of forks, and their number times that of segments where that allows more: a search takes
longer with each."""
_MOST_SPREAD = 8
"""Ways that spread what is short, of each fork and home, where not all are choices."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForkOption:
    """A way to run a fork at once, from a home device back to it."""

    step: PlacedFork
    home: int
    """Index of `Tables.devices`."""
    demands: Floats
    """(columns,): as a row of `amounts`."""


def with_forks(
    tables: Tables, target: Target, *, is_quickest: bool, is_sized: bool = True
) -> Tables:
    """The tables with choices of forks; `is_quickest`: only the latency of routes counts;
    `is_sized`: what is in memory does too."""
    is_whole = True

    def found(known: Tables) -> list[ForkOption]:
        nonlocal is_whole
        if is_quickest:
            options, is_whole = _soonest(known)
        else:
            is_rate = is_at_rate(known.problem, target)
            options, is_whole = _worthwhile(known, is_rate=is_rate, is_sized=is_sized)
        return options

    known, options = at_homes(tables, target, found)
    return _as_whole(widened(known, options) if options else tables, is_whole=is_whole)


def with_needed_forks(tables: Tables) -> Tables:
    """The tables with as many choices of forks as the quickest route of all needs."""
    base, offered = at_homes(tables, Target.LATENCY, lambda known: list(schedules(known)))
    steps, is_whole = _needed(base, offered) if offered else ([], True)
    known, options = at_homes(
        tables, Target.LATENCY, lambda known: [_option(known, step) for step in steps]
    )
    return _as_whole(widened(known, options) if options else tables, is_whole=is_whole)


def _as_whole(tables: Tables, *, is_whole: bool) -> Tables:
    return tables if is_whole else replace(tables, forks=replace(tables.forks, is_whole=False))


_T = TypeVar("_T", "ForkOption", Schedule)


def at_homes(
    tables: Tables, target: Target, found_in: Callable[[Tables], list[_T]]
) -> tuple[Tables, list[_T]]:
    """What is found in the tables, with those devices among them that can run nothing but are the
    home of something found."""
    problem = tables.problem
    if not problem.with_branches or not problem.summary.forks:
        return tables, []
    # A device that can run nothing may be the home of arms elsewhere.
    bare = {d.id for d in problem.devices if d.id not in tables.devices}
    homes = {d for d in bare if not (is_spared(problem, d) or is_banned(problem, d))}
    known = _tabulated(tables, target, homes)
    found = found_in(known)
    used = {known.devices[one.home] for one in found} & homes
    if used != homes:
        known = _tabulated(tables, target, used)
        found = found_in(known)
    return known, found


def _tabulated(tables: Tables, target: Target, homes: set[DeviceId]) -> Tables:
    if not homes:
        return tables
    found = tabulate(tables.problem, target, homes)
    assert found is not None, "there are tables already"
    return found


def _worthwhile(tables: Tables, *, is_rate: bool, is_sized: bool) -> tuple[list[ForkOption], bool]:
    """Ways that may be worth it, and whether these are all."""
    every = _all_options(tables)
    if every is None:
        return _some(tables, is_rate=is_rate, is_sized=is_sized), False
    steps = (option.step for alike in every for option in alike)
    is_open = any(is_order_open(tables, step.home, step.arms) for step in steps)
    # Of two routes of a mixture, each may hold what the other one needs.
    is_shared = is_rate and is_sized
    for keeps_shared in (True, False) if is_shared else (False,):
        kept = [
            _undominated(tables, alike, keeps_shared=keeps_shared, is_sized=is_sized)
            for alike in every
        ]
        found = [option for alike in kept for option in alike]
        if len(_slots(found)) <= _most_choices(tables):
            return found, keeps_shared is is_shared and not is_open
    return _some(tables, is_rate=is_rate, is_sized=is_sized), False


def _most_choices(tables: Tables) -> int:
    return max(_MOST_CHOICES, _MOST_CELLS // tables.places)


def _some(tables: Tables, *, is_rate: bool, is_sized: bool) -> list[ForkOption]:
    """Of each fork and home the way that ends soonest, and some that spread what is short."""
    found: dict[tuple[int, int], list[ForkOption]] = {}
    quickest, _ = _soonest(tables)
    for option in quickest:
        found.setdefault((option.step.fork, option.home), []).append(option)
    most = min(_most_choices(tables) // len(tables.devices) - 1, _MOST_SPREAD)
    for step in spread_ways(tables, is_rate=is_rate, is_sized=is_sized, most=most):
        option = _option(tables, step)
        alike = found.setdefault((step.fork, option.home), [])
        if all((option.demands < other.demands).any() for other in alike):
            alike.append(option)
    return [option for alike in found.values() for option in alike]


def _soonest(tables: Tables) -> tuple[list[ForkOption], bool]:
    """The way of each fork and home that ends soonest, and whether each certainly does."""
    endings = [schedule.soonest() for schedule in schedules(tables)]
    found = [_option(tables, ending.step) for ending in endings if ending.step is not None]
    return found, all(ending.is_certain for ending in endings)


def _option(tables: Tables, step: PlacedFork) -> ForkOption:
    home = tables.devices.index(step.home)
    return ForkOption(step=step, home=home, demands=demands_of(tables, step))


def _needed(tables: Tables, offered: Sequence[Schedule]) -> tuple[list[PlacedFork], bool]:
    """Of the quickest ways those that the quickest route of all meets if every other one takes no
    longer than its bound: no other one can be on a quicker route; and whether each of them is
    certainly the quickest of its fork and home."""
    wide = widened(tables, [_at_best(tables, schedule) for schedule in offered])
    costs = weigh(wide, Weights.of_time(wide))
    forks = wide.forks
    known = {(schedule.index, tables.devices[schedule.home]): schedule for schedule in offered}
    found: dict[tuple[int, DeviceId], Ending] = {}
    entries = {(step.fork, step.home): e for e, step in enumerate(forks.steps)}
    while True:
        paths = sweep(wide, costs)
        if not np.isfinite(paths.totals[0]):
            return [], all(ending.is_certain for ending in found.values())
        met = {(fork.fork, fork.home) for fork in paths.route().forks()}
        if met <= found.keys():
            steps = [ending.step for ending in found.values() if ending.step is not None]
            return steps, all(ending.is_certain for ending in found.values())
        for key in sorted(met - found.keys()):
            found[key] = known[key].soonest()
            step, took_s = found[key].step, np.inf
            if step is not None:
                took_s = latency_s(fork_legs(tables.problem, step, 0.0))
            costs.segment[forks.places[entries[key]], 0, forks.choices[entries[key]]] = took_s


def _at_best(tables: Tables, schedule: Schedule) -> ForkOption:
    """As long as only the bound of a schedule is known."""
    home = tables.devices[schedule.home]
    step = PlacedFork(fork=schedule.index, segments=schedule.segments, home=home, arms=())
    demands = np.zeros(column_count(tables))
    demands[SECONDS] = schedule.least_s
    return ForkOption(step=step, home=schedule.home, demands=demands)


def demands_of(tables: Tables, step: PlacedFork) -> Floats:
    """(columns,): what a fork demands."""
    problem = tables.problem
    found = fork_legs(problem, step, 0.0)
    row = np.zeros(column_count(tables))
    row[SECONDS] = latency_s(found)
    row[JOULES] = route_joules(problem, found)
    row[SIZE_BYTES] = route_bytes(found)
    for name, busy_s in resource_loads(problem, [(1.0, found)]).items():
        row[FIRST_LOAD + tables.resources.index(name)] = busy_s
    first = FIRST_LOAD + len(tables.resources)
    for pool, size in memory_bytes(problem, [Route(steps=(step,))]).items():
        row[first + tables.pools.index(pool)] = size
    return row


# All ways


def _all_options(tables: Tables) -> list[list[ForkOption]] | None:
    """Of every fork and home all ways; None: there are too many to look at."""
    is_parted = parted(tables)
    ways = [
        _ways(tables, index, fork, device, is_parted)
        for index, fork in enumerate(tables.problem.summary.forks)
        for device in tables.devices
    ]
    # What each demands takes much longer than to count them.
    looked_at = list(islice(chain.from_iterable(ways), _MOST_LOOKED_AT + 1))
    if len(looked_at) > _MOST_LOOKED_AT:
        return None
    steps = [step for step in looked_at if step is not None]
    return [
        [_option(tables, step) for step in alike]
        for _, alike in groupby(steps, key=lambda step: (step.fork, step.home))
    ]


def _ways(
    tables: Tables, index: int, fork: Fork, home: DeviceId, is_parted: Flags
) -> Iterator[PlacedFork | None]:
    """All ways of a fork from a home; None for each placement that is none."""
    machines = machines_of(tables, able_in(tables, fork, is_parted), home)
    for placed in product(range(len(machines)), repeat=len(fork.branches)):
        arms = {m: tuple(b for b, at in enumerate(placed) if at == m) for m in sorted({*placed})}
        if not is_way(tables, fork, home, machines, arms):
            yield None
            continue
        for chosen in product(*(machines[m].choices for m in arms)):
            made = [arm_of(tables, own, c) for own, c in zip(arms.values(), chosen, strict=True)]
            for order in orders_of(tables, home, made):
                yield PlacedFork(fork=index, segments=fork.segments, home=home, arms=tuple(order))


def _undominated(
    tables: Tables, options: Sequence[ForkOption], *, keeps_shared: bool, is_sized: bool
) -> list[ForkOption]:
    """Those that no other one equals or beats in every amount that counts.

    `keeps_shared`: other routes may hold what an option needs in memory, so that it only gives way
    to one that needs nothing else. `is_sized`: what is in memory counts.
    """
    if not options:
        return []
    rows = np.array([option.demands for option in options])
    if not is_sized:
        rows = rows[:, : memory_columns(tables)[0]]
    order = np.lexsort((np.arange(len(rows)), *rows.T[::-1]))
    problem = tables.problem
    held = [frozenset(dict(held_bytes(problem, option.step))) for option in options]
    kept: list[int] = []
    for at in order.tolist():
        better = [kept[i] for i in np.flatnonzero((rows[kept] <= rows[at]).all(axis=1))]
        if not any(not keeps_shared or held[other] <= held[at] for other in better):
            kept.append(at)
    return [options[at] for at in sorted(kept)]


# As choices of the tables


def _slots(options: Sequence[ForkOption]) -> list[tuple[int, list[ForkOption]]]:
    """(home, options) of each choice that is needed: one for each way of a fork; ways of other
    forks go along, because no two forks overlap."""
    counts: Counter[tuple[int, int]] = Counter()
    slots: dict[tuple[int, int], list[ForkOption]] = {}
    for option in options:
        way = counts[option.home, option.step.fork]
        counts[option.home, option.step.fork] += 1
        slots.setdefault((option.home, way), []).append(option)
    return [(home, own) for (home, _), own in sorted(slots.items(), key=lambda slot: slot[0])]


def widened(tables: Tables, options: Sequence[ForkOption]) -> Tables:
    """The tables with a choice for every way, behind those of its home; forks that do not overlap
    share one."""
    slots = _slots(options)
    homes = np.array([home for home, _ in slots])
    ends = np.append(tables.first_of[1:], len(tables.choices))
    at = ends[homes]
    is_new = np.insert(np.zeros(len(tables.choices), bool), at, True)
    refusal, barrier = np.full((2, tables.places, len(slots)), np.inf)
    barrier[0] = 0.0
    cuts = tables.problem.summary.cuts
    for slot, (_, own) in enumerate(slots):
        for inside in (option.step.segments for option in own):
            refusal[inside.start : inside.stop, slot] = 0.0
            for edge in (inside.start, inside.stop):
                if 0 < edge < tables.places and cuts[edge - 1].crossing_bytes is not None:
                    barrier[edge, slot] = 0.0
    choices = list(tables.choices)
    for home, place in sorted(zip(homes.tolist(), at.tolist(), strict=True), reverse=True):
        choices.insert(place, Choice(device=tables.devices[home], configuration=None))
    flat = [
        (option, c)
        for c, (_, own) in zip(np.flatnonzero(is_new).tolist(), slots, strict=True)
        for option in own
    ]
    return replace(
        tables,
        choices=tuple(choices),
        device_of=np.insert(tables.device_of, at, homes, axis=-1),
        first_of=tables.first_of + np.searchsorted(homes, np.arange(len(tables.devices))),
        seconds=np.insert(tables.seconds, at, 0.0, axis=-1),
        refusal=np.insert(tables.refusal, at, refusal, axis=1),
        overhead=np.insert(tables.overhead, at, 0.0, axis=-1),
        border_s_per_byte=np.insert(tables.border_s_per_byte, at, 0.0, axis=-1),
        border=np.insert(tables.border, at, 0.0, axis=-1),
        barrier=np.insert(tables.barrier, at, barrier, axis=1),
        inner=np.insert(tables.inner, at, 0.0, axis=-1),
        grouped=np.flatnonzero(~is_new)[tables.grouped],
        joules_per_s=np.insert(tables.joules_per_s, at, 0.0, axis=-1),
        per_round=np.insert(tables.per_round, at, 1.0, axis=-1),
        resource_of=np.insert(tables.resource_of, at, tables.host_of[homes], axis=-1),
        pool_of=np.insert(tables.pool_of, at, 0),
        form_of=np.insert(tables.form_of, at, int(tables.form_of.max()) + 1, axis=-1),
        weights=np.insert(tables.weights, at, 0.0, axis=-1),
        arenas=np.insert(tables.arenas, at, 0.0, axis=-1),
        forks=Forks(
            steps=tuple(option.step for option, _ in flat),
            places=np.array([option.step.segments.start for option, _ in flat]),
            choices=np.array([c for _, c in flat]),
            demands=np.array([option.demands for option, _ in flat]),
        ),
    )
