"""The complexity score: what a subgraph demands of this device, and so what is worth measuring.

Time is estimated with the roofline model (Williams, Waterman, Patterson: Roofline, an insightful
visual performance model for multicore architectures, CACM 52(4), 2009), segment by segment:

    time = max(operations / operations_per_s, bytes * paging / bytes_per_s) / available

`available` is the share of the processor that others leave free. `paging` is 1 as long as the
weights and the largest activations fit into the free memory; the part that does not fit is read
again from storage, `_PAGING_SLOWDOWN` times as slowly. Threads shorten the parallel share of a
segment only (Amdahl, AFIPS 1967).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.devices import DeviceState, Layout
from edge_agent.profiles import Configuration, Rejection
from edge_agent.subgraphs import ComplexityScore, SegmentRange
from edge_agent.summaries import Segment

NOT_WORTH_MEASURING = "not worth measuring"

_LEAST_AVAILABLE = 0.05
_PAGING_SLOWDOWN = 20.0
# Waking the threads of a pool and waiting for the last one, per operator: 3 to 8 µs on desktop
# and small ARM processors; spinning makes it less, a busy device more.
_BARRIER_S = 5e-6
# The roofline is off by up to this factor either way, so only clear cases are left unmeasured.
_DOUBT = 4.0
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_BLOCKED_STARTS = frozenset({"Conv"}) | _CONTROL_FLOW
_NHWC_STARTS = (
    frozenset({"Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "Transpose"})
    | frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "QLinearGlobalAveragePool"})
    | frozenset({"QLinearAveragePool", "Resize"})
    | _CONTROL_FLOW
)
_LAYOUT_STARTS = {Layout.BLOCKED: _BLOCKED_STARTS, Layout.NHWC: _NHWC_STARTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorRates:
    """What one thread of the processor sustains when nothing else runs."""

    operations_per_s: float
    bytes_per_s: float
    launch_s: float
    """What starting one more subgraph costs, in seconds."""

    def __post_init__(self) -> None:
        if min(self.operations_per_s, self.bytes_per_s, self.launch_s) <= 0:
            raise ValueError(f"got {self}, want every rate above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthMeasuring:
    """Which configurations may win for a subgraph, and why the others cannot."""

    configurations: tuple[Configuration, ...]
    rejections: tuple[Rejection, ...]


def estimate_s(
    segments: Sequence[Segment], state: DeviceState, processor: ProcessorRates, threads: int = 1
) -> float:
    """Roofline time of a run of segments on `threads` threads in the device's present state."""
    available = max(1.0 - state.load_fraction, _LEAST_AVAILABLE)
    paging = _paging(segments, state)
    return sum(
        _segment_s(segment, processor, paging) / available * _thread_share(segment, threads)
        for segment in segments
    )


def score(
    segments: Sequence[Segment], state: DeviceState, processor: ProcessorRates
) -> ComplexityScore:
    """The complexity score of a run of segments.

    Raises:
        ValueError: `segments` is empty.
    """
    if not segments:
        raise ValueError("got no segments, want at least one")
    operations = sum(s.operations for s in segments)
    moved = sum(_moved_bytes(s) for s in segments)
    parallel = sum(s.parallel_operations for s in segments)
    estimated = estimate_s(segments, state, processor)
    return ComplexityScore(
        operations=operations,
        bytes_moved=moved,
        operations_per_byte=operations / moved if moved else 0.0,
        parallel_fraction=min(parallel / operations, 1.0) if operations else 0.0,
        estimated_s=estimated,
        score=estimated / processor.launch_s,
    )


