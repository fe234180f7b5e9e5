"""Mixtures at a rate of which only the greatest counts: the slowest route, or the fullest memory.

Whether the rate can be had below some greatest value is a question for the throughput, so that the
least such value is found by halving: exactly where all routes can be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import CLOSE, Caps
from edge_agent.planning.caps import memory_together
from edge_agent.planning.known import Flags, Known
from edge_agent.planning.mixing import Mixed, every_column, least_effort, mix
from edge_agent.planning.mixture import Column, Shares, Wish
from edge_agent.planning.tables import Floats, Tables
from edge_agent.planning.together import Chosen, together
from edge_agent.plans import Target

_HALVINGS = 10
_FIRST_EFFORT = 0.4
"""Share of the effort for finding out whether the rate can be had at all."""
_LEAST_STEP_BYTES = 0.5
"""Weights of half the precision are half as large; nothing is smaller than that."""
_NEAR = 0.02


def least_greatest(
    tables: Tables, wish: Wish, caps: Caps, effort: float, most_routes: int | None
) -> Mixed:
    """A mixture that reaches the rate of the wish, with the least latency or memory."""
    columns = every_column(tables, caps)
    if columns is None:
        return _halved(tables, wish, caps, effort, most_routes)
    if not columns:
        return Mixed(shares=(), value=np.inf, bound=np.inf)
    looked_at = _LookedAt(
        tables=tables,
        columns=columns,
        limit_s=(1.0 + 0.5 * CLOSE) / wish.least_per_s,
        caps=caps,
        most_routes=most_routes,
        effort=effort,
    )
    is_latency = wish.target is Target.LATENCY
    return looked_at.least_latency() if is_latency else looked_at.least_memory()


@dataclass(slots=True, kw_only=True, eq=False)
class _LookedAt:
    """All routes of a small problem."""

    tables: Tables
    columns: Sequence[Column]
    limit_s: float
    """Seconds per request that the busiest resource may take."""
    caps: Caps
    most_routes: int | None
    effort: float
    spent: float = 0.0
    _known: Known = field(init=False)

    def __post_init__(self) -> None:
        self._known = Known(tables=self.tables)
        self._known.meet(self.columns)

    def _served(self, which: Flags, budgets: Floats, *, is_alone: bool = False) -> Chosen:
        """A mixture of some of the routes that reaches the rate, if there is one; `is_alone`: as
        if each were alone in memory."""
        found = together(
            self._known,
            which,
            Wish(target=Target.LATENCY),
            np.full(len(budgets), np.inf) if is_alone else budgets,
            most_routes=None if is_alone else self.most_routes,
            effort=self.effort - self.spent,
            enough=self.limit_s,
            worst=self.limit_s * (1.0 + 4.0 * CLOSE),
        )
        self.spent += found.spent
        return found

    def _is_enough(self, found: Chosen) -> bool:
        return found.value <= self.limit_s

    def _nothing(self, found: Chosen) -> Mixed:
        bound = np.inf if found.bound > self.limit_s else 0.0
        return Mixed(shares=(), value=np.inf, bound=bound)

    def least_latency(self) -> Mixed:
        """With the quickest slowest route."""
        seconds = np.array([column.amounts.seconds for column in self.columns])
        ladder = np.unique(seconds)
        low, high = 0, len(ladder) - 1
        best = self._served(seconds <= ladder[high], self.caps.memory)
        if not self._is_enough(best):
            return self._nothing(best)
        # Below what is enough if each were alone in memory, nothing is enough.
        while low < high:
            middle = (low + high) // 2
            which = seconds <= ladder[middle]
            if self._is_enough(self._served(which, self.caps.memory, is_alone=True)):
                high = middle
            else:
                low = middle + 1
        high = int(np.searchsorted(ladder, seconds[best.shares > 0.0].max()))
        proven = tried = low
        while low < high:
            found = self._served(seconds <= ladder[tried], self.caps.memory)
            if self._is_enough(found):
                best = found
                high = int(np.searchsorted(ladder, seconds[found.shares > 0.0].max()))
            else:
                low = tried + 1
                proven = low if found.bound > self.limit_s else proven
            tried = (low + high) // 2
        value = float(seconds[best.shares > 0.0].max())
        return Mixed(shares=best.of(self.columns), value=value, bound=float(ladder[proven]))

    def least_memory(self) -> Mixed:
        """With the least in the fullest memory."""
        memory = self.caps.memory
        peaks = self._known.things.peaks
        everything = np.ones(len(peaks), bool)
        best = self._served(everything, memory)
        if not self._is_enough(best):
            return self._nothing(best)
        high = self._peak(best.shares)
        ladder = np.unique(peaks)
        at, stop = 0, int(np.searchsorted(ladder, high))
        while at < stop:
            middle = (at + stop) // 2
            which = peaks <= ladder[middle]
            if self._is_enough(self._served(which, memory, is_alone=True)):
                stop = middle
            else:
                at = middle + 1
        low = min(float(ladder[min(at, len(ladder) - 1)]), high)
        proven = tried = low
        while low < high and self.spent < self.effort:
            found = self._served(peaks <= tried, np.minimum(memory, tried))
            if self._is_enough(found):
                best, high = found, self._peak(found.shares)
            else:
                low = tried + _LEAST_STEP_BYTES
                proven = low if found.bound > self.limit_s else proven
            # Asking for only a little less often ends it.
            is_near = high - low < _NEAR * high
            tried = high - _LEAST_STEP_BYTES if is_near else 0.5 * (low + high)
            tried = np.floor(tried / _LEAST_STEP_BYTES) * _LEAST_STEP_BYTES
        return Mixed(shares=best.of(self.columns), value=high, bound=min(proven, high))

    def _peak(self, shares: Floats) -> float:
        return _peak(self.tables, [self.columns[i] for i in np.flatnonzero(shares).tolist()])


def _peak(tables: Tables, columns: Sequence[Column]) -> float:
    return float(memory_together(tables, (c.pieces for c in columns)).max(initial=0.0))


def _greatest(tables: Tables, wish: Wish, shares: Shares) -> float:
    columns = [column for column, _ in shares]
    if wish.target is Target.LATENCY:
        return max(column.amounts.seconds for column in columns)
    return _peak(tables, columns)


def _halved(
    tables: Tables, wish: Wish, caps: Caps, effort: float, most_routes: int | None
) -> Mixed:
    """The same for a long model: what is found by halving, and what that proves."""
    rate = Wish(target=Target.THROUGHPUT)
    limit_s = (1.0 + 0.5 * CLOSE) / wish.least_per_s

    def tried(caps: Caps, share: float) -> Mixed:
        return mix(tables, rate, caps, effort * share, most_routes, enough=limit_s)

    first = tried(caps, _FIRST_EFFORT)
    if first.value > limit_s:
        bound = np.inf if first.bound > limit_s else 0.0
        return Mixed(shares=(), value=np.inf, bound=bound)
    best, high = first.shares, _greatest(tables, wish, first.shares)
    low, proven = 0.0, 0.0
    left = (1.0 - _FIRST_EFFORT) * effort
    halvings = min(_HALVINGS, max(1, int(left / least_effort(tables))))
    for _ in range(halvings):
        if high <= low * (1.0 + 1e-4):
            break
        middle = 0.5 * (low + high)
        if wish.target is Target.LATENCY:
            under = replace(caps, seconds=min(caps.seconds, middle))
        else:
            under = replace(caps, memory=np.minimum(caps.memory, middle))
        found = tried(under, (1.0 - _FIRST_EFFORT) / halvings)
        if found.value <= limit_s:
            best, high = found.shares, _greatest(tables, wish, found.shares)
            continue
        low = middle
        if found.bound > limit_s:
            proven = middle
    return Mixed(shares=best, value=high, bound=proven)
