"""Bounds are kept to, each target has its own best plan, and each statistic flips a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.distributions import Distribution
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.planner import plan
from edge_agent.plans import Bound, Target
from edge_agent.problems import Problem, SegmentPin
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    best,
    both_ways,
    bounded,
    now,
    one_segment,
    quick_neighbour,
    refused,
    routes_of,
    with_unit,
)
from tests.simulation.made_problems import (
    A,
    B,
    C,
    device,
    model,
    npu,
    placed,
    problem,
    route,
    times,
)

WHOLE_ON_A = (route(placed(0, 1, A, HOST)),)
WHOLE_ON_B = (route(placed(0, 1, B, HOST)),)


# Bounds


def _frugal_neighbour() -> Problem:
    """One segment: 10 ms at 4 W on `a`; 20 ms at 1 W on `b`, 10 ms away."""
    return with_unit(one_segment(10 * MS, 20 * MS), B, idle_w=1.0, busy_w=2.0)


def test_a_bound_on_the_latency_is_kept_at_the_price_of_energy() -> None:
    made = _frugal_neighbour()
    assert routes_of(made, Target.ENERGY) == WHOLE_ON_B
    assert routes_of(bounded(made, Target.LATENCY, 30 * MS), Target.ENERGY) == WHOLE_ON_B
    assert routes_of(bounded(made, Target.LATENCY, 29 * MS), Target.ENERGY) == WHOLE_ON_A
    reason = refused(bounded(made, Target.LATENCY, 9 * MS), Target.ENERGY)
    assert "latency of at most 9 ms: the least is 10 ms" in reason


def test_a_bound_on_the_energy_is_kept_at_the_price_of_latency() -> None:
    made = _frugal_neighbour()
    assert routes_of(bounded(made, Target.ENERGY, 0.04)) == WHOLE_ON_A
    assert routes_of(bounded(made, Target.ENERGY, 0.039)) == WHOLE_ON_B
    reason = refused(bounded(made, Target.ENERGY, 0.019))
    assert "the least is 0.02 J per request (modelled)" in reason


def test_a_bound_on_the_bytes_is_kept_at_the_price_of_latency() -> None:
    made = quick_neighbour()
    assert routes_of(bounded(made, Target.BYTES, 10_000)) == ALL_ON_B
    assert routes_of(bounded(made, Target.BYTES, 9_999)) == A_THEN_B
    assert routes_of(bounded(made, Target.BYTES, 3_999)) == (
        route(placed(0, 2, A, HOST), placed(2, 3, B, HOST)),
    )
    assert routes_of(bounded(made, Target.BYTES, 999)) == ALL_ON_A
    pinned = replace(made, pins=(SegmentPin(segment=1, device=B),))
    reason = refused(bounded(pinned, Target.BYTES, 3_999))
    assert "bytes of at most 3.905 KiB: the least is 3.906 KiB" in reason


def test_a_bound_on_the_memory_is_kept_at_the_price_of_latency() -> None:
    made = quick_neighbour()
    assert routes_of(bounded(made, Target.MEMORY, 6_300)) == ALL_ON_B
    assert routes_of(bounded(made, Target.MEMORY, 6_299)) == A_THEN_B
    reason = refused(bounded(made, Target.MEMORY, 3_299))
    assert "memory of at most 3.222 KiB on the fullest device: the least is 3.223 KiB" in reason


def test_a_bound_on_the_throughput_is_kept_at_the_price_of_the_target() -> None:
    # For the least bytes a does all of it: 33.3 per second. At 100 per second two thirds go to b.
    made = one_segment(30 * MS, 6 * MS)
    assert routes_of(bounded(made, Target.THROUGHPUT, 33.0), Target.BYTES) == WHOLE_ON_A
    quick = best(bounded(made, Target.THROUGHPUT, 100.0), Target.BYTES)
    assert quick.metrics.throughput_per_s >= 100.0 * (1 - 1e-9)
    assert quick.metrics.wire_bytes == pytest.approx(10_000 * 2 / 3)
    # Nothing does more than 133.3 per second.
    reason = refused(bounded(made, Target.THROUGHPUT, 134.0), Target.BYTES)
    assert "throughput" in reason
    assert "133.3 requests per second" in reason


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("limited", list(Target))
def test_a_bound_is_kept_and_makes_nothing_better(target: Target, limited: Target) -> None:
    # The bound lies between what the plan for the target gives, and the best there is.
    made = with_unit(quick_neighbour(), B, busy_w=50.0)
    free, least = best(made, target), best(made, limited)
    had, could = (found.metrics.value(limited) for found in (free, least))
    limit = 0.5 * (had + could)
    kept = plan(bounded(made, limited, limit), target)
    assert isinstance(kept, Distribution)
    assert kept.metrics.cost(target) >= free.metrics.cost(target) * (1 - 1e-9)
    room = 1 + 1e-8
    if limited is Target.THROUGHPUT:
        assert kept.metrics.throughput_per_s * room >= limit
    else:
        for one in kept.routes:
            alone = evaluate(made, [replace(one, share=1.0)])
            assert alone.value(limited) <= limit * room


def test_bounds_that_exclude_each_other_are_said_together() -> None:
    made = replace(
        _frugal_neighbour(),
        bounds=(
            Bound(target=Target.LATENCY, limit=29 * MS),
            Bound(target=Target.ENERGY, limit=0.039),
        ),
    )
    reason = refused(made)
    assert "latency at most 29 ms, energy at most 0.039 J per request (modelled)" in reason


# Targets


def _five_ways() -> Problem:
    """Each target has another best plan.

    All on `a`: 60 ms, no bytes. All on `b`: 2 x 10 ms on its accelerator of 40 W. All on `c`: 50 ms
    at 0.5 W. Weights of 1 and 2 kB; 20 kB come in; 1 kB crosses.
    """
    return problem(
        model(2, 1000),
        [
            device(A, times(HOST, [30 * MS, 30 * MS]), host_w=(1.0, 11.0)),
            device(B, times(npu(), [10 * MS, 10 * MS]), npu_w=(1.0, 41.0)),
            device(C, times(HOST, [25 * MS, 25 * MS]), host_w=(1.0, 1.5)),
        ],
        [*both_ways(A, B), *both_ways(A, C), *both_ways(B, C)],
        input_bytes=20_000,
    )


def test_each_target_has_a_plan_of_its_own_that_is_best_for_it() -> None:
    made = _five_ways()
    found = {target: best(made, target) for target in Target}
    # 20 ms there and 20 ms on b; or 30 ms on a, 1 ms there, 10 ms on b.
    assert found[Target.LATENCY].routes == (route(placed(0, 2, B, npu())),)
    assert found[Target.LATENCY].metrics.latency_s == pytest.approx(40 * MS)
    assert found[Target.ENERGY].routes == (route(placed(0, 2, C, HOST)),)
    assert found[Target.ENERGY].metrics.energy_joules == pytest.approx(0.025)
    assert found[Target.BYTES].routes == (route(placed(0, 2, A, HOST)),)
    assert found[Target.BYTES].metrics.wire_bytes == 0.0
    # The second segment alone, 2000 and 200 bytes, wherever that is quickest.
    assert found[Target.MEMORY].routes == (route(placed(0, 1, A, HOST), placed(1, 2, B, npu())),)
    assert found[Target.MEMORY].metrics.peak_memory_bytes == 2200.0
    assert len(found[Target.THROUGHPUT].routes) > 1
    for target, own in found.items():
        for other in found.values():
            if other is not own:
                assert own.routes != other.routes
                assert own.metrics.cost(target) <= other.metrics.cost(target) * (1 + 1e-9)


# Each statistic


@pytest.mark.parametrize(
    "state",
    [
        {"load_fraction": 0.9},
        {"free_memory_bytes": 6_000},
        {"speed_fraction": 0.3},
        {"battery_fraction": 0.1},
        {"slowdowns": (("cpu", 4.0),)},
    ],
    ids=lambda state: next(iter(state)),
)
def test_each_statistic_flips_the_plan(state: dict[str, object]) -> None:
    idle = quick_neighbour()
    busy = now(idle, B, **state)
    before, after = routes_of(idle), routes_of(busy)
    assert before == ALL_ON_B
    assert after != before
    # In the present state the new one is better, or the old one must not be.
    is_slower = evaluate(busy, after).latency_s < evaluate(busy, before).latency_s
    assert is_slower or {"free_memory_bytes", "battery_fraction"} & set(state)
    # Without the statistic the old one is.
    assert evaluate(idle, before).latency_s < evaluate(idle, after).latency_s


def test_no_statistic_is_an_idle_device() -> None:
    made = quick_neighbour()
    assert plan(now(made, B), Target.LATENCY).routes == routes_of(made)  # type: ignore[union-attr]
