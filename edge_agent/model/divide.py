"""Where a model is worth dividing, and why it is not divided where it is not."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_agent.errors import ModelRefused
from edge_agent.model.admit import declared_inputs, declared_outputs
from edge_agent.model.cost import OperatorCost, operator_cost
from edge_agent.model.cuts import Place, bounded, crossings, places
from edge_agent.model.forks import ForkedNodes, describe_fork, find_forks
from edge_agent.model.fusion import held_together
from edge_agent.model.graph import ModelGraph, random_operator
from edge_agent.model.resident import (
    unread_bytes,
    value_sizes,
    weights_of,
    working_bytes,
)
from edge_agent.model.work import WorkCounter
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import CutPoint, ModelSummary, Segment
from edge_agent.tensors import Shape, TensorName, ValueSpecs

_UNKNOWN_BYTES = 1 << 20
"""What a crossing value of unknown size counts as where no size at all is known."""
_MIN_WORK_SHARE = 1e-3
"""A segment with less of the work than this is not worth a plan of its own."""
_GAP_WORK_SHARE = 0.25
"""Only where no single tensor crosses over more of the work than this are wider cuts of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """Where a model is divided."""

    cuts: Sequence[int]
    forked: tuple[ForkedNodes, ...] = ()
    reason: str | None
    """Why there are no cuts."""


def summarise(
    graph: ModelGraph,
    model_id: ModelId,
    shapes: Mapping[TensorName, Shape],
    specs: ValueSpecs,
    max_segments: int = 64,
    apart: Collection[int] = (),
    with_forks: bool = False,
    starts: tuple[int, ...] | None = None,
) -> ModelSummary:
    """Divide `graph` into at most `max_segments` segments and say what each demands.

    `specs` are those of the values for `shapes`, the input shapes in use. A cut is legal where
    every crossing value can be passed on (see cuts.py). Of the legal ones those are kept
    that part no fusion and let one large value pass, and, where long stretches have no such place,
    those that let fewer bytes pass than the places around, and every one in `apart`, whatever it
    costs. A model that cannot or should not be divided has one segment and `undivided_because`.
    `with_forks` also finds where branches may run at once (see forks.py), and divides there too:
    all other cuts stay, unless there would be more than `max_segments` segments.

    Where the division was chosen before, on another device perhaps, `starts` are the first nodes of
    its segments, and no other is looked for.

    Raises:
        ModelRefused: the model has no such segments, or cannot be divided there.
    """
    costs = [operator_cost(graph, position, specs.tensors) for position in range(len(graph.nodes))]
    if starts is None:
        division = _divide(graph, specs, costs, max_segments, apart, with_forks)
    else:
        division = _as_given(graph, starts)
    cuts = division.cuts
    bounds = (0, *cuts, len(graph.nodes))
    crossed = crossings(graph, cuts, specs)
    runs = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
    weights = [weights_of(graph, run, specs.tensors) for run in runs]
    sizes = value_sizes(graph, specs.tensors)
    working = _working_bytes(graph, runs, crossed, sizes)
    work = WorkCounter(graph, specs, costs)
    return ModelSummary(
        model=model_id,
        inputs=declared_inputs(graph.model),
        outputs=declared_outputs(graph.model),
        shapes=tuple((TensorName(n), shapes[TensorName(n)]) for n in graph.inputs if n in shapes),
        nodes=len(graph.nodes),
        segments=tuple(
            replace(
                _segment(graph, costs, i, run, weights[i], working[i]),
                work=work.between(run.start, run.stop),
            )
            for i, run in enumerate(runs)
        ),
        cuts=crossed,
        weight_bytes=graph.weight_bytes,
        undivided_because=division.reason,
        forks=tuple(
            describe_fork(graph, f, bounds, costs, specs.tensors, sizes) for f in division.forked
        ),
    )


