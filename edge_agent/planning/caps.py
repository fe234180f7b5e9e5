"""What is in the memories of all routes of a distribution together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from edge_agent.planning.amounts import memory_columns
from edge_agent.planning.metrics import Held, held_bytes
from edge_agent.planning.shortest import Pieces, as_route
from edge_agent.planning.tables import Floats, Tables


class Resident:
    """What is in the memories if these routes are deployed together."""

    def __init__(self, tables: Tables, routes: Iterable[Pieces] = ()) -> None:
        self._tables = tables
        self.forms = np.zeros((len(tables.weights), int(tables.form_of.max()) + 1), bool)
        """(n, forms): whether the weights of a segment are there in a form."""
        self._arenas: dict[tuple[int, int, int], None] = {}
        self._forked: dict[Held, tuple[str, float]] = {}
        for pieces in routes:
            self.add(pieces)

    def add(self, pieces: Pieces) -> None:
        """Deploy one more route."""
        tables = self._tables
        stops = [start for start, _ in pieces[1:]] + [tables.places]
        is_fork = False
        for (start, c), stop in zip(pieces, stops, strict=True):
            if tables.choices[c].configuration is None:
                is_fork = True
                continue
            self.forms[start:stop, tables.form_of[c]] = True
            self._arenas[c, start, stop] = None
        if is_fork:
            for step in as_route(tables, pieces).forks():
                self._forked.update(held_bytes(tables.problem, step))

    def memory(self) -> Floats:
        """(pools,): bytes."""
        tables = self._tables
        used = np.zeros(len(tables.pools))
        for form in range(self.forms.shape[1]):
            (choices,) = np.nonzero(tables.form_of == form)
            here = self.forms[:, form]
            used[tables.pool_of[choices[0]]] += tables.weights[here, choices[0]].sum()
        for c, start, stop in self._arenas:
            used[tables.pool_of[c]] += tables.arenas[start:stop, c].max()
        for pool, size in self._forked.values():
            used[tables.pools.index(pool)] += size
        return used

    def rest(self) -> Tables:
        """The tables in which weights that are there already need no room again."""
        tables = self._tables
        there = self.forms[:, tables.form_of]
        forks = tables.forks
        demands = forks.demands.copy()
        first = int(memory_columns(tables)[0])
        for e, step in enumerate(forks.steps):
            for held, (pool, size) in held_bytes(tables.problem, step):
                if held in self._forked:
                    demands[e, first + tables.pools.index(pool)] -= size
        return replace(
            tables,
            weights=np.where(there, 0.0, tables.weights),
            forks=replace(forks, demands=demands),
        )

    def copy(self) -> Resident:
        """One that goes its own way from here."""
        other = Resident(self._tables)
        other.forms = self.forms.copy()
        other._arenas = dict(self._arenas)
        other._forked = dict(self._forked)
        return other
