"""Where to divide a model and what each part runs as: the exactly best plans by predicted time.

This device alone is a problem of one device without links. Times are counted in whole picoseconds,
so that equal plans cost exactly the same and ties break the same way everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from edge_agent.devices import DeviceId, Layout
from edge_agent.distributions import PlacedSubgraph
from edge_agent.planning.amounts import SECONDS, Bottleneck, Caps, demanded, load_columns
from edge_agent.planning.cost import (
    assemble,
    border_bytes,
    check_times,
    is_divisible,
    keeps_tensors,
)
from edge_agent.planning.labels import best_route
from edge_agent.planning.ranked import first_within, ranked
from edge_agent.planning.shifts import evened
from edge_agent.planning.shortest import Paths, Pieces, Weights, as_route, cheapest
from edge_agent.planning.tables import Tables, tabulate
from edge_agent.plans import CandidatePlan, Target
from edge_agent.problems import PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary

_LEAST_EFFORT = 200_000.0
_SEGMENT_EFFORT = 500.0
"""About microseconds of a desktop processor, for the plans over several resources of one sort; for
each segment of a long model."""
_TIE_EFFORT_SHARE = 0.1
_NEAR = 1.1
"""The best plan over several resources of one sort is looked for as long as it may take at most so
much longer than the best one known: what is measured may be another one."""
_LOOKS = 500
"""Partial plans to look at for the order of plans over several resources that take as long."""
_MOST_SHIFTS = 100
_PER_S = 1e12
_HERE = DeviceId("here")


def choose(
    summary: ModelSummary, profile: LatencyProfile, target: Target, count: int
) -> tuple[CandidatePlan, ...]:
    """The `count` best distinct plans for `target`, and each single configuration, best first.

    For the latency, one request runs at a time. For the throughput, plans are ordered by time per
    request (see `assemble`); what shares a resource has as many instances, and what is on the
    host's cores beside an accelerator also as many threads. Exact: no plan that `profile` can
    price is better than the ones returned; of the plans over several resources, that holds for the
    best one as far as `best_route` is exact within its effort, and there is one for each sort of
    instances and threads that is nearly as good. Ties: less work in all (what does not hold up the
    busiest resource still runs where it is fastest), then fewer subgraphs, then the order of
    `Configuration`, then earlier cuts; of plans over several resources, where few are equal.

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
        counted = _Counted.of(summary, group)
        best += [counted.ranked(p, target) for p in ranked(counted.cheapest(), count)]
        singles += [counted.ranked(p, target) for p in counted.undivided()]
    best = sorted({*best, *singles})
    if target is Target.THROUGHPUT:
        sorts = [_Counted.of(summary, group) for group in _side_by_side(profile.times)]
        for counted in sorted(sorts, key=lambda c: c.least_per_request()):
            known = best[0].per_request if best else math.inf
            found = _fastest(counted, known * counted.round * _NEAR)
            best = sorted({*best, *(counted.ranked(pieces, target) for pieces in found)})
    chosen = sorted({*best[:count], *singles})
    times_of = {t.configuration: t for t in profile.times}
    size = len(summary.segments)
    return tuple(assemble(summary, times_of, _pieces(r, size), target=target) for r in chosen)


class _Ranked(NamedTuple):
    """A plan, by what it is ordered by."""

    per_request: float
    """Picoseconds of the busiest resource; for the latency, of all."""
    in_all: float
    parts: int
    used: tuple[Configuration, ...]
    """Configuration and first segment of each subgraph."""
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Counted:
    """The planning problem of this device alone, for some configurations, in whole picoseconds of
    a round of requests: as many as all instances can share evenly."""

    tables: Tables
    round: int

    @classmethod
    def of(cls, summary: ModelSummary, group: Sequence[SegmentTimes]) -> _Counted:
        units = dict.fromkeys(times.configuration.unit for times in group)
        device = PlannedDevice(
            id=_HERE,
            units=tuple(PlannedUnit(id=unit) for unit in units),
            times=tuple(group),
            memory_bytes=1 << 62,
            cores=max(1, *(times.configuration.cores for times in group)),
        )
        problem = Problem(summary=summary, devices=(device,), owner=_HERE)
        # So that several instances count, whatever the target.
        tables = tabulate(problem, Target.THROUGHPUT)
        assert tables is not None, "there are configurations"
        instances = np.rint(1.0 / tables.per_round).astype(np.int64)
        in_round = math.lcm(*instances.tolist())
        per_run = in_round // instances
        tables = replace(
            tables,
            seconds=np.rint(tables.seconds * _PER_S) * per_run,
            overhead=np.rint(tables.overhead * _PER_S) * per_run,
            border=np.rint(tables.border * _PER_S) * per_run,
            inner=np.rint(tables.inner * _PER_S) * per_run,
            per_round=np.ones(len(instances)),
        )
        return cls(tables=tables, round=in_round)

    def undivided(self) -> list[Pieces]:
        """The whole model in each configuration that refuses nothing."""
        is_whole = np.isfinite(self.tables.refusal).all(axis=0)
        return [((0, c),) for c in np.flatnonzero(is_whole).tolist()]

    def cheapest(self) -> Paths:
        """By the work in all."""
        return cheapest(self.tables, self.work())

    def least_per_request(self) -> float:
        """What no plan is better than: the work in all, shared evenly by all resources."""
        shared = len(set(self.tables.resource_of.tolist()))
        return float(self.cheapest().totals[0]) / shared / self.round

    def work(self) -> Weights:
        """The work in all counts."""
        return Weights.of_time(self.tables)

    def ranked(self, pieces: Pieces, target: Target) -> _Ranked:
        """A plan with its exact rank."""
        row = demanded(self.tables, pieces)
        in_all = float(row[SECONDS])
        is_rate = target is Target.THROUGHPUT
        busiest = float(row[load_columns(self.tables)].max()) if is_rate else in_all
        steps = as_route(self.tables, pieces).steps
        return _Ranked(
            per_request=busiest / self.round,
            in_all=in_all / self.round,
            parts=len(pieces),
            used=tuple(s.configuration for s in steps if isinstance(s, PlacedSubgraph)),
            starts=tuple(start for start, _ in pieces),
        )


