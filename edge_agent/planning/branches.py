"""Independent branches of a model at once: the ways to run its forks, as choices beside the others.

Which branches go where is scheduling on unrelated machines, with what has to be sent before and
after. The machines are the units of the home device and every other device. What one way demands
is a row of amounts; of all ways of a fork those are offered that no other one equals or beats in
every amount. Where there are too many to look at, only the one that ends soonest is, which is
searched by depth first over the branches, the heaviest first, cut off where one machine alone
already takes as long as the best schedule known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedArm, PlacedFork, Route
from edge_agent.planning.amounts import FIRST_LOAD, JOULES, SECONDS, SIZE_BYTES, column_count
from edge_agent.planning.cost import is_divisible
from edge_agent.planning.known import Flags
from edge_agent.planning.metrics import (
    find_link,
    fork_legs,
    held_bytes,
    latency_s,
    memory_bytes,
    processor_s_per_byte,
    resource_loads,
    route_bytes,
    route_joules,
    sending_s,
    times_of,
)
from edge_agent.planning.present import is_spared
from edge_agent.planning.tables import (
    Choice,
    Floats,
    Forks,
    Tables,
    is_at_rate,
    sends_between,
    tabulate,
)
from edge_agent.plans import Target
from edge_agent.problems import Link, Problem
from edge_agent.subgraphs import Fork, SegmentRange

MOST_TRIES = 4000
"""Schedules that are looked at in all, to find the quickest of each fork and home."""
_LEAST_TRIES = 8
"""But for each at least so many."""
_MOST_LOOKED_AT = 4000
"""Ways of all forks of a model that are looked at, to offer all that are worth it."""
_MOST_CHOICES = 96
_MOST_CELLS = 4000
"""Choices of forks, and their number times that of segments where that allows more: a search takes
longer with each."""
_SURELY = 1.0 + 1e-9
_MOST_ORDERED = 4
"""Arms on other devices whose order of sending is tried, where they share a link."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForkOption:
    """A way to run a fork at once, from a home device back to it."""

    step: PlacedFork
    home: int
    """Index of `Tables.devices`."""
    demands: Floats
    """(columns,): as a row of `amounts`."""


def with_forks(tables: Tables, target: Target, *, is_quickest: bool) -> Tables:
    """The tables with choices of forks; `is_quickest`: only the latency of routes counts."""
    problem = tables.problem
    if not problem.with_branches or not problem.summary.forks:
        return tables
    # A device that can run nothing may be the home of arms elsewhere.
    bare = {d.id for d in problem.devices if d.id not in tables.devices}
    homes = {device for device in bare if not is_spared(problem, device)}
    known = _tabulated(tables, target, homes)
    is_rate = is_at_rate(problem, target)
    options = _options(known, is_quickest=is_quickest, is_rate=is_rate)
    used = {known.devices[option.home] for option in options} & homes
    if used != homes:
        known = _tabulated(tables, target, used)
        options = _options(known, is_quickest=is_quickest, is_rate=is_rate)
    return _widened(known, options) if options else tables


def _tabulated(tables: Tables, target: Target, homes: set[DeviceId]) -> Tables:
    if not homes:
        return tables
    found = tabulate(tables.problem, target, homes)
    assert found is not None, "there are tables already"
    return found


