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
    """A programme and its best solution so far."""

    def __init__(self, limits: Floats) -> None:
        """`limits`: (m,), all at least 0."""
        m = len(limits)
        self.limits = limits.astype(np.float64)
        self.amounts: Floats = np.eye(m)
        """(m, m + columns): the first are the slacks of the rows. Of each column the greatest is
        1, because a pivot loses what is too many times smaller than another one."""
        self._scales: Floats = np.zeros(0)
        """(columns,): what each was divided by."""
        self.profits: Floats = np.zeros(m)
        self._basis: Ints = np.arange(m)
        self._inverse: Floats = np.eye(m)
        self._basic: Floats = self.limits.copy()
        self._since_refresh = 0
        self._used_up = np.zeros(m, bool)

    def add(self, amounts: Floats, profits: Floats) -> None:
        """Add columns: amounts (m, k), profits (k,)."""
        greatest = np.abs(amounts).max(axis=0, initial=0.0)
        scales = np.where(greatest > 0.0, greatest, 1.0)
        self._scales = np.concatenate([self._scales, scales])
        self.amounts = np.concatenate([self.amounts, amounts / scales], axis=1)
        self.profits = np.concatenate([self.profits, profits / scales])

    def reprice(self, profits: Floats) -> None:
        """Give the columns other profits, (columns,)."""
        self.profits = np.concatenate([self.profits[: len(self.limits)], profits / self._scales])

    def use_up(self, row: int, penalty: float) -> None:
        """From now on a limit that the solution uses up is to be used up, whatever that costs.

        `penalty`: more than a unit of the limit can cost, for the case that its slack is still in
        the basis.
        """
        self._used_up[row] = True
        self.profits[row] = -penalty

    def let_go(self, row: int) -> None:
        """The limit need not be used up any more."""
        self._used_up[row] = False
        self.profits[row] = 0.0

    @property
    def duals(self) -> Floats:
        """(m,): what one unit more of each limit would bring; less than 0 only where a limit is to
        be used up."""
        prices: Floats = self.profits[self._basis] @ self._inverse
        return np.where(self._used_up, prices, np.maximum(prices, 0.0))

    @property
    def solution(self) -> Floats:
        """(columns,): how much of each column, in the order in which they were added."""
        x = np.zeros(self.amounts.shape[1])
        x[self._basis] = np.maximum(self._basic, 0.0)
        return x[len(self.limits) :] / self._scales

    @property
    def value(self) -> float:
        """The profit of the solution."""
        return float(self.profits[self._basis] @ np.maximum(self._basic, 0.0))

    def solve(self, most_pivots: int = 5000) -> int:
        """Pivot until nothing improves; how many pivots it took.

        Raises:
            ValueError: the profit has no limit.
        """
        stalled = 0
        m = len(self.limits)
        sizes = np.concatenate([np.ones(m), self._scales])
        own = np.abs(self.profits[m:] * self._scales)
        most = max(float(own.max(initial=0.0)), _TINY)
        for pivot in range(most_pivots):
            prices = self.profits[self._basis] @ self._inverse
            gains = self.profits - prices @ self.amounts
            gains[self._basis] = 0.0
            gains[:m][self._used_up] = 0.0
            # A column that can be used little may be all that gives a limit its price.
            terms = np.abs(self.profits) + np.abs(prices) @ np.abs(self.amounts)
            is_noise = gains <= _NOISE * terms
            gains = np.where(is_noise, 0.0, gains * sizes)
            # Beside what is reached, not beside the dearest column: that may never be used.
            reached = abs(self.value)
            better = gains > _IMPROVES * (min(reached, most) if reached > 0.0 else most)
            if not better.any():
                return pivot
            is_bland = stalled > _PATIENCE
            entering = int(better.argmax() if is_bland else gains.argmax())
            if self._pivot(entering, is_bland):
                stalled = 0
            else:
                stalled += 1
        return most_pivots

    def _pivot(self, entering: int, is_bland: bool) -> bool:
        """Bring a column into the basis; whether the profit grew."""
        direction = self._inverse @ self.amounts[:, entering]
        can_leave = direction > _TINY * max(1.0, float(np.abs(direction).max()))
        if not can_leave.any():
            raise ValueError("the profit has no limit: a column uses nothing of any limit")
        steps = np.full(len(direction), np.inf)
        steps[can_leave] = np.maximum(self._basic[can_leave], 0.0) / direction[can_leave]
        least = float(steps.min())
        (ties,) = np.nonzero(steps <= least + _TINY * max(1.0, least))
        if is_bland:
            leaving = int(ties[self._basis[ties].argmin()])
        else:
            leaving = int(ties[direction[ties].argmax()])
        self._basic = self._basic - least * direction
        self._basic[leaving] = least
        row = self._inverse[leaving] / direction[leaving]
        self._inverse = self._inverse - np.outer(direction, row)
        self._inverse[leaving] = row
        self._basis[leaving] = entering
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH:
            self._refresh()
        return least > _TINY

    def _refresh(self) -> None:
        self._since_refresh = 0
        try:
            self._inverse = np.linalg.inv(self.amounts[:, self._basis]).astype(np.float64)
        except np.linalg.LinAlgError:
            return
        self._basic = self._inverse @ self.limits
