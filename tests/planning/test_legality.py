"""Why routes must not be deployed: one reason for each thing that a problem asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.planning.legality import objections
from edge_agent.plans import Target
from edge_agent.problems import Problem, SegmentPin
from edge_agent.summaries import CutPoint
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    bounded,
    forked,
    now,
    quick_neighbour,
    two_branches,
    with_device,
    with_unit,
    without_link,
)
from tests.simulation.made_problems import NPU, A, B, host, npu, placed, route, times


def _refusing_on_b() -> Problem:
    made = quick_neighbour()
    (fitted,) = made.devices[1].times
    return with_device(made, B, times=(replace(fitted, refused=(1,)),))


def _undivided_on_b() -> Problem:
    made = quick_neighbour()
    (fitted,) = made.devices[1].times
    return with_device(made, B, times=(replace(fitted, is_divisible=False),))


def _with_cut(**changes: object) -> Problem:
    made = quick_neighbour()
    first, second = made.summary.cuts
    cuts = (replace(first, **changes), second)  # type: ignore[arg-type]
    return replace(made, summary=replace(made.summary, cuts=cuts))


def test_there_is_nothing_against_what_is_legal() -> None:
    for routes in (ALL_ON_A, ALL_ON_B, A_THEN_B):
        assert objections(quick_neighbour(), routes) == ()


OBJECTED = [
    (
        replace(quick_neighbour(), devices=quick_neighbour().devices[:1], links=()),
        "device b is gone",
    ),
    (now(quick_neighbour(), B, battery_fraction=0.1), "the battery of b is too low"),
    (
        with_unit(quick_neighbour(), B, banned_because="it is loud"),
        "b/cpu must not be used: it is loud",
    ),
    (
        with_device(quick_neighbour(), B, times=(times(host(threads=2), [MS] * 3),), cores=2),
        "device b has no latency profile of cpu/NCHW/1t",
    ),
    (_refusing_on_b(), "b/cpu/NCHW/1t refuses segment 1"),
    (_undivided_on_b(), "b/cpu/NCHW/1t runs the whole model only"),
    (
        replace(quick_neighbour(), pins=(SegmentPin(segment=2, device=A, pattern="head*"),)),
        'segment 2 is pinned to a by "head*"',
    ),
    (
        replace(quick_neighbour(), pins=(SegmentPin(segment=2, device=B, unit=NPU, pattern="h"),)),
        'segment 2 is pinned to b by "h"',
    ),
    (without_link(quick_neighbour(), A, B), "there is no link from a to b"),
    (without_link(quick_neighbour(), B, A), "there is no link from b to a"),
    (with_device(quick_neighbour(), B, most_crossing_bytes=3999), "b takes 3999 bytes at once"),
    (
        with_device(replace(quick_neighbour(), output_bytes=1000), A, most_crossing_bytes=999),
        "a takes 999 bytes at once, 1000 would cross",
    ),
    (_with_cut(crossing_bytes=None), "before segment 1"),
    (_with_cut(others=(("list", "seq(tensor(float))"),)), "before segment 1"),
    (with_device(quick_neighbour(), B, memory_bytes=5299), "b has 5299 bytes of memory, 5300 are"),
    (now(quick_neighbour(), B, free_memory_bytes=5299), "b has 5299 bytes of memory, 5300 are"),
    (bounded(quick_neighbour(), Target.LATENCY, 19 * MS), "latency 0.02, at most 0.019 is asked"),
    (bounded(quick_neighbour(), Target.BYTES, 3999), "bytes 4000, at most 3999 is asked"),
    (bounded(quick_neighbour(), Target.MEMORY, 5299), "memory 5300, at most 5299 is asked"),
    (bounded(quick_neighbour(), Target.ENERGY, 0.05), "energy 0.056, at most 0.05 is asked"),
    (bounded(quick_neighbour(), Target.THROUGHPUT, 101.0), "throughput 100, at least 101 is asked"),
]


@pytest.mark.parametrize(("made", "text"), OBJECTED, ids=[text for _, text in OBJECTED])
def test_each_objection_is_said(made: Problem, text: str) -> None:
    (said,) = objections(made, A_THEN_B)
    assert text in said
    # Nothing of it touches what runs on the owner, but for pins and its throughput and energy.
    if not made.pins and not made.bounds:
        assert objections(made, ALL_ON_A) == ()


def test_what_is_just_enough_is_enough() -> None:
    made = with_device(quick_neighbour(), B, most_crossing_bytes=4000, memory_bytes=5300)
    for target, limit in (
        (Target.LATENCY, 20 * MS),
        (Target.BYTES, 4000),
        (Target.MEMORY, 5300),
        (Target.ENERGY, 0.056),
        (Target.THROUGHPUT, 100.0),
    ):
        assert objections(bounded(made, target, limit), A_THEN_B) == ()


def test_a_unit_that_is_gone_is_an_objection() -> None:
    made = with_device(quick_neighbour(), B, times=(times(npu(), [MS] * 3),))
    routes = (route(placed(0, 3, B, npu())),)
    assert objections(made, routes) == ()
    without = with_device(made, B, times=(), units=made.device(B).units[:1])
    assert objections(without, routes)[0] == "b has no unit npu0"


def test_a_unit_with_a_memory_of_its_own_is_judged_by_that() -> None:
    made = with_device(quick_neighbour(), B, times=(times(npu(), [MS] * 3),), memory_bytes=0)
    routes = (route(placed(0, 3, B, npu())),)
    assert objections(with_unit(made, B, NPU, memory_bytes=6300), routes) == ()
    assert objections(with_unit(made, B, NPU, memory_bytes=6299), routes) == (
        "b/npu0 has 6299 bytes of memory, 6300 are needed",
    )


def test_the_owner_may_work_whatever_its_battery() -> None:
    assert objections(now(quick_neighbour(), A, battery_fraction=0.0), ALL_ON_A) == ()


def test_the_whole_model_is_no_part_of_it() -> None:
    assert objections(_undivided_on_b(), ALL_ON_B) == ()


def test_memory_is_that_of_all_routes_together() -> None:
    # All on b 6300 bytes; the last two there need no weights more, but an arena of 300 bytes.
    made = quick_neighbour()
    both = (replace(ALL_ON_B[0], share=0.5), replace(A_THEN_B[0], share=0.5))
    assert objections(with_device(made, B, memory_bytes=6600), both) == ()
    assert objections(with_device(made, B, memory_bytes=6599), both) == (
        "b has 6599 bytes of memory, 6600 are needed",
    )


def test_bounds_on_energy_and_bytes_hold_for_every_route() -> None:
    # On average 5000 bytes are sent.
    both = (replace(ALL_ON_B[0], share=0.5), replace(ALL_ON_A[0], share=0.5))
    assert objections(bounded(quick_neighbour(), Target.BYTES, 9999), both) == (
        "bytes 10000, at most 9999 is asked",
    )


def test_a_route_that_no_request_takes_breaks_no_bound_on_energy_or_bytes() -> None:
    spare_a, spare_b = (replace(r, share=0.0) for r in (*ALL_ON_A, *ALL_ON_B))
    # On a 120 mJ and no bytes; on b 24 mJ and 10000 bytes.
    cheap = bounded(quick_neighbour(), Target.ENERGY, 0.1)
    assert objections(cheap, ALL_ON_A) == ("energy 0.12, at most 0.1 is asked",)
    assert objections(cheap, (*ALL_ON_B, spare_a)) == ()
    silent = bounded(quick_neighbour(), Target.BYTES, 9999)
    assert objections(silent, ALL_ON_B) == ("bytes 10000, at most 9999 is asked",)
    assert objections(silent, (*ALL_ON_A, spare_b)) == ()


def test_more_routes_than_are_asked_for_are_an_objection() -> None:
    both = (replace(ALL_ON_B[0], share=0.5), replace(ALL_ON_A[0], share=0.5))
    assert objections(replace(quick_neighbour(), most_routes=1), both) == (
        "2 routes, at most 1 are asked for",
    )


def test_an_objection_to_several_routes_is_said_once() -> None:
    both = (replace(ALL_ON_B[0], share=0.5), replace(A_THEN_B[0], share=0.5))
    assert objections(now(quick_neighbour(), B, battery_fraction=0.1), both) == (
        "the battery of b is too low to work for others",
    )


def test_each_arm_of_a_fork_is_judged() -> None:
    made = two_branches()
    routes = (route(placed(0, 1, A, HOST), forked(A, (0, A, HOST), (1, B, HOST))),)  # type: ignore[arg-type]
    assert objections(made, routes) == ()
    assert objections(without_link(made, B, A), routes) == ("there is no link from b to a",)
    assert objections(now(made, B, battery_fraction=0.1), routes) == (
        "the battery of b is too low to work for others",
    )
    pinned = replace(made, pins=(SegmentPin(segment=1, device=A, pattern="left*"),))
    assert objections(pinned, routes) == ('segment 1 is pinned to a by "left*"',)


def test_branches_that_may_not_run_at_once_any_more_are_an_objection() -> None:
    routes = (route(placed(0, 1, A, HOST), forked(A, (0, A, HOST), (1, B, HOST))),)  # type: ignore[arg-type]
    (said,) = objections(two_branches(with_branches=False), routes)
    assert "branches" in said


def test_segments_that_are_left_out_are_an_objection() -> None:
    half = (route(placed(0, 2, A, HOST)),)
    (said,) = objections(quick_neighbour(), half)
    assert "got 2 segments, want 3" in said
    longer = (route(placed(0, 4, A, HOST)),)
    assert objections(quick_neighbour(), longer)


def test_a_cut_is_where_the_others_are() -> None:
    # Between two units of one device values of unknown size cannot be priced either.
    made = with_device(
        _with_cut(crossing_bytes=None), A, times=(times(HOST, [MS] * 3), times(npu(), [MS] * 3))
    )
    assert isinstance(made.summary.cuts[0], CutPoint)
    routes = (route(placed(0, 1, A, HOST), placed(1, 3, A, npu())),)
    (said,) = objections(made, routes)
    assert "before segment 1" in said


@pytest.mark.parametrize("shares", [(), (0.5,), (0.7, 0.7)])
def test_shares_that_do_not_add_up_are_an_objection(shares: tuple[float, ...]) -> None:
    routes = tuple(replace(ALL_ON_A[0], share=share) for share in shares)
    (said,) = objections(quick_neighbour(), routes)
    assert said.startswith("got shares" if shares else "there are no routes")
