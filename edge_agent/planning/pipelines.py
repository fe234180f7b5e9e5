"""The fastest single route where memory binds, from several starts.

The search for the least of a greatest (`labels`) may end far from the best where budgets are tight,
and so may what is bettered from the quickest route: each meets what the other one misses.
"""

from __future__ import annotations

from dataclasses import replace

from edge_agent.planning.amounts import Bottleneck, Caps, aimed, demanded, limits
from edge_agent.planning.duals import Effort
from edge_agent.planning.labels import Found, best_route
from edge_agent.planning.neighbourhoods import Neighbours
from edge_agent.planning.shortest import Weights
from edge_agent.planning.tables import Tables

_WIDE, _QUICK, _NEAR = 0.35, 0.2, 0.1
"""Shares of the effort: of the search over all routes, for the quickest route, and to better each
of the two that are found. The rest is for whoever mixes routes: a mixture begins with the same
pipeline, and so is never worse."""


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
    return replace(found, spent=spent)
