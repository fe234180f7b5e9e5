"""From a distribution to the stages that are deployed for it: where each runs, what crosses between
them, and how much room that takes. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.distributions import Distribution, PlacedSubgraph, Route
from edge_agent.errors import UsageError
from edge_agent.stages import OWNER, Crossing, StageModel
from edge_agent.subgraphs import SegmentRange
from edge_agent.tensors import Shape, TensorName, TensorSpec, WireType, size_bytes
from edge_agent.wire.hosting import MAX_STAGES, MAX_UNDER_WAY, Neighbour, RouteShare
from edge_agent.wire.streaming import HEAD_BYTES

UNKNOWN_BYTES: Final = 4 << 20
"""What a tensor counts as whose size depends on what is computed."""
LEAST_WINDOW_BYTES: Final = 1 << 20
MORE_UNDER_WAY: Final = 2
"""Requests beyond those that keep every stage busy, so that none waits for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A stage of a layout."""

    number: int
    route: int
    device: DeviceId
    segments: SegmentRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The stages of all routes, numbered route by route."""

    stages: tuple[PlacedStage, ...]
    shares: tuple[float, ...]

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """Where stages run, each once."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))

    def on(self, device: DeviceId) -> tuple[PlacedStage, ...]:
        """The stages of one device."""
        return tuple(stage for stage in self.stages if stage.device == device)

    def routes_over(self, device: DeviceId) -> tuple[int, ...]:
        """The routes of which a stage runs on a device."""
        return tuple(dict.fromkeys(stage.route for stage in self.on(device)))

    @property
    def routes_over_others(self) -> frozenset[int]:
        """The routes of which a stage runs on another device than the owner's."""
        return frozenset(s.route for s in self.stages if s.device != THIS_DEVICE)

    @property
    def parts(self) -> tuple[SegmentRange, ...]:
        """The runs of segments that are needed, each once."""
        return tuple(dict.fromkeys(stage.segments for stage in self.stages))

    def is_like(self, other: Layout) -> bool:
        """Whether the same stages run on the same devices, whatever their shares."""
        return set(map(_place, self.stages)) == set(map(_place, other.stages))


def _place(stage: PlacedStage) -> tuple[int, int, DeviceId]:
    return stage.segments.start, stage.segments.stop, stage.device


def layout_of(distribution: Distribution) -> Layout:
    """The stages of a distribution: subgraphs that follow each other on one device are one.

    Raises:
        UsageError: it has forks, or more stages than can be deployed.
    """
    stages: list[PlacedStage] = []
    for number, route in enumerate(distribution.routes):
        for device, segments in _runs(route):
            stages.append(
                PlacedStage(number=len(stages), route=number, device=device, segments=segments)
            )
    if len(stages) > MAX_STAGES:
        raise UsageError(f"got {len(stages)} stages, want at most {MAX_STAGES}")
    return Layout(stages=tuple(stages), shares=tuple(route.share for route in distribution.routes))


def _runs(route: Route) -> Iterable[tuple[DeviceId, SegmentRange]]:
    found: list[tuple[DeviceId, SegmentRange]] = []
    for step in route.steps:
        if not isinstance(step, PlacedSubgraph):
            raise UsageError("got branches of a model on several devices, want runs of segments")
        if found and found[-1][0] == step.device:
            before = found.pop()[1]
            whole = SegmentRange(start=before.start, stop=step.segments.stop)
            found.append((step.device, whole))
        else:
            found.append((step.device, step.segments))
    return found


def crossings_of(
    layout: Layout,
    models: Mapping[int, StageModel],
    outputs: Sequence[TensorName],
    owner: DeviceId,
    wire_of: Callable[[DeviceId, DeviceId], WireType | None] = lambda _source, _target: None,
) -> tuple[Crossing, ...]:
    """What each stage hands to which; `models` are by the numbers of the stages. `wire_of` says as
    what it is sent from one device to another.

    A value goes straight to the stage that reads it from and to the owner, which has a connection
    with every peer, and else from stage to stage: whether two peers have one, the plan shows where
    it lets them follow each other. What may be left out of a request crosses nothing: a request
    that has it is run by the owner.
    """
    device = {OWNER: owner} | {stage.number: stage.device for stage in layout.stages}
    crossing: dict[tuple[int, int], dict[TensorName, None]] = {}

    def hand(name: TensorName, path: Sequence[int]) -> None:
        for source, target in itertools.pairwise(path):
            crossing.setdefault((source, target), {})[name] = None

    for number in range(len(layout.shares)):
        route = [stage.number for stage in layout.stages if stage.route == number]
        made: dict[TensorName, int] = {}
        for stage in route:
            wanted = [s.name for s in models[stage].inputs if not s.has_default]
            for name in wanted:
                hand(name, _path(made.get(name, OWNER), stage, route, device))
            if not any(target == stage for _, target in crossing):
                crossing[OWNER, stage] = {}  # it has to be told when to begin
            made |= {spec.name: stage for spec in models[stage].outputs}
        for name in outputs:
            if name in made:
                hand(name, _path(made[name], OWNER, route, device))
    return tuple(
        Crossing(
            source=source,
            target=target,
            tensors=tuple(names),
            wire=wire_of(device[source], device[target]),
        )
        for (source, target), names in sorted(crossing.items())
    )


