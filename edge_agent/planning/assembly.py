"""Mixtures whose routes must fit into the memories together, and each keep to caps.

Which weights are where is a yes or no, so that the best mixture is hard to find (it holds a
knapsack problem). It is decided by branch and bound: what is said to be there needs no room
again, what is not there, or no longer fits, is refused, and the relaxation of the rest, in which a
share of a route needs its share of the memory, is solved anew, with new routes (Barnhart and
others, Branch-and-price: column generation for solving huge integer programs, Operations Research
46, 1998). Where all weights fit, the best mixture of the routes that need nothing else is found by
`together`, which also knows the arenas. In which order what is looked at, `iterated` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import CLOSE, Aim, Bottleneck, Caps
from edge_agent.planning.every import every_route
from edge_agent.planning.known import Flags, Known
from edge_agent.planning.labels import best_route
from edge_agent.planning.mixture import (
    Column,
    Relaxation,
    Shares,
    Wish,
    columns_of,
    seeds,
    sweep_effort,
)
from edge_agent.planning.served import Served
from edge_agent.planning.shortest import Pieces, Weights
from edge_agent.planning.tables import Floats, Ints, Tables
from edge_agent.planning.together import Chosen, together
from edge_agent.plans import Target

_STEP_EFFORT = 0.005
"""Share of the effort for the relaxation before more is decided."""
_ALONE_EFFORT = 0.15
_SWAP_EFFORT = 0.5
_PIVOT_EFFORT = 60.0
NODE_EFFORT = 2500.0
_LEGAL_EFFORT = 0.3
"""Share of the effort for the relaxation over routes that keep to the caps one by one."""
_ONE_EFFORT = 0.1
_TOGETHER_EFFORT = 0.05
_DEPLOYED_EFFORT = 0.01
"""Share of the effort for the best mixture of routes whose weights are there."""
_TURNS = 3
_POOL_NODES = 25
"""Once in so many nodes all routes so far are looked at together."""
_MOST_EVERY = 200
"""So many routes that need nothing but what is there are all looked at."""
_SEED_EFFORT = 5.0
_ROUTE_EFFORT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Node:
    there: Flags
    """(n, forms): the weights that are in memory."""
    banned: Flags
    """(n, forms): those that are not."""
    bound: float


def _children(
    node: _Node, there: Flags, which: tuple[int, int], bound: float
) -> tuple[_Node, _Node]:
    with_it, without = there.copy(), node.banned.copy()
    with_it[which] = without[which] = True
    return (
        _Node(there=with_it, banned=node.banned, bound=bound),
        _Node(there=there, banned=without, bound=bound),
    )


def _taken(waiting: list[tuple[float, int, _Node]], restarts: int) -> _Node | None:
    """The next node: by turns the one with the least bound, which is what the bound of all waits
    for, and some of the last ones, which are near a mixture that fits."""
    if not waiting:
        return None
    if restarts % _TURNS == 0:
        at = min(range(len(waiting)), key=lambda i: waiting[i][:2])
    else:
        at = min(range(len(waiting)), key=lambda i: waiting[i][1])
    return waiting.pop(at)[2]


@dataclass(slots=True, kw_only=True, eq=False)
class Assembly:
    """The best mixture that fits, of those that were put together so far."""

    tables: Tables
    """Those that are searched: `known` holds routes of them."""
    known: Known
    wish: Wish
    caps: Caps
    most_routes: int | None
    effort: float
    enough: float = 0.0
    """Of a value that good nothing better is needed."""
    best: Shares = ()
    value: float = np.inf
    """Seconds per request, or the cost of one."""
    bound: float = 0.0
    spent: float = 0.0
    sizes: Floats = field(init=False)
    """(n, forms): bytes of weights."""
    pool_of: Ints = field(init=False)
    """(forms,)"""
    _is_aside: bool = False
    _uses: Flags = field(init=False)
    """(known, n, forms): the weights that each needs, but for those of forks."""
    _is_allowed: Flags = field(init=False)
    """(known,): whether each keeps to the caps alone."""

    def __post_init__(self) -> None:
        tables = self.tables
        forms = int(tables.form_of.max()) + 1
        self.sizes = np.zeros((tables.places, forms))
        self.sizes[:, tables.form_of] = tables.weights
        self.pool_of = np.zeros(forms, np.int64)
        self.pool_of[tables.form_of] = tables.pool_of
        self._uses = np.zeros((0, tables.places, forms), bool)
        self._is_allowed = np.zeros(0, bool)

    def build(self, columns: Sequence[Column], *, has_best_alone: bool = False) -> None:
        """Put mixtures together, from these routes and new ones, without looking at what is where
        in the memories. `has_best_alone`: the best route alone is among them."""
        self.known.meet(columns)
        caps = self.caps
        if np.isfinite([caps.seconds, caps.joules, caps.size_bytes]).any():
            self._legal()
        if not has_best_alone and (self.caps.is_sized or self.most_routes is not None):
            self._alone()
        self._together(self._allowed())
        if self.most_routes is not None:
            self._swap()

    def _alone(self) -> None:
        """The best route alone."""
        aim: Aim = Bottleneck.LOADS
        if self.wish.target is not Target.THROUGHPUT:
            none = Weights.none(self.tables)
            is_energy = self.wish.target is Target.ENERGY
            aim = replace(
                none,
                joules=none.joules + is_energy,
                size_bytes=none.size_bytes + (not is_energy),
                loads=none.loads + 1e-6,
            )
        found = best_route(self.tables, aim, self.caps, effort=self.effort * _ALONE_EFFORT)
        self.spent += found.spent
        if found.pieces is not None:
            self.known.meet(columns_of(self.tables, [found.pieces]))

    def _swap(self) -> None:
        """Look for a route instead of each that is deployed, as long as that gains."""
        stop = self.spent + (self.effort - self.spent) * _SWAP_EFFORT
        while self.best and self.spent < stop:
            before = self.value
            for out, _ in self.best if len(self.best) > 1 else ():
                rest = [column for column, _ in self.best if column is not out]
                served = self._served(rest)
                value, _, pivots = served.solve(np.ones(len(rest), bool))
                self.spent += _PIVOT_EFFORT * pivots
                if not np.isfinite(value) or value == 0.0:
                    continue
                weights = served.weights(self.tables, self.wish)
                effort = self.effort * _STEP_EFFORT * 4
                found = best_route(self.tables, weights, self.caps, effort=effort)
                self.spent += found.spent
                if found.pieces is not None:
                    self.known.meet(columns_of(self.tables, [found.pieces]))
            if not self._together(self._allowed()) or self.value >= before * (1.0 - CLOSE):
                return

    def _served(self, columns: Sequence[Column]) -> Served:
        loads = np.array([column.amounts.loads for column in columns])
        is_rate = self.wish.target is Target.THROUGHPUT
        costs = None if is_rate else np.array([self.wish.cost(c.amounts) for c in columns])
        return Served(loads, costs, self.wish.least_per_s)

    @property
    def is_done(self) -> bool:
        """Whether nothing better can be found, or is needed, or the effort is spent."""
        is_best = self.value <= max(self.bound * (1.0 + CLOSE), self.enough)
        return is_best or self.spent >= self.effort

    def _allowed(self) -> Flags:
        """(known,): whether each keeps to the caps alone."""
        self._look()
        return self._is_allowed

    def _look(self) -> None:
        """See what the routes need that are new."""
        fresh = self.known.columns[len(self._uses) :]
        if fresh:
            uses = np.array([self._used(column.pieces) for column in fresh])
            allowed = [self.caps.allows(column.amounts) for column in fresh]
            self._uses = np.concatenate([self._uses, uses])
            self._is_allowed = np.concatenate([self._is_allowed, allowed])

    # Routes that keep to the caps one by one

    def _legal(self) -> None:
        """The relaxation over routes that keep to the caps, each found under all of them."""
        programme = self._programme(self.tables, Caps.none(self.tables))
        programme.add([c for c in self.known.columns if self.caps.allows(c.amounts)])
        is_all = not self.caps.is_sized and self.most_routes is None
        stop = self.spent + self.effort * (1.0 if is_all else _LEGAL_EFFORT)
        each = (stop - self.spent) * _ONE_EFFORT
        while self.spent < stop:
            if programme.idle:
                programme.bound = 0.0
                break
            programme.solve()
            weights = programme.weights_now()
            found = best_route(self.tables, weights, self.caps, effort=each)
            self.spent += found.spent
            programme.learn(found.bound)
            if found.pieces is None:
                break
            (column,) = columns_of(self.tables, [found.pieces])
            self.known.meet([column])
            if programme.gain(column) <= CLOSE or not programme.add([column]):
                break
        self.bound = max(self.bound, programme.bound)

    def _programme(self, tables: Tables, caps: Caps) -> Relaxation:
        return Relaxation(
            tables=tables, wish=self.wish, caps=caps, scale_s=self.known.quickest_s or 1.0
        )

    # What is where

    def decide(self, there: Flags, banned: Flags, stop: float) -> float:
        """Decide about weights by branch and bound, up to some effort, where some are there and
        some are not: the children of a node say of one more that it is there, or is not. What
        nothing can beat."""
        node: _Node | None = _Node(there=there, banned=banned, bound=self.bound)
        waiting: list[tuple[float, int, _Node]] = []
        settled = np.inf
        number = restarts = 0
        while node is not None:
            number += 1
            if self.is_done or self.spent >= stop:
                waiting.append((node.bound, -number, node))
                break
            children = None
            solved = self._solved(node)
            if solved is not None:
                bound, there, which = solved
                if which is None:
                    settled = min(settled, bound)
                elif not self._is_worse(bound):
                    children = _children(node, there, which, bound)
            if number % _POOL_NODES == 0:
                self.all_together()
            if children is not None:
                node = children[0]
                waiting.append((children[1].bound, -number, children[1]))
                continue
            restarts += 1
            node = _taken(waiting, restarts)
        self.all_together()
        return min([settled, self.value, *(bound for bound, _, _ in waiting)])

    def fill(self, there: Flags, banned: Flags) -> None:
        """Go on with what is there until no route that would be used more fits."""
        while True:
            programme = self._opened(there, banned)
            if programme is None or self._is_worse(programme.bound):
                return
            left = self.caps.memory - self._bytes(there)
            longer = None
            for column, _ in programme.shares():
                more = self._used(column.pieces) & (self.sizes > 0.0) & ~there
                if more.any() and (self._bytes(more) <= left).all():
                    longer = there | more
                    break
            if longer is None:
                break
            there = longer
        self._deploy(there)

    def _opened(self, there: Flags, banned: Flags) -> Relaxation | None:
        """The relaxation where that is there and that is not; None if it does not fit."""
        left = self.caps.memory - self._bytes(there)
        if (left < 0.0).any():
            return None
        return self._relaxed(there, banned | (~there & (self.sizes > left[self.pool_of])), left)

    @property
    def parts(self) -> Floats:
        """(n, forms): which part of its memory each weight takes."""
        part: Floats = self.sizes / np.maximum(self.caps.memory, 1.0)[self.pool_of]
        return part

    @contextmanager
    def aside(self, value: float = np.inf, best: Shares = ()) -> Iterator[None]:
        """Begin with another mixture, and go on as if the best so far was not known; afterwards
        the better one is."""
        kept = self.value, self.best
        self.value, self.best, self._is_aside = value, best, True
        yield
        self._is_aside = False
        if kept[0] <= self.value:
            self.value, self.best = kept

    @property
    def content(self) -> Flags:
        """(n, forms): what the best so far has in memory."""
        there = np.zeros_like(self.sizes, dtype=bool)
        for column, _ in self.best:
            there |= self._used(column.pieces)
        return there & (self.sizes > 0.0)

    def _is_worse(self, value: float) -> bool:
        return value >= self.value * (1.0 - CLOSE) or not np.isfinite(value)

    def _solved(self, node: _Node) -> tuple[float, Flags, tuple[int, int] | None] | None:
        """(bound, what is there, what to decide about: all is decided if nothing); None if nothing
        better is in the node."""
        there = node.there
        programme = None if self._is_worse(node.bound) else self._opened(there, node.banned)
        if programme is None:
            return None
        bound = max(programme.bound, node.bound)
        if self._is_worse(bound):
            return None
        if not np.isfinite(programme.value()):
            # Nothing was found so far, which need not be all that there is.
            return bound, there, None
        needed = np.zeros_like(self.sizes)
        for column, share in programme.shares():
            needed += share * self._used(column.pieces)
        is_open = ~there & (self.sizes > 0.0) & (needed > CLOSE)
        is_half = is_open & (needed < 1.0 - CLOSE)
        together = self._bytes(there | is_open)
        if not is_half.any() or (together <= self.caps.memory).all():
            # What is left are the arenas.
            self._deploy(there | is_open)
            is_half = is_open
            if not is_open.any():
                return bound, there, None
        score = np.where(is_half, self.parts * (0.1 + needed), -1.0)
        place, form = divmod(int(score.argmax()), score.shape[1])
        return bound, there, (place, form)

    def _bytes(self, there: Flags) -> Floats:
        by_form = np.where(there, self.sizes, 0.0).sum(axis=0)
        return np.bincount(self.pool_of, by_form, len(self.caps.memory)).astype(np.float64)

    def _used(self, pieces: Pieces) -> Flags:
        """(n, forms): the weights that a route needs, but for those of forks."""
        tables = self.tables
        found = np.zeros_like(self.sizes, dtype=bool)
        stops = [start for start, _ in pieces[1:]] + [tables.places]
        for (start, c), stop in zip(pieces, stops, strict=True):
            found[start:stop, tables.form_of[c]] = True
        return found

    def _relaxed(self, there: Flags, banned: Flags, left: Floats) -> Relaxation:
        """The relaxation where that is decided; the routes that it finds are known from then."""
        tables, forms = self.tables, self.tables.form_of
        weights = np.where(there[:, forms], 0.0, tables.weights)
        is_refused = banned[:, forms] | (weights + tables.arenas > left[tables.pool_of])
        rest = replace(
            tables,
            weights=weights,
            refusal=np.where(is_refused, np.inf, tables.refusal),
        )
        programme = self._programme(rest, replace(self.caps, memory=left))
        known = self.known.columns
        self._look()
        uses = self._uses
        able = np.flatnonzero(~(uses & banned).any(axis=(1, 2)))
        memory = np.array([known[at].amounts.memory for at in able])
        if len(able):
            by_form = np.where(uses[able] & there, self.sizes, 0.0).sum(axis=1)
            memory = memory - by_form @ (self.pool_of[:, None] == np.arange(len(left)))
            programme.add([known[at] for at in able], memory)
        else:
            # Without a route there are no prices at which one could be missed.
            begun = seeds(rest)
            programme.add(begun)
            programme.spent += sweep_effort(rest, 2)
            if not begun:
                programme.bound = np.inf
        programme.improve(self.effort * _STEP_EFFORT)
        self.spent += NODE_EFFORT + programme.spent + _SEED_EFFORT * len(known)
        found = programme.columns + programme.idle
        fresh = [c.pieces for c in found if self.known.index(c.pieces) is None]
        self.known.meet(columns_of(self.tables, fresh))
        return programme

    def _deploy(self, there: Flags) -> None:
        """The best mixture of routes whose weights are there."""
        tables = self.tables
        refused = ~there & (self.sizes > 0.0)
        rest = replace(tables, refusal=np.where(refused[:, tables.form_of], np.inf, tables.refusal))
        every = every_route(rest, _MOST_EVERY)
        if every is not None:
            fresh = [pieces for pieces in every if self.known.index(pieces) is None]
            self.spent += _ROUTE_EFFORT * len(fresh)
            made = columns_of(self.tables, fresh)
            self.known.meet(column for column in made if self.caps.allows(column.amounts))
        allowed = self._allowed()
        is_there = ~(self._uses & refused).any(axis=(1, 2))
        self._together(allowed & is_there, _DEPLOYED_EFFORT)

    # Which routes

    def all_together(self) -> None:
        """See what all routes that were met so far make together; not while that is to be aside."""
        if not self._is_aside:
            self._together(self._allowed())

    def _together(self, which: Flags, share: float = _TOGETHER_EFFORT) -> bool:
        """The best of some known routes that fit together; whether it is the best so far."""
        if not which.any():
            return False
        found = together(
            self.known,
            which,
            self.wish,
            self.caps.memory,
            most_routes=self.most_routes,
            effort=self.effort * share,
            enough=self.enough,
            worst=self.value,
        )
        self.spent += found.spent
        return self._keep(found)

    def _keep(self, found: Chosen) -> bool:
        if found.value >= self.value:
            return False
        self.value, self.best = found.value, found.of(self.known.columns)
        return True

    @property
    def shares(self) -> Shares:
        """The mixture, as routes of the whole."""
        return tuple((self.known.fine(column), share) for column, share in self.best)
