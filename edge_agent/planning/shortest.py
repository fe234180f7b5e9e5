"""Cheapest routes: shortest paths over (boundary, device, configuration), many weightings at once.

Everything that a step demands (seconds, joules, bytes, seconds of each resource, bytes of each
memory) is weighed and summed; the cheapest route for given weights is a shortest path, found by
dynamic programming from the end of the model to its start (Bellman, On a routing problem, Quarterly
of Applied Mathematics 16, 1958). One sweep serves a batch of weightings, because numpy takes as
long for one as for ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from edge_agent.distributions import PlacedSubgraph, Route, Step
from edge_agent.planning.tables import Floats, Ints, Sends, Tables
from edge_agent.plans import Target
from edge_agent.subgraphs import SegmentRange

Pieces = tuple[tuple[int, int], ...]
"""(first segment, choice) of each subgraph of a route, in order; a choice of forks may run several
of them, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """What each thing counts, for `b` weightings at once; all at least 0."""

    seconds: Floats
    """(b,): of the time of one request."""
    joules: Floats
    size_bytes: Floats
    loads: Floats
    """(b, resources): of each second that a resource is busy."""
    memory: Floats
    """(b, pools): of each byte in a memory."""

    @classmethod
    def none(cls, tables: Tables, count: int = 1) -> Weights:
        """Nothing counts anything."""
        return cls(
            seconds=np.zeros(count),
            joules=np.zeros(count),
            size_bytes=np.zeros(count),
            loads=np.zeros((count, len(tables.resources))),
            memory=np.zeros((count, len(tables.pools))),
        )

    @classmethod
    def of(cls, tables: Tables, target: Target) -> Weights:
        """The metric of a target counts where it adds up over a route, else the seconds."""
        none = cls.none(tables)
        match target:
            case Target.ENERGY:
                return replace(none, joules=none.joules + 1.0)
            case Target.BYTES:
                return replace(none, size_bytes=none.size_bytes + 1.0)
            case Target.LATENCY | Target.THROUGHPUT | Target.MEMORY:
                return cls.of_time(tables)

    @classmethod
    def of_time(cls, tables: Tables) -> Weights:
        """The seconds of a request count, and nothing else."""
        none = cls.none(tables)
        return replace(none, seconds=none.seconds + 1.0)

    @property
    def rows(self) -> Floats:
        """(b, columns): as rows of `amounts`."""
        scalars = (self.seconds, self.joules, self.size_bytes)
        return np.column_stack((*scalars, self.loads, self.memory))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """What each step costs: the tables with weights applied. Leading axes (p, b)."""

    segment: Floats
    """(n, b, c)"""
    begin: Floats
    """(n, b, c): starting a subgraph before segment p, its border and the arena of p included."""
    leave: Floats
    """(n, b, c): ending one there."""
    inner_begin: Floats
    inner_leave: Floats
    """(n, b, grouped): as the two before, at a border within a group."""
    send: Floats
    """(n, b, d, d)"""
    first: Floats
    """(b, d)"""
    last: Floats
    """(b, d)"""


def weigh(tables: Tables, weights: Weights) -> Weighed:
    """Apply weights to the tables."""
    of_resource = weights.loads[:, tables.resource_of]
    rate = weights.seconds[:, None] + weights.joules[:, None] * tables.joules_per_s
    rate = rate + of_resource * tables.per_round
    of_pool = weights.memory[:, tables.pool_of]
    forks = tables.forks
    segment = tables.seconds[:, None, :] * rate + tables.refusal[:, None, :]
    leave = tables.border[:, None, :] * rate + tables.barrier[:, None, :]
    overhead = (tables.overhead * rate)[None]
    if of_pool.any():
        segment = segment + tables.weights[:, None, :] * of_pool
        overhead = overhead + tables.arenas[:, None, :] * of_pool
    if len(forks.places):
        at = (forks.places, slice(None), forks.choices)
        segment[at] += forks.demands @ weights.rows.T
    begin = leave + overhead
    grouped = tables.grouped
    inner_leave = tables.inner[:, None, grouped] * rate[:, grouped]
    inner_leave = inner_leave + tables.barrier[:, None, grouped]
    inner_begin = inner_leave + overhead[:, :, grouped]
    hosts, links = tables.host_of, tables.link_of
    loads = weights.loads
    here = loads[:, hosts]
    owner = loads[:, [tables.owner_host]]
    ends = tables.first_sends, tables.last_sends
    return Weighed(
        segment=segment,
        begin=begin,
        leave=leave,
        inner_begin=inner_begin,
        inner_leave=inner_leave,
        send=sent(tables.sends, weights, here[:, :, None], here[:, None, :], loads[:, links]),
        first=sent(ends[0], weights, owner, here, loads[:, tables.in_link_of]),
        last=sent(ends[1], weights, here, owner, loads[:, tables.out_link_of]),
    )


