"""What routes must keep to, alone and together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from edge_agent.distributions import Route
from edge_agent.planning.demand import Amounts, Pieces
from edge_agent.planning.metrics import evaluate, legs, memory_bytes, resource_loads
from edge_agent.planning.tables import Floats, Tables

CLOSE = 1e-9
"""Shares below this are what sums of floats leave."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Caps:
    """What each single route must keep to; infinity where nothing binds."""

    seconds: float = np.inf
    joules: float = np.inf
    size_bytes: float = np.inf
    loads: Floats
    """(resources,): seconds that each may be busy per request."""
    memory: Floats
    """(pools,): bytes, for all routes together."""

    @classmethod
    def none(cls, tables: Tables) -> Caps:
        """Nothing binds."""
        return cls(
            loads=np.full(len(tables.resources), np.inf),
            memory=np.full(len(tables.pools), np.inf),
        )

    @property
    def row(self) -> Floats:
        """(columns,), as in demands.py."""
        singles = (self.seconds, self.joules, self.size_bytes)
        return np.concatenate((singles, self.loads, self.memory))

    def allows(self, found: Amounts) -> bool:
        """Whether a route keeps to them, but for what sums of floats leave."""
        room = 1.0 + CLOSE
        return (
            found.seconds <= self.seconds * room
            and found.joules <= self.joules * room
            and found.size_bytes <= self.size_bytes * room
            and bool((found.loads <= self.loads * room).all())
            and bool((found.memory <= self.memory * room).all())
        )


def keeps_to(tables: Tables, caps: Caps, route: Route) -> bool:
    """Whether a route, which may have forks, keeps to the caps."""
    problem = tables.problem
    metrics = evaluate(problem, [route])
    loads = resource_loads(problem, [(1.0, legs(problem, route))])
    memory = memory_bytes(problem, [route])
    return caps.allows(
        Amounts(
            seconds=metrics.latency_s,
            joules=metrics.energy_joules,
            size_bytes=metrics.wire_bytes,
            loads=np.array([loads.get(name, 0.0) for name in tables.resources]),
            memory=np.array([memory.get(name, 0.0) for name in tables.pools]),
        )
    )


class Resident:
    """What is in the memories if these routes are deployed together."""

    def __init__(self, tables: Tables, routes: Iterable[Pieces] = ()) -> None:
        self._tables = tables
        self.forms = np.zeros((len(tables.weights), int(tables.form_of.max()) + 1), bool)
        """(n, forms): whether the weights of a segment are there in a form."""
        self._arenas: dict[tuple[int, int, int], None] = {}
        for pieces in routes:
            self.add(pieces)

    def add(self, pieces: Pieces) -> None:
        """Deploy one more route."""
        tables = self._tables
        stops = [start for start, _ in pieces[1:]] + [tables.places]
        for (start, c), stop in zip(pieces, stops, strict=True):
            self.forms[start:stop, tables.form_of[c]] = True
            self._arenas[c, start, stop] = None

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
        return used

    def copy(self) -> Resident:
        """One that goes its own way from here."""
        other = Resident(self._tables)
        other.forms = self.forms.copy()
        other._arenas = dict(self._arenas)
        return other
