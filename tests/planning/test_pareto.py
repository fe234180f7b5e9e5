"""The Pareto set: the best for each target, nothing that is beaten, and all of a small front."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from edge_agent.distributions import Distribution, Infeasible
from edge_agent.planning.legality import objections
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.pareto import Front, pareto
from edge_agent.planning.planner import plan
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.marks import marked_long
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    bounded,
    one_segment,
    quick_neighbour,
    with_device,
    with_unit,
)
from tests.planning.oracle.brute_force import MEASURES, BruteForce
from tests.planning.oracle.problems_made import plain_problem
from tests.simulation.made_problems import A, B, placed, route

ADDITIVE = (Target.LATENCY, Target.ENERGY, Target.BYTES)
ROOM = 1 + 1e-9


def _costs(found: Distribution, targets: Sequence[Target]) -> tuple[float, ...]:
    return tuple(found.metrics.cost(target) for target in targets)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `one` is nowhere worse and somewhere clearly better."""
    pairs = list(zip(one, other, strict=True))
    return all(a <= b * ROOM for a, b in pairs) and any(a * (1 + 1e-6) < b for a, b in pairs)


def _check(made: Problem, front: Front) -> None:
    """What holds of every Pareto set."""
    members = [_costs(found, front.targets) for found in front.distributions]
    for one, other in combinations(members, 2):
        assert not _dominates(one, other)
        assert not _dominates(other, one)
        assert one != pytest.approx(other, rel=1e-9, abs=1e-15)
    for found in front.distributions:
        assert found.metrics == evaluate(made, found.routes)
        assert objections(made, found.routes) == ()
    assert members == sorted(members)
    _check_best(made, front)


def _check_best(made: Problem, front: Front) -> None:
    for target in front.targets:
        best = plan(made, target)
        assert isinstance(best, Distribution)
        least = min(found.metrics.cost(target) for found in front.distributions)
        assert least <= best.metrics.cost(target) * ROOM


def test_latency_is_bought_with_bytes() -> None:
    # 18 ms for 10 kB, 20 ms for 4 kB, 25 ms for 1 kB, 30 ms for nothing.
    front = pareto(quick_neighbour(), (Target.LATENCY, Target.BYTES))
    assert [found.routes for found in front.distributions] == [
        ALL_ON_B,
        A_THEN_B,
        (route(placed(0, 2, A, HOST), placed(2, 3, B, HOST)),),
        ALL_ON_A,
    ]
    assert [found.metrics.wire_bytes for found in front.distributions] == [10_000, 4000, 1000, 0]
    assert front.infeasible == ()
    _check(quick_neighbour(), front)


def test_the_first_target_gives_the_order() -> None:
    targets = (Target.LATENCY, Target.BYTES)
    there = pareto(quick_neighbour(), targets)
    back = pareto(quick_neighbour(), targets[::-1])
    assert back.targets == targets[::-1]
    assert [d.routes for d in back.distributions] == [d.routes for d in there.distributions[::-1]]


def test_where_one_is_best_for_all_it_is_alone() -> None:
    # b is quicker and draws as much; what is sent is of no interest.
    front = pareto(quick_neighbour(), (Target.LATENCY, Target.ENERGY))
    assert [found.routes for found in front.distributions] == [ALL_ON_B]


def test_one_target_has_its_best_alone() -> None:
    for target in Target:
        (found,) = pareto(quick_neighbour(), (target,)).distributions
        best = plan(quick_neighbour(), target)
        assert isinstance(best, Distribution)
        assert found.metrics.cost(target) == pytest.approx(best.metrics.cost(target))


@pytest.mark.parametrize("targets", [(), (Target.LATENCY, Target.LATENCY)])
def test_targets_are_given_once_each(targets: tuple[Target, ...]) -> None:
    with pytest.raises(ValueError, match=r"targets: got .* want each once"):
        pareto(quick_neighbour(), targets)


