"""What is answered of a loaded model over its device and peers, against every assignment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.devices import THIS_DEVICE
from edge_agent.distributions import Distribution, Infeasible, PlacedSubgraph, Route
from edge_agent.errors import BadRequest
from edge_agent.planner.answering import answer
from edge_agent.planner.appraising import Wanted, answer_loaded
from edge_agent.planner.posing import Posed, pose
from edge_agent.planning.alternatives import devices_of
from edge_agent.planning.legality import objections
from edge_agent.planning.metrics import evaluate, memory_bytes
from edge_agent.plans import Bound, Target
from edge_agent.problems import Problem, SegmentPin
from edge_agent.subgraphs import SegmentRange
from tests.planner.made_problems import profiled
from tests.planner.made_surroundings import (
    BOX,
    FOUR,
    ONE,
    PI,
    around,
    loaded,
    peer,
    stage,
)
from tests.planning.made_models import times
from tests.planning.made_profiles import board, processor

HALF, FAST = peer(PI, "pi", board(processor(0.5))), peer(BOX, "box", board(processor(8.0)))
LATENCY = (Target.LATENCY,)


def posed(**more: object) -> Posed:
    """Over this device, one at half its speed, and one at eight times it."""
    return pose(loaded(), replace(around(HALF, FAST), **more))  # type: ignore[arg-type]


def every_route(problem: Problem) -> Iterator[Route]:
    """All assignments of segments to configurations of devices that may be used."""
    choices = [
        (device.id, one.configuration)
        for device in problem.devices
        for one in device.times
        if one.configuration.instances == 1
    ]
    count = len(problem.summary.segments)
    for assigned in itertools.product(choices, repeat=count):
        steps = tuple(
            PlacedSubgraph(
                segments=SegmentRange(start=run[0], stop=run[-1] + 1),
                device=device,
                configuration=which,
            )
            for (device, which), group in itertools.groupby(
                range(count), key=lambda at: assigned[at]
            )
            for run in [list(group)]
        )
        route = Route(steps=steps)
        if not objections(problem, (route,)):
            yield route


def least(problem: Problem, target: Target, *, devices: int = 1) -> float:
    """The least cost of one route over so many devices or more."""
    return min(
        evaluate(problem, (route,)).cost(target)
        for route in every_route(problem)
        if len({part.device for part in route.parts()}) >= devices
    )


def best(found: Posed, wanted: Wanted) -> Distribution:
    (one,) = answer_loaded(found, wanted).best
    assert isinstance(one, Distribution)
    return one


@pytest.mark.parametrize("target", [Target.LATENCY, Target.BYTES, Target.MEMORY])
@pytest.mark.parametrize("bytes_per_s", [1e9, 3e7])
def test_the_best_route_is_that_of_all_assignments(target: Target, bytes_per_s: float) -> None:
    found = pose(loaded(), around(HALF, FAST, bytes_per_s=bytes_per_s), is_for_throughput=False)
    got = best(found, Wanted(targets=(target,)))
    assert got.metrics.cost(target) == pytest.approx(least(found.problem, target))
    assert got.is_optimal
    assert not objections(found.problem, got.routes)


@pytest.mark.parametrize("most_routes", [1, None])
def test_the_best_rate_is_no_less_than_that_of_any_one_route(most_routes: int | None) -> None:
    found = pose(loaded(), around(HALF, FAST), most_routes=most_routes)
    got = best(found, Wanted(targets=(Target.THROUGHPUT,)))
    assert got.metrics.cost(Target.THROUGHPUT) <= least(found.problem, Target.THROUGHPUT) * 1.0001
    assert not objections(found.problem, got.routes)


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(
    speeds=st.tuples(st.floats(0.2, 10.0), st.floats(0.2, 10.0)),
    bytes_per_s=st.floats(1e6, 1e10),
    measured=st.lists(st.floats(1e-4, 2e-2), min_size=2, max_size=2),
)
def test_whatever_peers_are_like_the_quickest_route_is_found_and_none_alone_is_quicker(
    speeds: tuple[float, float], bytes_per_s: float, measured: list[float]
) -> None:
    peers = (
        peer(PI, "pi", board(processor(speeds[0], threads=(1,)))),
        peer(BOX, "box", board(processor(speeds[1], threads=(1,)))),
    )
    found = pose(
        loaded(),
        around(*peers, bytes_per_s=bytes_per_s),
        {PI: [stage(1, times(ONE, measured))]},
        is_for_throughput=False,
    )
    planned = answer_loaded(found, Wanted(targets=LATENCY))
    (got,), (appraisal,) = planned.best, planned.appraisals
    assert isinstance(got, Distribution)
    assert got.metrics.latency_s == pytest.approx(least(found.problem, Target.LATENCY))
    assert [one.metrics.latency_s for one in appraisal.alone] == sorted(
        one.metrics.latency_s for one in appraisal.alone
    )
    assert {one.device for one in appraisal.alone} == {THIS_DEVICE, PI, BOX}
    assert got.metrics.latency_s <= appraisal.alone[0].metrics.latency_s * (1.0 + 1e-9)


def test_without_peers_it_is_what_planning_over_this_device_gives() -> None:
    found = pose(profiled())
    wanted = Wanted(targets=(Target.LATENCY, Target.MEMORY), is_pareto=True)
    got = answer_loaded(found, wanted)
    want = answer(found.problem, wanted.targets, is_pareto=True)
    assert (got.best, got.front, got.knows_energy) == (want.best, want.front, want.knows_energy)
    assert got.division == found.problem.summary.division
    for one, appraisal in zip(got.best, got.appraisals, strict=True):
        assert isinstance(one, Distribution)
        (alone,) = appraisal.alone
        assert (alone.device, alone.metrics) == (THIS_DEVICE, one.metrics)
        (memory,) = appraisal.memory
        assert (memory.name, memory.budget_bytes) == ("local", 1 << 33)
        assert (appraisal.left_out, appraisal.estimated) == ((), ())


def test_what_each_device_does_alone_is_told() -> None:
    found = posed()
    planned = answer_loaded(found, Wanted(targets=LATENCY))
    (appraisal,) = planned.appraisals
    told = {one.device: one.metrics for one in appraisal.alone}
    for device, metrics in told.items():
        routes = [
            evaluate(found.problem, (route,))
            for route in every_route(found.problem)
            if {part.device for part in route.parts()} == {device}
        ]
        assert metrics.latency_s == pytest.approx(min(one.latency_s for one in routes))
    assert next(iter(told)) == BOX
    assert told[THIS_DEVICE].wire_bytes == 0.0
    assert told[BOX].wire_bytes == 604_000


def test_the_memory_of_every_device_that_takes_part_is_told() -> None:
    found = posed()
    planned = answer_loaded(found, Wanted(targets=(Target.THROUGHPUT,)))
    (got,), (appraisal,) = planned.best, planned.appraisals
    assert isinstance(got, Distribution)
    assert {use.name: use.used_bytes for use in appraisal.memory} == memory_bytes(
        found.problem, got.routes
    )
    assert {use.name for use in appraisal.memory} == set(map(str, devices_of(got)))


def test_a_device_whose_part_was_measured_there_is_no_longer_estimated() -> None:
    quick = stage(0, times(ONE, (1e-4,) * 4), times(FOUR, (1e-4,) * 4))
    some = stage(0, times(ONE, (1e-4,) * 2), times(FOUR, (1e-4,) * 2))
    for stages, estimated in (({}, (BOX,)), ({BOX: [quick]}, ()), ({BOX: [some]}, (BOX,))):
        found = pose(loaded(), around(HALF, FAST), stages)
        planned = answer_loaded(found, Wanted(targets=LATENCY))
        assert planned.appraisals[0].estimated == estimated


def test_what_would_be_had_with_a_device_that_is_left_out_is_told_if_it_is_asked() -> None:
    (plain,) = answer_loaded(posed(), Wanted(targets=LATENCY)).appraisals
    assert plain.left_out == ()
    wanted = Wanted(targets=LATENCY, is_compared=True)
    (compared,) = answer_loaded(posed(), wanted).appraisals
    left_out = {out.device: out.reason for out in compared.left_out}
    assert set(left_out) == {PI}
    assert left_out[PI].startswith("the best route that uses it takes ")


def test_devices_are_called_by_their_names_in_texts() -> None:
    bounds = (Bound(target=Target.MEMORY, limit=1000.0),)
    far = replace(around(HALF, FAST), links=around(HALF, FAST).links[:0])
    assert [out.device for out in pose(loaded(), far).left_out] == [PI, BOX]
    small = tuple(
        replace(one, profile=board(memory_bytes=1000.0)) for one in around(HALF, FAST).peers
    )
    tight = replace(around(*small), profile=board(memory_bytes=1000.0))
    found = pose(loaded(), tight, bounds=bounds)
    (told,) = answer_loaded(found, Wanted(targets=LATENCY)).best
    assert isinstance(told, Infeasible)
    assert "pi 1000 B, box 1000 B" in told.reason
    assert PI not in told.reason
    # What programs read keeps the ids.
    with pytest.raises(BadRequest, match="what local, pi, box draws"):
        answer_loaded(posed(), Wanted(targets=(Target.ENERGY,)))


def test_what_this_device_does_alone_counts_although_it_does_not_fit_beside_the_whole() -> None:
    slow = peer(PI, "pi", board(processor(0.01)))
    tight = replace(around(slow), profile=board(memory_bytes=5e6), keeps_whole=True)
    found = pose(loaded(), tight)
    assert found.problem.devices[0].memory_bytes == 500_000
    planned = answer_loaded(found, Wanted(targets=LATENCY, is_compared=True))
    (got,), (appraisal,) = planned.best, planned.appraisals
    assert isinstance(got, Distribution)
    assert devices_of(got) == {THIS_DEVICE}
    assert got.is_optimal
    assert got.metrics == answer_loaded(pose(loaded()), Wanted(targets=LATENCY)).best[0].metrics  # type: ignore[union-attr]
    assert [one.device for one in appraisal.alone] == [THIS_DEVICE, PI]
    (memory,) = appraisal.memory
    assert (memory.name, memory.budget_bytes) == ("local", 5_000_000)


def test_where_nothing_fits_beside_the_whole_this_device_is_alone() -> None:
    tiny = peer(PI, "pi", board(memory_bytes=1000.0))
    tight = replace(around(tiny), profile=board(memory_bytes=5e6), keeps_whole=True)
    planned = answer_loaded(pose(loaded(), tight), Wanted(targets=(Target.LATENCY,)))
    (got,) = planned.best
    assert isinstance(got, Distribution)
    assert devices_of(got) == {THIS_DEVICE}


def test_what_fits_beside_the_whole_may_be_divided() -> None:
    roomy = replace(around(HALF, FAST), keeps_whole=True)
    found = pose(loaded(), roomy)
    got = answer_loaded(found, Wanted(targets=(Target.THROUGHPUT,)))
    want = answer_loaded(posed(), Wanted(targets=(Target.THROUGHPUT,)))
    assert isinstance(got.best[0], Distribution)
    assert got.best == want.best


@pytest.mark.parametrize("speed", [0.02, 50.0])
def test_a_division_that_does_not_pay_is_made_where_it_is_wanted(speed: float) -> None:
    other = peer(PI, "pi", board(processor(speed)))
    small = replace(loaded(), input_bytes=1000)
    found = pose(small, around(other), is_for_throughput=False)
    free = best(found, Wanted(targets=LATENCY))
    assert len(devices_of(free)) == 1
    got = best(found, Wanted(targets=LATENCY, is_divided=True))
    assert devices_of(got) == {THIS_DEVICE, PI}
    # None of all is better than the best of one device.
    assert got.bound == free.bound
    assert got.metrics.latency_s == pytest.approx(least(found.problem, Target.LATENCY, devices=2))


def test_a_route_that_is_to_be_divided_is_so_for_the_throughput_too() -> None:
    slow = peer(PI, "pi", board(processor(0.02)))
    found = pose(loaded(), around(slow), most_routes=1)
    wanted = Wanted(targets=(Target.THROUGHPUT,))
    assert devices_of(best(found, wanted)) == {THIS_DEVICE}
    got = best(found, replace(wanted, is_divided=True))
    assert devices_of(got) == {THIS_DEVICE, PI}
    assert not objections(found.problem, got.routes)


def test_a_division_without_anybody_to_divide_with_is_told() -> None:
    (told,) = answer_loaded(pose(loaded()), Wanted(targets=LATENCY, is_divided=True)).best
    assert told == Infeasible(
        target=Target.LATENCY, reason="nothing was found in which two devices compute"
    )


def test_a_pinned_segment_runs_there_and_nobody_else_is_asked_alone() -> None:
    pin = SegmentPin(segment=2, device=PI, pattern="conv*")
    found = pose(loaded(), around(HALF, FAST), pins=(pin,), is_for_throughput=False)
    planned = answer_loaded(found, Wanted(targets=LATENCY))
    (got,), (appraisal,) = planned.best, planned.appraisals
    assert isinstance(got, Distribution)
    assert PI in devices_of(got)
    assert got.metrics.latency_s == pytest.approx(least(found.problem, Target.LATENCY))
    assert [one.device for one in appraisal.alone] == [PI]


@pytest.mark.long
def test_progress_never_goes_back() -> None:
    told: list[float] = []
    wanted = Wanted(targets=(Target.LATENCY, Target.THROUGHPUT), is_pareto=True)
    answer_loaded(posed(), wanted, lambda fraction, _: told.append(fraction))
    assert told == sorted(told)
    assert 0.7 < told[-1] < 1.0
