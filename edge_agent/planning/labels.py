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
    bottleneck_columns,
    demanded,
    limits,
    memory_columns,
)
from edge_agent.planning.blocks import in_blocks
from edge_agent.planning.coarse import coarsen, kept_boundaries, refined
from edge_agent.planning.duals import Bounded, Effort, Priced, priced_bound, priced_columns
from edge_agent.planning.label_search import Search
from edge_agent.planning.neighbourhoods import Neighbours
from edge_agent.planning.question import question
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.stays import Stays, stays
from edge_agent.planning.tables import Floats, Ints, Tables

_MOST_BLOCKS = 48
_ROUNDS = 16
_FIRST_LABELS = 64
_REPAIRED = 4
"""How many routes are repaired at most."""
_WORTHS = (0.3, 3.0, 1.0)
"""What costs count beside the caps, by turns."""
_HOPEFUL = 1.1
_HALVINGS = 6
_VERY_FAR = 1.1
"""Share of the bound above which a wide search would be in vain."""
_SMALL = 24
"""So few segments are mostly searched through."""
_FIRST_UNITS, _NEAR_UNITS, _ELSEWHERE_UNITS, _SEARCH_UNITS = 0.15, 0.25, 0.6, 0.7
"""Shares of what is left: of a first search, of what is near its route, of a wider one."""
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
    if asked.pieces is None and asked.bound < np.inf and not asked.is_packed:
        asked.packed()
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
    met: tuple[Pieces, ...] = ()
    """Routes that exceed the caps by little."""
    starts: int = 0
    """How many routes were repaired already."""
    is_packed: bool = False
    """Whether a division in blocks was looked for."""
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
        size = 0.0
        if not len(shared):
            plain = priced_columns(row, shared, capped[:0], self.limit)
            if self._is_settled(priced_bound(self.tables, plain, self.effort, rounds=0)):
                return
        within = stays(self.tables, self.limit)
        # Of a column of which the greatest is aimed at, one price is enough.
        others = np.setdiff1d(capped, shared)
        priced = priced_columns(row, shared, others, self.limit)
        routes: tuple[Pieces, ...] = ()
        if not len(shared) and self.bound <= 0.0 and len(capped):
            # Nothing of the aim says how large prices are.
            if self._is_impossible(capped, within):
                return
            routes = self.met
            size = max(
                (aimed(self.tables, self.aim, demanded(self.tables, r)) for r in routes),
                default=0.0,
            )
        bounded = priced_bound(
            self.tables,
            priced,
            self.effort,
            rounds=_ROUNDS,
            enough=self.known,
            within=within,
            size=size,
        )
        if self._is_settled(bounded):
            return
        routes += bounded.routes
        if self.pieces is None and len(capped) and not self.met:
            if self._is_impossible(capped, within):
                return
            routes += self.met
        if self._has_enough() or self.effort.left <= 0:
            return
        prices = dict(zip(priced.columns.tolist(), bounded.prices / priced.units, strict=True))
        self._improve(routes, prices, shared, priced)

    def _is_impossible(self, capped: Ints, within: Stays | None) -> bool:
        """Whether it is certain that no route keeps the caps."""
        excess = _excess(capped, self.limit, len(self.limit))
        least = priced_bound(
            self.tables, excess, self.effort, rounds=_ROUNDS, enough=1e-6, within=within
        )
        if least.bound > _ROUNDING:
            self.bound = np.inf
            return True
        self._try_routes(least.routes)
        self.met = least.routes
        return False

    def _improve(
        self, routes: tuple[Pieces, ...], prices: dict[int, float], shared: Ints, priced: Priced
    ) -> None:
        near = Neighbours(
            tables=self.tables, aim=self.aim, limit=self.limit, prices=prices, effort=self.effort
        )
        self._search(self._boundaries(routes), prices, _FIRST_UNITS * self.effort.left)
        if self.pieces is None:
            routes = (*self.packed(), *routes)
        if not self._has_enough() and not self._is_far():
            self._search(self._boundaries(routes), prices, _SEARCH_UNITS * self.effort.left)
        if self._has_enough():
            return
        is_small = self.tables.places <= _SMALL
        if len(shared):
            if self.pieces is None:
                self._repair(near, routes)
            self._look_near(near, (0.1 if is_small else _NEAR_UNITS) * self.effort.left)
            self._halve(shared, priced)
        else:
            if self._is_far():
                is_near = is_small or not self._is_far(_VERY_FAR)
                units = (0.2 if is_near else _ELSEWHERE_UNITS) * self.effort.left
                self._start_elsewhere(near, routes, units)
            if self.pieces is None:
                self._repair(near, routes)
            self._look_near(near, (0.1 if is_small else _NEAR_UNITS) * self.effort.left)
            if self._is_far():
                self._dive(self._boundaries(routes), prices)
        if self._has_enough():
            return
        if not len(shared) and not is_small and self._is_far(_VERY_FAR):
            self._start_elsewhere(near, routes, _SEARCH_UNITS * self.effort.left)
        else:
            units = (0.9 if is_small else _SEARCH_UNITS) * self.effort.left
            self._search(self._boundaries(routes), prices, units)
        if self.pieces is None:
            self._repair(near, routes)
        self._look_near(near, self.effort.left)
        self._has_enough()

    def packed(self) -> tuple[Pieces, ...]:
        """A division that fits the memories, one block in each; none if there is no such one."""
        self.is_packed = True
        memory = self.limit[memory_columns(self.tables)]
        found = None
        if np.isfinite(memory).any():
            found = in_blocks(self.tables, memory, self.effort)
        if found is None:
            return ()
        self._try_routes((found,))
        return (found,)

    def _is_far(self, share: float = 1.03) -> bool:
        """Whether none is known, or one above this share of the bound."""
        return self.pieces is None or self.value > self.bound * share

    def _start_elsewhere(self, near: Neighbours, routes: tuple[Pieces, ...], units: float) -> None:
        """Repair other routes, cheap ones that exceed caps by little, and improve the results."""
        stop = self.effort.spent + units
        scale = max(self.bound, 1e-12)

        def price(pieces: Pieces) -> float:
            value = aimed(self.tables, self.aim, demanded(self.tables, pieces))
            return value / scale + self._excess(pieces)

        for pieces in sorted(routes, key=price)[self.starts :]:
            if self.effort.spent >= stop or not self._is_far():
                break
            left = min(units / 5.0, stop - self.effort.spent)
            found = near.repaired(pieces, left, worth=_WORTHS[self.starts % len(_WORTHS)])
            self.starts += 1
            if not (demanded(self.tables, found) <= self.limit).all():
                continue
            if aimed(self.tables, self.aim, demanded(self.tables, found)) > _HOPEFUL * self.value:
                continue
            self._try_routes((found,))
            left = min(units / 5.0, stop - self.effort.spent)
            self._try_routes((near.improved(found, left, self.bound),))

    def _boundaries(self, routes: tuple[Pieces, ...]) -> tuple[int, ...]:
        """Where a search may change: everywhere in short models."""
        if self.tables.places <= _MOST_BLOCKS:
            return tuple(range(self.tables.places))
        used = {start for pieces in routes for start, _ in pieces}
        if self.pieces is not None:
            used = {start for start, _ in self.pieces}
        return kept_boundaries(self.tables, used, _MOST_BLOCKS)

    def _dive(self, boundaries: tuple[int, ...], prices: dict[int, float]) -> None:
        """One pass with few labels, and prices that are made anew on the way."""
        if self.effort.left <= 0:
            return
        search = self._asked(boundaries, prices)
        search.is_repriced = True
        search.run(_FIRST_LABELS)
        if search.found is not None:
            self._try_routes((refined(boundaries, search.found),))

    def _asked(self, boundaries: tuple[int, ...], prices: dict[int, float]) -> Search:
        is_whole = len(boundaries) == self.tables.places
        tables = self.tables if is_whole else coarsen(self.tables, boundaries)
        asked = question(tables, self.aim, self.limit, prices, self.bound, self.effort, self.best)
        return Search(question=asked, effort=self.effort, best=self.best)

    def _repair(self, near: Neighbours, routes: tuple[Pieces, ...]) -> None:
        """Make routes that exceed caps a little keep them."""
        for pieces in sorted(routes, key=self._excess)[:_REPAIRED]:
            if self.effort.left <= 0 or self.pieces is not None:
                break
            found = near.repaired(pieces, self.effort.left / _REPAIRED)
            self._try_routes((found,))

    def _excess(self, pieces: Pieces) -> float:
        """How much more than the caps, in shares of them."""
        finite = np.isfinite(self.limit)
        over = demanded(self.tables, pieces)[finite] - self.limit[finite]
        return float((np.maximum(over, 0.0) / np.maximum(self.limit[finite], 1e-9)).sum())

    def _look_near(self, near: Neighbours, units: float) -> None:
        if self.pieces is not None and self.value <= self.known:
            self._try_routes((near.improved(self.pieces, units, self.bound),))
        self._has_enough()

    def _halve(self, shared: Ints, priced: Priced) -> None:
        """A greatest is bounded by what it cannot be: where stays that keep below it cost more."""
        for _ in range(_HALVINGS):
            best = self.best
            if not best < np.inf or best - self.bound <= 1e-3 * best or self.effort.left <= 0:
                break
            middle = 0.5 * (max(self.bound, 0.0) + best)
            limit = self.limit.copy()
            limit[shared] = np.minimum(limit[shared], middle)
            within = stays(self.tables, limit)
            bounded = priced_bound(
                self.tables, priced, self.effort, rounds=6, enough=middle, within=within
            )
            self._try_routes(bounded.routes)
            low = min(bounded.bound, middle)
            if low <= self.bound * (1.0 + 1e-3):
                break
            self.bound = max(self.bound, low)

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

    def _search(self, boundaries: tuple[int, ...], prices: dict[int, float], units: float) -> None:
        if self.effort.left <= 0:
            return
        is_whole = len(boundaries) == self.tables.places
        stop = self.effort.spent + units
        search = self._asked(boundaries, prices)
        most = _FIRST_LABELS
        while True:
            before = self.effort.spent
            search.run(most)
            if search.found is not None:
                self._try_routes((refined(boundaries, search.found),))
            if is_whole:
                self.bound = max(self.bound, min(search.best, search.dropped))
            used = self.effort.spent - before
            left = stop - self.effort.spent
            if search.dropped >= search.best or self._has_enough() or left < 1.2 * used:
                break
            most = int(most * min(max(0.8 * left / used, 1.2), 8.0))
        self._has_enough()


def _excess(capped: Ints, limit: Floats, width: int) -> Priced:
    """How far the caps are exceeded at least, as a share of them: more than 0 if no route keeps
    them all."""
    caps = limit[capped]
    units = np.where(caps > 0, caps, 1.0)
    none = np.zeros(0, np.int64)
    return Priced(aim=np.zeros(width), shared=capped, capped=none, caps=caps, units=units)
