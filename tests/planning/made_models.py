"""Made-up model summaries and profiles with known truths."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edge_agent.devices import DeviceState, Layout, UnitId
from edge_agent.planning.score import ProcessorRates
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import CutPoint, ModelSummary, Segment
from edge_agent.tensors import ElementType, TensorName, TensorSpec

IDLE = DeviceState(free_memory_bytes=2**33, load_fraction=0.0)
PROCESSOR = ProcessorRates(operations_per_s=1e10, bytes_per_s=1e10, launch_s=1e-4)


def configuration(
    layout: Layout = Layout.NCHW, threads: int = 1, instances: int = 1, unit: str = "cpu"
) -> Configuration:
    return Configuration(unit=UnitId(unit), layout=layout, threads=threads, instances=instances)


def accelerator(
    unit: str = "gpu0", layout: Layout = Layout.NATIVE, *, falls_back: bool = False
) -> Configuration:
    return Configuration(unit=UnitId(unit), layout=layout, threads=0, falls_back=falls_back)


def segment(
    index: int,
    *,
    operator: str = "Conv",
    operations: int = 10_000_000,
    parallel: float = 1.0,
    activation_bytes: int = 1000,
    weight_bytes: int = 1000,
    nodes: int = 3,
) -> Segment:
    return Segment(
        index=index,
        start=index * nodes,
        stop=(index + 1) * nodes,
        operators=((operator, nodes),),
        operations=operations,
        activation_bytes=activation_bytes,
        weight_bytes=weight_bytes,
        parallel_operations=round(operations * parallel),
    )


def summary(
    segments: Sequence[Segment], crossing_bytes: Sequence[int | None] | None = None
) -> ModelSummary:
    crossing = [1000] * (len(segments) - 1) if crossing_bytes is None else crossing_bytes
    image = TensorSpec(
        name=TensorName("image"), element_type=ElementType.FLOAT32, dims=(1, 3, 224, 224)
    )
    return ModelSummary(
        model=ModelId("3f" * 32),
        inputs=(image,),
        outputs=(image,),
        shapes=((TensorName("image"), (1, 3, 224, 224)),),
        nodes=segments[-1].stop,
        segments=tuple(segments),
        cuts=tuple(
            CutPoint(position=before.stop, crossing=(), crossing_bytes=crossing[i])
            for i, before in enumerate(segments[:-1])
        ),
        weight_bytes=sum(s.weight_bytes for s in segments),
    )


def chain(count: int, crossing_bytes: Sequence[int | None] | None = None) -> ModelSummary:
    return summary([segment(i) for i in range(count)], crossing_bytes)


def times(
    which: Configuration,
    segment_s: Sequence[float],
    overhead_s: float = 0.0,
    border_s_per_byte: float = 0.0,
    refused: Collection[int] = (),
) -> SegmentTimes:
    return SegmentTimes(
        configuration=which,
        segment_s=tuple(0.0 if i in refused else s for i, s in enumerate(segment_s)),
        refused=tuple(sorted(refused)),
        overhead_s=overhead_s,
        border_s_per_byte=border_s_per_byte,
        error_fraction=0.0,
    )


def latency_profile(
    model: ModelSummary, all_times: Sequence[SegmentTimes], plain_s: float = 0.06
) -> LatencyProfile:
    return LatencyProfile(
        model=model.model,
        device_key="made",
        shapes=model.shapes,
        times=tuple(all_times),
        windows=(),
        plain_s=plain_s,
        profiling_s=11.5,
    )
