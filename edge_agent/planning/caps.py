"""What is in the memories of all routes of a distribution together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge_agent.planning.amounts import Caps
from edge_agent.planning.metrics import memory_bytes
from edge_agent.planning.mixture import Shares
from edge_agent.planning.shortest import Pieces, as_route
from edge_agent.planning.tables import Floats, Tables


def memory_together(tables: Tables, routes: Iterable[Pieces]) -> Floats:
    """(pools,): bytes in each memory if these routes are deployed together."""
    used = memory_bytes(tables.problem, [as_route(tables, pieces) for pieces in routes])
    return np.array([used.get(pool, 0.0) for pool in tables.pools])


def fits_together(tables: Tables, caps: Caps, shares: Shares) -> bool:
    """Whether these routes keep to the budgets together."""
    if not caps.is_sized:
        return True
    together = memory_together(tables, (column.pieces for column, _ in shares))
    return bool((together <= caps.memory).all())
