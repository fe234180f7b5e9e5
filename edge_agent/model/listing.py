"""Every place in the topological order with all that crosses it, in one pass over the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edge_agent.model.cuts import blocked, places
from edge_agent.model.graph import ModelGraph
from edge_agent.tensors import TensorName, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPlace:
    """A place between two nodes."""

    position: int
    """Nodes [0, position) lie before it."""
    crossing: tuple[str, ...]
    """Values produced (or fed) before and read after it, in topological order."""
    obstacle: str | None
    """Why no model can be made of each side; None where the model may be divided."""


def listed_places(
    graph: ModelGraph, specs: Mapping[TensorName, TensorSpec]
) -> Iterator[ListedPlace]:
    """Every place between two nodes, in order.

    Beside what cuts.py says of a place, both sides must give something: a model without outputs
    cannot be opened.
    """
    last_given = max((graph.producers.get(name, -1) for name in graph.outputs), default=-1)
    given = set(graph.outputs)
    for place, names in zip(places(graph, specs), crossings(graph), strict=True):
        before = graph.nodes[place.position - 1]
        obstacle = None
        if place.blocked_by is not None:
            obstacle = blocked(place.blocked_by, specs.get(TensorName(place.blocked_by)))
        elif place.position > last_given:
            obstacle = "nothing behind it is an output of the model or leads to one"
        elif not any(n in graph.users or n in given for n in before.output):
            obstacle = f"{graph.label(place.position - 1)} before it gives nothing that is used"
        yield ListedPlace(position=place.position, crossing=names, obstacle=obstacle)


def crossings(graph: ModelGraph) -> Iterator[tuple[str, ...]]:
    """What crosses each place between two nodes, as `cuts.crossing_names` says of one."""
    crossing = {name: None for name in graph.inputs if name in graph.users}
    for position in range(1, len(graph.nodes)):
        for name in graph.nodes[position - 1].output:
            if name in graph.users:
                crossing[name] = None
        for name in graph.reads[position - 1]:
            if name in crossing and graph.users[name][-1] < position:
                del crossing[name]
        yield tuple(crossing)
