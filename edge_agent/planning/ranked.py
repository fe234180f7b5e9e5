"""The cheapest routes in order, and the first of equal ones that keeps to loads.

A search by the least cost in all (A*; Hart, Nilsson and Raphael, IEEE Transactions on Systems
Science and Cybernetics 4(2), 1968). What is still to come is known exactly from the sweep, so that
each step is weighed by its extra cost over the cheapest one: only what the wanted routes consist of
is looked at. Of `k` routes, no more than `k` go through the same (boundary, choice) in the same
way, so that each is left at most `k` times, however many routes cost the same.

Routes of equal costs are ordered by the number of subgraphs, then by their choices, then by their
first segments. The same tail behind two partial routes keeps their order. Costs should be whole
numbers: sums of other floats that should be equal may not be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from edge_agent.planning.shortest import Paths, Pieces, Weights, cheapest
from edge_agent.planning.tables import Floats, Tables


def ranked(paths: Paths, count: int) -> list[Pieces]:
    """The `count` cheapest routes for the first weighting, the cheapest first; fewer if there are
    no more."""
    steps = _Steps.of(paths)
    if steps is None:
        return []
    search = _Search(steps=steps, most_extra=steps.enough_for(count), most=count)
    return search.run(count)


def first_within(paths: Paths, most: Floats, cost: float, looks: int) -> Pieces | None:
    """The first route, in this order, that costs at most `cost` for the first weighting and keeps
    the load of each resource to `most` (resources,), on one device.

    None if there is none, or none was found within so many `looks` at partial routes.
    """
    steps = _Steps.of(paths)
    if steps is None:
        return None
    loads = _Loads.of(paths.tables, most)
    extra = cost - float(paths.totals[0])
    search = _Search(steps=steps, most_extra=extra, most=1, looks=looks, loads=loads)
    return next(iter(search.run(1)), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """What each step costs more than the cheapest one from there."""

    extra: Floats
    """(n, c, c): from having run the segments before p, the last of them in a choice, to running
    p in another one; the same: it goes on. Nothing at the first."""
    first: Floats
    """(c,): beginning in a choice."""
    parts: Floats
    """(n + 1, c): fewest subgraphs that the cheapest rest begins."""

    @classmethod
    def of(cls, paths: Paths) -> _Steps | None:
        """None if there is no route."""
        if not np.isfinite(paths.totals[0]):
            return None
        costs, device_of = paths.costs, paths.tables.device_of
        count = len(device_of)
        following = costs.segment[:, 0] + paths.tails[1:, 0]
        extra = _changes(paths) + following[:, None, :]
        every = np.arange(count)
        extra[:, every, every] = following
        least = extra.min(axis=2, keepdims=True)
        extra -= np.where(np.isfinite(least), least, 0.0)
        first = costs.first[0, device_of] + costs.begin[0, 0] + following[0]
        parts = np.zeros((len(extra) + 1, count))
        begun = 1.0 - np.eye(count)
        for place in range(len(extra) - 1, 0, -1):
            steps = np.where(extra[place] == 0.0, begun + parts[place + 1], np.inf)
            parts[place] = steps.min(axis=1)
        return cls(extra=extra, first=first - first.min(), parts=parts)

    def enough_for(self, count: int) -> float:
        """An extra cost within which there are `count` routes; infinity if that is not sure.

        Each route that leaves a cheapest one once, to follow the cheapest ones from there, is
        another one.
        """
        choice = int(self.first.argmin())
        off = [np.delete(self.first, choice)]
        best = self.extra.argmin(axis=2).tolist()
        path = [choice]
        for place in range(1, len(self.extra)):
            choice = best[place][choice]
            path.append(choice)
        places = np.arange(1, len(path))
        rows = self.extra[places, path[:-1]]
        rows[places - 1, path[1:]] = np.inf
        off.append(rows.ravel())
        extras = np.sort(np.concatenate((np.zeros(1), *off)))
        return float(extras[count - 1]) if count <= len(extras) else np.inf


def _changes(paths: Paths) -> Floats:
    """(n, c, c): ending a choice before p and beginning another one."""
    tables, costs = paths.tables, paths.costs
    devices = tables.device_of
    found: Floats = costs.leave[:, 0, :, None] + costs.begin[:, 0, None, :]
    if len(tables.devices) > 1:
        found += costs.send[:, 0][:, devices][:, :, devices]
    for group in range(len(tables.group_starts)):
        (inside,) = np.nonzero(tables.group_of == group)
        mates = tables.grouped[inside]
        ended, begun = costs.inner_leave[:, 0, inside], costs.inner_begin[:, 0, inside]
        at = (slice(None), mates[:, None], mates[None, :])
        found[at] = np.minimum(found[at], ended[:, :, None] + begun[:, None, :])
    return found


_Load = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Loads:
    """How busy a partial route keeps each resource."""

    tables: Tables
    most: list[float]
    """Per resource."""
    rest: Floats
    """(n + 1, c, resources): the least that is still to come there."""
    group_of: dict[int, int]

    @classmethod
    def of(cls, tables: Tables, most: Floats) -> _Loads:
        assert len(tables.devices) == 1, "nothing is sent"
        units = Weights.none(tables, len(most))
        units.loads[:] = np.eye(len(most))
        paths = cheapest(tables, units)
        groups = zip(tables.grouped.tolist(), tables.group_of.tolist(), strict=True)
        return cls(
            tables=tables,
            most=most.tolist(),
            rest=np.moveaxis(paths.tails, 1, 2),
            group_of=dict(groups),
        )

    def begun(self, choice: int) -> _Load | None:
        """Of the first segment."""
        return self._within((0.0,) * len(self.most), 0, choice, self.tables.overhead[choice])

    def after(self, loads: _Load, place: int, before: int, choice: int) -> _Load | None:
        """With segment `place` run in `choice`; None if that cannot be kept to."""
        if before == choice:
            return self._within(loads, place, choice, 0.0)
        tables = self.tables
        group = self.group_of.get(choice)
        is_inner = group is not None and self.group_of.get(before) == group
        border = (tables.inner if is_inner else tables.border)[place]
        left = list(loads)
        left[tables.resource_of[before]] += border[before] * float(tables.per_round[before])
        return self._within(tuple(left), place, choice, border[choice] + tables.overhead[choice])

    def _within(self, loads: _Load, place: int, choice: int, begun_s: float) -> _Load | None:
        tables = self.tables
        grown = list(loads)
        took_s = float(begun_s + tables.seconds[place, choice])
        grown[tables.resource_of[choice]] += took_s * float(tables.per_round[choice])
        rest = self.rest[place + 1, choice].tolist()
        is_kept = all(a + b <= m for a, b, m in zip(grown, rest, self.most, strict=True))
        return tuple(grown) if is_kept else None


_Partial = tuple[float, float, tuple[int, ...], tuple[int, ...], int, int, _Load]
"""Extra cost and subgraphs in all, by the cheapest rest; choice and first segment of each subgraph;
segments done; subgraphs begun; loads. Compared in this order."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Search:
    steps: _Steps
    most_extra: float
    most: int
    """How often a (boundary, choice) with equal loads may be left."""
    looks: int | None = None
    """Most partial routes to look at; None: any number."""
    loads: _Loads | None = None
    _ways: dict[tuple[int, int], list[tuple[int, float, int]]] = field(default_factory=dict)

    def run(self, count: int) -> list[Pieces]:
        """The first `count` routes, or those that there are."""
        left: Counter[tuple[int, int, _Load]] = Counter()
        places = len(self.steps.extra)
        queue = self._begun()
        found: list[Pieces] = []
        looked = 0
        while queue and len(found) < count and looked != self.looks:
            extra, _, used, starts, done, parts, loads = heappop(queue)
            looked += 1
            choice = used[-1]
            key = (done, choice, loads)
            left[key] += 1
            if left[key] > self.most:
                continue
            if done == places:
                found.append(tuple(zip(starts, used, strict=True)))
                continue
            for following, more, rest in self._onward(done, choice):
                total = extra + more
                if total > self.most_extra:
                    break
                after = loads
                if self.loads is not None:
                    grown = self.loads.after(loads, done, choice, following)
                    if grown is None:
                        continue
                    after = grown
                if following == choice:
                    item = (total, parts + rest, used, starts, done + 1, parts, after)
                else:
                    longer = (*used, following), (*starts, done)
                    item = (total, parts + 1 + rest, *longer, done + 1, parts + 1, after)
                heappush(queue, item)
        return found

    def _begun(self) -> list[_Partial]:
        queue: list[_Partial] = []
        for choice in np.nonzero(self.steps.first <= self.most_extra)[0].tolist():
            extra = float(self.steps.first[choice])
            loads = () if self.loads is None else self.loads.begun(choice)
            if np.isfinite(extra) and loads is not None:
                parts = 1.0 + self.steps.parts[1, choice]
                queue.append((extra, float(parts), (choice,), (0,), 1, 1, loads))
        heapify(queue)
        return queue

    def _onward(self, place: int, choice: int) -> list[tuple[int, float, int]]:
        """(choice, extra cost, fewest subgraphs behind) of what may run a segment, the cheapest
        first."""
        ways = self._ways.get((place, choice))
        if ways is None:
            row = self.steps.extra[place, choice]
            (possible,) = np.nonzero((row <= self.most_extra) & np.isfinite(row))
            rest = self.steps.parts[place + 1]
            ways = [(c, float(row[c]), int(rest[c])) for c in possible.tolist()]
            ways.sort(key=lambda way: way[1])
            self._ways[place, choice] = ways
        return ways
