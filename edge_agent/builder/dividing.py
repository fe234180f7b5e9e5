"""Which cuts of a model a user can choose from, and which ones give parts of equal work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass

from edge_agent.builder.source import Sizes
from edge_agent.errors import ModelRefused, UsageError
from edge_agent.model.cost import operator_cost
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.listing import ListedPlace, listed_places
from edge_agent.model.pointing import cut_position
from edge_agent.model.values import spec_bytes
from edge_agent.planning.balance import equal_cuts
from edge_agent.planning.score import ProcessorRates
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName, ValueSpecs

NOMINAL = ProcessorRates(operations_per_s=5e10, bytes_per_s=1e10, launch_s=2e-5)
"""One thread of a middling processor. What is said of a model offline is said with these rates,
so that it is the same on every device and every day."""
_NODE_S = 2e-6
"""What a node costs however small it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingValue:
    """A value that crosses a cut."""

    name: str
    type: str
    """Element type and dimensions for the shapes in use, as `float32[1,64]`."""
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCut:
    """A place between two nodes, as `split --list` and `inspect` show it."""

    position: int
    before: str
    """The last node before it."""
    behind: str
    """The first node behind it."""
    crossing: tuple[CrossingValue, ...]
    crossing_bytes: int | None
    work_before_fraction: float
    """Share of the estimated work that lies before it."""
    is_planned: bool
    """Whether it is worth planning with."""
    obstacle: str | None
    """Why the model cannot be divided here; None if it can."""


def planned_cuts(graph: ModelGraph, sizes: Sizes) -> tuple[frozenset[int], str | None]:
    """The positions worth planning with, and why there are none if there are none."""
    summary = summarise(graph, ModelId(""), sizes.shapes, sizes.specs)
    return frozenset(cut.position for cut in summary.cuts), summary.undivided_because


def list_cuts(
    graph: ModelGraph,
    specs: ValueSpecs,
    planned: Set[int],
    *,
    is_all: bool,
) -> tuple[ListedCut, ...]:
    """The places at the positions `planned`, or with `is_all` every place, legal or not."""
    summed = _work_before(graph, specs)
    return tuple(
        ListedCut(
            position=place.position,
            before=graph.label(place.position - 1),
            behind=graph.label(place.position),
            crossing=(values := _crossing_values(place, specs)),
            crossing_bytes=_sum(values),
            work_before_fraction=summed[place.position] / summed[-1],
            is_planned=place.obstacle is None and place.position in planned,
            obstacle=place.obstacle,
        )
        for place in listed_places(graph, specs)
        if is_all or (place.obstacle is None and place.position in planned)
    )


def _crossing_values(place: ListedPlace, specs: ValueSpecs) -> tuple[CrossingValue, ...]:
    return tuple(
        CrossingValue(
            name=name,
            type=specs.described(name),
            size_bytes=spec_bytes(specs.tensors.get(TensorName(name))),
        )
        for name in place.crossing
    )


def _sum(values: Sequence[CrossingValue]) -> int | None:
    known = [value.size_bytes for value in values if value.size_bytes is not None]
    return sum(known) if len(known) == len(values) else None


def _work_before(graph: ModelGraph, specs: ValueSpecs) -> list[float]:
    """Roofline seconds (see planning/score.py) of the nodes before each position, node by node."""
    work_s = []
    for position in range(len(graph.nodes)):
        cost = operator_cost(graph, position, specs.tensors)
        moved_bytes = cost.activation_bytes + cost.weight_bytes
        compute_s = cost.operations / NOMINAL.operations_per_s
        work_s.append(_NODE_S + max(compute_s, moved_bytes / NOMINAL.bytes_per_s))
    return list(itertools.accumulate(work_s, initial=0.0))


def named_cuts(graph: ModelGraph, specs: ValueSpecs, names: Sequence[str]) -> tuple[int, ...]:
    """The positions that `names` mean, ascending; see `cut_position`.

    Raises:
        UsageError: a name means no place, or two mean the same.
        ModelRefused: the model cannot be divided there.
    """
    chosen: dict[int, str] = {}
    for name in names:
        position = cut_position(graph, name)
        if position in chosen:
            raise UsageError(f"--at {name}: is the same place as --at {chosen[position]}")
        chosen[position] = name
    for place in listed_places(graph, specs):
        if place.position in chosen and place.obstacle is not None:
            raise ModelRefused(
                f"{graph.path.name}: cannot be divided at {chosen[place.position]}, before "
                f"{graph.label(place.position)}: {place.obstacle}; see --list --all"
            )
    return tuple(sorted(chosen))


def even_cuts(
    graph: ModelGraph,
    specs: ValueSpecs,
    planned: Set[int],
    parts: int,
) -> tuple[tuple[int, ...], str | None]:
    """Positions that divide the model into `parts` parts of about equal work, and a note if some
    of them are not worth planning with.

    Raises:
        ModelRefused: there are too few places.
    """
    summed = _work_before(graph, specs)
    legal = [p.position for p in listed_places(graph, specs) if p.obstacle is None]
    best = [p for p in legal if p in planned]
    note = None
    if parts - 1 > len(best):
        note = (
            f"only {len(best)} of the {len(legal)} places are worth planning with, so others are "
            "used too: nodes may be parted that run as one"
        )
        best = legal
    found = equal_cuts([summed[p] for p in best], summed[-1], parts)
    if found is None:
        raise ModelRefused(
            f"{graph.path.name}: cannot be divided into {parts} parts: it has {len(legal)} places "
            "where it can be divided (see --list --all)"
        )
    return tuple(best[i] for i in found), note
