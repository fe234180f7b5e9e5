"""Which nodes should run channels-last: the cheapest assignment, transposes included.

Every image value belongs to a frame: values that are the same up to a known permutation, tied by
Transpose nodes and by operators that do not care about the order of axes. A convolution in the
frame says which order is channels-first. Each node then has two ways to run, and assigning them
at the lowest sum of kernel time and transposes is a minimum cut (Greig, Porteous and Seheult 1989;
the paired auxiliary vertices, which charge a value's transpose once for all its users, are those
of Kohli, Ladicky and Torr 2009). Exact, and about a thousand nodes take tens of milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edge_agent.model.nhwc_forms import IDENTITY, TO_LAST, Perm, compose, inverse

_UNBOUNDED = 1 << 60
_FIRST, _LAST = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node as the choice sees it."""

    images: tuple[str, ...]
    """Four-dimensional inputs that the node could take in either order."""
    results: tuple[str, ...]
    """Four-dimensional outputs that come in the order of the images."""
    plain: tuple[str, ...]
    """Other values that the node touches, always in their own order."""
    anchored: bool = False
    """Whether the operator defines which axis holds the channels, as a convolution does."""
    transposed: Perm | None = None
    """For a Transpose from images[0] to results[0]: its permutation; it costs nothing by itself."""
    first_ns: int = 0
    """What running channels-first costs more than the cheapest way, in nanoseconds."""
    last_ns: int | None = 0
    """The same for channels-last; None where no such kernel exists."""

    @property
    def is_fixed(self) -> bool:
        """Whether the node runs in one way only: with all values in their own order."""
        return not self.images and not self.results


@dataclass(slots=True)
class _Frames:
    """A weighted union-find: value = Transpose(root, perm) as far as the meaning of axes goes."""

    _parents: dict[str, tuple[str, Perm]] = field(default_factory=dict)
    _anchors: dict[str, Perm] = field(default_factory=dict)

    def find(self, name: str) -> tuple[str, Perm]:
        path = []
        while name in self._parents:
            path.append(name)
            name = self._parents[name][0]
        perm = IDENTITY
        for step in reversed(path):
            perm = compose(perm, self._parents[step][1])
            self._parents[step] = (name, perm)
        return name, perm

    def unite(self, name: str, source: str, perm: Perm) -> None:
        """Note that `name` is `source` transposed by `perm`; the first word counts."""
        root, first = self.find(source)
        other, second = self.find(name)
        if root != other:
            self._parents[other] = (root, compose(compose(first, perm), inverse(second)))

    def anchor(self, name: str) -> None:
        """Note that `name` itself is channels-first."""
        root, perm = self.find(name)
        self._anchors.setdefault(root, perm)

    def first_form(self, name: str) -> Perm | None:
        """The permutation that makes `name` channels-first, or None where nothing says."""
        root, perm = self.find(name)
        anchor = self._anchors.get(root)
        return None if anchor is None else compose(inverse(perm), anchor)


def choose_orders(
    steps: Sequence[Step],
    inputs: Iterable[str],
    outputs: Iterable[str],
    transpose_ns: Callable[[str], int],
) -> list[Perm | None]:
    """The permutation in which each step should see its images; None leaves it as it is.

    `inputs` and `outputs` are the graph's, always in their own order, and `transpose_ns(value)`
    is what transposing a value once costs, in nanoseconds.
    """
    frames = _frames(steps)
    orders = [_first_order(step, frames) for step in steps]
    network, vertices = _Network(), {}
    for index, (step, order) in enumerate(zip(steps, orders, strict=True)):
        if order is None or step.transposed is not None:
            continue
        vertex = vertices[index] = network.vertex()
        network.edge(vertex, _LAST, step.first_ns)
        network.edge(_FIRST, vertex, _UNBOUNDED if step.last_ns is None else step.last_ns)
    _connect(network, vertices, steps, frames, inputs, outputs, transpose_ns)
    last = network.sink_side()
    return [
        None
        if order is None or step.transposed is not None
        else compose(order, TO_LAST)
        if vertices[index] in last
        else order
        for index, (step, order) in enumerate(zip(steps, orders, strict=True))
    ]


def _frames(steps: Sequence[Step]) -> _Frames:
    frames = _Frames()
    for step in steps:
        values = (*step.images, *step.results)
        if step.transposed is not None:
            frames.unite(step.results[0], step.images[0], step.transposed)
            continue
        for value in values[1:]:
            frames.unite(value, values[0], IDENTITY)
    for step in steps:
        if step.anchored:
            for value in (*step.images, *step.results):
                frames.anchor(value)
    return frames


