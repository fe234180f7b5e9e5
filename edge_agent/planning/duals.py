"""Prices on caps: what no route can beat, from shortest paths over weighed amounts.

A cap is priced instead of kept: `min over routes of (aim + sum price * (amount - cap))` is at most
the value of the best route that keeps the caps (Lagrangian bound; Handler and Zang, A dual
algorithm for the constrained shortest path problem, Networks 10(4), 1980). Where the greatest of
several amounts is aimed at, it is at least any mean of them, so that they have prices of sum 1.
The best prices are found by a proximal bundle method (Lemaréchal, Nemirovskii and Nesterov, New
variants of bundle methods, Mathematical Programming 69, 1995): the routes found so far bound the
function from above, and several steps of different length are tried at once, because a sweep over
eight weightings takes little longer than one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import as_weights, demanded, memory_columns
from edge_agent.planning.arenas import LeveledPaths, Levels, leveled, leveled_units, levels
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.stays import StayPaths, Stays, stay_paths, stay_units
from edge_agent.planning.tables import Floats, Ints, Tables

_STEPS = 4.0 ** np.arange(-4.0, 4.0)
_MOST_CUTS = 48
_CELLS = 20_000
_INNER_STEPS = 60


@dataclass(slots=True, kw_only=True)
class Effort:
    """What may be spent, about one unit for each microsecond of a desktop processor."""

    most: float
    spent: float = 0.0

    @property
    def left(self) -> float:
        """What may still be spent."""
        return self.most - self.spent

    def spend(self, units: float) -> None:
        """Count what was done."""
        self.spent += units


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """What prices are for: columns of amounts with their caps, and an aim."""

    aim: Floats
    """(columns,): weights of the aim; 0 where a greatest is aimed at."""
    shared: Ints
    """Columns whose prices add up to 1: those of which the greatest counts; may be none."""
    capped: Ints
    """Columns with a cap."""
    caps: Floats
    """(shared + capped,): what is taken off an amount: 0 or its cap."""
    units: Floats
    """(shared + capped,): what amounts and caps are divided by."""

    @property
    def columns(self) -> Ints:
        """Those that have prices."""
        return np.concatenate((self.shared, self.capped))

    def rows(self, prices: Floats) -> Floats:
        """(b, columns): weights of amounts, for (b, shared + capped)."""
        rows = np.repeat(self.aim[None], len(prices), axis=0)
        rows[:, self.columns] += prices / self.units
        return rows

    def taken_off(self, prices: Floats) -> Floats:
        """(b,): the part that no route changes."""
        off: Floats = prices @ (self.caps / self.units)
        return off

    def onto(self, prices: Floats) -> Floats:
        """The nearest prices that are allowed, for (b, shared + capped)."""
        count = len(self.shared)
        found: Floats = np.maximum(prices, 0.0)
        if count:
            found[:, :count] = _onto_simplex(prices[:, :count])
        return found

    def start(self) -> Floats:
        """(shared + capped,): equal shares, and no price of caps."""
        prices = np.zeros(len(self.columns))
        if len(self.shared):
            prices[: len(self.shared)] = 1.0 / len(self.shared)
        return prices


def priced_columns(row: Floats, shared: Ints, capped: Ints, limit: Floats) -> Priced:
    """What prices are for: `row` of the aim, columns whose greatest counts, and capped ones."""
    caps = np.concatenate((np.zeros(len(shared)), limit[capped]))
    units = np.concatenate((np.ones(len(shared)), np.where(limit[capped] > 0, limit[capped], 1.0)))
    return Priced(aim=row, shared=shared, capped=capped, caps=caps, units=units)


def _onto_simplex(points: Floats) -> Floats:
    """The nearest of what is at least 0 and of sum 1, for each row."""
    ordered = -np.sort(-points, axis=1)
    excess = (np.cumsum(ordered, axis=1) - 1.0) / np.arange(1, points.shape[1] + 1)
    last = (ordered > excess).sum(axis=1) - 1
    found: Floats = np.maximum(points - excess[np.arange(len(points)), last][:, None], 0.0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounded:
    """The best prices found, what they prove, and all routes met on the way."""

    prices: Floats
    """(shared + capped,)"""
    bound: float
    """Of the aim; infinity if there is no route at all."""
    routes: tuple[Pieces, ...]
    """Each once, in the order in which they were found."""


@dataclass(slots=True, kw_only=True)
class _Bundle:
    tables: Tables
    priced: Priced
    effort: Effort
    levels: Levels
    within: Stays | None
    floored: Tables = field(init=False)
    prices: Floats = field(init=False)
    bound: float = -np.inf
    seen: dict[Pieces, None] = field(default_factory=dict)
    heights: list[float] = field(default_factory=list)
    slopes: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.within is None:
            self.floored = replace(self.tables, arenas=self.levels.floored)
        else:
            self.floored = self.tables

    def look(self, prices: Floats) -> bool:
        """Whether one of (b, shared + capped) is better than what was known."""
        rows = self.priced.rows(prices)
        totals, routes = self._cheapest(rows, prices)
        bounds = totals - self.priced.taken_off(prices)
        best = int(bounds.argmax())
        is_better = bool(bounds[best] > self.bound)
        if is_better:
            self.bound, self.prices = float(bounds[best]), prices[best]
        for pieces in routes:
            if pieces and pieces not in self.seen:
                self._add(pieces)
        return is_better

    def _cheapest(self, rows: Floats, prices: Floats) -> tuple[Floats, list[Pieces]]:
        del prices
        paths = self._paths(rows)
        return paths.totals, paths.routes()

    def _paths(self, rows: Floats) -> LeveledPaths | StayPaths:
        if self.within is not None:
            self.effort.spend(stay_units(self.within, len(rows)))
            return stay_paths(self.within, rows)
        self.effort.spend(leveled_units(self.tables, len(rows), self.levels))
        return leveled(self.tables, as_weights(self.tables, rows), self.levels)

    def _add(self, pieces: Pieces) -> None:
        self.seen[pieces] = None
        amounts = demanded(self.floored, pieces)
        priced = self.priced
        self.heights.append(float(priced.aim @ amounts))
        self.slopes.append((amounts[priced.columns] - priced.caps) / priced.units)
        if len(self.heights) > _MOST_CUTS:
            heights = np.array(self.heights) + np.array(self.slopes) @ self.prices
            worst = int(heights.argmax())
            del self.heights[worst], self.slopes[worst]

    def trials(self, lengths: Floats) -> Floats:
        """For each length of step the prices at which the cuts, less the distance, are highest:
        Frank and Wolfe's method on the weights of the cuts."""
        heights, slopes = np.array(self.heights), np.array(self.slopes)
        here = self.prices
        weights = np.full((len(lengths), len(heights)), 1.0 / len(heights))
        found = np.repeat(here[None], len(lengths), axis=0)
        rows = np.arange(len(lengths))
        for k in range(_INNER_STEPS):
            found = self.priced.onto(here + lengths[:, None] * (weights @ slopes))
            lowest = (heights + found @ slopes.T).argmin(axis=1)
            step = 2.0 / (k + 2.0)
            weights *= 1.0 - step
            weights[rows, lowest] += step
        self.effort.spend(_INNER_STEPS * 15)
        return found


