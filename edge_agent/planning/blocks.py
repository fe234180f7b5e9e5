"""Divisions that fit tight memories: one block of segments in each memory, in any order of them.

Where the cheapest routes are far too large, what fits at all is looked for first: states are the
memories that are used and how far they reach; of equal ones the furthest is kept, and of many those
that leave most room (a dynamic programme over subsets, as Held and Karp, A dynamic programming
approach to sequencing problems, Journal of the SIAM 10, 1962; cut to a beam where there are many).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edge_agent.planning.duals import Effort
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Floats, Ints, Tables

_MOST_STATES = 1500
"""Of each number of blocks. Up to eight memories of one form each have fewer."""
_MOST_FORMS = 3
"""Configurations that are tried in a memory."""


@dataclass(slots=True, kw_only=True)
class _State:
    used: int
    """Bits of memories."""
    pieces: Pieces
    """The last of them as far as it can reach."""
    stop: int
    free: float
    """Bytes in the other memories."""
    room: float
    """Those that what is left of the model does not need."""


def in_blocks(tables: Tables, budgets: Floats, effort: Effort) -> Pieces | None:
    """A route that has one subgraph in each memory at most and fits `budgets`, (pools,); None if
    none was found."""
    blocks = _Blocks(tables, budgets)
    states = list(blocks.first())
    while states:
        for state in states:
            if state.stop == tables.places and blocks.can_end(state):
                return state.pieces
        furthest: dict[tuple[int, int], _State] = {}
        for state in states:
            for longer in blocks.extended(state):
                key = longer.used, longer.pieces[-1][1]
                if key not in furthest or longer.stop > furthest[key].stop:
                    furthest[key] = longer
            effort.spend(2.0 * len(blocks.forms))
        kept = sorted(furthest.values(), key=lambda state: -state.room)
        states = [state for state in kept[:_MOST_STATES] if state.room >= 0.0]
    return None


class _Blocks:
    def __init__(self, tables: Tables, budgets: Floats) -> None:
        self._tables = tables
        most = tables.weights.sum() + tables.arenas.sum()
        self._budgets = np.minimum(budgets, most).tolist()
        self.forms = _forms(tables)
        self._pool_of = tables.pool_of.tolist()
        self._reach = {c: self._reaches(c).tolist() for c in self.forms}
        least = tables.weights[:, ~tables.is_fork].min(axis=1)
        self._left = np.append(np.cumsum(least[::-1])[::-1], 0.0).tolist()
        """(n + 1,): bytes that the segments from there on need at least."""
        self._device_of = tables.device_of.tolist()
        self._is_open: list[list[bool]] = (tables.barrier == 0.0).tolist()
        self._is_sent: list[list[list[bool]]] = (tables.sends.penalty == 0.0).tolist()

    def first(self) -> Iterator[_State]:
        penalty = self._tables.first_sends.penalty
        none = _State(used=0, pieces=(), stop=0, free=sum(self._budgets), room=0.0)
        for c in self.forms:
            if penalty[self._device_of[c]] == 0.0:
                yield from self._with(none, 0, c)

    def extended(self, state: _State) -> Iterator[_State]:
        start, last = state.pieces[-1]
        for c in self.forms:
            if state.used >> self._pool_of[c] & 1:
                continue
            place = state.stop
            while place > start and not self._can_pass(place, last, c):
                place -= 1
            if place > start:
                yield from self._with(state, place, c)

    def can_end(self, state: _State) -> bool:
        device = self._device_of[state.pieces[-1][1]]
        return bool(self._tables.last_sends.penalty[device] == 0.0)

    def _with(self, state: _State, place: int, choice: int) -> Iterator[_State]:
        stop = self._reach[choice][place]
        if stop > place:
            pool = self._pool_of[choice]
            free = state.free - self._budgets[pool]
            yield _State(
                used=state.used | 1 << pool,
                pieces=(*state.pieces, (place, choice)),
                stop=stop,
                free=free,
                room=free - self._left[stop],
            )

    def _can_pass(self, place: int, before: int, after: int) -> bool:
        if place == self._tables.places:
            return False
        is_open = self._is_open[place]
        source, target = self._device_of[before], self._device_of[after]
        return (
            is_open[before]
            and is_open[after]
            and (source == target or self._is_sent[place][source][target])
        )

    def _reaches(self, choice: int) -> Ints:
        """(n,): where a block of this configuration that begins before segment p ends at most."""
        tables, n = self._tables, self._tables.places
        budget = self._budgets[self._pool_of[choice]]
        weights = np.append(0.0, np.cumsum(tables.weights[:, choice]))
        arenas, refusal = tables.arenas[:, choice], tables.refusal[:, choice]
        reach = np.empty(n, np.int64)
        stop = 0
        for start in range(n):
            stop = max(stop, start)
            most = arenas[start:stop].max(initial=0.0)
            while stop < n and refusal[stop] == 0.0:
                most = max(most, arenas[stop])
                if weights[stop + 1] - weights[start] + most > budget:
                    break
                stop += 1
            reach[start] = stop
        return reach


def _forms(tables: Tables) -> list[int]:
    """The quickest configuration of each memory for each size that its segments have there."""
    found: dict[int, dict[bytes, int]] = {}
    seconds = tables.seconds.sum(axis=0)
    is_fork = tables.is_fork
    for c in np.argsort(seconds, kind="stable"):
        if is_fork[c]:
            continue
        own = found.setdefault(int(tables.pool_of[c]), {})
        sizes = tables.weights[:, c], tables.arenas[:, c], tables.refusal[:, c]
        own.setdefault(np.concatenate(sizes).tobytes(), int(c))
    return [
        c
        for own in found.values()
        for c in sorted(own.values(), key=lambda c: _size(tables, c))[:_MOST_FORMS]
    ]


def _size(tables: Tables, choice: int) -> float:
    """How little fits with it: what it refuses does not."""
    is_taken = tables.refusal[:, choice] == 0.0
    sizes = tables.weights[:, choice].sum() + tables.arenas[:, choice].max(initial=0.0)
    return float(sizes) / max(int(is_taken.sum()), 1)
