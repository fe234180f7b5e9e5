"""Amounts: all that a linear route demands as one row of numbers, caps on it, and what is aimed at.

The columns are seconds, joules, bytes on links, the seconds of each resource, the bytes of each
memory, in this order; the formulas are those of `planning.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from edge_agent.planning.shortest import Weights
from edge_agent.planning.tables import Floats, Ints, Sends, Tables

SECONDS, JOULES, SIZE_BYTES, FIRST_LOAD = 0, 1, 2, 3
"""Columns; behind the loads are the memories."""

CLOSE = 1e-9
"""Two values this near each other, as a share, are equal but for what sums of floats leave."""
SLACK = 1e-12
"""Sums of times in another order differ by about this; sums of bytes are exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Amounts:
    """What a route demands of everything, per request."""

    seconds: float
    joules: float
    size_bytes: float
    loads: Floats
    """(resources,): seconds that each is busy."""
    memory: Floats
    """(pools,): bytes of weights and activations."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Caps:
    """Most that a route may demand; infinity where nothing binds."""

    seconds: float = np.inf
    joules: float = np.inf
    size_bytes: float = np.inf
    loads: Floats
    """(resources,): seconds that each resource may be busy per request."""
    memory: Floats
    """(pools,): bytes. The budgets of the tables are not looked at, only these."""

    @classmethod
    def none(cls, tables: Tables) -> Caps:
        """Nothing binds."""
        return cls(
            loads=np.full(len(tables.resources), np.inf),
            memory=np.full(len(tables.pools), np.inf),
        )

    @property
    def row(self) -> Floats:
        """(columns,)"""
        return np.concatenate(
            ([self.seconds, self.joules, self.size_bytes], self.loads, self.memory)
        )

    @property
    def is_sized(self) -> bool:
        """Whether a memory has a budget."""
        return bool(np.isfinite(self.memory).any())

    def allows(self, found: Amounts) -> bool:
        """Whether a route keeps to them, but for what sums of floats leave."""
        room = 1.0 + CLOSE
        return (
            found.seconds <= self.seconds * room
            and found.joules <= self.joules * room
            and found.size_bytes <= self.size_bytes * room
            and bool((found.loads <= self.loads * room).all())
            and bool((found.memory <= self.memory * room).all())
        )


class Bottleneck(StrEnum):
    """What to make small of which only the greatest counts."""

    LOADS = "loads"
    """Seconds of the busiest resource per request."""
    MEMORY = "memory"
    """Bytes in the fullest memory."""


Aim = Weights | Bottleneck
"""What to make small: a weighted sum, as one row of weights, or a greatest."""


def column_count(tables: Tables) -> int:
    """How many columns a row of amounts has."""
    return FIRST_LOAD + len(tables.resources) + len(tables.pools)


def load_columns(tables: Tables) -> Ints:
    """Columns of the resources."""
    return np.arange(FIRST_LOAD, FIRST_LOAD + len(tables.resources))


def memory_columns(tables: Tables) -> Ints:
    """Columns of the memories."""
    first = FIRST_LOAD + len(tables.resources)
    return np.arange(first, first + len(tables.pools))


def bottleneck_columns(tables: Tables, aim: Bottleneck) -> Ints:
    """The columns of which the greatest counts."""
    return load_columns(tables) if aim is Bottleneck.LOADS else memory_columns(tables)


def as_weights(tables: Tables, rows: Floats) -> Weights:
    """Weights of (b, columns)."""
    behind = FIRST_LOAD + len(tables.resources)
    return Weights(
        seconds=rows[:, SECONDS],
        joules=rows[:, JOULES],
        size_bytes=rows[:, SIZE_BYTES],
        loads=rows[:, FIRST_LOAD:behind],
        memory=rows[:, behind:],
    )


def aim_row(tables: Tables, aim: Aim) -> Floats:
    """(columns,): what each counts in the aim; nothing where a greatest is aimed at."""
    if isinstance(aim, Bottleneck):
        return np.zeros(column_count(tables))
    scalars = [aim.seconds[0], aim.joules[0], aim.size_bytes[0]]
    return np.concatenate((scalars, aim.loads[0], aim.memory[0]))


def aimed(tables: Tables, aim: Aim, amounts: Floats) -> float:
    """The value of the aim for a row of amounts."""
    if isinstance(aim, Bottleneck):
        return float(amounts[bottleneck_columns(tables, aim)].max())
    return float(amounts @ aim_row(tables, aim))


def demands_of_runs(tables: Tables) -> Floats:
    """(c, columns): what each second of a run in a choice demands; nothing of memories."""
    count = len(tables.choices)
    rows = np.zeros((count, column_count(tables)))
    rows[:, SECONDS] = 1.0
    rows[:, JOULES] = tables.joules_per_s
    rows[np.arange(count), FIRST_LOAD + tables.resource_of] = tables.per_round
    return rows


def demands_of_sends(
    tables: Tables, sends: Sends, source: Ints | int, target: Ints | int, link: Ints
) -> Floats:
    """(..., columns) for sends of (...); `source`, `target`, `link`: resources, of (...) without
    the places."""
    shape = sends.seconds.shape
    rows = np.zeros((*shape, column_count(tables)))
    rows[..., SECONDS] = sends.seconds
    rows[..., JOULES] = sends.joules
    rows[..., SIZE_BYTES] = sends.size_bytes
    every = np.indices(shape, sparse=True)
    # One after the other: a host may be both, and a link of no length is resource 0.
    for resource, busy_s in (
        (link, sends.link_seconds),
        (source, sends.source_seconds),
        (target, sends.target_seconds),
    ):
        rows[(*every, FIRST_LOAD + np.broadcast_to(resource, shape))] += busy_s
    return rows


def demanded(tables: Tables, pieces: Sequence[tuple[int, int]]) -> Floats:
    """(columns,): what a route of (first segment, choice) demands, if it is one."""
    row: Floats = demanded_by(tables, [pieces])[0]
    return row


def demanded_by(tables: Tables, routes: Sequence[Sequence[tuple[int, int]]]) -> Floats:
    """(k, columns): what each of k routes demands, one or more."""
    n = tables.places
    starts, choices = np.array([piece for pieces in routes for piece in pieces]).T
    route_of = np.repeat(np.arange(len(routes)), [len(pieces) for pieces in routes])
    rows = _Rows(tables, len(routes))
    # All routes behind each other, as one with all segments as often.
    firsts = starts + route_of * n
    chosen = np.repeat(choices, np.diff(firsts, append=n * len(routes)))
    every = np.arange(n * len(routes)) % n
    run_s = np.add.reduceat(tables.seconds[every, chosen], firsts) + tables.overhead[choices]
    inner = np.flatnonzero(starts)
    _add_borders(tables, run_s, starts, choices, inner)
    rows.add(route_of, SECONDS, run_s)
    rows.add(route_of, JOULES, run_s * tables.joules_per_s[choices])
    resources = FIRST_LOAD + tables.resource_of[choices]
    rows.add(route_of, resources, run_s * tables.per_round[choices])
    held = np.add.reduceat(tables.weights[every, chosen], firsts)
    held += np.maximum.reduceat(tables.arenas[every, chosen], firsts)
    pools = FIRST_LOAD + len(tables.resources) + tables.pool_of[choices]
    rows.add(route_of, pools, held)
    _add_sends(tables, rows, route_of, starts, tables.device_of[choices], inner)
    forks = tables.forks
    if len(forks.places):
        is_run = chosen.reshape(len(routes), n)[:, forks.places] == forks.choices
        demanded: Floats = rows.values + is_run @ forks.demands
        return demanded
    return rows.values


class _Rows:
    """(k, columns), to which much is added at once."""

    def __init__(self, tables: Tables, count: int) -> None:
        self.values: Floats = np.zeros((count, column_count(tables)))
        self._flat = self.values.reshape(-1)

    def add(self, rows: Ints, columns: Ints | int, values: Floats) -> None:
        np.add.at(self._flat, rows * self.values.shape[1] + columns, values)


def _add_borders(tables: Tables, run_s: Floats, starts: Ints, choices: Ints, inner: Ints) -> None:
    """`inner`: where subgraphs that are not the first of their route are."""
    group_of = tables.groups
    at, before, after = starts[inner], choices[inner - 1], choices[inner]
    is_kept = (group_of[before] >= 0) & (group_of[before] == group_of[after])
    for sides, own in ((inner - 1, before), (inner, after)):
        run_s[sides] += np.where(is_kept, tables.inner[at, own], tables.border[at, own])


def _add_sends(
    tables: Tables, rows: _Rows, route_of: Ints, starts: Ints, devices: Ints, inner: Ints
) -> None:
    hosts = tables.host_of
    begins = np.flatnonzero(starts == 0)
    ends = np.append(begins[1:], len(starts)) - 1
    moves = inner[devices[inner - 1] != devices[inner]]
    source, target = devices[moves - 1], devices[moves]
    first, last = devices[begins], devices[ends]
    owner = np.full(len(begins), tables.owner_host)
    for sends, who, at, link, here, there in (
        (tables.first_sends, begins, (first,), tables.in_link_of[first], owner, hosts[first]),
        (
            tables.sends,
            moves,
            (starts[moves], source, target),
            tables.link_of[source, target],
            hosts[source],
            hosts[target],
        ),
        (tables.last_sends, ends, (last,), tables.out_link_of[last], hosts[last], owner),
    ):
        of = route_of[who]
        rows.add(of, SECONDS, sends.seconds[at])
        rows.add(of, JOULES, sends.joules[at])
        rows.add(of, SIZE_BYTES, sends.size_bytes[at])
        rows.add(of, FIRST_LOAD + link, sends.link_seconds[at])
        rows.add(of, FIRST_LOAD + here, sends.source_seconds[at])
        rows.add(of, FIRST_LOAD + there, sends.target_seconds[at])


def amounts(tables: Tables, pieces: Sequence[tuple[int, int]]) -> Amounts:
    """What a route of subgraphs demands."""
    return amounts_by(tables, [pieces])[0]


def amounts_by(tables: Tables, routes: Sequence[Sequence[tuple[int, int]]]) -> list[Amounts]:
    """What each of some routes demands."""
    if not routes:
        return []
    behind = FIRST_LOAD + len(tables.resources)
    return [
        Amounts(
            seconds=float(row[SECONDS]),
            joules=float(row[JOULES]),
            size_bytes=float(row[SIZE_BYTES]),
            loads=row[FIRST_LOAD:behind],
            memory=row[behind:],
        )
        for row in demanded_by(tables, routes)
    ]


def limits(tables: Tables, caps: Caps) -> Floats:
    """(columns,): the caps, with room for rounding where sums are of floats."""
    row = caps.row
    row[[SECONDS, JOULES]] *= 1.0 + SLACK
    row[load_columns(tables)] *= 1.0 + SLACK
    return row
