"""Why routes must not be deployed: one reason for each thing that a problem asks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edge_agent.devices import DeviceId, UnitId
from edge_agent.distributions import PlacedFork, Route
from edge_agent.planning.legality import objections
from edge_agent.plans import Target
from edge_agent.problems import Link, Problem, SegmentPin
from edge_agent.profiles import HOST_UNIT
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import CutPoint, Fork
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    THROUGH_B,
    bounded,
    branches_through_b,
    forked,
    now,
    quick_neighbour,
    two_branches,
    with_device,
    with_unit,
    without_link,
)
from tests.planning.oracle.legality import faults
from tests.planning.oracle.problems_made import small_problem
from tests.planning.oracle.routes_made import any_route
from tests.simulation.made_problems import (
    NPU,
    A,
    B,
    C,
    branch,
    host,
    link,
    npu,
    placed,
    route,
    times,
)


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
    (with_device(quick_neighbour(), B, most_crossing_bytes=3999), "b takes 3.905 KiB at once"),
    (
        with_device(replace(quick_neighbour(), output_bytes=1000), A, most_crossing_bytes=999),
        "a takes 999 B at once, 1000 B would cross",
    ),
    (_with_cut(crossing_bytes=None), "before segment 1"),
    (_with_cut(others=(("list", "seq(tensor(float))"),)), "before segment 1"),
    (
        with_device(quick_neighbour(), B, memory_bytes=5299),
        "b has 5.175 KiB of memory, 5.176 KiB are",
    ),
    (now(quick_neighbour(), B, free_memory_bytes=5299), "b has 5.175 KiB of memory, 5.176 KiB are"),
    (bounded(quick_neighbour(), Target.LATENCY, 19 * MS), "latency 20 ms, at most 19 ms is asked"),
    (
        bounded(quick_neighbour(), Target.BYTES, 3999),
        "bytes 3.906 KiB, at most 3.905 KiB is asked",
    ),
    (
        bounded(quick_neighbour(), Target.MEMORY, 5299),
        "memory 5.176 KiB, at most 5.175 KiB is asked",
    ),
    (
        bounded(quick_neighbour(), Target.ENERGY, 0.05),
        "energy 0.056 J per request (modelled), at most 0.05 J per request (modelled) is asked",
    ),
    (
        bounded(quick_neighbour(), Target.THROUGHPUT, 101.0),
        "throughput 100 requests per second, at least 101 requests per second is asked",
    ),
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
        "b/npu0 has 6.151 KiB of memory, 6.152 KiB are needed",
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
        "b has 6.444 KiB of memory, 6.445 KiB are needed",
    )


def test_bounds_on_energy_and_bytes_hold_for_every_route() -> None:
    # On average 5000 bytes are sent.
    both = (replace(ALL_ON_B[0], share=0.5), replace(ALL_ON_A[0], share=0.5))
    assert objections(bounded(quick_neighbour(), Target.BYTES, 9999), both) == (
        "bytes 9.766 KiB, at most 9.765 KiB is asked",
    )


def test_a_route_that_no_request_takes_breaks_no_bound_on_energy_or_bytes() -> None:
    spare_a, spare_b = (replace(r, share=0.0) for r in (*ALL_ON_A, *ALL_ON_B))
    # On a 120 mJ and no bytes; on b 24 mJ and 10000 bytes.
    cheap = bounded(quick_neighbour(), Target.ENERGY, 0.1)
    assert objections(cheap, ALL_ON_A) == (
        "energy 0.12 J per request (modelled), at most 0.1 J per request (modelled) is asked",
    )
    assert objections(cheap, (*ALL_ON_B, spare_a)) == ()
    silent = bounded(quick_neighbour(), Target.BYTES, 9999)
    assert objections(silent, ALL_ON_B) == ("bytes 9.766 KiB, at most 9.765 KiB is asked",)
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


def _with_branch_sizes(made: Problem, crossing_bytes: int, output_bytes: int) -> Problem:
    """What crosses the cut before the fork, and what each branch of it gives."""
    summary = made.summary
    (fork,) = summary.forks
    branches = tuple(replace(one, output_bytes=output_bytes) for one in fork.branches)
    cuts = (replace(summary.cuts[0], crossing_bytes=crossing_bytes), *summary.cuts[1:])
    forks = (replace(fork, branches=branches),)
    return replace(made, summary=replace(summary, cuts=cuts, forks=forks))


def _without_device(made: Problem, name: DeviceId) -> Problem:
    devices = tuple(d for d in made.devices if d.id != name)
    links = tuple(k for k in made.links if name not in (k.source, k.target))
    return replace(made, devices=devices, links=links)


def _banned(made: Problem, *units: UnitId) -> Problem:
    """The problem in which these units of `b` must not be used."""
    for unit in units:
        made = with_unit(made, B, unit, banned_because="it is loud")
    return made


THROUGH = branches_through_b()
AT_HOME = [
    (now(THROUGH, B, battery_fraction=0.01), "the battery of b is too low to work for others"),
    (_without_device(THROUGH, B), "device b is gone"),
    (_banned(THROUGH, HOST_UNIT, NPU), "b must not be used: it is loud"),
    (without_link(THROUGH, A, B), "there is no link from a to b"),
    (without_link(THROUGH, B, A), "there is no link from b to a"),
    (without_link(THROUGH, B, C), "there is no link from b to c"),
    (without_link(THROUGH, C, B), "there is no link from c to b"),
    (
        with_device(_with_branch_sizes(THROUGH, 1000, 0), B, most_crossing_bytes=999),
        "b takes 999 B at once, 1000 B would cross",
    ),
    (
        with_device(_with_branch_sizes(THROUGH, 0, 1000), B, most_crossing_bytes=999),
        "b takes 999 B at once, 1000 B would cross",
    ),
]


@pytest.mark.parametrize(("made", "text"), AT_HOME)
def test_the_home_of_a_fork_is_judged_though_it_runs_none_of_it(made: Problem, text: str) -> None:
    assert objections(made, THROUGH_B) == (text,)
    assert faults(made, Target.LATENCY, THROUGH_B)


def test_a_home_needs_neither_memory_nor_units_of_its_own() -> None:
    for made in (
        THROUGH,
        with_device(THROUGH, B, memory_bytes=0),
        with_device(THROUGH, B, times=()),
        _banned(THROUGH, HOST_UNIT),
        # The owner has every request and every answer, whatever it may run.
        now(THROUGH, A, battery_fraction=0.0),
    ):
        assert objections(made, THROUGH_B) == ()
        assert faults(made, Target.LATENCY, THROUGH_B) == []


def test_what_a_home_and_its_arms_have_in_common_is_said_once() -> None:
    routes = (route(placed(0, 1, A, HOST), forked(B, (0, B, HOST), (1, C, HOST))),)  # type: ignore[arg-type]
    for made in (THROUGH, now(THROUGH, B, battery_fraction=0.01), _without_device(THROUGH, B)):
        assert len(objections(made, routes)) == (made is not THROUGH)


FORK = forked(A, (0, A, HOST), (1, B, HOST))
FIRST, SECOND = FORK.arms


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (replace(FORK, fork=1), "the model has no fork 1 of segments 1-2"),
        (
            replace(FORK, segments=SegmentRange(start=1, stop=4)),
            "the model has no fork 0 of segments 1-3",
        ),
        (replace(FORK, arms=(FIRST,)), "a fork runs branches 0 in 1 arm, want 0, 1 in two or more"),
        (
            replace(FORK, arms=(FIRST, replace(SECOND, branches=(0, 1)))),
            "a fork runs branches 0, 0, 1 in 2 arms, want 0, 1 in two or more",
        ),
        (
            replace(FORK, arms=(FIRST, replace(SECOND, device=A))),
            "two arms of a fork are in one place",
        ),
        (
            replace(FORK, home=C, arms=(replace(FIRST, device=B, configuration=npu()), SECOND)),
            "two arms of a fork are in one place",
        ),
    ],
)
def test_a_fork_that_is_not_of_the_model_is_an_objection(step: PlacedFork, text: str) -> None:
    made = with_device(THROUGH, B, times=tuple(times(w, [10 * MS] * 3) for w in (HOST, npu())))
    steps = (placed(0, 1, A, HOST), step)
    assert objections(made, (Route(steps=steps),)) == (text,)


def test_an_arm_is_a_part_of_the_model_even_where_the_fork_is_all_of_it() -> None:
    made = two_branches()
    whole = SegmentRange(start=0, stop=3)
    branches = (branch(1, [1.0, 1.0, 0.0]), branch(2, [0.0, 0.0, 1.0]))
    fork = Fork(segments=whole, branches=branches)
    made = replace(made, summary=replace(made.summary, forks=(fork,)))
    routes = (Route(steps=(replace(FORK, segments=whole),)),)
    assert objections(made, routes) == ()
    (fitted,) = made.device(B).times
    undivided = with_device(made, B, times=(replace(fitted, is_divisible=False),))
    assert objections(undivided, routes) == ("b/cpu/NCHW/1t runs the whole model only",)


def _every_link(made: Problem) -> tuple[Link, ...]:
    names = [device.id for device in made.devices]
    return tuple(link(a, b) for a in names for b in names if a != b)


@pytest.mark.parametrize("seed", range(3))
def test_there_are_objections_where_there_are_faults(seed: int) -> None:
    rng = random.Random(seed)
    at_home = legal = 0
    for _ in range(200):
        made = small_problem(rng)
        if made.summary.forks:
            idle = rng.choice(made.devices).id
            made = replace(made, with_branches=True, pins=(), links=_every_link(made))
            made = now(made, idle, battery_fraction=0.1)
        for _ in range(16 if made.summary.forks else 2):
            one = any_route(rng, made)
            if one is None:
                continue
            # Of a mixture for the throughput every configuration may be a part.
            found = faults(made, Target.THROUGHPUT, (one,))
            assert bool(objections(made, (one,))) == bool(found), (made, one, found)
            at_home += len(found) == 1 and "spares its battery" in found[0]
            legal += not found
    assert at_home > 1
    assert legal > 100


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
