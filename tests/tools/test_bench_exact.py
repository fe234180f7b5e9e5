"""The benchmark that holds plans against exact solutions misses nothing that it should miss."""

from __future__ import annotations

import random
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_agent.distributions import Distribution
from edge_agent.planning.planner import plan
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.planning.oracle.brute_force import Optimum
from tests.planning.oracle.milp import best_route
from tests.planning.oracle.mixtures import Program, TooLong
from tests.planning.oracle.problems_made import crowded_problem, plain_problem

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_exact"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


@pytest.mark.parametrize(
    ("name", "gaps", "bounds_wrong", "verdict"),
    [
        ("mixtures", [0.0, 0.04], 0, "met"),
        ("mixtures", [0.0, 0.0, 0.0, 0.051], 0, "MISSED"),
        ("mixtures", [0.021], 0, "MISSED"),
        ("mixtures", [0.0], 1, "MISSED"),
        ("exact: chains", [1e-7], 0, "met"),
        ("exact: chains", [0.0, 1e-5], 0, "MISSED"),
        ("mixtures", [], 0, "nothing to compare"),
    ],
)
def test_a_kind_is_met_or_missed(
    tool: dict[str, Any], name: str, gaps: list[float], bounds_wrong: int, verdict: str
) -> None:
    row = tool["_row"](name, tool["Kind"](gaps=gaps, bounds_wrong=bounds_wrong))
    assert row["verdict"] == verdict


def solved_as(problem: Problem, factor: float) -> Optimum:
    """The best route, of which another value is told."""
    best = best_route(problem, Target.LATENCY)
    assert best is not None
    return replace(best, value=best.value * factor)


@pytest.mark.parametrize(("factor", "gap", "wrong"), [(1.0, 0.0, 0), (0.9, 1 / 9, 1)])
def test_gaps_and_wrong_bounds_are_counted(
    tool: dict[str, Any], factor: float, gap: float, wrong: int
) -> None:
    problem = plain_problem(random.Random(1), segments=6, devices=3)
    kind = tool["Kind"]()
    tool["_compare"](kind, problem, Target.LATENCY, lambda made, _: solved_as(made, factor))
    assert kind.gaps == pytest.approx([gap], abs=1e-9)
    assert kind.bounds_wrong == wrong


def test_a_bound_on_the_rate_is_wrong_below_the_best(tool: dict[str, Any]) -> None:
    found = plan(plain_problem(random.Random(1), segments=6, devices=3), Target.THROUGHPUT)
    assert isinstance(found, Distribution)
    rate = found.metrics.throughput_per_s
    assert not tool["_is_beyond"](found, rate)
    assert tool["_is_beyond"](found, rate * 1.1)


def test_what_is_not_solved_in_time_is_counted_and_not_compared(
    tool: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = crowded_problem(random.Random(1), segments=14, devices=4, room=1.3)
    monkeypatch.setattr(Program, "most_s", 1e-9)
    with pytest.raises(TooLong):
        best_route(problem, Target.LATENCY)
    kind = tool["Kind"]()
    monkeypatch.setitem(tool["_compare"].__globals__, "EFFORT", 1e4)
    tool["_compare"](kind, problem, Target.LATENCY, best_route)
    assert (kind.not_solved, kind.gaps) == (1, [])