def test_what_is_not_feasible_has_no_front_but_a_reason() -> None:
    nothing = with_device(with_device(quick_neighbour(), A, memory_bytes=0), B, memory_bytes=0)
    front = pareto(nothing, (Target.LATENCY, Target.BYTES))
    assert front.distributions == ()
    assert [found.target for found in front.infeasible] == [Target.LATENCY, Target.BYTES]
    assert all(
        isinstance(found, Infeasible) and "fits nowhere" in found.reason
        for found in front.infeasible
    )


def test_bounds_hold_for_every_member() -> None:
    made = bounded(quick_neighbour(), Target.LATENCY, 25 * MS)
    front = pareto(made, (Target.LATENCY, Target.BYTES))
    assert [found.metrics.wire_bytes for found in front.distributions] == [10_000, 4000, 1000]
    assert max(found.metrics.latency_s for found in front.distributions) <= 25 * MS * ROOM
    _check(made, front)


def test_budgets_hold_for_every_member() -> None:
    made = with_device(quick_neighbour(), B, memory_bytes=6299)
    front = pareto(made, (Target.LATENCY, Target.BYTES))
    assert [found.metrics.wire_bytes for found in front.distributions] == [4000, 1000, 0]
    _check(made, front)


def test_memory_is_bought_with_latency() -> None:
    # 18 ms with 6300 bytes on the fullest, 20 ms with 5300, 25 ms with 3300.
    front = pareto(quick_neighbour(), (Target.LATENCY, Target.MEMORY))
    found = [(d.metrics.latency_s / MS, d.metrics.peak_memory_bytes) for d in front.distributions]
    assert found == [
        (pytest.approx(18.0), 6300),
        (pytest.approx(20.0), 5300),
        (pytest.approx(25.0), 3300),
    ]
    _check(quick_neighbour(), front)


def test_throughput_is_bought_with_latency_by_more_routes() -> None:
    # 16 ms and 100 per second on b alone; 30 ms and 133.3 per second with a.
    made = one_segment(30 * MS, 6 * MS)
    front = pareto(made, (Target.LATENCY, Target.THROUGHPUT))
    found = [(d.metrics.latency_s / MS, d.metrics.throughput_per_s) for d in front.distributions]
    assert found == [
        (pytest.approx(16.0), pytest.approx(100.0)),
        (pytest.approx(30.0), pytest.approx(1000 / 7.5)),
    ]
    _check(made, front)


def test_throughput_is_bought_with_bytes_by_shares() -> None:
    # Whatever share goes to b, no other sends as little at that rate.
    made = one_segment(30 * MS, 6 * MS)
    front = pareto(made, (Target.THROUGHPUT, Target.BYTES))
    assert front.distributions[0].metrics.throughput_per_s == pytest.approx(1000 / 7.5)
    assert front.distributions[-1].metrics.wire_bytes == 0.0
    assert len(front.distributions) >= 5
    for found in front.distributions:
        # The share x of what is sent leaves 1 - x of 30 ms to a.
        sent = found.metrics.wire_bytes / 10_000
        assert 1 / found.metrics.throughput_per_s == pytest.approx(30 * MS * (1 - sent))
    _check(made, front)


def test_equal_inputs_give_equal_fronts() -> None:
    made = with_unit(quick_neighbour(), B, busy_w=20.0)
    first, second = (pareto(made, tuple(Target), effort=30_000) for _ in range(2))
    assert first == second


def test_a_front_over_all_targets_holds_the_best_of_each() -> None:
    made = with_unit(quick_neighbour(), B, busy_w=20.0)
    front = pareto(made, tuple(Target), effort=100_000)
    assert front.targets == tuple(Target)
    _check(made, front)


