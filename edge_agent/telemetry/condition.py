"""What heat, power limits and the battery leave of this device.

The kernel lowers the highest frequency of a processor that gets too warm or draws too much; what it
may reach at present and what it was built for are in sysfs:
https://docs.kernel.org/admin-guide/pm/cpufreq.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

from edge_agent.telemetry import cgroups

_ROOT: Final = Path("/")
_LEAST: Final = 0.01


def speed_fraction(root: Path = _ROOT) -> float | None:
    """Share of its full speed that the processor may reach at present, above 0 to 1, over all of
    its cores; None: the kernel does not tell."""
    shares: list[float] = []
    for policy in sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*")):
        allowed, built = _number(policy / "scaling_max_freq"), _number(policy / "cpuinfo_max_freq")
        cores = len(cgroups.text_of(policy / "related_cpus").split()) or 1
        if allowed is not None and built:
            shares += [min(1.0, max(_LEAST, allowed / built))] * cores
    return sum(shares) / len(shares) if shares else None


def _number(path: Path) -> int | None:
    text = cgroups.text_of(path).strip()
    return int(text) if text.isdigit() else None


def battery_fraction() -> float | None:
    """Charge left, 0 to 1; None: there is no battery, or it is charging."""
    found = psutil.sensors_battery()
    if found is None or found.power_plugged:
        return None
    return min(1.0, max(0.0, float(found.percent) / 100))
