"""Measured time: configurations, timings, intervals of ratios, and latency profiles."""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.devices import Layout, UnitId
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Shape, TensorName

HOST_UNIT = UnitId("cpu")
"""Where plain ONNX Runtime runs."""
HOST = "host"
"""The processor cores, as a resource."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Configuration:
    """What a subgraph runs as."""

    unit: UnitId
    layout: Layout
    threads: int
    """Processor threads; 0 on a unit that uses none of the host's cores."""
    instances: int = 1
    """How many runs of it may go on at once."""
    falls_back: bool = False
    """Whether nodes that the unit refuses run on the processor; only for the whole model."""
    is_half: bool = False
    """Whether it computes in float16 where the model says float32, as the user allowed."""

    @property
    def cores(self) -> int:
        """Processor cores that all its runs at once need."""
        return self.threads * self.instances

    @property
    def resource(self) -> str:
        """What it keeps busy: all that runs on the host's cores shares them."""
        return HOST if self.threads else self.unit

    def __str__(self) -> str:
        unit = f"{self.unit}+cpu" if self.falls_back else self.unit
        half = "/fp16" if self.is_half else ""
        threads = f"/{self.threads}t" if self.threads else ""
        times = f" ×{self.instances}" if self.instances > 1 else ""
        return f"{unit}/{self.layout}{half}{threads}{times}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time of one run: the median of `samples` and the 95 % interval of that median, in seconds."""

    median_s: float
    low_s: float
    high_s: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """Median of paired time ratios with its 95 % interval."""

    median: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measured time of a run of segments as one session in one configuration."""

    segments: SegmentRange
    configuration: Configuration
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTimes:
    """Fitted times of every segment in one configuration.

    The time of a subgraph [i, j) is predicted as
    `overhead_s + sum(segment_s[i:j]) + border_s_per_byte * (bytes in at i + bytes out at j)`;
    graph inputs and outputs are no borders (they cost the whole model the same).
    """

    configuration: Configuration
    segment_s: tuple[float, ...]
    overhead_s: float
    border_s_per_byte: float
    error_fraction: float
    """Median of |predicted - measured| / measured over the windows that were fitted."""
    is_divisible: bool = True
    """Whether parts of the model may run so; False where a part was refused that was tried."""
    refused: tuple[int, ...] = ()
    """Segments that cannot run so, ascending; their `segment_s` is 0 and means nothing."""
    turn_s_per_byte: float = 0.0
    """What of `border_s_per_byte` is spent on turning values from and to NCHW; it is not paid
    between two subgraphs in NHWC on the host's cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What was measured of a run of segments that a device had as a stage, a model of its own."""

    segments: SegmentRange
    """Of the whole model."""
    times: tuple[SegmentTimes, ...]
    """Of these segments alone: the first of them is segment 0 of each. In the configurations that
    the device measured."""
    device_key: str
    """As of `LatencyProfile`, of that device."""
    division: str
    """Which division of the model the segments are of: `ModelSummary.division`."""

    def __post_init__(self) -> None:
        count = len(self.segments)
        for times in self.times:
            where = f"stage {self.segments}, {times.configuration}"
            if len(times.segment_s) != count:
                raise ValueError(
                    f"{where}: got times of {len(times.segment_s)} segments, want {count}"
                )
            for segment in times.refused:
                if not 0 <= segment < count:
                    raise ValueError(
                        f"{where}: got refused segment {segment}, want 0 to {count - 1}"
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedNode:
    """A node that a unit did not take when it was given the whole model."""

    position: int
    """In the topological order."""
    label: str
    """Its name and operator, for people."""
    ran_on: str
    """The unit or provider that took it."""
    reason: str
    """Why, as far as the provider or the rules of the unit tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which nodes of a model a unit took and which it refused, by evidence."""

    unit: UnitId
    taken: int
    """Nodes that ran there."""
    refused: tuple[RefusedNode, ...]
    removed: int
    """Nodes that ONNX Runtime computed when it loaded the model, or made part of others."""
    evidence: str
    """Where this is from, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProfile:
    """All that was measured of one model on this device, for one set of input shapes."""

    model: ModelId
    device_key: str
    """Processor, ONNX Runtime build and version: a profile is valid for these only."""
    shapes: tuple[tuple[TensorName, Shape], ...]
    times: tuple[SegmentTimes, ...]
    windows: tuple[Window, ...]
    plain_s: float
    """Median time of plain ONNX Runtime on the whole model, default options, in seconds."""
    profiling_s: float
    rejections: tuple[Rejection, ...] = ()
    disturbed_fraction: float = 0.0
    """Share of the runs beside which others used the processor; they take longer than alone."""
    placements: tuple[Placement, ...] = ()
    """Of every unit beside the processor that was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that was not used, and why."""

    candidate: str
    reason: str
    """One of: slower, undecided, inaccurate, refused, failed, not worth measuring."""
    detail: str
