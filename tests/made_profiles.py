"""A device profile for tests, as measuring gives one."""

from __future__ import annotations

import datetime

from edge_agent.devices import Layout, UnitId, UnitKind
from edge_agent.hardware import DeviceProfile, Source, Sourced, SourceKind, UnitProfile
from edge_agent.summaries import Arithmetic

MEASURED = Source(
    key="measured",
    text="measured on pi with onnxruntime 1.32.0",
    kind=SourceKind.MEASURED,
    date=datetime.date(2026, 11, 30),
)


def measured(value: float) -> Sourced:
    """A number that was."""
    return Sourced(value=value, source=MEASURED)


CPU = UnitProfile(
    id=UnitId("cpu"),
    kind=UnitKind.CPU,
    operations_per_s=((Arithmetic.FLOAT32, measured(6e10)), (Arithmetic.INT8, measured(1.2e11))),
    core_operations_per_s=((Arithmetic.FLOAT32, measured(1.6e10)),),
    bandwidth_bytes_per_s=measured(1e10),
    core_bandwidth_bytes_per_s=measured(6e9),
    launch_s=measured(2e-5),
    operator_s=measured(1e-6),
    cores=measured(4.0),
    layouts=(Layout.NCHW, Layout.BLOCKED),
    threads=(1, 4),
)
NPU = UnitProfile(
    id=UnitId("npu"),
    kind=UnitKind.NPU,
    operations_per_s=((Arithmetic.INT8, measured(6e12)),),
    bandwidth_bytes_per_s=measured(3e10),
    launch_s=measured(1e-4),
    operator_s=measured(1e-6),
    memory_bytes=measured(float(64 << 20)),
    layouts=(Layout.NATIVE,),
    takes=(Arithmetic.INT8,),
)


def profile(name: str = "pi", memory_bytes: int = 8 << 30) -> DeviceProfile:
    """Of a device with a processor and an NPU."""
    return DeviceProfile(
        id=name,
        name=f"{name}, Cortex-A76",
        sources=(MEASURED,),
        memory_bytes=measured(float(memory_bytes)),
        available_bytes=measured(float(memory_bytes // 2)),
        units=(CPU, NPU),
    )
