"""Measured time: configurations, timings, intervals of ratios, and latency profiles."""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.devices import Layout, UnitId
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Shape, TensorName


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Configuration:
    """What a subgraph runs as."""

    unit: UnitId
    layout: Layout
    threads: int
    instances: int = 1
    """How many runs of it may go on at once."""

    def __str__(self) -> str:
        times = f" ×{self.instances}" if self.instances > 1 else ""
        return f"{self.unit}/{self.layout}/{self.threads}t{times}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that was not used, and why."""

    candidate: str
    reason: str
    """One of: slower, undecided, inaccurate, refused, failed, not worth measuring."""
    detail: str
