"""Why a device that may work is on no route."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.planning.alternatives import compare
from edge_agent.plans import Target
from edge_agent.problems import Problem, SegmentPin
from tests.planning.made_pairs import (
    HOST,
    MS,
    best,
    one_segment,
    quick_neighbour,
    with_device,
    without_link,
)
from tests.simulation.made_problems import A, B, C, device, link, times

NO_SIZE_BACK = (
    "the size of the outputs is not known before they are computed, so the last segment runs on a"
)
NO_SIZE_THERE = "the size of the inputs is not known, so the first segment runs on a"


def said(made: Problem, target: Target = Target.LATENCY) -> str:
    """Why b is not used."""
    told = {one.device: one.reason for one in compare(made, best(made, target)).left_out}
    return told[B]


def test_links_that_are_not_there_are_told_with_their_direction() -> None:
    made = quick_neighbour()
    assert said(without_link(made, A, B)) == "no link leads there from a"
    assert said(without_link(made, B, A)) == "no link leads back from it to a"
    assert said(replace(made, links=())) == "no link leads there from a, and none back"


def test_links_over_a_third_device_count() -> None:
    made = quick_neighbour()
    slow_c = device(C, times(HOST, [900 * MS] * 3))
    round_trip = (link(A, B), link(B, C), link(C, A))
    made = replace(made, devices=(*made.devices, slow_c), links=round_trip)
    assert said(made).startswith("the best route that uses it takes")


@pytest.mark.parametrize("target", [Target.LATENCY, Target.THROUGHPUT, Target.MEMORY])
def test_an_output_of_unknown_size_keeps_the_only_segment_at_home(target: Target) -> None:
    made = one_segment(10 * MS, 2 * MS, output_bytes=None)
    assert said(made, target) == f"{NO_SIZE_BACK}, and there is no other segment"


def test_an_input_of_unknown_size_keeps_what_is_not_divided_at_home() -> None:
    made = replace(quick_neighbour(), input_bytes=None)
    whole = replace(times(HOST, [2 * MS] * 3), is_divisible=False)
    assert said(with_device(made, B, times=(whole,))) == NO_SIZE_THERE


def test_what_crosses_without_a_known_size_is_counted() -> None:
    made = replace(quick_neighbour(), input_bytes=None, output_bytes=None)
    first, second = made.summary.cuts
    cuts = (replace(first, crossing_bytes=None), replace(second, others=(("s", "seq"),)))
    text = said(replace(made, summary=replace(made.summary, cuts=cuts)))
    assert text == (
        f"{NO_SIZE_THERE}; {NO_SIZE_BACK}; at 2 of the 2 places where the model may be divided, "
        "what crosses has no known size or cannot leave its device"
    )


def test_a_limit_on_messages_is_told_with_its_bytes() -> None:
    assert said(with_device(quick_neighbour(), B, most_crossing_bytes=500)) == (
        "what would be sent is more than is taken at once (b takes 500 B)"
    )


def test_pins_elsewhere_are_told_with_their_patterns() -> None:
    pins = tuple(SegmentPin(segment=at, device=A, pattern="conv*") for at in range(3))
    assert said(replace(quick_neighbour(), pins=pins)) == 'pins forbid it ("conv*" on a)'


def test_obstacles_that_only_together_keep_a_device_out_are_all_told() -> None:
    pins = tuple(SegmentPin(segment=at, device=A, pattern="conv*") for at in range(3))
    made = with_device(replace(quick_neighbour(), pins=pins), B, most_crossing_bytes=500)
    assert said(made) == (
        "what would be sent is more than is taken at once (b takes 500 B); "
        'pins forbid it ("conv*" on a)'
    )


def test_a_device_whose_units_refuse_what_can_be_handed_over_is_told_so() -> None:
    made = quick_neighbour()
    (fitted,) = made.device(B).times
    made = with_device(made, B, times=(replace(fitted, refused=(0, 1, 2)),))
    assert said(made) == "its units refuse all segments"
    # The last alone would do, and nothing may be handed over before it.
    made = with_device(made, B, times=(replace(fitted, refused=(0, 1), is_divisible=False),))
    assert said(made) == ("what its units take of the model cannot be handed over to them and back")
