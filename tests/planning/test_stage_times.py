"""What was measured of stages is used as it is, and tells of what was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.hardware import MeasuredTimes
from edge_agent.planning.cost import subgraph_s
from edge_agent.planning.estimate import ERROR_FRACTION, planned_device
from edge_agent.planning.stage_times import MeasuredSegments, with_stages
from edge_agent.problems import PlannedDevice
from edge_agent.profiles import Configuration, SegmentTimes, StageTimes
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_models import accelerator, configuration, times
from tests.planning.made_profiles import HERE, accelerator_profile, board, processor, worked

ONE, FOUR, TWO = (configuration(threads=n) for n in (1, 4, 2))
MODEL = worked((10_000_000, 20_000_000, 40_000_000, 10_000_000))
EVERY = frozenset(range(4))
# Estimated: 2, 4, 8 and 2 ms with one thread, a quarter of it with four.


def stage(start: int, *measured: SegmentTimes) -> StageTimes:
    stop = start + len(measured[0].segment_s)
    return StageTimes(
        segments=SegmentRange(start=start, stop=stop),
        times=measured,
        device_key="there",
        division=MODEL.division,
    )


def merged(
    *stages: StageTimes, is_for_throughput: bool = False
) -> tuple[PlannedDevice, MeasuredSegments]:
    profile = board(processor(), accelerator_profile())
    device = planned_device(profile, MODEL, is_for_throughput=is_for_throughput)
    return with_stages(device, profile, MODEL, stages)


def of(device: PlannedDevice, which: Configuration) -> SegmentTimes:
    return next(found for found in device.times if found.configuration == which)


def segments_s(which: Configuration, *stages: StageTimes) -> Sequence[float]:
    return of(merged(*stages)[0], which).segment_s


def test_without_stages_nothing_changes() -> None:
    profile = board(processor(), accelerator_profile())
    assert merged() == (planned_device(profile, MODEL), {})


def test_measured_segments_are_used_and_the_others_are_off_as_they() -> None:
    # 6 of 4 and 12 of 8 ms: one and a half times what was expected.
    measured = times(ONE, (6e-3, 12e-3), overhead_s=70e-6)
    device, seen = merged(stage(1, measured))
    found = of(device, ONE)
    assert found.segment_s == pytest.approx((3e-3, 6e-3, 12e-3, 3e-3))
    assert found.overhead_s == 70e-6
    assert found.error_fraction == ERROR_FRACTION
    assert seen == {ONE: {1, 2}}
    assert (device.is_estimated, device.estimated_because) == (
        True,
        "of its 4 segments 2 were measured there",
    )


def test_a_stage_as_it_was_measured_is_predicted_to_take_what_it_took() -> None:
    # 1000 bytes cross at each of its ends, which cost 1 ms each.
    measured = times(ONE, (6e-3, 12e-3), overhead_s=70e-6, border_s_per_byte=1e-6)
    found = of(merged(stage(1, measured))[0], ONE)
    assert found.segment_s[1:3] == pytest.approx((5e-3, 11e-3))
    middle = SegmentRange(start=1, stop=3)
    assert subgraph_s(MODEL, found, middle) == pytest.approx(18.07e-3)
    # The ends of the model are no borders, and a time is never less than nothing.
    ends = times(ONE, (6e-3, 12e-3, 0.5e-3), border_s_per_byte=1e-6)
    found = of(merged(stage(0, ends))[0], ONE)
    assert found.segment_s[:3] == pytest.approx((6e-3, 12e-3, 0.0))
    assert of(merged(stage(1, ends))[0], ONE).segment_s[3] == 0.5e-3


def test_measured_times_of_the_profile_are_used_where_no_stage_was() -> None:
    known = MeasuredTimes(
        model=MODEL.model,
        starts=tuple(s.start for s in MODEL.segments),
        shapes=MODEL.shapes,
        times=times(ONE, (1e-3, 2e-3, 3e-3, 4e-3)),
        source=HERE,
    )
    profile = replace(board(), latency=(known,))
    device = planned_device(profile, MODEL)
    assert with_stages(device, profile, MODEL, ()) == (device, {ONE: EVERY})
    measured = stage(1, times(ONE, (4e-3, 6e-3)))
    found, seen = with_stages(device, profile, MODEL, (measured,))
    # Twice as long as it once was.
    assert of(found, ONE).segment_s == pytest.approx((2e-3, 4e-3, 6e-3, 8e-3))
    assert (seen, found.is_estimated) == ({ONE: EVERY}, False)


def test_other_configurations_of_the_unit_are_off_as_much_and_those_of_others_are_not() -> None:
    device, _ = merged(stage(0, times(FOUR, (1e-3, 2e-3))))
    # Twice the quarter.
    assert of(device, FOUR).segment_s == pytest.approx((1e-3, 2e-3, 4e-3, 1e-3))
    assert of(device, ONE).segment_s == pytest.approx((4e-3, 8e-3, 16e-3, 4e-3))
    assert of(device, accelerator()).segment_s == pytest.approx((0.2e-3, 0.4e-3, 0.8e-3, 0.2e-3))


def test_no_configuration_is_expected_to_be_quicker_than_what_was_measured() -> None:
    # One thread as expected, so that nothing is off; four of them were not worth keeping.
    stages = stage(0, times(ONE, (2e-3, 4e-3)))
    assert segments_s(FOUR, stages) == pytest.approx((2e-3, 4e-3, 2e-3, 0.5e-3))
    device, _ = merged(stages, is_for_throughput=True)
    at_once = of(device, configuration(threads=1, instances=4))
    assert at_once.segment_s == pytest.approx((2e-3, 4e-3, 8e-3, 2e-3))
    assert of(device, accelerator()).segment_s[0] < 2e-3


def test_of_several_stages_the_newest_counts_and_the_largest_overhead() -> None:
    old = stage(0, times(ONE, (2e-3, 4e-3, 8e-3), overhead_s=90e-6, border_s_per_byte=1e-12))
    new = stage(2, times(ONE, (16e-3, 4e-3), overhead_s=10e-6, border_s_per_byte=2e-12))
    device, seen = merged(old, new)
    found = of(device, ONE)
    assert found.segment_s == pytest.approx((2e-3, 4e-3, 16e-3, 4e-3))
    assert (found.overhead_s, found.border_s_per_byte) == (90e-6, 2e-12)
    assert seen == {ONE: EVERY}
    assert segments_s(ONE, new, old)[2] == pytest.approx(8e-3)


def test_what_was_measured_of_all_segments_is_no_estimate() -> None:
    measured = [
        replace(times(which, (1e-3,) * 4), error_fraction=0.03)
        for which in (ONE, FOUR, accelerator())
    ]
    device, seen = merged(stage(0, *measured))
    assert (device.is_estimated, device.estimated_because) == (False, "")
    assert device.times == tuple(measured)
    assert set(seen) == {ONE, FOUR, accelerator()}


def test_a_configuration_that_was_not_planned_with_is_added() -> None:
    # Two threads are estimated to take half of one: 1, 2, 4 and 1 ms.
    assert segments_s(TWO, stage(3, times(TWO, (3e-3,)))) == pytest.approx(
        (3e-3, 6e-3, 12e-3, 3e-3)
    )


def test_refused_segments_stay_refused_until_they_are_measured_to_run() -> None:
    refused = times(accelerator(), (1e-3, 1e-3), refused=(1,))
    found = of(merged(stage(0, refused))[0], accelerator())
    assert (found.refused, found.segment_s[1]) == ((1,), 0.0)
    again = stage(1, times(accelerator(), (2e-3,)))
    found = of(merged(stage(0, refused), again)[0], accelerator())
    assert (found.refused, found.segment_s[:2]) == ((), (1e-3, 2e-3))
    back = of(merged(again, stage(0, refused))[0], accelerator())
    assert back.refused == (1,)


def test_what_the_device_has_not_or_cannot_is_left_out() -> None:
    falls_back = accelerator(falls_back=True)
    strange = (
        configuration(threads=8),
        configuration(unit="npu9"),
        falls_back,
    )
    device, seen = merged(stage(0, *(times(which, (1e-3,)) for which in strange)))
    assert (device, seen) == merged()
    whole, seen = merged(stage(0, times(falls_back, (1e-3,) * 4)))
    assert seen == {falls_back: EVERY}
    assert of(whole, falls_back).segment_s == (1e-3,) * 4


def test_a_stage_beyond_the_model_is_left_out() -> None:
    assert merged(stage(3, times(ONE, (1e-3, 1e-3)))) == merged()


def test_one_segment_that_took_very_long_does_not_move_the_others() -> None:
    measured = times(ONE, (2e-3, 4e-3, 800e-3))
    # 2 and 4 of 14 ms are as expected, and 8 are a hundred times as long: the median is theirs.
    assert segments_s(ONE, stage(0, measured))[3] == pytest.approx(200e-3)
    small = times(ONE, (200e-3, 4e-3, 8e-3))
    assert segments_s(ONE, stage(0, small))[3] == pytest.approx(2e-3)


@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4), st.integers(1, 3))
def test_stages_side_by_side_are_as_one_that_is_the_whole(took: list[float], cut: int) -> None:
    whole = stage(0, times(ONE, took))
    parts = stage(0, times(ONE, took[:cut])), stage(cut, times(ONE, took[cut:]))
    assert merged(*parts) == merged(whole)
    assert merged(whole, *parts) == merged(whole)
    assert segments_s(ONE, whole) == tuple(took)


def test_times_of_another_number_of_segments_are_no_stage() -> None:
    with pytest.raises(ValueError, match=r"stage 1-2, .*: got times of 3 segments, want 2"):
        replace(stage(0, times(ONE, (1.0,) * 3)), segments=SegmentRange(start=1, stop=3))
    with pytest.raises(ValueError, match="got refused segment 5, want 0 to 0"):
        stage(0, replace(times(ONE, (1.0,)), refused=(5,)))
