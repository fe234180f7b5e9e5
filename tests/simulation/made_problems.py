"""Made-up problems for simulation: chains over a few devices, with what one test needs of them."""

from __future__ import annotations

from collections.abc import Sequence

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.distributions import PlacedSubgraph, Route
from edge_agent.problems import DeviceStatistics, Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import HOST_UNIT, Configuration, SegmentTimes
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.summaries import Branch, CutPoint, Fork, ModelSummary, Segment

A, B, C = DeviceId("a"), DeviceId("b"), DeviceId("c")
NPU = UnitId("npu0")


def host(*, threads: int = 1, instances: int = 1, layout: Layout = Layout.NCHW) -> Configuration:
    return Configuration(unit=HOST_UNIT, layout=layout, threads=threads, instances=instances)


def npu(*, instances: int = 1) -> Configuration:
    return Configuration(unit=NPU, layout=Layout.NATIVE, threads=0, instances=instances)


def model(
    segments: int,
    crossing_bytes: Sequence[int] | int = 0,
    *,
    weight_bytes: int = 1000,
    working_bytes: int = 100,
    forks: Sequence[Fork] = (),
) -> ModelSummary:
    crossing = (
        [crossing_bytes] * (segments - 1)
        if isinstance(crossing_bytes, int)
        else list(crossing_bytes)
    )
    return ModelSummary(
        model=ModelId("3f" * 32),
        inputs=(),
        outputs=(),
        shapes=(),
        nodes=segments,
        segments=tuple(
            Segment(
                index=i,
                start=i,
                stop=i + 1,
                operators=(("Conv", 1),),
                operations=1000,
                activation_bytes=1000,
                weight_bytes=weight_bytes * (i + 1),
                parallel_operations=1000,
                working_bytes=working_bytes * (i + 1),
            )
            for i in range(segments)
        ),
        cuts=tuple(
            CutPoint(position=i + 1, crossing=(), crossing_bytes=size)
            for i, size in enumerate(crossing)
        ),
        weight_bytes=sum(weight_bytes * (i + 1) for i in range(segments)),
        forks=tuple(forks),
    )


def branch(
    node: int, work: Sequence[float], *, input_bytes: int = 0, output_bytes: int = 0
) -> Branch:
    return Branch(
        nodes=(node,),
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        work=tuple(work),
        weight_bytes=500,
        working_bytes=50,
    )


def times(
    which: Configuration,
    segment_s: Sequence[float],
    *,
    overhead_s: float = 0.0,
    border_s_per_byte: float = 0.0,
    turn_s_per_byte: float = 0.0,
) -> SegmentTimes:
    return SegmentTimes(
        configuration=which,
        segment_s=tuple(segment_s),
        overhead_s=overhead_s,
        border_s_per_byte=border_s_per_byte,
        error_fraction=0.0,
        turn_s_per_byte=turn_s_per_byte,
    )


def device(
    name: DeviceId,
    *profiles: SegmentTimes,
    cores: int | None = None,
    send_s_per_byte: float = 0.0,
    receive_s_per_byte: float = 0.0,
    host_w: tuple[float, float] = (1.0, 5.0),
    npu_w: tuple[float, float] = (0.5, 2.5),
    npu_memory_bytes: int | None = None,
) -> PlannedDevice:
    """Without `cores` it has as many as its configurations need."""
    needed = max((profile.configuration.cores for profile in profiles), default=0)
    return PlannedDevice(
        id=name,
        units=(
            PlannedUnit(id=HOST_UNIT, idle_w=host_w[0], busy_w=host_w[1]),
            PlannedUnit(id=NPU, idle_w=npu_w[0], busy_w=npu_w[1], memory_bytes=npu_memory_bytes),
        ),
        times=profiles,
        memory_bytes=1 << 30,
        cores=max(1, needed) if cores is None else cores,
        send_s_per_byte=send_s_per_byte,
        receive_s_per_byte=receive_s_per_byte,
    )


def link(
    source: DeviceId,
    target: DeviceId,
    *,
    latency_s: float = 0.0,
    goodput_bytes_per_s: float = 1e6,
    medium: str = "",
    joules_per_byte: float = 0.0,
) -> Link:
    return Link(
        source=source,
        target=target,
        latency_s=latency_s,
        goodput_bytes_per_s=goodput_bytes_per_s,
        medium=medium,
        joules_per_byte=joules_per_byte,
    )


def problem(
    summary: ModelSummary,
    devices: Sequence[PlannedDevice],
    links: Sequence[Link] = (),
    *,
    statistics: Sequence[DeviceStatistics] = (),
    input_bytes: int = 0,
    output_bytes: int = 0,
    chunk_bytes: int = 1 << 20,
) -> Problem:
    return Problem(
        summary=summary,
        devices=tuple(devices),
        owner=devices[0].id,
        links=tuple(links),
        statistics=tuple(statistics),
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        chunk_bytes=chunk_bytes,
    )


def placed(start: int, stop: int, where: DeviceId, which: Configuration) -> PlacedSubgraph:
    return PlacedSubgraph(
        segments=SegmentRange(start=start, stop=stop), device=where, configuration=which
    )


def route(*steps: PlacedSubgraph, share: float = 1.0) -> Route:
    return Route(steps=steps, share=share)


def two_devices(
    *,
    at_a_s: float = 0.010,
    at_b_s: float = 0.010,
    crossing_bytes: int = 1000,
    latency_s: float = 0.0,
    medium: str = "",
    goodput_bytes_per_s: float = 1e6,
    output_bytes: int = 0,
    chunk_bytes: int = 1 << 20,
    statistics: Sequence[DeviceStatistics] = (),
) -> Problem:
    """Two segments, and two devices with one core each; both can run both."""
    both = [
        device(name, times(host(), [took_s, took_s])) for name, took_s in ((A, at_a_s), (B, at_b_s))
    ]
    links = [
        link(
            source,
            target,
            latency_s=latency_s,
            medium=medium,
            goodput_bytes_per_s=goodput_bytes_per_s,
        )
        for source, target in ((A, B), (B, A))
    ]
    return problem(
        model(2, crossing_bytes),
        both,
        links,
        statistics=statistics,
        output_bytes=output_bytes,
        chunk_bytes=chunk_bytes,
    )


A_THEN_B = (route(placed(0, 1, A, host()), placed(1, 2, B, host())),)
ALL_ON_A = (route(placed(0, 2, A, host())),)
