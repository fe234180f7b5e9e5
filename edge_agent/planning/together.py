"""Which of some routes to deploy together: exact by branch and bound, within an effort.

What is in a memory is there once for all routes, or not at all, so that the choice is a knapsack
whose values are those of a linear programme. A node says of some things that they are there, which
takes their bytes off the budgets, and of others that they are not, which forbids the routes that
need them. Forbidden is also what no longer fits by itself. Without looking at how the others fit
together, the best shares bound what the node can reach; if they do fit, it is done (Land and Doig,
An automatic method of solving discrete programming problems, Econometrica 28, 1960). That there are
at most so many routes is one more memory, in which each route is a thing of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import CLOSE
from edge_agent.planning.known import Flags, Known, Things
from edge_agent.planning.mixture import Column, Shares, Wish
from edge_agent.planning.served import Served
from edge_agent.planning.tables import Floats
from edge_agent.plans import Target

_PIVOT_EFFORT = 50.0
_NODE_EFFORT = 100.0
_DIVES = 8
"""At so many nodes, and then at each node of so many, routes are put together that fit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """The best shares that were found, of routes that fit together."""

    shares: Floats
    """(n,); none where nothing was found."""
    value: float
    """Infinity where nothing was found."""
    bound: float
    spent: float

    def of(self, columns: Sequence[Column]) -> Shares:
        """The routes that have a share."""
        order = sorted(np.flatnonzero(self.shares).tolist(), key=lambda i: (-self.shares[i], i))
        return tuple((columns[i], float(self.shares[i])) for i in order)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Node:
    there: Flags
    """(things,): what is in memory."""
    allowed: Flags
    """(n,)"""
    bound: float


@dataclass(slots=True, kw_only=True, eq=False)
class Together:
    """The search among `n` routes."""

    loads: Floats
    """(n, resources)"""
    costs: Floats | None
    """(n,); None: the rate is the target."""
    per_s: float
    things: Things
    budgets: Floats
    """(memories,)"""
    most_routes: int | None
    effort: float
    enough: float = 0.0
    """What is not worse than this is good enough."""
    worst: float = np.inf
    """Only what is better than this is looked for."""
    best: float = np.inf
    shares: Floats = field(init=False)
    spent: float = 0.0
    _served: Served = field(init=False)
    _uses: Flags = field(init=False)
    _bytes: Floats = field(init=False)
    """(things, memories)"""

    def __post_init__(self) -> None:
        count = len(self.loads)
        self.shares = np.zeros(count)
        uses, sizes, budgets = self.things.uses, self.things.bytes, self.budgets
        does_bind = sizes.sum(axis=0) > budgets
        binds = sizes[:, does_bind].any(axis=1)
        uses, sizes = _merged(uses[:, binds], sizes[binds])
        if self.most_routes is not None and self.most_routes < count:
            uses = np.hstack((uses, np.eye(count, dtype=bool)))
            sizes = np.block(
                [
                    [sizes, np.zeros((len(sizes), 1))],
                    [np.zeros((count, len(budgets))), np.ones((count, 1))],
                ]
            )
            budgets = np.append(budgets, float(self.most_routes))
        self._uses, self._bytes, self.budgets = uses, sizes, budgets
        self._served = Served(self.loads, self.costs, self.per_s)

    @property
    def _limit(self) -> float:
        return min(self.best, self.worst)

    def search(self) -> Chosen:
        """Look for the best shares until none can be better, or the effort is spent."""
        if not len(self.loads):
            return Chosen(shares=self.shares, value=np.inf, bound=np.inf, spent=0.0)
        none = np.zeros(len(self._bytes), bool)
        root = _Node(there=none, allowed=np.ones(len(self.loads), bool), bound=0.0)
        waiting: list[tuple[float, int, _Node]] = []
        node: _Node | None = root
        number = 0
        while node is not None:
            number += 1
            if self.spent >= self.effort or self.best <= self.enough:
                heapq.heappush(waiting, (node.bound, -number, node))
                break
            children = self._opened(node, number)
            if children:
                node = children[0]
                heapq.heappush(waiting, (children[1].bound, -number, children[1]))
                continue
            node = heapq.heappop(waiting)[2] if waiting else None
        least = min((bound for bound, _, _ in waiting), default=np.inf)
        return Chosen(
            shares=self.shares,
            value=self.best,
            bound=min(self._limit, least),
            spent=self.spent,
        )

    def _is_worse(self, value: float) -> bool:
        return value >= self._limit * (1.0 - CLOSE) or not np.isfinite(value)

    def _opened(self, node: _Node, number: int) -> tuple[_Node, _Node] | None:
        """The two nodes that one falls into; None if nothing better is in it."""
        self.spent += _NODE_EFFORT
        if self._is_worse(node.bound):
            return None
        there, allowed = self._settled(node)
        if not allowed.any():
            return None
        value, shares = self._solved(allowed)
        value = max(value, node.bound)
        if self._is_worse(value):
            return None
        support = shares > 0.0
        needed = self._uses[support].any(axis=0)
        missing = needed & ~there
        if (needed @ self._bytes <= self.budgets).all():
            self._keep(shares)
            return None
        if number <= _DIVES or number % _DIVES == 0:
            self._dive(allowed, shares)
            if self._is_worse(value):
                return None
        which = self._branched(missing, there, shares)
        with_it = there.copy()
        with_it[which] = True
        without = allowed & ~self._uses[:, which]
        return (
            _Node(there=with_it, allowed=allowed, bound=value),
            _Node(there=there, allowed=without, bound=value),
        )

    def _settled(self, node: _Node) -> tuple[Flags, Flags]:
        """What must be there, and which routes may have a share, as far as is seen at once."""
        there, allowed = node.there, node.allowed
        while True:
            left = self.budgets - there @ self._bytes
            if (left < 0.0).any():
                return there, np.zeros_like(allowed)
            more = (self._uses & ~there) @ self._bytes
            allowed = allowed & (more <= left).all(axis=1)
            if not allowed.any():
                return there, allowed
            common = self._uses[allowed].all(axis=0) & ~there
            if not common.any():
                return there, allowed
            there = there | common

    def _solved(self, allowed: Flags) -> tuple[float, Floats]:
        value, shares, pivots = self._served.solve(allowed)
        self.spent += pivots * (_PIVOT_EFFORT + 0.03 * self.loads.size)
        return value, shares

    def _branched(self, missing: Flags, there: Flags, shares: Floats) -> int:
        """The thing that is decided about: large, and of routes of about half of the traffic."""
        asked = (missing | there) @ self._bytes
        is_over = asked > self.budgets
        part = np.where(is_over, self._bytes / np.maximum(asked - self.budgets, 1e-9), 0.0)
        weight = np.minimum(part.max(axis=1, initial=0.0), 1.0)
        traffic = shares @ self._uses
        score = np.where(missing, weight * (0.05 + np.minimum(traffic, 1.0 - traffic)), -1.0)
        return int(score.argmax())

    def _dive(self, allowed: Flags, shares: Floats) -> None:
        """Put routes together that fit, those with the greatest shares first."""
        there = np.zeros(len(self._bytes), bool)
        for route in np.argsort(-shares, kind="stable")[: int((shares > 0.0).sum())].tolist():
            both = there | self._uses[route]
            if (both @ self._bytes <= self.budgets).all():
                there = both
        while self.spent < self.effort:
            self.spent += _NODE_EFFORT
            more = (self._uses & ~there) @ self._bytes
            is_there = allowed & (more == 0.0).all(axis=1)
            value, shares = self._solved(is_there)
            if np.isfinite(value) and not self._is_worse(value):
                self._keep(shares)
            left = self.budgets - there @ self._bytes
            gains = self._served.gains
            fits = allowed & (more <= left).all(axis=1) & ~is_there & (gains > CLOSE)
            if not fits.any():
                return
            best = int(np.where(fits, gains, -np.inf).argmax())
            there = there | self._uses[best]

    def _keep(self, shares: Floats) -> None:
        value = float((shares @ self.loads).max()) if self.costs is None else shares @ self.costs
        if value < self._limit:
            self.best, self.shares = float(value), shares


