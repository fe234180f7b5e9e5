"""Shares of the traffic over many routes: the fastest mixture of pipelines and replicas.

Which routes there are is not enumerated: a linear programme over those that are known says what a
second of each resource is worth, and a shortest path at these prices finds the route that is missed
most (column generation). The same sweep gives a bound: whatever the prices, no mixture is better
than the cheapest route at them allows (Lagrangian duality). Prices between the last ones and those
of the best bound are tried in the same sweep, because the last ones alone swing to and fro
(Wentges, Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming, International
Transactions in Operational Research 4, 1997).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import CLOSE, Amounts, Caps, amounts_by
from edge_agent.planning.packing import Packing
from edge_agent.planning.shortest import Paths, Pieces, Weights, cheapest
from edge_agent.planning.tables import Floats, Tables
from edge_agent.plans import Target

_SMOOTHED = 0.7
"""How much of the prices of the best bound is in those that are tried."""
_MOST_STARTS = 4
"""From how many devices on routes are taken from a sweep of a short model: of a long one, finding
them takes as long as another sweep."""
SHORT = 80
"""So many segments are short."""
_SINGLES = ("seconds", "joules", "size_bytes")
PENALTY = 1e6
"""For what is not served, in units of the cost of a good mixture."""


def sweep_effort(tables: Tables, batch: int) -> float:
    """What a sweep and the routes that it finds take, in about microseconds of a desktop
    processor."""
    each = len(tables.choices) + len(tables.devices) ** 2
    return 500.0 + 500.0 * batch + tables.places * (6.0 + batch * (0.5 + 0.06 * each))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """A route that may get a share."""

    pieces: Pieces
    amounts: Amounts


Shares = tuple[tuple[Column, float], ...]
"""Routes with their shares of the traffic, the greatest first."""


def shares_of(columns: Sequence[Column], parts: Floats) -> Shares:
    """Those of the routes that have a part, (columns,), above what floats leave, as shares that add
    up to 1."""
    order = sorted(np.flatnonzero(parts > CLOSE).tolist(), key=lambda i: (-parts[i], i))
    whole = float(parts[order].sum())
    return tuple((columns[i], float(parts[i]) / whole) for i in order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a mixture is made for: the highest rate, or the least of something at a rate."""

    target: Target
    least_per_s: float = 0.0
    """The rate to be reached, where the target is not the throughput."""

    def cost(self, found: Amounts) -> float:
        """What is to be made small per request, where the target is not the throughput."""
        match self.target:
            case Target.ENERGY:
                return found.joules
            case Target.BYTES:
                return found.size_bytes
            case Target.THROUGHPUT | Target.LATENCY | Target.MEMORY:
                return 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Relaxation:
    """The linear programme in which caps hold for the mean of the routes: it bounds every mixture.

    The rows are the resources, then the caps that are finite, then, for a wish at a rate, that all
    of the traffic is served. At a rate, as much as can be is served first, whatever it costs; from
    when all of it is, that stays so.
    """

    tables: Tables
    wish: Wish
    caps: Caps
    scale_s: float
    """Loads are counted in this many seconds; at a rate, in what it leaves for each request."""
    columns: list[Column] = field(default_factory=list)
    bound: float = 0.0
    """Of the throughput: no mixture needs fewer seconds per request; else no mixture costs less.
    Infinity where no mixture reaches the rate."""
    spent: float = 0.0
    is_settled: bool = False
    """Whether no route that is missed was found: the programme is solved to its optimum, but for
    what the prices of arenas leave out."""
    _seen: set[Pieces] = field(default_factory=set)
    _packing: Packing = field(init=False)
    best_prices: Floats | None = None
    """(rows,): those of the bound; before there is one, prices that may be good."""
    cost_scale: float = 1.0
    """Costs are counted in this, where the target is not the throughput."""
    idle: list[Column] = field(default_factory=list)
    """Routes that keep no resource busy: there is no limit to their rate."""
    _is_served: bool = False

    def __post_init__(self) -> None:
        if not self.is_rate:
            self.scale_s = 1.0 / self.wish.least_per_s
        self._packing = Packing(self._limits())

    @property
    def is_rate(self) -> bool:
        """Whether the rate itself is the target."""
        return self.wish.target is Target.THROUGHPUT

    @property
    def row_count(self) -> int:
        """How many rows the programme has."""
        return len(self._packing.limits)

    def _finite(self) -> list[tuple[str, float]]:
        """(what, cap) of the rows of means; memories by their number."""
        singles = [(name, float(getattr(self.caps, name))) for name in _SINGLES]
        found = [(name, cap) for name, cap in singles if np.isfinite(cap)]
        found += [
            (str(pool), float(cap)) for pool, cap in enumerate(self.caps.memory) if np.isfinite(cap)
        ]
        return found

    def _limits(self) -> Floats:
        # As much as sums of floats may leave of the rate.
        room = 1.0 if self.is_rate else 1.0 + 0.5 * CLOSE
        resources = np.full(len(self.tables.resources), room)
        served = [] if self.is_rate else [1.0]
        return np.concatenate([resources, np.zeros(len(self._finite())), served])

    def _row_values(self, found: Amounts) -> Floats:
        rows: Floats = self._rows([found], found.memory[None])[:, 0]
        return rows

    def _rows(self, found: Sequence[Amounts], memory: Floats) -> Floats:
        """(rows, k) for k routes; `memory`: (k, pools)."""
        rows = [np.array([one.loads for one in found]).T / self.scale_s]
        for name, cap in self._finite():
            if name in _SINGLES:
                values = np.array([getattr(one, name) for one in found])
            else:
                values = memory[:, int(name)]
            rows.append((values[None] - cap) / _unit(cap))
        if not self.is_rate:
            rows.append(np.ones((1, len(found))))
        return np.concatenate(rows)

    def add(self, columns: Sequence[Column], memory: Floats | None = None) -> int:
        """Add those routes that are not there yet; how many. `memory`: (columns, pools), where
        they need another amount than they say."""
        fresh: list[int] = []
        for at, column in enumerate(columns):
            if column.pieces in self._seen:
                continue
            self._seen.add(column.pieces)
            if self.is_rate and not column.amounts.loads.any():
                self.idle.append(column)
            else:
                fresh.append(at)
        if fresh:
            found = [columns[at].amounts for at in fresh]
            memory = np.array([one.memory for one in found]) if memory is None else memory[fresh]
            profits = np.array([self._profit(one) for one in found])
            self._packing.add(self._rows(found, memory), profits)
            self.columns += [columns[at] for at in fresh]
        return len(fresh)

    def _profit(self, found: Amounts) -> float:
        return -self.wish.cost(found) / self.cost_scale if self._is_served else 1.0

    def improve(self, effort: float, enough: float = 0.0) -> None:
        """Generate columns until nothing is missing, what is reached is only the share `enough`
        worse than the bound, or the effort is spent."""
        stop = self.spent + effort
        while not self.is_settled and self.spent < stop:
            if self.idle:
                self.is_settled, self.bound = True, 0.0
                return
            self.solve()
            prices = self._packing.duals
            if not prices.any() or (enough and self.value() <= self.bound * (1.0 + enough)):
                return
            added = self._price(self._smoothed(prices))
            if not added and self.best_prices is not None:
                added = self._price(prices[None])
            self.is_settled = not added or self._is_closed()

    def _smoothed(self, prices: Floats) -> Floats:
        """(b, rows): prices between those in force and those of the best bound."""
        best = self.best_prices
        if best is None:
            return prices[None]
        if not self.bound:
            return np.array([prices, best])
        if self.is_rate:
            # Their sum is of no account to the bound.
            best = best * (prices.sum() / best.sum())
        return ((1.0 - _SMOOTHED) * prices + _SMOOTHED * best)[None]

    def solve(self) -> None:
        """Solve the programme over the routes that there are."""
        self.spent += self._pivoted()
        if self.is_rate or self._is_served or self._packing.value < 1.0 - 1e-10:
            return
        self._is_served = True
        self.best_prices = None
        solution = self._packing.solution
        costs = np.array([self.wish.cost(column.amounts) for column in self.columns])
        self.cost_scale = float(solution @ costs) or 1.0
        self._packing.reprice(-costs / self.cost_scale)
        self._packing.use_up(len(self._packing.limits) - 1, PENALTY)
        self.spent += self._pivoted()

    def _pivoted(self) -> float:
        """Solve the programme; the effort that it took."""
        return self._packing.solve() * (40.0 + 0.3 * len(self._packing.limits))

    def _is_closed(self) -> bool:
        value = self.value()
        return value <= self.bound * (1.0 + CLOSE) or value - self.bound <= 1e-300

    def value(self) -> float:
        """What the programme reaches: seconds per request, or the cost."""
        if self.is_rate:
            if self.idle:
                return 0.0
            reached = self._packing.value
            return self.scale_s / reached if reached > 0.0 else np.inf
        if not self._is_served:
            return np.inf
        return float(sum(share * self.wish.cost(column.amounts) for column, share in self.shares()))

    def gain(self, column: Column) -> float:
        """How much more a route is worth than it costs, at the prices in force."""
        paid = float(self._packing.duals @ self._row_values(column.amounts))
        return self._profit(column.amounts) - paid

    def weights_now(self) -> Weights:
        """The weights under which the cheapest route is the one that is missed most."""
        return self._weights(self._packing.duals[None])

    def shares(self) -> Shares:
        """The routes of the solution."""
        if self.idle:
            return ((self.idle[0], 1.0),)
        solution = self._packing.solution
        total = float(solution.sum())
        if total <= 0.0:
            return ()
        return shares_of(self.columns, solution / total)

    def _price(self, prices: Floats) -> int:
        """Look for routes that are worth more than they cost at each row of `prices`, and take
        what the cheapest ones say of the bound; how many are new."""
        weights = self._weights(prices)
        paths = cheapest(self.tables, weights)
        self.spent += sweep_effort(self.tables, len(prices))
        routes: list[Pieces] = []
        for b in range(len(prices)):
            if not np.isfinite(paths.totals[b]):
                continue
            self._take_bound(prices[b], float(paths.totals[b]))
            routes += self._routes(paths, b)
        found = columns_of(self.tables, routes)
        # Only those that gain at the prices in force keep the programme going.
        now = self._packing.duals
        gaining = [
            column
            for column in found
            if self._profit(column.amounts) - now @ self._row_values(column.amounts) > CLOSE
        ]
        return self.add(gaining)

    def _routes(self, paths: Paths, b: int) -> list[Pieces]:
        """The cheapest route, and those that begin elsewhere and may be worth it as well."""
        starts = paths.starts(b)
        most = _MOST_STARTS if self.tables.places <= SHORT else 1
        cheap = np.argsort(starts, kind="stable")[:most]
        return [paths.pieces(b, int(d)) for d in cheap if d == cheap[0] or starts[d] < 1.0]

    def _weights(self, prices: Floats) -> Weights:
        tables = self.tables
        count = len(tables.resources)
        weights = Weights.none(tables, len(prices))
        single = {"seconds": weights.seconds, "joules": weights.joules}
        single["size_bytes"] = weights.size_bytes
        memory = weights.memory
        for row, (name, cap) in enumerate(self._finite(), count):
            per_unit = prices[:, row] / _unit(cap)
            if name in single:
                single[name] = single[name] + per_unit
            else:
                memory[:, int(name)] += per_unit
        own = "joules" if self.wish.target is Target.ENERGY else "size_bytes"
        if self._is_served:
            single[own] = single[own] + 1.0 / self.cost_scale
        return replace(weights, **single, loads=prices[:, :count] / self.scale_s)

    def learn(self, total: float) -> None:
        """No route is cheaper than that at the prices in force: what that says of the bound."""
        self._take_bound(self._packing.duals, total)

    def _take_bound(self, prices: Floats, total: float) -> None:
        caps = self._finite()
        count = len(self.tables.resources)
        known = sum(
            float(price) * cap / _unit(cap)
            for price, (_, cap) in zip(prices[count : count + len(caps)], caps, strict=True)
        )
        if self.is_rate:
            paid = float(prices[:count].sum())
            if paid > 0.0:
                bound = self.scale_s * (total - known) / paid
            else:
                # Every route exceeds the caps at these prices.
                bound = np.inf if total - known > 1e-6 * total else 0.0
        else:
            room = float(prices[:count] @ self._packing.limits[:count])
            bound = (total - known - room) * self.cost_scale
            if not self._is_served:
                # A solution would be worth less than its routes cost at these prices.
                bound = np.inf if total - known > room * (1.0 + 1e-6) else 0.0
        if bound > self.bound:
            self.bound, self.best_prices = bound, prices


