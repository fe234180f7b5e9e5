"""The schedule of a fork's branches that ends soonest.

It is searched by depth first over the branches, the heaviest first, cut off where one machine
alone, with what the cores of the home have to send, already takes as long as the best schedule
known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedFork
from edge_agent.planning.alone import crossing, seconds_of_branches
from edge_agent.planning.arms import (
    MOST_ORDERED,
    Branches,
    Machine,
    able_in,
    arm_of,
    is_order_open,
    machines_of,
    may_go,
    orders_of,
    parted,
)
from edge_agent.planning.metrics import (
    Computing,
    Leg,
    Sending,
    fork_legs,
    latency_s,
    processor_s_per_byte,
    sending_s,
    wire_s_per_byte,
)
from edge_agent.planning.tables import Floats, Tables, sends_between
from edge_agent.problems import Link, Problem
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Fork

_MOST_TRIES = 4000
"""Schedules that are looked at in all, to find the quickest of each fork and home."""
_LEAST_TRIES = 8
"""But for each at least so many."""
_NODES = 24
"""Arms that are begun, for each schedule that may be looked at."""
_SURELY = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """The way to run a fork at once, from a home device back to it, that ends soonest."""

    home: int
    """Index of `Tables.devices`."""
    least_s: float
    """It takes no less."""
    _branches: _Parallel
    _tries: int

    @property
    def index(self) -> int:
        """Of the fork."""
        return self._branches.index

    @property
    def segments(self) -> SegmentRange:
        """Those of the fork."""
        return self._branches.fork.segments

    def soonest(self) -> Ending:
        """The best that is found."""
        search = self._branches.search(self.home, self._tries)
        if search is None:
            return Ending(step=None, is_certain=True)
        found = search.soonest()
        return Ending(step=found, is_certain=not search.is_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a schedule comes to."""

    step: PlacedFork | None
    """None: nothing that was looked at beats running the branches one after another."""
    is_certain: bool
    """Whether nothing ends sooner; else not all was looked at."""


