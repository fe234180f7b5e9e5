"""Mixtures whose routes must fit into the memories together, and each keep to caps.

Which weights are where is a yes or no, so that the best mixture is hard to find (it holds a
knapsack problem). Routes are put together one by one, beginning with different ones: at the prices
of what is there already, the route that is missed most among those that still fit (labels.py),
where what is in memory already needs no room again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import CLOSE, Caps, amounts
from edge_agent.planning.caps import Resident
from edge_agent.planning.labels import best_route
from edge_agent.planning.mixture import Column, Relaxation, Shares, Wish
from edge_agent.planning.tables import Tables

_STARTS = 6
"""How many routes are tried as the first one."""
_STEP_EFFORT = 0.08
"""Share of the effort for one more route."""
_MOST_ADDED = 40


@dataclass(slots=True, kw_only=True, eq=False)
class Assembly:
    """The best mixture that fits, of those that were put together so far."""

    tables: Tables
    wish: Wish
    caps: Caps
    most_routes: int | None
    scale_s: float
    shares: Shares = ()
    value: float = np.inf
    """Seconds per request, or the cost of one."""
    spent: float = field(default=0.0)

    def build(self, relaxation: Relaxation, effort: float) -> None:
        """Put mixtures together, from the routes of the relaxation and new ones."""
        fitting = [c for c in relaxation.columns if self.caps.allows(c.amounts)]
        liked = {column.pieces: share for column, share in relaxation.shares()}
        fitting.sort(key=lambda c: (-liked.get(c.pieces, 0.0), self._alone(c), c.pieces))
        starts = [*fitting[:_STARTS]]
        alone = self._searched(relaxation, effort * _STEP_EFFORT)
        if alone is not None:
            starts.insert(0, alone)
        best_alone = sorted(fitting, key=lambda c: (self._alone(c), c.pieces))
        starts += best_alone[:2]
        for start in dict.fromkeys(c.pieces for c in starts):
            if self.spent >= effort and self.shares:
                return
            self._from([self._column(start)], fitting, relaxation, effort)

    def _column(self, pieces: tuple[tuple[int, int], ...]) -> Column:
        return Column(pieces=pieces, amounts=amounts(self.tables, pieces))

    def _alone(self, column: Column) -> float:
        """How good a route is alone."""
        if self.wish.target.value == "throughput":
            return float(column.amounts.loads.max())
        return self.wish.cost(column.amounts)

    def _searched(self, relaxation: Relaxation, effort: float) -> Column | None:
        """The route that is cheapest at the prices of the relaxation and keeps to the caps."""
        weights = relaxation.weights_now()
        found = best_route(self.tables, weights, self.caps, effort=effort)
        self.spent += found.spent
        return None if found.pieces is None else self._column(found.pieces)

    def _from(
        self,
        chosen: Sequence[Column],
        known: Sequence[Column],
        relaxation: Relaxation,
        effort: float,
    ) -> None:
        """Add to `chosen` what fits and gains, first of the known routes, then new ones."""
        del relaxation
        resident = Resident(self.tables, (c.pieces for c in chosen))
        if not self._fits(resident):
            return
        programme = self._programme(chosen)
        programme.solve()
        for column in known:
            if self._is_full(programme):
                break
            if programme.gain(column) > CLOSE:
                longer = resident.copy()
                longer.add(column.pieces)
                if self._fits(longer):
                    resident = longer
                    programme.add([column])
                    programme.solve()
        self._keep(programme)
        for _ in range(_MOST_ADDED):
            if self._is_full(programme) or self.spent >= effort:
                break
            fresh = self._missed(programme, resident, effort * _STEP_EFFORT)
            if fresh is None or programme.gain(fresh) <= CLOSE or not programme.add([fresh]):
                break
            resident.add(fresh.pieces)
            programme.solve()
            self._keep(programme)

    def _programme(self, chosen: Sequence[Column]) -> Relaxation:
        """The programme over routes that keep to the caps, whose means need no rows."""
        free = Caps.none(self.tables)
        costs = [self.wish.cost(c.amounts) for c in chosen]
        programme = Relaxation(
            tables=self.tables,
            wish=self.wish,
            caps=free,
            scale_s=self.scale_s,
            cost_scale=min((c for c in costs if c > 0.0), default=1.0),
        )
        programme.add(chosen)
        return programme

    def _is_full(self, programme: Relaxation) -> bool:
        return self.most_routes is not None and len(programme.columns) >= self.most_routes

    def _fits(self, resident: Resident) -> bool:
        return bool((resident.memory() <= self.caps.memory * (1.0 + CLOSE)).all())

    def _missed(self, programme: Relaxation, resident: Resident, effort: float) -> Column | None:
        tables = self.tables
        there = resident.forms[:, tables.form_of]
        rest = replace(tables, weights=np.where(there, 0.0, tables.weights))
        left = np.maximum(self.caps.memory - resident.memory(), 0.0)
        caps = replace(self.caps, memory=left)
        found = best_route(rest, programme.weights_now(), caps, effort=effort)
        self.spent += found.spent
        return None if found.pieces is None else self._column(found.pieces)

    def _keep(self, programme: Relaxation) -> None:
        value = programme.value()
        if value < self.value * (1.0 - CLOSE):
            self.value, self.shares = value, programme.shares()
