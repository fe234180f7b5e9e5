"""Subnetwork distributions: which device runs what of a model, and what that is predicted to give.

A distribution has one or more routes. A route is an ordered list of steps: subgraphs, and forks,
in which independent branches of the model run at once and meet again on the device that they
started from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edge_agent.devices import DeviceId
from edge_agent.plans import Target
from edge_agent.profiles import Configuration
from edge_agent.subgraphs import SegmentRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSubgraph:
    """A run of segments in one configuration on one device."""

    segments: SegmentRange
    device: DeviceId
    configuration: Configuration

    def __str__(self) -> str:
        return f"[{self.segments}] {self.device}/{self.configuration}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedArm:
    """Branches of a fork that run one after the other as one subgraph."""

    branches: tuple[int, ...]
    """Which of the fork's branches, ascending."""
    device: DeviceId
    configuration: Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFork:
    """Segments whose independent branches run at once.

    Their inputs are in the memory of `home` before, and their outputs after; arms on other
    devices get and send what they need.
    """

    fork: int
    """Index into `ModelSummary.forks`."""
    segments: SegmentRange
    home: DeviceId
    arms: tuple[PlacedArm, ...]
    """Each branch is in exactly one of them; each has a resource of its own."""

    def __str__(self) -> str:
        arms = " | ".join(
            f"{','.join(map(str, arm.branches))} on {arm.device}/{arm.configuration}"
            for arm in self.arms
        )
        return f"[{self.segments}] ({arms})"


Step = PlacedSubgraph | PlacedFork


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Steps that together compute the whole model, in order, with a share of the traffic."""

    steps: tuple[Step, ...]
    share: float = 1.0

    def parts(self) -> Iterator[PlacedSubgraph | PlacedArm]:
        """Its subgraphs, and the arms of its forks, in order."""
        for step in self.steps:
            if isinstance(step, PlacedFork):
                yield from step.arms
            else:
                yield step

    def forks(self) -> Iterator[PlacedFork]:
        """Its forks, in order."""
        yield from (step for step in self.steps if isinstance(step, PlacedFork))

    def __str__(self) -> str:
        return " + ".join(map(str, self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a distribution is predicted to give, for every target."""

    latency_s: float
    """Of one request that finds everything idle, on the slowest of the routes."""
    throughput_per_s: float
    """Requests per second once every route has as many as it can work on; inf where nothing takes
    any time."""
    energy_joules: float
    """Per request, above what the devices draw when idle: the mean over the routes. Modelled."""
    peak_memory_bytes: float
    """Weights and activations in the fullest memory: that of a device, or a unit's own."""
    wire_bytes: float
    """Sent between devices per request: the mean over the routes."""
    latency_error_s: float = 0.0
    """How far off the latency may be, from the error of the latency profiles."""

    def value(self, target: Target) -> float:
        """The metric of that target."""
        match target:
            case Target.LATENCY:
                return self.latency_s
            case Target.THROUGHPUT:
                return self.throughput_per_s
            case Target.ENERGY:
                return self.energy_joules
            case Target.MEMORY:
                return self.peak_memory_bytes
            case Target.BYTES:
                return self.wire_bytes

    def cost(self, target: Target) -> float:
        """The metric as what is to be made small: of the throughput, seconds per request."""
        if target is Target.THROUGHPUT:
            return 1.0 / self.throughput_per_s if self.throughput_per_s else float("inf")
        return self.value(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Routes with their predicted metrics, made for one target."""

    target: Target
    routes: tuple[Route, ...]
    """The greatest share first."""
    metrics: Metrics
    bound: float
    """What no distribution can beat, in the unit of the target: its metric is at least this, of
    the throughput at most."""

    @property
    def gap(self) -> float:
        """How much worse than the best possible it may be, as a share of that; 0: it is optimal."""
        best = self.bound
        if self.target is Target.THROUGHPUT:
            best = 1.0 / best if best else float("inf")
        cost = self.metrics.cost(self.target)
        if cost <= best:
            return 0.0
        return cost / best - 1.0 if best else float("inf")

    @property
    def is_optimal(self) -> bool:
        """Whether it is known that there is no better one."""
        return self.gap == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMemory:
    """With so much more in one memory, the model would fit."""

    memory: str
    """A device, or a device and its unit where that has a memory of its own: `desk/gpu`."""
    more_bytes: int
    is_least: bool
    """Whether it is certain that less would not do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """That no distribution keeps to what is asked, and what is missing."""

    target: Target
    reason: str
    is_certain: bool = True
    """False: none was found, but there may be one."""
    missing: tuple[MissingMemory, ...] = ()
    """Where memory is what is missing: in which one more alone would be enough, the least first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What of a memory is used."""

    name: str
    """As of `MissingMemory`."""
    used_bytes: float
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A device that a plan does not use, and why."""

    device: DeviceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The best that one device can do without the others, its inputs and outputs sent as needed."""

    device: DeviceId
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """What there is to know of the answer for a target, beside the distribution itself."""

    memory: tuple[MemoryUse, ...] = ()
    """Every memory that it uses; () where there is no distribution."""
    estimated: tuple[DeviceId, ...] = ()
    """Devices that run segments of it whose times were not measured there."""
    alone: tuple[Alone, ...] = ()
    """Each device on which the whole model fits and may run, the best for the target first."""
    left_out: tuple[LeftOut, ...] = ()
    """Each device that takes no part, and why. Of one that might, only if that was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What planning answers to one request."""

    best: tuple[Distribution | Infeasible, ...]
    """For each target, in the order in which they were asked."""
    front: tuple[Distribution, ...] = ()
    """The Pareto set over these targets; empty where it was not asked, or nothing is feasible."""
    knows_energy: bool = True
    """Whether it is known what the devices draw; if not, energies are 0 and mean nothing."""
    disturbed_fraction: float = 0.0
    """Of the runs in which the times were measured, those beside which others used the processor,
    so that they are longer than alone."""
    appraisals: tuple[Appraisal, ...] = ()
    """For each of `best`, of a loaded model; else ()."""
    notes: tuple[str, ...] = ()
    """For people: which devices are left out of everything and why, whose times are estimated."""
    names: tuple[tuple[DeviceId, str], ...] = ()
    """What people call the devices that are not called by their ids."""
    narrowed: tuple[tuple[DeviceId, DeviceId], ...] = ()
    """From which device to which tensors are sent in fewer bits, as far as they go that way."""
    division: str = ""
    """Of which division of the model the segments are: `ModelSummary.division`."""
