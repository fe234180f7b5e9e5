"""What the user can do about a provider that is no compute unit."""

from __future__ import annotations

import signal
from typing import Final

from edge_agent.engine.offers import NOT_INSTALLED, Candidate
from edge_agent.engine.providers import PROVIDERS, known_unit
from edge_agent.engine.runtime import NEWEST, OLDEST

_VERSIONS: Final = "{}.{} and {}.{}".format(*OLDEST, *NEWEST)


def after_fault(candidate: Candidate) -> str:
    """What makes a candidate one that can be tried."""
    table = candidate.settings
    if candidate.fault == NOT_INSTALLED and table is not None:
        if candidate.entry is not None:
            return (
                f"install the build or the plugin of ONNX Runtime that has {candidate.provider}, "
                f"or remove [units.{table.id}] from {table.file}"
            )
        ids = ", ".join(known.unit for known in PROVIDERS)
        if table.off:
            return (
                f"correct the name in {table.file}, which is none of {ids}, or remove the table: "
                "there is nothing to switch off"
            )
        return (
            f"give {table.key('library')}, with `provider` and `kind`, or correct the name: "
            f"without them it is one of {ids}"
        )
    if candidate.fault:
        return f"reinstall it: pip install --force-reinstall {candidate.package}"
    owner = None if table is None else known_unit(table.id)
    if table is not None and owner is not None and owner.provider != candidate.provider:
        return f"give [units.{table.id}] in {table.file} another name"
    if candidate.entry is None:
        return _naming_the_kind(candidate)
    return after_failure(candidate)


def _naming_the_kind(candidate: Candidate) -> str:
    if candidate.settings is not None:
        return f"give {candidate.settings.key('kind')}: CPU, GPU or NPU"
    return (
        "nothing to do, models run on the other units; or give it a table [units.NAME] with "
        f'provider = "{candidate.provider}" and its kind in the config file'
    )


def after_failure(candidate: Candidate) -> str:
    """What to do where a library cannot be loaded or the probe fails."""
    table = candidate.settings
    first = ""
    if table is not None and table.options:
        first = f"change {table.key('options')}; "
    if table is not None and table.library is not None:
        return f"{first}correct {table.key('library')}, or {_switch_off(candidate)}"
    entry = candidate.entry
    return first + ("reinstall ONNX Runtime" if entry is None else entry.remedy)


def after_end(candidate: Candidate, number: int) -> str:
    """What to do where signal `number` ended the probe."""
    if number == signal.SIGKILL:
        return "the system ended it, most likely for want of memory: free some"
    brought_by = candidate.package or candidate.library
    what = brought_by or f"ONNX Runtime between {_VERSIONS}"
    if number == signal.SIGILL:
        whose = "its library" if brought_by else "this build"
        return (
            f"{whose} uses instructions that the processor lacks: install another version of "
            f"{what}{_or_switch_off(candidate)}"
        )
    again = f"install another version of {what}" if brought_by else "reinstall ONNX Runtime"
    return f"{again}, or update the driver of this unit{_or_switch_off(candidate)}"


def after_waiting(candidate: Candidate) -> str:
    """What to do where the probe does not end."""
    return (
        "update the driver of this unit, restart the device, or give `probe_s` of [planning] in "
        f"the config file more seconds{_or_switch_off(candidate)}"
    )


def _or_switch_off(candidate: Candidate) -> str:
    is_cpu = candidate.unit == "cpu"
    return "" if is_cpu or candidate.unit is None else f"; or {_switch_off(candidate)}"


def _switch_off(candidate: Candidate) -> str:
    if candidate.settings is not None:
        return f"set {candidate.settings.key('off')} to true"
    return f"set [units.{candidate.unit}] off in the config file to true"
