"""Estimates for another device, made better by what was measured here."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.devices import Layout, UnitId
from edge_agent.hardware import DeviceProfile, MeasuredTimes, Source, SourceKind
from edge_agent.planning.calibrate import (
    MOST_APART,
    bounded,
    calibrated,
    calibrated_device,
    comparable,
)
from edge_agent.planning.estimate import ERROR_FRACTION, estimated_times, planned_device
from edge_agent.problems import PlannedDevice
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.summaries import ModelSummary
from tests.planning.made_models import accelerator, configuration, times
from tests.planning.made_profiles import accelerator_profile, board, processor, worked

ONE, FOUR = configuration(), configuration(threads=4)
MODEL = worked((10_000_000, 20_000_000, 40_000_000))
# One thread here is estimated to take 2, 4 and 8 ms.
MEASURED = times(ONE, (3e-3, 4e-3, 0.0), overhead_s=50e-6, border_s_per_byte=1e-9)
seconds = st.floats(1e-7, 1.0)


def made(
    profile: DeviceProfile,
    *measured: SegmentTimes,
    own: DeviceProfile | None = None,
    model: ModelSummary = MODEL,
    is_for_throughput: bool = False,
) -> PlannedDevice:
    planned = planned_device(profile, model, is_for_throughput=is_for_throughput)
    return calibrated_device(planned, profile, model, own or board(), measured or (MEASURED,))


def of(device: PlannedDevice, which: Configuration) -> SegmentTimes:
    return next(found for found in device.times if found.configuration == which)


def test_a_device_like_this_one_is_as_fast_as_this_one() -> None:
    found = of(made(board()), ONE)
    assert replace(found, error_fraction=0.0) == MEASURED
    # Nobody knows how far off it is.
    assert found.error_fraction == ERROR_FRACTION


def test_a_device_at_half_the_rates_takes_twice_as_long() -> None:
    found = of(made(board(processor(0.5))), ONE)
    assert found.segment_s == pytest.approx((6e-3, 8e-3, 0.0))
    assert found.overhead_s == pytest.approx(100e-6)
    # NCHW has no estimated border, so that it is slower as all of it is.
    assert found.border_s_per_byte == pytest.approx(2e-9)


def test_each_segment_is_off_as_the_estimate_of_it_here_was() -> None:
    # Four threads there are estimated to take a quarter of one here: 0.5, 1 and 2 ms.
    found = of(made(board()), FOUR)
    assert found.segment_s == pytest.approx((0.75e-3, 1e-3, 0.0))


def test_more_time_at_each_operator_counts_where_there_are_operators() -> None:
    slow = processor(operator_s=1e-3)
    found = of(made(board(slow)), ONE)
    # 3 operators of 1 ms beside 2 and 4 ms.
    assert found.segment_s[:2] == pytest.approx((3e-3 * 5 / 2, 4e-3 * 7 / 4))


def test_the_nearest_count_of_threads_is_taken() -> None:
    eight = configuration(threads=8)
    there = processor(cores=16, threads=(1, 3, 16))
    here = {UnitId("cpu"): processor(cores=8)}
    known = [times(which, (1.0,)) for which in (eight, ONE, FOUR)]
    for threads, wanted in ((1, ONE), (2, ONE), (3, FOUR), (5, FOUR), (6, eight), (16, eight)):
        got = comparable(there, configuration(threads=threads), here, known)
        assert got is not None
        assert got.configuration == wanted
    many = configuration(threads=1, instances=4)
    both = [*known, times(many, (1.0,))]
    got = comparable(there, configuration(threads=1, instances=16), here, both)
    assert got is not None
    assert got.configuration == many


def test_other_layouts_kinds_and_precisions_are_not_comparable() -> None:
    here = {unit.id: unit for unit in (processor(), accelerator_profile())}
    blocked = configuration(Layout.BLOCKED)
    last = configuration(Layout.NHWC, threads=4)
    others = (blocked, accelerator(), replace(ONE, is_half=True), last)
    known = [times(which, (1.0,)) for which in others]
    assert comparable(processor(), ONE, here, known) is None
    got = comparable(accelerator_profile("gpu7"), accelerator("gpu7"), here, known)
    assert got is not None
    assert got.configuration == accelerator()
    refused = times(ONE, (1.0,), refused=(0,))
    assert comparable(processor(), ONE, here, [refused]) is None


def test_what_cannot_be_calibrated_is_left_out_beside_what_can() -> None:
    both = processor(layouts=(Layout.NCHW, Layout.BLOCKED))
    gpu = accelerator_profile()
    found = made(board(both, gpu))
    assert {t.configuration.layout for t in found.times} == {Layout.NCHW, Layout.NATIVE}
    # Nothing is known of accelerators here, and a bare estimate is better than none.
    assert of(found, accelerator()) == estimated_times(gpu, accelerator(), MODEL.segments)


def test_nothing_comparable_leaves_all_estimates() -> None:
    profile = board(processor(layouts=(Layout.BLOCKED,)))
    assert made(profile) == planned_device(profile, MODEL)


def test_times_that_the_profile_has_measured_of_the_model_stay() -> None:
    there = times(ONE, (1.0, 2.0, 3.0))
    profile = board()
    source = Source(key="x", text="x", kind=SourceKind.MEASURED, date=datetime.date(2026, 11, 29))
    known = MeasuredTimes(
        model=MODEL.model,
        starts=tuple(s.start for s in MODEL.segments),
        shapes=MODEL.shapes,
        times=there,
        source=source,
    )
    found = made(replace(profile, latency=(known,)))
    assert found.times == (there,)
    other = replace(known, model="ff" * 32)
    assert made(replace(profile, latency=(other,))).times == made(profile).times


def test_what_was_refused_here_is_off_as_all_the_rest() -> None:
    # 3 of 2 ms and 4 of 4 ms: 7 of 6.
    measured = times(ONE, (3e-3, 4e-3, 9.0), refused=(2,))
    assert of(made(board(), measured), ONE).segment_s[2] == pytest.approx(8e-3 * 7 / 6)


def test_what_is_refused_there_stays_so() -> None:
    refusing = replace(processor(), refuses=("Add",))
    segments = (*MODEL.segments[:2], replace(MODEL.segments[2], operators=(("Add", 1),)))
    found = of(made(board(refusing), model=replace(MODEL, segments=segments)), ONE)
    assert (found.refused, found.segment_s[2]) == ((2,), 0.0)


def test_a_layout_that_cannot_be_divided_here_cannot_be_there() -> None:
    whole = replace(MEASURED, is_divisible=False)
    assert not of(made(board(), whole), ONE).is_divisible


def test_a_model_without_any_work_is_not_scaled() -> None:
    nothing = worked((0, 0, 0))
    assert of(made(board(), model=nothing), ONE).segment_s == (0.0, 0.0, 0.0)


def test_a_ratio_of_next_to_nothing_is_bounded_by_that_of_the_whole() -> None:
    here = times(ONE, (1e-3, 1e-12))
    there = times(ONE, (2e-3, 1e-3))
    measured = times(ONE, (1e-3, 1e-3))
    found = calibrated(there, measured, here)
    # Twice as long for the first, three times in all.
    assert found.segment_s == pytest.approx((2e-3, 1e-3 * 3 * MOST_APART))
    assert bounded(1e9) == MOST_APART
    assert bounded(0.0, 5.0) == 5.0 / MOST_APART


@given(st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=6), seconds, seconds)
def test_calibrated_again_by_what_came_of_it_nothing_changes(
    rows: list[tuple[float, float, float]], overhead_s: float, border: float
) -> None:
    there, here, measured = (
        times(ONE, [row[at] for row in rows], overhead_s, border) for at in range(3)
    )
    once = calibrated(there, measured, here)
    again = calibrated(once, once, once)
    assert again.segment_s == pytest.approx(once.segment_s)
    assert again.overhead_s == pytest.approx(once.overhead_s)
    # What is estimated as here takes as long as here.
    equal = calibrated(here, measured, here)
    assert equal.segment_s == pytest.approx(measured.segment_s)
    assert equal.overhead_s == pytest.approx(measured.overhead_s)


@given(
    measured=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
    speed=st.floats(0.05, 20.0),
    threads=st.sampled_from([ONE, FOUR]),
)
def test_a_device_is_as_many_times_slower_as_its_rates(
    measured: list[float], speed: float, threads: Configuration
) -> None:
    known = [times(ONE, measured, 1e-4, 1e-9), times(FOUR, measured[::-1], 1e-4, 1e-9)]
    equal, other = (of(made(board(processor(s)), *known), threads) for s in (1.0, speed))
    assert other.segment_s == pytest.approx([s / speed for s in equal.segment_s])
    assert other.overhead_s == pytest.approx(equal.overhead_s / speed)
    assert equal.segment_s == next(t.segment_s for t in known if t.configuration == threads)
