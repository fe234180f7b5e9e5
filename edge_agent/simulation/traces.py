"""What changes while requests are served: load, heat, slowdowns, links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.devices import DeviceId, UnitId
from edge_agent.problems import DeviceStatistics, Problem

LEAST_LEFT_FRACTION = 0.05
"""What a scheduler leaves us of a processor however busy others keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """From a moment on a device is as `statistics` say, until the next change of it."""

    at_s: float
    statistics: DeviceStatistics
    """Its load, speed and slowdowns; the rest has no effect."""

    def __post_init__(self) -> None:
        _check_time(f"change of {self.statistics.device}", self.at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """From a moment on a link has a share of its goodput, until the next change of it."""

    at_s: float
    source: DeviceId
    target: DeviceId
    goodput_fraction: float
    """0: it is down, and what is on it waits."""

    def __post_init__(self) -> None:
        where = f"change of link {self.source}-{self.target}"
        _check_time(where, self.at_s)
        if not (math.isfinite(self.goodput_fraction) and self.goodput_fraction >= 0):
            raise ValueError(
                f"{where}: got goodput_fraction {self.goodput_fraction:g}, want at least 0"
            )


Change = DeviceChange | LinkChange


def _check_time(where: str, at_s: float) -> None:
    if not (math.isfinite(at_s) and at_s >= 0):
        raise ValueError(f"{where}: got at_s {at_s:g}, want a number of at least 0")


def check_trace(problem: Problem, trace: Sequence[Change]) -> None:
    """Raises: ValueError if a change is of what the problem has not."""
    devices = {device.id: device for device in problem.devices}
    links = [(link.source, link.target) for link in problem.links]
    for change in trace:
        match change:
            case DeviceChange():
                device = devices.get(change.statistics.device)
                if device is None:
                    raise ValueError(
                        f"trace at {change.at_s:g} s: got device {change.statistics.device}, which "
                        f"is not there: there are {', '.join(devices)}"
                    )
                units = [unit.id for unit in device.units]
                for unit, _ in change.statistics.slowdowns:
                    if unit not in units:
                        raise ValueError(
                            f"trace at {change.at_s:g} s: got a slowdown of unit {unit}, "
                            f"{device.id} has {', '.join(units)}"
                        )
            case LinkChange():
                if (change.source, change.target) not in links:
                    known = ", ".join(f"{source}-{target}" for source, target in links)
                    raise ValueError(
                        f"trace at {change.at_s:g} s: got link {change.source}-{change.target}, "
                        f"which is not there: there are {known or 'none'}"
                    )


def speed(statistics: DeviceStatistics, unit: UnitId, *, on_cores: bool) -> float:
    """How fast a unit works, 1 undisturbed.

    An observed slowdown holds all there is. Else it has the speed that heat leaves, and what runs
    on the processor's cores (`on_cores`) has of these what others leave.
    """
    for slowed, slowdown in statistics.slowdowns:
        if slowed == unit:
            return 1.0 / slowdown
    left = max(1.0 - statistics.load_fraction, LEAST_LEFT_FRACTION) if on_cores else 1.0
    return left * statistics.speed_fraction
