"""Device profiles: what a device can do, each value with where it is from.

A profile stands for a device that need not be present. Times are seconds, sizes bytes, powers
watts, operations per second count a multiply-add as two.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from enum import StrEnum

from edge_agent.devices import Layout, UnitId, UnitKind
from edge_agent.profiles import HOST_UNIT, SegmentTimes
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import Arithmetic, OperatorClass
from edge_agent.tensors import Shape, TensorName


class SourceKind(StrEnum):
    """How much a value is to be believed: what was measured on the device beats the rest."""

    DATA_SHEET = "data sheet"
    """Or a product page or brief: what the maker itself says."""
    THIRD_PARTY = "third-party specification"
    """What somebody else says that the maker says."""
    COMPUTED = "computed from specifications"
    """As cores x clock x operations a cycle."""
    PUBLISHED = "published measurement"
    MEASURED = "measured"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where values are from."""

    key: str
    """How the values of a profile refer to it."""
    text: str
    """What it is, for people."""
    kind: SourceKind
    date: datetime.date
    """When it was read or measured."""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A number and where it is from."""

    value: float
    source: Source

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"got {self.value:g} from {self.source.key}, want at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitProfile:
    """What one compute unit of a device can do."""

    id: UnitId
    kind: UnitKind
    operations_per_s: tuple[tuple[Arithmetic, Sourced], ...]
    """Peak by arithmetic, in the order of `Arithmetic`: of a processor, of all its cores."""
    bandwidth_bytes_per_s: Sourced
    """Of the memory it computes in: of a processor, with all its cores."""
    launch_s: Sourced
    """What starting a subgraph costs."""
    operator_s: Sourced
    """What an operator costs however small it is."""
    cores: Sourced | None = None
    """Of a processor."""
    core_operations_per_s: tuple[tuple[Arithmetic, Sourced], ...] = ()
    """Peak of its fastest core; for types that are left out, the share of all cores."""
    core_bandwidth_bytes_per_s: Sourced | None = None
    """What one core gets of the bandwidth alone; None: it is not known."""
    memory_bytes: Sourced | None = None
    """None: it uses the device's memory."""
    idle_w: Sourced | None = None
    """Of the unit alone while it does nothing, and then `busy_w` is of the unit alone, too."""
    busy_w: Sourced | None = None
    """Of the whole device while this unit alone is fully busy; None: it is not known."""
    border_s_per_byte: Sourced | None = None
    """What a byte costs on its way between the host's memory and the unit; None: it is not
    known."""
    layouts: tuple[Layout, ...] = ()
    threads: tuple[int, ...] = ()
    """Of a processor, the thread counts to plan with, ascending."""
    takes: tuple[Arithmetic, ...] = ()
    """What it computes in; () all if it has a peak for float32, else what it has a peak for."""
    refuses: tuple[str, ...] = ()
    """Operators that it does not take."""
    efficiencies: tuple[tuple[OperatorClass, Sourced], ...] = ()
    """Share of the peak that operators reach, in the order of `OperatorClass`; for classes that
    are left out, what is usual for the kind of unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProfile:
    """Processor time of one core per byte that is sent or received."""

    send_s_per_byte: Sourced | None = None
    receive_s_per_byte: Sourced | None = None
    encrypted_send_s_per_byte: Sourced | None = None
    encrypted_receive_s_per_byte: Sourced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Measured times of a model's segments, in one configuration of the device."""

    model: ModelId
    starts: tuple[int, ...]
    """The first node of every segment: times are valid for this division only."""
    shapes: tuple[tuple[TensorName, Shape], ...]
    """Of the inputs, as they were measured."""
    times: SegmentTimes
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """What a device can do."""

    id: str
    name: str
    sources: tuple[Source, ...]
    """All that its values refer to, in the order of the file."""
    memory_bytes: Sourced
    units: tuple[UnitProfile, ...]
    available_bytes: Sourced | None = None
    """What the system leaves of the memory; None: it is not known."""
    network: NetworkProfile = NetworkProfile()
    idle_w: Sourced | None = None
    """Of the whole device while it does nothing; None: it is not known."""
    latency: tuple[MeasuredTimes, ...] = ()
    """They beat estimates."""

    @property
    def cores(self) -> int:
        """Processor cores; 1 if the processor is no unit of the profile."""
        found = (unit.cores for unit in self.units if unit.id == HOST_UNIT)
        cores = next(found, None)
        return 1 if cores is None else int(cores.value)

    def has_power(self, unit: UnitProfile) -> bool:
        """Whether it is known what the device draws above idle while that unit works."""
        return unit.busy_w is not None and (unit.idle_w or self.idle_w) is not None
