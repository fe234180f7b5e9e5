"""Where a model forks into branches that may run at once, such as the modules of Inception.

A fork is a run of nodes that falls into parts between which no value passes: they read what was
computed before, and are read behind. What it gains is bounded by its work without that of its
heaviest branch; what lies before and behind, the node that joins the branches among it, runs as
ever.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edge_agent.model.cost import OperatorCost
from edge_agent.model.cuts import Place, bounded
from edge_agent.model.graph import ModelGraph
from edge_agent.model.resident import unread_bytes, value_sizes, weights_of, working_bytes
from edge_agent.model.values import spec_bytes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Branch, Fork, SharedInput
from edge_agent.tensors import TensorName, TensorSpec, ValueSpecs

_MIN_GAIN_SHARE = 0.01
"""A fork that gains less of the model's work is not worth two cuts. (Of the nine modules of
GoogLeNet seven gain 1.2 to 2 %, all together 23 %.)"""
_MIN_BRANCH_SHARE = 0.005
"""A branch has at least this share of the model's work: lighter ones go along with others."""
_MAX_STEPS = 1 << 17
"""Nodes looked at from all places where a fork may start."""
_MIN_SPAN = 64
"""Nodes looked at from one place, however many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedNodes:
    """A fork before it is known which segments it consists of."""

    start: int
    stop: int
    """Nodes [start, stop) of the topological order."""
    branches: tuple[tuple[int, ...], ...]
    """Positions of the nodes of each, ascending; together all nodes of the fork."""
    gain: int
    """Its work without that of its heaviest branch, by `OperatorCost.work`."""


def find_forks(
    graph: ModelGraph,
    found: Sequence[Place],
    held: Sequence[bool],
    costs: Sequence[OperatorCost],
    specs: ValueSpecs,
    max_cuts: int,
) -> tuple[ForkedNodes, ...]:
    """Forks of `graph` that do not overlap and together gain the most, in order.

    A fork starts and ends where the model may be divided (`found`) and no fusion is parted
    (`held`), or at the ends of the model; what its branches read and give are tensors of known
    size. If the forks need more than `max_cuts` cuts, those that gain least are left out.
    """
    work = [cost.work for cost in costs]
    least_branch = max(1, int(_MIN_BRANCH_SHARE * sum(work)))
    least_gain = max(1, int(_MIN_GAIN_SHARE * sum(work)))
    n = len(work)
    edges = {0, n} | {p.position for p in found if p.blocked_because is None}
    edges = {at for at in edges if at in (0, n) or not held[at]}
    if any(graph.is_constant(name) for name in graph.outputs):
        # They belong to what starts at 0, and so to no branch.
        edges.discard(0)
    search = _Search(graph, specs, work, sorted(edges), least_branch, least_gain)
    chosen: list[ForkedNodes] = []
    used: set[int] = set()
    best = _disjoint(search.candidates(), n)
    for start, stop, _ in sorted(best, key=lambda found: (-found[2], found)):
        needed = {start, stop} - {0, n}
        fork = search.forked(start, stop) if len(used | needed) <= max_cuts else None
        if fork is not None:
            used |= needed
            chosen.append(fork)
    return tuple(sorted(chosen, key=lambda fork: fork.start))


class _Search:
    """What is asked of each run of nodes that may be a fork."""

    def __init__(
        self,
        graph: ModelGraph,
        specs: ValueSpecs,
        work: Sequence[int],
        edges: Sequence[int],
        least_branch: int,
        least_gain: int,
    ) -> None:
        self._graph = graph
        self._work = work
        self._summed = list(itertools.accumulate(work, initial=0))
        self._edges = edges
        self._is_edge = [False] * (len(work) + 1)
        for at in edges:
            self._is_edge[at] = True
        self._least_branch = least_branch
        self._least_gain = least_gain
        self._sizes = value_sizes(graph, specs.tensors)
        self._sources = [
            tuple({s for name in names if (s := graph.producers.get(name, -1)) >= 0})
            for names in graph.reads
        ]
        self._staying = _staying(graph, specs)
        self._staying_read = [
            min((graph.producers[n] for n in names if n in self._staying), default=len(work))
            for names in graph.reads
        ]
        """For each node the earliest producer of what it reads that cannot leave the device."""
        self._staying_made = _last_made(graph, self._staying)
        """For each place the last node before it that gives such a value to what is behind."""

    def candidates(self) -> Iterator[tuple[int, int, int]]:
        """Runs of nodes that are forks: (start, stop, gain)."""
        starts = self._starts()
        span = max(_MIN_SPAN, _MAX_STEPS // max(1, len(starts)))
        reach = self._reach()
        for start in starts:
            limit = min(len(self._work), start + span)
            if self._summed[limit] - self._summed[start] >= self._least_gain + self._least_branch:
                yield from self._from(start, limit, reach[start])

    def _starts(self) -> list[int]:
        """The places behind values that several nodes read: farther in front, a fork would gain
        no more. And those before nodes that join, because another fork may end there, and those
        behind nodes that deal in what cannot be sent."""
        graph = self._graph
        found = {0}
        for position, node in enumerate(graph.nodes):
            readers = {r for name in node.output for r in graph.users.get(name, ())}
            if len(readers) > 1:
                found.add(position + 1)
            if len(self._sources[position]) > 1:
                found.add(position)
            if not self._staying.isdisjoint((*graph.reads[position], *node.output)):
                found.add(position + 1)
        edges = iter(self._edges)
        edge = next(edges)
        starts: dict[int, None] = {}
        for at in sorted(found):
            while edge < at:
                edge = next(edges)
            starts[edge] = None
        return list(starts)

    def _reach(self) -> list[int]:
        """For each place, up to where values from before it are read."""
        graph = self._graph
        ends = [0] * (len(graph.nodes) + 1)
        for name, readers in graph.users.items():
            made = graph.producers[name] + 1
            ends[made] = max(ends[made], readers[-1] + 1)
        return list(itertools.accumulate(ends, max))

    def _from(self, start: int, limit: int, reach: int) -> Iterator[tuple[int, int, int]]:
        """Where a fork that starts at `start` may end, before each place where it gains less."""
        best, first, last = 0, 0, 0
        for stop, gain, parts in self._gains(start, limit):
            if gain < best:
                yield from ((start, end, best) for end in {first, last})
                best = 0
            is_end = self._is_edge[stop] and self._staying_made[stop] < start
            if is_end and gain >= max(best, self._least_gain):
                if gain > best:
                    best, first = gain, stop
                last = stop
            if parts == 1 and stop >= reach:
                break
        if best:
            yield from ((start, end, best) for end in {first, last})

    def _gains(self, start: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """(stop, work without that of the heaviest part, number of parts) of nodes [start, stop)
        for ascending stops."""
        parent: list[int] = []
        load: list[int] = []
        heaviest = parts = 0
        for at in range(start, limit):
            if self._staying_read[at] < start:
                return
            own, total = at - start, self._work[at]
            parent.append(own)
            parts += 1
            for source in self._sources[at]:
                root = _root(parent, source - start) if source >= start else own
                if root != own:
                    parent[root] = own
                    parts -= 1
                    total += load[root]
            load.append(total)
            heaviest = max(heaviest, total)
            yield at + 1, self._summed[at + 1] - self._summed[start] - heaviest, parts

    def forked(self, start: int, stop: int) -> ForkedNodes | None:
        """Nodes [start, stop) in branches; None if too little is gained."""
        parts = list(self._parts(start, stop))
        branches = [part for part in parts if part.load >= self._least_branch]
        bundle: list[_Part] = []
        # What is left in the end is small: each goes where its input is needed in any case.
        for part in sorted(parts, key=lambda part: (-part.load, part.nodes)):
            if part.load < self._least_branch:
                bundle.append(part)
                if sum(light.load for light in bundle) >= self._least_branch:
                    branches.append(_joined(bundle))
                    bundle = []
        if len(branches) < 2:
            return None
        for part in bundle:
            shared = [sum(self._sizes[n] for n in part.inputs & b.inputs) for b in branches]
            index = min(range(len(branches)), key=lambda i: (-shared[i], branches[i].load, i))
            branches[index] = _joined((branches[index], part))
        loads = [branch.load for branch in branches]
        gain = sum(loads) - max(loads)
        if gain < self._least_gain:
            return None
        nodes = tuple(sorted(branch.nodes for branch in branches))
        return ForkedNodes(start=start, stop=stop, branches=nodes, gain=gain)

    def _parts(self, start: int, stop: int) -> Iterator[_Part]:
        """The parts of nodes [start, stop) between which no value passes."""
        parent = list(range(stop - start))
        for at in range(start, stop):
            for source in self._sources[at]:
                if source >= start:
                    parent[_root(parent, source - start)] = at - start
        parts: dict[int, list[int]] = defaultdict(list)
        for at in range(start, stop):
            parts[_root(parent, at - start)].append(at)
        for nodes in parts.values():
            yield _Part(
                nodes=tuple(nodes),
                load=sum(self._work[at] for at in nodes),
                inputs=frozenset(_inputs(self._graph, nodes, start)),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Nodes that go along with each other."""

    nodes: tuple[int, ...]
    load: int
    inputs: frozenset[str]


