"""Where to divide so that all parts have about the same work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def equal_cuts(work_before: Sequence[float], total: float, parts: int) -> tuple[int, ...] | None:
    """Indices of the `parts - 1` places that divide `total` most evenly; None if there are fewer.

    `work_before` holds, ascending, the work before each place. Exact: the sum of the squares of
    the parts' work is least, by dynamic programming over (place, parts so far). Ties: earlier
    places.
    """
    if parts < 1 or parts - 1 > len(work_before):
        return None
    bounds = np.array([0.0, *work_before, total])
    n = len(bounds)
    best = np.full(n, np.inf)
    best[0] = 0.0
    came_from: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for _ in range(parts):
        further, source = np.full(n, np.inf), np.zeros(n, np.int64)
        for stop in range(1, n):
            squares = best[:stop] + (bounds[stop] - bounds[:stop]) ** 2
            source[stop] = int(squares.argmin())
            further[stop] = squares[source[stop]]
        best = further
        came_from.append(source)
    chosen, at = [], n - 1
    for source in reversed(came_from):
        at = int(source[at])
        chosen.append(at - 1)
    return tuple(chosen[-2::-1])