@dataclass(slots=True, kw_only=True)
class RestBundle(_Bundle):
    """Prices for what is still to come after one partial route."""

    place: int
    """Segments before it are done."""
    begun: Pieces
    so_far: Floats
    """(shared + capped,): what it demanded of what has prices."""
    aim_so_far: float
    choice: int
    start: int
    """Which start of stays stands for it."""
    found: tuple[Floats, StayPaths] | None = None
    """The prices that were tried with the best, and what they led to."""

    def improve(self, prices: Floats, looks: int) -> None:
        """Look for better prices than these."""
        self.prices = prices
        self.look(prices[None])
        centre = _first_length(self, 0.0) if self.slopes else 0.0
        for _ in range(looks if self.slopes and self.bound < np.inf else 0):
            trials = self.trials(centre * _STEPS)
            if not self.look(trials):
                centre *= 0.1

    def look(self, prices: Floats) -> bool:
        """Whether one of (b, shared + capped) is better than what was known."""
        before = self.found
        # A class with slots is made anew by the decorator, so that `super()` has no arguments here.
        is_better = _Bundle.look(self, prices)
        if not is_better and before is not None:
            self.found = before
        return is_better

    def _cheapest(self, rows: Floats, prices: Floats) -> tuple[Floats, list[Pieces]]:
        assert self.within is not None, "prices of a rest are over stays"
        share = 1.0 - self.place / self.tables.places
        self.effort.spend(stay_units(self.within, len(rows)) * share)
        paths = stay_paths(self.within, rows, self.place)
        self.found = prices, paths
        totals = paths.tails[self.place][:, self.choice, self.start] + self.aim_so_far
        totals = totals + prices / self.priced.units @ self.so_far
        every = np.arange(len(rows))
        same = np.ones(len(rows), np.int64)
        rests = paths.rests(self.place, every, same * self.choice, same * self.start)
        is_found = np.isfinite(totals)
        return totals, [
            (*self.begun, *rest) if ok else () for ok, rest in zip(is_found, rests, strict=True)
        ]


