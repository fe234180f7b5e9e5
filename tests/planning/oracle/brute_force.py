"""The best plan of a small problem for every target: all routes, and the best mixture of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, pairwise

import numpy as np
import numpy.typing as npt

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedFork, PlacedSubgraph, Route, Step
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.subgraphs import SegmentRange
from tests.planning.oracle.legality import TOLERANCE
from tests.planning.oracle.mixtures import Mixture, Residency, cheapest, least_busy, least_peak
from tests.planning.oracle.prices import items_of, used_bytes
from tests.planning.oracle.routes_made import joined
from tests.planning.oracle.tables import BUSY, BYTES, JOULES, LATENCY, Choice, Floats, Tables

MEASURES = {Target.LATENCY: LATENCY, Target.ENERGY: JOULES, Target.BYTES: BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best that there is for a target."""

    value: float
    """The metric; of the throughput requests per second."""
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How an element of a route runs: a segment in a choice, or a fork at once."""

    place: DeviceId
    choice: Choice | None
    fork: PlacedFork | None
    costs: Floats
    """Of it alone, without overhead, borders and transfers."""
    held: Floats
    """Bytes per memory, without the arenas of subgraphs."""
    working_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A segment, or a fork as a whole."""

    segments: SegmentRange
    options: tuple[Option, ...]


@dataclass(slots=True, kw_only=True)
class Family:
    """Routes over the same elements."""

    elements: tuple[Element, ...]
    paths: npt.NDArray[np.intp]
    """(routes, elements): the option of each."""
    costs: Floats
    used: Floats
    """(routes, memories)"""

    def route(self, index: int) -> Route:
        """One of them."""
        steps: list[Step] = []
        for element, at in zip(self.elements, self.paths[index], strict=True):
            option = element.options[at]
            if option.fork is not None:
                steps.append(option.fork)
            else:
                assert option.choice is not None
                steps.append(
                    PlacedSubgraph(
                        segments=element.segments,
                        device=option.place,
                        configuration=option.choice.times.configuration,
                    )
                )
        return Route(steps=joined(steps))


