"""Every place in the topological order with all that crosses it, in one pass over the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edge_agent.model.cuts import crossing_names, places
from edge_agent.model.graph import ModelGraph
from edge_agent.tensors import ValueSpecs


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPlace:
    """A place between two nodes."""

    position: int
    """Nodes [0, position) lie before it."""
    crossing: tuple[str, ...]
    """Values produced (or fed) before and read after it, in topological order."""
    obstacle: str | None
    """Why no model can be made of each side; None where the model may be divided."""


def listed_places(graph: ModelGraph, specs: ValueSpecs) -> Iterator[ListedPlace]:
    """Every place between two nodes, in order.

    Beside what cuts.py says of a place, both sides must give something: a model without outputs
    cannot be opened.
    """
    last_given = max((graph.producers.get(name, -1) for name in graph.outputs), default=-1)
    given = set(graph.outputs)
    for place, names in zip(places(graph, specs), crossing_names(graph), strict=True):
        before = graph.nodes[place.position - 1]
        obstacle = place.blocked_because
        if obstacle is None and place.position > last_given:
            obstacle = "nothing behind it is an output of the model or leads to one"
        if obstacle is None and not any(n in graph.users or n in given for n in before.output):
            obstacle = f"{graph.label(place.position - 1)} before it gives nothing that is used"
        yield ListedPlace(position=place.position, crossing=names, obstacle=obstacle)
