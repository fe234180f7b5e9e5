"""Forks as choices of the tables: what they demand, where they may be, and when they are chosen."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.distributions import Distribution, Infeasible, PlacedFork
from edge_agent.planning import branches, planner
from edge_agent.planning.amounts import amounts
from edge_agent.planning.branches import with_forks, with_needed_forks
from edge_agent.planning.caps import memory_together
from edge_agent.planning.coarse import coarsen, refined
from edge_agent.planning.metrics import (
    evaluate,
    fork_legs,
    latency_s,
    legs,
    memory_bytes,
    resource_loads,
)
from edge_agent.planning.planner import caps_of, plan, tables_of
from edge_agent.planning.schedules import schedules
from edge_agent.planning.shortest import Pieces, Weights, as_route, cheapest
from edge_agent.planning.tables import Tables, tabulate
from edge_agent.plans import Bound, Target
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Branch, Fork
from tests.planning.made_models import configuration, segment, summary
from tests.planning.oracle.problems_made import small_problem

A, B = DeviceId("a"), DeviceId("b")
ONE = configuration(threads=1)


def device(name: DeviceId, *segment_s: float, memory_bytes: int = 10**9) -> PlannedDevice:
    """A device with one core and one configuration; without times, one that can run nothing."""
    times = SegmentTimes(
        configuration=ONE,
        segment_s=segment_s,
        overhead_s=0.0,
        border_s_per_byte=0.0,
        error_fraction=0.0,
    )
    return PlannedDevice(
        id=name,
        units=(PlannedUnit(id=UnitId("cpu")),),
        times=(times,) if segment_s else (),
        memory_bytes=memory_bytes,
    )


def branch(share: float, size_bytes: int = 1000) -> Branch:
    """A branch with this share of the fork's only segment."""
    return Branch(
        nodes=(),
        input_bytes=size_bytes,
        output_bytes=size_bytes,
        work=(share,),
        weight_bytes=round(1000 * share),
        working_bytes=10,
    )


def forked(*devices: PlannedDevice, latency_s: float = 1e-3) -> Problem:
    """Three segments, of which the middle one is two branches of equal work; links of 1 MB/s."""
    whole = summary([segment(i) for i in range(3)], [1000, 1000])
    middle = SegmentRange(start=1, stop=2)
    fork = Fork(segments=middle, branches=(branch(0.5), branch(0.5)))
    links = tuple(
        Link(source=s.id, target=t.id, latency_s=latency_s, goodput_bytes_per_s=1e6)
        for s in devices
        for t in devices
        if s is not t
    )
    return Problem(
        summary=replace(whole, forks=(fork,)), devices=devices, owner=devices[0].id, links=links
    )


def planned(problem: Problem, target: Target = Target.LATENCY) -> Distribution:
    """What is planned; it must be feasible."""
    found = plan(problem, target)
    assert isinstance(found, Distribution), found
    return found


def has_fork(found: Distribution) -> bool:
    """Whether branches run at once."""
    return any(isinstance(step, PlacedFork) for route in found.routes for step in route.steps)


def test_two_branches_on_two_devices_take_half_the_time_and_the_transfers() -> None:
    found = planned(forked(device(A, 0.01, 0.1, 0.01), device(B, 0.01, 0.1, 0.01)))
    assert has_fork(found)
    # There, half the work, and back: 1 ms and 1 ms of latency, 1 ms each for 1,000 bytes.
    assert found.metrics.latency_s == pytest.approx(0.01 + 0.002 + 0.05 + 0.002 + 0.01)
    assert found.is_optimal


def test_branches_stay_together_where_the_transfers_take_longer_than_they_save() -> None:
    devices = device(A, 0.01, 0.1, 0.01), device(B, 0.01, 0.1, 0.01)
    found = planned(forked(*devices, latency_s=0.03))
    assert not has_fork(found)
    assert found.metrics.latency_s == pytest.approx(0.12)


def test_branches_do_not_run_at_once_if_the_problem_says_so() -> None:
    problem = forked(device(A, 0.01, 0.1, 0.01), device(B, 0.01, 0.1, 0.01))
    found = planned(replace(problem, with_branches=False))
    assert not has_fork(found)
    assert found.metrics.latency_s == pytest.approx(0.12)


