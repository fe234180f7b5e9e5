"""Which parts of a model tell most about its segments when they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from edge_agent.planning.cost import border_bytes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary


def window_levels(
    summary: ModelSummary, prior: Sequence[float]
) -> tuple[tuple[SegmentRange, ...], ...]:
    """Parts of a model worth measuring, most telling first: halves with the middle half, quarters,
    eighths, each balanced by `prior` (relative cost per segment); none twice, never the whole.

    Parts whose border bytes are not known are left out: they could not be fitted.
    """
    count = len(summary.segments)
    bounds = {parts: _balanced(prior, parts) for parts in (2, 4, 8)}
    halves = [*_parts(bounds[2])]
    if len(bounds[4]) == 5:
        halves.append(SegmentRange(start=bounds[4][1], stop=bounds[4][3]))
    levels: list[tuple[SegmentRange, ...]] = []
    seen = {(0, count)}
    for parts in (halves, _parts(bounds[4]), _parts(bounds[8])):
        new = []
        for part in parts:
            ends = (part.start, part.stop)
            if ends not in seen and all(border_bytes(summary, end) is not None for end in ends):
                seen.add(ends)
                new.append(part)
        if new:
            levels.append(tuple(new))
    return tuple(levels)


def _balanced(prior: Sequence[float], parts: int) -> list[int]:
    """Boundaries of at most `parts` non-empty runs of about equal cost."""
    total = sum(prior)
    before = [0.0]
    for cost in prior:
        before.append(before[-1] + cost)
    inner = {
        min(range(len(before)), key=lambda b: abs(before[b] - total * part / parts))
        for part in range(1, parts)
    }
    return sorted(inner | {0, len(prior)})


def _parts(bounds: Sequence[int]) -> list[SegmentRange]:
    return [SegmentRange(start=a, stop=b) for a, b in pairwise(bounds)]
