"""`edge-agent devices --export`: the profile of this device, as measured.

It works with and without an agent: one that runs tells of the device and of the models that are
loaded, and goes on serving. What loads providers runs in child processes, which may crash.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.cli.awaiting import awaited_plan
from edge_agent.cli.output import print_json, settings_of
from edge_agent.client import Client
from edge_agent.config import Settings, encode_settings, load_settings
from edge_agent.devices import Device
from edge_agent.errors import (
    AgentUnavailable,
    BuilderLost,
    EdgeAgentError,
    RuntimeUnavailable,
    StorageError,
)
from edge_agent.hardware import DeviceProfile, MeasuredTimes, Source, SourceKind
from edge_agent.plans import ExecutionPlan
from edge_agent.profile_files.writing import encode
from edge_agent.profiles import HOST_UNIT, LatencyProfile
from edge_agent.profiling.measured import (
    MeasuredUnit,
    UnitRates,
    device_profile,
    measured_times,
)
from edge_agent.store.output import check_file, write_whole
from edge_agent.telemetry import host
from edge_agent.telemetry.power import PowerMeter, find_meter

_METERED_S = 2.0
_MOST_LOAD = 0.1
"""Share of the processor that others may use while it is measured; more is told."""


def add_options(command: Any) -> None:
    """Give `devices` the options of an export."""
    command.add_argument(
        "--export",
        metavar="FILE",
        help="measure this device, which takes some seconds for each unit, and write its profile, "
        "for `plan --devices`",
    )
    command.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="with --export: add the measured times of a loaded model; may be given several times",
    )


def run(options: argparse.Namespace) -> int:
    """Measure this device and write its profile."""
    path = check_file("--export", options.export)
    settings = settings_of(options)
    asked = _asked(settings, options.model)
    if asked.state not in (None, settings.state):
        # The agent was started with another state folder, in which its cache is.
        settings = load_settings(
            os.environ, socket=options.socket, state=asked.state, config_file=options.config
        )
    profile = _measured(settings, asked)
    write_whole(path, encode(profile))
    if options.json:
        print_json({"file": str(path), "profile": profile})
    else:
        _print(path, profile)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    device: Device
    plans: Mapping[str, ExecutionPlan]
    """Of the models that were named."""
    state: Path | None = None
    """The agent's folder; None: there is no agent."""


def _asked(settings: Settings, models: Sequence[str]) -> _Asked:
    """What the agent knows, or without one a child process finds out."""
    try:
        with Client(settings.socket) as client:
            return _Asked(
                device=client.devices(),
                plans={name: awaited_plan(client, name) for name in models},
                state=Path(client.status().state_folder),
            )
    except AgentUnavailable as error:
        if models:
            raise AgentUnavailable(
                f"--model {models[0]}: {error}; or leave out --model, which needs an agent"
            ) from error
    found = _child(["device", encode_settings(settings)], None)
    return _Asked(device=msgspec.convert(found, Device), plans={})


def _measured(settings: Settings, asked: _Asked) -> DeviceProfile:
    device = asked.device
    today = datetime.datetime.now(datetime.UTC).date()
    runtime = f"{device.runtime_build} {device.runtime_version}"
    source = Source(
        key="measured",
        text=f"measured on {platform.node()} with {runtime}",
        kind=SourceKind.MEASURED,
        date=today,
    )
    load = host.state().load_fraction
    if load > _MOST_LOAD:
        _tell(f"others use {load:.0%} of the processor, so what is measured now is too slow")
    meter = find_meter()
    metered = None if meter is None else _meter_source(meter, today)
    free_bytes = host.free_memory_bytes()
    idle_w = None if meter is None else meter.measure_w(_METERED_S)
    return device_profile(
        device,
        tuple(_units(settings, device, meter)),
        source=source,
        meter=metered,
        idle_w=idle_w,
        free_memory_bytes=free_bytes,
        latency=tuple(_latency(settings, asked.plans, source)),
    )


def _meter_source(meter: PowerMeter, today: datetime.date) -> Source:
    text = f"measured: {meter.text}, read in sysfs; idle, and during a matrix product"
    return Source(key="meter", text=text, kind=SourceKind.MEASURED, date=today)


def _units(settings: Settings, device: Device, meter: PowerMeter | None) -> Iterator[MeasuredUnit]:
    for unit in device.units:
        _tell(f"measuring {unit.id}")
        text = msgspec.json.encode(unit).decode()
        limit_s = settings.planning.unit_s
        try:
            found = _child(["rates", text], limit_s)
        except EdgeAgentError as error:
            if unit.id == HOST_UNIT:
                raise
            _tell(f"{unit.id} is left out: {error}")
            continue
        busy_w = None if meter is None else _busy_w(text, meter, limit_s)
        rates = msgspec.convert(found["rates"], tuple[UnitRates, ...])
        yield MeasuredUnit(unit=unit, rates=rates, busy_w=busy_w)


def _busy_w(unit: str, meter: PowerMeter, limit_s: float) -> float | None:
    """What the meter shows while a unit, given as JSON, is busy; None if it does not get busy."""
    command = _command("busy", unit, str(_METERED_S * 2))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        silence = threading.Timer(limit_s, child.kill)
        silence.start()
        try:
            begun = any(b'"busy"' in line for line in child.stdout)
            return meter.measure_w(_METERED_S) if begun else None
        finally:
            silence.cancel()
            child.kill()


def _latency(
    settings: Settings, plans: Mapping[str, ExecutionPlan], source: Source
) -> Iterator[MeasuredTimes]:
    for name, plan in plans.items():
        found = _child(["kept", encode_settings(settings), plan.model], settings.planning.unit_s)
        kept = msgspec.convert(found["profiles"], tuple[LatencyProfile, ...])
        times = measured_times(plan, kept, source)
        if not times:
            raise StorageError(
                f"--model {name}: its latency profile is not kept any more; measure it again with "
                f"`edge-agent replan {name} --wait`"
            )
        yield from times


def _child(arguments: Sequence[str], limit_s: float | None) -> dict[str, Any]:
    """What a child process of `edge_agent.profiling` says last.

    Raises: EdgeAgentError: it says what is wrong, crashes, or is silent for too long.
    """
    try:
        ended = subprocess.run(
            _command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuilderLost(f"measuring did not end within {limit_s:g} s") from error
    last = ended.stdout.splitlines()[-1:]
    if ended.returncode != 0 or not last:
        said = "".join(ended.stderr.decode(errors="replace").strip().splitlines()[-1:])
        raise BuilderLost(f"measuring ended with code {ended.returncode}: {said}")
    found = dict(msgspec.json.decode(last[0]))
    if "unavailable" in found:
        raise RuntimeUnavailable(found["unavailable"])
    if "failed" in found:
        raise BuilderLost(found["failed"])
    return found


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "edge_agent.profiling", *arguments]


def _print(path: Path, profile: DeviceProfile) -> None:
    print(f"{path}: the profile of {profile.name}")
    for unit in profile.units:
        peaks = ", ".join(
            f"{arithmetic} {rate.value / 1e9:.4g} GOP/s"
            for arithmetic, rate in unit.operations_per_s
        )
        bandwidth = unit.bandwidth_bytes_per_s.value / 1e9
        print(f"{unit.id}: {peaks}, {bandwidth:.3g} GB/s")
    if profile.idle_w is None:
        print("power: no meter that can be read, so [power] and busy are left out")
    for model in dict.fromkeys(times.model for times in profile.latency):
        print(f"measured times of model {model[:12]}…")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
