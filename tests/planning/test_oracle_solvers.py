"""The oracles against each other, and against what can be worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.distributions import PlacedFork
from edge_agent.plans import Bound, Target
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import HOST_UNIT, Configuration, SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Branch, Fork, ModelSummary
from tests.marks import marked_long
from tests.planning import made_models
from tests.planning.oracle.brute_force import BruteForce, Optimum, optima
from tests.planning.oracle.legality import faults
from tests.planning.oracle.milp import best_route, least_mean, most_throughput
from tests.planning.oracle.prices import price
from tests.planning.oracle.problems_made import middle_problem, small_problem, small_problems

CPU = Configuration(unit=HOST_UNIT, layout=Layout.NCHW, threads=1)
GPU = Configuration(unit=UnitId("gpu0"), layout=Layout.NATIVE, threads=0)
PLAIN = ("few", "smooth")
PER_REQUEST = (Target.LATENCY, Target.ENERGY, Target.BYTES)


def device(
    name: str,
    segment_s: Sequence[float],
    gpu_s: Sequence[float] = (),
    *,
    watts: float = 1.0,
    memory_bytes: int = 10**9,
) -> PlannedDevice:
    known = [(CPU, segment_s), *([(GPU, gpu_s)] if gpu_s else [])]
    return PlannedDevice(
        id=DeviceId(name),
        units=tuple(PlannedUnit(id=which.unit, busy_w=watts) for which, _ in known),
        times=tuple(
            SegmentTimes(
                configuration=which,
                segment_s=tuple(s),
                overhead_s=0.0,
                border_s_per_byte=0.0,
                error_fraction=0.0,
            )
            for which, s in known
        ),
        memory_bytes=memory_bytes,
    )


def chain(count: int) -> ModelSummary:
    segments = [made_models.segment(i, weight_bytes=1000) for i in range(count)]
    return made_models.summary(segments, [0] * (count - 1))


def problem(*devices: PlannedDevice, bounds: Sequence[tuple[Target, float]] = ()) -> Problem:
    """Devices that reach each other at no cost, and a request that brings nothing."""
    count = len(devices[0].times[0].segment_s)
    ids = [d.id for d in devices]
    return Problem(
        summary=chain(count),
        devices=devices,
        owner=ids[0],
        links=tuple(
            Link(source=a, target=b, latency_s=0.0, goodput_bytes_per_s=1e6)
            for a in ids
            for b in ids
            if a != b
        ),
        bounds=tuple(Bound(target=target, limit=limit) for target, limit in bounds),
    )


def best(made: Problem, target: Target) -> Optimum:
    found = BruteForce(made, target).optimum(target)
    assert found is not None
    return found


def test_replicas_share_requests_by_their_speed() -> None:
    made = problem(device("a", [1.0, 1.0]), device("b", [2.0, 2.0]))
    assert best(made, Target.THROUGHPUT).value == pytest.approx(1 / 2 + 1 / 4)


def test_each_device_gets_the_segments_that_it_is_good_at() -> None:
    made = problem(device("a", [1.0, 3.0]), device("b", [3.0, 1.0]))
    assert best(made, Target.THROUGHPUT).value == pytest.approx(1.0)
    assert best(made, Target.LATENCY).value == pytest.approx(2.0)


def test_a_transfer_of_three_chunks_waits_for_the_slowest_step() -> None:
    made = problem(device("a", [9.0]), device("b", [1.0]))
    slow = replace(made.devices[0], send_s_per_byte=2e-6)
    made = replace(
        made,
        devices=(slow, replace(made.devices[1], receive_s_per_byte=0.5e-6)),
        links=tuple(replace(link, latency_s=0.25) for link in made.links),
        input_bytes=300_000,
        chunk_bytes=100_000,
    )
    there_s = 0.25 + 0.1 * (2 + 1 + 0.5) + 0.2 * 2
    assert best(made, Target.LATENCY).value == pytest.approx(there_s + 1.0 + 0.25)
    assert best(made, Target.BYTES).value == 0.0


def test_what_fits_nowhere_whole_is_divided() -> None:
    whole = problem(device("a", [1.0, 1.0], memory_bytes=1500), device("b", [5.0, 5.0]))
    assert best(whole, Target.LATENCY).value == pytest.approx(6.0)
    tight = replace(whole.devices[1], memory_bytes=1500)
    halves = replace(whole, devices=(whole.devices[0], tight))
    assert best(halves, Target.LATENCY).value == pytest.approx(6.0)
    assert best(halves, Target.MEMORY).value == 1000.0
    least = tuple(replace(d, memory_bytes=900) for d in whole.devices)
    assert BruteForce(replace(whole, devices=least), Target.LATENCY).optimum(Target.LATENCY) is None


def test_two_halves_in_memory_of_the_best_mixture_do_not_both_stay() -> None:
    unequal = problem(
        device("a", [1.0, 3.0], memory_bytes=1000), device("b", [3.0, 1.5], memory_bytes=1000)
    )
    assert best(unequal, Target.THROUGHPUT).value == pytest.approx(1 / 1.5)
    roomy = tuple(replace(d, memory_bytes=2000) for d in unequal.devices)
    # b gives a part p of the second segment to a: 1 + 3 p = 1.5 (1 - p).
    assert best(replace(unequal, devices=roomy), Target.THROUGHPUT).value == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("target", "value"),
    [(Target.ENERGY, 2 / 3 * 1 + 1 / 3 * 6), (Target.LATENCY, 2.0), (Target.MEMORY, 1000.0)],
)
def test_a_bound_on_the_throughput_needs_a_second_route(target: Target, value: float) -> None:
    made = problem(
        device("a", [1.0]), device("b", [2.0], watts=3.0), bounds=[(Target.THROUGHPUT, 1.5)]
    )
    assert best(made, target).value == pytest.approx(value)
    assert len(best(made, target).routes) == 2
    more = replace(made, bounds=(Bound(target=Target.THROUGHPUT, limit=1.6),))
    assert BruteForce(more, target).optimum(target) is None
    assert BruteForce(replace(made, most_routes=1), target).optimum(target) is None


def test_branches_run_at_once_where_that_is_quicker() -> None:
    made = problem(device("a", [1.0, 1.0, 0.5], gpu_s=[1.0, 1.25, 0.5]))
    branches = tuple(
        Branch(
            nodes=(i,),
            input_bytes=0,
            output_bytes=0,
            work=work,
            weight_bytes=1000,
            working_bytes=0,
        )
        for i, work in enumerate([(1.0, 0.0), (0.0, 1.0)])
    )
    fork = Fork(segments=SegmentRange(start=0, stop=2), branches=branches)
    made = replace(made, summary=replace(made.summary, forks=(fork,)))
    found = best(made, Target.LATENCY)
    assert found.value == pytest.approx(1.0 + 0.5)
    assert isinstance(found.routes[0].steps[0], PlacedFork)
    assert best(replace(made, with_branches=False), Target.LATENCY).value == pytest.approx(2.5)


def check(found: Optimum | None, other: Optimum | None) -> None:
    assert (found is None) == (other is None)
    if found is not None and other is not None:
        assert found.value == pytest.approx(other.value, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(made=small_problems())
def test_what_brute_force_finds_is_a_plan_with_that_metric(made: Problem) -> None:
    for target, found in optima(made)[0].items():
        if found is not None:
            assert faults(made, target, found.routes) == []
            value = price(made, found.routes).value(target)
            assert value == pytest.approx(found.value, rel=1e-9, abs=0.0)


@pytest.mark.parametrize("seed", range(5))
def test_both_find_the_same_single_routes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        made = replace(small_problem(rng, PLAIN), most_routes=1)
        for target in Target:
            check(best_route(made, target), BruteForce(made, target).optimum(target))


@pytest.mark.parametrize("seed", [0, 1, *marked_long([2, 3, 4])])
def test_both_find_the_same_mixtures(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        made = small_problem(rng, PLAIN)
        kept = tuple(b for b in made.bounds if b.target is Target.MEMORY)
        made = replace(made, most_routes=None, bounds=kept)
        best_rate = BruteForce(made, Target.THROUGHPUT).optimum(Target.THROUGHPUT)
        check(most_throughput(made), best_rate)
        if best_rate is None or best_rate.value == float("inf"):
            continue
        rate = 0.8 * best_rate.value
        bounded = replace(made, bounds=(*kept, Bound(target=Target.THROUGHPUT, limit=rate)))
        for target in (Target.ENERGY, Target.BYTES):
            expected = BruteForce(bounded, target).optimum(target)
            check(least_mean(bounded, target, rate), expected)


def test_middle_problems_are_solved_exactly() -> None:
    rng = random.Random(3)
    for _ in range(3):
        made = middle_problem(rng)
        mixture, single = most_throughput(made), best_route(made, Target.LATENCY)
        assert mixture is not None
        assert single is not None
        assert faults(made, Target.THROUGHPUT, mixture.routes) == []
        assert faults(made, Target.LATENCY, single.routes) == []
        assert mixture.value >= price(made, single.routes).throughput_per_s * (1 - 1e-9)


@pytest.mark.many
def test_middle_problems_with_tight_memory_are_solved_exactly() -> None:
    rng = random.Random(5)
    solved = 0
    for _ in range(8):
        made = middle_problem(rng, is_tight=True)
        mixture = most_throughput(made)
        if mixture is not None:
            assert faults(made, Target.THROUGHPUT, mixture.routes) == []
            solved += 1
    assert solved > 2
