"""What was measured of stages on a device, for planning with all of the model's segments.

A device that hosted a run of segments has measured it as a model of its own, in the configurations
that it tried. These times are used as they are; of several that hold a segment the newest counts,
and of the overheads and borders the largest. Where a stage begins and ends inside the model, its
own times hold what is a border of the model: that is taken out of its first and last segment, so
that the stage as it was measured is predicted to take what it took.

What was not measured there is expected to be off as what was: the other segments of a configuration
by the median of measured over expected, each weighted by its expected time (which no single segment
moves far, and small ones hardly), and the other configurations of the unit by that of all that was
measured on the unit. In no configuration is a segment expected to be quicker than the quickest one
that was measured there with as many runs at once: the device chose by measuring, so that what it
did not keep was not better, and an estimate that says so is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_agent.hardware import DeviceProfile, UnitProfile
from edge_agent.planning.calibrate import bounded, calibrated, comparable
from edge_agent.planning.cost import border_bytes
from edge_agent.planning.estimate import estimated_times
from edge_agent.planning.fitting import measured_units
from edge_agent.problems import PlannedDevice
from edge_agent.profiles import Configuration, SegmentTimes, StageTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary, Segment

MeasuredSegments = Mapping[Configuration, frozenset[int]]
"""Which segments were measured in a configuration; in one that is left out, none."""


def with_stages(
    device: PlannedDevice,
    profile: DeviceProfile,
    summary: ModelSummary,
    stages: Sequence[StageTimes],
) -> tuple[PlannedDevice, MeasuredSegments]:
    """The device with what was measured there of stages, the newest last, and which segments were
    measured there by now; see the module.

    The stages are of this division of the model. Left out is what cannot be used: configurations
    of units that the device has not, or of more cores, and those whose unit leaves the rest to the
    processor, unless the stage was the whole model.

    Raises:
        ValueError: the work of a segment was not counted by class.
    """
    count = len(summary.segments)
    units = {unit.id: unit for unit in profile.units}
    known = measured_units(profile, summary)
    every = frozenset(range(count))
    measured = {t.configuration: every for t in device.times if t.configuration.unit in known}
    expected = {times.configuration: times for times in device.times}
    merged: dict[Configuration, _Stages] = {}
    for stage in _by_configuration(stages, summary):
        which = stage.configuration
        if which.unit in units and which.cores <= device.cores:
            merged[which] = stage
            measured[which] = measured.get(which, frozenset()) | stage.seen
            if which not in expected:
                expected[which] = _like(which, device.times, units[which.unit], summary.segments)
    if not merged:
        return device, measured
    times = []
    for which, one in expected.items():
        alike = [s for s in merged.values() if s.configuration.unit == which.unit]
        own = merged.get(which)
        scaled = _scaled(one, _off(alike if own is None else [own], expected))
        scaled = _no_quicker(scaled, alike)
        times.append(scaled if own is None else _merged(own, scaled))
    seen = frozenset[int]().union(*measured.values())
    is_estimated = any(measured.get(which) != every for which in expected)
    because = f"of its {count} segments {len(seen)} were measured there"
    told = replace(
        device,
        times=tuple(times),
        is_estimated=is_estimated,
        estimated_because=because if len(seen) < count else "",
    )
    return told, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """What was measured of stages in one configuration, over all segments of the model."""

    configuration: Configuration
    segment_s: Mapping[int, float]
    refused: frozenset[int]
    overhead_s: float
    border_s_per_byte: float
    turn_s_per_byte: float
    error_fraction: float

    @property
    def seen(self) -> frozenset[int]:
        """Segments of which it is known what they take, or that they are refused."""
        return frozenset(self.segment_s) | self.refused


def _by_configuration(stages: Sequence[StageTimes], summary: ModelSummary) -> Iterator[_Stages]:
    count = len(summary.segments)
    found: dict[Configuration, list[tuple[SegmentRange, SegmentTimes]]] = {}
    for stage in stages:
        if stage.segments.stop > count:
            continue
        for times in stage.times:
            if len(stage.segments) == count or not times.configuration.falls_back:
                found.setdefault(times.configuration, []).append((stage.segments, times))
    for which, parts in found.items():
        border = max((times for _, times in parts), key=lambda times: times.border_s_per_byte)
        newest: dict[int, float | None] = {}
        for segments, times in parts:
            inner = _without_ends(summary, segments, times.segment_s, border.border_s_per_byte)
            for at, took_s in enumerate(inner):
                newest[segments.start + at] = None if at in times.refused else took_s
        yield _Stages(
            configuration=which,
            segment_s={at: took_s for at, took_s in newest.items() if took_s is not None},
            refused=frozenset(at for at, took_s in newest.items() if took_s is None),
            overhead_s=max(times.overhead_s for _, times in parts),
            border_s_per_byte=border.border_s_per_byte,
            turn_s_per_byte=border.turn_s_per_byte,
            error_fraction=max(times.error_fraction for _, times in parts),
        )


def _without_ends(
    summary: ModelSummary,
    segments: SegmentRange,
    segment_s: Sequence[float],
    border_s_per_byte: float,
) -> Sequence[float]:
    """Times of the segments of a stage without what its ends cost, as far as there is so much."""
    inner = list(segment_s)
    for at, boundary in ((0, segments.start), (-1, segments.stop)):
        crossing = border_bytes(summary, boundary) or 0
        inner[at] = max(inner[at] - border_s_per_byte * crossing, 0.0)
    return inner


def _like(
    which: Configuration,
    times: Sequence[SegmentTimes],
    unit: UnitProfile,
    segments: Sequence[Segment],
) -> SegmentTimes:
    """What is expected in a configuration that was not planned with: an estimate, off by as much
    as what the device is expected to take in the nearest comparable one is of its estimate."""
    estimated = estimated_times(unit, which, segments)
    of_unit = [t for t in times if t.configuration.unit == unit.id]
    like = comparable(unit, replace(which, is_half=False), {unit.id: unit}, of_unit)
    if like is None:
        return estimated
    return calibrated(estimated, like, estimated_times(unit, like.configuration, segments))


def _off(stages: Sequence[_Stages], expected: Mapping[Configuration, SegmentTimes]) -> float:
    """The weighted median of measured over expected; 1 where nothing tells."""
    ratios: list[tuple[float, float]] = []
    for stage in stages:
        times = expected[stage.configuration]
        for at, took_s in stage.segment_s.items():
            if at not in times.refused and times.segment_s[at] > 0.0:
                ratios.append((took_s / times.segment_s[at], times.segment_s[at]))
    half = sum(weight for _, weight in ratios) / 2.0
    passed = 0.0
    for ratio, weight in sorted(ratios):
        passed += weight
        if passed >= half:
            return bounded(ratio)
    return 1.0


def _scaled(times: SegmentTimes, off: float) -> SegmentTimes:
    return replace(times, segment_s=tuple(took_s * off for took_s in times.segment_s))


def _no_quicker(times: SegmentTimes, stages: Sequence[_Stages]) -> SegmentTimes:
    """Times that are no shorter than the shortest that was measured on the unit."""
    instances = times.configuration.instances
    alike = [s.segment_s for s in stages if s.configuration.instances == instances]

    def least_s(at: int) -> float:
        return min((measured[at] for measured in alike if at in measured), default=0.0)

    return replace(
        times,
        segment_s=tuple(
            0.0 if at in times.refused else max(took_s, least_s(at))
            for at, took_s in enumerate(times.segment_s)
        ),
    )


def _merged(stage: _Stages, expected: SegmentTimes) -> SegmentTimes:
    """What was measured, and of other segments what is expected."""
    count = len(expected.segment_s)
    refused = (frozenset(expected.refused) - frozenset(stage.segment_s)) | stage.refused
    error_fraction = stage.error_fraction
    if len(stage.seen) < count:
        error_fraction = max(error_fraction, expected.error_fraction)
    return SegmentTimes(
        configuration=stage.configuration,
        segment_s=tuple(
            0.0 if at in refused else stage.segment_s.get(at, expected.segment_s[at])
            for at in range(count)
        ),
        overhead_s=stage.overhead_s,
        border_s_per_byte=stage.border_s_per_byte,
        turn_s_per_byte=stage.turn_s_per_byte,
        error_fraction=error_fraction,
        refused=tuple(sorted(refused)),
    )
