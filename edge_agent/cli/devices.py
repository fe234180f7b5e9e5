"""`edge-agent devices`."""

from __future__ import annotations

import argparse
from typing import Any

from edge_agent.cli import export
from edge_agent.cli.output import client_of, print_json, print_table, size_text
from edge_agent.errors import UsageError


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `devices`."""
    text = "show the compute units, and which were refused and why"
    devices = commands.add_parser("devices", parents=[shared], help=text, description=text + ".")
    devices.set_defaults(run=run_devices)
    export.add_options(devices)


def run_devices(options: argparse.Namespace) -> int:
    """Show the compute units, or write down what they can do."""
    if options.export is not None:
        return export.run(options)
    if options.model:
        raise UsageError("--model: is for --export FILE; name a file, or leave it out")
    with client_of(options) as client:
        device = client.devices()
    if options.json:
        print_json(device)
        return 0
    print(f"{device.hostname}: {device.processor}")
    cores = ", ".join(map(str, device.cores))
    print(f"cores {cores}; {size_text(device.memory_bytes)} of memory")
    print(f"ONNX Runtime {device.runtime_version} ({device.runtime_build})")
    print_table(
        ("unit", "kind", "provider", "version", "cores", "memory cap", "layouts", "keeps"),
        [
            (
                *(u.id, u.kind, u.provider, u.provider_version, str(u.cores)),
                *(size_text(u.memory_bytes or None), ", ".join(u.layouts), u.keeps),
            )
            for u in device.units
        ],
    )
    for unit in device.units:
        if unit.keeps_nothing_because:
            print(f"{unit.id} keeps nothing of what it compiles: {unit.keeps_nothing_because}")
    for refused in device.refused:
        name = "" if refused.unit is None else f"{refused.unit}, "
        print(f"refused {name}{refused.provider}: {refused.reason}; {refused.remedy}")
    return 0
