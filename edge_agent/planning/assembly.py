"""Mixtures whose routes must fit into the memories together, and each keep to caps.

Which weights are where is a yes or no, so that the best mixture is hard to find (it holds a
knapsack problem). It is decided step by step: what most of the traffic of the relaxation needs is
to be there, and then needs no room again; what no longer fits is not. Each relaxation on the way
brings routes, and `together` says which of all the routes so far are best deployed. Then parts of
what was decided are taken back and decided again, as long as there is effort (large neighbourhood
search: Shaw, Using constraint programming and local search methods to solve vehicle routing
problems, CP 1998).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import CLOSE, Caps, amounts
from edge_agent.planning.coarse import refined
from edge_agent.planning.labels import best_route
from edge_agent.planning.mixture import Column, Relaxation, Shares, Wish
from edge_agent.planning.served import Flags
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Floats, Ints, Tables
from edge_agent.planning.together import Things, Together, undominated

_DIVE_EFFORT = 0.12
"""Share of the effort for deciding everything once."""
_STEP_EFFORT = 0.02
_LEGAL_EFFORT = 0.3
"""Share of the effort for the relaxation over routes that keep to the caps one by one."""
_TOGETHER_EFFORT = 0.05
_SURE = 0.95
"""What so much of the traffic needs is to be there."""
_MOST_COLUMNS = 240
"""So many routes are looked at together."""


@dataclass(slots=True, kw_only=True, eq=False)
class Assembly:
    """The best mixture that fits, of those that were put together so far."""

    tables: Tables
    """Those that are searched, with a few boundaries only where there are many."""
    whole: Tables
    blocks: Sequence[int]
    """First segments of what `tables` has as segments."""
    wish: Wish
    caps: Caps
    most_routes: int | None
    effort: float
    enough: float = 0.0
    """Of a value that good nothing better is needed."""
    shares: Shares = ()
    value: float = np.inf
    """Seconds per request, or the cost of one."""
    bound: float = 0.0
    spent: float = 0.0
    _known: dict[Pieces, Column] = field(default_factory=dict)
    """Routes of any relaxation."""
    _sizes: Floats = field(init=False)
    """(n, forms): bytes of weights."""
    _pool_of: Ints = field(init=False)
    """(forms,)"""

    def __post_init__(self) -> None:
        tables = self.tables
        forms = int(tables.form_of.max()) + 1
        self._sizes = np.zeros((tables.places, forms))
        self._pool_of = np.zeros(forms, np.int64)
        self._sizes[:, tables.form_of] = tables.weights
        self._pool_of[tables.form_of] = tables.pool_of

    def build(self, columns: Sequence[Column]) -> None:
        """Put mixtures together, from these routes and new ones."""
        self._meet(columns)
        if self._has_singles:
            self._legal()
        self._together()
        if self.most_routes is None and not np.isfinite(self.caps.memory).any():
            return
        nothing = np.zeros_like(self._sizes, dtype=bool)
        self._decide(nothing)
        for kept in self._neighbours():
            if self._is_done():
                return
            self._decide(kept)

    def _is_done(self) -> bool:
        is_best = self.value <= max(self.bound * (1.0 + CLOSE), self.enough)
        return is_best or self.spent >= self.effort

    @property
    def _has_singles(self) -> bool:
        caps = self.caps
        return bool(np.isfinite([caps.seconds, caps.joules, caps.size_bytes]).any())

    def _meet(self, columns: Sequence[Column]) -> None:
        for column in columns:
            self._known.setdefault(column.pieces, column)

    # Routes that keep to the caps one by one

    def _legal(self) -> None:
        """The relaxation over routes that keep to the caps, each found under all of them."""
        programme = self._programme(self.tables, Caps.none(self.tables))
        programme.add([c for c in self._known.values() if self.caps.allows(c.amounts)])
        stop = self.spent + self.effort * _LEGAL_EFFORT
        while self.spent < stop:
            programme.solve()
            weights = programme.weights_now()
            found = best_route(self.tables, weights, self.caps, effort=stop - self.spent)
            self.spent += found.spent
            programme.learn(found.bound)
            if found.pieces is None:
                break
            column = self._column(found.pieces)
            self._meet([column])
            if programme.gain(column) <= CLOSE or not programme.add([column]):
                break
            if programme.idle:
                programme.bound = 0.0
                break
        self.bound = max(self.bound, programme.bound)

    def _column(self, pieces: Pieces) -> Column:
        return Column(pieces=pieces, amounts=amounts(self.tables, pieces))

    def _programme(self, tables: Tables, caps: Caps) -> Relaxation:
        known = self._known.values()
        busiest = [float(column.amounts.loads.max(initial=0.0)) for column in known]
        return Relaxation(
            tables=tables,
            wish=self.wish,
            caps=caps,
            scale_s=min((b for b in busiest if b > 0.0), default=1.0),
        )

    # What is where

    def _decide(self, there: Flags) -> None:
        """Decide about all weights, `there` being those that are in memory."""
        stop = self.spent + self.effort * _DIVE_EFFORT
        banned = np.zeros_like(there)
        while self.spent < stop:
            left = self.caps.memory - self._bytes(there)
            if (left < 0.0).any():
                return
            banned |= ~there & (self._sizes > left[self._pool_of])
            programme = self._relaxed(there, banned, left)
            if programme.bound >= self.value * (1.0 - CLOSE) or not np.isfinite(programme.value()):
                break
            needed = np.zeros_like(self._sizes)
            for column, share in programme.shares():
                needed += share * self._uses(column.pieces)
            needed = np.where(there | (self._sizes == 0.0), 0.0, needed)
            if needed.max(initial=0.0) <= CLOSE:
                break
            there = there | self._surely(needed, left)
        self._together()

    def _surely(self, needed: Floats, left: Floats) -> Flags:
        """What most of the traffic needs, as far as it fits; at least one."""
        left = left.copy()
        found = np.zeros_like(needed, dtype=bool)
        limit = min(_SURE, float(needed.max()))
        for at in np.argsort(-needed, axis=None, kind="stable").tolist():
            place, form = divmod(at, needed.shape[1])
            if needed[place, form] < limit:
                break
            pool = self._pool_of[form]
            if self._sizes[place, form] <= left[pool]:
                left[pool] -= self._sizes[place, form]
                found[place, form] = True
        return found

    def _bytes(self, there: Flags) -> Floats:
        by_form = np.where(there, self._sizes, 0.0).sum(axis=0)
        return np.bincount(self._pool_of, by_form, minlength=len(self.caps.memory))

    def _uses(self, pieces: Pieces) -> Flags:
        """(n, forms): the weights that a route needs, but for those of forks."""
        tables = self.tables
        found = np.zeros_like(self._sizes, dtype=bool)
        stops = [start for start, _ in pieces[1:]] + [tables.places]
        for (start, c), stop in zip(pieces, stops, strict=True):
            found[start:stop, tables.form_of[c]] = True
        return found

    def _relaxed(self, there: Flags, banned: Flags, left: Floats) -> Relaxation:
        """The relaxation where that is decided; the routes that it finds are known from then."""
        tables, forms = self.tables, self.tables.form_of
        rest = replace(
            tables,
            weights=np.where(there[:, forms], 0.0, tables.weights),
            refusal=np.where(banned[:, forms], np.inf, tables.refusal),
        )
        programme = self._programme(rest, replace(self.caps, memory=left))
        seeds = []
        for column in self._known.values():
            uses = self._uses(column.pieces)
            if not (uses & banned).any():
                memory = column.amounts.memory - self._bytes(uses & there)
                seeds.append(replace(column, amounts=replace(column.amounts, memory=memory)))
        programme.add(seeds)
        programme.improve(self.effort * _STEP_EFFORT)
        self.spent += programme.spent
        fresh = [c.pieces for c in programme.columns if c.pieces not in self._known]
        self._meet([self._column(pieces) for pieces in fresh])
        return programme

    def _neighbours(self) -> Iterator[Flags]:
        """What stays decided of the best so far: all but some memories, or some segments."""
        pools, n = len(self.caps.memory), self.tables.places
        size = max(2, n // 3)
        turn = 0
        while True:
            there = np.zeros_like(self._sizes, dtype=bool)
            for column, _ in self.shares:
                there |= self._uses(column.pieces)
            there &= self._sizes > 0.0
            step, kind = divmod(turn, 2)
            if kind == 0:
                first, second = step % pools, (step + 1 + step // pools) % pools
                is_free = (self._pool_of == first) | (self._pool_of == second)
                there[:, is_free] = False
            else:
                start = (step * max(1, size // 2)) % n
                there[start : start + size] = False
            yield there
            turn += 1

    # Which routes

    def _together(self) -> None:
        """The best of the known routes that fit together."""
        columns = [c for c in self._known.values() if self.caps.allows(c.amounts)]
        if not columns:
            return
        is_rate = self.wish.target.value == "throughput"
        loads = np.array([c.amounts.loads for c in columns])
        costs = np.array([self.wish.cost(c.amounts) for c in columns])
        fine = [replace(c, pieces=refined(self.blocks, c.pieces)) for c in columns]
        things = Things.of(self.whole, fine)
        kept = np.flatnonzero(undominated(loads, costs[:, None], things.uses))
        found = Together(
            loads=loads[kept],
            costs=None if is_rate else costs[kept],
            per_s=self.wish.least_per_s,
            things=things.taken(kept),
            budgets=self.caps.memory,
            most_routes=self.most_routes,
            effort=self.effort * _TOGETHER_EFFORT,
            enough=self.enough,
            worst=self.value,
        ).search()
        self.spent += found.spent
        if found.value < self.value:
            self.value = found.value
            self.shares = found.of([columns[i] for i in kept])

    @property
    def fine(self) -> Shares:
        """The mixture, as routes of the whole."""
        return tuple(
            (replace(column, pieces=refined(self.blocks, column.pieces)), share)
            for column, share in self.shares
        )