def _joined(parts: Sequence[_Part]) -> _Part:
    return _Part(
        nodes=tuple(sorted(at for part in parts for at in part.nodes)),
        load=sum(part.load for part in parts),
        inputs=frozenset().union(*(part.inputs for part in parts)),
    )


def _root(parent: list[int], at: int) -> int:
    while parent[at] != at:
        parent[at] = at = parent[parent[at]]
    return at


def _staying(graph: ModelGraph, specs: ValueSpecs) -> set[str]:
    """The values that are no tensors, or of no known size: they cannot be sent."""
    return {
        name
        for name in graph.producers
        if name in specs.others or spec_bytes(specs.tensors.get(TensorName(name))) is None
    }


def _last_made(graph: ModelGraph, names: set[str]) -> list[int]:
    """For each place, the last node before it that gives one of `names` that is read behind it or
    is an output of the model; -1 if there is none."""
    n, outputs = len(graph.nodes), frozenset(graph.outputs)
    made: list[list[int]] = [[] for _ in range(n)]
    for name in names:
        if graph.producers[name] >= 0:
            until = n if name in outputs else graph.users.get(name, (-1,))[-1]
            made[graph.producers[name]].append(until)
    found, alive = [-1], list[tuple[int, int]]()
    for place in range(1, n + 1):
        for until in made[place - 1]:
            heapq.heappush(alive, (1 - place, until))
        while alive and alive[0][1] < place:
            heapq.heappop(alive)
        found.append(-alive[0][0] if alive else -1)
    return found


