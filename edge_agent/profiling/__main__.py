"""What this device is and what is installed on it, for a process that must not load that itself.

`python -m edge_agent.profiling device SETTINGS` tries the compute units, SETTINGS being the agent's
as JSON, and `... installed` imports the packages of plugin providers. The last line on standard
output is JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from edge_agent.config import decode_settings
from edge_agent.devices import Device, Installed, InstalledPlugin
from edge_agent.engine.plugins import installed_plugins
from edge_agent.engine.runtime import installed_builds, is_tried
from edge_agent.errors import RuntimeUnavailable
from edge_agent.profiling.device import this_device


def installed() -> Installed:
    """What of ONNX Runtime is installed; tells on standard output which package is being asked."""
    builds = installed_builds()
    plugins = installed_plugins(on_asking=lambda package: _write({"asking": package}))
    return Installed(
        builds=builds,
        untried=tuple(version for _, version in builds if not is_tried(version)),
        plugins=tuple(
            InstalledPlugin(
                package=p.package, version=p.version, provider=p.provider, fault=p.fault
            )
            for p in plugins
        ),
    )


def _write(found: Device | Installed | dict[str, str]) -> None:
    # On a line of its own, whatever a package writes.
    print(f"\n{msgspec.json.encode(found).decode()}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Write what is asked for."""
    what, *rest = arguments
    if what == "installed":
        _write(installed())
        return
    try:
        _write(this_device(decode_settings(*rest)))
    except RuntimeUnavailable as error:
        _write({"unavailable": str(error)})


if __name__ == "__main__":
    main(sys.argv[1:])