def _fastest(counted: _Counted, known: float) -> list[Pieces]:
    """The plan whose busiest resource has least to do, and of such ones the first in order; with
    it, those that were found on the way. Nothing where all take more than `known`."""
    tables, none = counted.tables, Caps.none(counted.tables)
    effort = max(_LEAST_EFFORT, _SEGMENT_EFFORT * tables.places)
    # One picosecond more, so that what takes as long is looked for too.
    found = best_route(tables, Bottleneck.LOADS, none, effort=effort, known=known + 1.0)
    if found.pieces is None or found.bound > known:
        return []
    pieces = evened(tables, found.pieces, _MOST_SHIFTS)
    row = demanded(tables, pieces)
    busiest, work = float(row[load_columns(tables)].max()), float(row[SECONDS])
    if busiest > known:
        return []
    tied = replace(none, loads=np.full(len(tables.resources), busiest))
    effort *= _TIE_EFFORT_SHARE
    least = best_route(tables, counted.work(), tied, effort=effort, known=work)
    first = first_within(counted.cheapest(), tied.loads, min(least.value, work), _LOOKS)
    return [p for p in (pieces, least.pieces, first) if p is not None]


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

    Exact, by dynamic programming over (boundary, what the tensors are kept for there, subgraphs so
    far); each subgraph runs in its best divisible configuration, and equal neighbours
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
) -> tuple[float, _Pieces] | None:
    """(Picoseconds per request of the slowest subgraph, the subgraphs), for `count` of them."""
    size = len(summary.segments)
    bounds = [b for b in range(size + 1) if border_bytes(summary, b) is not None]
    if not 1 <= count <= len(bounds) - 1:
        return None
    part_of = _PartPrices.of(summary, group)
    priced: dict[tuple[int, int, str], dict[str, tuple[float, Configuration]]] = {}
    reached: dict[tuple[int, str], tuple[float, _Pieces]] = {(0, ""): (0.0, ())}
    for _ in range(count):
        further: dict[tuple[int, str], tuple[float, _Pieces]] = {}
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


_PerBoundary = list[list[float]]
"""(n + 1, c); lists, because they are looked at one by one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PartPrices:
    """Picoseconds of a round for parts of a model, and in which configuration they are least."""

    used: tuple[Configuration, ...]
    kept_for: tuple[str, ...]
    """(c,): for what each may keep tensors at a border: an accelerator, or NHWC on the host's
    cores; "" for nothing."""
    round: int
    overhead: list[float]
    """(c,)"""
    before: _PerBoundary
    """Of the segments before each boundary."""
    refused_before: _PerBoundary
    """How many of them are refused."""
    border: _PerBoundary
    """At each boundary; 0 where not known."""
    inner: _PerBoundary
    """At a boundary to what the tensors are kept for."""

    @classmethod
    def of(cls, summary: ModelSummary, group: Sequence[SegmentTimes]) -> _PartPrices:
        counted = _Counted.of(summary, group)
        tables = counted.tables
        nothing = np.zeros((1, len(tables.choices)))
        return cls(
            used=tuple(t.configuration for t in group),
            kept_for=tuple(_kept_for(t.configuration) for t in group),
            round=counted.round,
            overhead=tables.overhead.tolist(),
            before=np.vstack((nothing, tables.seconds)).cumsum(axis=0).tolist(),
            refused_before=np.vstack((nothing, np.isinf(tables.refusal))).cumsum(axis=0).tolist(),
            border=np.vstack((tables.border, nothing)).tolist(),
            inner=np.vstack((tables.inner, nothing)).tolist(),
        )

    def best(self, start: int, stop: int, kept: str) -> dict[str, tuple[float, Configuration]]:
        """The best configuration of a part with its picoseconds per request, for each of what its
        outputs may be kept for, and for none (""); `kept` is what its inputs are kept for, in which
        it then must run."""
        least: dict[str, tuple[float, Configuration]] = {}
        is_inside = stop < len(self.before) - 1
        for c, own in enumerate(self.kept_for):
            if kept and kept != own:
                continue
            if self.refused_before[stop][c] > self.refused_before[start][c]:
                continue
            price = self.overhead[c] + self.before[stop][c] - self.before[start][c]
            price += (self.inner if kept else self.border)[start][c]
            for keeps in ("", own) if own and is_inside else ("",):
                whole = price + (self.inner if keeps else self.border)[stop][c]
                found = (whole / self.round, self.used[c])
                if keeps not in least or found < least[keeps]:
                    least[keeps] = found
        return least


def _kept_for(which: Configuration) -> str:
    if keeps_tensors(which, which):
        return which.unit
    return str(which.layout) if which.layout is Layout.NHWC else ""


def _pieces(plan: _Ranked, segments: int) -> list[tuple[SegmentRange, Configuration]]:
    bounds = pairwise((*plan.starts, segments))
    return [
        (SegmentRange(start=start, stop=stop), configuration)
        for (start, stop), configuration in zip(bounds, plan.used, strict=True)
    ]
