"""`edge-agent devices --export`: the profile of this device, as measured.

It works with and without an agent: one that runs tells of the device and of the models that are
loaded, and goes on serving.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.agent.measuring import Measuring, measured_here
from edge_agent.cli.awaiting import awaited_plan
from edge_agent.cli.output import print_json, settings_of
from edge_agent.client import Client
from edge_agent.config import Settings, encode_settings, load_settings
from edge_agent.devices import Device
from edge_agent.errors import AgentUnavailable, StorageError
from edge_agent.hardware import DeviceProfile, MeasuredTimes, Source
from edge_agent.plans import ExecutionPlan
from edge_agent.profile_files.writing import encode
from edge_agent.profiles import LatencyProfile
from edge_agent.profiling.measured import measured_times
from edge_agent.store.output import check_file, write_whole


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
    found = Measuring(_tell).ask("device", encode_settings(settings))
    return _Asked(device=msgspec.convert(found, Device), plans={})


def _measured(settings: Settings, asked: _Asked) -> DeviceProfile:
    source = measured_here(asked.device)
    latency = tuple(_latency(settings, asked.plans, source))
    found = Measuring(_tell).profile(asked.device, source, settings.planning.unit_s, latency)
    if found.is_disturbed:
        _tell(
            f"others used {found.load_fraction:.0%} of the processor, so what was measured is too "
            "slow"
        )
    return found.profile


def _latency(
    settings: Settings, plans: Mapping[str, ExecutionPlan], source: Source
) -> Iterator[MeasuredTimes]:
    for name, plan in plans.items():
        found = Measuring(_tell).ask(
            "kept", encode_settings(settings), plan.model, limit_s=settings.planning.unit_s
        )
        kept = msgspec.convert(found["profiles"], tuple[LatencyProfile, ...])
        times = measured_times(plan, kept, source)
        if not times:
            raise StorageError(
                f"--model {name}: its latency profile is not kept any more; measure it again with "
                f"`edge-agent replan {name} --wait`"
            )
        yield from times


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
