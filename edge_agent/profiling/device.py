"""This device: what it is, what its measurements are valid for, and how fast one thread is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_agent import clock
from edge_agent.config import Settings
from edge_agent.devices import Device
from edge_agent.engine.runtime import runtime_build, runtime_version
from edge_agent.engine.units import describe_device
from edge_agent.planning.score import ProcessorRates
from edge_agent.telemetry import host

_SIDE = 256
_BUFFER_BYTES = 32 << 20
_REPEATS = 5
_NEVER_LARGE_BYTES = 64 << 20
_ALWAYS_LARGE_BYTES = 1 << 30
_LAUNCH_S = 2e-5
"""Starting one more session in a chain: 10 to 30 µs measured on desktop processors."""


def device_key() -> str:
    """Processor and ONNX Runtime: compiled files and profiles are valid for these only.

    Raises:
        RuntimeUnavailable: ONNX Runtime is not installed, or twice.
    """
    return f"{runtime_build()} {runtime_version()} on {host.processor()}"


def is_large(weight_bytes: int) -> bool:
    """Whether weights are so large that no process may hold a copy of them: above 1 GiB, or above
    a quarter of the memory, because packing doubles them in each session and two or three sessions
    are open at once while a plan is made."""
    if weight_bytes <= _NEVER_LARGE_BYTES:
        return False
    return weight_bytes > min(_ALWAYS_LARGE_BYTES, host.memory_bytes() // 4)


def this_device(settings: Settings) -> Device:
    """This device, with the compute units that passed the probe in a child process.

    Raises:
        RuntimeUnavailable: ONNX Runtime is not installed, or twice.
    """
    return describe_device(
        processor=host.processor(),
        cores=host.granted_cores(),
        memory_bytes=host.memory_bytes(),
        units=settings.units,
        timeout_s=settings.planning.probe_s,
    )


def measure_rates() -> ProcessorRates:
    """What one thread sustains: a float32 matrix product and a copy through memory.

    The process limits numpy's own threads to one (see the environment of child processes).
    """
    a = np.ones((_SIDE, _SIDE), np.float32)
    product_s = min(_timed(lambda: a @ a) for _ in range(_REPEATS))
    source = np.ones(_BUFFER_BYTES, np.uint8)
    target = np.empty_like(source)
    copy_s = min(_timed(lambda: np.copyto(target, source)) for _ in range(_REPEATS))
    return ProcessorRates(
        operations_per_s=2 * _SIDE**3 / product_s,
        bytes_per_s=2 * _BUFFER_BYTES / copy_s,
        launch_s=_LAUNCH_S,
    )


def _timed(work: Callable[[], object]) -> float:
    started_s = clock.precise_s()
    work()
    return clock.precise_s() - started_s
