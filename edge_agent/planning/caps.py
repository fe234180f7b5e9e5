"""Whether routes keep to their caps, and what is in the memories of all of them together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge_agent.distributions import Route
from edge_agent.planning.amounts import Amounts, Caps, Pieces
from edge_agent.planning.metrics import evaluate, legs, memory_bytes, resource_loads
from edge_agent.planning.tables import Floats, Tables


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
