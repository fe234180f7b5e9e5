"""Where to divide a model and what each part runs as: the exactly best plans by predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from itertools import accumulate, islice, pairwise

from edge_agent.planning.cost import assemble, border_bytes, check_times, is_divisible
from edge_agent.planning.pipeline import pipelines
from edge_agent.planning.prices import Prices
from edge_agent.plans import CandidatePlan, Target
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.subgraphs import ModelSummary, SegmentRange


def choose(
    summary: ModelSummary, profile: LatencyProfile, target: Target, count: int
) -> tuple[CandidatePlan, ...]:
    """The `count` best distinct plans for `target`, and each single configuration, best first.

    For the latency, one request runs at a time. For the throughput, plans are ordered by time per
    request (see `assemble`); what shares a resource has as many instances, and what is on the
    host's cores beside an accelerator also as many threads. Exact: no plan that `profile` can
    price is better than the ones returned; of the plans over several resources, that holds for the
    best one, within the bounds of `pipelines`, and others are good ones. Ties: less work in all
    (what does not hold up the busiest resource still runs where it is fastest), then fewer
    subgraphs, then the order of `Configuration`, then earlier cuts.

    A cut whose bytes are not known is never used, nor a segment in a configuration that refuses
    it, nor a part in one that is not divisible or falls back to the processor. Nothing measured,
    or nothing that runs the whole model: no plan.

    Raises:
        ValueError: `count` is below 1, or the profile is one of another division.
    """
    if count < 1:
        raise ValueError(f"count: got {count}, want at least 1")
    for times in profile.times:
        check_times(summary, times)
    best: list[_Ranked] = []
    singles: list[_Ranked] = []
    for group in _alike(profile.times, target):
        divisible = [times for times in group if is_divisible(times)]
        if divisible:
            table = Prices.of(summary, divisible)
            best += [_ranked(p, divisible) for p in _best_paths(table, count)]
        singles += [_ranked(p, group) for p in _single_paths(Prices.of(summary, group))]
    best = sorted({*best, *singles})
    if target is Target.THROUGHPUT:
        for group in _side_by_side(profile.times):
            known_s = best[0][0] if best else None
            at_once, labels = pipelines(
                Prices.of(summary, group), [t.configuration for t in group], known_s
            )
            best += [
                (
                    Fraction(max(label.loads), at_once),
                    Fraction(sum(label.loads), at_once),
                    label.parts,
                    tuple(group[c].configuration for c in label.used),
                    label.starts,
                )
                for label in labels
            ]
            best = sorted(set(best))
    chosen = sorted({*best[:count], *singles})
    known = {t.configuration: t for t in profile.times}
    return tuple(
        assemble(summary, known, _pieces(r, len(summary.segments)), target=target) for r in chosen
    )


def _alike(all_times: Sequence[SegmentTimes], target: Target) -> list[list[SegmentTimes]]:
    """What may share a plan whose time is the sum over its subgraphs: for the latency, all of one
    instance; for the throughput, what keeps one resource busy with equal instances."""
    groups: dict[tuple[str, int], list[SegmentTimes]] = {}
    for times in sorted(all_times, key=lambda t: t.configuration):
        which = times.configuration
        if target is Target.THROUGHPUT:
            groups.setdefault((which.resource, which.instances), []).append(times)
        elif which.instances == 1:
            groups.setdefault(("", 1), []).append(times)
    return list(groups.values())


def _side_by_side(all_times: Sequence[SegmentTimes]) -> list[list[SegmentTimes]]:
    """What may share a plan over several resources: all accelerators, and of the host's cores
    what has equal instances and threads, so that the cores are disjoint."""
    divisible = [t for t in sorted(all_times, key=lambda t: t.configuration) if is_divisible(t)]
    accelerators = [t for t in divisible if not t.configuration.threads]
    hosts: dict[tuple[int, int], list[SegmentTimes]] = {}
    for times in divisible:
        if times.configuration.threads:
            key = (times.configuration.instances, times.configuration.threads)
            hosts.setdefault(key, []).append(times)
    groups = [[*host, *accelerators] for host in hosts.values()] or [accelerators]
    groups = [sorted(group, key=lambda t: t.configuration) for group in groups]
    return [g for g in groups if len({t.configuration.resource for t in g}) > 1]


def divide_into(
    summary: ModelSummary, profile: LatencyProfile, target: Target, count: int
) -> CandidatePlan | None:
    """The plan with exactly `count` subgraphs whose slowest one is fastest, whether it pays or not.

    Exact, by dynamic programming over (boundary, accelerator that keeps the tensors there,
    subgraphs so far); each subgraph runs in its best divisible configuration, and equal neighbours
    stay apart. For the throughput, the host's cores run as many instances as they were measured
    with, and a subgraph counts with its time per request. None if there are not enough boundaries
    whose bytes are known, or nothing divisible was measured that runs all segments. Ties: earlier
    cuts.
    """
    groups = [[t for t in group if is_divisible(t)] for group in _alike(profile.times, target)]
    if target is Target.THROUGHPUT:
        groups += _side_by_side(profile.times)
        hosts = [t.configuration for g in groups for t in g if t.configuration.threads]
        most = max((c.instances for c in hosts), default=1)
        groups = [
            [t for t in g if not t.configuration.threads or t.configuration.instances == most]
            for g in groups
        ]
    found = [p for g in groups if g and (p := _evenly(summary, g, count)) is not None]
    if not found:
        return None
    _, pieces = min(found, key=lambda p: p[0])
    known = {t.configuration: t for t in profile.times}
    return assemble(summary, known, pieces, target=target, is_joined=False)


_Pieces = tuple[tuple[SegmentRange, Configuration], ...]


def _evenly(
    summary: ModelSummary, group: Sequence[SegmentTimes], count: int
) -> tuple[Fraction, _Pieces] | None:
    """(Picoseconds of the slowest subgraph, the subgraphs), for `count` of them."""
    size = len(summary.segments)
    bounds = [b for b in range(size + 1) if border_bytes(summary, b) is not None]
    if not 1 <= count <= len(bounds) - 1:
        return None
    part_of = _PartPrices.of(summary, group)
    priced: dict[tuple[int, int, str], dict[str, tuple[Fraction, Configuration]]] = {}
    reached: dict[tuple[int, str], tuple[Fraction, _Pieces]] = {(0, ""): (Fraction(0), ())}
    for _ in range(count):
        further: dict[tuple[int, str], tuple[Fraction, _Pieces]] = {}
        for (start, kept), (slowest, pieces) in sorted(reached.items()):
            for stop in (b for b in bounds if b > start):
                if (start, stop, kept) not in priced:
                    priced[start, stop, kept] = part_of.best(start, stop, kept)
                for keeps, (price, configuration) in priced[start, stop, kept].items():
                    worst = max(slowest, price)
                    if (stop, keeps) not in further or worst < further[stop, keeps][0]:
                        piece = (SegmentRange(start=start, stop=stop), configuration)
                        further[stop, keeps] = (worst, (*pieces, piece))
        reached = further
    return reached.get((size, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartPrices:
    """Time per request of parts of a model, and in which configuration it is least."""

    used: tuple[Configuration, ...]
    overhead: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    """Picoseconds of the segments before each boundary, per configuration."""
    refused_before: tuple[tuple[int, ...], ...]
    border: tuple[tuple[int, ...], ...]
    """At each boundary, per configuration; 0 where not known."""

    @classmethod
    def of(cls, summary: ModelSummary, group: Sequence[SegmentTimes]) -> _PartPrices:
        table = Prices.of(summary, group)
        return cls(
            used=tuple(t.configuration for t in group),
            overhead=table.overhead,
            before=tuple(tuple(accumulate((p or 0 for p in s), initial=0)) for s in table.segment),
            refused_before=tuple(
                tuple(accumulate((p is None for p in s), initial=0)) for s in table.segment
            ),
            border=tuple((*(p or 0 for p in border), 0) for border in table.border),
        )

    def best(self, start: int, stop: int, kept: str) -> dict[str, tuple[Fraction, Configuration]]:
        """The best configuration of a part, for each accelerator that may keep its outputs, and
        for none (""); `kept` is the one that keeps its inputs, on which it then must run."""
        least: dict[str, tuple[Fraction, Configuration]] = {}
        for c, which in enumerate(self.used):
            own = "" if which.threads else which.unit
            if kept not in ("", own) or self._refuses(c, start, stop):
                continue
            price = self.overhead[c] + self.before[c][stop] - self.before[c][start]
            price += 0 if kept else self.border[c][start]
            for keeps in {"", own} if stop < len(self.before[c]) - 1 else {""}:
                whole = price + (0 if keeps else self.border[c][stop])
                ranked = (Fraction(whole, which.instances), which)
                least[keeps] = min(least.get(keeps, ranked), ranked)
        return least

    def _refuses(self, c: int, start: int, stop: int) -> bool:
        return self.refused_before[c][stop] > self.refused_before[c][start]


_Path = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Picoseconds, number of subgraphs, configuration and first segment of each: compared in this
order. Adding the same tail to two paths keeps their order, which is what makes the search exact."""

