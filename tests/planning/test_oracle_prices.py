"""The second arithmetic of the oracles against the formulas that plans are predicted with."""

from __future__ import annotations

import random
from dataclasses import astuple, replace

import pytest

from edge_agent.distributions import Route
from edge_agent.planning.metrics import evaluate
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.marks import marked_long
from tests.planning.oracle.legality import faults
from tests.planning.oracle.prices import price
from tests.planning.oracle.problems_made import small_problem
from tests.planning.oracle.routes_made import random_route


def made_routes(rng: random.Random, problem: Problem) -> list[Route]:
    """One to three legal routes with shares, not always different ones."""
    found = [r for _ in range(rng.choice((1, 1, 2, 3))) if (r := random_route(rng, problem))]
    weights = [rng.choice((1, 2, 5)) for _ in found]
    return [replace(r, share=w / sum(weights)) for r, w in zip(found, weights, strict=True)]


@pytest.mark.parametrize("seed", [0, 1, 2, *marked_long(range(3, 8))])
def test_both_price_random_routes_the_same(seed: int) -> None:
    rng = random.Random(seed)
    compared = 0
    for _ in range(80):
        problem = replace(small_problem(rng), bounds=(), most_routes=None)
        for _ in range(4):
            routes = made_routes(rng, problem)
            if not routes or faults(problem, Target.THROUGHPUT, routes):
                continue
            compared += 1
            ours, theirs = price(problem, routes), evaluate(problem, routes)
            if len(routes) > 1:
                # Of two routes that are as slow, either may say how far off that is.
                ours = replace(ours, latency_error_s=theirs.latency_error_s)
            assert astuple(ours) == pytest.approx(astuple(theirs), rel=1e-9, abs=0.0), (
                problem,
                routes,
            )
    assert compared > 120