def sent(sends: Sends, weights: Weights, source: Floats, target: Floats, link: Floats) -> Floats:
    """Costs of sending: (p, b, d, d) or (b, d). Weights of resources are (b, d, d) or (b, d), or
    broadcast to it."""
    axes = sends.penalty.ndim
    is_inner = axes == 3

    def spread(values: Floats) -> Floats:
        """(b,) to the axes behind b."""
        return values[:, None, None] if is_inner else values[:, None]

    def over(values: Floats) -> Floats:
        """(p, d, d) to (p, b, d, d), (d,) to (b, d)."""
        return values[:, None] if is_inner else values[None]

    total: Floats = over(sends.penalty) + over(sends.seconds) * spread(weights.seconds)
    if weights.joules.any():
        total = total + over(sends.joules) * spread(weights.joules)
    if weights.size_bytes.any():
        total = total + over(sends.size_bytes) * spread(weights.size_bytes)
    if weights.loads.any():
        total = total + over(sends.link_seconds) * link
        total = total + over(sends.source_seconds) * source
        total = total + over(sends.target_seconds) * target
    return total


@dataclass(slots=True, kw_only=True, eq=False)
class Paths:
    """The cheapest way to finish from everywhere, for each weighting."""

    tables: Tables
    costs: Weighed
    tails: Floats
    """(n + 1, b, c): cheapest rest, with segments before p done and the last subgraph in c."""
    heads: Floats
    """(n, b, d): cheapest rest, with the values that cross before p in the memory of d."""
    exits: Floats
    """(n + 1, b, d): cheapest rest, with a subgraph or fork of d ended before p."""
    totals: Floats = field(init=False)
    """(b,): cost of the cheapest route; infinity where there is none."""
    _choices_of: list[slice] = field(init=False)
    """Choices of each device."""
    _mates: dict[int, tuple[int, slice]] = field(init=False)
    """Of each choice in a group its place among `Tables.grouped`, and that of its group."""

    def __post_init__(self) -> None:
        self.totals = (self.costs.first + self.heads[0]).min(axis=1)
        tables = self.tables
        self._choices_of = _slices(tables.first_of, len(tables.choices))
        groups = _slices(tables.group_starts, len(tables.grouped))
        numbers = enumerate(zip(tables.grouped.tolist(), tables.group_of.tolist(), strict=True))
        self._mates = {c: (own, groups[group]) for own, (c, group) in numbers}

    def starts(self, b: int = 0) -> Floats:
        """(d,): cost of the cheapest route that begins on each device."""
        found: Floats = self.costs.first[b] + self.heads[0, b]
        return found

    def pieces(self, b: int = 0, device: int | None = None) -> Pieces:
        """The cheapest route for weighting `b`, or of those that begin on `device`. Ties: go on
        rather than begin another, then the earlier choice."""
        n = self.tables.places
        found: list[tuple[int, int]] = []
        place = 0
        if device is None:
            device = int(self.starts(b).argmin())
        while place < n:
            best = int(self._entered(b, place, device).argmin())
            c = int(self.tables.first_of[device]) + best
            found.append((place, c))
            place += 1
            while place < n:
                place += self._stays(b, place, c)
                if place == n:
                    break
                mate = self._mate(b, place, c)
                if mate is None:
                    device = self._next_device(b, place, device)
                    break
                c = mate
                found.append((place, c))
                place += 1
        return tuple(found)

    def _stays(self, b: int, place: int, c: int) -> int:
        """How many segments from `place` on go on in a choice."""
        on = self.costs.segment[place:, b, c] + self.tails[place + 1 :, b, c]
        is_on = on <= self.tails[place:-1, b, c]
        first = int(is_on.argmin())
        return len(is_on) if is_on[first] else first

    def _entered(self, b: int, place: int, device: int) -> Floats:
        inside = self._choices_of[device]
        rest: Floats = self.costs.segment[place, b, inside] + self.tails[place + 1, b, inside]
        return self.costs.begin[place, b, inside] + rest

    def _next_device(self, b: int, place: int, device: int) -> int:
        if place == self.tables.places:
            return device
        return int((self.costs.send[place, b, device] + self.heads[place, b]).argmin())

    def _mate(self, b: int, place: int, c: int) -> int | None:
        """Which choice of its group goes on, if that is better than to leave the group."""
        known = self._mates.get(c)
        if known is None:
            return None
        own, inside = known
        device = int(self.tables.device_of[c])
        out = self.costs.leave[place, b, c] + self.exits[place, b, device]
        mates = self.tables.grouped[inside]
        entered = self.costs.inner_begin[place, b, inside] + (
            self.costs.segment[place, b, mates] + self.tails[place + 1, b, mates]
        )
        best = int(entered.argmin())
        is_better = entered[best] + self.costs.inner_leave[place, b, own] < out
        return int(mates[best]) if is_better else None

    def route(self, b: int = 0) -> Route:
        """The cheapest route for weighting `b`."""
        return as_route(self.tables, self.pieces(b))


