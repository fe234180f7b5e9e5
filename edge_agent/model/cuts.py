"""What crosses each place in the topological order, and whether a model may be divided there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edge_agent.errors import ModelRefused
from edge_agent.model.graph import ModelGraph
from edge_agent.model.values import spec_bytes
from edge_agent.summaries import CutPoint
from edge_agent.tensors import ElementType, TensorName, TensorSpec, ValueSpecs

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
    blocked_because: str | None
    """Which crossing value cannot be passed on and why; None where the model may be divided."""
    is_local: bool
    """Whether a sequence, a map or an optional crosses, which cannot leave the device."""


def places(graph: ModelGraph, specs: ValueSpecs) -> Iterator[Place]:
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

    def __init__(self, graph: ModelGraph, specs: ValueSpecs) -> None:
        self._users = graph.users
        self._specs = {name: specs.tensors.get(TensorName(name)) for name in graph.producers}
        self._stuck = _impassable(graph, specs)
        self._others = specs.others
        self._bytes = {name: spec_bytes(spec) for name, spec in self._specs.items()}
        largest = max((b for n, b in self._bytes.items() if b and n in graph.users), default=0)
        share = largest // _SMALL_SHARE
        self._small_bytes = max(_MIN_SMALL_BYTES, min(share, _MAX_SMALL_BYTES))
        self._known_bytes = self._unknown = self._large = self._held = 0
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
            blocked_because=next((self._stuck[TensorName(n)] for n in self._blockers), None),
            is_local=self._held > 0,
        )

    def _count(self, name: str, sign: int) -> None:
        spec, size = self._specs[name], self._bytes[name]
        if name in self._stuck:
            if sign > 0:
                self._blockers[name] = None
            else:
                del self._blockers[name]
        self._held += sign * (name in self._others)
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


def crossings(
    graph: ModelGraph, positions: Iterable[int], specs: ValueSpecs
) -> tuple[CutPoint, ...]:
    """The cuts before the nodes at ascending `positions`, with the values that cross each.

    Raises:
        ModelRefused: a value crosses that cannot be passed on.
    """
    stuck = _impassable(graph, specs)
    sweep = _Sweep(graph)
    return tuple(_cut(graph, at, sweep.names_at(at), specs, stuck) for at in positions)


def crossing(graph: ModelGraph, position: int, specs: ValueSpecs) -> CutPoint:
    """The cut before the node at `position`: see `crossings`."""
    return crossings(graph, (position,), specs)[0]


def check_passed(graph: ModelGraph, names: Iterable[str], specs: ValueSpecs) -> None:
    """Check values that pass from one part to another, whatever else crosses there.

    Raises:
        ModelRefused: one of them cannot be passed on.
    """
    stuck = _impassable(graph, specs)
    for name in names:
        if name in stuck:
            raise ModelRefused(f"{graph.path.name}: cannot be divided: {stuck[TensorName(name)]}")


def crossing_names(graph: ModelGraph) -> Iterator[tuple[TensorName, ...]]:
    """For every place between two nodes, in order: the values produced (or fed) before and read
    behind it, in order."""
    sweep = _Sweep(graph)
    return (sweep.names_at(position) for position in range(1, len(graph.nodes)))


class _Sweep:
    """Which values are alive, from one place to places behind it."""

    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph
        self._at = 0
        self._alive = {name: None for name in graph.inputs if name in graph.users}

    def names_at(self, position: int) -> tuple[TensorName, ...]:
        """Values produced (or fed) before `position` and read at or after it, in order."""
        graph, alive = self._graph, self._alive
        for at in range(self._at, position):
            alive.update((n, None) for n in graph.nodes[at].output if n in graph.users)
            for name in graph.reads[at]:
                if name in alive and graph.users[name][-1] == at:
                    del alive[name]
        self._at = max(self._at, position)
        return tuple(TensorName(name) for name in alive)


def _cut(
    graph: ModelGraph,
    position: int,
    names: Sequence[TensorName],
    specs: ValueSpecs,
    stuck: Mapping[TensorName, str],
) -> CutPoint:
    for name in names:
        if name in stuck:
            raise ModelRefused(
                f"{graph.path.name}: cannot be divided before {graph.label(position)}: "
                f"{stuck[name]}"
            )
    tensors = tuple(specs.tensors[name] for name in names if name not in specs.others)
    sizes = [spec_bytes(spec) for spec in tensors]
    known = [size for size in sizes if size is not None]
    return CutPoint(
        position=position,
        crossing=tensors,
        others=tuple((name, specs.others[name]) for name in names if name in specs.others),
        crossing_bytes=bounded(sum(known)) if len(known) == len(names) else None,
    )


def _impassable(graph: ModelGraph, specs: ValueSpecs) -> dict[TensorName, str]:
    """The values that one part cannot pass to the next, each with the reason, for messages.

    ONNX Runtime passes values between sessions as its own, whatever their type, but for optionals
    and for what is fed and no tensor: these go through Python, which has no way for types that
    numpy lacks. So where the one sort exists, the other is not passed.
    """
    computed = [TensorName(name) for name in graph.producers if name in graph.users]
    in_python = next(
        (
            name
            for name in computed
            if (other := specs.others.get(name)) is not None
            and (graph.producers[name] < 0 or other.startswith("optional"))
        ),
        None,
    )
    found: dict[TensorName, str] = {}
    for name in computed:
        spec, other = specs.tensors.get(name), specs.others.get(name)
        if spec is None and other is None:
            found[name] = f'value "{name}" is of a type that is not known'
        elif other is not None and "sparse_tensor" in other:
            found[name] = f'value "{name}" is a {other}, which is not passed between sessions'
        elif in_python is not None and _is_extended(spec, other):
            what = other if spec is None else spec.element_type
            found[name] = (
                f'value "{name}" is a {what}, which is not passed beside the '
                f'{specs.others[in_python]} "{in_python}"'
            )
    return found


def _is_extended(spec: TensorSpec | None, other: str | None) -> bool:
    """Whether its elements have a type that numpy lacks."""
    if spec is not None:
        return not spec.element_type.is_native and spec.element_type is not ElementType.STRING
    return any(f"({t})" in (other or "") for t in ElementType if not t.is_native and t.bits)


def bounded(count: int) -> int:
    """`count`, or the largest that is told: declared sizes may multiply to more than the integers
    that messages carry."""
    return min(count, _MAX_COUNT)
