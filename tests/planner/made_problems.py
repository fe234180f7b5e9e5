"""A small planning problem with known answers, and a model with what was measured of it."""

from __future__ import annotations

from edge_agent.devices import ComputeUnit, Device, DeviceId, Layout, UnitId, UnitKind
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.store.profiled import ProfiledModel
from tests.planning.made_models import configuration, segment, summary

ONE, TWO = configuration(threads=1), configuration(threads=2)
GPU = Configuration(unit=UnitId("gpu0"), layout=Layout.NATIVE, threads=0)
SUMMARY = summary([segment(i) for i in range(4)])
A, B = DeviceId("a"), DeviceId("b")


def times(which: Configuration, segment_s: float, **more: bool | tuple[int, ...]) -> SegmentTimes:
    """All segments take as long."""
    return SegmentTimes(
        configuration=which,
        segment_s=(segment_s,) * len(SUMMARY.segments),
        overhead_s=0.0,
        border_s_per_byte=0.0,
        error_fraction=0.0,
        **more,  # type: ignore[arg-type]
    )


def problem(busy_w: float = 0.0) -> Problem:
    """A slow owner and a device that is four times as fast, with a quick link between."""
    devices = tuple(
        PlannedDevice(
            id=name,
            units=(PlannedUnit(id=UnitId("cpu"), busy_w=busy_w),),
            times=(times(ONE, segment_s),),
            memory_bytes=10**9,
        )
        for name, segment_s in ((A, 8e-3), (B, 2e-3))
    )
    links = tuple(
        Link(source=s, target=t, latency_s=1e-4, goodput_bytes_per_s=1e8)
        for s, t in ((A, B), (B, A))
    )
    return Problem(
        summary=SUMMARY,
        devices=devices,
        owner=A,
        links=links,
        input_bytes=600_000,
        output_bytes=4000,
    )


def unit(name: str, kind: UnitKind = UnitKind.CPU, memory_bytes: int = 0) -> ComputeUnit:
    """A unit with one layout."""
    return ComputeUnit(
        id=UnitId(name),
        kind=kind,
        provider="P",
        provider_version="1",
        layouts=(Layout.NCHW,),
        cores=2,
        memory_bytes=memory_bytes,
    )


def profiled(*measured: SegmentTimes) -> ProfiledModel:
    """The model with these times, on a device with a processor, an accelerator with memory of its
    own and another one that was not tried."""
    return ProfiledModel(
        summary=SUMMARY,
        profile=LatencyProfile(
            model=SUMMARY.model,
            device_key="this",
            shapes=(),
            times=measured or (times(ONE, 8e-3), times(TWO, 5e-3)),
            windows=(),
            plain_s=0.02,
            profiling_s=1.0,
        ),
        device=Device(
            hostname="here",
            processor="p",
            cores=(0, 1, 2),
            memory_bytes=1 << 33,
            runtime_version="1",
            runtime_build="onnxruntime",
            units=(
                unit("cpu"),
                unit("gpu0", UnitKind.GPU, memory_bytes=1 << 20),
                unit("npu0", UnitKind.NPU),
            ),
        ),
        cores=2,
    )
