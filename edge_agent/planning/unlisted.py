"""What no plan can beat whatever ways its forks run, where not all ways are among the choices.

Branches may go anywhere, each to where it costs least at given weights, and share no run and no
transfer: whatever way a fork runs, it costs no less than that. One such way for each fork and home
stands for all of them in a sweep, which gives a bound. For the rate, the weights are prices, and
the best ones are found as those of mixtures are (see `mixture`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_agent.distributions import PlacedFork
from edge_agent.planning.alone import bytes_of_branches, held_by_branches, seconds_of_branches
from edge_agent.planning.amounts import (
    FIRST_LOAD,
    JOULES,
    SECONDS,
    SIZE_BYTES,
    Caps,
    column_count,
)
from edge_agent.planning.arms import able_in, parted
from edge_agent.planning.branches import ForkOption, at_homes, widened
from edge_agent.planning.known import Flags
from edge_agent.planning.mixing import relaxed
from edge_agent.planning.mixture import Column, Relaxation, Wish
from edge_agent.planning.schedules import least_times
from edge_agent.planning.shortest import Weights, cheapest, sent
from edge_agent.planning.tables import Floats, Ints, Sends, Tables, sends_between, tabulate
from edge_agent.plans import Target
from edge_agent.summaries import Fork

_SHARE = 0.1
"""Of the effort, to find prices; and once more, to improve them."""
_WAY_EFFORT = 80.0
"""Of finding where branches cost least, for each fork and home."""


def least_cost(
    tables: Tables, target: Target, caps: Caps, effort: float, known: Sequence[Column] = ()
) -> float:
    """What nothing can beat, whatever ways forks run: seconds per request for the throughput, else
    the metric; 0 where nothing is known. `known`: good routes for a rate."""
    match target:
        case Target.MEMORY:
            return _least_bytes(tables)
        case Target.LATENCY:
            return AnyWay.of(tables, target).least(Weights.of_time)
        case Target.ENERGY | Target.BYTES:
            return AnyWay.of(tables, target).least(lambda known: Weights.of(known, target))
        case Target.THROUGHPUT:
            return _least_seconds(tables, caps, effort * _SHARE, known)


def _plain(tables: Tables, target: Target) -> Tables:
    """The tables without forks."""
    if not len(tables.forks.steps):
        return tables
    found = tabulate(tables.problem, target)
    assert found is not None, "there are tables already"
    return found


def _least_seconds(tables: Tables, caps: Caps, effort: float, columns: Sequence[Column]) -> float:
    """Seconds per request that no mixture needs fewer than."""
    wish = Wish(target=Target.THROUGHPUT)
    if not columns:
        some = relaxed(tables, wish, caps, effort)
        if np.isinf(some.bound):
            return 0.0
        columns = (*some.columns, *some.idle)
    busiest_s = [float(column.amounts.loads.max(initial=0.0)) for column in columns]
    if not columns or min(busiest_s) <= 0.0:
        return 0.0
    any_way = AnyWay.of(tables, Target.THROUGHPUT)
    memory = dict(zip(tables.pools, caps.memory.tolist(), strict=True))
    known = any_way.tables
    found = _AnyMixture(
        any_way=any_way,
        tables=known,
        wish=wish,
        caps=replace(
            caps,
            loads=np.full(len(known.resources), np.inf),
            memory=np.array([memory.get(pool, np.inf) for pool in known.pools]),
        ),
        scale_s=min(busiest_s),
    )
    found.add([any_way.moved(tables, column) for column in columns])
    found.improve(effort)
    return found.bound if np.isfinite(found.bound) else 0.0


def _least_bytes(tables: Tables) -> float:
    """Of the fullest memory."""
    largest, together = least_held(tables)
    return max(largest, together / len(tables.pools))


def least_held(tables: Tables) -> tuple[float, float]:
    """(bytes that some memory has to hold at once, weights that all memories have to hold together)
    whatever ways forks run: something holds each segment, or each branch of a fork."""
    plain = ~tables.is_fork
    weights = tables.weights[:, plain] + tables.refusal[:, plain]
    whole = (weights + tables.arenas[:, plain]).min(axis=1)
    smallest = weights.min(axis=1)
    for fork in tables.problem.summary.forks:
        inside = slice(fork.segments.start, fork.segments.stop)
        is_able = plain & np.isfinite(tables.refusal[inside]).all(axis=0)
        if not is_able.any():
            continue
        alone = bytes_of_branches(tables, fork)[:, is_able].min(axis=1)
        whole[inside] = np.minimum(whole[inside], alone.max())
        held = held_by_branches(tables, fork)[:, is_able].min(axis=1)
        # Of a fork as one.
        smallest[inside.start] = min(smallest[inside].sum(), held.sum())
        smallest[inside.start + 1 : inside.stop] = 0.0
    return float(whole.max()), float(smallest.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnyWay:
    """Tables with one way for each fork and home, that costs no more than any."""

    tables: Tables
    """What these ways demand is not in it: that depends on the weights."""
    _branches: tuple[_Alone, ...]
    _homes: Ints
    """(e,): of each of `Forks.steps`, among the devices of these branches."""

    @classmethod
    def of(cls, tables: Tables, target: Target) -> AnyWay:
        """For the problem of some tables."""
        bare, options = at_homes(_plain(tables, target), target, _one_each)
        known = widened(bare, options) if options else bare
        forks = bare.problem.summary.forks if options else ()
        is_parted = parted(bare)
        return cls(
            tables=known,
            _branches=tuple(_Alone.of(bare, fork, is_parted) for fork in forks),
            _homes=np.array([known.devices.index(step.home) for step in known.forks.steps]),
        )

    def at(self, weights: Weights) -> Tables:
        """The tables with ways that cost least at one row of weights."""
        forks = self.tables.forks
        if not forks.steps:
            return self.tables
        rows = [branches.demands(weights) for branches in self._branches]
        demands = np.array(
            [rows[s.fork][h] for s, h in zip(forks.steps, self._homes.tolist(), strict=True)]
        )
        demands[:, SECONDS] = forks.demands[:, SECONDS]
        return replace(self.tables, forks=replace(forks, demands=demands))

    def least(self, weights_of: Callable[[Tables], Weights]) -> float:
        """The cost of the cheapest route at one row of weights; infinity if there is none."""
        weights = weights_of(self.tables)
        return float(cheapest(self.at(weights), weights).totals[0])

    def moved(self, tables: Tables, column: Column) -> Column:
        """A route of other tables of the same problem."""
        found = column.amounts
        loads = dict(zip(tables.resources, found.loads.tolist(), strict=True))
        memory = dict(zip(tables.pools, found.memory.tolist(), strict=True))
        own = replace(
            found,
            loads=np.array([loads.get(name, 0.0) for name in self.tables.resources]),
            memory=np.array([memory.get(name, 0.0) for name in self.tables.pools]),
        )
        return replace(column, amounts=own)


@dataclass(slots=True, kw_only=True, eq=False)
class _AnyMixture(Relaxation):
    """The relaxation over routes whose forks run in any way."""

    any_way: AnyWay

    def _price(self, prices: Floats) -> int:
        added = 0
        for row in prices:
            self.tables = self.any_way.at(self._weights(row[None]))
            self.spent += _WAY_EFFORT * len(self.tables.forks.steps)
            # A class with slots is made anew by the decorator, so `super()` has no arguments here.
            added += Relaxation._price(self, row[None])
            # The next time, the same choices of forks stand for other ways.
            self._seen.clear()
        return added


def _one_each(tables: Tables) -> list[ForkOption]:
    """A way for each fork and home that has any, of whose demands only the seconds are known."""
    found = []
    forks = tables.problem.summary.forks
    for index, least_s in enumerate(least_times(tables)):
        for at in np.flatnonzero(np.isfinite(least_s)).tolist():
            home = tables.devices[at]
            step = PlacedFork(fork=index, segments=forks[index].segments, home=home, arms=())
            demands = np.zeros(column_count(tables))
            demands[SECONDS] = least_s[at]
            found.append(ForkOption(step=step, home=at, demands=demands))
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Alone:
    """What each branch of a fork demands alone, but for the seconds of the request."""

    tables: Tables
    able: Ints
    """Choices in which they may run."""
    seconds: Floats
    """(branches, c): of a run, without overhead."""
    held: Floats
    """(branches, c): bytes of weights."""
    there: Sends
    """(branches, d, d): what is read for each branch."""
    back: Sends
    """(branches, d, d): what it gives."""

    @classmethod
    def of(cls, tables: Tables, fork: Fork, is_parted: Flags) -> _Alone:
        given, taken = _carried(fork)
        problem, devices = tables.problem, tables.devices
        return cls(
            tables=tables,
            able=np.array(able_in(tables, fork, is_parted), np.int64),
            seconds=seconds_of_branches(tables, fork)
            + (given + taken)[:, None] * tables.border_s_per_byte,
            held=held_by_branches(tables, fork),
            there=sends_between(problem, devices, given),
            back=sends_between(problem, devices, taken),
        )

    def demands(self, weights: Weights) -> Floats:
        """(d, columns): from each home, of all branches where they cost least at one row of
        weights; of no meaning where they cannot run."""
        tables, able = self.tables, self.able
        count = len(tables.devices)
        rows = np.zeros((count, column_count(tables)))
        if not len(able):
            return rows
        rate = weights.joules[0] * tables.joules_per_s
        rate = rate + weights.loads[0, tables.resource_of] * tables.per_round
        costs = (self.seconds * rate + self.held * weights.memory[0, tables.pool_of])[:, able]
        every = np.arange(count)
        best = np.zeros((len(costs), count), np.int64)
        least = np.full((len(costs), count), np.inf)
        for device in np.unique(tables.device_of[able]).tolist():
            (own,) = np.nonzero(tables.device_of[able] == device)
            first = own[costs[:, own].argmin(axis=1)]
            best[:, device] = able[first]
            least[:, device] = costs[np.arange(len(costs)), first]
        trips = self._sent(self.there, weights) + self._sent(self.back, weights).swapaxes(1, 2)
        places = (trips + least[:, None, :]).argmin(axis=2)
        for branch, at in enumerate(places):
            choice = best[branch, at]
            self._add_run(rows, choice, self.seconds[branch, choice])
            first = FIRST_LOAD + len(tables.resources)
            rows[every, first + tables.pool_of[choice]] += self.held[branch, choice]
            self._add_sends(rows, self.there, branch, every, at, every)
            self._add_sends(rows, self.back, branch, at, every, every)
        # A way has two arms at least.
        starting = able[(tables.overhead * rate)[able].argmin()]
        self._add_run(rows, np.full(count, starting), 2.0 * tables.overhead[[starting] * count])
        return rows

    def _sent(self, sends: Sends, weights: Weights) -> Floats:
        """(branches, d, d): what sending costs, but for the time."""
        tables = self.tables
        here = weights.loads[:, tables.host_of]
        link = weights.loads[:, tables.link_of]
        untimed = replace(weights, seconds=np.zeros(1))
        return sent(sends, untimed, here[:, :, None], here[:, None, :], link)[:, 0]

    def _add_run(self, rows: Floats, choice: Ints, seconds: Floats) -> None:
        tables = self.tables
        every = np.arange(len(rows))
        rows[:, JOULES] += seconds * tables.joules_per_s[choice]
        load = seconds * tables.per_round[choice]
        rows[every, FIRST_LOAD + tables.resource_of[choice]] += load

    def _add_sends(
        self, rows: Floats, sends: Sends, branch: int, source: Ints, target: Ints, every: Ints
    ) -> None:
        tables = self.tables
        at = (branch, source, target)
        rows[:, JOULES] += sends.joules[at]
        rows[:, SIZE_BYTES] += sends.size_bytes[at]
        rows[every, FIRST_LOAD + tables.link_of[source, target]] += sends.link_seconds[at]
        rows[every, FIRST_LOAD + tables.host_of[source]] += sends.source_seconds[at]
        rows[every, FIRST_LOAD + tables.host_of[target]] += sends.target_seconds[at]


def _carried(fork: Fork) -> tuple[Floats, Floats]:
    """(branches,) each: bytes that are read for each branch, those that several read by equal
    parts, and that it gives."""
    given = np.array([float(branch.input_bytes) for branch in fork.branches])
    for shared in fork.shared:
        readers = list(shared.branches)
        given[readers] -= shared.size_bytes * (1.0 - 1.0 / len(readers))
    taken = np.array([float(branch.output_bytes) for branch in fork.branches])
    return given, taken