def _path(
    source: int,
    target: int,
    route: Sequence[int],
    device: Mapping[int, DeviceId],
) -> list[int]:
    """The stages that a value passes."""
    one, other = device[source], device[target]
    if one == other or device[OWNER] in (one, other):
        return [source, target]
    begin = 0 if source == OWNER else route.index(source) + 1
    end = len(route) if target == OWNER else route.index(target)
    return [source, *route[begin:end], target]


def shares_of(
    layout: Layout, per_s: float, latency_s: float, stages_under_way: Mapping[int, int]
) -> tuple[RouteShare, ...]:
    """The routes as the owner's worker sees them.

    By Little's law (Operations Research 9(3), 1961), at the predicted rate as many requests are
    under way as come in while one passes; and no fewer than all stages of the route can run at
    once, which `stages_under_way` has by stage.
    """
    found = []
    for number, share in enumerate(layout.shares):
        by_rate = math.ceil(per_s * share * latency_s) if math.isfinite(per_s * latency_s) else 1
        stages = [stage.number for stage in layout.stages if stage.route == number]
        at_once = sum(stages_under_way.get(stage, 1) for stage in stages)
        most = min(max(by_rate, at_once) + MORE_UNDER_WAY, MAX_UNDER_WAY)
        found.append(RouteShare(number=number, share=min(share, 1.0), most=most))
    return tuple(found)


def neighbours_of(
    device: DeviceId,
    layout: Layout,
    crossings: Sequence[Crossing],
    models: Mapping[int, StageModel],
    routes: Sequence[RouteShare],
    owner: DeviceId,
) -> tuple[Neighbour, ...]:
    """The devices with which one exchanges tensors, each with room for all that may be under way,
    and an eighth more, for less than that is not given back at once."""
    at = {OWNER: owner} | {stage.number: stage.device for stage in layout.stages}
    route_of = {stage.number: stage.route for stage in layout.stages}
    most = {route.number: route.most for route in routes}
    sizes = _sizes(models.values())
    stages: dict[DeviceId, set[int]] = {}
    room: dict[DeviceId, int] = {}
    for crossing in crossings:
        source, target = at[crossing.source], at[crossing.target]
        if source == target or device not in (source, target):
            continue
        other, number = (source, crossing.source)
        if source == device:
            other, number = target, crossing.target
        stages.setdefault(other, set()).add(number)
        room.setdefault(other, 0)
        if target == device:
            stage = crossing.target if crossing.source == OWNER else crossing.source
            cost = HEAD_BYTES + sum(sizes.get(name, UNKNOWN_BYTES) for name in crossing.tensors)
            room[other] += cost * most[route_of[stage]]
    return tuple(
        Neighbour(
            device=other,
            stages=tuple(sorted(stages[other])),
            window_bytes=max(math.ceil(room[other] * 8 / 7), LEAST_WINDOW_BYTES),
        )
        for other in sorted(stages)
    )


def _sizes(models: Iterable[StageModel]) -> dict[TensorName, int]:
    """Bytes of the values between stages, as far as they are known."""
    found: dict[TensorName, int] = {}
    for model in models:
        for spec in model.outputs:
            dims = [dim for dim in spec.dims or () if isinstance(dim, int)]
            if spec.dims is not None and len(dims) == len(spec.dims):
                found[spec.name] = _bytes(spec, tuple(dims))
        shapes = dict(model.shapes)
        for spec in model.inputs:
            if spec.name in shapes:
                found[spec.name] = _bytes(spec, shapes[spec.name])
    return found


def _bytes(spec: TensorSpec, shape: Shape) -> int:
    return size_bytes(spec.element_type, shape)