def most_levels(tables: Tables) -> int:
    """How many levels of arenas are worth their time."""
    return int(np.clip(_CELLS / (tables.places * len(tables.choices)), 2, 16))


def priced_bound(
    tables: Tables,
    priced: Priced,
    effort: Effort,
    *,
    rounds: int,
    enough: float = np.inf,
    within: Stays | None = None,
    size: float = 0.0,
) -> Bounded:
    """The best prices within `rounds` batches, over routes whose stays are `within` what they may
    hold; `enough`: a bound of which more is not needed; `size`: about how large the aim is."""
    memory = memory_columns(tables)
    is_sized = priced.aim[memory].any() or np.isin(memory, priced.columns).any()
    known = levels(tables, most_levels(tables) if is_sized else 1)
    bundle = _Bundle(tables=tables, priced=priced, effort=effort, levels=known, within=within)
    bundle.prices = priced.start()
    bundle.look(bundle.prices[None])
    if bundle.bound == np.inf or not bundle.slopes or not len(priced.columns):
        return _bounded(bundle)
    centre, stalls = _first_length(bundle, size), 0
    for _ in range(rounds):
        if bundle.bound >= enough or effort.left <= 0:
            break
        before = bundle.bound
        lengths = centre * _STEPS
        trials = bundle.trials(lengths)
        near = bundle.prices
        met = len(bundle.seen)
        if bundle.look(trials):
            moved = int(np.abs(trials - bundle.prices).sum(axis=1).argmin())
            centre *= 4.0 if moved == len(lengths) - 1 else 0.5 if moved < 3 else 1.0
        else:
            centre *= 0.25
        gain = bundle.bound - before
        is_stalled = gain <= 1e-7 * max(abs(bundle.bound), abs(before))
        stalls = stalls + 1 if is_stalled and np.allclose(near, bundle.prices) else 0
        if stalls >= 3 or (is_stalled and len(bundle.seen) == met):
            break
    return _bounded(bundle)


def _first_length(bundle: _Bundle, size: float) -> float:
    slope = bundle.slopes[0]
    size = max(abs(bundle.bound), abs(bundle.heights[0]), size, 1e-12)
    if not len(bundle.priced.capped):
        return 1.0 / max(float(np.abs(slope).max()), 1e-300)
    return size / max(float(slope @ slope), 1e-12)


def _bounded(bundle: _Bundle) -> Bounded:
    return Bounded(prices=bundle.prices, bound=bundle.bound, routes=tuple(bundle.seen))
