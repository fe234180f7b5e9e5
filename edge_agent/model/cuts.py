"""What crosses each place in the topological order, and whether a model may be divided there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edge_agent.errors import ModelRefused
from edge_agent.model.graph import ModelGraph
from edge_agent.model.values import spec_bytes
from edge_agent.subgraphs import CutPoint
from edge_agent.tensors import ElementType, TensorName, TensorSpec

_MIN_SMALL_BYTES = 16
_MAX_SMALL_BYTES = 4096
_SMALL_SHARE = 16
_MAX_COUNT = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in the topological order, with what it would cost to divide there."""

    position: int
    """Nodes [0, position) lie before it."""
    known_bytes: int
    """Bytes of the crossing values whose size is known."""
    unknown: int
    """How many crossing values have no known size, other than lists of integers."""
    large: int
    """How many crossing values are neither small nor lists of integers: shapes, masks, states."""
    blocked_by: str | None
    """A crossing value that no array can carry; None where the model may be divided."""


def places(graph: ModelGraph, specs: Mapping[TensorName, TensorSpec]) -> Iterator[Place]:
    """Every place between two nodes, in order."""
    weighing = _Weighing(graph, specs)
    for name in graph.inputs:
        weighing.enter(name)
    for position in range(1, len(graph.nodes)):
        for name in filter(None, graph.nodes[position - 1].output):
            weighing.enter(name)
        for name in graph.reads[position - 1]:
            weighing.leave(name, position)
        yield weighing.place(position)


class _Weighing:
    """The sums over the values that cross the place reached so far."""

    def __init__(self, graph: ModelGraph, specs: Mapping[TensorName, TensorSpec]) -> None:
        self._users = graph.users
        self._specs = {name: specs.get(TensorName(name)) for name in graph.producers}
        self._bytes = {name: spec_bytes(spec) for name, spec in self._specs.items()}
        largest = max((b for n, b in self._bytes.items() if b and n in graph.users), default=0)
        share = largest // _SMALL_SHARE
        self._small_bytes = max(_MIN_SMALL_BYTES, min(share, _MAX_SMALL_BYTES))
        self._known_bytes = self._unknown = self._large = 0
        self._blockers: dict[str, None] = {}

    def enter(self, name: str) -> None:
        if name in self._users:
            self._count(name, 1)

    def leave(self, name: str, position: int) -> None:
        users = self._users.get(name)
        if users is not None and users[-1] == position - 1:
            self._count(name, -1)

    def place(self, position: int) -> Place:
        return Place(
            position=position,
            known_bytes=self._known_bytes,
            unknown=self._unknown,
            large=self._large,
            blocked_by=next(iter(self._blockers), None),
        )

    def _count(self, name: str, sign: int) -> None:
        spec, size = self._specs[name], self._bytes[name]
        if spec is None or spec.element_type.numpy_dtype is None:
            if sign > 0:
                self._blockers[name] = None
            else:
                del self._blockers[name]
        if size is not None:
            self._known_bytes += sign * size
            self._large += sign * (size > self._small_bytes)
        elif not _is_integer_list(spec):
            self._unknown += sign
            self._large += sign


def _is_integer_list(spec: TensorSpec | None) -> bool:
    return (
        spec is not None
        and spec.element_type in (ElementType.INT64, ElementType.INT32)
        and spec.dims is not None
        and len(spec.dims) <= 1
    )


def crossing_names(graph: ModelGraph, position: int) -> tuple[str, ...]:
    """Values produced (or fed) before `position` and read at or after it, in order."""
    return tuple(
        name
        for name, producer in graph.producers.items()
        if producer < position and name in graph.users and graph.users[name][-1] >= position
    )


def crossing(graph: ModelGraph, position: int, specs: Mapping[TensorName, TensorSpec]) -> CutPoint:
    """The cut before the node at `position`, with the tensors that cross it.

    Raises:
        ModelRefused: a value crosses that no array can carry.
    """
    crossing_specs = []
    for name in crossing_names(graph, position):
        spec = specs.get(TensorName(name))
        if spec is None or spec.element_type.numpy_dtype is None:
            raise ModelRefused(
                f"{graph.path.name}: cannot be divided before {graph.label(position)}: "
                f"{blocked(name, spec)}"
            )
        crossing_specs.append(spec)
    sizes = [spec_bytes(spec) for spec in crossing_specs]
    known = [size for size in sizes if size is not None]
    return CutPoint(
        position=position,
        crossing=tuple(crossing_specs),
        crossing_bytes=bounded(sum(known)) if len(known) == len(sizes) else None,
    )


def bounded(count: int) -> int:
    """`count`, or the largest that is told: declared sizes may multiply to more than the integers
    that messages carry."""
    return min(count, _MAX_COUNT)


def blocked(name: str, spec: TensorSpec | None) -> str:
    """Why no array can carry the value `name`, for messages."""
    if spec is None:
        return f'value "{name}" is no tensor of a known element type'
    return f'value "{name}" is {spec.element_type}, which numpy arrays cannot hold'
