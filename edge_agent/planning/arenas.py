"""Cheapest routes where arenas count: shortest paths that know how large the arena is by now.

The arena of a subgraph is as large as the neediest of its segments, so that what a segment adds
depends on those before it. Here a state is (boundary, choice, level): the arena is kept to within
a few levels, rounded down, so that what is found bounds the cost of every route from below; with a
level for each different need it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edge_agent.planning.shortest import Weighed, Weights, weigh
from edge_agent.planning.tables import Floats, Ints, Tables

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """Sizes of arenas of one instance, in bytes."""

    sizes: Floats
    """(levels,), ascending."""
    of: Ints
    """(n,): the greatest level that is at most what each segment needs."""
    instances: Floats
    """(c,); 0 of what has no arena of its own."""

    @property
    def floored(self) -> Floats:
        """(n, c): arenas, rounded down to levels."""
        rounded: Floats = self.sizes[self.of][:, None] * self.instances
        return rounded

    def above(self, arenas: Floats, choices: Ints) -> Ints:
        """The least level that is at least an arena in a choice, for each of (m,)."""
        # Rounded down a little, so that a level is not missed for a division.
        needs = arenas / np.maximum(self.instances[choices], 1.0) * (1.0 - 1e-12)
        found: Ints = np.minimum(np.searchsorted(self.sizes, needs), len(self.sizes) - 1)
        return found


def levels(tables: Tables, most: int) -> Levels:
    """At most `most` levels, spread evenly over what the segments need."""
    instances = np.where(tables.is_fork, 0.0, np.rint(1.0 / tables.per_round))
    one = int(tables.is_fork.argmin())
    needs = np.rint(tables.arenas[:, one] / instances[one])
    sizes = np.unique(needs)
    if len(sizes) > most:
        sizes = sizes[np.unique(np.linspace(0, len(sizes) - 1, most).astype(np.int64))]
    of = np.searchsorted(sizes, needs, side="right") - 1
    return Levels(sizes=sizes, of=of, instances=instances)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeveledPaths:
    """The cheapest way to finish from everywhere, for each of `b` weightings."""

    tables: Tables
    levels: Levels
    costs: Weighed
    """Nothing of arenas among them."""
    arena_price: Floats
    """(b, c): of each byte of the arena of one instance."""
    tails: Floats
    """(n + 1, b, c, levels)"""
    heads: Floats
    """(n, b, d)"""
    exits: Floats
    """(n + 1, b, d)"""

    @property
    def totals(self) -> Floats:
        """(b,): cost of the cheapest route; infinity where there is none."""
        found: Floats = (self.costs.first + self.heads[0]).min(axis=1)
        return found

    def going_on(self, place: int) -> Floats:
        """(b, c, levels): segment `place` in the subgraph that is there, and what follows."""
        return _going_on(self, place, self.tails[place + 1])

    def next_choices(self, place: int) -> Ints:
        """(b, c): in which choice a subgraph begins best before segment `place`, if that in c
        ends there."""
        tables, costs = self.tables, self.costs
        entering = _entering(self, place, self.tails[place + 1])
        devices, rows = tables.device_of, np.arange(len(entering))[:, None]
        best = _least_of(costs.begin[place] + entering, tables.first_of)
        nearest = (costs.send[place] + self.heads[place][:, None, :]).argmin(axis=2)
        chosen: Ints = best[rows, nearest][:, devices]
        grouped = tables.grouped
        if len(grouped):
            out = (costs.leave[place] + self.exits[place][:, devices])[:, grouped]
            inside = costs.inner_begin[place] + entering[:, grouped]
            mates = _least_of(inside, tables.group_starts)[:, tables.group_of]
            is_mate = inside[rows, mates] + costs.inner_leave[place] < out
            chosen[:, grouped] = np.where(is_mate, grouped[mates], chosen[:, grouped])
        return chosen

    def routes(self) -> list[tuple[tuple[int, int], ...]]:
        """The cheapest route for each weighting, as (first segment, choice) of each subgraph; ()
        where there is none. Ties: go on rather than begin another, then the earlier choice."""
        tables, n = self.tables, self.tables.places
        rows = np.arange(self.tails.shape[1])
        entering = self.costs.begin[0] + _entering(self, 0, self.tails[1])
        device = (self.costs.first + self.heads[0]).argmin(axis=1)
        choice = _least_of(entering, tables.first_of)[rows, device]
        level = np.full(len(rows), self.levels.of[0])
        chosen = [choice]
        for place in range(1, n):
            on = self.going_on(place)[rows, choice, level]
            is_over = on > self.tails[place][rows, choice, level]
            if is_over.any():
                choice = np.where(is_over, self.next_choices(place)[rows, choice], choice)
            own = self.levels.of[place]
            level = np.where(is_over, own, np.maximum(level, own))
            chosen.append(choice)
        starts = np.diff(np.stack(chosen), axis=0, prepend=-1) != 0
        return [
            tuple((int(p), int(chosen[p][b])) for p in np.flatnonzero(starts[:, b]))
            if np.isfinite(self.totals[b])
            else ()
            for b in rows
        ]


def _least_of(costs: Floats, starts: Ints) -> Ints:
    """(b, parts): where the least of each part of the last axis is."""
    parts = np.split(costs, starts[1:], axis=1)
    return np.stack(
        [s + part.argmin(axis=1) for s, part in zip(starts, parts, strict=True)], axis=1
    )


def _going_on(paths: LeveledPaths, place: int, tails: Floats) -> Floats:
    sizes, own = paths.levels.sizes, int(paths.levels.of[place])
    reached = np.maximum(np.arange(len(sizes)), own)
    growth = sizes[reached] - sizes
    on: Floats = tails[..., reached] + paths.costs.segment[place][..., None]
    on += paths.arena_price[..., None] * growth
    return on


def _entering(paths: LeveledPaths, place: int, tails: Floats) -> Floats:
    """(b, c): segment `place` as the first of a subgraph, its arena, and what follows."""
    own = paths.levels.of[place]
    entering: Floats = paths.costs.segment[place] + tails[..., own]
    entering += paths.arena_price * paths.levels.sizes[own]
    return entering


def leveled(tables: Tables, weights: Weights, known: Levels) -> LeveledPaths:
    """The cheapest routes for each weighting, arenas rounded down to levels."""
    n, batch = tables.places, len(weights.seconds)
    device_of, first_of = tables.device_of, tables.first_of
    costs = weigh(replace(tables, arenas=np.zeros_like(tables.arenas)), weights)
    prices = weights.memory[:, tables.pool_of] * known.instances
    paths = LeveledPaths(
        tables=tables,
        levels=known,
        costs=costs,
        arena_price=prices,
        tails=np.empty((n + 1, batch, len(device_of), len(known.sizes))),
        heads=np.empty((n, batch, len(first_of))),
        exits=np.empty((n + 1, batch, len(first_of))),
    )
    tails, heads, exits = paths.tails, paths.heads, paths.exits
    exits[n] = costs.last
    tails[n] = costs.last[:, device_of, None]
    grouped = tables.grouped
    for place in range(n - 1, -1, -1):
        entering = _entering(paths, place, tails[place + 1])
        heads[place] = np.minimum.reduceat(costs.begin[place] + entering, first_of, axis=1)
        exits[place] = (costs.send[place] + heads[place][:, None, :]).min(axis=2)
        over = costs.leave[place] + exits[place][:, device_of]
        if len(grouped):
            inside = np.minimum.reduceat(
                costs.inner_begin[place] + entering[:, grouped], tables.group_starts, axis=1
            )
            inside = inside[:, tables.group_of] + costs.inner_leave[place]
            over[:, grouped] = np.minimum(over[:, grouped], inside)
        np.minimum(_going_on(paths, place, tails[place + 1]), over[..., None], out=tails[place])
    return paths


def leveled_units(tables: Tables, batch: int, known: Levels) -> float:
    """What `leveled` costs, about in microseconds of a desktop processor."""
    size = batch * len(tables.choices)
    return tables.places * (60.0 + size * (0.03 + 0.006 * len(known.sizes)))