def test_a_device_that_can_run_nothing_hands_branches_to_others() -> None:
    devices = device(A), device(B, 0.1, 0.1, 0.1), device(DeviceId("c"), 0.1, 0.1, 0.1)
    problem = forked(*devices)
    fork = replace(problem.summary.forks[0], segments=SegmentRange(start=0, stop=3))
    halves = tuple(replace(b, work=(0.5, 0.5, 0.5)) for b in fork.branches)
    model = replace(problem.summary, forks=(replace(fork, branches=halves),))
    found = planned(replace(problem, summary=model, input_bytes=1000, output_bytes=1000))
    (step,) = found.routes[0].steps
    assert isinstance(step, PlacedFork)
    assert step.home == A
    assert found.metrics.latency_s == pytest.approx(0.15 + 0.004)


def test_a_device_that_must_not_be_used_hands_no_branches_to_others() -> None:
    owner, hub = device(A, 1.0, 1.0, 1.0), device(DeviceId("hub"))
    others = device(B, 0.1, 0.1, 0.1), device(DeviceId("c"), 0.1, 0.1, 0.1)
    problem = forked(owner, hub, *others)
    # Only the hub reaches the two that are quick.
    links = tuple(k for k in problem.links if hub.id in (k.source, k.target))
    fork = replace(problem.summary.forks[0], segments=SegmentRange(start=0, stop=3))
    halves = tuple(replace(b, work=(0.5, 0.5, 0.5)) for b in fork.branches)
    model = replace(problem.summary, forks=(replace(fork, branches=halves),))
    problem = replace(problem, summary=model, links=links)
    (step,) = planned(problem).routes[0].steps
    assert isinstance(step, PlacedFork)
    assert step.home == hub.id
    units = tuple(replace(unit, banned_because="it is loud") for unit in hub.units)
    banned = replace(problem, devices=(owner, replace(hub, units=units), *others))
    found = planned(banned)
    assert not has_fork(found)
    assert found.metrics.latency_s == pytest.approx(3.0)


def weighty(problem: Problem) -> Problem:
    """With weights, most of them those of the branches."""
    segments = tuple(
        replace(s, weight_bytes=w, working_bytes=10)
        for s, w in zip(problem.summary.segments, (500, 2000, 500), strict=True)
    )
    return replace(problem, summary=replace(problem.summary, segments=segments))


def test_where_no_memory_holds_a_segment_whole_its_branches_are_on_two_devices() -> None:
    devices = device(A, 0.01, 0.1, 0.01, memory_bytes=1700)
    others = device(B, 0.01, 0.1, 0.01, memory_bytes=1700)
    found = planned(weighty(forked(devices, others, latency_s=1.0)))
    assert has_fork(found)
    assert found.is_optimal


def test_where_the_quickest_route_fits_no_other_ways_to_run_forks_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = device(A, 0.01, 0.1, 0.01, memory_bytes=3500)
    made = weighty(forked(devices, device(B, 0.01, 0.1, 0.01, memory_bytes=3500)))
    tables = tables_of(made, Target.LATENCY)
    assert tables is not None
    assert caps_of(tables).is_sized
    best = planned(made)
    assert has_fork(best)
    assert best.is_optimal

    def never(*_: object, **__: object) -> Tables:
        raise AssertionError("other ways were looked at")

    monkeypatch.setattr(planner, "with_forks", never)
    assert planned(made) == best
    with pytest.raises(AssertionError, match="other ways"):
        planned(made, Target.ENERGY)


