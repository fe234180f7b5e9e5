"""Execution plans: which subgraph runs where and how, what was predicted and what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from edge_agent.devices import Device, DeviceId, UnitId
from edge_agent.profiles import Configuration, Placement, RatioInterval, Rejection
from edge_agent.subgraphs import ComplexityScore, ModelId, SegmentRange
from edge_agent.tensors import Shape, TensorName, WireType


class Target(StrEnum):
    """What a plan is made for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    ENERGY = "energy"
    MEMORY = "memory"
    """Peak memory on the fullest device."""
    BYTES = "bytes"
    """On the wire."""


SERVED_TARGETS = (Target.LATENCY, Target.THROUGHPUT)
"""What a loaded model can be measured and verified for."""
ADDITIVE = (Target.LATENCY, Target.ENERGY, Target.BYTES)
"""Those of which what the steps of a route cost adds up."""


UNITS: Mapping[Target, str] = MappingProxyType(
    {
        Target.LATENCY: "seconds",
        Target.THROUGHPUT: "requests per second",
        Target.ENERGY: "joules per request",
        Target.MEMORY: "bytes on the fullest device",
        Target.BYTES: "bytes per request",
    }
)
"""What the metric of each target is counted in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a metric must keep to: at most `limit`, of the throughput at least, in `UNITS`.

    Of latency, energy and bytes it holds for every request, whatever route it takes.
    """

    target: Target
    limit: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.limit) and self.limit >= 0):
            raise ValueError(
                f"bound on {self.target}: got {self.limit:g}, want {wanted_limit(self.target)}"
            )


def wanted_limit(target: Target) -> str:
    """What a bound on the target may be."""
    return f"a finite number of at least 0, in {UNITS[target]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The user's word that nodes run on a unit."""

    pattern: str
    """Of node names, with `*`, `?` and `[…]`; one without a name has that of its first output."""
    unit: UnitId

    def __str__(self) -> str:
        return f"{self.pattern}={self.unit}"