_Ranked = tuple[Fraction, Fraction, int, tuple[Configuration, ...], tuple[int, ...]]
"""Picoseconds per request, of the busiest resource and of all together; number of subgraphs,
configuration and first segment of each."""


def _best_paths(prices: Prices, count: int) -> list[_Path]:
    """The `count` smallest paths, by dynamic programming over (boundary, configuration).

    After each segment, `reached[c]` holds the `count` smallest paths whose last subgraph runs in
    configuration c. The next segment either continues that subgraph or begins another one in
    another configuration; both keep the order of paths, so no smaller path is ever lost.
    """
    configurations = range(len(prices.overhead))
    reached: list[list[_Path]] = [
        [] if first is None else [(overhead + first, 1, (c,), (0,))]
        for c, overhead in enumerate(prices.overhead)
        for first in (prices.segment[c][0],)
    ]
    for place in range(1, len(prices.segment[0])):
        exits = sorted(
            (cost + leaving, parts, used, starts)
            for c in configurations
            if (leaving := prices.border[c][place]) is not None
            for cost, parts, used, starts in reached[c]
        )
        reached = [_extended(prices, place, c, reached, exits, count) for c in configurations]
    return list(islice(merge(*reached), count))


def _extended(
    prices: Prices,
    place: int,
    configuration: int,
    reached: Sequence[Sequence[_Path]],
    exits: Sequence[_Path],
    count: int,
) -> list[_Path]:
    here = prices.segment[configuration][place]
    if here is None:
        return []
    going_on = [
        (cost + here, parts, used, starts) for cost, parts, used, starts in reached[configuration]
    ]
    border = prices.border[configuration][place]
    if border is None:
        return going_on
    mates = prices.mates[configuration]
    begun_s = here + prices.overhead[configuration]
    others = islice((path for path in exits if path[2][-1] not in mates), count)
    begun = (
        (cost + begun_s + border, parts + 1, (*used, configuration), (*starts, place))
        for cost, parts, used, starts in others
    )
    if len(mates) == 1:
        return list(islice(merge(going_on, begun), count))
    staying = (
        (cost + begun_s, parts + 1, (*used, configuration), (*starts, place))
        for cost, parts, used, starts in merge(*(reached[m] for m in mates - {configuration}))
    )
    return list(islice(merge(going_on, begun, staying), count))


def _single_paths(prices: Prices) -> list[_Path]:
    return [
        (cost, 1, (c,), (0,))
        for c in range(len(prices.overhead))
        if (cost := prices.undivided(c)) is not None
    ]


def _ranked(path: _Path, group: Sequence[SegmentTimes]) -> _Ranked:
    cost, parts, used, starts = path
    per_request = Fraction(cost, group[0].configuration.instances)
    configurations = tuple(group[c].configuration for c in used)
    return per_request, per_request, parts, configurations, starts


def _pieces(ranked: _Ranked, segments: int) -> list[tuple[SegmentRange, Configuration]]:
    *_, used, starts = ranked
    bounds = pairwise((*starts, segments))
    return [
        (SegmentRange(start=start, stop=stop), configuration)
        for (start, stop), configuration in zip(bounds, used, strict=True)
    ]