def test_where_ways_to_run_forks_are_left_out_nothing_is_called_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = weighty(forked(device(A, 0.01, 0.1, 0.01), device(B, 0.01, 0.1, 0.01)))
    best = planned(made, Target.MEMORY)
    assert best.gap == 0.0

    def tight(memory_bytes: int) -> Problem:
        devices = tuple(replace(d, memory_bytes=memory_bytes) for d in made.devices)
        return replace(made, devices=devices)

    nowhere = plan(tight(1010), Target.LATENCY)
    assert isinstance(nowhere, Infeasible)
    assert nowhere.is_certain
    assert nowhere.reason.startswith("it fits nowhere")
    bounded = replace(made, bounds=(Bound(target=Target.MEMORY, limit=10.0),))
    beyond = plan(bounded, Target.LATENCY)
    assert isinstance(beyond, Infeasible)
    assert beyond.reason.startswith("beyond reach")

    monkeypatch.setattr(branches, "_MOST_LOOKED_AT", 0)
    # All weights, 2,000 bytes, are in the two memories together.
    assert planned(made, Target.MEMORY).bound == 1000.0
    # The quickest way is all that the latency needs.
    assert planned(made).gap == 0.0
    nowhere, beyond = plan(tight(1010), Target.LATENCY), plan(bounded, Target.LATENCY)
    assert isinstance(nowhere, Infeasible)
    assert isinstance(beyond, Infeasible)
    assert not nowhere.is_certain
    assert "nothing was found that fits" in nowhere.reason
    assert "would be enough, less may be" in nowhere.reason
    # What is there at all is certain: weights of 2,000 bytes.
    without = plan(tight(990), Target.LATENCY)
    assert isinstance(without, Infeasible)
    assert without.is_certain
    assert without.reason.startswith("it fits nowhere")
    assert without.missing
    assert not any(memory.is_least for memory in without.missing)
    assert not beyond.is_certain
    assert beyond.reason.startswith("not reached: memory")


def test_ways_that_need_less_memory_stay_where_only_branches_would_fill_it() -> None:
    """Of 1,550 bytes, all weights in float32 and float16 fill 1,500; those of a branch count beside
    them, so that two routes fit together only if one runs its branch in float16."""
    native = Configuration(unit=UnitId("gpu0"), layout=Layout.NATIVE, threads=0, instances=1)

    def timed(which: Configuration, *segment_s: float) -> SegmentTimes:
        return replace(device(A, *segment_s).times[0], configuration=which, segment_s=segment_s)

    weights = (0, 1000, 0, 0)
    whole = summary(
        [replace(segment(i), weight_bytes=w, working_bytes=1) for i, w in enumerate(weights)],
        [0, 0, 0],
    )
    cuts = (whole.cuts[0], replace(whole.cuts[1], crossing_bytes=None), whole.cuts[2])
    arms = (
        replace(branch(1.0, 0), work=(1.0, 0.0), working_bytes=1),
        replace(branch(0.0, 0), work=(0.0, 1.0), working_bytes=1),
    )
    fork = Fork(segments=SegmentRange(start=1, stop=3), branches=arms)
    small = replace(
        device(A),
        units=(PlannedUnit(id=UnitId("cpu")), PlannedUnit(id=UnitId("gpu0"))),
        times=(
            timed(native, 0.0, 1.0, 10.0, 0.0),
            timed(replace(native, is_half=True), 0.0, 1.01, 1000.0, 0.0),
        ),
        memory_bytes=1550,
    )
    large = device(B, 0.0, 100.0, 2.0, 0.0)
    made = Problem(
        summary=replace(whole, cuts=cuts, forks=(fork,), weight_bytes=1000),
        devices=(small, large),
        owner=A,
        links=tuple(
            Link(source=a, target=b, latency_s=0.0, goodput_bytes_per_s=1e6)
            for a, b in ((A, B), (B, A))
        ),
    )
    found = planned(made, Target.THROUGHPUT)
    assert found.metrics.throughput_per_s == pytest.approx(0.545, rel=1e-6)
    assert {len(list(route.forks())) for route in found.routes} == {0, 1}


def _fork_tables(seed: int) -> Tables | None:
    rng = random.Random(seed)
    problem = small_problem(rng)
    if not problem.summary.forks or not problem.with_branches:
        return None
    tables = tabulate(problem, Target.THROUGHPUT)
    if tables is None:
        return None
    return with_forks(tables, Target.THROUGHPUT, is_quickest=False)


NUMBERS = range(20)


@cache
def _forked_tables() -> list[Tables]:
    """The first whose forks can run at once."""
    made = (_fork_tables(seed) for seed in range(200))
    return [tables for tables in made if tables and tables.forks.steps][: len(NUMBERS)]


