"""The best plan of middle problems, exactly and without enumerating routes.

Requests flow through a graph from the owner to the owner. Its nodes are (boundary, device) on
arrival, before leaving, before and after forks, and (boundary, choice) at the beginning and the end
of subgraphs; its arcs are transfers, borders, segments or whole runs, and forks. A
route is a path; a mixture is a flow, which falls into paths. Latency, energy and bytes of the
paths of a flow cannot be bounded one by one, so bounds on them are for single routes only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import numpy.typing as npt

from edge_agent.distributions import PlacedSubgraph, Route, Step
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.subgraphs import SegmentRange
from tests.planning.oracle.brute_force import MEASURES, Optimum
from tests.planning.oracle.legality import budgets
from tests.planning.oracle.mixtures import LEAST_SHARE, Program
from tests.planning.oracle.prices import Item, items_of, pool_of, price
from tests.planning.oracle.routes_made import joined
from tests.planning.oracle.tables import BUSY, LATENCY, Choice, Floats, Tables

Node = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """Something that happens between two nodes."""

    source: Node
    target: Node
    costs: Floats
    step: Step | None = None


class Graph:
    """All routes of a problem as paths; with `runs`, each subgraph is one arc, else a chain of
    segments."""

    def __init__(self, problem: Problem, target: Target, *, runs: bool) -> None:
        self.problem = problem
        self.tables = Tables(problem, target)
        self.runs = runs
        self.start: Node = "start"
        self.end: Node = "end"
        found = [arc for arc in self._arcs() if np.isfinite(arc.costs[LATENCY])]
        self.arcs = found
        self.costs = np.array([arc.costs for arc in found])
        self.items = [{} if a.step is None else items_of(problem, a.step) for a in found]

    def _arcs(self) -> Iterator[Arc]:
        tables, count = self.tables, self.tables.count
        for boundary in range(count + 1):
            yield from self._transfers(boundary)
            for choice in tables.choices:
                yield from self._borders(boundary, choice)
        for choice in tables.choices:
            yield from self._subgraphs(choice)
        for choice in tables.wholes:
            parts = [tables.segment(choice, i) for i in range(count)]
            yield Arc(
                source=("arrived", 0, choice.device),
                target=("leaving", count, choice.device),
                costs=np.sum([tables.overhead(choice), *parts], axis=0),
                step=_subgraph(choice, 0, count),
            )
        if self.problem.with_branches:
            for fork in range(len(self.problem.summary.forks)):
                yield from self._fork(fork)

    def _transfers(self, boundary: int) -> Iterator[Arc]:
        devices, owner = [d.id for d in self.problem.devices], self.problem.owner
        move = self.tables.move
        if boundary == 0:
            for device in devices:
                arrived = ("arrived", 0, device)
                yield Arc(source=self.start, target=arrived, costs=move(0, owner, device))
        elif boundary == self.tables.count:
            for device in devices:
                leaving = ("leaving", boundary, device)
                yield Arc(source=leaving, target=self.end, costs=move(boundary, device, owner))
        else:
            for source, target in permutations(devices, 2):
                yield Arc(
                    source=("leaving", boundary, source),
                    target=("arrived", boundary, target),
                    costs=move(boundary, source, target),
                )

    def _borders(self, boundary: int, choice: Choice) -> Iterator[Arc]:
        tables, device = self.tables, choice.device
        begin, end = ("begin", boundary, id(choice)), ("end", boundary, id(choice))
        border, overhead = tables.border(choice, boundary), tables.overhead(choice)
        for source in ("arrived", "joined"):
            yield Arc(source=(source, boundary, device), target=begin, costs=overhead + border)
        for target in ("leaving", "forked"):
            yield Arc(source=end, target=(target, boundary, device), costs=border)
        if not self.runs:
            yield Arc(source=end, target=begin, costs=np.zeros(tables.width))
        for other in tables.choices:
            # Not to itself: what follows in the same choice belongs to the same subgraph.
            if other is choice or other.device != device or boundary in (0, tables.count):
                continue
            yield Arc(
                source=end,
                target=("begin", boundary, id(other)),
                costs=tables.border(choice, boundary, other)
                + tables.border(other, boundary, choice)
                + tables.overhead(other),
            )

    def _fork(self, fork: int) -> Iterator[Arc]:
        inside = self.problem.summary.forks[fork].segments
        nothing = np.zeros(self.tables.width)
        for device in self.tables.devices:
            before = ("forked", inside.start, device)
            after = ("joined", inside.stop, device)
            yield Arc(source=("arrived", inside.start, device), target=before, costs=nothing)
            yield Arc(source=("joined", inside.start, device), target=before, costs=nothing)
            yield Arc(source=after, target=("leaving", inside.stop, device), costs=nothing)
        for step, costs, _ in self.tables.placed_forks(fork):
            yield Arc(
                source=("forked", inside.start, step.home),
                target=("joined", inside.stop, step.home),
                costs=costs,
                step=step,
            )

    def _subgraphs(self, choice: Choice) -> Iterator[Arc]:
        count = self.tables.count
        for start in range(count):
            costs = np.zeros(self.tables.width)
            for stop in range(start + 1, count + 1 if self.runs else start + 2):
                costs = costs + self.tables.segment(choice, stop - 1)
                yield Arc(
                    source=("begin", start, id(choice)),
                    target=("end", stop, id(choice)),
                    costs=costs,
                    step=_subgraph(choice, start, stop),
                )

    def program(self, costs: Floats, *, is_integer: bool) -> Program:
        """One unit of flow from the start to the end, at the given costs of the arcs."""
        program = Program()
        program.add_columns(costs, is_integer=is_integer)
        balance: dict[Node, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        for index, arc in enumerate(self.arcs):
            for node, sign in ((arc.source, 1.0), (arc.target, -1.0)):
                balance[node][0].append(index)
                balance[node][1].append(sign)
        for node in {self.start, self.end} - set(balance):
            balance[node] = ([], [])
        for node, (arcs, signs) in balance.items():
            supply = float(node == self.start) - float(node == self.end)
            program.add_row(arcs, signs, low=supply, high=supply)
        return program

    def add_capacities(self, program: Program, limit_s: float) -> None:
        """No resource is busy for more than `limit_s` per request."""
        for resource in range(BUSY, self.tables.width):
            used = np.flatnonzero(self.costs[:, resource])
            if len(used):
                program.add_row(used, self.costs[used, resource] / limit_s, high=1.0)

    def add_residency(self, program: Program) -> None:
        """What any part of the flow uses is in memory once, and fits."""
        users: dict[Item, tuple[list[int], float]] = {}
        for index, items in enumerate(self.items):
            for item, size in items.items():
                users.setdefault(item, ([], size))[0].append(index)
        for pool, budget in zip(self.tables.pools, self.tables.budgets, strict=True):
            inside = [(arcs, size) for item, (arcs, size) in users.items() if item[0] == pool]
            if sum(size for _, size in inside) <= budget:
                continue
            columns = []
            for users_of_it, _ in inside:
                column = program.add_columns([0.0], is_integer=True)
                ones = np.ones(len(users_of_it))
                program.add_row([*users_of_it, column], [*ones, -1.0], high=0.0)
                columns.append(column)
            whole = float(budget) or 1.0
            program.add_row(columns, [s / whole for _, s in inside], high=float(budget > 0))

    def add_memory_of_one(self, program: Program, peak: int | None, scale: float) -> None:
        """A single route fits; `peak` is a variable of at least what any memory holds."""
        for pool, budget in zip(self.tables.pools, self.tables.budgets, strict=True):
            sizes = np.array(
                [sum(s for item, s in items.items() if item[0] == pool) for items in self.items]
            )
            used = np.flatnonzero(sizes)
            if not len(used):
                continue
            whole = float(budget) or 1.0
            program.add_row(used, sizes[used] / whole, high=float(budget > 0))
            if peak is not None:
                program.add_row([*used, peak], [*(sizes[used] / scale), -1.0], high=0.0)

    def routes(self, flow: Floats) -> tuple[Route, ...]:
        """The paths that a flow falls into, with their shares."""
        left = {i: float(f) for i, f in enumerate(flow[: len(self.arcs)]) if f > LEAST_SHARE}
        leaving: dict[Node, list[int]] = defaultdict(list)
        for index in left:
            leaving[self.arcs[index].source].append(index)
        found: dict[tuple[Step, ...], float] = {}
        while True:
            path, at = [], self.start
            while at != self.end:
                best = max(leaving[at], key=lambda i: left[i], default=None)
                if best is None or left[best] <= LEAST_SHARE:
                    break
                path.append(best)
                at = self.arcs[best].target
            if at != self.end:
                break
            share = min(left[i] for i in path)
            for index in path:
                left[index] -= share
            steps = joined([s for i in path if (s := self.arcs[i].step) is not None])
            found[steps] = found.get(steps, 0.0) + share
        total = sum(found.values())
        return tuple(Route(steps=steps, share=share / total) for steps, share in found.items())


def _subgraph(choice: Choice, start: int, stop: int) -> PlacedSubgraph:
    return PlacedSubgraph(
        segments=SegmentRange(start=start, stop=stop),
        device=choice.device,
        configuration=choice.times.configuration,
    )


def best_route(problem: Problem, target: Target) -> Optimum | None:
    """The best single route, with all bounds and budgets; None if there is none."""
    needs_memory = target is Target.MEMORY or _may_bind(problem, is_mixed=False)
    graph = Graph(problem, target, runs=needs_memory)
    if not graph.arcs:
        return None
    rate = problem.bound(Target.THROUGHPUT)
    costs = np.zeros(len(graph.arcs))
    if target in MEASURES:
        costs = graph.costs[:, MEASURES[target]]
    positive: npt.NDArray[np.float64] = costs[costs > 0]
    # The shortest path is one without being told so.
    is_path = target in MEASURES and not needs_memory and not problem.bounds
    scaled = costs / positive.mean() if len(positive) else costs
    program = graph.program(scaled, is_integer=not is_path)
    scale = max(sum(items.values()) for items in graph.items) or 1.0
    extra = None if target in MEASURES else program.add_columns([1.0])
    if needs_memory:
        graph.add_memory_of_one(program, extra if target is Target.MEMORY else None, scale)
    if target is Target.THROUGHPUT:
        assert extra is not None
        _add_busiest(graph, program, extra, float(graph.costs[:, BUSY:].max()) or 1.0)
    if rate:
        graph.add_capacities(program, 1.0 / rate)
    for kind, column in MEASURES.items():
        limit = problem.bound(kind)
        if limit is not None:
            program.add_row(
                range(len(graph.arcs)),
                graph.costs[:, column] / (limit or 1.0),
                high=float(limit > 0),
            )
    solution = program.solve()
    if solution is None:
        return None
    routes = graph.routes(solution)
    return Optimum(value=price(problem, routes).value(target), routes=routes)


def most_throughput(problem: Problem) -> Optimum | None:
    """The best mixture of routes; None if memory lets none through."""
    fits = all(problem.bound(kind) is None for kind in MEASURES) and problem.most_routes is None
    assert fits, "paths of a flow are not bounded one by one"
    graph = Graph(problem, Target.THROUGHPUT, runs=_may_bind(problem, is_mixed=True))
    if not graph.arcs:
        return None
    program = graph.program(np.zeros(len(graph.arcs)), is_integer=False)
    busiest = program.add_columns([1.0])
    _add_busiest(graph, program, busiest, float(np.median(_positive(graph.costs[:, BUSY:]))))
    if graph.runs:
        graph.add_residency(program)
    solution = program.solve()
    if solution is None:
        return None
    routes = graph.routes(solution)
    return Optimum(value=price(problem, routes).throughput_per_s, routes=routes)


def least_mean(problem: Problem, target: Target, rate: float) -> Optimum | None:
    """The mixture of least mean energy or bytes at which `rate` requests per second go through."""
    assert target in (Target.ENERGY, Target.BYTES)
    graph = Graph(problem, Target.THROUGHPUT, runs=_may_bind(problem, is_mixed=True))
    if not graph.arcs:
        return None
    costs = graph.costs[:, MEASURES[target]]
    program = graph.program(costs / float(np.median(_positive(costs))), is_integer=False)
    graph.add_capacities(program, 1.0 / rate)
    if graph.runs:
        graph.add_residency(program)
    solution = program.solve()
    if solution is None:
        return None
    routes = graph.routes(solution)
    return Optimum(value=price(problem, routes).value(target), routes=routes)


def _positive(costs: Floats) -> Floats:
    found = costs[costs > 0]
    return found if len(found) else np.ones(1)


def _add_busiest(graph: Graph, program: Program, busiest: int, scale: float) -> None:
    for resource in range(BUSY, graph.tables.width):
        used = np.flatnonzero(graph.costs[:, resource])
        if len(used):
            column = graph.costs[used, resource] / scale
            program.add_row([*used, busiest], [*column, -1.0], high=0.0)


def _may_bind(problem: Problem, *, is_mixed: bool) -> bool:
    """Whether there may be too little memory, counted generously."""
    summary, limits = problem.summary, budgets(problem)
    count = len(summary.segments)
    forks = [branch for fork in summary.forks for branch in fork.branches]
    weights = sum(s.constant_bytes for s in summary.segments)
    weights += sum(b.constant_bytes for b in forks)
    arenas = sum(s.working_bytes for s in summary.segments) + sum(b.working_bytes for b in forks)
    for device in problem.devices:
        most = max((t.configuration.instances for t in device.times), default=1)
        need = float(weights + arenas * most)
        if is_mixed:
            # Each configuration with its own weights, and an arena for every run.
            need = len(device.times) * (weights + count * arenas * most)
        for unit in device.units:
            if device.times and need > limits[pool_of(problem, device.id, unit.id)]:
                return True
    return False
