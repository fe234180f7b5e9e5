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

from edge_agent.planning.amounts import CLOSE, Amounts, Caps, amounts
from edge_agent.planning.packing import Packing
from edge_agent.planning.shortest import Pieces, Weights, cheapest
from edge_agent.planning.tables import Floats, Tables
from edge_agent.plans import Target

_SMOOTHED = (0.0, 0.4, 0.7, 0.9)
"""How much of the prices of the best bound is in those that are tried."""
_SINGLES = ("seconds", "joules", "size_bytes")
_PENALTY = 1e6
"""For what is not served, in units of the cost of a good mixture."""


def sweep_effort(tables: Tables, batch: int) -> float:
    """What a sweep and the routes that it finds take, in about microseconds of a desktop
    processor."""
    return 1500.0 + tables.places * (10.0 + batch * len(tables.choices) / 20.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """A route that may get a share."""

    pieces: Pieces
    amounts: Amounts


Shares = tuple[tuple[Column, float], ...]
"""Routes with their shares of the traffic, the greatest first."""


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
    """Whether no route is missing: the programme is solved to its optimum."""
    _seen: set[Pieces] = field(default_factory=set)
    _packing: Packing = field(init=False)
    _best_prices: Floats | None = None
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

    def improve(self, effort: float) -> None:
        """Generate columns until nothing is missing or the effort is spent."""
        stop = self.spent + effort
        while not self.is_settled and self.spent < stop:
            if self.idle:
                self.is_settled, self.bound = True, 0.0
                return
            self.solve()
            prices = self._packing.duals
            if not prices.any():
                return
            tried = [prices]
            if self._best_prices is not None:
                tried = [(1 - a) * prices + a * self._best_prices for a in _SMOOTHED]
            added = self._price(np.array(tried))
            self.is_settled = not added or self._is_closed()
            if self.is_settled and not self.is_rate and not self._is_served:
                self.bound = np.inf

    def solve(self) -> None:
        """Solve the programme over the routes that there are."""
        self.spent += 50.0 * self._packing.solve()
        if self.is_rate or self._is_served or self._packing.value < 1.0 - 1e-10:
            return
        self._is_served = True
        self._best_prices = None
        solution = self._packing.solution
        costs = np.array([self.wish.cost(column.amounts) for column in self.columns])
        self.cost_scale = float(solution @ costs) or 1.0
        self._packing.reprice(-costs / self.cost_scale)
        self._packing.use_up(len(self._packing.limits) - 1, _PENALTY)
        self.spent += 50.0 * self._packing.solve()

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
        parts = solution / total
        order = sorted(np.nonzero(parts > CLOSE)[0].tolist(), key=lambda i: (-parts[i], i))
        whole = float(parts[order].sum())
        return tuple((self.columns[i], float(parts[i]) / whole) for i in order)

    def _price(self, prices: Floats) -> int:
        """Look for routes that are worth more than they cost at each row of `prices`, and take
        what the cheapest ones say of the bound; how many are new."""
        weights = self._weights(prices)
        paths = cheapest(self.tables, weights)
        self.spent += sweep_effort(self.tables, len(prices))
        found: list[Column] = []
        for b in range(len(prices)):
            if not np.isfinite(paths.totals[b]):
                continue
            self._take_bound(prices[b], float(paths.totals[b]))
            pieces = paths.pieces(b)
            found.append(Column(pieces=pieces, amounts=amounts(self.tables, pieces)))
        # Only those that gain at the prices in force keep the programme going.
        now = self._packing.duals
        gaining = [
            column
            for column in found
            if self._profit(column.amounts) - now @ self._row_values(column.amounts) > CLOSE
        ]
        return self.add(gaining)

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
            bound = self.scale_s * (total - known) / paid if paid > 0.0 else 0.0
        else:
            room = float(prices[:count] @ self._packing.limits[:count])
            bound = (total - known - room) * self.cost_scale
            if not self._is_served:
                # A solution would be worth less than its routes cost at these prices.
                bound = np.inf if total - known > room * (1.0 + 1e-6) else 0.0
        if bound > self.bound:
            self.bound, self._best_prices = bound, prices


def _unit(cap: float) -> float:
    """What a mean is counted in."""
    return cap if cap > 0.0 else 1.0


_MOST_SEEDS = 24


def seeds(tables: Tables) -> list[Column]:
    """Routes to begin with: every choice alone, or of many the quickest of each resource; the
    quickest route, and the one with the least load."""
    sent = (tables.first_sends.penalty + tables.last_sends.penalty)[tables.device_of]
    able = np.flatnonzero(np.isfinite(sent + tables.refusal.sum(axis=0)))
    if len(able) > _MOST_SEEDS:
        busy = (tables.seconds.sum(axis=0) + tables.overhead) * tables.per_round
        order = able[np.argsort(busy[able], kind="stable")]
        _, first = np.unique(tables.resource_of[order], return_index=True)
        able = np.sort(order[first])
    found: list[Pieces] = [((0, int(c)),) for c in able]
    weights = Weights.none(tables, 2)
    seconds, loads = weights.seconds, weights.loads
    seconds[0], loads[1] = 1.0, 1.0
    paths = cheapest(tables, weights)
    found += [paths.pieces(b) for b in range(2) if np.isfinite(paths.totals[b])]
    return [Column(pieces=p, amounts=amounts(tables, p)) for p in dict.fromkeys(found)]