def _first_order(step: Step, frames: _Frames) -> Perm | None:
    """The order that is channels-first for all images of `step`, or None if there is no one."""
    if step.is_fixed:
        return None
    orders = {frames.first_form(value) for value in (*step.images, *step.results)}
    order = orders.pop()
    if orders or order is None or (step.anchored and order != IDENTITY):
        return None
    return order


def _connect(
    network: _Network,
    vertices: Mapping[int, int],
    steps: Sequence[Step],
    frames: _Frames,
    inputs: Iterable[str],
    outputs: Iterable[str],
    transpose_ns: Callable[[str], int],
) -> None:
    """Charge every value's transposes: once per order that is not the one it is made in."""
    roots: dict[str, str] = {}
    makers: dict[str, int | None] = {}
    users: dict[str, set[int]] = {}

    def root(value: str) -> str:
        return roots.get(value, value)

    def own_order(value: str) -> int | None:
        order = frames.first_form(value)
        if order is None:
            return None
        return _FIRST if order == IDENTITY else _LAST if _is_last(order) else None

    def use(value: str, vertex: int | None) -> None:
        if vertex is not None:
            users.setdefault(root(value), set()).add(vertex)

    for value in inputs:
        makers[value] = own_order(value)
    for index, step in enumerate(steps):
        if step.transposed is not None:
            roots[step.results[0]] = root(step.images[0])
            continue
        vertex = vertices.get(index)
        for value in step.images:
            use(value, own_order(value) if vertex is None else vertex)
        for value in step.plain:
            use(value, own_order(value))
        for value in step.results:
            makers[value] = own_order(value) if vertex is None else vertex
    for value in outputs:
        use(value, own_order(value))
    for value, maker in makers.items():
        if maker is not None and value in users:
            network.charge(maker, users[value] - {maker}, transpose_ns(value))


def _is_last(first_form: Perm) -> bool:
    return compose(first_form, TO_LAST) == IDENTITY


@dataclass(slots=True)
class _Network:
    """A flow network whose vertices 0 and 1 are the source (first) and the sink (last)."""

    _edges: list[list[int]] = field(default_factory=lambda: [[], []])
    _heads: list[int] = field(default_factory=list)
    _room: list[int] = field(default_factory=list)

    def vertex(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._room.append(room)

    def charge(self, maker: int, users: Iterable[int], cost: int) -> None:
        """Cost once if any user is on the other side than the maker."""
        users = tuple(users)
        to_last, to_first = self.vertex(), self.vertex()
        self.edge(maker, to_last, cost)
        self.edge(to_first, maker, cost)
        for user in users:
            self.edge(to_last, user, _UNBOUNDED)
            self.edge(user, to_first, _UNBOUNDED)

    def sink_side(self) -> set[int]:
        """The vertices on the sink's side of the minimum cut, as few as possible (Dinic 1970)."""
        while (levels := self._levels())[_LAST] >= 0:
            starts = [0] * len(self._edges)
            while self._push(levels, starts):
                pass
        side, queue = {_LAST}, deque([_LAST])
        while queue:
            for index in self._edges[queue.popleft()]:
                tail = self._heads[index]
                if self._room[index ^ 1] > 0 and tail not in side:
                    side.add(tail)
                    queue.append(tail)
        return side

    def _levels(self) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[_FIRST] = 0
        queue = deque([_FIRST])
        while queue:
            vertex = queue.popleft()
            for index in self._edges[vertex]:
                head = self._heads[index]
                if self._room[index] > 0 and levels[head] < 0:
                    levels[head] = levels[vertex] + 1
                    queue.append(head)
        return levels

    def _push(self, levels: list[int], starts: list[int]) -> bool:
        """Send as much as fits along one path of rising levels; whether there was a path."""
        path: list[int] = []
        vertex = _FIRST
        while vertex != _LAST:
            edges = self._edges[vertex]
            while starts[vertex] < len(edges):
                index = edges[starts[vertex]]
                if self._room[index] > 0 and levels[self._heads[index]] == levels[vertex] + 1:
                    break
                starts[vertex] += 1
            else:
                if not path:
                    return False
                vertex = self._heads[path.pop() ^ 1]
                starts[vertex] += 1
                continue
            path.append(index)
            vertex = self._heads[index]
        amount = min(self._room[index] for index in path)
        for index in path:
            self._room[index] -= amount
            self._room[index ^ 1] += amount
        return True