def _routes(tables: Tables) -> list[Pieces]:
    """Cheapest routes under many weightings, those with forks among them."""
    rng = np.random.default_rng(0)
    count = 24
    weights = Weights(
        seconds=rng.random(count),
        joules=rng.random(count),
        size_bytes=rng.random(count) * 1e-6,
        loads=rng.random((count, len(tables.resources))),
        memory=rng.random((count, len(tables.pools))) * 1e-6,
    )
    paths = cheapest(tables, weights)
    found = [paths.pieces(b) for b in range(count) if np.isfinite(paths.totals[b])]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("number", NUMBERS)
def test_what_a_route_with_forks_demands_is_what_it_is_evaluated_to(number: int) -> None:
    tables = _forked_tables()[number]
    problem = tables.problem
    for pieces in _routes(tables):
        route = as_route(tables, pieces)
        metrics, found = evaluate(problem, [route]), amounts(tables, pieces)
        assert found.seconds == pytest.approx(metrics.latency_s)
        assert found.joules == pytest.approx(metrics.energy_joules)
        assert found.size_bytes == pytest.approx(metrics.wire_bytes)
        loads = resource_loads(problem, [(1.0, legs(problem, route))])
        assert dict(zip(tables.resources, found.loads, strict=True)) == pytest.approx(
            {name: loads.get(name, 0.0) for name in tables.resources}
        )
        memory = memory_bytes(problem, [route])
        together = memory_together(tables, [pieces])
        for used in (found.memory, together):
            assert dict(zip(tables.pools, used, strict=True)) == pytest.approx(
                {pool: memory.get(pool, 0.0) for pool in tables.pools}
            )


def test_these_routes_have_forks() -> None:
    routes = [as_route(one, pieces) for one in _forked_tables() for pieces in _routes(one)]
    assert sum(1 for route in routes if any(True for _ in route.forks())) > len(routes) // 4


@pytest.mark.parametrize("number", NUMBERS)
def test_a_coarse_route_with_forks_demands_what_the_refined_one_does(number: int) -> None:
    tables = _forked_tables()[number]
    starts = [0, *range(1, tables.places, 2)]
    coarse = coarsen(tables, starts)
    for pieces in _routes(coarse):
        fine = amounts(tables, refined(starts, pieces))
        assert amounts(coarse, pieces).seconds == pytest.approx(fine.seconds)
        assert amounts(coarse, pieces).memory == pytest.approx(fine.memory)


@cache
def _latency_tables() -> list[tuple[int, Tables]]:
    """Random problems with forks, and their seeds."""
    made = ((seed, small_problem(random.Random(seed))) for seed in range(400))
    forked = ((seed, one) for seed, one in made if one.summary.forks and one.with_branches)
    tabulated = ((seed, tabulate(one, Target.LATENCY)) for seed, one in forked)
    return [(seed, tables) for seed, tables in tabulated if tables is not None]


def _quickest_s(tables: Tables) -> float:
    none = Weights.none(tables)
    return float(cheapest(tables, replace(none, seconds=none.seconds + 1.0)).totals[0])


def test_the_forks_that_are_needed_are_as_quick_as_all() -> None:
    gains, fewer = 0, 0
    for seed, tables in _latency_tables():
        whole = with_forks(tables, Target.LATENCY, is_quickest=True)
        needed = with_needed_forks(tables)
        assert _quickest_s(needed) == pytest.approx(_quickest_s(whole), rel=1e-12), seed
        gains += _quickest_s(needed) < 0.999 * _quickest_s(tables)
        fewer += len(needed.forks.steps) < len(whole.forks.steps)
    assert gains > len(_latency_tables()) // 10
    assert fewer > len(_latency_tables()) // 4


def test_no_schedule_ends_before_its_bound() -> None:
    found = 0
    for seed, tables in _latency_tables():
        for schedule in schedules(tables):
            step = schedule.soonest().step
            if step is not None:
                found += 1
                took_s = latency_s(fork_legs(tables.problem, step, 0.0))
                assert schedule.least_s <= took_s * (1.0 + 1e-12), seed
    assert found > len(_latency_tables()) // 2