def _every_route(made: Problem) -> list[tuple[float, ...]]:
    force = BruteForce(made, Target.LATENCY)
    columns = [force.costs[:, MEASURES[target]] for target in ADDITIVE]
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_better_than_a_member_of_the_front(seed: int) -> None:
    made = plain_problem(random.Random(seed), segments=3, devices=2)
    front = pareto(made, ADDITIVE, effort=200_000)
    assert 1 <= len(front.distributions) <= 40
    _check(made, front)
    every = _every_route(made)
    for found in front.distributions:
        own = _costs(found, ADDITIVE)
        assert not [other for other in every if _dominates(other, own)]
    for i in range(len(ADDITIVE)):
        least = min(costs[i] for costs in every)
        assert min(_costs(d, ADDITIVE)[i] for d in front.distributions) <= least * ROOM


@pytest.mark.parametrize("seed", [*range(4), *marked_long(range(4, 8))])
@pytest.mark.parametrize("effort", [10.0, 200_000.0])
def test_what_is_no_worse_elsewhere_is_better_by_no_more_than_the_gap(
    seed: int, effort: float
) -> None:
    # This is what the gap of a member is called: its gap to the front.
    made = plain_problem(random.Random(seed), segments=3, devices=2)
    every = _every_route(made)
    for found in pareto(made, ADDITIVE, effort=effort).distributions:
        own, at = _costs(found, ADDITIVE), ADDITIVE.index(found.target)
        for other in every:
            if all(other[i] <= own[i] * ROOM for i in range(len(ADDITIVE)) if i != at):
                assert other[at] * (1.0 + found.gap) >= own[at] / ROOM - 1e-15


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pair", list(combinations(range(3), 2)), ids=str)
def test_a_small_front_over_two_targets_is_found_whole(seed: int, pair: tuple[int, int]) -> None:
    made = plain_problem(random.Random(seed), segments=2, devices=2)
    made = replace(made, input_bytes=made.input_bytes + 1000)
    targets = tuple(ADDITIVE[i] for i in pair)
    every = [tuple(costs[i] for i in pair) for costs in _every_route(made)]
    best = [own for own in every if not any(_dominates(other, own) for other in every)]
    front = [_costs(found, targets) for found in pareto(made, targets).distributions]
    # Every member is one of the best, and of these none is far from all members.
    for own in front:
        assert any(own == pytest.approx(other, rel=1e-9, abs=1e-12) for other in best)
    spans = [max(b[i] for b in best) - min(b[i] for b in best) for i in range(2)]
    for other in best:
        near = [
            all(abs(other[i] - own[i]) <= 0.01 * spans[i] + 1e-9 * other[i] for i in range(2))
            for own in front
        ]
        assert any(near), f"{other} is missing from {front}"


@pytest.mark.long
@pytest.mark.parametrize("targets", [(Target.LATENCY,), (Target.LATENCY, Target.BYTES), ADDITIVE])
def test_what_is_done_is_told_step_by_step_and_changes_nothing(
    targets: tuple[Target, ...],
) -> None:
    made = plain_problem(random.Random(7), segments=5, devices=3)
    told: list[float] = []
    front = pareto(made, targets, report=told.append)
    assert front == pareto(made, targets)
    assert told == sorted(set(told))
    assert told[0] > 0.0
    assert told[-1] == 1.0
    # One for each target, and one at the end.
    assert len(told) >= len(targets) + 1
    if len(targets) == 1:
        assert len(told) == 2


def test_each_filled_gap_is_a_step_of_its_own() -> None:
    told: list[float] = []
    front = pareto(
        plain_problem(random.Random(7), segments=5, devices=3), ADDITIVE, report=told.append
    )
    assert len(front.distributions) > 3
    steps = [later - earlier for earlier, later in zip((0.0, *told), told, strict=False)]
    # All but the last are equal: 3 targets, at most 16 gaps, the rest.
    assert steps[:-1] == pytest.approx([1 / 20] * (len(steps) - 1))


def test_what_cannot_be_done_is_told_as_done() -> None:
    told: list[float] = []
    made = bounded(quick_neighbour(), Target.LATENCY, 1e-9)
    assert pareto(made, (Target.LATENCY, Target.BYTES), report=told.append).distributions == ()
    assert told == pytest.approx([1 / 19, 2 / 19, 1.0])