def _disjoint(candidates: Iterator[tuple[int, int, int]], n: int) -> list[tuple[int, int, int]]:
    """Those of the candidates that do not overlap and together gain the most; of equal ones, those
    that hold more nodes, so that no branch is left before its end."""
    ending: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for found in candidates:
        ending[found[1]].append(found)
    best: list[tuple[int, int]] = [(0, 0)]
    taken: list[tuple[int, int, int] | None] = [None]
    for stop in range(1, n + 1):
        best.append(best[-1])
        taken.append(None)
        for start, _, gain in sorted(ending[stop]):
            value = best[start][0] + gain, best[start][1] + stop - start
            if value > best[stop]:
                best[stop], taken[stop] = value, (start, stop, gain)
    chosen, at = [], n
    while at:
        last = taken[at]
        if last is not None:
            chosen.append(last)
        at = at - 1 if last is None else last[0]
    return chosen[::-1]


def _inputs(graph: ModelGraph, nodes: Sequence[int], start: int) -> list[str]:
    """What `nodes` read of what was there before `start`, each once."""
    read = dict.fromkeys(name for at in nodes for name in graph.reads[at])
    return [name for name in read if graph.producers.get(name, start) < start]


def describe_fork(
    graph: ModelGraph,
    forked: ForkedNodes,
    bounds: Sequence[int],
    costs: Sequence[OperatorCost],
    specs: Mapping[TensorName, TensorSpec],
    sizes: Mapping[str, int],
) -> Fork:
    """The fork over the segments between `bounds`, among which are its start and its stop; `sizes`
    as of `value_sizes`."""
    first, behind = bounds.index(forked.start), bounds.index(forked.stop)
    inside = list(itertools.pairwise(bounds[first : behind + 1]))
    summed = [sum(cost.work for cost in costs[start:stop]) for start, stop in inside]
    outputs = frozenset(graph.outputs)

    def branch(nodes: tuple[int, ...]) -> Branch:
        given = [
            name
            for at in nodes
            for name in graph.nodes[at].output
            if name in outputs or graph.users.get(name, (-1,))[-1] >= forked.stop
        ]
        own = [sum(costs[at].work for at in nodes if start <= at < stop) for start, stop in inside]
        weights = weights_of(graph, nodes, specs)
        return Branch(
            nodes=nodes,
            input_bytes=bounded(sum(sizes[n] for n in _inputs(graph, nodes, forked.start))),
            output_bytes=bounded(sum(sizes[name] for name in given)),
            work=tuple(mine / all_work for mine, all_work in zip(own, summed, strict=True)),
            weight_bytes=sum(weights.values()),
            unread_bytes=unread_bytes(graph, weights),
            working_bytes=working_bytes(graph, nodes, sizes),
        )

    return Fork(
        segments=SegmentRange(start=first, stop=behind),
        branches=tuple(branch(nodes) for nodes in forked.branches),
        shared=_shared(graph, forked, sizes),
    )


def _shared(
    graph: ModelGraph, forked: ForkedNodes, sizes: Mapping[str, int]
) -> tuple[SharedInput, ...]:
    readers: dict[str, list[int]] = {}
    for number, nodes in enumerate(forked.branches):
        for name in _inputs(graph, nodes, forked.start):
            readers.setdefault(name, []).append(number)
    summed: dict[tuple[int, ...], int] = {}
    for name, which in readers.items():
        if len(which) > 1 and sizes[name]:
            summed[tuple(which)] = summed.get(tuple(which), 0) + sizes[name]
    return tuple(
        SharedInput(size_bytes=bounded(size), branches=which)
        for which, size in sorted(summed.items())
    )
