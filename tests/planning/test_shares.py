"""The shares of the traffic at which routes that are deployed do most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.planning.metrics import evaluate
from edge_agent.planning.shares import best_shares
from edge_agent.plans import Target
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    now,
    one_segment,
    quick_neighbour,
    with_links,
)
from tests.simulation.made_problems import A, B, placed, route

ON_A, ON_B = route(placed(0, 1, A, HOST)), route(placed(0, 1, B, HOST))


def test_traffic_is_shared_by_speed() -> None:
    # 30 (1 - x) = 10 x: the link to b takes 10 ms.
    made = one_segment(30 * MS, 6 * MS)
    shared = best_shares(made, Target.THROUGHPUT, [replace(ON_A, share=0.5), ON_B])
    assert [r.steps for r in shared] == [ON_B.steps, ON_A.steps]
    assert [r.share for r in shared] == pytest.approx([0.75, 0.25])
    assert evaluate(made, shared).throughput_per_s == pytest.approx(1000 / 7.5)


def test_a_slower_device_gets_less() -> None:
    made = now(one_segment(10 * MS, 10 * MS, input_bytes=0), B, slowdowns=(("cpu", 3.0),))
    shared = best_shares(made, Target.THROUGHPUT, [ON_B, ON_A])
    assert [r.share for r in shared] == pytest.approx([0.75, 0.25])
    assert shared[0].steps == ON_A.steps


def test_a_route_that_only_gets_in_the_way_stays_deployed_without_traffic() -> None:
    # The link is the bottleneck of both, and the second route sends less.
    made = with_links(replace(quick_neighbour(), input_bytes=100_000), goodput_bytes_per_s=1e5)
    shared = best_shares(
        made, Target.THROUGHPUT, [replace(r, share=0.5) for r in (*ALL_ON_B, *A_THEN_B)]
    )
    assert [r.steps for r in shared] == [A_THEN_B[0].steps, ALL_ON_B[0].steps]
    assert [r.share for r in shared] == pytest.approx([1.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("target", [t for t in Target if t is not Target.THROUGHPUT])
def test_shares_are_left_alone_for_other_targets(target: Target) -> None:
    routes = (replace(ON_A, share=0.9), replace(ON_B, share=0.1))
    assert best_shares(one_segment(30 * MS, 6 * MS), target, routes) == routes


def test_one_route_has_all_of_the_traffic() -> None:
    assert best_shares(quick_neighbour(), Target.THROUGHPUT, ALL_ON_A) == ALL_ON_A


def test_shares_add_up() -> None:
    routes = [replace(r, share=0.0) for r in (*ALL_ON_A, *ALL_ON_B, *A_THEN_B)]
    shared = best_shares(quick_neighbour(), Target.THROUGHPUT, routes)
    assert sum(r.share for r in shared) == pytest.approx(1.0)
    assert {r.steps for r in shared} == {r.steps for r in routes}
    assert [r.share for r in shared] == sorted((r.share for r in shared), reverse=True)