def _divide(
    graph: ModelGraph,
    specs: ValueSpecs,
    costs: Sequence[OperatorCost],
    max_segments: int,
    apart: Collection[int],
    with_forks: bool,
) -> _Division:
    reason = _reason_to_leave_whole(graph)
    if reason is not None:
        return _Division(cuts=(), reason=reason)
    found = list(places(graph, specs))
    held = held_together(graph)
    cuts: Sequence[int] = _choose(found, held, costs, max_segments, apart)
    forked: tuple[ForkedNodes, ...] = ()
    if with_forks:
        max_cuts = min((max_segments - 1) // 2, max_segments - 1 - len(apart))
        apart_held = held_together(graph, with_joins=False)
        forked = find_forks(graph, found, apart_held, costs, specs, max_cuts)
        edges = {at for f in forked for at in (f.start, f.stop)} - {0, len(graph.nodes)}
        if len(edges.union(cuts)) >= max_segments:
            cuts = _choose(found, held, costs, max_segments - len(edges), apart)
        cuts = sorted(edges.union(cuts))
    if not cuts:
        reason = _reason_without_cuts(graph, found)
    return _Division(cuts=cuts, forked=forked, reason=reason)


def _as_given(graph: ModelGraph, starts: tuple[int, ...]) -> _Division:
    ends = (*starts, max(len(graph.nodes), 1))  # of no nodes, one segment is made
    if starts[:1] != (0,) or any(start >= stop for start, stop in itertools.pairwise(ends)):
        raise ModelRefused(
            f"{graph.path.name}: got segments that begin at nodes {list(starts)[:8]}, want them "
            f"ascending from 0 and below {len(graph.nodes)}"
        )
    reason = None if starts[1:] else "it was asked for in one segment"
    return _Division(cuts=starts[1:], reason=reason)


def legal_cuts(graph: ModelGraph, specs: ValueSpecs) -> tuple[int, ...]:
    """Every position where `graph` could be divided, worth it or not."""
    return tuple(place.position for place in places(graph, specs) if place.blocked_because is None)


def _reason_to_leave_whole(graph: ModelGraph) -> str | None:
    n = len(graph.nodes)
    if n < 2:
        nodes = "node that computes" if n == 1 else "nodes that compute"
        return f"it has {n} {nodes} more than constants"
    for position, node in enumerate(graph.nodes):
        operator = random_operator(graph, node)
        if operator is not None:
            return (
                f"{graph.label(position)} draws random numbers without a seed ({operator}), so "
                "its parts cannot be compared with the whole"
            )
    return None


def _reason_without_cuts(graph: ModelGraph, found: Sequence[Place]) -> str:
    legal = [place for place in found if place.blocked_because is None]
    if legal:
        return (
            f"at each of the {len(legal)} places where it could be divided, nodes would be parted "
            "that run as one, more tensors would cross than around it, or next to no work would "
            "be split off"
        )
    first = found[0]
    return f"no place can be divided; before {graph.label(first.position)}, {first.blocked_because}"


def _choose(
    found: Sequence[Place],
    held: Sequence[bool],
    costs: Sequence[OperatorCost],
    max_segments: int,
    apart: Collection[int],
) -> tuple[int, ...]:
    """The positions to divide at, ascending."""
    legal = [p for p in found if p.blocked_because is None]
    candidates = [p for p in legal if not held[p.position]]
    known = max((p.known_bytes for p in found), default=0)
    price = {p.position: p.known_bytes + p.unknown * max(known, _UNKNOWN_BYTES) for p in candidates}
    summed = list(itertools.accumulate((cost.work for cost in costs), initial=0))
    narrow = [p.position for p in candidates if p.large <= 1]
    wide_gaps = [
        (start, stop)
        for start, stop in itertools.pairwise((0, *narrow, len(costs)))
        if summed[stop] - summed[start] > _GAP_WORK_SHARE * summed[-1]
    ]
    valleys = [
        position
        for position in _valleys(list(price.items()))
        if any(start < position < stop for start, stop in wide_gaps)
    ]
    forced = {p.position for p in legal if p.position in apart}
    return _merge(sorted({*narrow, *valleys, *forced}), price, summed, max_segments, forced)


def _valleys(priced: Sequence[tuple[int, int]]) -> Iterator[int]:
    """The positions where fewer bytes cross than before and behind, equal neighbours aside."""
    runs = [
        (price, [position for position, _ in run])
        for price, run in itertools.groupby(priced, key=lambda pair: pair[1])
    ]
    for i, (price, positions) in enumerate(runs):
        before = runs[i - 1][0] if i else price + 1
        after = runs[i + 1][0] if i + 1 < len(runs) else price + 1
        if before > price < after:
            yield from positions


@dataclass(slots=True)
class _Neighbours:
    """A cut while cuts are being dropped: the cuts (or ends) beside it."""

    before: int
    after: int


def _merge(
    cuts: Sequence[int],
    price: Mapping[int, int],
    summed: Sequence[int],
    max_segments: int,
    forced: Collection[int],
) -> tuple[int, ...]:
    """Drop cuts, but none that is forced, until at most `max_segments` segments remain, none of
    them next to nothing.

    The cut to drop next is the one with the least work on both its sides per crossing byte, so
    that cheap cuts between weighty segments stay. `summed[i]` is the work of nodes [0, i).
    """
    bounds = [0, *cuts, len(summed) - 1]
    beside = {
        cut: _Neighbours(before, after)
        for before, cut, after in zip(bounds, bounds[1:], bounds[2:], strict=False)
    }

    def value(cut: int) -> float:
        around = beside[cut]
        return (summed[around.after] - summed[around.before]) / (price[cut] + 1)

    def is_idle(cut: int) -> bool:
        around = beside[cut]
        least = min(summed[cut] - summed[around.before], summed[around.after] - summed[cut])
        return least < _MIN_WORK_SHARE * summed[-1]

    def rank(cut: int) -> tuple[bool, float, int]:
        return not is_idle(cut), value(cut), cut

    queue = [(rank(cut), cut) for cut in cuts if cut not in forced]
    heapq.heapify(queue)
    while queue:
        ranked, cut = heapq.heappop(queue)
        if cut not in beside or ranked != rank(cut):
            continue
        if not is_idle(cut) and len(beside) < max_segments:
            break
        around = beside.pop(cut)
        for other in (around.before, around.after):
            if other in beside:
                if other == around.before:
                    beside[other].after = around.after
                else:
                    beside[other].before = around.before
                if other not in forced:
                    heapq.heappush(queue, (rank(other), other))
    return tuple(sorted(beside))


def _working_bytes(
    graph: ModelGraph,
    runs: Sequence[range],
    cuts: Sequence[CutPoint],
    sizes: Mapping[str, int],
) -> list[int]:
    """Of each of the segments `runs`, which `cuts` part: see `Segment.working_bytes`."""
    entering = [[n for n in graph.inputs if n in graph.users]]
    entering += [[str(spec.name) for spec in cut.crossing] for cut in cuts]
    return [
        working_bytes(graph, run, sizes, {n for n in names if graph.users[n][-1] >= run.stop})
        if run
        else 0
        for run, names in zip(runs, entering, strict=True)
    ]


def _segment(
    graph: ModelGraph,
    costs: Sequence[OperatorCost],
    index: int,
    run: range,
    weights: Mapping[str, int],
    working_bytes: int,
) -> Segment:
    counted = Counter(str(graph.nodes[position].op_type) for position in run)
    inside = costs[run.start : run.stop]
    return Segment(
        index=index,
        start=run.start,
        stop=run.stop,
        operators=tuple(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))),
        operations=bounded(sum(cost.operations for cost in inside)),
        activation_bytes=bounded(sum(cost.activation_bytes for cost in inside)),
        weight_bytes=sum(weights.values()),
        parallel_operations=bounded(sum(c.operations for c in inside if c.is_parallel)),
        working_bytes=working_bytes,
        unread_bytes=unread_bytes(graph, weights),
    )
