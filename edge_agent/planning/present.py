"""What live statistics make of a device's profile: slower units, less memory."""

from __future__ import annotations

from edge_agent.devices import DeviceId, UnitId
from edge_agent.problems import Problem
from edge_agent.profiles import HOST_UNIT

LEAST_LEFT = 0.05
"""The share of a processor that we get however busy others keep it."""


def slowdown(problem: Problem, device: DeviceId, unit: UnitId) -> float:
    """What times of a unit are multiplied with at present.

    What its own runs took over what was predicted, where that was observed. Else a processor of
    which others use the share `load_fraction` leaves us the rest, but never less than a
    twentieth; and every unit runs at `speed_fraction` of its speed.
    """
    now = problem.statistics_of(device)
    observed = dict(now.slowdowns).get(unit)
    if observed is not None:
        return observed
    left = max(1.0 - now.load_fraction, LEAST_LEFT) if unit == HOST_UNIT else 1.0
    return 1.0 / (left * now.speed_fraction)


def budget_bytes(problem: Problem, device: DeviceId) -> int:
    """Most bytes that may be in the memory of a device at present."""
    most = problem.device(device).memory_bytes
    free = problem.statistics_of(device).free_memory_bytes
    return most if free is None else min(most, free)


def pool_bytes(problem: Problem, pool: str) -> int:
    """Most bytes that may be in a memory at present: that of a device, named like it, or that of an
    accelerator, `device/unit`."""
    for device in problem.devices:
        if pool == device.id:
            return budget_bytes(problem, device.id)
        for unit in device.units:
            if pool == f"{device.id}/{unit.id}" and unit.memory_bytes is not None:
                return unit.memory_bytes
    raise AssertionError(f"there is no memory {pool}")


def is_spared(problem: Problem, device: DeviceId) -> bool:
    """Whether a device does no work for others, because its battery is too low."""
    battery = problem.statistics_of(device).battery_fraction
    is_low = battery is not None and battery < problem.least_battery_fraction
    return is_low and device != problem.owner


def is_banned(problem: Problem, device: DeviceId) -> bool:
    """Whether a device does no work for others, because none of its units may be used."""
    units = problem.device(device).units
    is_shut = bool(units) and all(unit.banned_because for unit in units)
    return is_shut and device != problem.owner


def spared_text(problem: Problem, device: DeviceId) -> str:
    """Why a device does no work for others at present; empty if it may."""
    battery = problem.statistics_of(device).battery_fraction
    if battery is None or not is_spared(problem, device):
        return ""
    least = problem.least_battery_fraction
    return (
        f"its battery is at {battery * 100:.4g} %, and below {least * 100:.4g} % a device does no "
        "work for others"
    )
