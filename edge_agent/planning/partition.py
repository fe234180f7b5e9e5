"""Where to divide a model and what each part runs as: the exactly best plans by predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from itertools import islice, pairwise

from edge_agent.planning.cost import assemble, border_bytes, check_times, subgraph_ticks, ticks
from edge_agent.plans import CandidatePlan, Target
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.subgraphs import ModelSummary, SegmentRange


def choose(
    summary: ModelSummary, profile: LatencyProfile, target: Target, count: int
) -> tuple[CandidatePlan, ...]:
    """The `count` best distinct plans for `target`, and each single configuration, best first.

    Exact: no plan that `profile` can price is better than the ones returned. For the latency, one
    request runs at a time; for the throughput, all subgraphs of a plan run as many instances, and
    plans are ordered by time per request. Ties: fewer subgraphs, then the order of `Configuration`,
    then earlier cuts. A cut whose bytes are not known is never used, nor a part in a configuration
    that is not divisible. Nothing measured, no plan.

    Raises:
        ValueError: `count` is below 1, or the profile is one of another division.
    """
    if count < 1:
        raise ValueError(f"count: got {count}, want at least 1")
    for times in profile.times:
        check_times(summary, times)
    by_instances: dict[int, list[SegmentTimes]] = {}
    for times in sorted(profile.times, key=lambda t: t.configuration):
        instances = times.configuration.instances
        if target is Target.THROUGHPUT or instances == 1:
            by_instances.setdefault(instances, []).append(times)
    best: list[_Ranked] = []
    singles: list[_Ranked] = []
    for instances, group in by_instances.items():
        divisible = [times for times in group if times.is_divisible]
        if divisible:
            table = _Prices.of(summary, divisible)
            best += [_ranked(p, divisible, instances) for p in _best_paths(table, count)]
        table = _Prices.of(summary, group)
        singles += [_ranked(p, group, instances) for p in _single_paths(table)]
    chosen = sorted(set(sorted(best)[:count]) | set(singles))
    known = {t.configuration: t for t in profile.times}
    return tuple(assemble(summary, known, _pieces(r, len(summary.segments))) for r in chosen)


def divide_into(
    summary: ModelSummary, profile: LatencyProfile, target: Target, count: int
) -> CandidatePlan | None:
    """The plan with exactly `count` subgraphs whose slowest one is fastest, whether it pays or not.

    Exact, by dynamic programming over (boundary, subgraphs so far); each subgraph runs in its
    best divisible configuration, and equal neighbours stay apart. None if there are not enough
    boundaries whose bytes are known, or nothing divisible was measured. Ties: earlier cuts.
    """
    instances = [
        t.configuration.instances
        for t in profile.times
        if target is Target.THROUGHPUT or t.configuration.instances == 1
    ]
    usable = [
        t
        for t in sorted(profile.times, key=lambda t: t.configuration)
        if t.is_divisible and t.configuration.instances == max(instances, default=0)
    ]
    size = len(summary.segments)
    bounds = [b for b in range(size + 1) if border_bytes(summary, b) is not None]
    if not usable or count < 1 or count > len(bounds) - 1:
        return None

    def best(start: int, stop: int) -> tuple[int, Configuration]:
        part = SegmentRange(start=start, stop=stop)
        return min((subgraph_ticks(summary, t, part), t.configuration) for t in usable)

    reached: dict[int, tuple[int, tuple[tuple[SegmentRange, Configuration], ...]]] = {0: (0, ())}
    for _ in range(count):
        further: dict[int, tuple[int, tuple[tuple[SegmentRange, Configuration], ...]]] = {}
        for start, (slowest, pieces) in sorted(reached.items()):
            for stop in (b for b in bounds if b > start):
                price, configuration = best(start, stop)
                worst = max(slowest, price)
                if stop not in further or worst < further[stop][0]:
                    piece = (SegmentRange(start=start, stop=stop), configuration)
                    further[stop] = (worst, (*pieces, piece))
        reached = further
    known = {t.configuration: t for t in usable}
    return assemble(summary, known, reached[size][1], is_joined=False)


_Path = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Picoseconds, number of subgraphs, configuration and first segment of each: compared in this
order. Adding the same tail to two paths keeps their order, which is what makes the search exact."""

_Ranked = tuple[Fraction, int, tuple[Configuration, ...], tuple[int, ...]]
"""Picoseconds per request, number of subgraphs, configuration and first segment of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    """Picoseconds per configuration (first index) and place (second index)."""

    segment: tuple[tuple[int, ...], ...]
    border: tuple[tuple[int | None, ...], ...]
    """At boundary p, before segment p; None where the bytes are not known."""
    overhead: tuple[int, ...]

    @classmethod
    def of(cls, summary: ModelSummary, group: Sequence[SegmentTimes]) -> _Prices:
        crossing = [border_bytes(summary, p) for p in range(len(summary.segments))]
        return cls(
            segment=tuple(tuple(ticks(s) for s in times.segment_s) for times in group),
            border=tuple(
                tuple(None if b is None else ticks(t.border_s_per_byte * b) for b in crossing)
                for t in group
            ),
            overhead=tuple(ticks(times.overhead_s) for times in group),
        )


def _best_paths(prices: _Prices, count: int) -> list[_Path]:
    """The `count` smallest paths, by dynamic programming over (boundary, configuration).

    After each segment, `reached[c]` holds the `count` smallest paths whose last subgraph runs in
    configuration c. The next segment either continues that subgraph or begins another one in
    another configuration; both keep the order of paths, so no smaller path is ever lost.
    """
    configurations = range(len(prices.overhead))
    reached: list[list[_Path]] = [
        [(prices.overhead[c] + prices.segment[c][0], 1, (c,), (0,))] for c in configurations
    ]
    for place in range(1, len(prices.segment[0])):
        exits = sorted(
            (cost + leaving, parts, used, starts)
            for c in configurations
            if (leaving := prices.border[c][place]) is not None
            for cost, parts, used, starts in reached[c]
        )
        reached = [_extended(prices, place, c, reached[c], exits, count) for c in configurations]
    return list(islice(merge(*reached), count))


def _extended(
    prices: _Prices,
    place: int,
    configuration: int,
    continuing: Sequence[_Path],
    exits: Sequence[_Path],
    count: int,
) -> list[_Path]:
    here = prices.segment[configuration][place]
    paths = [(cost + here, parts, used, starts) for cost, parts, used, starts in continuing]
    border = prices.border[configuration][place]
    if border is None:
        return paths
    entering = here + border + prices.overhead[configuration]
    others = (path for path in exits if path[2][-1] != configuration)
    begun = (
        (cost + entering, parts + 1, (*used, configuration), (*starts, place))
        for cost, parts, used, starts in islice(others, count)
    )
    return list(islice(merge(paths, begun), count))


def _single_paths(prices: _Prices) -> list[_Path]:
    return [
        (overhead + sum(segment), 1, (c,), (0,))
        for c, (overhead, segment) in enumerate(zip(prices.overhead, prices.segment, strict=True))
    ]


def _ranked(path: _Path, group: Sequence[SegmentTimes], instances: int) -> _Ranked:
    cost, parts, used, starts = path
    return Fraction(cost, instances), parts, tuple(group[c].configuration for c in used), starts


def _pieces(ranked: _Ranked, segments: int) -> list[tuple[SegmentRange, Configuration]]:
    _, _, used, starts = ranked
    bounds = pairwise((*starts, segments))
    return [
        (SegmentRange(start=start, stop=stop), configuration)
        for (start, stop), configuration in zip(bounds, used, strict=True)
    ]