class BruteForce:
    """All routes of a problem that keep to everything but the throughput bound."""

    def __init__(self, problem: Problem, target: Target) -> None:
        self.problem = problem
        self.tables = Tables(problem, target)
        self.families = [f for f in self._families() if len(f.paths)]
        found = self.families
        self.costs = np.concatenate([f.costs for f in found]) if found else np.zeros((0, BUSY))
        self.used = np.concatenate([f.used for f in found]) if found else np.zeros((0, 1))
        self.is_close = False
        """Whether a route is so near a bound that rounding decides whether it keeps to it."""
        self._keep_to_bounds()

    def route(self, index: int, share: float = 1.0) -> Route:
        """One of the routes that `costs` and `used` are of."""
        at = int(self.kept[index])
        for family in self.families:
            if at < len(family.paths):
                return replace(family.route(at), share=share)
            at -= len(family.paths)
        raise IndexError(index)

    def _keep_to_bounds(self) -> None:
        keeps: npt.NDArray[np.bool_] = np.ones(len(self.used), dtype=bool)
        if len(self.used):
            keeps = np.asarray((self.used <= self.tables.budgets).all(axis=1))
        for target, column in MEASURES.items():
            limit = self.problem.bound(target)
            if limit is None:
                continue
            values = self.costs[:, column]
            near = np.abs(values - limit) <= TOLERANCE * limit
            self.is_close |= bool((near & (values != limit)).any())
            if target is not Target.BYTES:
                self.is_close |= bool(near.any() and limit > 0)
            keeps &= values <= limit * (1 + TOLERANCE)
        self.kept = np.flatnonzero(keeps)
        self.costs, self.used = self.costs[keeps], self.used[keeps]

    def _families(self) -> Iterator[Family]:
        tables, summary = self.tables, self.problem.summary
        singles = [self._segment_element(i) for i in range(tables.count)]
        whole = SegmentRange(start=0, stop=tables.count)
        forks = []
        if self.problem.with_branches:
            forks = [
                Element(
                    segments=fork.segments,
                    options=tuple(
                        Option(place=step.home, choice=None, fork=step, costs=costs, held=held)
                        for step, costs, held in tables.placed_forks(i)
                    ),
                )
                for i, fork in enumerate(summary.forks)
            ]
        sets = (combinations(forks, n) for n in range(len(forks) + 1))
        for used in chain.from_iterable(sets):
            inside = {i for e in used for i in range(e.segments.start, e.segments.stop)}
            elements = [*used, *(e for e in singles if e.segments.start not in inside)]
            elements.sort(key=lambda e: e.segments.start)
            if all(e.options for e in elements):
                yield self._grown(tuple(elements))
        if tables.wholes:
            yield self._wholes(whole)

    def _segment_element(self, segment: int) -> Element:
        tables = self.tables
        options = []
        for choice in tables.choices:
            held = np.zeros(len(tables.pools))
            held[choice.pool] = tables.weight_bytes(choice, segment)
            if choice.may_run[segment]:
                options.append(
                    Option(
                        place=choice.device,
                        choice=choice,
                        fork=None,
                        costs=tables.segment(choice, segment),
                        held=held,
                        working_bytes=tables.working_bytes(choice, segment),
                    )
                )
        return Element(
            segments=SegmentRange(start=segment, stop=segment + 1), options=tuple(options)
        )

    def _wholes(self, whole: SegmentRange) -> Family:
        tables = self.tables
        options = []
        for choice in tables.wholes:
            held = np.zeros(len(tables.pools))
            parts = range(tables.count)
            held[choice.pool] = sum(tables.weight_bytes(choice, i) for i in parts)
            options.append(
                Option(
                    place=choice.device,
                    choice=choice,
                    fork=None,
                    costs=np.sum([tables.segment(choice, i) for i in parts], axis=0),
                    held=held,
                    working_bytes=max(tables.working_bytes(choice, i) for i in parts),
                )
            )
        return self._grown((Element(segments=whole, options=tuple(options)),))

    def _grown(self, elements: tuple[Element, ...]) -> Family:
        """All routes over `elements`, one element after the other."""
        tables, owner = self.tables, self.problem.owner
        first = elements[0].options
        costs = np.array([tables.move(0, owner, o.place) + self._begun(o, 0) for o in first])
        used = np.array([o.held for o in first])
        arenas = np.array([o.working_bytes for o in first])
        paths = np.arange(len(first))[:, None]
        for before, element in pairwise(elements):
            kept = self._is_possible(costs, used)
            costs, used, arenas, paths = costs[kept], used[kept], arenas[kept], paths[kept]
            last = paths[:, -1]
            steps = self._steps(before, element)
            size = len(element.options)
            costs = (costs[:, None, :] + steps[last]).reshape(-1, tables.width)
            goes_on = np.array(
                [
                    [a.choice is not None and a.choice is b.choice for b in element.options]
                    for a in before.options
                ]
            )[last]
            closed = used + self._opened(before)[last] * arenas[:, None]
            held = np.array([o.held for o in element.options])
            used = np.where(goes_on[:, :, None], used[:, None, :], closed[:, None, :]) + held
            used = used.reshape(-1, len(tables.pools))
            needs = np.array([o.working_bytes for o in element.options])
            arenas = np.where(goes_on, np.maximum(arenas[:, None], needs), needs).reshape(-1)
            paths = np.column_stack(
                [np.repeat(paths, size, axis=0), np.tile(np.arange(size), len(paths))]
            )
        last = paths[:, -1]
        final = elements[-1]
        costs = (
            costs
            + np.array([tables.move(tables.count, o.place, owner) for o in final.options])[last]
        )
        used = used + self._opened(final)[last] * arenas[:, None]
        kept = self._is_possible(costs, used)
        return Family(elements=elements, paths=paths[kept], costs=costs[kept], used=used[kept])

    def _is_possible(self, costs: Floats, used: Floats) -> npt.NDArray[np.bool_]:
        """What can still become a route that fits into memory."""
        fits = (used <= self.tables.budgets).all(axis=1)
        return np.isfinite(costs[:, LATENCY]) & fits

    def _opened(self, element: Element) -> Floats:
        """(options, memories): 1 where the arena of its subgraph is."""
        found = np.zeros((len(element.options), len(self.tables.pools)))
        for i, option in enumerate(element.options):
            if option.choice is not None:
                found[i, option.choice.pool] = 1.0
        return found

    def _begun(self, option: Option, boundary: int) -> Floats:
        """Of entering it from another device, and of all it does."""
        if option.choice is None:
            return option.costs
        tables = self.tables
        overhead = tables.overhead(option.choice) + tables.border(option.choice, boundary)
        return option.costs + overhead

    def _steps(self, before: Element, after: Element) -> Floats:
        """(options, options, costs): of leaving one, sending, and doing the other."""
        tables, boundary = self.tables, after.segments.start
        leaving = np.array(
            [
                np.zeros(tables.width) if o.choice is None else tables.border(o.choice, boundary)
                for o in before.options
            ]
        )
        entering = np.array([self._begun(o, boundary) for o in after.options])
        devices = [d.id for d in self.problem.devices]
        moving = np.array([[tables.move(boundary, a, b) for b in devices] for a in devices])
        sources = [devices.index(o.place) for o in before.options]
        targets = [devices.index(o.place) for o in after.options]
        found: Floats = (
            leaving[:, None, :] + moving[np.ix_(sources, targets)] + entering[None, :, :]
        )
        for i, one in enumerate(before.options):
            for j, other in enumerate(after.options):
                mine, theirs = one.choice, other.choice
                if mine is None or theirs is None or one.place != other.place:
                    continue
                if mine is theirs:
                    found[i, j] = other.costs
                elif tables.group(mine) is not None and tables.group(mine) == tables.group(theirs):
                    found[i, j] = (
                        tables.border(mine, boundary, theirs)
                        + tables.border(theirs, boundary, mine)
                        + tables.overhead(theirs)
                        + other.costs
                    )
        return found

    @cached_property
    def quickest(self) -> Mixture:
        """The mixture of most throughput."""
        return self._least_busy(np.arange(len(self.costs)))

    @cached_property
    def residency(self) -> Residency:
        """What each route needs in memory, of all routes."""
        names: dict[object, int] = {}
        sizes: list[float] = []
        pools: list[int] = []
        rows: list[list[int]] = []
        for index in range(len(self.costs)):
            row = []
            for step in self.route(index).steps:
                for item, size in items_of(self.problem, step).items():
                    if item not in names:
                        names[item] = len(names)
                        sizes.append(size)
                        pools.append(self.tables.pools.index(str(item[0])))
                    row.append(names[item])
            rows.append(row)
        uses = np.zeros((len(rows), len(names)), dtype=bool)
        for index, row in enumerate(rows):
            uses[index, row] = True
        return Residency(
            uses=uses,
            sizes=np.array(sizes),
            pools=np.array(pools, dtype=np.intp),
            budgets=self.tables.budgets,
        )

    @cached_property
    def binding(self) -> Residency | None:
        """As `residency`; None if all routes together fit."""
        every = self.residency
        most = np.bincount(every.pools, every.sizes, minlength=len(every.budgets))
        return every if (most > every.budgets).any() else None

    def optimum(self, target: Target) -> Optimum | None:
        """The best for a target; None if nothing keeps to everything."""
        if not len(self.costs):
            return None
        rate = self.problem.bound(Target.THROUGHPUT)
        if target is Target.THROUGHPUT:
            return self._most_throughput(rate)
        values = self._values(target)
        if not rate:
            return self._single(int(values.argmin()), values)
        return self._with_rate(target, values, rate)

    def _values(self, target: Target) -> Floats:
        if target is Target.MEMORY:
            return np.asarray(self.used.max(axis=1), dtype=float)
        return np.asarray(self.costs[:, MEASURES[target]])

    def _single(self, index: int, values: Floats) -> Optimum:
        return Optimum(value=float(values[index]), routes=(self.route(index),))

    def _most_throughput(self, rate: float | None) -> Optimum | None:
        best = self.quickest
        if rate is not None:
            self.is_close |= abs(best.value * rate - 1) < 1e-6
            if best.value * rate > 1 + TOLERANCE:
                return None
        value = 1 / best.value if best.value > 0 else float("inf")
        return Optimum(value=value, routes=self._mixed(best))

    def _mixed(self, mixture: Mixture) -> tuple[Route, ...]:
        shares = sorted(mixture.shares.items(), key=lambda item: (-item[1], item[0]))
        return tuple(self.route(index, share) for index, share in shares)

    def _fits(self, mixture: Mixture) -> bool:
        """Whether its routes are in memory together, and no more than there may be."""
        most = self.problem.most_routes
        if most is not None and len(mixture.shares) > most:
            return False
        used = used_bytes(self.problem, [self.route(index) for index in mixture.shares])
        return all(
            size <= self.tables.budgets[self.tables.pools.index(pool)]
            for pool, size in used.items()
        )

    def _least_busy(self, among: npt.NDArray[np.intp]) -> Mixture:
        loads = self.costs[among, BUSY:]
        best = _renamed(least_busy(loads), among)
        if self._fits(best):
            return best
        residency = None if self.binding is None else _part(self.binding, among)
        return _renamed(least_busy(loads, residency, self.problem.most_routes), among)

    def _with_rate(self, target: Target, values: Floats, rate: float) -> Optimum | None:
        """The best at which so many requests per second go through."""
        loads = self.costs[:, BUSY:]
        quickest = self.quickest
        self.is_close |= abs(quickest.value * rate - 1) < 1e-6
        if quickest.value * rate > 1 + TOLERANCE:
            return None
        alone = loads.max(axis=1) * rate <= 1 + TOLERANCE
        self.is_close |= bool((np.abs(loads.max(axis=1) * rate - 1) < 1e-9).any())
        best = int(values.argmin())
        if alone[values == values[best]].any():
            best = int(np.flatnonzero(alone & (values == values[best]))[0])
            return self._single(best, values)
        if self.problem.most_routes == 1:
            kept = np.flatnonzero(alone)
            return self._single(int(kept[values[kept].argmin()]), values)
        if target is Target.LATENCY:
            return self._least_latency(values, rate)
        most = self.problem.most_routes
        if target is Target.MEMORY:
            return self._optimum(least_peak(loads, rate, self.residency, most))
        found = cheapest(values, loads, rate)
        if found is not None and not self._fits(found):
            found = cheapest(values, loads, rate, self.binding, most)
        return self._optimum(found)

    def _optimum(self, found: Mixture | None) -> Optimum | None:
        return None if found is None else Optimum(value=found.value, routes=self._mixed(found))

    def _least_latency(self, values: Floats, rate: float) -> Optimum:
        """The routes up to some latency that are quick enough together, as few as will do."""
        order = np.argsort(values, kind="stable")
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            if self._least_busy(order[:middle]).value * rate <= 1 + TOLERANCE:
                high = middle
            else:
                low = middle + 1
        best = self._least_busy(order[:low])
        return Optimum(value=float(values[order[low - 1]]), routes=self._mixed(best))


def optima(problem: Problem) -> tuple[dict[Target, Optimum | None], bool]:
    """The best for every target, and whether rounding decides about a bound."""
    counts = any(t.configuration.instances > 1 for d in problem.devices for t in d.times)
    one = BruteForce(problem, Target.LATENCY)
    many = BruteForce(problem, Target.THROUGHPUT) if counts else one
    found = {
        target: (many if target is Target.THROUGHPUT else one).optimum(target) for target in Target
    }
    return found, one.is_close or many.is_close


def _renamed(mixture: Mixture, among: Sequence[int] | npt.NDArray[np.intp]) -> Mixture:
    shares = {int(among[index]): share for index, share in mixture.shares.items()}
    return Mixture(value=mixture.value, shares=shares)


def _part(residency: Residency, among: npt.NDArray[np.intp]) -> Residency:
    return replace(residency, uses=residency.uses[among])
