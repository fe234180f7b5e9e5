"""Ways to run forks that spread what is short over the devices, where not all can be looked at.

Branches are placed one after another, the heaviest first, each where the fullest memory, or the
busiest resource, is then least (Graham, Bounds on multiprocessing timing anomalies, SIAM Journal on
Applied Mathematics 17, 1969). What else a route has to hold and to do is not known yet, and most of
it may be at one place: so each machine in turn is left free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedFork
from edge_agent.planning.alone import bytes_of_branches, crossing, seconds_of_branches
from edge_agent.planning.amounts import FIRST_LOAD, memory_columns
from edge_agent.planning.arms import (
    Branches,
    Machine,
    able_in,
    arm_of,
    is_way,
    machines_of,
    orders_of,
    parted,
)
from edge_agent.planning.tables import Floats, Ints, Tables
from edge_agent.summaries import Fork

_MOST_WAYS = 400
"""That are made in all."""


def spread_ways(
    tables: Tables, *, is_rate: bool, is_sized: bool, most: int
) -> Iterator[PlacedFork]:
    """Of each fork and home at most so many ways; `is_rate`: loads count, `is_sized`: memory."""
    forks = tables.problem.summary.forks
    is_parted = parted(tables)
    count = min(most, _MOST_WAYS // max(len(forks) * len(tables.devices), 1))
    if count < 1:
        return
    columns = _short(tables, is_rate=is_rate, is_sized=is_sized)
    for index, fork in enumerate(forks):
        able = able_in(tables, fork, is_parted)
        rows = _rows(tables, fork)
        for home in tables.devices:
            machines = machines_of(tables, able, home)
            spread = _Spread(tables=tables, fork=fork, machines=machines, rows=rows)
            made: dict[PlacedFork, None] = {}
            for free, inside in islice(product((None, *range(len(machines))), columns), count):
                arms = spread.over(inside, free)
                placed = {m: own for m, (own, _) in arms.items()}
                if is_way(tables, fork, home, machines, placed):
                    made[_step(tables, index, home, arms)] = None
            yield from made


def _short(tables: Tables, *, is_rate: bool, is_sized: bool) -> list[Ints]:
    """Columns of amounts of which the greatest is to be small."""
    memory = memory_columns(tables)
    found = [memory] if is_sized else []
    return [*found, np.arange(FIRST_LOAD, memory[0])] if is_rate else found


def _rows(tables: Tables, fork: Fork) -> Floats:
    """(branches, c, columns): about what each branch alone demands in each choice, without what is
    sent."""
    given, taken = crossing(fork)
    seconds = seconds_of_branches(tables, fork) + tables.overhead
    seconds = seconds + (given + taken)[:, None] * tables.border_s_per_byte
    size = bytes_of_branches(tables, fork)
    first = FIRST_LOAD + len(tables.resources)
    found = np.zeros((*seconds.shape, first + len(tables.pools)))
    every = np.arange(len(tables.choices))
    found[:, every, FIRST_LOAD + tables.resource_of] = seconds * tables.per_round
    found[:, every, first + tables.pool_of] = size
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Spread:
    tables: Tables
    fork: Fork
    machines: Sequence[Machine]
    rows: Floats
    """As `_rows`."""

    def over(self, columns: Ints, free: int | None) -> dict[int, tuple[Branches, int]]:
        """(branches, choice) of each machine that has an arm, so that the greatest of `columns` is
        small; nothing runs on the machine `free`."""
        rows = self.rows[:, :, columns]
        heaviest = rows.max(axis=2).min(axis=1)
        total = np.zeros(len(columns))
        arms: dict[int, tuple[Branches, int]] = {}
        for b in sorted(range(len(rows)), key=lambda b: (-heaviest[b], b)):
            places = [
                (m, c)
                for m, machine in enumerate(self.machines)
                if m != free
                for c in ((arms[m][1],) if m in arms else machine.choices)
            ]
            if not places:
                return {}
            after = total + rows[b, [c for _, c in places]]
            best = np.lexsort((after.sum(axis=1), after.max(axis=1)))[0]
            total = after[best]
            machine, choice = places[int(best)]
            own, _ = arms.get(machine, ((), choice))
            arms[machine] = (tuple(sorted((*own, b))), choice)
        return arms


def _step(
    tables: Tables, index: int, home: DeviceId, arms: dict[int, tuple[Branches, int]]
) -> PlacedFork:
    made = [arm_of(tables, own, choice) for _, (own, choice) in sorted(arms.items())]
    order = next(orders_of(tables, home, made))
    segments = tables.problem.summary.forks[index].segments
    return PlacedFork(fork=index, segments=segments, home=home, arms=tuple(order))
