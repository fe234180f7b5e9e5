"""The planner against brute force, on random problems that can be enumerated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from edge_agent.problems import Problem
from tests.marks import marked_long
from tests.planning.oracle.planner_agreement import compare, small_problems_from
from tests.planning.oracle.problems_made import small_problems

SEEDS = [1, 2, *marked_long([0, 3, 4])]
LONG_SEEDS = range(1000, 1004)
MANY_SEEDS = range(1004, 1204)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_planner_agrees_with_brute_force(seed: int) -> None:
    tally = compare(small_problems_from(seed, 10), twice=seed == 0)
    assert list(tally.problems()) == []
    assert tally.compared >= 30


@settings(max_examples=8, deadline=None)
@given(made=small_problems())
def test_the_planner_agrees_with_brute_force_on_whatever_is_drawn(made: Problem) -> None:
    assert compare([made]).disagreements == []


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_the_planner_agrees_with_brute_force_on_many_problems(seed: int) -> None:
    agrees_on_many(seed)


@pytest.mark.many
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_the_planner_agrees_with_brute_force_on_five_thousand_problems(seed: int) -> None:
    agrees_on_many(seed)


def agrees_on_many(seed: int) -> None:
    """Of 25 problems for five targets most have one right answer, and all of these are given."""
    tally = compare(small_problems_from(seed, 25))
    assert list(tally.problems()) == []
    assert tally.compared >= 75


def test_a_tiny_share_of_a_very_slow_route_is_known_exactly() -> None:
    tally = compare([list(small_problems_from(1164, 25))[19]])
    assert list(tally.problems()) == []
