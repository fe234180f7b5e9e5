"""Which routes requests take, and what a workload may ask."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.simulation.network import Transport
from edge_agent.simulation.results import latency_quantiles, steady_rate_per_s
from edge_agent.simulation.workloads import ClosedLoop, Lone, OpenLoop, Routing, Turns, at_rate


@given(st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=5).filter(any))
def test_routes_are_taken_in_turns_as_near_to_their_shares_as_can_be(parts: list[int]) -> None:
    shares = [part / sum(parts) for part in parts]
    turns = Turns(shares, Routing.BY_SHARE)
    taken = [turns.take() for _ in range(3 * sum(parts))]
    for route, (part, share) in enumerate(zip(parts, shares, strict=True)):
        assert taken.count(route) == 3 * part
        for so_far in range(len(taken)):
            assert abs(taken[:so_far].count(route) - share * so_far) < len(parts)


def test_the_free_route_is_the_one_with_least_under_way_for_its_share() -> None:
    turns = Turns([0.75, 0.25, 0.0], Routing.TO_THE_FREE)
    assert [turns.take() for _ in range(4)] == [0, 0, 0, 1]
    turns.end(1)
    assert turns.take() == 1


def test_a_rate_makes_even_arrivals() -> None:
    assert at_rate(4.0, 3).arrivals_s == (0.0, 0.25, 0.5)


def test_a_steady_rate_does_not_depend_on_where_bursts_are_cut() -> None:
    bursts = [round(i // 4) * 0.1 for i in range(400)]
    for cut in range(4):
        assert steady_rate_per_s(bursts[cut : 396 + cut // 2]) == pytest.approx(40.0, rel=0.001)
    assert steady_rate_per_s([1.0]) == 0.0
    assert steady_rate_per_s([1.0, 1.0]) == math.inf


def test_quantiles_are_latencies_that_were_seen() -> None:
    found = latency_quantiles([float(i) for i in range(100, 0, -1)])
    assert (found.p50_s, found.p95_s, found.p99_s, found.most_s) == (50, 95, 99, 100)
    assert math.isnan(latency_quantiles([]).p50_s)


def test_workloads_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="got in_flight 0, want at least 1"):
        ClosedLoop(in_flight=0)
    with pytest.raises(ValueError, match="got duration_s -1, want a number above 0"):
        ClosedLoop(duration_s=-1.0)
    with pytest.raises(ValueError, match="got no arrivals"):
        OpenLoop(arrivals_s=())
    with pytest.raises(ValueError, match="got an arrival that is negative or no number"):
        OpenLoop(arrivals_s=(math.nan,))
    with pytest.raises(ValueError, match="got rate_per_s 0, want a number above 0"):
        at_rate(0.0, 3)
    with pytest.raises(ValueError, match="got at_s -1, want a number of at least 0"):
        Lone(at_s=-1.0)
    with pytest.raises(ValueError, match="got threads 0, want at least 1"):
        Transport(threads=0)
