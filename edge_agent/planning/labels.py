"""The best single route under caps: exact where the states allow, else with what is left to gain.

Where the cheapest route keeps the caps, it is the best. Else caps get prices, which bound what can
be reached and lead to good routes (`duals`); what is between the best of them and the bound is
searched with labels (`label_search`). A long model is searched at a few of its boundaries only
(`coarse`), bounds being those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from edge_agent.planning.amounts import (
    Aim,
    Bottleneck,
    Caps,
    aim_row,
    aimed,
    as_weights,
    bottleneck_columns,
    demanded,
    limits,
    memory_columns,
)
from edge_agent.planning.arenas import leveled, leveled_units, levels
from edge_agent.planning.coarse import coarsen, kept_boundaries, refined
from edge_agent.planning.duals import (
    Bounded,
    Effort,
    Priced,
    most_levels,
    priced_bound,
)
from edge_agent.planning.finishes import Finishes, Steps, finishes, steps
from edge_agent.planning.label_search import Flags, Question, Rows, Search
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Floats, Ints, Tables

_MOST_BLOCKS = 48
_ROUNDS = 16
_FIRST_LABELS = 64
_SCALES = (0.0, 0.4, 0.75, 1.0, 1.4, 2.5)
"""Multiples of the best prices that bound labels: those that have much left of a cap, or little."""
# Bounds and values are sums of floats in different orders.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best route that was found, and what none can beat."""

    pieces: Pieces | None
    """(first segment, choice) of each subgraph; None: none was found."""
    value: float
    """Of the aim; infinity if none was found."""
    bound: float
    """No route that keeps the caps is better; infinity if it is certain that there is none."""
    spent: float
    """Effort that was used."""

    @property
    def is_exact(self) -> bool:
        """Whether no route can be better."""
        return self.value <= self.bound


def best_route(
    tables: Tables, aim: Aim, caps: Caps, *, effort: float, known: float = np.inf
) -> Found:
    """The best linear route under `caps`, within an effort of about as many microseconds.

    `known`: the value of a route that is known already; worse ones are not looked for, and if no
    better one is found, the bound may be as high as that.
    """
    asked = _Asked(tables=tables, aim=aim, caps=caps, known=known, effort=Effort(most=effort))
    asked.solve()
    return Found(
        pieces=asked.pieces,
        value=asked.value,
        bound=asked.bound,
        spent=asked.effort.spent,
    )


@dataclass(slots=True, kw_only=True)
class _Asked:
    tables: Tables
    aim: Aim
    caps: Caps
    known: float
    effort: Effort
    limit: Floats = field(init=False)
    pieces: Pieces | None = None
    value: float = np.inf
    bound: float = -np.inf

    def __post_init__(self) -> None:
        self.limit = limits(self.tables, self.caps)

    @property
    def best(self) -> float:
        """What has to be beaten."""
        return min(self.value, self.known)

    def solve(self) -> None:
        shared = np.zeros(0, np.int64)
        if isinstance(self.aim, Bottleneck):
            shared = bottleneck_columns(self.tables, self.aim)
        (capped,) = np.nonzero(np.isfinite(self.limit))
        row = aim_row(self.tables, self.aim)
        if not len(shared):
            plain = _priced(row, shared, capped[:0], self.limit)
            if self._is_settled(priced_bound(self.tables, plain, self.effort, rounds=0)):
                return
        # Of a column of which the greatest is aimed at, one price is enough.
        others = np.setdiff1d(capped, shared)
        priced = _priced(row, shared, others, self.limit)
        bounded = priced_bound(self.tables, priced, self.effort, rounds=_ROUNDS, enough=self.known)
        if self._is_settled(bounded):
            return
        routes = bounded.routes
        if self.pieces is None and len(capped):
            excess = _excess(capped, self.limit, len(row))
            least = priced_bound(self.tables, excess, self.effort, rounds=_ROUNDS, enough=1e-6)
            if least.bound > _ROUNDING:
                self.bound = np.inf
                return
            self._try_routes(least.routes)
            routes += least.routes
        if self._has_enough() or self.effort.left <= 0:
            return
        prices = dict(zip(priced.columns.tolist(), bounded.prices / priced.units, strict=True))
        if self.tables.places <= _MOST_BLOCKS:
            self._search(tuple(range(self.tables.places)), prices)
            return
        used = {start for pieces in routes for start, _ in pieces}
        self._search(kept_boundaries(self.tables, used, _MOST_BLOCKS), prices)

    def _is_settled(self, bounded: Bounded) -> bool:
        self.bound = max(self.bound, bounded.bound)
        self._try_routes(bounded.routes)
        return self._has_enough()

    def _has_enough(self) -> bool:
        """Whether what is known is as good as the bound, but for rounding."""
        best = self.best
        if best < np.inf and best - self.bound <= _ROUNDING * max(abs(best), 1e-300):
            self.bound = max(self.bound, best)
        return self.bound >= best

    def _try_routes(self, routes: Iterable[Pieces]) -> None:
        for pieces in routes:
            amounts = demanded(self.tables, pieces)
            if (amounts <= self.limit).all():
                value = aimed(self.tables, self.aim, amounts)
                if value < self.value:
                    self.value, self.pieces = value, pieces

    def _search(self, boundaries: tuple[int, ...], prices: dict[int, float]) -> None:
        is_whole = len(boundaries) == self.tables.places
        tables = self.tables if is_whole else coarsen(self.tables, boundaries)
        question = _question(tables, self.aim, self.limit, prices, self.bound, self.effort)
        search = Search(question=question, effort=self.effort, best=self.best)
        most = _FIRST_LABELS
        while True:
            before = self.effort.spent
            search.run(most)
            if search.found is not None:
                self._try_routes((refined(boundaries, search.found),))
            if is_whole:
                self.bound = max(self.bound, min(search.best, search.dropped))
            used = self.effort.spent - before
            if search.dropped >= search.best or self._has_enough():
                break
            if self.effort.left < 2 * used:
                break
            most = int(most * min(max(0.7 * self.effort.left / used, 2.0), 8.0))
        self._has_enough()


