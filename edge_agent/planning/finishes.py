"""How to finish a partial route: for some weightings, the cheapest rest from everywhere, with what
it demands of everything that is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_agent.planning.amounts import demands_of_runs, demands_of_sends
from edge_agent.planning.shortest import Paths
from edge_agent.planning.tables import Floats, Ints, Tables


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """What the steps of a route demand of `k` columns that are looked at."""

    tables: Tables
    run: Floats
    """(c, k): for each second of a run; nothing of memories."""
    send: Floats
    """(n, d, d, k)"""
    first: Floats
    """(d, k)"""
    last: Floats
    """(d, k)"""
    memory: Floats
    """(c, k): 1 in the column of a choice's memory, if that is looked at."""
    pool: Ints
    """(c,): which column that is; -1 if none."""

    def on(self, place: int) -> Floats:
        """(c, k): running a segment, but for its arena."""
        tables = self.tables
        found: Floats = tables.seconds[place][:, None] * self.run
        found += tables.weights[place][:, None] * self.memory
        return found


def steps(tables: Tables, mix: Floats, memory_columns: Ints) -> Steps:
    """Of the columns that `mix` (columns, k) makes of the amounts; memories are never mixed."""
    hosts = tables.host_of
    sends = demands_of_sends(tables, tables.sends, hosts[:, None], hosts[None, :], tables.link_of)
    ends = tables.first_sends, tables.last_sends
    first = demands_of_sends(tables, ends[0], tables.owner_host, hosts, tables.in_link_of)
    last = demands_of_sends(tables, ends[1], hosts, tables.owner_host, tables.out_link_of)
    memory = mix[memory_columns][tables.pool_of]
    pool = np.where(memory.any(axis=1), memory.argmax(axis=1), -1)
    return Steps(
        tables=tables,
        run=demands_of_runs(tables) @ mix,
        send=sends @ mix,
        first=first @ mix,
        last=last @ mix,
        memory=memory,
        pool=pool,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finishes:
    """The cheapest rests of routes, for `b` weightings."""

    tails: Floats
    """(n + 1, b, c): what they cost, as in `Paths`."""
    heads: Floats
    """(n, b, d)"""
    next: Ints
    """(n, b, c): the choice in which a subgraph begins before segment p; -1: the last goes on."""
    demands: Floats
    """(n + 1, b, c, k): what they demand, but for the arena of the subgraph that goes on."""
    arenas: Floats
    """(n + 1, b, c): most that the rest of the subgraph that goes on needs."""

    def pieces(self, place: int, b: int, choice: int) -> list[tuple[int, int]]:
        """(first segment, choice) of what is begun, with segments before `place` done."""
        found = []
        for at in range(place, len(self.next)):
            begun = int(self.next[at, b, choice])
            if begun >= 0:
                choice = begun
                found.append((at, choice))
        return found


def finishes(paths: Paths, known: Steps) -> Finishes:
    """What the cheapest rests of `paths`, which are without forks, demand."""
    tables, tails = paths.tables, paths.tails
    n, batch, count = tables.places, tails.shape[1], len(tables.choices)
    following = np.full((n, batch, count), -1)
    demands = np.zeros((n + 1, batch, count, known.run.shape[1]))
    arenas = np.zeros((n + 1, batch, count))
    demands[n] = known.last[tables.device_of]
    overhead = tables.overhead[:, None] * known.run
    rows = np.arange(batch)[:, None]
    group_of = np.full(count, -1)
    group_of[tables.grouped] = tables.group_of
    devices = tables.device_of
    for place in range(n - 1, -1, -1):
        going_on = demands[place + 1] + known.on(place)
        arena = np.maximum(arenas[place + 1], tables.arenas[place])
        follows = _following(paths, place)
        border = (tables.border[place])[:, None] * known.run
        inner = (tables.inner[place])[:, None] * known.run
        begun = going_on + overhead + arena[..., None] * known.memory
        taken = np.maximum(follows, 0)
        is_inner = (group_of >= 0) & (group_of == group_of[taken])
        crossing = np.where(is_inner[..., None], inner + inner[taken], border + border[taken])
        sent = known.send[place][devices, devices[taken]]
        is_over = follows >= 0
        demands[place] = np.where(
            is_over[..., None], begun[rows, taken] + crossing + sent, going_on
        )
        arenas[place] = np.where(is_over, 0.0, arena)
        following[place] = follows
    return Finishes(tails=tails, heads=paths.heads, next=following, demands=demands, arenas=arenas)


def _following(paths: Paths, place: int) -> Ints:
    """(b, c): what `Finishes.next` has, chosen as `Paths.pieces` does."""
    tables, costs = paths.tables, paths.costs
    on = costs.segment[place] + paths.tails[place + 1]
    devices = tables.device_of
    begun = costs.begin[place] + on
    best = np.stack(
        [
            first + part.argmin(axis=1)
            for first, part in zip(
                tables.first_of, np.split(begun, tables.first_of[1:], axis=1), strict=True
            )
        ],
        axis=1,
    )
    nearest = (costs.send[place] + paths.heads[place][:, None, :]).argmin(axis=2)
    rows = np.arange(len(on))[:, None]
    entered = best[rows, nearest][:, devices]
    grouped = tables.grouped
    if len(grouped):
        out = (costs.leave[place] + paths.exits[place][:, devices])[:, grouped]
        inside = costs.inner_begin[place] + on[:, grouped]
        parts = np.split(inside, tables.group_starts[1:], axis=1)
        mates = np.stack(
            [
                start + part.argmin(axis=1)
                for start, part in zip(tables.group_starts, parts, strict=True)
            ],
            axis=1,
        )[:, tables.group_of]
        is_mate = inside[rows, mates] + costs.inner_leave[place] < out
        entered[:, grouped] = np.where(is_mate, grouped[mates], entered[:, grouped])
    found: Ints = np.where(on <= paths.tails[place], -1, entered)
    return found
