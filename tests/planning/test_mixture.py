"""The relaxation: right values, bounds that hold, and what has no limit."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.planning.amounts import Caps, amounts
from edge_agent.planning.every import every_route
from edge_agent.planning.mixing import relaxed
from edge_agent.planning.mixture import Column, Relaxation, Wish, fair_prices
from edge_agent.planning.tables import Tables
from edge_agent.plans import Target
from tests.marks import marked_long
from tests.planning.made_mixtures import forkless, loads_of, pair, tabled
from tests.planning.oracle.mixtures import cheapest, least_busy
from tests.planning.oracle.problems_made import plain_problem

RATE = Wish(target=Target.THROUGHPUT)


def columns_of(tables: Tables) -> list[Column]:
    found = every_route(tables, 10_000)
    assert found is not None
    return [Column(pieces=p, amounts=amounts(tables, p)) for p in found]


def test_replicas_share_the_traffic_by_their_speed() -> None:
    tables, caps = tabled(pair((1.0, 1.0), (3.0, 3.0)))
    found = relaxed(tables, RATE, caps, 1e5)
    assert found.is_settled
    # Two and six seconds: 1/2 + 1/6 requests per second.
    assert found.value() == pytest.approx(1.5)
    assert found.bound == pytest.approx(1.5)


def test_a_pipeline_is_mixed_with_replicas_where_that_is_faster() -> None:
    tables, caps = tabled(pair((1.0, 4.0), (4.0, 1.0)))
    found = relaxed(tables, RATE, caps, 1e5)
    assert found.value() == pytest.approx(1.0)
    assert [share for _, share in found.shares()] == pytest.approx([1.0])


def test_a_route_that_keeps_nothing_busy_has_no_limit() -> None:
    tables, caps = tabled(pair((0.0, 0.0), (1.0, 1.0)))
    found = relaxed(tables, RATE, caps, 1e5)
    assert found.value() == 0.0
    assert found.bound == 0.0
    assert [(column.pieces, share) for column, share in found.shares()] == [(((0, 0),), 1.0)]


def test_a_rate_that_cannot_be_reached_is_known_to_be_so() -> None:
    tables, caps = tabled(pair((1.0, 1.0), (3.0, 3.0)), Target.ENERGY)
    slow = relaxed(tables, Wish(target=Target.ENERGY, least_per_s=0.6), caps, 1e5)
    assert np.isfinite(slow.value())
    fast = relaxed(tables, Wish(target=Target.ENERGY, least_per_s=0.7), caps, 1e5)
    assert fast.is_settled
    assert fast.bound == np.inf
    assert fast.value() == np.inf


def test_the_cheap_device_does_what_it_can_at_a_rate() -> None:
    problem = pair((1.0, 1.0), (1.0, 1.0))
    wasteful = replace(
        problem.devices[1], units=(replace(problem.devices[1].units[0], busy_w=22.0),)
    )
    tables, caps = tabled(replace(problem, devices=(problem.devices[0], wasteful)), Target.ENERGY)
    found = relaxed(tables, Wish(target=Target.ENERGY, least_per_s=0.8), caps, 1e5)
    # 8 W and 20 W for 2 s; the first device serves half a request per second.
    assert found.value() == pytest.approx((0.5 * 16.0 + 0.3 * 40.0) / 0.8)
    assert found.bound == pytest.approx(found.value(), rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_without_caps_it_is_the_best_of_all_mixtures(seed: int) -> None:
    for problem in forkless(seed, 6):
        tables, _ = tabled(replace(problem, bounds=()))
        columns = columns_of(tables)
        if not columns:
            continue
        found = relaxed(tables, RATE, Caps.none(tables), 1e6)
        want = least_busy(loads_of(columns)).value
        assert found.bound <= want * (1 + 1e-6)
        assert found.value() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("target", [Target.ENERGY, Target.BYTES])
@pytest.mark.parametrize("seed", [0, *marked_long([1, 2])])
def test_at_a_rate_it_is_the_cheapest_of_all_mixtures(seed: int, target: Target) -> None:
    for problem in forkless(seed, 6):
        tables, _ = tabled(replace(problem, bounds=()))
        columns = columns_of(tables)
        loads = loads_of(columns) if columns else np.zeros((0, 1))
        quickest = least_busy(loads).value if columns else 0.0
        if quickest == 0.0:
            continue
        wish = Wish(target=target, least_per_s=0.9 / quickest)
        want = cheapest(np.array([wish.cost(c.amounts) for c in columns]), loads, wish.least_per_s)
        found = relaxed(tables, wish, Caps.none(tables), 1e6)
        assert want is not None
        assert found.bound <= want.value * (1 + 1e-6)
        assert found.value() == pytest.approx(want.value, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_what_holds_for_the_mean_bounds_what_must_hold_for_each(seed: int) -> None:
    for problem in forkless(seed + 50, 6):
        tables, caps = tabled(problem)
        columns = [c for c in columns_of(tables) if caps.allows(c.amounts)]
        if not columns:
            continue
        found = relaxed(tables, RATE, caps, 1e6)
        assert found.bound <= least_busy(loads_of(columns)).value * (1 + 1e-6)


def test_a_column_is_added_once() -> None:
    tables, caps = tabled(pair((1.0,), (1.0,)))
    relaxation = Relaxation(tables=tables, wish=RATE, caps=caps, scale_s=1.0)
    columns = columns_of(tables)
    assert relaxation.add(columns) == 2
    assert relaxation.add(columns) == 0
    assert relaxation.gain(columns[0]) == 1.0
    relaxation.solve()
    assert relaxation.gain(columns[0]) == pytest.approx(0.0)


def test_fair_prices_are_what_each_does_of_a_model() -> None:
    tables, caps = tabled(pair((1.0, 1.0), (3.0, 1.0)))
    relaxation = Relaxation(tables=tables, wish=RATE, caps=caps, scale_s=1.0)
    prices = fair_prices(relaxation)
    assert prices is not None
    by_name = dict(zip(tables.resources, prices.tolist(), strict=False))
    # Two and four seconds; links run nothing.
    assert by_name["a"] == 2 * by_name["b"] == 0.5
    assert sum(prices) == 0.75
    at_rate = Wish(target=Target.ENERGY, least_per_s=1.0)
    other = Relaxation(tables=tables, wish=at_rate, caps=caps, scale_s=1.0)
    assert fair_prices(other) is None


def test_a_gap_that_is_enough_ends_the_search() -> None:
    tables, caps = tabled(plain_problem(random.Random(5), segments=30, devices=5))
    whole, rough = relaxed(tables, RATE, caps, 1e6), relaxed(tables, RATE, caps, 1.0)
    rough.improve(1e6, 0.2)
    assert whole.is_settled
    assert not rough.is_settled
    assert rough.spent < whole.spent
    assert whole.value() <= rough.value() <= 1.2 * rough.bound
    assert rough.bound <= whole.value() * (1 + 1e-9)