def _options(tables: Tables, *, is_quickest: bool, is_rate: bool) -> list[ForkOption]:
    every = None if is_quickest else _all_options(tables)
    if every is not None:
        most = max(_MOST_CHOICES, _MOST_CELLS // tables.places)
        for keeps_shared in (True, False) if is_rate else (False,):
            kept = [_undominated(tables, alike, keeps_shared=keeps_shared) for alike in every]
            found = [option for alike in kept for option in alike]
            if len(_slots(found)) <= most:
                return found
    return list(_quickest(tables))


def _linear_s(tables: Tables, inside: SegmentRange) -> Floats:
    """(d,): seconds of running a fork's segments in the best of each device's configurations."""
    rows = slice(inside.start, inside.stop)
    took = (tables.seconds[rows] + tables.refusal[rows]).sum(axis=0) + tables.overhead
    for edge in (inside.start, inside.stop):
        if edge < tables.places:
            took += tables.barrier[edge] + tables.border[edge]
    found = np.full(len(tables.devices), np.inf)
    np.minimum.at(found, tables.device_of, took)
    return found


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


_Branches = tuple[int, ...]

# Where arms may run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Where an arm may run: a resource of the home, or another device with all its units."""

    device: DeviceId
    choices: tuple[int, ...]


def _able(tables: Tables, fork: Fork, parted: Flags) -> list[int]:
    """The choices in which branches of a fork may run."""
    inside = slice(fork.segments.start, fork.segments.stop)
    is_allowed = ~tables.refusal[inside].any(axis=0)
    return np.flatnonzero(is_allowed & parted).tolist()


def _parted(tables: Tables) -> Flags:
    """(c,): the choices in which parts of the model may run."""
    found = []
    for choice in tables.choices:
        assert choice.configuration is not None, "there are no choices of forks yet"
        times = times_of(tables.problem, choice.device, choice.configuration)
        found.append(is_divisible(times))
    return np.array(found, bool)


def _machines(tables: Tables, able: Sequence[int], home: DeviceId) -> list[_Machine]:
    """Where branches may run, the home first; `able`: in which choices."""
    grouped: dict[tuple[DeviceId, str], list[int]] = {}
    for c in able:
        choice = tables.choices[c]
        resource = tables.resources[tables.resource_of[c]] if choice.device == home else ""
        grouped.setdefault((choice.device, resource), []).append(c)
    machines = [_Machine(device=d, choices=tuple(c)) for (d, _), c in grouped.items()]
    linked = {(k.source, k.target) for k in tables.problem.links}
    reached = [
        m for m in machines if m.device == home or {(home, m.device), (m.device, home)} <= linked
    ]
    return sorted(reached, key=lambda m: m.device != home)


def _may_go(tables: Tables, fork: Fork, home: DeviceId, machine: _Machine, own: _Branches) -> bool:
    """Whether what these branches read and give may be sent."""
    if machine.device == home:
        return True
    problem = tables.problem
    brought = fork.input_bytes(own)
    returned = sum(fork.branches[b].output_bytes for b in own)
    most_in = problem.device(machine.device).most_crossing_bytes
    most_out = problem.device(home).most_crossing_bytes
    return (most_in is None or brought <= most_in) and (most_out is None or returned <= most_out)


def _orders(tables: Tables, home: DeviceId, arms: Sequence[PlacedArm]) -> Iterator[list[PlacedArm]]:
    """The arms in every order that makes a difference: of those that wait for a link."""
    away = [arm for arm in arms if arm.device != home]
    here = [arm for arm in arms if arm.device == home]
    ends = [(home, arm.device) for arm in away] + [(arm.device, home) for arm in away]
    links = [find_link(tables.problem, *pair) for pair in ends]
    used = [link.resource for link in links if link is not None]
    if len(set(used)) == len(used) or len(away) > _MOST_ORDERED:
        yield [*here, *away]
        return
    for order in permutations(away):
        yield [*here, *order]


# All ways


def _all_options(tables: Tables) -> list[list[ForkOption]] | None:
    """Of every fork and home all ways; None: there are too many to look at."""
    looked_at = 0
    parted = _parted(tables)
    found: list[list[ForkOption]] = []
    for index, fork in enumerate(tables.problem.summary.forks):
        for home, device in enumerate(tables.devices):
            options = []
            for step in _ways(tables, index, fork, device, parted):
                looked_at += 1
                if looked_at > _MOST_LOOKED_AT:
                    return None
                options.append(ForkOption(step=step, home=home, demands=demands_of(tables, step)))
            found.append(options)
    return found


def _ways(
    tables: Tables, index: int, fork: Fork, home: DeviceId, parted: Flags
) -> Iterator[PlacedFork]:
    machines = _machines(tables, _able(tables, fork, parted), home)
    for placed in product(range(len(machines)), repeat=len(fork.branches)):
        arms = {m: tuple(b for b, at in enumerate(placed) if at == m) for m in sorted({*placed})}
        if len(arms) < 2:
            continue
        if not all(_may_go(tables, fork, home, machines[m], own) for m, own in arms.items()):
            continue
        for chosen in product(*(machines[m].choices for m in arms)):
            made = [_arm(tables, own, c) for own, c in zip(arms.values(), chosen, strict=True)]
            for order in _orders(tables, home, made):
                yield PlacedFork(fork=index, segments=fork.segments, home=home, arms=tuple(order))


def _arm(tables: Tables, branches: _Branches, choice: int) -> PlacedArm:
    where = tables.choices[choice]
    assert where.configuration is not None, "an arm computes"
    return PlacedArm(branches=branches, device=where.device, configuration=where.configuration)


def _undominated(
    tables: Tables, options: Sequence[ForkOption], *, keeps_shared: bool
) -> list[ForkOption]:
    """Those that no other one equals or beats in every amount.

    `keeps_shared`: other routes may hold what an option needs in memory, so that it only gives way
    to one that needs nothing else.
    """
    if not options:
        return []
    rows = np.array([option.demands for option in options])
    order = np.lexsort((np.arange(len(rows)), *rows.T[::-1]))
    problem = tables.problem
    held = [frozenset(dict(held_bytes(problem, option.step))) for option in options]
    kept: list[int] = []
    for at in order.tolist():
        better = [kept[i] for i in np.flatnonzero((rows[kept] <= rows[at]).all(axis=1))]
        if not any(not keeps_shared or held[other] <= held[at] for other in better):
            kept.append(at)
    return [options[at] for at in sorted(kept)]


# The quickest way


def _quickest(tables: Tables) -> Iterator[ForkOption]:
    """Of every fork and home the way that ends soonest, where that is sooner than without."""
    forks = tables.problem.summary.forks
    problem = tables.problem
    ways = {(k.source, k.target): _Way.of(problem, k) for k in problem.links}
    trips = {
        (source, target): _Trip(there=way, back=ways[target, source])
        for (source, target), way in ways.items()
        if (target, source) in ways
    }
    tries = max(MOST_TRIES // max(len(forks) * len(tables.devices), 1), _LEAST_TRIES)
    trips_s = _trips_s(tables, forks)
    parted = _parted(tables)
    around = tables.overhead.tolist(), tables.border_s_per_byte.tolist()
    found: dict[tuple[_Branches, DeviceId], list[_Machine]] = {}
    index_of = {device: at for at, device in enumerate(tables.devices)}
    for index, fork in enumerate(forks):
        seconds = np.array([branch.work for branch in fork.branches])
        seconds = seconds @ tables.seconds[fork.segments.start : fork.segments.stop]
        able = _able(tables, fork, parted)
        arms: dict[tuple[_Branches, _Branches], tuple[float, int]] = {}
        linear_s = _linear_s(tables, fork.segments)
        alone_s = _alone_s(tables, fork, seconds, able, trips_s[index])
        least_s = _least_s(tables, able, alone_s)
        for home, device in enumerate(tables.devices):
            if least_s[home] > linear_s[home] * _SURELY:
                continue
            if (tuple(able), device) not in found:
                found[tuple(able), device] = _machines(tables, able, device)
            machines = found[tuple(able), device]
            if len(machines) < 2:
                continue
            search = _Schedules(
                tables=tables,
                index=index,
                fork=fork,
                home=device,
                machines=machines,
                trips=[trips.get((device, m.device)) for m in machines],
                seconds=seconds.tolist(),
                around=around,
                alone_s=[alone_s[:, home, index_of[m.device]].tolist() for m in machines],
                arms=arms,
                tries=tries,
                best_s=float(linear_s[home]),
            )
            step = search.soonest()
            if step is not None:
                yield ForkOption(step=step, home=home, demands=demands_of(tables, step))


def _trips_s(tables: Tables, forks: Sequence[Fork]) -> list[Floats]:
    """Of each fork (branches, d, d): seconds of sending what each branch alone reads from each home
    to each device, and what it gives back."""
    given, taken = (
        sends_between(tables.problem, tables.devices, np.concatenate(sizes))
        for sizes in zip(*(_crossing(fork) for fork in forks), strict=True)
    )
    trips = given.seconds + given.penalty + (taken.seconds + taken.penalty).swapaxes(1, 2)
    return np.split(trips, np.cumsum([len(fork.branches) for fork in forks])[:-1])


def _crossing(fork: Fork) -> tuple[Floats, Floats]:
    """(branches,) each: bytes that a branch alone reads, and that it gives."""
    given = [fork.input_bytes((b,)) for b in range(len(fork.branches))]
    taken = [branch.output_bytes for branch in fork.branches]
    return np.array(given, np.float64), np.array(taken, np.float64)


def _alone_s(
    tables: Tables, fork: Fork, seconds: Floats, able: Sequence[int], trips_s: Floats
) -> Floats:
    """(branches, d, d): from each home, seconds of each branch alone on each device, there and
    back. For `seconds` see `_Schedules`."""
    given, taken = _crossing(fork)
    took = seconds + tables.overhead + (given + taken)[:, None] * tables.border_s_per_byte
    alone_s = np.full((len(tables.devices), len(fork.branches)), np.inf)
    np.minimum.at(alone_s, tables.device_of[able], took[:, able].T)
    found: Floats = alone_s.T[:, None, :] + trips_s
    return found


def _least_s(tables: Tables, able: Sequence[int], alone_s: Floats) -> Floats:
    """(d,): from each home, no schedule takes less: each branch is somewhere, and where the home
    can run one arm at a time, one of them is elsewhere."""
    least_s: Floats = alone_s.min(axis=2).max(axis=0)
    is_home = np.eye(len(least_s), dtype=bool)
    away_s = np.where(is_home, np.inf, alone_s.min(axis=0)).min(axis=1)
    resources = {(int(tables.device_of[c]), int(tables.resource_of[c])) for c in able}
    counts = Counter(device for device, _ in resources)
    is_single = np.array([counts[d] < 2 for d in range(len(least_s))])
    return np.where(is_single, np.maximum(least_s, away_s), least_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A link, with seconds per byte of the processors at both ends."""

    link: Link
    send_s_per_byte: float
    receive_s_per_byte: float

    @classmethod
    def of(cls, problem: Problem, link: Link) -> _Way:
        send, receive = processor_s_per_byte(problem, link)
        return cls(link=link, send_s_per_byte=send, receive_s_per_byte=receive)

    def sent_s(self, problem: Problem, size_bytes: int) -> float:
        """Seconds from the first byte's departure to the last one's arrival."""
        return sending_s(
            size_bytes,
            latency_s=self.link.latency_s,
            wire_s_per_byte=1.0 / self.link.goodput_bytes_per_s,
            send_s_per_byte=self.send_s_per_byte,
            receive_s_per_byte=self.receive_s_per_byte,
            chunk_bytes=problem.chunk_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trip:
    there: _Way
    back: _Way


@dataclass(slots=True, kw_only=True)
class _Schedules:
    """The search for one fork and home."""

    tables: Tables
    index: int
    fork: Fork
    home: DeviceId
    machines: Sequence[_Machine]
    seconds: Sequence[Sequence[float]]
    """(branches, c): of each branch alone, without overhead and borders."""
    around: tuple[Sequence[float], Sequence[float]]
    """(c,) each: seconds of overhead, and of borders per byte that crosses."""
    alone_s: Sequence[Sequence[float]]
    """Of each machine, of each branch: no arm with it takes less there."""
    tries: int
    """Schedules that may still be looked at."""
    best_s: float
    """What has to be beaten: at first, the time without running branches at once."""
    arms: dict[tuple[_Branches, _Branches], tuple[float, int]]
    """What is known of arms: by (choices, branches), as `_choice`. Of all homes."""
    trips: Sequence[_Trip | None]
    """To each machine and back; None: it is at home."""
    best: PlacedFork | None = None
    _runs: dict[tuple[int, _Branches], tuple[float, int]] = field(default_factory=dict)

    def run_s(self, machine: int, branches: _Branches) -> tuple[float, int]:
        """Seconds of an arm on a machine in its best choice, there and back if nothing else is
        sent, and that choice; infinity if it cannot go there."""
        key = (machine, branches)
        if key not in self._runs:
            run_s, choice = self._choice(self.machines[machine].choices, branches)
            sent_s = self._sent_s(machine, branches) if self.trips[machine] else 0.0
            self._runs[key] = run_s + sent_s, choice
        return self._runs[key]

    def _choice(self, choices: _Branches, branches: _Branches) -> tuple[float, int]:
        """Seconds of an arm in the best of some choices, and that choice."""
        known = self.arms.get((choices, branches))
        if known is not None:
            return known
        crossing = self.fork.input_bytes(branches)
        crossing += sum(self.fork.branches[b].output_bytes for b in branches)
        rows = [self.seconds[b] for b in branches]
        overhead_s, border_s = self.around
        # Of few branches, numbers take a tenth of the time that arrays take.
        found = min(
            (sum(row[c] for row in rows) + overhead_s[c] + border_s[c] * crossing, c)
            for c in choices
        )
        self.arms[choices, branches] = found
        return found

    def _sent_s(self, machine: int, branches: _Branches) -> float:
        trip = self.trips[machine]
        assert trip is not None, "it is not at home"
        if not _may_go(self.tables, self.fork, self.home, self.machines[machine], branches):
            return float("inf")
        there = self.fork.input_bytes(branches)
        back = sum(self.fork.branches[b].output_bytes for b in branches)
        problem = self.tables.problem
        return trip.there.sent_s(problem, there) + trip.back.sent_s(problem, back)

    def soonest(self) -> PlacedFork | None:
        """The schedule that ends soonest; None if none is found that beats running without."""
        quickest_s = [min(alone) for alone in zip(*self.alone_s, strict=True)]
        order = sorted(range(len(self.fork.branches)), key=lambda b: (-quickest_s[b], b))
        self._search(order, ((),) * len(self.machines))
        return self.best

    def _search(self, order: Sequence[int], arms: tuple[_Branches, ...]) -> None:
        """Give the branches of `order` to machines; `arms` are those of each machine by now."""
        if not order:
            self._try(arms)
            return
        further = []
        for machine, own in enumerate(arms):
            if self.alone_s[machine][order[0]] > self.best_s * _SURELY:
                continue
            longer = tuple(sorted((*own, order[0])))
            further.append((self.run_s(machine, longer)[0], machine, longer))
        for run_s, machine, longer in sorted(further):
            if run_s < self.best_s and self.tries > 0:
                self._search(order[1:], (*arms[:machine], longer, *arms[machine + 1 :]))

    def _try(self, arms: tuple[_Branches, ...]) -> None:
        used = [machine for machine, own in enumerate(arms) if own]
        if len(used) < 2:
            return
        self.tries -= 1
        placed = [_arm(self.tables, arms[m], self.run_s(m, arms[m])[1]) for m in used]
        for order in _orders(self.tables, self.home, placed):
            step = PlacedFork(
                fork=self.index, segments=self.fork.segments, home=self.home, arms=tuple(order)
            )
            took_s = latency_s(fork_legs(self.tables.problem, step, 0.0))
            if took_s < self.best_s:
                self.best_s, self.best = took_s, step


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


def _widened(tables: Tables, options: Sequence[ForkOption]) -> Tables:
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
