"""Mixtures whose routes must fit into the memories together, and each keep to caps.

Which weights are where is a yes or no, so that the best mixture is hard to find (it holds a
knapsack problem). Routes are deployed one by one: of those that the relaxation sends most through,
and that still fit, the first; then what it needs is there, and needs no room again, and the
relaxation is solved anew, with new routes (diving in column generation: Sadykov and others, Primal
heuristics for branch and price, INFORMS Journal on Computing 31, 2019). From the best mixture some
routes are taken away and others deployed in their place, as long as there is effort; now and then
`together` says which of all the routes so far are best deployed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from edge_agent.planning.amounts import CLOSE, Caps, amounts
from edge_agent.planning.caps import Resident
from edge_agent.planning.known import Flags, Known
from edge_agent.planning.labels import best_route
from edge_agent.planning.mixture import Column, Relaxation, Shares, Wish
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Floats, Tables
from edge_agent.planning.together import Chosen, together

_STEP_EFFORT = 0.01
"""Share of the effort for the relaxation before one more route is deployed."""
_LEGAL_EFFORT = 0.3
"""Share of the effort for the relaxation over routes that keep to the caps one by one."""
_TOGETHER_EFFORT = 0.1
_MOST_DEPLOYED = 40
_SEED_EFFORT = 15.0


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
    _tried: set[frozenset[int]] = field(default_factory=set)

    def build(self, columns: Sequence[Column]) -> None:
        """Put mixtures together, from these routes and new ones."""
        self.known.meet(columns)
        caps = self.caps
        if np.isfinite([caps.seconds, caps.joules, caps.size_bytes]).any():
            self._legal()
        if not np.isfinite(caps.memory).any() and self.most_routes is None:
            self._together(self._allowed())
            return
        self._dive((), ())
        self._together(self._allowed())
        while not self._is_done():
            before = self.value
            for kept, left_out in self._neighbours():
                self._dive(kept, left_out)
                if self.value < before or self._is_done():
                    break
            else:
                if not self._together(self._allowed()):
                    return

    def _is_done(self) -> bool:
        is_best = self.value <= max(self.bound * (1.0 + CLOSE), self.enough)
        return is_best or self.spent >= self.effort

    def _allowed(self) -> Flags:
        """(known,): whether each keeps to the caps alone."""
        return np.array([self.caps.allows(c.amounts) for c in self.known.columns], bool)

    # Routes that keep to the caps one by one

    def _legal(self) -> None:
        """The relaxation over routes that keep to the caps, each found under all of them."""
        programme = self._programme(self.tables, Caps.none(self.tables))
        programme.add([c for c in self.known.columns if self.caps.allows(c.amounts)])
        stop = self.spent + self.effort * _LEGAL_EFFORT
        while self.spent < stop:
            if programme.idle:
                programme.bound = 0.0
                break
            programme.solve()
            weights = programme.weights_now()
            found = best_route(self.tables, weights, self.caps, effort=stop - self.spent)
            self.spent += found.spent
            programme.learn(found.bound)
            if found.pieces is None:
                break
            column = self._column(found.pieces)
            self.known.meet([column])
            if programme.gain(column) <= CLOSE or not programme.add([column]):
                break
        self.bound = max(self.bound, programme.bound)

    def _column(self, pieces: Pieces) -> Column:
        return Column(pieces=pieces, amounts=amounts(self.tables, pieces))

    def _programme(self, tables: Tables, caps: Caps) -> Relaxation:
        busiest = [float(c.amounts.loads.max(initial=0.0)) for c in self.known.columns]
        return Relaxation(
            tables=tables,
            wish=self.wish,
            caps=caps,
            scale_s=min((b for b in busiest if b > 0.0), default=1.0),
        )

    # One route after the other

    def _dive(self, kept: Collection[int], left_out: Collection[int]) -> None:
        """Deploy known routes, then what the relaxation would send most through, but for some."""
        chosen = list(kept)
        for _ in range(_MOST_DEPLOYED):
            resident = Resident(self.tables, (self.known.columns[i].pieces for i in chosen))
            things = self.known.things
            there = things.uses[chosen].any(axis=0)
            left = self.caps.memory - there @ things.bytes
            programme = self._relaxed(resident.rest() if chosen else self.tables, there, left)
            if programme.bound >= self.value * (1.0 - CLOSE):
                break
            things = self.known.things
            there = things.uses[chosen].any(axis=0)
            more = (things.uses & ~there) @ things.bytes
            fits = (more <= left).all(axis=1)
            found = self._next(programme, fits, {*chosen, *left_out})
            if found is None:
                found = self._missed(programme, resident, left, chosen)
            if found is None:
                break
            chosen.append(found)
            if self.spent >= self.effort or len(chosen) == self.most_routes:
                break
        self._finish(chosen)

    def _next(self, programme: Relaxation, fits: Flags, passed: Collection[int]) -> int | None:
        for column, _ in programme.shares():
            at = self.known.index(column.pieces)
            assert at is not None, "all routes of the relaxation are known"
            if at not in passed and fits[at] and self.caps.allows(self.known.columns[at].amounts):
                return at
        return None

    def _missed(
        self, programme: Relaxation, resident: Resident, left: Floats, chosen: Collection[int]
    ) -> int | None:
        """The route that gains most of all that still fit."""
        caps = replace(self.caps, memory=np.maximum(left, 0.0))
        effort = self.effort * _STEP_EFFORT
        found = best_route(resident.rest(), programme.weights_now(), caps, effort=effort)
        self.spent += found.spent
        if found.pieces is None:
            return None
        self.known.meet([self._column(found.pieces)])
        at = self.known.index(found.pieces)
        return None if at in chosen else at

    def _relaxed(self, rest: Tables, there: Flags, left: Floats) -> Relaxation:
        """The relaxation where that is deployed; the routes that it finds are known from then."""
        things = self.known.things
        more = (things.uses & ~there) @ things.bytes
        programme = self._programme(rest, replace(self.caps, memory=left))
        programme.add(self.known.columns, more)
        programme.improve(self.effort * _STEP_EFFORT)
        self.spent += programme.spent + _SEED_EFFORT * len(more)
        found = programme.columns + programme.idle
        fresh = [c.pieces for c in found if self.known.index(c.pieces) is None]
        self.known.meet([self._column(pieces) for pieces in fresh])
        return programme

    def _finish(self, chosen: Sequence[int]) -> None:
        """The best shares of all that runs with what is deployed."""
        if not chosen:
            return
        uses = self.known.things.uses
        there = uses[chosen].any(axis=0)
        self._together(self._allowed() & ~(uses & ~there).any(axis=1))

    def _together(self, which: Flags) -> bool:
        """The best of some known routes that fit together; whether it is the best so far."""
        if not which.any():
            return False
        found = together(
            self.known,
            which,
            self.wish,
            self.caps.memory,
            most_routes=self.most_routes,
            effort=self.effort * _TOGETHER_EFFORT,
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

    def _neighbours(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(routes that are kept, routes that are not deployed again), near the best so far."""
        indices = [self.known.index(column.pieces) for column, _ in self.best]
        routes = [at for at in indices if at is not None]
        for count in range(1, len(routes) + 1):
            for out in combinations(reversed(routes), count):
                kept = tuple(at for at in routes if at not in out)
                key = frozenset(kept) | frozenset(-1 - at for at in out)
                if key not in self._tried:
                    self._tried.add(key)
                    yield kept, out

    @property
    def shares(self) -> Shares:
        """The mixture, as routes of the whole."""
        return tuple((self.known.fine(column), share) for column, share in self.best)