def _unit(cap: float) -> float:
    """What a mean is counted in."""
    return cap if cap > 0.0 else 1.0


_MOST_SEEDS = 24


def seeds(tables: Tables) -> list[Column]:
    """Routes to begin with: every choice alone, or of many the quickest of each resource; the
    quickest route, and the one with the least load."""
    weights = Weights.none(tables, 2)
    seconds, loads = weights.seconds, weights.loads
    seconds[0], loads[1] = 1.0, 1.0
    paths = cheapest(tables, weights)
    found = [paths.pieces(b) for b in range(2) if np.isfinite(paths.totals[b])]
    return columns_of(tables, list(dict.fromkeys((*alone(tables), *found))))


def fair_prices(relaxation: Relaxation) -> Floats | None:
    """(rows,): prices at which each resource is worth as much as it does of the model alone: good
    ones to begin with for a rate, before it is known what the bottlenecks are."""
    if not relaxation.is_rate:
        return None
    tables = relaxation.tables
    is_able = np.isfinite(tables.refusal)
    busy = (tables.seconds * is_able).sum(axis=0) * tables.per_round
    worth = np.zeros(len(tables.choices))
    is_used = (busy > 0.0) & ~tables.is_fork
    worth[is_used] = is_able.mean(axis=0)[is_used] / busy[is_used]
    prices = np.zeros(relaxation.row_count)
    np.maximum.at(prices, tables.resource_of, worth)
    return prices if prices.any() else None


def alone(tables: Tables) -> list[Pieces]:
    """Every choice that can run all segments, alone, or of many the quickest of each resource."""
    sent = (tables.first_sends.penalty + tables.last_sends.penalty)[tables.device_of]
    able = np.flatnonzero(np.isfinite(sent + tables.refusal.sum(axis=0)))
    if len(able) > _MOST_SEEDS:
        busy = (tables.seconds.sum(axis=0) + tables.overhead) * tables.per_round
        order = able[np.argsort(busy[able], kind="stable")]
        _, first = np.unique(tables.resource_of[order], return_index=True)
        able = np.sort(order[first])
    return [((0, int(c)),) for c in able]


def columns_of(tables: Tables, routes: Sequence[Pieces]) -> list[Column]:
    """Routes with what they demand."""
    found = amounts_by(tables, routes)
    return [Column(pieces=p, amounts=a) for p, a in zip(routes, found, strict=True)]
