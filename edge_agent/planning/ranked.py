"""The cheapest routes in order, not only the first.

A search by the least cost in all (A*; Hart, Nilsson and Raphael, IEEE Transactions on Systems
Science and Cybernetics 4(2), 1968): what is still to come is known exactly from the sweep, so that
nothing is looked at but what the routes that are asked for consist of.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np

from edge_agent.planning.amounts import Pieces
from edge_agent.planning.shortest import Paths
from edge_agent.planning.tables import Floats


def ranked(paths: Paths) -> Iterator[tuple[float, Pieces]]:
    """(cost, pieces) of all routes without forks, the cheapest first, for weighting 0.

    Equal costs come in the same order every time, which means nothing.
    """
    tables, costs = paths.tables, paths.costs
    n, numbers = tables.places, count()
    # (cost in all; tie; cost so far; pieces; segments done): the last piece runs the last of them.
    queue: list[tuple[float, int, float, Pieces, int]] = []

    def push(spent: Floats, pieces: Pieces, place: int) -> None:
        """Run segment `place` in each choice as a new subgraph; `spent` is the cost of having."""
        total = spent + paths.tails[place + 1, 0]
        for c in np.nonzero(np.isfinite(total))[0].tolist():
            longer = (*pieces, (place, c))
            item = (float(total[c]), next(numbers), float(spent[c]), longer, place + 1)
            heapq.heappush(queue, item)

    started = costs.first[0, tables.device_of] + costs.begin[0, 0]
    push(started + costs.segment[0, 0], (), 0)
    while queue:
        total, _, spent, pieces, done = heapq.heappop(queue)
        if done == n:
            yield total, pieces
            continue
        here = pieces[-1][1]
        going_on = spent + float(costs.segment[done, 0, here])
        if np.isfinite(going_on):
            in_all = going_on + float(paths.tails[done + 1, 0, here])
            heapq.heappush(queue, (in_all, next(numbers), going_on, pieces, done + 1))
        changed = spent + changes(paths, done, here) + costs.segment[done, 0]
        changed[here] = np.inf
        push(changed, pieces, done)


def changes(paths: Paths, place: int, here: int) -> Floats:
    """(c,): what it costs to end `here` before a segment and begin each other choice."""
    tables, costs = paths.tables, paths.costs
    device = int(tables.device_of[here])
    sent = costs.send[place, 0, device][tables.device_of]
    found: Floats = costs.leave[place, 0, here] + sent + costs.begin[place, 0]
    group = tables.group_number(here)
    if group is not None:
        inside = tables.group_of == group
        mates = tables.grouped[inside]
        own = int(np.nonzero(tables.grouped == here)[0][0])
        inner = costs.inner_leave[place, 0, own] + costs.inner_begin[place, 0, inside]
        found[mates] = np.minimum(found[mates], inner)
    return found
