"""What a simulation saw: metrics, every request, how busy and how crowded everything was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.plans import Target
from edge_agent.simulation.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMetrics:
    """What a distribution gave, for every target."""

    latency_s: float
    """Of a lone request that finds everything idle, on the slowest of the routes, before anything
    of the trace happens."""
    throughput_per_s: float
    """Requests per second, once steady, under the workload; of a lone request, what one after the
    other gives."""
    energy_joules: float
    """Per request, above idle: the mean over the requests that were measured. Modelled."""
    peak_memory_bytes: float
    """Weights and arenas in the fullest memory, once deployed."""
    wire_bytes: float
    """Sent between devices per request: the mean over the requests that were measured."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A request and its answer."""

    number: int
    """In the order of arrival, from 0."""
    route: int
    arrived_s: float
    answered_s: float
    joules: float
    wire_bytes: int

    @property
    def latency_s(self) -> float:
        """From arrival to answer."""
        return self.answered_s - self.arrived_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyQuantiles:
    """Of the requests that were measured, each the least latency that so many did not exceed."""

    p50_s: float
    p95_s: float
    p99_s: float
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """How busy a resource was while requests were measured."""

    name: str
    """A device, device/unit, a link or a medium, as metrics name it."""
    busy_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUse:
    """What waited: for a lane of a station, or for credit of a stream."""

    name: str
    mean_length: float
    """While requests were measured."""
    most: int
    """At any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """All that a simulation saw."""

    metrics: SimulatedMetrics
    latency: LatencyQuantiles
    requests: tuple[ServedRequest, ...]
    """All that were answered, in the order of their answers."""
    unanswered: int
    """Requests that had arrived but were not answered when it ended, because the loop ended or a
    link was down for good."""
    measured_from_s: float
    ended_s: float
    resources: tuple[ResourceUse, ...]
    queues: tuple[QueueUse, ...]
    memory_bytes: tuple[tuple[str, float], ...]
    """In every memory that is used: a device's, or device/unit."""
    spans: tuple[Span, ...] = ()
    """What went on when, if that was wanted."""

    @property
    def busiest(self) -> ResourceUse | None:
        """The resource that was busiest; the first of equals; None: nothing was busy."""
        return max(self.resources, key=lambda use: use.busy_fraction, default=None)

    def answered_per_s(self, start_s: float, stop_s: float) -> float:
        """Answers in [start_s, stop_s), per second."""
        inside = sum(1 for r in self.requests if start_s <= r.answered_s < stop_s)
        return inside / (stop_s - start_s)


def latency_quantiles(latencies_s: Sequence[float]) -> LatencyQuantiles:
    """Nearest-rank quantiles; nan where nothing was answered."""
    ranked = sorted(latencies_s)

    def at(fraction: float) -> float:
        return ranked[max(math.ceil(fraction * len(ranked)) - 1, 0)] if ranked else math.nan

    return LatencyQuantiles(p50_s=at(0.50), p95_s=at(0.95), p99_s=at(0.99), most_s=at(1.0))


def steady_rate_per_s(answered_s: Sequence[float]) -> float:
    """Answers per second: the slope of the least-squares line through (time, number answered).

    Answers that come in bursts, as those of several instances do, hardly move it, wherever the
    measurement starts and ends. inf where all of them came at one time; 0 for fewer than two.
    """
    count = len(answered_s)
    if count < 2:
        return 0.0
    mean_s = sum(answered_s) / count
    mean = (count - 1) / 2
    spread = sum((at_s - mean_s) ** 2 for at_s in answered_s)
    if spread == 0.0:
        return math.inf
    return sum((at_s - mean_s) * (i - mean) for i, at_s in enumerate(answered_s)) / spread
