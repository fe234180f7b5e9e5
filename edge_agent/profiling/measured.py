"""A device profile made of what was measured on this device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edge_agent.devices import ComputeUnit, Device
from edge_agent.hardware import DeviceProfile, MeasuredTimes, Source, Sourced, UnitProfile
from edge_agent.plans import ExecutionPlan
from edge_agent.profiles import LatencyProfile, SegmentTimes
from edge_agent.summaries import Arithmetic

_NOT_IN_AN_ID = re.compile(r"[^a-z0-9]+")
_LONGEST_ID = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRates:
    """What a compute unit sustains with so many threads."""

    threads: int
    operations_per_s: tuple[tuple[Arithmetic, float], ...]
    """Of what it computes in, in the order of `Arithmetic`."""
    bytes_per_s: float
    launch_s: float
    operator_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUnit:
    """A compute unit with what was measured of it."""

    unit: ComputeUnit
    rates: tuple[UnitRates, ...]
    """With one thread and with all; one for a unit that uses none of the host's cores."""
    busy_w: float | None = None
    """What the device drew while it was busy; None: there is no meter."""


def best_of(measured: Sequence[tuple[UnitRates, ...]]) -> tuple[UnitRates, ...]:
    """The best of what several measurements of one unit found: where others use the processor
    meanwhile, rates can only be too low."""
    return tuple(
        UnitRates(
            threads=of_threads[0].threads,
            operations_per_s=tuple(
                (arithmetic, max(dict(rates.operations_per_s)[arithmetic] for rates in of_threads))
                for arithmetic, _ in of_threads[0].operations_per_s
            ),
            bytes_per_s=max(rates.bytes_per_s for rates in of_threads),
            launch_s=min(rates.launch_s for rates in of_threads),
            operator_s=min(rates.operator_s for rates in of_threads),
        )
        for of_threads in zip(*measured, strict=True)
    )


def unit_profile(
    unit: ComputeUnit,
    measured: Sequence[UnitRates],
    source: Source,
    busy_w: Sourced | None = None,
) -> UnitProfile:
    """What was measured of a unit, as part of a device profile."""
    one, all_cores = measured[0], measured[-1]

    def sourced(value: float) -> Sourced:
        # No measurement is more exact than that.
        return Sourced(value=float(f"{value:.4g}"), source=source)

    # All cores are never slower than one: where it seems so, something else ran meanwhile.
    alone = dict(one.operations_per_s)
    peaks = {a: max(rate, alone.get(a, rate)) for a, rate in all_cores.operations_per_s}
    is_host = bool(unit.cores)
    return UnitProfile(
        id=unit.id,
        kind=unit.kind,
        cores=Sourced(value=unit.cores, source=source) if is_host else None,
        operations_per_s=tuple((a, sourced(rate)) for a, rate in peaks.items()),
        core_operations_per_s=tuple((a, sourced(alone[a])) for a in peaks if a in alone)
        if is_host
        else (),
        bandwidth_bytes_per_s=sourced(max(one.bytes_per_s, all_cores.bytes_per_s)),
        core_bandwidth_bytes_per_s=sourced(one.bytes_per_s) if is_host else None,
        launch_s=sourced(one.launch_s),
        operator_s=sourced(one.operator_s),
        busy_w=busy_w,
        memory_bytes=Sourced(value=unit.memory_bytes, source=source) if unit.memory_bytes else None,
        layouts=unit.layouts,
        threads=tuple(rates.threads for rates in measured) if is_host else (),
        takes=() if unit.takes_floats else (Arithmetic.INT8,),
    )


def device_profile(
    device: Device,
    units: Sequence[MeasuredUnit],
    *,
    source: Source,
    meter: Source | None = None,
    idle_w: float | None = None,
    free_memory_bytes: int,
    latency: Sequence[MeasuredTimes] = (),
) -> DeviceProfile:
    """The profile of this device; `meter` is where powers are from."""

    def power(value_w: float | None) -> Sourced | None:
        if value_w is None or idle_w is None or meter is None:
            return None
        return Sourced(value=value_w, source=meter)

    def busy_power(value_w: float | None) -> Sourced | None:
        if value_w is None or idle_w is None:
            return None
        # A meter that shows nothing while a unit works does not see it.
        return power(max(value_w, idle_w) or None)

    return DeviceProfile(
        id=_id_of(device.hostname),
        name=f"{device.hostname}, {device.processor}",
        sources=(source,) if meter is None else (source, meter),
        memory_bytes=Sourced(value=float(device.memory_bytes), source=source),
        available_bytes=Sourced(
            value=float(min(free_memory_bytes, device.memory_bytes)), source=source
        ),
        units=tuple(
            unit_profile(found.unit, found.rates, source, busy_power(found.busy_w))
            for found in units
        ),
        idle_w=power(idle_w),
        latency=tuple(latency),
    )


def measured_times(
    plan: ExecutionPlan, profiles: Sequence[LatencyProfile], source: Source
) -> tuple[MeasuredTimes, ...]:
    """The latency profile that a plan was made with, among those that are kept; () if none is."""
    starts = tuple(segment.nodes[0] for segment in plan.segments)
    found = next((p for p in profiles if _is_of(p, plan)), None)
    return () if found is None else tuple(_measured(found, starts, source))


def _measured(
    profile: LatencyProfile, starts: tuple[int, ...], source: Source
) -> Iterator[MeasuredTimes]:
    for times in profile.times:
        yield MeasuredTimes(
            model=profile.model,
            starts=starts,
            shapes=profile.shapes,
            times=times,
            source=source,
        )


def _is_of(profile: LatencyProfile, plan: ExecutionPlan) -> bool:
    """Whether a plan shows the times of this profile: pins and targets give a model others."""
    is_same = (profile.model, sorted(profile.shapes)) == (plan.model, sorted(plan.shapes))
    return is_same and bool(profile.times) and all(_is_shown(t, plan) for t in profile.times)


def _is_shown(times: SegmentTimes, plan: ExecutionPlan) -> bool:
    shown = [dict(segment.times).get(times.configuration) for segment in plan.segments]
    return len(shown) == len(times.segment_s) and all(
        at in times.refused or own == theirs
        for at, (own, theirs) in enumerate(zip(times.segment_s, shown, strict=True))
    )


def _id_of(hostname: str) -> str:
    found = _NOT_IN_AN_ID.sub("-", hostname.lower()).strip("-")[:_LONGEST_ID].strip("-")
    return found or "this-device"
