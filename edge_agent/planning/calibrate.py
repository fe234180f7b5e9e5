"""Estimates of what a model takes on another device, made better by what was measured of it here.

An estimate is off mostly by what it gets wrong of the model: which kernels there are, what is
fused, what stays in a cache. On units that compute with the same provider that is the same, so that
of two estimates the ratio should be nearer to the truth than each of them is. So what was measured
here is multiplied by it:

    time there = measured here * estimated there / estimated here

for each segment, and so for the overhead and for borders. A device that is like this one is
predicted to be exactly as fast, one with half its rates to take twice as long. A ratio is kept
within `MOST_APART` of that of the whole model, which also stands for it where nothing was estimated
here. Fitted times of 0 stay 0, for they are right in sum (profiling/fit.py). How far off this is
between different processors was not measured yet, so that it is said to be as far off as estimates.

**What is comparable** is a configuration of a unit of the same kind, in the same layout and
precision: other layouts run other kernels. Of several, that with the nearest count of threads and
of runs at once is taken, because estimates are off by other factors with more threads (0.38 in the
median with one thread, 0.45 with two, by tools/bench_estimates). The nearest is the fewest times
more or less; ties go to fewer. Of a unit of which a configuration is calibrated, those that cannot
be are left out: beside one that holds what estimates forget, a bare one might seem better by its
error alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from edge_agent.devices import UnitId
from edge_agent.hardware import DeviceProfile, UnitProfile
from edge_agent.planning.estimate import estimated_times
from edge_agent.planning.fitting import measured_units
from edge_agent.problems import PlannedDevice
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.summaries import ModelSummary

MOST_APART = 100.0
"""Greatest factor between the ratio of one segment and that of all. What is farther apart comes of
times of next to nothing: the rates of two units of one kind are at most 88 apart among the profiles
that come along."""


def calibrated_device(
    device: PlannedDevice,
    profile: DeviceProfile,
    summary: ModelSummary,
    own: DeviceProfile,
    measured: Sequence[SegmentTimes],
) -> PlannedDevice:
    """What `estimate.planned_device` made of a profile, with its estimates calibrated.

    `own` is the profile of the device on which `measured` were measured, times of all segments.
    What the profile itself has measured of the model stays.

    Raises:
        ValueError: the work of a segment was not counted by class.
    """
    here = {unit.id: unit for unit in own.units}
    there = {unit.id: unit for unit in profile.units}
    is_measured = measured_units(profile, summary)
    found: dict[Configuration, SegmentTimes] = {}
    for times in device.times:
        which = times.configuration
        if which.unit in is_measured:
            continue
        like = comparable(there[which.unit], which, here, measured)
        if like is not None:
            unit = here[like.configuration.unit]
            estimated = estimated_times(unit, like.configuration, summary.segments)
            found[which] = calibrated(times, like, estimated)
    units = {which.unit for which in found}
    return replace(
        device,
        times=tuple(
            found.get(times.configuration, times)
            for times in device.times
            if times.configuration in found or times.configuration.unit not in units
        ),
    )


def comparable(
    unit: UnitProfile,
    which: Configuration,
    here: Mapping[UnitId, UnitProfile],
    measured: Iterable[SegmentTimes],
) -> SegmentTimes | None:
    """Of what was measured on the units `here`, what is comparable with a configuration of `unit`
    elsewhere; None if nothing is."""
    found = [
        times
        for times in measured
        if times.configuration.unit in here
        and here[times.configuration.unit].kind is unit.kind
        and times.configuration.layout is which.layout
        and times.configuration.is_half is which.is_half
        and times.configuration.falls_back is which.falls_back
        and len(times.refused) < len(times.segment_s)
    ]
    return min(found, key=lambda times: _distance(which, times.configuration), default=None)


def _distance(which: Configuration, other: Configuration) -> tuple[float, Configuration]:
    threads = _factor(max(which.threads, 1), max(other.threads, 1))
    return threads * _factor(which.instances, other.instances), other


def _factor(one: int, other: int) -> float:
    return max(one / other, other / one)


def calibrated(
    there: SegmentTimes, measured: SegmentTimes, estimated: SegmentTimes
) -> SegmentTimes:
    """Estimates `there`, made better by what was `measured` here, where that was `estimated` so.

    What is refused there stays so. What was refused here is off as all the others are together,
    and what cannot be divided here cannot be there.
    """
    count = len(there.segment_s)
    refused = {*there.refused, *measured.refused, *estimated.refused}
    both = [at for at in range(count) if at not in refused]
    there_s, here_s, measured_s = (
        sum(times.segment_s[at] for at in both) for times in (there, estimated, measured)
    )
    if not there_s or not here_s:
        return there
    whole = there_s / here_s

    def segment_s(at: int) -> float:
        own_s = there.segment_s[at]
        if at in refused:
            return own_s * bounded(measured_s / here_s)
        return measured.segment_s[at] * _ratio(own_s, estimated.segment_s[at], whole)

    border = _ratio(there.border_s_per_byte, estimated.border_s_per_byte, whole)
    return replace(
        there,
        segment_s=tuple(segment_s(at) for at in range(count)),
        overhead_s=measured.overhead_s * _ratio(there.overhead_s, estimated.overhead_s, whole),
        border_s_per_byte=measured.border_s_per_byte * border,
        turn_s_per_byte=measured.turn_s_per_byte * border,
        is_divisible=there.is_divisible and measured.is_divisible,
    )


def _ratio(there: float, here: float, whole: float) -> float:
    """How many times as long something takes there as here; `whole`: all of it together."""
    return bounded(there / here, whole) if here > 0.0 else whole


def bounded(ratio: float, middle: float = 1.0) -> float:
    """A ratio within `MOST_APART` of what it is about."""
    return min(max(ratio, middle / MOST_APART), middle * MOST_APART)