def worth_measuring(
    segments: Sequence[Segment],
    configurations: Sequence[Configuration],
    state: DeviceState,
    processor: ProcessorRates,
    *,
    border_bytes: int = 0,
) -> WorthMeasuring:
    """Divide `configurations` into those that may win for `segments` and those that cannot.

    `border_bytes` is what an accelerator must be handed and hand back. On one thread, in NCHW, on
    the host's cores, once at a time, every subgraph is worth measuring.

    Raises:
        ValueError: `segments` is empty.
    """
    if not segments:
        raise ValueError("got no segments, want at least one")
    place = SegmentRange(start=segments[0].index, stop=segments[-1].index + 1)
    kept: list[Configuration] = []
    rejections: list[Rejection] = []
    for configuration in configurations:
        doubt = (
            _layout_doubt(segments, configuration)
            or _thread_doubt(segments, configuration, state, processor)
            or _memory_doubt(segments, configuration, state)
        )
        if not configuration.threads:
            doubt = doubt or _launch_doubt(segments, state, processor, border_bytes)
        if doubt is None:
            kept.append(configuration)
        else:
            rejections.append(
                Rejection(
                    candidate=f"[{place}] {configuration}",
                    reason=NOT_WORTH_MEASURING,
                    detail=doubt,
                )
            )
    return WorthMeasuring(configurations=tuple(kept), rejections=tuple(rejections))


def _layout_doubt(segments: Sequence[Segment], configuration: Configuration) -> str | None:
    starts = _LAYOUT_STARTS.get(configuration.layout)
    if starts is None or any(name in starts for s in segments for name, _ in s.operators):
        return None
    return f"no operator here runs differently in {configuration.layout}: it would equal NCHW"


def _thread_doubt(
    segments: Sequence[Segment],
    configuration: Configuration,
    state: DeviceState,
    processor: ProcessorRates,
) -> str | None:
    if configuration.threads <= 1:
        return None
    alone_s = estimate_s(segments, state, processor)
    saved_s = alone_s - estimate_s(segments, state, processor, configuration.threads)
    barriers = sum(s.stop - s.start for s in segments if s.parallel_operations)
    barrier_s = barriers * _BARRIER_S
    if barriers and saved_s * _DOUBT >= barrier_s:
        return None
    return (
        f"{configuration.threads} threads would save about {saved_s * 1e6:.0f} µs and pay "
        f"{barrier_s * 1e6:.0f} µs for {barriers} barriers"
    )


def _memory_doubt(
    segments: Sequence[Segment], configuration: Configuration, state: DeviceState
) -> str | None:
    if configuration.instances == 1:
        return None
    needed = sum(s.weight_bytes for s in segments)
    needed += configuration.instances * max(s.activation_bytes for s in segments)
    if needed <= state.free_memory_bytes:
        return None
    return (
        f"{configuration.instances} instances need {needed / 2**20:.0f} MiB, "
        f"{state.free_memory_bytes / 2**20:.0f} MiB are free"
    )


def _launch_doubt(
    segments: Sequence[Segment], state: DeviceState, processor: ProcessorRates, border_bytes: int
) -> str | None:
    work_s = estimate_s(segments, state, processor)
    price_s = processor.launch_s + border_bytes / processor.bytes_per_s
    if work_s >= price_s:
        return None
    return (
        f"about {work_s * 1e6:.0f} µs of work do not pay {price_s * 1e6:.0f} µs for a launch "
        f"and two copies"
    )


def _segment_s(segment: Segment, processor: ProcessorRates, paging: float) -> float:
    compute_s = segment.operations / processor.operations_per_s
    memory_s = _moved_bytes(segment) * paging / processor.bytes_per_s
    return max(compute_s, memory_s)


def _moved_bytes(segment: Segment) -> int:
    return segment.activation_bytes + segment.weight_bytes


def _thread_share(segment: Segment, threads: int) -> float:
    if not segment.operations:
        return 1.0
    parallel = min(segment.parallel_operations / segment.operations, 1.0)
    return 1.0 - parallel + parallel / threads


def _paging(segments: Sequence[Segment], state: DeviceState) -> float:
    working = sum(s.weight_bytes for s in segments)
    working += max((s.activation_bytes for s in segments), default=0)
    if working <= state.free_memory_bytes:
        return 1.0
    missing = 1.0 - state.free_memory_bytes / working
    return 1.0 + missing * (_PAGING_SLOWDOWN - 1.0)
