"""Made-up device profiles, and models whose estimates are plain to compute."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from edge_agent.devices import Layout, UnitId, UnitKind
from edge_agent.hardware import DeviceProfile, Source, Sourced, SourceKind, UnitProfile
from edge_agent.summaries import Arithmetic, ModelSummary, OperatorClass, OperatorWork
from tests.planning.made_models import segment, summary

HERE = Source(
    key="here", text="made up", kind=SourceKind.MEASURED, date=datetime.date(2026, 11, 29)
)


def sourced(value: float) -> Sourced:
    return Sourced(value=value, source=HERE)


def processor(
    speed: float = 1.0,
    *,
    cores: int = 4,
    threads: tuple[int, ...] = (1, 4),
    layouts: tuple[Layout, ...] = (Layout.NCHW,),
    launch_s: float = 20e-6,
    operator_s: float = 0.0,
) -> UnitProfile:
    """With `speed` times 10 GFLOP/s and 4 GB/s a core; convolutions reach half of it."""
    return UnitProfile(
        id=UnitId("cpu"),
        kind=UnitKind.CPU,
        cores=sourced(cores),
        operations_per_s=((Arithmetic.FLOAT32, sourced(speed * cores * 10e9)),),
        bandwidth_bytes_per_s=sourced(speed * cores * 4e9),
        core_bandwidth_bytes_per_s=sourced(speed * 4e9),
        launch_s=sourced(launch_s / speed),
        operator_s=sourced(operator_s / speed),
        layouts=layouts,
        threads=threads,
        efficiencies=tuple((kind, sourced(0.5)) for kind in OperatorClass),
    )


def accelerator_profile(name: str = "gpu0", speed: float = 1.0) -> UnitProfile:
    """With `speed` times 100 GFLOP/s, of which a half is reached."""
    return UnitProfile(
        id=UnitId(name),
        kind=UnitKind.GPU,
        operations_per_s=((Arithmetic.FLOAT32, sourced(speed * 100e9)),),
        bandwidth_bytes_per_s=sourced(speed * 50e9),
        launch_s=sourced(100e-6 / speed),
        operator_s=sourced(0.0),
        layouts=(Layout.NATIVE,),
        efficiencies=tuple((kind, sourced(0.5)) for kind in OperatorClass),
    )


def board(*units: UnitProfile, memory_bytes: float = 8e9) -> DeviceProfile:
    """A device with these units, else a processor."""
    return DeviceProfile(
        id="board",
        name="A board",
        sources=(HERE,),
        memory_bytes=sourced(memory_bytes),
        available_bytes=sourced(memory_bytes),
        units=units or (processor(),),
    )


def worked(
    operations: Sequence[int], crossing_bytes: Sequence[int | None] | None = None, **more: int
) -> ModelSummary:
    """A chain whose segments are convolutions of so many operations each: one thread of
    `processor()` is estimated to take 0.2 ms for a million, of an accelerator 0.02 ms."""
    found = []
    for index, count in enumerate(operations):
        work = OperatorWork(
            kind=OperatorClass.CONVOLUTION,
            arithmetic=Arithmetic.FLOAT32,
            nodes=3,
            operations=count,
            parallel_operations=count,
            activation_bytes=0,
            weight_bytes=0,
        )
        found.append(replace(segment(index, operations=count), work=(work,), **more))
    return summary(found, crossing_bytes)
