"""A compute unit beside the processor that every computer has: the processor, called otherwise."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.devices import ComputeUnit, Device, Keeping, Layout, UnitId, UnitKind
from edge_agent.engine.runtime import CPU
from edge_agent.profiles import HOST_UNIT, Configuration

GPU = UnitId("gpu0")
HOST = ComputeUnit(
    id=HOST_UNIT,
    kind=UnitKind.CPU,
    provider=CPU,
    provider_version="1",
    layouts=(Layout.BLOCKED,),
    cores=1,
)
OTHER = ComputeUnit(
    id=GPU,
    kind=UnitKind.GPU,
    provider=CPU,
    provider_version="1",
    layouts=(Layout.NATIVE,),
    cores=0,
    keeps=Keeping.GRAPH,
)
ON_OTHER = Configuration(unit=GPU, layout=Layout.NATIVE, threads=0)


def device(*units: ComputeUnit) -> Device:
    """One with a core, the processor and `units`."""
    return Device(
        hostname="here",
        processor="p",
        cores=(0,),
        memory_bytes=1 << 34,
        runtime_version="1",
        runtime_build="onnxruntime",
        units=(HOST, *units),
    )


def keeping(keeps: Keeping) -> ComputeUnit:
    """`OTHER`, which keeps what it makes of a graph in that form."""
    return replace(OTHER, keeps=keeps)
