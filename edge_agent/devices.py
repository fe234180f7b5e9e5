"""A device and its compute units, as found: what can run a subgraph here, what cannot and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

DeviceId = NewType("DeviceId", str)
UnitId = NewType("UnitId", str)

THIS_DEVICE = DeviceId("local")
"""What planning calls the device on which it happens, which is the owner."""


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
    NATIVE = "native"
    """Whatever order the unit chooses by itself."""


class Keeping(StrEnum):
    """In what form what a unit made of a graph is kept, so that opening it again is quick."""

    GRAPH = "optimised graph"
    """As a graph that is opened without optimising it."""
    CONTEXT = "context"
    """As what the provider compiled, with a graph of EPContext nodes around it."""
    NOTHING = "nothing"


Options = tuple[tuple[str, str], ...]
"""Of a provider, as (name, value), sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderUse:
    """An execution provider with its options, as a session is opened on it."""

    provider: str
    options: Options = ()
    library: str = ""
    """Absolute path of the library of a plugin provider; "" for one that the build has."""
    memory: str = ""
    """What IO binding calls the memory in which values may stay between its sessions, with a
    number if there are several, as in `cuda:1`; "" if they come back to the host each time."""


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
    options: Options = ()
    """In every layout."""
    layout_options: tuple[Options, ...] = ()
    """In addition, for each of `layouts`; () if no layout has any."""
    threads_option: str = ""
    """Which option says how many processor threads it may use, if it has threads of its own."""
    library: str = ""
    """As in `ProviderUse`."""
    memory: str = ""
    """As in `ProviderUse`, without a number."""
    memory_bytes: int = 0
    """Most bytes of weights and activations that may be there at once; 0: no cap."""
    takes_open_dimensions: bool = True
    """Whether it takes graphs whose dimensions are not all fixed."""
    takes_floats: bool = True
    """Whether it computes in float32; else only what is quantised."""
    keeps: Keeping = Keeping.NOTHING
    """What was kept of a small model, opened again and gave equal outputs."""
    keeps_nothing_because: str = ""
    opens_aside: bool = False
    """Whether a process can open a session on it while its other threads go on."""

    def use(self, layout: Layout, threads: int) -> ProviderUse:
        """How a session gets onto it in one of its layouts, with so many processor threads."""
        chosen = dict(self.options)
        if self.layout_options:
            chosen |= dict(self.layout_options[self.layouts.index(layout)])
        if self.threads_option:
            chosen[self.threads_option] = str(threads)
        options = tuple(sorted(chosen.items()))
        number = chosen.get("device_id", "")
        memory = f"{self.memory}:{number}" if self.memory and number else self.memory
        return ProviderUse(
            provider=self.provider, options=options, library=self.library, memory=memory
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedUnit:
    """A provider that is offered but not used, with the reason and what the user can do."""

    provider: str
    reason: str
    remedy: str
    unit: UnitId | None = None
    """Which unit it would be, where that is known."""


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

    @property
    def key(self) -> str:
        """What its measurements are valid for, but for the units."""
        return f"{self.runtime_build} {self.runtime_version} on {self.processor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPlugin:
    """A provider that a package brings, as the package says."""

    package: str
    version: str
    provider: str
    fault: str = ""
    """Why the package cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What of ONNX Runtime is installed in a Python environment."""

    builds: tuple[tuple[str, str], ...] = ()
    """(distribution, version); one of them is right."""
    untried: tuple[str, ...] = ()
    """Versions that edge-agent was never tried with."""
    plugins: tuple[InstalledPlugin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What changes on a device while it works; the complexity score is a function of it."""

    free_memory_bytes: int
    load_fraction: float
    """Share of the processor that others use, 0 to 1."""
