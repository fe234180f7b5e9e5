"""How to finish a partial route: for some weightings, the cheapest rest from everywhere, with what
it demands of everything that is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_agent.planning.amounts import demands_of_runs, demands_of_sends
from edge_agent.planning.arenas import LeveledPaths, Levels
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
    forks: Floats
    """(e, k): of each of `Tables.forks`."""

    def on(self, place: int) -> Floats:
        """(c, k): running a segment, but for its arena."""
        tables = self.tables
        found: Floats = tables.seconds[place][:, None] * self.run
        found += tables.weights[place][:, None] * self.memory
        forks = tables.forks
        if len(forks.places):
            here = np.flatnonzero(forks.places == place)
            np.add.at(found, forks.choices[here], self.forks[here])
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
        forks=tables.forks.demands @ mix,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finishes:
    """The cheapest rests of routes, for `b` weightings, by the level of the arena so far."""

    tails: Floats
    """(n + 1, b, c, levels): what they cost, as in `LeveledPaths`."""
    next: Ints
    """(n, b, c, levels): the choice in which a subgraph begins before segment p; -1: the last
    goes on."""
    demands: Floats
    """(n + 1, b, c, levels, k): what they demand, but for the arena of the subgraph that goes
    on."""
    arenas: Floats
    """(n + 1, b, c, levels): most that the rest of the subgraph that goes on needs."""
    levels: Levels

    def pieces(self, place: int, b: int, choice: int, level: int) -> list[tuple[int, int]]:
        """(first segment, choice) of what is begun, with segments before `place` done."""
        found = []
        for at in range(place, len(self.next)):
            begun = int(self.next[at, b, choice, level])
            own = int(self.levels.of[at])
            level = own if begun >= 0 else max(level, own)
            if begun >= 0:
                choice = begun
                found.append((at, choice))
        return found


def finishes(paths: LeveledPaths, known: Steps) -> Finishes:
    """What the cheapest rests of `paths` demand."""
    tables, tails, of = paths.tables, paths.tails, paths.levels.of
    n = tables.places
    following = np.full((n, *tails.shape[1:]), -1)
    demands = np.zeros((*tails.shape, known.run.shape[1]))
    arenas = np.zeros(tails.shape)
    demands[n] = known.last[tables.device_of][:, None]
    overhead = tables.overhead[:, None] * known.run
    rows = np.arange(tails.shape[1])[:, None]
    group_of = tables.groups
    devices = tables.device_of
    every = np.arange(tails.shape[3])
    for place in range(n - 1, -1, -1):
        own, on = int(of[place]), known.on(place)
        need = tables.arenas[place]
        reached = np.maximum(every, own)
        going_on = demands[place + 1][..., reached, :] + on[:, None]
        arena = np.maximum(arenas[place + 1][..., reached], need[:, None])
        taken = paths.next_choices(place)
        first_arena = np.maximum(arenas[place + 1][..., own], need)
        begun = demands[place + 1][..., own, :] + on + overhead
        begun += first_arena[..., None] * known.memory
        is_inner = (group_of >= 0) & (group_of == group_of[taken])
        border = tables.border[place][:, None] * known.run
        inner = tables.inner[place][:, None] * known.run
        crossing = np.where(is_inner[..., None], inner + inner[taken], border + border[taken])
        over = begun[rows, taken] + crossing + known.send[place][devices, devices[taken]]
        is_over = paths.going_on(place) > tails[place]
        demands[place] = np.where(is_over[..., None], over[:, :, None], going_on)
        arenas[place] = np.where(is_over, 0.0, arena)
        following[place] = np.where(is_over, taken[..., None], -1)
    return Finishes(
        tails=tails, next=following, demands=demands, arenas=arenas, levels=paths.levels
    )
