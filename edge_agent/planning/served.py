"""The best shares of given routes, some of which may be left out: the programme of a node of
`together`, begun where the last one ended.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_agent.planning.amounts import CLOSE
from edge_agent.planning.known import Flags
from edge_agent.planning.mixture import Wish
from edge_agent.planning.packing import Packing
from edge_agent.planning.shortest import Weights
from edge_agent.planning.tables import Floats, Tables
from edge_agent.plans import Target

_HOPELESS = 1e8
"""Routes so many times worse than the best one could carry no share that shows."""
_LEAST_SHARE = 1e-9


class Served:
    """Shares of `n` routes: with the busiest resource least busy, or the least mean cost at a
    rate."""

    def __init__(self, loads: Floats, costs: Floats | None = None, per_s: float = 0.0) -> None:
        """`loads`: (n, resources), seconds; `costs`: (n,), with the rate `per_s` to be reached, or
        None where the rate itself is the target."""
        self._loads, self._costs = loads, costs
        alone = loads.max(axis=1, initial=0.0)
        if costs is None:
            positive = alone[alone > 0.0]
            self._scale_s = float(positive.min(initial=np.inf)) if len(positive) else 1.0
        else:
            self._scale_s = 1.0 / per_s
        busy = loads / self._scale_s
        self.is_hopeful: Flags = alone <= self._scale_s * _HOPELESS
        rows = np.where(self.is_hopeful[:, None], busy, 0.0).T
        room = np.ones(loads.shape[1])
        self._served = loads.shape[1]
        if costs is not None:
            rows = np.vstack((rows, np.ones(len(loads))))
            # As much as sums of floats may leave of the rate.
            room = np.append(room * (1.0 + CLOSE), 1.0)
        self._cost_scale = 1.0
        self._packing = Packing(room)
        self._packing.add(rows, np.full(len(loads), -1.0))
        self._rows = rows
        self._profits = np.ones(len(loads))

    @property
    def gains(self) -> Floats:
        """(n,): what a share of each route would bring at the last solution."""
        gains: Floats = self._profits - self._packing.duals @ self._rows
        return np.where(self.is_hopeful, gains, -1.0)

    def gain(self, loads: Floats, cost: float) -> float:
        """What a share of another route would bring at the last solution."""
        row = loads / self._scale_s
        if self._costs is None:
            return float(1.0 - self._packing.duals @ row)
        return float(-cost / self._cost_scale - self._packing.duals @ np.append(row, 1.0))

    def weights(self, tables: Tables, wish: Wish) -> Weights:
        """The weights under which the cheapest route is the one that is missed most."""
        weights = Weights.none(tables)
        prices = self._packing.duals[: self._served] / self._scale_s
        own = 0.0 if self._costs is None else 1.0 / self._cost_scale
        return replace(
            weights,
            loads=prices[None],
            joules=weights.joules + own * (wish.target is Target.ENERGY),
            size_bytes=weights.size_bytes + own * (wish.target is Target.BYTES),
        )

    def solve(self, allowed: Flags) -> tuple[float, Floats, int]:
        """(value, shares, pivots) with the allowed routes alone; infinity if they do not serve."""
        allowed = allowed & self.is_hopeful
        packing = self._packing
        if self._costs is None:
            return self._most(allowed)
        packing.let_go(self._served)
        packing.reprice(np.where(allowed, 1.0, -1.0))
        pivots = packing.solve()
        shares = packing.solution
        self._profits = np.ones(len(allowed))
        if shares[allowed].sum() < 1.0 - CLOSE or (shares[~allowed] > _LEAST_SHARE).any():
            return np.inf, np.zeros(len(allowed)), pivots
        costs = self._costs
        scale = max(float(shares @ costs), float(costs[allowed].min()) * 0.5) or 1.0
        self._cost_scale = scale
        worth = np.minimum(costs / scale, _HOPELESS)
        worst = 10.0 * max(float(worth[allowed].max()), 1.0)
        self._profits = -worth
        packing.reprice(np.where(allowed, -worth, -worst))
        packing.use_up(self._served, worst)
        pivots += packing.solve()
        shares = np.where(allowed, packing.solution, 0.0)
        shares = _normed(shares)
        return float(shares @ costs), shares, pivots

    def _most(self, allowed: Flags) -> tuple[float, Floats, int]:
        packing = self._packing
        packing.reprice(np.where(allowed, 1.0, -1.0))
        if not allowed.any():
            return np.inf, np.zeros(len(allowed)), 0
        idle = allowed & ~self._loads.any(axis=1)
        if idle.any():
            shares = np.zeros(len(allowed))
            shares[int(idle.argmax())] = 1.0
            return 0.0, shares, 0
        pivots = packing.solve()
        shares = _normed(np.where(allowed, packing.solution, 0.0))
        return float((shares @ self._loads).max()), shares, pivots


def _normed(shares: Floats) -> Floats:
    total = float(shares.sum())
    shares = np.where(shares > total * _LEAST_SHARE, shares, 0.0)
    found: Floats = shares / shares.sum()
    return found
