"""Where to divide a model and what each part runs as: the exactly best plans by predicted time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

from edge_agent.devices import DeviceId
from edge_agent.planning.amounts import Pieces
from edge_agent.planning.caps import Caps
from edge_agent.planning.cost import (
    TICKS_PER_S,
    assemble,
    border_bytes,
    check_times,
    is_divisible,
    resource_ticks,
)
from edge_agent.planning.demands import Bottleneck
from edge_agent.planning.labels import best_route
from edge_agent.planning.prices import Prices
from edge_agent.planning.ranked import ranked
from edge_agent.planning.shortest import Weights, cheapest
from edge_agent.planning.tables import Tables, tabulate
from edge_agent.plans import CandidatePlan, Target
from edge_agent.problems import PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.subgraphs import ModelSummary, SegmentRange


def choose(
    summary: ModelSummary, profile: LatencyProfile, target: Target, count: int
) -> tuple[CandidatePlan, ...]:
    """The `count` best distinct plans for `target`, and each single configuration, best first.

    For the latency, one request runs at a time. For the throughput, plans are ordered by time per
    request (see `assemble`); what shares a resource has as many instances, and what is on the
    host's cores beside an accelerator also as many threads. Exact: no plan that `profile` can
    price is better than the ones returned; of the plans over several resources, only the best one
    of each sort is among them. Ties: less work in all (what does not hold up the busiest resource
    still runs where it is fastest), then fewer subgraphs, then the order of `Configuration`, then
    earlier cuts.

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
    known = {times.configuration: times for times in profile.times}
    best: list[_Ranked] = []
    singles: list[_Ranked] = []
    for group in _alike(profile.times, target):
        tables = _tables(summary, group)
        pieces = [_configured(tables, p) for p in _cheapest(tables, count)]
        best += [_ranked(summary, known, p, target) for p in pieces]
        for times in group:
            if not times.refused:
                whole = ((0, times.configuration),)
                singles.append(_ranked(summary, known, whole, target))
    if target is Target.THROUGHPUT:
        for group in _side_by_side(profile.times):
            tables = _tables(summary, group)
            least = min((float(r.per_request) / TICKS_PER_S for r in best), default=float("inf"))
            found = _fastest(tables, least)
            if found is not None:
                best.append(_ranked(summary, known, _configured(tables, found), target))
    chosen = sorted({*sorted({*best, *singles})[:count], *singles})
    return tuple(
        assemble(summary, known, _ranges(r.pieces, len(summary.segments)), target=target)
        for r in chosen
    )


_Configured = tuple[tuple[int, Configuration], ...]
"""(first segment, configuration) of each subgraph."""


class _Ranked(NamedTuple):
    """A plan with what it is ordered by."""

    per_request: Fraction
    """Picoseconds of the busiest resource, and of all together."""
    in_all: Fraction
    parts: int
    used: tuple[Configuration, ...]
    starts: tuple[int, ...]

    @property
    def pieces(self) -> _Configured:
        return tuple(zip(self.starts, self.used, strict=True))


def _ranked(
    summary: ModelSummary,
    known: Mapping[Configuration, SegmentTimes],
    pieces: _Configured,
    target: Target,
) -> _Ranked:
    """The exact rank of a plan, in whole picoseconds."""
    loads = resource_ticks(summary, known, _ranges(pieces, len(summary.segments)), target)
    return _Ranked(
        per_request=max(loads),
        in_all=sum(loads, Fraction(0)),
        parts=len(pieces),
        used=tuple(configuration for _, configuration in pieces),
        starts=tuple(start for start, _ in pieces),
    )


_HERE = DeviceId("here")
_MOST_TIES = 1000
"""Routes that are looked at because they may tie with the last one that is wanted."""
_NEAR = 1.0 + 1e-9
"""Sums of floats order routes up to this."""


def _tables(summary: ModelSummary, group: Sequence[SegmentTimes]) -> Tables:
    """The planning problem of this device alone, for these configurations."""
    units = dict.fromkeys(times.configuration.unit for times in group)
    device = PlannedDevice(
        id=_HERE,
        units=tuple(PlannedUnit(id=unit) for unit in units),
        times=tuple(group),
        memory_bytes=_MOST_BYTES,
    )
    problem = Problem(summary=summary, devices=(device,), owner=_HERE)
    tables = tabulate(problem, Target.THROUGHPUT)  # so that several instances count
    assert tables is not None, "there are configurations"
    return tables


_MOST_BYTES = 1 << 62


def _configured(tables: Tables, pieces: Pieces) -> _Configured:
    return tuple((start, tables.choices[c].configuration) for start, c in pieces)


def _cheapest(tables: Tables, count: int) -> list[Pieces]:
    """The `count` routes of least time in all, and those that may tie with the last of them."""
    weights = Weights.none(tables)
    weights.seconds[0] = 1.0
    paths = cheapest(tables, weights)
    found: list[Pieces] = []
    last_s = float("inf")
    for took_s, pieces in ranked(paths):
        if took_s > last_s * _NEAR or len(found) >= count + _MOST_TIES:
            break
        found.append(pieces)
        if len(found) == count:
            last_s = took_s
    return found


def _fastest(tables: Tables, known_s: float) -> Pieces | None:
    """The route whose busiest resource has least to do, and of such ones the one with the least
    work in all; None if none is better than `known_s`, or as good."""
    caps = Caps.none(tables)
    first = best_route(tables, Bottleneck.LOADS, caps, effort=_EFFORT, known=known_s * _NEAR)
    if first.pieces is None:
        return None
    weights = Weights.none(tables)
    weights.seconds[0] = 1.0
    tied = replace(caps, loads=caps.loads * 0.0 + first.value * _NEAR)
    second = best_route(tables, weights, tied, effort=_EFFORT)
    return second.pieces or first.pieces


_EFFORT = 1_000_000.0


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


def _ranges(pieces: _Configured, segments: int) -> list[tuple[SegmentRange, Configuration]]:
    bounds = pairwise((*(start for start, _ in pieces), segments))
    return [
        (SegmentRange(start=start, stop=stop), configuration)
        for (start, stop), (_, configuration) in zip(bounds, pieces, strict=True)
    ]
