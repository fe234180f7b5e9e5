from __future__ import annotations

import json
import sys

import pytest

from edge_agent.devices import ComputeUnit, Layout, RefusedUnit, UnitId, UnitKind
from edge_agent.engine.runtime import runtime_build, runtime_version
from edge_agent.engine.units import (
    describe_device,
    find_units,
    finding_as_json,
    judge,
    probe_in_child,
    probe_with,
)
from edge_agent.errors import RuntimeUnavailable

GPU = ComputeUnit(
    id=UnitId("gpu0"),
    kind=UnitKind.GPU,
    provider="GpuExecutionProvider",
    provider_version="1.0",
    layouts=(Layout.NCHW,),
    cores=0,
    options=(("device", "0"),),
)
SLOW_S = 60


def child(*before: str, skipping: str = "") -> list[str]:
    """A child that offers a GPU and one more provider, and does `before` unless told to skip."""
    script = [
        "import os, signal, sys, time",
        f"if {skipping!r} in sys.argv[1:]: sys.exit(0)",
        f"print({json.dumps({'offered': ['GpuExecutionProvider', 'Bad']})!r}, flush=True)",
        f"print({finding_as_json(GPU)!r}, flush=True)",
        *before,
    ]
    return [sys.executable, "-c", "\n".join(script)]


def test_the_processor_is_a_unit_with_every_layout() -> None:
    units, refused = find_units(cores=3)
    (cpu,) = (u for u in units if u.provider == "CPUExecutionProvider")
    assert (cpu.id, cpu.kind, cpu.cores) == ("cpu", UnitKind.CPU, 3)
    assert cpu.provider_version == runtime_version()
    assert set(cpu.layouts) == {Layout.NCHW, Layout.NHWC, Layout.BLOCKED}
    assert all(r.reason and r.remedy for r in refused)


def test_azure_and_unknown_providers_are_refused_with_a_reason() -> None:
    azure = judge("AzureExecutionProvider", cores=1)
    assert isinstance(azure, RefusedUnit)
    assert "network" in azure.reason
    unknown = judge("NewExecutionProvider", cores=1)
    assert isinstance(unknown, RefusedUnit)
    assert "does not know" in unknown.reason


def test_a_child_finds_what_we_find() -> None:
    assert probe_in_child(SLOW_S, cores=2) == find_units(cores=2)


def test_a_device_is_described_with_its_units() -> None:
    device = describe_device(processor="P (avx)", cores=(0, 2), memory_bytes=7)
    assert (device.processor, device.cores, device.memory_bytes) == ("P (avx)", (0, 2), 7)
    assert (device.runtime_build, device.runtime_version) == (runtime_build(), runtime_version())
    assert [u.cores for u in device.units if u.id == "cpu"] == [2]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("SIGILL", "instructions that the processor lacks"), ("SIGKILL", "memory")],
)
def test_a_provider_that_kills_the_probe_is_refused_and_the_others_stay(
    name: str, remedy: str
) -> None:
    command = child(f"os.kill(os.getpid(), signal.{name})", skipping="Bad")
    units, (refused,) = probe_with(command, SLOW_S)
    assert units == (GPU,)
    assert (refused.provider, refused.reason) == ("Bad", f"its probe was ended by {name}")
    assert remedy in refused.remedy


def test_a_provider_that_hangs_is_refused() -> None:
    command = child("time.sleep(600)", skipping="Bad")
    units, (refused,) = probe_with(command, 1.0)
    assert units == (GPU,)
    assert refused.reason == "its probe did not end within 1 s"


def test_a_runtime_that_dies_on_import_is_unavailable() -> None:
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"]
    with pytest.raises(RuntimeUnavailable, match="ended by SIGILL on import; this build uses"):
        probe_with(command, SLOW_S)


def test_a_missing_runtime_is_told_by_the_child() -> None:
    line = json.dumps({"unavailable": "ONNX Runtime is not installed; install it"})
    with pytest.raises(RuntimeUnavailable, match="not installed; install it"):
        probe_with([sys.executable, "-c", f"print({line!r})"], SLOW_S)
