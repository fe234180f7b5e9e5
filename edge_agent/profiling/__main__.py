"""What this device is and what is installed on it, for a process that must not load that itself.

`python -m edge_agent.profiling device SETTINGS` tries the compute units, SETTINGS being the agent's
as JSON, and `... installed` imports the packages of plugin providers. `... rates UNIT` measures a
compute unit, given as JSON; it says `asks` before each slice of work, and begins when it gets a
line on standard input. `... busy UNIT SECONDS` keeps a unit busy from the moment that it says so.
`... kept SETTINGS MODEL` gives the latency profiles that are kept of a model. The last line on
standard output is JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from edge_agent.config import Settings, decode_settings
from edge_agent.devices import ComputeUnit, Installed, InstalledPlugin
from edge_agent.engine.plugins import installed_plugins
from edge_agent.engine.runtime import installed_builds, is_tried
from edge_agent.errors import EdgeAgentError, RuntimeUnavailable, StorageError
from edge_agent.profiles import LatencyProfile
from edge_agent.profiling.device import device_key, this_device
from edge_agent.profiling.keep import decode_profile
from edge_agent.profiling.rates import keep_busy, measure_unit
from edge_agent.store.records import ProfileStore


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


def kept_profiles(settings: Settings, model: str) -> Iterator[LatencyProfile]:
    """What was measured of a model on this device, and is kept.

    Raises:
        StorageError: the folder cannot be read.
        RuntimeUnavailable: ONNX Runtime is not installed, or twice.
    """
    key = device_key()
    for content in ProfileStore(settings.cache).contents():
        try:
            found = decode_profile(content)
        except StorageError:
            # Verifications are kept beside profiles, and what other versions wrote.
            continue
        if found.model == model and found.device_key == key:
            yield found


def _write(found: object) -> None:
    # On a line of its own, whatever a package writes.
    print(f"\n{msgspec.json.encode(found).decode()}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Write what is asked for."""
    what, *rest = arguments
    if what == "installed":
        _write(installed())
        return
    try:
        match what:
            case "rates":
                _write({"rates": measure_unit(_unit_of(rest[0]), _wait_for_turn)})
            case "busy":
                keep_busy(_unit_of(rest[0]), float(rest[1]), lambda: _write({"busy": True}))
            case "kept":
                _write({"profiles": list(kept_profiles(decode_settings(rest[0]), rest[1]))})
            case _:
                _write(this_device(decode_settings(*rest)))
    except RuntimeUnavailable as error:
        _write({"unavailable": str(error)})
    except EdgeAgentError as error:
        _write({"failed": str(error)})


def _wait_for_turn() -> None:
    _write({"asks": True})
    if not sys.stdin.readline():
        # Whoever wanted to know is gone.
        sys.exit(1)


def _unit_of(text: str) -> ComputeUnit:
    return msgspec.json.decode(text, type=ComputeUnit)


if __name__ == "__main__":
    main(sys.argv[1:])
