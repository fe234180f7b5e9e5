"""Answers for several targets: none is worse than another one would be in its place."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.distributions import Distribution, Infeasible, Route
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.planner import exchanged
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.planning.made_pairs import ALL_ON_A, ALL_ON_B, HOST, quick_neighbour, with_device
from tests.simulation.made_problems import A, placed, route


def _answer(made: Problem, target: Target, routes: tuple[Route, ...], bound: float) -> Distribution:
    return Distribution(target=target, routes=routes, metrics=evaluate(made, routes), bound=bound)


def test_what_was_found_for_another_target_takes_the_place_of_what_is_worse() -> None:
    made = quick_neighbour()
    slow = _answer(made, Target.LATENCY, ALL_ON_A, bound=0.001)
    quick = _answer(made, Target.ENERGY, ALL_ON_B, bound=0.0)
    latency, energy = exchanged(made, (slow, quick))
    assert isinstance(latency, Distribution)
    assert (latency.target, latency.routes, latency.bound) == (Target.LATENCY, ALL_ON_B, 0.001)
    assert energy == quick


def test_what_is_as_good_stays() -> None:
    made = quick_neighbour()
    both = (
        _answer(made, Target.LATENCY, ALL_ON_B, bound=0.0),
        _answer(made, Target.BYTES, ALL_ON_A, bound=0.0),
    )
    assert exchanged(made, both) == both


def test_what_no_search_found_may_have_been_found_for_another_target() -> None:
    made = quick_neighbour()
    found = _answer(made, Target.ENERGY, ALL_ON_B, bound=0.0)
    unsure = Infeasible(target=Target.LATENCY, reason="no time", is_certain=False)
    sure = Infeasible(target=Target.BYTES, reason="beyond reach")
    latency, bytes_, _ = exchanged(made, (unsure, sure, found))
    assert isinstance(latency, Distribution)
    assert latency.gap == float("inf")
    assert bytes_ == sure


def test_several_requests_at_once_count_only_for_a_rate() -> None:
    made = quick_neighbour()
    twice = replace(HOST, instances=2)
    (device,) = (d for d in made.devices if d.id == A)
    fast = replace(device.times[0], configuration=twice, segment_s=(1e-6,) * 3)
    made = with_device(made, A, times=(*device.times, fast), cores=2)
    many = _answer(made, Target.THROUGHPUT, (route(placed(0, 3, A, twice)),), bound=1e9)
    one = _answer(made, Target.LATENCY, ALL_ON_B, bound=0.0)
    assert many.metrics.latency_s < one.metrics.latency_s
    assert exchanged(made, (one, many)) == (one, many)
