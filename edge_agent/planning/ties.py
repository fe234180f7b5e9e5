"""Of the mixtures that are as fast the one whose slowest route is the quickest.

A bottleneck leaves other resources room, so that many mixtures reach the same rate; those that a
linear programme ends with have routes that nobody would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import CLOSE, Caps
from edge_agent.planning.caps import fits_together
from edge_agent.planning.mixture import (
    PENALTY,
    SHORT,
    Column,
    Shares,
    columns_of,
    shares_of,
)
from edge_agent.planning.packing import Packing
from edge_agent.planning.shortest import Pieces, Weights, cheapest
from edge_agent.planning.tables import Floats, Tables

_ROUNDS = 20
_ROOM = 1e-13
"""As much as sums of floats may leave of a limit."""


def quickest_as_fast(
    tables: Tables, caps: Caps, shares: Shares, others: Sequence[Column] | None
) -> Shares:
    """Shares that reach the rate of `shares`: first the slowest route is as quick as is found, then
    there are as few as can be, then the mean of all is the quickest.

    `others`: routes that may have shares too, further ones that keep to the caps among them; None:
    there may be no other routes.
    """
    if _busiest_s(shares) <= 0.0:
        return shares
    hurried = _Hurried(tables=tables, caps=caps, shares=shares)
    if others is not None and hurried.is_short:
        hurried.add(others)
        hurried.look_further()
        found = hurried.best()
        if fits_together(tables, caps, found):
            return found
        hurried = _Hurried(tables=tables, caps=caps, shares=shares)
    return hurried.best()


@dataclass(slots=True, kw_only=True, eq=False)
class _Hurried:
    tables: Tables
    caps: Caps
    shares: Shares
    columns: dict[Pieces, Column] = field(default_factory=dict)
    busiest_s: float = field(init=False)
    slowest_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.busiest_s = _busiest_s(self.shares)
        self.slowest_s = max(column.amounts.seconds for column, _ in self.shares)
        self.add([column for column, _ in self.shares])

    @property
    def is_short(self) -> bool:
        """Whether there is time to look at other routes and to try fewer."""
        return self.tables.places <= SHORT

    def add(self, columns: Sequence[Column]) -> list[Column]:
        """Those among them that are new and no slower than the slowest by now."""
        fresh = {
            column.pieces: column
            for column in columns
            if column.pieces not in self.columns and column.amounts.seconds <= self.slowest_s
        }
        self.columns |= fresh
        return list(fresh.values())

    def look_further(self) -> None:
        """Add the routes that a mixture of the least mean time at the rate has."""
        columns = list(self.columns.values())
        programme = self._served(columns)
        if programme is None:
            return
        self._hurry(programme, columns)
        for _ in range(_ROUNDS):
            weights = replace(
                Weights.none(self.tables),
                loads=programme.duals[None, :-1] / self.busiest_s,
                seconds=np.array([1.0 / self.slowest_s]),
            )
            paths = cheapest(self.tables, weights)
            starts = np.flatnonzero(np.isfinite(paths.starts())).tolist()
            found = columns_of(self.tables, [paths.pieces(0, d) for d in starts])
            fresh = self.add([column for column in found if self.caps.allows(column.amounts)])
            if not fresh:
                return
            programme.add(self._rows(fresh), self._hurried_profits(fresh))
            programme.solve()

    def best(self) -> Shares:
        """The shares that are wanted, of the routes that there are."""
        able = list(self.columns.values())
        able.sort(key=lambda column: (column.amounts.seconds, column.pieces))
        enough, few = len(able), 0
        programme: Packing | None = None
        while enough - few > 1:
            middle = (enough + few) // 2
            tried = self._served(able[:middle])
            if tried is None:
                few = middle
            else:
                enough, programme = middle, tried
        found = self._shared(able[:enough], programme)
        if not self.is_short:
            return found or self.shares
        for column, _ in reversed(found):
            fewer = self._shared([other for other, _ in found if other is not column])
            found = fewer or found
        return found or self.shares

    def _shared(self, columns: Sequence[Column], served: Packing | None = None) -> Shares:
        """The shares of these routes at the rate with the least mean time; none if they do not
        reach it. `served`: their programme, where it is known."""
        programme = served or self._served(columns)
        if programme is None:
            return ()
        self._hurry(programme, columns)
        found = shares_of(columns, programme.solution)
        return found if _busiest_s(found) <= self.busiest_s * (1.0 + CLOSE) else ()

    def _served(self, columns: Sequence[Column]) -> Packing | None:
        """The programme of shares of these routes with no resource busy for longer, the sum of
        shares as its last row; None if they do not serve all that is asked."""
        if not columns:
            return None
        programme = Packing(np.append(np.full(len(self.tables.resources), 1.0 + _ROOM), 1.0))
        programme.add(self._rows(columns), np.ones(len(columns)))
        programme.solve()
        return programme if programme.value >= 1.0 - 1e-10 else None

    def _hurry(self, programme: Packing, columns: Sequence[Column]) -> None:
        """From the highest rate to the least mean time at the rate that is asked."""
        programme.reprice(self._hurried_profits(columns))
        programme.use_up(len(programme.limits) - 1, PENALTY)
        programme.solve()

    def _rows(self, columns: Sequence[Column]) -> Floats:
        """(limits, columns): of the programme."""
        loads = np.array([column.amounts.loads for column in columns]).T / self.busiest_s
        return np.vstack([loads, np.ones(len(columns))])

    def _hurried_profits(self, columns: Sequence[Column]) -> Floats:
        return -np.array([column.amounts.seconds for column in columns]) / self.slowest_s


def _busiest_s(shares: Shares) -> float:
    """Seconds per request of the resource that is busy longest."""
    loads = np.array([share * column.amounts.loads for column, share in shares])
    return float(loads.sum(axis=0).max(initial=0.0))