def _merged(uses: Flags, sizes: Floats) -> tuple[Flags, Floats]:
    """Things that the same routes need as one, which may be in several memories."""
    if not len(sizes):
        return uses, sizes
    _, first, group = np.unique(uses, axis=1, return_index=True, return_inverse=True)
    summed = np.zeros((len(first), sizes.shape[1]))
    np.add.at(summed, group.ravel(), sizes)
    return uses[:, first], summed


def together(
    known: Known,
    which: Flags,
    wish: Wish,
    budgets: Floats,
    *,
    most_routes: int | None = None,
    effort: float,
    enough: float = 0.0,
    worst: float = np.inf,
) -> Chosen:
    """The best shares of some of the known routes; for the arguments see `Together`."""
    is_rate = wish.target is not Target.ENERGY and wish.target is not Target.BYTES
    loads, costs = known.loads[which], known.costs(wish)[which]
    things = known.things_within(budgets).taken(which)
    others = costs
    if wish.target is Target.LATENCY:
        others = np.array([column.amounts.seconds for column in known.columns])[which]
    kept = undominated(loads, others[:, None], things.uses)
    search = Together(
        loads=loads[kept],
        costs=None if is_rate else costs[kept],
        per_s=wish.least_per_s,
        things=things.taken(kept),
        budgets=budgets,
        most_routes=most_routes,
        effort=effort,
        enough=enough,
        worst=worst,
    )
    found = search.search()
    shares = np.zeros(len(which))
    shares[np.flatnonzero(which)[kept]] = found.shares
    return replace(found, shares=shares)


def undominated(loads: Floats, others: Floats, uses: Flags) -> Flags:
    """(n,): routes than which no other one is as good in all loads and `others` and needs no more
    in the memories; of equal ones the first."""
    count = len(loads)
    rows = np.column_stack((loads, others))
    is_as_good = np.ones((count, count), bool)
    for column in rows.T:
        is_as_good &= column[:, None] <= column[None, :]
    needs = uses.astype(np.float32)
    is_as_good &= needs @ (1.0 - needs).T == 0.0
    is_equal = is_as_good & is_as_good.T
    is_beaten = (is_as_good & ~is_equal) | np.triu(is_equal, k=1)
    return np.asarray(~is_beaten.any(axis=0))
