"""Which providers there are to be tried, and what the config file says of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edge_agent.config import UnitSettings
from edge_agent.devices import UnitId
from edge_agent.engine.plugins import installed_plugins, is_registered
from edge_agent.engine.providers import KnownProvider, known_provider, known_unit, unknown_provider
from edge_agent.engine.runtime import load_runtime

NOT_INSTALLED: Final = "no provider of that name is installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A provider that may become a unit."""

    provider: str
    library: str = ""
    """Absolute path, of a plugin provider."""
    package: str = ""
    """Which brings the library; "" where the config file names it."""
    version: str = ""
    settings: UnitSettings | None = None
    """Its table in the config file."""
    fault: str = ""
    """Why it cannot even be tried."""

    @property
    def name(self) -> str:
        """What it alone is called while the units are looked for."""
        return self.provider if self.settings is None else self.settings.id

    @property
    def entry(self) -> KnownProvider | None:
        """How it becomes a unit, if that is known or the config file says enough."""
        known, table = known_provider(self.provider), self.settings
        if known is None and table is not None and table.kind is not None:
            known = unknown_provider(self.provider, table.id, table.kind)
        return known

    @property
    def unit(self) -> UnitId | None:
        """The id of the unit that it would be, if it has one."""
        if self.settings is not None:
            return self.settings.id
        return None if self.entry is None else self.entry.unit


def candidates(
    units: Sequence[UnitSettings] = (),
    *,
    skip_packages: Collection[str] = (),
    on_asking: Callable[[str], None] = lambda _package: None,
) -> tuple[Candidate, ...]:
    """What the installed ONNX Runtime offers, in its order, then plugin providers of installed
    packages, then what only the config file names; each with what `units` say of it.

    Imports packages as `installed_plugins` does.

    Raises: RuntimeUnavailable.
    """
    available = load_runtime().get_available_providers()
    # Once loaded, plugin providers are listed too, but sessions get onto them another way.
    offered = tuple(Candidate(provider=p) for p in available if not is_registered(p))
    known = {candidate.provider for candidate in offered}
    plugins = tuple(
        Candidate(
            provider=p.provider,
            library=p.library,
            package=p.package,
            version=p.version,
            fault=p.fault,
        )
        for p in installed_plugins(skip_packages, on_asking)
        if p.provider not in known
    )
    return configured((*offered, *plugins), units)


def configured(
    offered: Sequence[Candidate], units: Sequence[UnitSettings]
) -> tuple[Candidate, ...]:
    """`offered` with the tables of the config file: a provider that tables are about becomes one
    candidate for each of them, and what is not offered follows."""
    found: list[Candidate] = []
    for candidate in offered:
        tables = [table for table in units if _provider_of(table) == candidate.provider]
        found += [_with(candidate, table) for table in tables] or [candidate]
    there = {candidate.provider for candidate in offered}
    for table in units:
        if (provider := _provider_of(table)) not in there:
            found.append(_with(Candidate(provider=provider, fault=NOT_INSTALLED), table))
    return tuple(found)


def _provider_of(table: UnitSettings) -> str:
    known = known_unit(table.id)
    return table.provider or (table.id if known is None else known.provider)


def _with(candidate: Candidate, table: UnitSettings) -> Candidate:
    if table.library is None:
        return replace(candidate, settings=table)
    return Candidate(provider=candidate.provider, library=str(table.library), settings=table)


def is_unknown(candidate: Candidate) -> bool:
    """Whether it is a table of a name that no unit ever has, and so a mistake, even to be off."""
    table = candidate.settings
    return bool(candidate.fault) and table is not None and known_unit(table.id) is None


def fault_of(candidate: Candidate) -> str:
    """Why a candidate cannot be tried, or "" if it can; looks whether its library is there."""
    if candidate.fault:
        return candidate.fault
    owner = None if candidate.unit is None else known_unit(candidate.unit)
    if owner is not None and owner.provider != candidate.provider:
        return f"{candidate.unit} is the unit of {owner.provider}"
    if candidate.entry is None:
        return "edge-agent does not know this provider"
    if candidate.library and not Path(candidate.library).is_file():
        return f"there is no file {candidate.library}"
    if candidate.library and _is_for_others(Path(candidate.library)):
        return f"{candidate.library} is made for another kind of processor"
    return ""


def _is_for_others(library: Path) -> bool:
    """Whether a library's ELF header names another machine than Python's own; to load it, Linux
    says only that there is no such file."""
    try:
        machines = {_machine(file) for file in (library, Path("/proc/self/exe"))}
    except OSError:
        return False
    return None not in machines and len(machines) > 1


def _machine(file: Path) -> bytes | None:
    with file.open("rb") as opened:
        header = opened.read(20)
    return header[18:20] if header[:4] == b"\x7fELF" else None
