"""Linear programmes of the kind that shares of traffic give: maximise profit, within limits.

    maximise profits · x   subject to   amounts · x <= limits,  x >= 0,   with limits >= 0

Solved by the revised simplex method (Dantzig and Orchard-Hays, The product form for the inverse in
the simplex method, 1954), to which columns can be added between two solutions: what was optimal
stays a feasible start. That is column generation, where the columns are routes (Gilmore and Gomory,
A linear programming approach to the cutting-stock problem, Operations Research 9, 1961).
"""

from __future__ import annotations

import numpy as np

from edge_agent.planning.tables import Floats, Ints

_TINY = 1e-11
_IMPROVES = 1e-10
_NOISE = 4e-15
"""Of the terms that a gain is the difference of."""
_REFRESH = 40
"""The inverse is computed anew after so many pivots: errors add up."""
_PATIENCE = 20
"""Pivots without gain before Bland's rule is used, under which no basis comes twice (Bland, New
finite pivoting rules for the simplex method, Mathematics of Operations Research 2, 1977)."""


class Packing:
    """A programme and its best solution so far.

    Limits that no column uses are left out of all sums: between many devices there are a thousand
    links, of which a few dozen carry anything.
    """

    def __init__(self, limits: Floats) -> None:
        """`limits`: (m,), all at least 0."""
        self.limits = limits.astype(np.float64)
        m = len(limits)
        self._rows: Ints = np.zeros(0, np.int64)
        """(r,): the limits that are used, in the order in which they came."""
        self._place: Ints = np.full(m, -1)
        """(m,): where each is among them; -1: it is not used."""
        self._amounts: Floats = np.zeros((0, 0))
        """(r, columns). Of each column the greatest is 1, because a pivot loses what is too many
        times smaller than another one."""
        self._scales: Floats = np.zeros(0)
        """(columns,): what each was divided by."""
        self._profits: Floats = np.zeros(0)
        self._penalties: Floats = np.zeros(m)
        """(m,): the profits of slacks; 0, or less where a limit is to be used up."""
        self._is_used_up = np.zeros(m, bool)
        self._basis: Ints = np.zeros(0, np.int64)
        """(r,): limits whose slacks are in it, and m + column."""
        self._inverse: Floats = np.zeros((0, 0))
        self._basic: Floats = np.zeros(0)
        self._since_refresh = 0

    def add(self, amounts: Floats, profits: Floats) -> None:
        """Add columns: amounts (m, k), profits (k,)."""
        self._use(np.flatnonzero((amounts != 0.0).any(axis=1) & (self._place < 0)))
        greatest = np.abs(amounts).max(axis=0, initial=0.0)
        scales = np.where(greatest > 0.0, greatest, 1.0)
        self._scales = np.concatenate([self._scales, scales])
        scaled = amounts[self._rows] / scales
        self._amounts = np.concatenate([self._amounts, scaled], axis=1)
        self._profits = np.concatenate([self._profits, profits / scales])

    def _use(self, fresh: Ints) -> None:
        """Take limits into account that no column used before: their slacks are in the basis."""
        count, more = len(self._rows), len(fresh)
        if not more:
            return
        self._place[fresh] = count + np.arange(more)
        self._rows = np.concatenate([self._rows, fresh])
        # Small arrays: `np.pad` takes ten times as long.
        self._amounts = np.concatenate([self._amounts, np.zeros((more, len(self._profits)))])
        inverse = np.eye(count + more)
        inverse[:count, :count] = self._inverse
        self._inverse = inverse
        self._basis = np.concatenate([self._basis, fresh])
        self._basic = np.concatenate([self._basic, self.limits[fresh]])

    def reprice(self, profits: Floats) -> None:
        """Give the columns other profits, (columns,)."""
        self._profits = profits / self._scales

    def use_up(self, row: int, penalty: float) -> None:
        """From now on a limit that the solution uses up is to be used up, whatever that costs.

        `penalty`: more than a unit of the limit can cost, for the case that its slack is still in
        the basis.
        """
        self._is_used_up[row] = True
        self._penalties[row] = -penalty

    def let_go(self, row: int) -> None:
        """The limit need not be used up any more."""
        self._is_used_up[row] = False
        self._penalties[row] = 0.0

    @property
    def _basic_profits(self) -> Floats:
        m = len(self.limits)
        found = np.zeros(len(self._basis))
        is_slack = self._basis < m
        found[is_slack] = self._penalties[self._basis[is_slack]]
        found[~is_slack] = self._profits[self._basis[~is_slack] - m]
        return found

    @property
    def duals(self) -> Floats:
        """(m,): what one unit more of each limit would bring; less than 0 only where a limit is to
        be used up."""
        prices = np.zeros(len(self.limits))
        prices[self._rows] = self._basic_profits @ self._inverse
        return np.where(self._is_used_up, prices, np.maximum(prices, 0.0))

    @property
    def solution(self) -> Floats:
        """(columns,): how much of each column, in the order in which they were added."""
        m = len(self.limits)
        x = np.zeros(len(self._profits))
        is_column = self._basis >= m
        x[self._basis[is_column] - m] = np.maximum(self._basic[is_column], 0.0)
        return x / self._scales

    @property
    def value(self) -> float:
        """The profit of the solution."""
        return float(self._basic_profits @ np.maximum(self._basic, 0.0))

    def solve(self, most_pivots: int = 5000) -> int:
        """Pivot until nothing improves; how many pivots it took.

        Raises:
            ValueError: the profit has no limit.
        """
        stalled = 0
        count = len(self._rows)
        # The slacks of the limits that are used, then the columns.
        profits = np.concatenate([self._penalties[self._rows], self._profits])
        sizes = np.concatenate([np.ones(count), self._scales])
        is_used_up = np.flatnonzero(self._is_used_up[self._rows])
        own = np.abs(self._profits * self._scales)
        most = max(float(own.max(initial=0.0)), _TINY)
        order = self._order
        paid = profits[order]
        for pivot in range(most_pivots):
            prices = paid @ self._inverse
            gains = profits.copy()
            gains[:count] -= prices
            gains[count:] -= prices @ self._amounts
            gains[order] = 0.0
            gains[is_used_up] = 0.0
            gains *= sizes
            # Beside what is reached, not beside the dearest column: that may never be used.
            reached = abs(float(paid @ np.maximum(self._basic, 0.0)))
            least = _IMPROVES * (min(reached, most) if reached > 0.0 else most)
            is_bland = stalled > _PATIENCE
            entering = self._entering(gains, least, profits, prices, is_bland)
            if entering is None:
                return pivot
            leaving, is_gain = self._pivot(entering, order, is_bland)
            order[leaving] = entering
            paid[leaving] = profits[entering]
            stalled = 0 if is_gain else stalled + 1
        return most_pivots

    def _entering(
        self, gains: Floats, least: float, profits: Floats, prices: Floats, is_bland: bool
    ) -> int | None:
        """The slack or column that gains most, or the first one that gains, if there is one; what
        may be only what differences of floats leave, of `profits` and `prices`, is none."""
        count = len(self._rows)
        while len(gains):
            found = int((gains > least).argmax() if is_bland else gains.argmax())
            if not gains[found] > least:
                return None
            # A column that can be used little may be all that gives a limit its price.
            size = 1.0
            terms = abs(float(profits[found]))
            if found < count:
                terms += abs(float(prices[found]))
            else:
                size = float(self._scales[found - count])
                terms += float(np.abs(prices) @ np.abs(self._amounts[:, found - count]))
            if gains[found] > _NOISE * terms * size:
                return found
            gains[found] = 0.0
        return None

    @property
    def _order(self) -> Ints:
        """(r,): where what is in the basis is among the slacks and columns."""
        m = len(self.limits)
        is_slack = self._basis < m
        slacks = self._place[np.where(is_slack, self._basis, 0)]
        return np.where(is_slack, slacks, self._basis - m + len(self._rows))

    def _pivot(self, entering: int, order: Ints, is_bland: bool) -> tuple[int, bool]:
        """Bring a slack or column into the basis, which is at `order` so far; (the row that it
        takes there, whether the profit grew)."""
        count = len(self._rows)
        if entering < count:
            direction = self._inverse[:, entering]
        else:
            direction = self._inverse @ self._amounts[:, entering - count]
        (able,) = np.nonzero(direction > _TINY * max(1.0, float(np.abs(direction).max())))
        if not len(able):
            raise ValueError("the profit has no limit: a column uses nothing of any limit")
        steps = np.maximum(self._basic[able], 0.0) / direction[able]
        least = float(steps.min())
        ties = able[steps <= least + _TINY * max(1.0, least)]
        if is_bland:
            leaving = int(ties[order[ties].argmin()])
        else:
            leaving = int(ties[direction[ties].argmax()])
        self._basic = self._basic - least * direction
        self._basic[leaving] = least
        row = self._inverse[leaving] / direction[leaving]
        self._inverse = self._inverse - direction[:, None] * row
        self._inverse[leaving] = row
        is_slack = entering < count
        self._basis[leaving] = (
            self._rows[entering] if is_slack else len(self.limits) + entering - count
        )
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH:
            self._refresh()
        return leaving, least > _TINY

    def _refresh(self) -> None:
        self._since_refresh = 0
        every = np.concatenate([np.eye(len(self._rows)), self._amounts], axis=1)
        try:
            self._inverse = np.linalg.inv(every[:, self._order]).astype(np.float64)
        except np.linalg.LinAlgError:
            return
        self._basic = self._inverse @ self.limits[self._rows]
