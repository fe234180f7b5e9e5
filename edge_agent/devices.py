"""A device and its compute units, as found: what can run a subgraph here, what cannot and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

DeviceId = NewType("DeviceId", str)
UnitId = NewType("UnitId", str)


class UnitKind(StrEnum):
    """What sort of hardware a compute unit is."""

    CPU = "CPU"
    GPU = "GPU"
    NPU = "NPU"


class Layout(StrEnum):
    """Memory order of the tensors inside a subgraph."""

    NCHW = "NCHW"
    NHWC = "NHWC"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeUnit:
    """One execution provider on one hardware device with its options, proven by a probe run."""

    id: UnitId
    kind: UnitKind
    provider: str
    provider_version: str
    layouts: tuple[Layout, ...]
    cores: int
    """How many processor cores the unit may use; 0 where it uses none of the host's."""
    options: tuple[tuple[str, str], ...] = ()
    opens_aside: bool = False
    """Whether a process can open a session on it while its other threads go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedUnit:
    """A provider that is offered but not used, with the reason and what the user can do."""

    provider: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What runs an agent: processor, memory and compute units."""

    hostname: str
    processor: str
    """Name and instruction-set features of the processor: compiled files are valid for it only."""
    cores: tuple[int, ...]
    """Numbers of the processor cores this process may use (affinity and cgroup quota applied)."""
    memory_bytes: int
    runtime_version: str
    runtime_build: str
    """The installed build of ONNX Runtime, by its distribution's name."""
    units: tuple[ComputeUnit, ...]
    refused: tuple[RefusedUnit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What changes on a device while it works; the complexity score is a function of it."""

    free_memory_bytes: int
    load_fraction: float
    """Share of the processor that others use, 0 to 1."""