def unusable_pin(
    pins: Iterable[Pin], device: Device, banned: Mapping[UnitId, str] = MappingProxyType({})
) -> str | None:
    """Why the unit of one of them cannot be used; None if all can. `banned` are units that are
    left out, each with its reason."""
    known = {unit.id for unit in device.units}
    for pin in pins:
        if pin.unit in banned:
            return f'pin "{pin}" cannot hold: {banned[pin.unit]}'
        if pin.unit not in known:
            units = (r for r in device.refused if r.unit is not None)
            refused = "; ".join(f"{r.unit}, {r.provider}: {r.reason}" for r in units)
            has = ", ".join(sorted(known))
            because = f" (refused: {refused})" if refused else ""
            return f'pin "{pin}": this device has no unit {pin.unit}, it has {has}{because}'
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """A deployed plan. Incarnation and number are on disk before they are used."""

    owner: str
    incarnation: int
    """How many times the owner's agent has started."""
    model: ModelId
    number: int

    def __str__(self) -> str:
        return f"{self.owner}/{self.incarnation}/{self.model[:12]}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSubgraph:
    """One subgraph of a plan: a run of segments in one configuration."""

    segments: SegmentRange
    nodes: tuple[int, int]
    """Nodes [start, stop) of the topological order."""
    configuration: Configuration
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePlan:
    """A division with its predicted time: what the planner proposes and verification measures."""

    subgraphs: tuple[ChosenSubgraph, ...]
    predicted_s: float
    """Time of a round of `instances` requests at once, in seconds."""
    predicted_per_s: float
    """Requests per second with all instances busy."""
    instances: int = 1
    """How many requests the plan runs at once."""

    def __str__(self) -> str:
        return " + ".join(f"[{s.segments}] {s.configuration}" for s in self.subgraphs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSubgraph:
    """A line of `plan --explain`."""

    subgraph: ChosenSubgraph
    operators: tuple[tuple[str, int], ...]
    operations: int
    bytes_moved: int
    score: ComplexityScore
    measured_s: float | None
    runner_up: Configuration | None
    runner_up_loss_s: float | None
    """How much slower the runner-up is predicted to be, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSegment:
    """What is known of one segment, before segments on the same choice are joined."""

    index: int
    nodes: tuple[int, int]
    operators: tuple[tuple[str, int], ...]
    operations: int
    crossing_bytes: int | None
    """Bytes that cross the cut behind it; 0 behind the last one, None if not known."""
    score: ComplexityScore
    times: tuple[tuple[Configuration, float], ...]
    """Fitted seconds in every configuration that was measured, fastest first."""
    others: tuple[tuple[TensorName, str], ...] = ()
    """What crosses the cut behind it and cannot leave the device, with its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan:
    """The plan of one model: what runs, why, and what it was compared with."""

    model: ModelId
    target: Target
    shapes: tuple[tuple[TensorName, Shape], ...]
    subgraphs: tuple[ExplainedSubgraph, ...]
    is_plain: bool
    """Whether the model runs as plain ONNX Runtime would run it: whole, default options."""
    reason: str
    """Why this plan and not another, in one sentence."""
    predicted_s: float | None
    measured_s: float | None
    """Median time of one request, in seconds."""
    plain_s: float | None
    """Median time of one request on plain ONNX Runtime, in seconds."""
    plain_over_plan: RatioInterval | None
    """Time of plain ONNX Runtime over that of this plan: above 1 the plan is faster.

    For the target throughput it is the time per request with all instances busy."""
    rejections: tuple[Rejection, ...]
    undivided_because: str | None
    profiling_s: float
    segments: tuple[ExplainedSegment, ...] = ()
    disturbed_fraction: float = 0.0
    """Share of the profiling beside which others used the processor."""
    control: RatioInterval | None = None
    """Plain ONNX Runtime against itself in the same run: the spread of the measurement."""
    is_specialised: bool = False
    """Whether it was made for these shapes alone, with fixed dimensions."""
    general_over_plan: RatioInterval | None = None
    """Of a specialised plan: time of the general plan over its own, for its shapes."""
    instances: int = 1
    """How many requests the plan runs at once."""
    placements: tuple[Placement, ...] = ()
    """What every unit beside the processor took of the model and what it refused."""
    profiled_plain_s: float | None = None
    """What `plain_s` was in the profile, on which `predicted_s` rests: a device does not always run
    at one speed."""
    channels_last: tuple[TensorName, ...] = ()
    """Values that cross between subgraphs in NHWC, because both sides compute so."""
    is_quantised: bool = False
    """Whether the model has quantised operators, of which one rounding step moves much."""

    def __str__(self) -> str:
        chosen = " + ".join(
            f"[{s.subgraph.segments}] {s.subgraph.configuration}" for s in self.subgraphs
        )
        if not self.is_plain:
            return chosen
        return f"plain ONNX Runtime: {chosen}" if chosen else "plain ONNX Runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStage:
    """A stage as it was prepared on its device."""

    number: int
    route: int
    device: DeviceId
    name: str
    """What people call the device."""
    segments: SegmentRange
    plan: str
    """What it runs as there."""
    measured_s: float | None
    """Of one run there, in seconds."""
    received_bytes: int
    """What was sent to the device for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedWire:
    """The user's word that tensors may be sent in fewer bits."""

    type: WireType
    bound: float
    """How far outputs may then be from those of the model as it is, as a share of their range."""

    def __post_init__(self) -> None:
        if not 0 < self.bound < 1:
            raise ValueError(f"bound: got {self.bound:g}, want above 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAs:
    """What one stage hands to another one is sent in fewer bits."""

    source: int
    """Number of a stage; −1: the owner."""
    target: int
    wire: WireType


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedPlan:
    """A plan over several devices, and what was found out when it was compared with the plan of
    its owner alone."""

    target: Target
    shares: tuple[float, ...]
    """Of the traffic, by route."""
    stages: tuple[DeployedStage, ...]
    """Route by route, in order."""
    is_used: bool
    """Whether it serves."""
    reason: str
    """Why, or why not, in one sentence."""
    predicted_per_s: float | None = None
    """Requests per second with all devices busy."""
    predicted_latency_s: float | None = None
    measured_per_s: float | None = None
    measured_latency_s: float | None = None
    """Of a request among as many as are under way at once."""
    alone_per_s: float | None = None
    """Requests per second of the plan of the owner alone, measured in turns."""
    alone_over_divided: RatioInterval | None = None
    """Time per request of the plan of the owner alone over that of this one: above 1 this one is
    faster."""
    control: RatioInterval | None = None
    """The plan of the owner alone against itself in the same rounds."""
    lost: tuple[str, ...] = ()
    """By route, why it is of no use any more; "" if it is."""
    epoch: int = 0
    deployed_s: float | None = None
    """Seconds that cutting, preparing, opening and linking its stages took."""
    is_encrypted: bool = True
    """Whether what crosses between devices is."""
    sent_as: tuple[SentAs, ...] = ()
    """Where tensors are sent in fewer bits."""
    wire_refused: str = ""
    """Why none are, although the user allows it and it would pay; "" if nothing speaks against
    it."""

    def __str__(self) -> str:
        routes = []
        for number, share in enumerate(self.shares):
            stages = " → ".join(
                f"{s.name} [{s.segments}]" for s in self.stages if s.route == number
            )
            routes.append(stages if len(self.shares) == 1 else f"{share:.0%} {stages}")
        return " | ".join(routes)
