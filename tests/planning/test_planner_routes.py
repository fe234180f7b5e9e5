"""Several routes: never more than are asked for, and never worse than one of them alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import Layout
from edge_agent.distributions import Distribution, Infeasible
from edge_agent.planning.alternatives import alone
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.planner import plan
from edge_agent.plans import Target
from tests.planning.made_pairs import (
    HOST,
    MS,
    both_ways,
    bounded,
    one_segment,
    quick_neighbour,
    with_unit,
)
from tests.simulation.made_problems import (
    NPU,
    A,
    B,
    device,
    host,
    link,
    model,
    npu,
    placed,
    problem,
    route,
    times,
)


@pytest.mark.parametrize("target", [t for t in Target if t is not Target.THROUGHPUT])
def test_one_route_alone_must_reach_the_rate_where_one_is_asked_for(target: Target) -> None:
    # a does 33.3 per second, b 100: 101 can be had by both together only.
    made = one_segment(30 * MS, 6 * MS, most_routes=1)
    found = plan(bounded(made, Target.THROUGHPUT, 101.0), target)
    assert isinstance(found, Infeasible), found
    one = plan(bounded(made, Target.THROUGHPUT, 99.0), target)
    assert isinstance(one, Distribution)
    assert len(one.routes) == 1
    assert evaluate(made, one.routes).throughput_per_s >= 99.0


@pytest.mark.parametrize("most_routes", [1, 2, 3])
@pytest.mark.parametrize("target", list(Target))
def test_no_more_routes_are_used_than_are_asked_for(target: Target, most_routes: int) -> None:
    made = replace(quick_neighbour(), most_routes=most_routes)
    free = plan(made, Target.THROUGHPUT)
    assert isinstance(free, Distribution)
    assert len(free.routes) <= most_routes
    found = plan(bounded(made, Target.THROUGHPUT, free.metrics.throughput_per_s * 0.9), target)
    assert isinstance(found, Distribution)
    assert len(found.routes) <= most_routes


def test_two_replicas_are_the_most_where_two_routes_are_asked_for() -> None:
    # Four alike do 400 per second, two of them 200.
    names = ("a", "b", "c", "d")
    made = problem(
        model(1),
        [device(name, times(HOST, [10 * MS])) for name in names],  # type: ignore[arg-type]
        [link(s, t) for s in names for t in names if s != t],  # type: ignore[arg-type]
    )
    found = plan(replace(made, most_routes=2), Target.THROUGHPUT)
    assert isinstance(found, Distribution)
    assert len(found.routes) == 2
    assert found.metrics.throughput_per_s == pytest.approx(200.0)


def test_times_that_differ_by_thirteen_orders_have_a_throughput() -> None:
    # 1 ms each in the configuration that is quick.
    one, other = host(layout=Layout.NHWC), HOST
    made = problem(
        model(3),
        [device(A, times(one, [MS, 1e4, 2 * MS]), times(other, [1e10, MS, MS]))],
    )
    found = plan(made, Target.THROUGHPUT)
    assert isinstance(found, Distribution)
    assert found.routes == (route(placed(0, 1, A, one), placed(1, 3, A, other)),)
    assert found.metrics.throughput_per_s == pytest.approx(1000 / 3)


def test_a_mixture_under_a_budget_does_no_less_than_one_device_alone() -> None:
    # The accelerator of b holds the model in full precision, or in half, not both.
    half = replace(npu(), is_half=True)
    full = replace(npu(), layout=Layout.NHWC)
    summary = model(3, [546_000, 482_000])
    sizes = ((1_030_000, 11_000), (1_455_000, 53_000), (261_000, 650_000))
    segments = tuple(
        replace(segment, weight_bytes=weights, working_bytes=working)
        for segment, (weights, working) in zip(summary.segments, sizes, strict=True)
    )
    made = problem(
        replace(summary, segments=segments),
        [
            device(A, times(host(layout=Layout.NHWC, threads=2), [9.3 * MS, 22.5 * MS, 35.4 * MS])),
            device(
                B,
                times(half, [1.7 * MS, 4.7 * MS, 7.2 * MS], border_s_per_byte=4e-10),
                times(
                    full,
                    [1.3 * MS, 1.4 * MS, 2.3 * MS],
                    border_s_per_byte=1e-9,
                    turn_s_per_byte=1e-9,
                    overhead_s=0.27 * MS,
                ),
            ),
        ],
        both_ways(A, B, goodput_bytes_per_s=67e6),
        input_bytes=1_110_000,
    )
    made = with_unit(made, B, NPU, memory_bytes=3_800_000)
    made = replace(
        made,
        devices=(replace(made.devices[0], memory_bytes=2_850_000), made.devices[1]),
    )
    single = alone(made, Target.THROUGHPUT)
    found = plan(made, Target.THROUGHPUT)
    assert single is not None
    assert isinstance(found, Distribution)
    assert found.metrics.throughput_per_s >= single.metrics.throughput_per_s * (1 - 1e-9)
