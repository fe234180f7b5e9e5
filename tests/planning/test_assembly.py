"""Mixtures of more routes than can be looked at, whose weights must fit into the memories."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.distributions import Distribution
from edge_agent.planning.amounts import CLOSE, Caps
from edge_agent.planning.assembly import Assembly
from edge_agent.planning.caps import memory_together
from edge_agent.planning.iterated import search
from edge_agent.planning.known import Known
from edge_agent.planning.mixing import every_column, relaxed
from edge_agent.planning.mixture import Wish
from edge_agent.planning.planner import plan
from edge_agent.planning.tables import Tables
from edge_agent.planning.together import together
from edge_agent.plans import Bound, Target
from edge_agent.problems import Problem
from tests.marks import marked_long
from tests.planning.made_mixtures import forkless, pair, residency, tabled
from tests.planning.oracle.legality import faults
from tests.planning.oracle.milp import most_throughput
from tests.planning.oracle.mixtures import least_busy
from tests.planning.oracle.problems_made import middle_problem, plain_problem

RATE = Wish(target=Target.THROUGHPUT)


def blank(
    tables: Tables, caps: Caps, effort: float, most_routes: int | None = None, bound: float = 0.0
) -> Assembly:
    """One that knows no route."""
    return Assembly(
        tables=tables,
        known=Known(tables=tables),
        wish=RATE,
        caps=caps,
        most_routes=most_routes,
        effort=effort,
        bound=bound,
    )


def listed(problems: Iterable[Problem]) -> Iterator[tuple[Problem, Tables, Caps, float]]:
    """Those with budgets of which all routes can be listed, with the value of the best mixture."""
    for problem in problems:
        tables, caps = tabled(replace(problem, most_routes=None))
        columns = every_column(tables, caps)
        if not columns or not np.isfinite(caps.memory).any() or len(columns) > 100:
            continue
        known = Known(tables=tables)
        known.meet(columns)
        things = residency(known.things.uses, known.things.bytes, caps.memory)
        yield problem, tables, caps, least_busy(known.loads, things).value


def assembled(problem: Problem, effort: float, most_routes: int | None = None) -> Assembly:
    tables, caps = tabled(problem)
    relaxation = relaxed(tables, RATE, caps, effort)
    found = blank(tables, caps, effort, most_routes, relaxation.bound)
    found.build(relaxation.columns)
    search(found)
    return found


@pytest.mark.parametrize("seed", [0, 1, *marked_long(range(2, 6))])
def test_small_problems_are_as_good_as_when_all_routes_are_looked_at(seed: int) -> None:
    for problem, tables, caps, want in listed(forkless(seed + 60, 6)):
        found = assembled(problem, 1e5)
        assert found.bound <= want * (1 + 1e-6)
        assert want * (1 - 1e-6) <= found.value <= want * 1.05
        memory = memory_together(tables, (column.pieces for column, _ in found.shares))
        assert (memory <= caps.memory).all()


@pytest.mark.parametrize("effort", [1e3, 3e4])
def test_bounds_hold_whatever_routes_are_known_and_whatever_the_effort(effort: float) -> None:
    compared = 0
    problems = (p for seed in range(110, 120) for p in forkless(seed, 6))
    for _, tables, caps, want in listed(problems):
        started = blank(tables, caps, effort)
        nothing = np.zeros_like(started.sizes, dtype=bool)
        assert started.decide(nothing, nothing, effort) <= want * (1 + 1e-6)
        # Where memory and latency are short at once, no route may be found; that is no proof.
        relaxation = relaxed(tables, RATE, caps, effort)
        assert relaxation.bound <= want * (1 + 1e-6)
        compared += 1
    assert compared >= 10


def test_routes_are_found_where_none_that_is_known_is_able() -> None:
    # Each device is quick at one half, and holds one half.
    tables, caps = tabled(pair((1.0, 4.0), (4.0, 1.0), memory_bytes=100))
    started = blank(tables, caps, 1e5)
    there = np.zeros_like(started.sizes, dtype=bool)
    there[0, 0] = there[1, 1] = True
    assert started.decide(there, ~there, 1e5) == pytest.approx(1.0)
    assert started.value == pytest.approx(1.0)
    # Where nothing may be anywhere, no mixture is left.
    nothing = np.zeros_like(there)
    assert blank(tables, caps, 1e5).decide(nothing, ~nothing, 1e5) == np.inf


def test_weights_that_are_there_need_no_room_for_a_second_route() -> None:
    # Each device holds two of the three segments; the middle one may be on both.
    problem = pair((1.0, 1.0, 9.0), (9.0, 1.0, 1.0), memory_bytes=200)
    found = assembled(problem, 1e5)
    assert found.value == pytest.approx(1.5)
    assert found.bound == pytest.approx(1.5, rel=1e-6)
    assert sorted(share for _, share in found.shares) == pytest.approx([0.5, 0.5])


@pytest.mark.many
def test_middle_problems_that_mislead_a_search_are_near_the_exact_solution() -> None:
    gaps = []
    for number in (5, 7, 13, 15, 16, 18):
        rng = random.Random(f"0 {number}")
        middle_problem(rng)
        plain_problem(rng, segments=rng.randint(8, 14), devices=3, forks=2)
        problem = middle_problem(rng, is_tight=True)
        want = most_throughput(problem)
        found = plan(problem, Target.THROUGHPUT)
        assert want is not None
        assert isinstance(found, Distribution)
        assert found.bound >= want.value * (1 - 1e-6)
        gaps.append(want.value / found.metrics.throughput_per_s - 1.0)
    assert max(gaps) <= 0.05
    assert sum(gaps) / len(gaps) <= 0.02


def test_middle_problems_are_near_the_exact_solution_and_bounded() -> None:
    problem = middle_problem(random.Random(19), is_tight=True)
    want = most_throughput(problem)
    answer = plan(problem, Target.THROUGHPUT, 1e6)
    assert want is not None
    assert isinstance(answer, Distribution)
    assert faults(problem, Target.THROUGHPUT, answer.routes) == []
    assert want.value * 0.95 <= answer.metrics.throughput_per_s <= want.value * (1 + 1e-6)
    assert answer.bound >= want.value * (1 - 1e-6)


def test_of_two_searches_the_better_mixture_is_kept_and_their_routes_are_mixed() -> None:
    # Each device is quick at one half, and holds one half.
    problem = pair((1.0, 4.0), (4.0, 1.0), memory_bytes=100)
    found = assembled(problem, 1e5)
    best = found.value, found.best
    assert found.value == pytest.approx(1.0)
    with found.aside():
        assert found.best == ()
        assert found.value == np.inf
        assert not found.content.any()
        found.all_together()
        assert found.best == ()
    assert (found.value, found.best) == best
    with found.aside(0.5, best[1]):
        assert found.content.sum() == 2
    assert found.value == 0.5
    found.value, found.best = np.inf, ()
    found.all_together()
    assert (found.value, found.best) == best


def test_a_long_model_is_served_within_budgets_and_a_bound_by_few_routes() -> None:
    problem = plain_problem(random.Random(2), segments=60, devices=4)
    total = sum(segment.weight_bytes for segment in problem.summary.segments)
    tight = tuple(replace(device, memory_bytes=total // 2) for device in problem.devices)
    problem = replace(problem, devices=tight)
    quick = plan(problem, Target.LATENCY, 1e5)
    assert isinstance(quick, Distribution)
    bounds = (Bound(target=Target.LATENCY, limit=quick.metrics.latency_s * 1.5),)
    problem = replace(problem, bounds=bounds, most_routes=3)
    answer = plan(problem, Target.THROUGHPUT, 2e5)
    assert isinstance(answer, Distribution)
    assert faults(problem, Target.THROUGHPUT, answer.routes) == []
    assert answer.metrics.throughput_per_s <= answer.bound
    assert plan(problem, Target.THROUGHPUT, 2e5) == answer


def test_nothing_better_than_what_is_known_is_looked_for() -> None:
    tables, caps = tabled(pair((1.0, 1.0), (1.0, 1.0), memory_bytes=100))
    columns = every_column(tables, caps)
    assert columns is not None
    known = Known(tables=tables)
    known.meet(columns)
    which = np.ones(len(columns), bool)
    free = together(known, which, RATE, caps.memory, effort=1e5)
    assert free.value == free.bound == pytest.approx(1.0)
    worse = together(known, which, RATE, caps.memory, effort=1e5, worst=1.0)
    assert worse.value == np.inf
    assert not worse.shares.any()
    assert worse.bound >= 1.0 - CLOSE