def _priced(row: Floats, shared: Ints, capped: Ints, limit: Floats) -> Priced:
    caps = np.concatenate((np.zeros(len(shared)), limit[capped]))
    units = np.concatenate((np.ones(len(shared)), np.where(limit[capped] > 0, limit[capped], 1.0)))
    return Priced(aim=row, shared=shared, capped=capped, caps=caps, units=units)


def _excess(capped: Ints, limit: Floats, width: int) -> Priced:
    """How far the caps are exceeded at least, as a share of them: more than 0 if no route keeps
    them all."""
    caps = limit[capped]
    units = np.where(caps > 0, caps, 1.0)
    none = np.zeros(0, np.int64)
    return Priced(aim=np.zeros(width), shared=capped, capped=none, caps=caps, units=units)


def _question(
    tables: Tables,
    aim: Aim,
    limit: Floats,
    prices: dict[int, float],
    bound: float,
    effort: Effort,
) -> Question:
    row = aim_row(tables, aim)
    is_shared = np.zeros(len(row), bool)
    if isinstance(aim, Bottleneck):
        is_shared[bottleneck_columns(tables, aim)] = True
    is_memory = np.zeros(len(row), bool)
    is_memory[memory_columns(tables)] = True
    (candidates,) = np.nonzero(is_shared | np.isfinite(limit) | (is_memory & (row > 0)))
    most = _most_to_come(tables, candidates, effort)
    in_all = most[0]
    matters = (row[candidates] > 0) & is_memory[candidates]
    matters |= in_all > limit[candidates]
    matters |= is_shared[candidates] & (in_all > max(bound, 0.0))
    looked_at, most = candidates[matters], most[:, matters]
    mixed = np.where(is_memory, 0.0, row)
    has_sum = bool(mixed.any())
    units = np.eye(len(row))[:, looked_at]
    mix = np.column_stack((mixed, units)) if has_sum else units
    first = int(has_sum)
    caps = np.concatenate((np.full(first, np.inf), limit[looked_at]))
    weights = np.concatenate((np.ones(first), np.where(is_memory, row, 0.0)[looked_at]))
    shared = first + np.flatnonzero(is_shared[looked_at])
    floors = np.full((tables.places + 1, len(caps)), -np.inf)
    nowhere = np.where(is_shared, max(bound, 0.0), np.inf)
    nowhere = np.minimum(nowhere, limit)[looked_at]
    nowhere[row[looked_at] * is_memory[looked_at] > 0] = -np.inf
    floors[:, first:] = nowhere - most
    known = steps(tables, mix, memory_columns(tables))
    rows, ends = _bounds(tables, row, looked_at, is_shared, limit, prices, first, known, effort)
    return Question(
        tables=tables,
        steps=known,
        caps=caps,
        weights=weights,
        shared=shared,
        floors=floors,
        rows=rows,
        finishes=ends,
    )


