"""`edge-agent doctor`: whether everything that an agent needs is here and works."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.cli.output import count_text, print_json, settings_of, size_text, told_if_slow
from edge_agent.client import Client
from edge_agent.config import Settings, encode_settings, settings_key, why_unsafe
from edge_agent.devices import Device, Installed, InstalledPlugin, RefusedUnit
from edge_agent.errors import AgentUnavailable, EdgeAgentError, UsageError
from edge_agent.telemetry import host
from edge_agent.wire.messages import Status

_RUNTIME = "ONNX Runtime"
_LEAST_FREE_BYTES = 64 << 20
"""Of the disk: less is soon full of plans alone."""


class Verdict(StrEnum):
    """How something is."""

    OK = "ok"
    REFUSED = "refused"
    """Offered and not used, and nobody asked for it."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One line of the report."""

    what: str
    text: str
    verdict: Verdict = Verdict.OK
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was checked."""

    healthy: bool
    """No line is a problem."""
    checks: tuple[Checked, ...]
    device: Device | None


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `doctor`."""
    text = "check what an agent needs here: ONNX Runtime, compute units, folders, settings"
    doctor = commands.add_parser(
        "doctor",
        parents=[shared],
        help=text,
        description=f"{text}. Asks the agent if one runs, else tries the compute units itself. "
        "Exit code 1 if something is a problem.",
    )
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check everything, and show it."""
    settings, config = _settings(options)
    each = f"each for at most {settings.planning.probe_s:g} s"
    with told_if_slow(f"trying the compute units, {each} …"):
        report = _examine(settings, config)
    if options.json:
        print_json(report)
    else:
        _print(report)
    return 0 if report.healthy else EdgeAgentError.exit_code


def _settings(options: argparse.Namespace) -> tuple[Settings, Checked]:
    """The settings, without the config file if that is wrong, and what is to be said of it."""
    try:
        settings = settings_of(options)
    except UsageError as error:
        without = argparse.Namespace(socket=options.socket, config=os.devnull)
        wrong = _problem("config file", str(error), "correct it; until then no agent starts")
        return replace(settings_of(without), config_file=None), wrong
    used = "none, the defaults hold" if settings.config_file is None else str(settings.config_file)
    return settings, Checked(what="config file", text=used)


def _examine(settings: Settings, config: Checked) -> Report:
    installed, packages = _installed(settings.planning.probe_s)
    status, device, agent = _ask_agent(settings)
    runtime = _runtime(installed)
    if status is None:
        device, untried = _try_units(settings)
        runtime = untried or runtime
    state = settings.state if status is None else Path(status.state_folder)
    memory = f"{size_text(host.memory_bytes())}, {size_text(host.free_memory_bytes())} free"
    checks = (
        Checked(what="Python", text=f"{platform.python_version()}, {sys.executable}"),
        runtime,
        agent,
        Checked(what="processor", text=host.processor()),
        Checked(what="cores", text=", ".join(map(str, host.granted_cores()))),
        Checked(what="memory", text=memory),
        _socket_folder(settings.socket.parent),
        _folder("state folder", state),
        _folder("cache folder", settings.cache),
        _agreeing(config, settings, status),
        *_units(device),
        *(_refused(refused, settings) for refused in (device.refused if device else ())),
        *packages,
    )
    is_healthy = all(check.verdict is not Verdict.PROBLEM for check in checks)
    return Report(healthy=is_healthy, checks=checks, device=device)


def _agreeing(config: Checked, settings: Settings, status: Status | None) -> Checked:
    """What is said of the config file beside an agent that was started with another one, or before
    it was edited: what is told of the units is what that agent found."""
    if status is None or config.verdict is Verdict.PROBLEM or not status.settings_key:
        return config
    if status.settings_key == settings_key(settings):
        return config
    text = f"{config.text}; the agent runs with other settings, and found its units with those"
    if settings.config_file is None:
        return replace(config, text=text)
    return _problem(config.what, text, "restart the agent, if it is to use this file")


def _problem(what: str, text: str, remedy: str) -> Checked:
    return Checked(what=what, text=text, verdict=Verdict.PROBLEM, remedy=remedy)


def _ask_agent(settings: Settings) -> tuple[Status | None, Device | None, Checked]:
    """What the agent at the socket says of itself and of the device, if there is one."""
    status = None
    try:
        with Client(settings.socket) as client:
            status = client.status()
            text = f"version {status.version}, pid {status.pid}, socket {settings.socket}"
            return status, client.devices(), Checked(what="agent", text=text)
    except EdgeAgentError as error:
        if status is None and isinstance(error, AgentUnavailable):
            return None, None, Checked(what="agent", text=f"none runs at {settings.socket}")
        return status, None, _told(error, "agent", "see what the agent logs")


def _told(error: EdgeAgentError | str, what: str, remedy: str) -> Checked:
    text, _, own_remedy = str(error).partition("; ")
    return _problem(what, text, own_remedy or remedy)


def _try_units(settings: Settings) -> tuple[Device | None, Checked | None]:
    """The device as a child process finds it, or what prevents that."""
    command = [sys.executable, "-m", "edge_agent.profiling", "device", encode_settings(settings)]
    child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if child.returncode != 0:
        last = "".join(child.stderr.decode(errors="replace").strip().splitlines()[-1:])
        text = f"looking for compute units {_end_text(child.returncode)}: {last}"
        return None, _problem(_RUNTIME, text, "reinstall edge-agent and ONNX Runtime")
    found = _last_line(child.stdout)
    if "unavailable" in found:
        return None, _told(found["unavailable"], _RUNTIME, "reinstall ONNX Runtime")
    return msgspec.convert(found, Device), None


def _installed(timeout_s: float) -> tuple[Installed | None, tuple[Checked, ...]]:
    """What a child process finds installed, and a line for each plugin provider."""
    command = [sys.executable, "-m", "edge_agent.profiling", "installed"]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
        output, how = child.stdout, _end_text(child.returncode)
    except subprocess.TimeoutExpired as error:
        output, how = error.stdout or b"", f"did not end within {timeout_s:g} s"
    found = _last_line(output)
    if how:
        package = found.get("asking", "onnxruntime-…")
        text = f"asking it what it brings {how}"
        return None, (_faulty_package(package, text),)
    installed = msgspec.convert(found, Installed)
    return installed, tuple(map(_plugin, installed.plugins))


def _end_text(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}" if code else ""


def _last_line(output: bytes) -> dict[str, Any]:
    last = output.splitlines()[-1:]
    return dict(msgspec.json.decode(last[0])) if last else {}


def _runtime(installed: Installed | None) -> Checked:
    builds = installed.builds if installed is not None else ()
    text = ", ".join(f"{name} {version}" for name, version in builds)
    if len(builds) > 1:
        return _problem(_RUNTIME, f"{text} are installed together", "uninstall all but one")
    if installed is not None and installed.untried:
        remedy = "install one of the versions that the README names"
        return _problem(_RUNTIME, f"{text}: was never tried with edge-agent", remedy)
    return Checked(what=_RUNTIME, text=text or "that of the agent")


def _socket_folder(folder: Path) -> Checked:
    what = "socket folder"
    if not os.path.lexists(folder):
        return _folder(what, folder)
    if reason := why_unsafe(folder):
        remedy = f"`chmod 700 {folder}` if it has no other use, or choose another with --socket"
        return _problem(what, f"{folder}: {reason}", remedy)
    return _folder(what, folder)


def _folder(what: str, folder: Path) -> Checked:
    """Whether files can be written there, or where it would be made."""
    # `Path.exists` raises where a folder on the way may not be entered.
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    remedy = f"make {there} a folder that this user can write to, or choose another one"
    if not there.is_dir():
        return _problem(what, f"{there} is no folder", remedy)
    if not os.access(there, os.W_OK | os.X_OK):
        return _problem(what, f"{there}: is not writable", remedy)
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < _LEAST_FREE_BYTES:
        text = f"{folder}: {size_text(free_bytes)} free"
        return _problem(what, text, f"free {size_text(_LEAST_FREE_BYTES)} of the disk")
    made = "" if there == folder else ", made when an agent starts"
    return Checked(what=what, text=f"{folder}{made}, {size_text(free_bytes)} free")


def _units(device: Device | None) -> Iterator[Checked]:
    for unit in device.units if device else ():
        caps = [count_text(unit.cores, "core")] if unit.cores else []
        caps += [f"at most {size_text(unit.memory_bytes)}"] if unit.memory_bytes else []
        parts = (f"{unit.provider} {unit.provider_version}", *caps, ", ".join(unit.layouts))
        yield Checked(what=f"unit {unit.id}", text=f"{unit.kind}, {'; '.join(parts)}")
    if device is not None and not any(unit.id == "cpu" for unit in device.units):
        yield _problem("unit cpu", "does not work", "reinstall ONNX Runtime")


def _refused(refused: RefusedUnit, settings: Settings) -> Checked:
    wanted = {table.id for table in settings.units if not table.off}
    return Checked(
        what=f"unit {refused.unit}" if refused.unit else f"provider {refused.provider}",
        text=refused.reason if refused.unit is None else f"{refused.provider}: {refused.reason}",
        verdict=Verdict.PROBLEM if refused.unit in wanted else Verdict.REFUSED,
        remedy=refused.remedy,
    )


def _plugin(plugin: InstalledPlugin) -> Checked:
    if plugin.fault:
        return _faulty_package(plugin.package, plugin.fault)
    text = f"{plugin.version}, brings {plugin.provider}"
    return Checked(what=f"package {plugin.package}", text=text)


def _faulty_package(package: str, text: str) -> Checked:
    return Checked(
        what=f"package {package}",
        text=text,
        verdict=Verdict.REFUSED,
        remedy=f"reinstall it (pip install --force-reinstall {package}), or uninstall it",
    )


def _print(report: Report) -> None:
    verdict_width = max(len(verdict) for verdict in Verdict)
    what_width = max(len(check.what) for check in report.checks)
    for check in report.checks:
        start = f"{check.verdict:<{verdict_width}}  {check.what:<{what_width}}  "
        print(f"{start}{check.text}")
        if check.remedy:
            print(f"{' ' * len(start)}→ {check.remedy}")
    problems = sum(check.verdict is Verdict.PROBLEM for check in report.checks)
    print(count_text(problems, "problem") if problems else "everything that is needed works")