def _slices(starts: Ints, stop: int) -> list[slice]:
    return [slice(*ends) for ends in pairwise((*starts.tolist(), stop))]


def as_route(tables: Tables, pieces: Sequence[tuple[int, int]]) -> Route:
    """A route of (first segment, choice) pairs, in order."""
    steps: list[Step] = []
    forks = tables.forks
    for (start, c), (stop, _) in pairwise((*pieces, (tables.places, -1))):
        choice = tables.choices[c]
        if choice.configuration is None:
            inside = (forks.choices == c) & (forks.places >= start) & (forks.places < stop)
            found = [forks.steps[e] for e in np.flatnonzero(inside)]
            steps += sorted(found, key=lambda step: step.segments.start)
            continue
        steps.append(
            PlacedSubgraph(
                segments=SegmentRange(start=start, stop=stop),
                device=choice.device,
                configuration=choice.configuration,
            )
        )
    return Route(steps=tuple(steps))


def cheapest(tables: Tables, weights: Weights) -> Paths:
    """The cheapest routes for each weighting. Exact, but for sums of floats."""
    return sweep(tables, weigh(tables, weights))


def sweep(tables: Tables, costs: Weighed) -> Paths:
    """The dynamic programme over costs that were weighed."""
    n, batch = tables.places, costs.segment.shape[1]
    device_of, first_of = tables.device_of, tables.first_of
    tails = np.empty((n + 1, batch, len(device_of)))
    heads = np.empty((n, batch, len(first_of)))
    exits = np.empty((n + 1, batch, len(first_of)))
    exits[n] = costs.last
    tails[n] = costs.last[:, device_of]
    grouped, is_grouped = tables.grouped, len(tables.grouped) > 0
    is_alone = len(first_of) == 1
    # All in arrays that are there: a step is so short that making them takes as long again.
    on, some, sent = np.empty_like(tails[n]), np.empty_like(tails[n]), np.empty_like(costs.send[0])
    add, minimum, reduceat = np.add, np.minimum, np.minimum.reduceat
    for place in range(n - 1, -1, -1):
        head, out, rest = heads[place], exits[place], tails[place]
        add(costs.segment[place], tails[place + 1], out=on)
        add(costs.begin[place], on, out=some)
        reduceat(some, first_of, axis=1, out=head)
        if is_alone:
            out[:] = head
        else:
            add(costs.send[place], head[:, None, :], out=sent)
            minimum.reduce(sent, axis=2, out=out)
        out.take(device_of, axis=1, out=some, mode="clip")
        add(costs.leave[place], some, out=some)
        minimum(on, some, out=rest)
        if is_grouped:
            entered = reduceat(
                costs.inner_begin[place] + on[:, grouped], tables.group_starts, axis=1
            )
            inside = entered[:, tables.group_of] + costs.inner_leave[place]
            rest[:, grouped] = minimum(rest[:, grouped], inside)
    return Paths(tables=tables, costs=costs, tails=tails, heads=heads, exits=exits)
