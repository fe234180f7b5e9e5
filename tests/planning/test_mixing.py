"""Mixtures under caps, budgets and a number of routes, against HiGHS."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.distributions import Distribution, Infeasible
from edge_agent.planning.caps import memory_together
from edge_agent.planning.greatest import least_greatest
from edge_agent.planning.known import Known
from edge_agent.planning.mixing import every_column, is_allowed, mix
from edge_agent.planning.mixture import Wish
from edge_agent.planning.planner import plan
from edge_agent.plans import Bound, Target
from tests.marks import marked_long
from tests.planning.made_mixtures import forkless, loads_of, pair, residency, tabled
from tests.planning.oracle.mixtures import cheapest, least_busy
from tests.planning.oracle.problems_made import plain_problem

RATE = Wish(target=Target.THROUGHPUT)
EFFORT = 1e6


def test_replicas_that_do_not_fit_together_are_divided() -> None:
    problem = pair((1.0, 1.0), (1.0, 1.0), memory_bytes=100)
    tables, caps = tabled(problem)
    found = mix(tables, RATE, caps, EFFORT)
    assert [share for _, share in found.shares] == [1.0]
    assert found.value == found.bound == pytest.approx(1.0)
    assert len(found.shares[0][0].pieces) == 2


def test_of_many_routes_only_so_many_are_used() -> None:
    # Any share of the second segment on either device is best with both.
    problem = pair((1.0, 2.0), (9.0, 3.0))
    tables, caps = tabled(problem)
    every = mix(tables, RATE, caps, EFFORT)
    one = mix(tables, RATE, caps, EFFORT, 1)
    assert len(every.shares) == 2
    assert len(one.shares) == 1
    assert one.value == pytest.approx(3.0)
    assert every.value < one.value


def test_a_legal_route_that_keeps_nothing_busy_is_found_under_caps() -> None:
    problem = pair((0.0, 0.0), (1.0, 1.0), memory_bytes=100)
    tables, caps = tabled(problem)
    # Nothing fits on the first device alone.
    assert mix(tables, RATE, caps, EFFORT).value == pytest.approx(1.0)
    roomy = pair((0.0, 0.0), (1.0, 1.0), memory_bytes=250)
    tables, caps = tabled(roomy)
    found = mix(tables, RATE, replace(caps, seconds=5.0), EFFORT)
    assert (found.value, found.bound) == (0.0, 0.0)
    answer = plan(roomy, Target.THROUGHPUT)
    assert isinstance(answer, Distribution)
    assert answer.metrics.throughput_per_s == float("inf")
    assert answer.is_optimal


def test_an_impossible_cap_is_known_to_be_so() -> None:
    tables, caps = tabled(pair((1.0, 1.0), (1.0, 1.0)))
    found = mix(tables, RATE, replace(caps, seconds=1.0), EFFORT)
    assert (found.shares, found.value, found.bound) == ((), np.inf, np.inf)


@pytest.mark.parametrize("most_routes", [None, 1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1, *marked_long([2, 3])])
def test_the_throughput_is_the_best_of_all_mixtures_that_fit(
    seed: int, most_routes: int | None
) -> None:
    compared = 0
    for problem in forkless(seed + 20, 8):
        tables, caps = tabled(problem)
        columns = every_column(tables, caps)
        if not columns or len(columns) > (40 if most_routes else 120):
            continue
        known = Known(tables=tables)
        known.meet(columns)
        things = residency(known.things.uses, known.things.bytes, caps.memory)
        want = least_busy(loads_of(columns), things, most_routes).value
        found = mix(tables, RATE, caps, EFFORT, most_routes)
        assert found.bound <= want * (1 + 1e-6)
        assert found.value == pytest.approx(want, rel=1e-6)
        assert sum(share for _, share in found.shares) == pytest.approx(1.0)
        assert most_routes is None or len(found.shares) <= most_routes
        assert is_allowed(tables, caps, found.shares)
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("seed", range(4))
def test_the_energy_at_a_rate_is_the_least_of_all_mixtures_that_fit(seed: int) -> None:
    for problem in forkless(seed + 30, 8):
        tables, caps = tabled(problem)
        columns = every_column(tables, caps)
        if not columns or len(columns) > 100:
            continue
        known = Known(tables=tables)
        known.meet(columns)
        things = residency(known.things.uses, known.things.bytes, caps.memory)
        quickest = least_busy(loads_of(columns), things).value
        if quickest == 0.0:
            continue
        wish = Wish(target=Target.ENERGY, least_per_s=0.8 / quickest)
        want = cheapest(known.costs(wish), known.loads, wish.least_per_s, things)
        assert want is not None
        found = mix(tables, wish, caps, EFFORT)
        assert found.bound <= want.value * (1 + 1e-6) + 1e-12
        assert found.value == pytest.approx(want.value, rel=1e-5, abs=1e-12)


def test_the_slowest_route_is_as_quick_as_the_rate_allows() -> None:
    # Alone, the first device is quick and serves one request in two seconds.
    tables, caps = tabled(pair((1.0, 1.0), (2.0, 2.0)), Target.LATENCY)
    slow = least_greatest(tables, Wish(target=Target.LATENCY, least_per_s=0.5), caps, EFFORT, None)
    assert (slow.value, slow.bound) == pytest.approx((2.0, 2.0))
    fast = least_greatest(tables, Wish(target=Target.LATENCY, least_per_s=0.7), caps, EFFORT, None)
    assert (fast.value, fast.bound) == pytest.approx((3.0, 3.0))
    never = least_greatest(tables, Wish(target=Target.LATENCY, least_per_s=0.8), caps, EFFORT, None)
    assert never.shares == ()
    assert never.bound == np.inf


def test_the_fullest_memory_holds_as_little_as_the_rate_allows() -> None:
    tables, caps = tabled(pair((1.0, 1.0), (1.0, 1.0)), Target.MEMORY)
    divided = Wish(target=Target.MEMORY, least_per_s=1.0)
    found = least_greatest(tables, divided, caps, EFFORT, None)
    assert (found.value, found.bound) == (100.0, 100.0)
    tables, caps = tabled(pair((1.0, 2.0), (1.0, 2.0)), Target.MEMORY)
    both = Wish(target=Target.MEMORY, least_per_s=0.6)
    found = least_greatest(tables, both, caps, EFFORT, None)
    assert (found.value, found.bound) == (200.0, 200.0)
    memory = memory_together(tables, (column.pieces for column, _ in found.shares))
    assert memory.max() == 200.0


def test_a_plan_for_any_target_reaches_the_rate_with_no_more_routes_than_are_allowed() -> None:
    problem = replace(
        pair((1.0, 2.0, 1.0), (2.0, 1.0, 3.0)),
        bounds=(Bound(target=Target.THROUGHPUT, limit=0.45),),
        most_routes=2,
    )
    for target in Target:
        answer = plan(problem, target)
        assert not isinstance(answer, Infeasible)
        assert answer.metrics.throughput_per_s >= 0.45 * (1 - 1e-9)
        assert len(answer.routes) <= 2


def test_a_long_model_has_a_mixture_and_a_bound_however_little_effort_there_is() -> None:
    made = plain_problem(random.Random(3), segments=400, devices=4, configurations=3)
    best = plan(made, Target.THROUGHPUT, 3e6)
    quick = plan(made, Target.THROUGHPUT, 1.0)
    assert isinstance(best, Distribution)
    assert isinstance(quick, Distribution)
    assert best.gap < 0.01
    fastest = best.metrics.throughput_per_s
    assert fastest / 3 < quick.metrics.throughput_per_s <= fastest * (1 + 1e-9)
    assert fastest * (1 - 1e-9) <= quick.bound < fastest * 3


@pytest.mark.long
def test_a_long_model_at_a_rate_is_planned_with_little_effort() -> None:
    made = plain_problem(random.Random(3), segments=400, devices=4, configurations=3)
    fastest = plan(made, Target.THROUGHPUT, 3e5)
    assert isinstance(fastest, Distribution)
    rate = Bound(target=Target.THROUGHPUT, limit=fastest.metrics.throughput_per_s / 2)
    for target in (Target.LATENCY, Target.ENERGY):
        found = plan(replace(made, bounds=(rate,)), target, 1e5)
        assert isinstance(found, Distribution)
        assert found.metrics.throughput_per_s >= rate.limit * (1 - 1e-9)