def schedules(tables: Tables) -> Iterator[Schedule]:
    """Of every fork and home, where running branches at once may take less than running them one
    after another there."""
    forks = tables.problem.summary.forks
    tries = max(_MOST_TRIES // max(len(forks) * len(tables.devices), 1), _LEAST_TRIES)
    places = _Places(tables)
    for index, trips_s in enumerate(_trips_s(tables, forks)):
        branches = _Parallel.of(places, index, trips_s)
        least_s = branches.least_s
        (homes,) = np.nonzero(least_s <= branches.linear_s * _SURELY)
        for home in homes.tolist():
            yield Schedule(
                home=home, least_s=float(least_s[home]), _branches=branches, _tries=tries
            )


def least_times(tables: Tables) -> list[Floats]:
    """Of each fork (d,): seconds that no schedule from each home ends before; infinity where there
    is none."""
    forks = tables.problem.summary.forks
    places = _Places(tables)
    made = (_Parallel.of(places, i, trips_s) for i, trips_s in enumerate(_trips_s(tables, forks)))
    return [branches.least_s for branches in made]


class _Places:
    """Where branches may run and how they get there, of all forks."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.is_parted = parted(tables)
        self.around = tables.overhead.tolist(), tables.border_s_per_byte.tolist()
        self._machines: dict[tuple[Branches, DeviceId], list[Machine]] = {}
        problem = tables.problem
        ways = {(k.source, k.target): _Way.of(problem, k) for k in problem.links}
        self._trips = {
            (source, target): _Trip(there=way, back=ways[target, source])
            for (source, target), way in ways.items()
            if (target, source) in ways
        }

    def machines(self, able: Branches, home: DeviceId) -> list[Machine]:
        """As `machines_of`."""
        if (able, home) not in self._machines:
            self._machines[able, home] = machines_of(self.tables, able, home)
        return self._machines[able, home]

    def trip(self, home: DeviceId, machine: Machine) -> _Trip | None:
        """There and back; None: it is at home."""
        return self._trips.get((home, machine.device))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parallel:
    """The branches of one fork."""

    places: _Places
    index: int
    fork: Fork
    able: tuple[int, ...]
    """The choices in which they may run."""
    seconds: Floats
    """(branches, c): of each branch alone, without overhead and borders."""
    linear_s: Floats
    """(d,): as `_linear_s`."""
    alone_s: Floats
    """(branches, d, d): as `_alone_s`."""
    arms: dict[tuple[Branches, Branches], tuple[float, int]] = field(default_factory=dict)
    """As `_Search.arms`."""

    @classmethod
    def of(cls, places: _Places, index: int, trips_s: Floats) -> _Parallel:
        tables = places.tables
        fork = tables.problem.summary.forks[index]
        seconds = seconds_of_branches(tables, fork)
        able = able_in(tables, fork, places.is_parted)
        return cls(
            places=places,
            index=index,
            fork=fork,
            able=tuple(able),
            seconds=seconds,
            linear_s=_linear_s(tables, fork.segments),
            alone_s=_alone_s(tables, fork, seconds, able, trips_s),
        )

    @property
    def least_s(self) -> Floats:
        """(d,): as `_least_s`."""
        return _least_s(self.places.tables, self.able, self.seconds, self.alone_s)

    def search(self, home: int, tries: int) -> _Search | None:
        """The search from a home; None: there is but one place."""
        tables = self.places.tables
        device = tables.devices[home]
        machines = self.places.machines(self.able, device)
        if len(machines) < 2:
            return None
        index_of = {name: at for at, name in enumerate(tables.devices)}
        return _Search(
            tables=tables,
            index=self.index,
            fork=self.fork,
            home=device,
            machines=machines,
            trips=[self.places.trip(device, m) for m in machines],
            seconds=self.seconds.tolist(),
            around=self.places.around,
            alone_s=[self.alone_s[:, home, index_of[m.device]].tolist() for m in machines],
            cores=tables.problem.device(device).cores,
            host=_host(tables, machines, device),
            arms=self.arms,
            tries=tries,
            best_s=float(self.linear_s[home]),
        )


def _host(tables: Tables, machines: Sequence[Machine], home: DeviceId) -> int | None:
    """The machine that is the cores of the home."""
    host = tables.host_of[tables.devices.index(home)]
    for at, machine in enumerate(machines):
        if machine.device == home and tables.resource_of[machine.choices[0]] == host:
            return at
    return None


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


def _trips_s(tables: Tables, forks: Sequence[Fork]) -> list[Floats]:
    """Of each fork (branches, d, d): seconds of sending what each branch alone reads from each home
    to each device, and what it gives back."""
    given_bytes, taken_bytes = zip(*map(crossing, forks), strict=True)
    sizes = np.concatenate([*given_bytes, *taken_bytes])
    sends = sends_between(tables.problem, tables.devices, sizes)
    given, taken = np.split(sends.seconds + sends.penalty, 2)
    trips = given + taken.swapaxes(1, 2)
    return np.split(trips, np.cumsum([len(fork.branches) for fork in forks])[:-1])


def _alone_s(
    tables: Tables, fork: Fork, seconds: Floats, able: Sequence[int], trips_s: Floats
) -> Floats:
    """(branches, d, d): from each home, seconds of each branch alone on each device, there and
    back. For `seconds` see `_Search`."""
    given, taken = crossing(fork)
    took = seconds + tables.overhead + (given + taken)[:, None] * tables.border_s_per_byte
    alone_s = np.full((len(tables.devices), len(fork.branches)), np.inf)
    np.minimum.at(alone_s, tables.device_of[able], took[:, able].T)
    found: Floats = alone_s.T[:, None, :] + trips_s
    return found


def _least_s(tables: Tables, able: Sequence[int], seconds: Floats, alone_s: Floats) -> Floats:
    """(d,): from each home, no schedule takes less: each branch is somewhere, all are shared among
    so many machines, and where the home can run one arm at a time, one of them is elsewhere."""
    least_s: Floats = alone_s.min(axis=2).max(axis=0)
    is_home = np.eye(len(least_s), dtype=bool)
    away_s = np.where(is_home, np.inf, alone_s.min(axis=0)).min(axis=1)
    resources = {(int(tables.device_of[c]), int(tables.resource_of[c])) for c in able}
    counts = Counter(device for device, _ in resources)
    is_single = np.array([counts[d] < 2 for d in range(len(least_s))])
    least_s = np.where(is_single, np.maximum(least_s, away_s), least_s)
    if not counts:
        return least_s
    machines = np.array([len(counts.keys() - {d}) + counts[d] for d in range(len(least_s))])
    together_s = seconds[:, able].min(axis=1).sum()
    found: Floats = np.maximum(least_s, together_s / machines)
    return found


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
            wire_s_per_byte=wire_s_per_byte(self.link),
            send_s_per_byte=self.send_s_per_byte,
            receive_s_per_byte=self.receive_s_per_byte,
            chunk_bytes=problem.chunk_bytes / self.link.ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trip:
    there: _Way
    back: _Way


@dataclass(slots=True, kw_only=True)
class _Search:
    """The search for one fork and home."""

    tables: Tables
    index: int
    fork: Fork
    home: DeviceId
    machines: Sequence[Machine]
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
    arms: dict[tuple[Branches, Branches], tuple[float, int]]
    """What is known of arms: by (choices, branches), as `_choice`. Of all homes."""
    trips: Sequence[_Trip | None]
    """To each machine and back; None: it is at home."""
    cores: int
    """Of the home; they send and receive beside what they compute."""
    host: int | None
    """The machine that is the cores of the home, if branches may run there."""
    best: PlacedFork | None = None
    is_cut: bool = False
    """Whether something was left out that might be better."""
    _open_s: float = float("inf")
    """What was left out does not end before."""
    _nodes: int = 0
    """Arms that may still be begun."""
    _runs: dict[tuple[int, Branches], tuple[float, int]] = field(default_factory=dict)
    _sends: dict[tuple[int, Branches], float] = field(default_factory=dict)

    def run_s(self, machine: int, branches: Branches) -> tuple[float, int]:
        """Seconds of an arm on a machine in its best choice, there and back if nothing else is
        sent, and that choice; infinity if it cannot go there."""
        key = (machine, branches)
        if key not in self._runs:
            run_s, choice = self._choice(self.machines[machine].choices, branches)
            sent_s = self._sent_s(machine, branches) if self.trips[machine] else 0.0
            self._runs[key] = run_s + sent_s, choice
        return self._runs[key]

    def _home_s(self, machine: int, branches: Branches) -> float:
        """Seconds for which an arm elsewhere keeps all cores of the home from computing."""
        trip = self.trips[machine]
        if trip is None:
            return 0.0
        key = (machine, branches)
        if key not in self._sends:
            there = self.fork.input_bytes(branches) * trip.there.send_s_per_byte
            back = sum(self.fork.branches[b].output_bytes for b in branches)
            took_s = there + back * trip.back.receive_s_per_byte
            self._sends[key] = took_s / self.cores
        return self._sends[key]

    def _choice(self, choices: Branches, branches: Branches) -> tuple[float, int]:
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

    def _sent_s(self, machine: int, branches: Branches) -> float:
        trip = self.trips[machine]
        assert trip is not None, "it is not at home"
        if not may_go(self.tables, self.fork, self.home, self.machines[machine], branches):
            return float("inf")
        there = self.fork.input_bytes(branches)
        back = sum(self.fork.branches[b].output_bytes for b in branches)
        problem = self.tables.problem
        return trip.there.sent_s(problem, there) + trip.back.sent_s(problem, back)

    def soonest(self) -> PlacedFork | None:
        """The schedule that ends soonest; None if none is found that beats running without."""
        quickest_s = [min(alone) for alone in zip(*self.alone_s, strict=True)]
        order = sorted(range(len(self.fork.branches)), key=lambda b: (-quickest_s[b], b))
        self._nodes = _NODES * self.tries
        self._deepen(order, ((),) * len(self.machines), 0.0, 0.0)
        self.is_cut |= self._open_s < self.best_s
        return self.best

    def _deepen(
        self, order: Sequence[int], arms: tuple[Branches, ...], ends_s: float, sent_s: float
    ) -> None:
        """Give the branches of `order` to machines; `arms` are those of each machine by now, none
        of which ends before `ends_s`, and for which the cores of the home send for `sent_s`."""
        if not order:
            self._try(arms)
            return
        further = []
        for machine, own in enumerate(arms):
            if self.alone_s[machine][order[0]] > self.best_s * _SURELY:
                continue
            self._nodes -= 1
            longer = tuple(sorted((*own, order[0])))
            after = (*arms[:machine], longer, *arms[machine + 1 :])
            sent = sent_s - self._home_s(machine, own) + self._home_s(machine, longer)
            ends = max(ends_s, self.run_s(machine, longer)[0])
            if self.host is not None and after[self.host]:
                ends = max(ends, self.run_s(self.host, after[self.host])[0] + max(sent, 0.0))
            further.append((ends, machine, after, sent))
        for ends, _, after, sent in sorted(further):
            # Sums of times in another order differ a little.
            if ends >= self.best_s * _SURELY:
                break
            if self.tries <= 0 or self._nodes <= 0:
                self.is_cut = True
                break
            self._deepen(order[1:], after, ends, sent)

    def _try(self, arms: tuple[Branches, ...]) -> None:
        used = [machine for machine, own in enumerate(arms) if own]
        if len(used) < 2:
            return
        placed = [arm_of(self.tables, arms[m], self.run_s(m, arms[m])[1]) for m in used]
        self.is_cut |= is_order_open(self.tables, self.home, placed)
        # What is ready later may let something else go first.
        may_be_late = any(self.trips[m] and len(self.machines[m].choices) > 1 for m in used)
        for order in orders_of(self.tables, self.home, placed):
            step = PlacedFork(
                fork=self.index, segments=self.fork.segments, home=self.home, arms=tuple(order)
            )
            found = fork_legs(self.tables.problem, step, 0.0)
            self.tries -= 1
            took_s = latency_s(found)
            if took_s < self.best_s:
                self.best_s, self.best = took_s, step
            if may_be_late:
                self._open_s = min(self._open_s, _in_any_order_s(step, found))


def _in_any_order_s(step: PlacedFork, found: Sequence[Leg]) -> float:
    """Seconds that a fork does not end before, in whatever order results come back and however
    long after its arms are ready."""
    sends = [leg for leg in found if isinstance(leg, Sending)]
    back = [leg for leg in sends if leg.boundary == step.segments.stop]
    if len({leg.link.resource for leg in back}) == len(back):
        return latency_s(found)
    ready_s: dict[DeviceId, float] = {}
    for leg in found:
        if isinstance(leg, Computing):
            ready_s[leg.device] = max(ready_s.get(leg.device, 0.0), leg.start_s + leg.took_s)
    free_s: dict[str, float] = {}
    for leg in sends:
        if leg.boundary == step.segments.start:
            name = leg.link.resource
            free_s[name] = max(free_s.get(name, 0.0), leg.start_s + leg.wire_s)
    home_s = ready_s.get(step.home, 0.0)
    least_s = float("inf")
    for order in permutations(back[:MOST_ORDERED]):
        free, ends_s = dict(free_s), home_s
        for leg in order:
            begin_s = max(ready_s[leg.link.source], free.get(leg.link.resource, 0.0))
            free[leg.link.resource] = begin_s + leg.wire_s
            ends_s = max(ends_s, begin_s + leg.took_s)
        least_s = min(least_s, ends_s)
    return least_s
