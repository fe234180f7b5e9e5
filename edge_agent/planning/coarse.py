"""Coarse tables: a model whose segments were joined to blocks, so that a route is found sooner.

A route of blocks is a route of segments that changes only at some of the boundaries: what it costs
is the same in both, so that the best of the coarse routes is a route, and no better than the best.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from edge_agent.planning.tables import Floats, Forks, Ints, Sends, Tables


def coarsen(tables: Tables, boundaries: Sequence[int]) -> Tables:
    """The tables of routes that change only at `boundaries`: the first segment of each block,
    ascending, 0 among them.

    All but the arrays of segments and borders is that of `tables`; `problem` too, whose segments
    these are no longer: see `refined`.
    """
    starts = np.asarray(boundaries, np.int64)
    assert starts[0] == 0, "the first block begins with the first segment"
    assert (np.diff(starts) > 0).all(), "blocks are in order"
    assert starts[-1] < tables.places, "no block is empty"
    return replace(
        tables,
        seconds=np.add.reduceat(tables.seconds, starts, axis=0),
        refusal=np.maximum.reduceat(tables.refusal, starts, axis=0),
        weights=np.add.reduceat(tables.weights, starts, axis=0),
        arenas=np.maximum.reduceat(tables.arenas, starts, axis=0),
        border=tables.border[starts],
        barrier=tables.barrier[starts],
        inner=tables.inner[starts],
        sends=_taken(tables.sends, starts),
        forks=_joined(tables.forks, starts),
    )


def _joined(forks: Forks, starts: Ints) -> Forks:
    """A fork that begins inside a block is never begun, but may be gone on with."""
    if not len(forks.places):
        return forks
    blocks = np.searchsorted(starts, forks.places, side="right") - 1
    keys, which = np.unique(np.column_stack((blocks, forks.choices)), axis=0, return_inverse=True)
    demands = np.zeros((len(keys), forks.demands.shape[1]))
    np.add.at(demands, which.reshape(-1), forks.demands)
    return Forks(places=keys[:, 0], choices=keys[:, 1], demands=demands)


def _taken(sends: Sends, starts: Ints) -> Sends:
    return Sends(
        penalty=sends.penalty[starts],
        seconds=sends.seconds[starts],
        joules=sends.joules[starts],
        size_bytes=sends.size_bytes[starts],
        link_seconds=sends.link_seconds[starts],
        source_seconds=sends.source_seconds[starts],
        target_seconds=sends.target_seconds[starts],
    )


def refined(
    boundaries: Sequence[int], pieces: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """(first segment, choice) of each subgraph, from (first block, choice)."""
    return tuple((int(boundaries[block]), choice) for block, choice in pieces)


def kept_boundaries(tables: Tables, used: Collection[int], most: int) -> tuple[int, ...]:
    """At most `most` boundaries for `coarsen`: 0, the `used` ones, and others spread evenly over
    the work, of each stretch the one at which least crosses.

    Of more `used` ones than that, those are kept at which least crosses.
    """
    n = tables.places
    crossing = crossings(tables)
    kept = sorted({at for at in used if 0 < at < n}, key=lambda at: (crossing[at], at))
    chosen = {0, *kept[: most - 1]}
    took = (tables.seconds + tables.refusal)[:, ~tables.is_fork]
    work = np.cumsum(np.minimum.reduce(took, axis=1))
    if not np.isfinite(work[-1]) or not work[-1]:
        work = np.arange(1.0, n + 1.0)
    stretches = most - len(chosen)
    if stretches > 0:
        stretch = np.minimum(work / work[-1] * stretches, stretches - 1).astype(np.int64)
        for number in range(stretches):
            (inside,) = np.nonzero(stretch == number)
            free = [int(at) for at in inside if at not in chosen and np.isfinite(crossing[at])]
            if free:
                chosen.add(min(free, key=lambda at: (crossing[at], at)))
    return tuple(sorted(chosen))


def crossings(tables: Tables) -> Floats:
    """(n,): how dear a change before each segment is: bytes between devices, or where there is
    only one, seconds of borders; infinity where there can be none."""
    count = len(tables.devices)
    if count > 1:
        far = ~np.eye(count, dtype=bool)
        sizes = (tables.sends.size_bytes + tables.sends.penalty)[:, far]
        found: Floats = sizes.min(axis=1)
        if np.isfinite(found[1:]).any():
            return found
    borders: Floats = (tables.border + tables.barrier)[:, ~tables.is_fork].min(axis=1)
    return borders
