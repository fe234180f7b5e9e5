"""The fastest single route where memory binds, from several starts.

The search for the least of a greatest (`labels`) may end far from the best where budgets are tight,
and so may what is bettered from the quickest route: each meets what the other one misses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_agent.planning.amounts import Bottleneck, Caps, aimed, demanded, limits
from edge_agent.planning.duals import Effort
from edge_agent.planning.labels import Found, best_route
from edge_agent.planning.neighbourhoods import Neighbours
from edge_agent.planning.shortest import Weights
from edge_agent.planning.tables import Tables

_WIDE, _QUICK, _NEAR = 0.35, 0.2, 0.1
"""Shares of the effort: of the search over all routes, for the quickest route, and to better each
of the two that are found. A mixture begins with the same pipeline, and so is never worse."""
_NARROWED = 0.1
"""Share of the effort for the quickest route of those that keep all less busy."""
_LESS = 0.98
"""How busy, in parts of the best so far."""


def best_pipeline(tables: Tables, caps: Caps, effort: float) -> Found:
    """The route whose busiest resource is busy for the least time, as far as it is found."""
    aim = Bottleneck.LOADS
    found = best_route(tables, aim, caps, effort=_WIDE * effort)
    if found.is_exact:
        return found
    quickest = best_route(tables, Weights.of_time(tables), caps, effort=_QUICK * effort)
    spent = found.spent + quickest.spent
    limit = limits(tables, caps)
    # The two may be the same.
    for start in dict.fromkeys((found.pieces, quickest.pieces)):
        if start is None:
            continue
        counted = Effort(most=_NEAR * effort)
        near = Neighbours(tables=tables, aim=aim, limit=limit, prices={}, effort=counted)
        pieces = near.improved(start, counted.most, found.bound)
        spent += counted.spent
        value = aimed(tables, aim, demanded(tables, pieces))
        if value < found.value:
            found = replace(found, pieces=pieces, value=value)
    return _narrowed(tables, caps, replace(found, spent=spent), effort)


def _narrowed(tables: Tables, caps: Caps, found: Found, effort: float) -> Found:
    """Ask for the quickest route that keeps all resources busy for less than the best so far, as
    long as there is one."""
    while found.pieces is not None and found.spent < effort and not found.is_exact:
        limit = found.value * _LESS
        less = replace(caps, loads=np.minimum(caps.loads, limit))
        most = min(_NARROWED * effort, effort - found.spent)
        one = best_route(tables, Weights.of_time(tables), less, effort=most)
        found = replace(found, spent=found.spent + one.spent)
        if one.pieces is not None:
            value = aimed(tables, Bottleneck.LOADS, demanded(tables, one.pieces))
            found = replace(found, pieces=one.pieces, value=value)
        elif one.bound < np.inf:
            break
        else:
            # None is that good.
            return replace(found, bound=max(found.bound, limit))
    return found