def _bounds(
    tables: Tables,
    row: Floats,
    looked_at: Ints,
    is_shared: Flags,
    limit: Floats,
    prices: dict[int, float],
    first: int,
    known: Steps,
    effort: Effort,
) -> tuple[Rows, Finishes]:
    own = np.array([prices.get(int(j), 0.0) for j in looked_at])
    among = is_shared[looked_at]
    # What is no longer looked at keeps no price.
    if among.any():
        total = own[among].sum()
        own[among] = own[among] / total if total > 0 else 1.0 / among.sum()
    has_cap = np.isfinite(limit[looked_at])
    scales = [1.0] if among.all() or not own.any() else _SCALES
    aims = np.stack([np.where(among, own, own * scale) for scale in scales])
    # A capped load of which the greatest is aimed at has one price, for the aim.
    off = np.where(has_cap & ~among, aims, 0.0) @ np.where(has_cap, limit[looked_at], 0.0)
    full = np.repeat(row[None], len(aims), axis=0)
    full[:, looked_at] += aims
    is_sized = bool((known.pool >= 0).any())
    grid = levels(tables, most_levels(tables) if is_sized else 1)
    paths = leveled(tables, as_weights(tables, full), grid)
    effort.spend(leveled_units(tables, len(aims), grid) * 3)
    alone = looked_at[has_cap]
    single = np.zeros((len(alone), len(row)))
    single[np.arange(len(alone)), alone] = 1.0
    rest = leveled(tables, as_weights(tables, single), grid) if len(alone) else None
    effort.spend(leveled_units(tables, len(alone), grid))
    weights = np.zeros((len(aims), first + len(looked_at)))
    weights[:, :first] = 1.0
    weights[:, first:] = aims + row[looked_at] * np.isin(looked_at, memory_columns(tables))
    limits_, tails, heads = off, paths.tails, paths.heads
    if rest is not None:
        ones = np.zeros((len(alone), weights.shape[1]))
        ones[np.arange(len(alone)), first + np.flatnonzero(has_cap)] = 1.0
        weights = np.vstack((weights, ones))
        limits_ = np.concatenate((off, limit[alone]))
        tails = np.concatenate((tails, rest.tails), axis=1)
        heads = np.concatenate((heads, rest.heads), axis=1)
    rows = Rows(weights=weights, limits=limits_, aims=len(aims), tails=tails, heads=heads)
    return rows, finishes(paths, known)


def _most_to_come(tables: Tables, columns: Ints, effort: Effort) -> Floats:
    """(n + 1, columns): most that a route may still demand, with segments before p done."""
    n = tables.places
    most = np.zeros((n + 1, len(columns)))
    memory = memory_columns(tables)
    is_memory = np.isin(columns, memory)
    for at in np.flatnonzero(is_memory):
        inside = tables.pool_of == columns[at] - memory[0]
        needs = (tables.weights + tables.arenas)[:, inside].max(axis=1, initial=0.0)
        np.maximum.at(needs, tables.forks.places, tables.forks.demands[:, columns[at]])
        most[:n, at] = np.cumsum(needs[::-1])[::-1]
    others = np.flatnonzero(~is_memory)
    if len(others):
        longest = np.zeros((len(others), len(tables.resources) + len(tables.pools) + 3))
        longest[np.arange(len(others)), columns[others]] = -1.0
        flat = levels(tables, 1)
        paths = leveled(tables, as_weights(tables, longest), flat)
        effort.spend(leveled_units(tables, len(others), flat))
        for part in (paths.tails[..., 0], paths.exits, paths.heads):
            worst = np.where(np.isfinite(part), -part, 0.0).max(axis=2)
            at_place = most[: len(worst)]
            at_place[:, others] = np.maximum(at_place[:, others], worst)
        sent = tables.first_sends
        whole = np.where(np.isfinite(paths.costs.first), -paths.costs.first, 0.0).max(axis=1)
        most[0, others] += np.where(np.isfinite(sent.penalty).any(), whole, 0.0)
    return most
