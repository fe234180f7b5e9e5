"""All routes of a small problem: where they can be counted, nothing has to be searched for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Floats, Tables

_MOST_STEPS = 1_000_000
"""Routes of more steps than that, from one segment and choice to the next, are not counted."""
_MANY = 1e12
"""No more than that are counted."""


def every_route(tables: Tables, most: int) -> list[Pieces] | None:
    """All routes, neighbours in equal choices joined; None if there are more than `most`, or the
    model is too long for counting them."""
    if tables.places * len(tables.choices) ** 2 > _MOST_STEPS:
        return None
    counts = _counts(tables)
    first = tables.first_sends.penalty[tables.device_of]
    if counts[0, np.isfinite(first)].sum() > most:
        return None
    return list(_routes(tables, counts))


def _counts(tables: Tables) -> Floats:
    """(n, c): in how many ways a route may go on with segments p.. where p runs in a choice."""
    counts = np.zeros((tables.places, len(tables.choices)))
    can_run = np.isfinite(tables.refusal)
    is_end = np.isfinite(tables.last_sends.penalty)[tables.device_of]
    counts[-1] = can_run[-1] & is_end
    for place in range(tables.places - 2, -1, -1):
        ways = _steps(tables, place + 1) @ counts[place + 1]
        counts[place] = can_run[place] * np.minimum(ways, _MANY)
    return counts


def _steps(tables: Tables, place: int) -> Floats:
    """(c, c): 1 where the segment before `place` may run in the first and that in the second."""
    may_part = np.isfinite(tables.barrier[place])
    device_of = tables.device_of
    may_send = np.isfinite(tables.sends.penalty[place])[device_of[:, None], device_of[None, :]]
    possible = may_part[:, None] & may_part[None, :] & may_send
    np.fill_diagonal(possible, True)
    found: Floats = possible.astype(np.float64)
    return found


def _routes(tables: Tables, counts: Floats) -> Iterator[Pieces]:
    steps = [_steps(tables, place) for place in range(1, tables.places)]
    can_begin = np.isfinite(tables.first_sends.penalty)[tables.device_of] & (counts[0] > 0)

    def finished(pieces: Pieces, place: int) -> Iterator[Pieces]:
        if place == tables.places:
            yield pieces
            return
        before = pieces[-1][1]
        for c in np.flatnonzero((steps[place - 1][before] > 0) & (counts[place] > 0)).tolist():
            yield from finished(pieces if c == before else (*pieces, (place, c)), place + 1)

    for c in np.flatnonzero(can_begin).tolist():
        yield from finished(((0, c),), 1)
