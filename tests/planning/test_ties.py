"""Of mixtures that are as fast, the one is given whose slowest route is the quickest, and of routes
that cost as little, the quickest."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.distributions import Distribution
from edge_agent.planning.mixing import mix
from edge_agent.planning.mixture import Wish
from edge_agent.planning.planner import caps_of, plan, tables_of
from edge_agent.planning.ties import quickest_as_fast
from edge_agent.plans import Bound, Target
from edge_agent.problems import PlannedDevice, Problem
from tests.marks import marked_long
from tests.planning.made_pairs import both_ways, one_segment
from tests.planning.oracle.problems_made import small_problem
from tests.simulation.made_problems import (
    A,
    B,
    C,
    device,
    host,
    model,
    placed,
    problem,
    route,
    times,
)

MS = 1e-3
HOST = host()


def _behind_a_link() -> Problem:
    """Requests are 100 a second on the link to b and c; both could do more alone."""
    made = one_segment(1000 * MS, 5 * MS, input_bytes=10_000, output_bytes=0)
    return replace(
        made,
        devices=(replace(made.devices[0], times=()), made.devices[1], device(C, times(HOST, [MS]))),
        links=tuple(
            replace(link, medium="air")
            for end in (B, C)
            for link in both_ways(A, end, latency_s=0.0)
        ),
    )


def best(problem: Problem) -> Distribution:
    found = plan(problem, Target.THROUGHPUT)
    assert isinstance(found, Distribution)
    return found


def test_what_the_bottleneck_leaves_free_is_not_used_to_be_slower() -> None:
    found = best(_behind_a_link())
    # The air takes 10 ms for each request, whoever computes it; c takes 1 ms, b 5 ms.
    assert found.metrics.throughput_per_s == pytest.approx(100.0)
    assert found.routes == (route(placed(0, 1, C, HOST)),)
    assert found.metrics.latency_s == pytest.approx(11 * MS, rel=0.2)


@pytest.mark.parametrize("seeds", [range(80), *marked_long([range(80, 250)])])
def test_a_mixture_is_as_fast_as_before_and_no_route_is_slower(seeds: range) -> None:
    quicker = fewer = 0
    for seed in seeds:
        problem = small_problem(random.Random(seed))
        tables = tables_of(problem, Target.THROUGHPUT)
        if tables is None:
            continue
        caps = caps_of(tables)
        mixed = mix(tables, Wish(target=Target.THROUGHPUT), caps, 1e5, problem.most_routes)
        if not mixed.shares:
            continue
        found = quickest_as_fast(tables, caps, mixed.shares, mixed.others)
        assert sum(share for _, share in found) == pytest.approx(1.0)
        before, after = (
            np.sum([share * column.amounts.loads for column, share in shares], axis=0).max()
            for shares in (mixed.shares, found)
        )
        assert after <= before * (1.0 + 1e-9)
        slowest_s = [
            max(column.amounts.seconds for column, _ in shares) for shares in (mixed.shares, found)
        ]
        assert slowest_s[1] <= slowest_s[0]
        assert all(caps.allows(column.amounts) for column, _ in found)
        quicker += slowest_s[1] < 0.999 * slowest_s[0]
        fewer += len(found) < len(mixed.shares)
    assert quicker
    assert fewer


@pytest.mark.parametrize("seeds", [range(50), *marked_long([range(50, 170)])])
def test_budgets_that_do_not_bind_make_nothing_slower(seeds: range) -> None:
    """Whether a budget binds is not known before: everything in every form would not fit here."""
    looked_at = slower = 0
    for seed in seeds:
        made = replace(small_problem(random.Random(seed)), bounds=(), most_routes=None)
        made = replace(made, devices=tuple(_with_memory(d, 1e15) for d in made.devices))
        free = plan(made, Target.THROUGHPUT)
        if not isinstance(free, Distribution) or len(free.routes) < 2:
            continue
        room = 1.5 * free.metrics.peak_memory_bytes
        tight = replace(made, devices=tuple(_with_memory(d, room) for d in made.devices))
        tables = tables_of(tight, Target.THROUGHPUT)
        assert tables is not None
        if not np.isfinite(caps_of(tables).memory).any():
            continue
        looked_at += 1
        found = best(tight)
        assert found.metrics.throughput_per_s == pytest.approx(free.metrics.throughput_per_s)
        slower += found.metrics.latency_s > free.metrics.latency_s * (1 + 1e-6)
    assert looked_at >= len(seeds) * 5 // 12
    # The quickest of all may need more memory than there is.
    assert slower <= looked_at // 20


def _with_memory(made: PlannedDevice, room: float) -> PlannedDevice:
    units = tuple(replace(unit, memory_bytes=None) for unit in made.units)
    return replace(made, memory_bytes=round(room), units=units)


@pytest.mark.parametrize("seeds", [range(70), *marked_long([range(70, 150)])])
def test_where_memory_is_free_no_mixture_that_is_as_fast_is_quicker(seeds: range) -> None:
    looked_at = 0
    for seed in seeds:
        problem = replace(small_problem(random.Random(seed)), bounds=())
        found = plan(problem, Target.THROUGHPUT)
        if not isinstance(found, Distribution) or len(found.routes) < 2:
            continue
        tables = tables_of(problem, Target.THROUGHPUT)
        assert tables is not None
        if np.isfinite(caps_of(tables).memory).any():
            continue
        looked_at += 1
        rate = found.metrics.throughput_per_s * (1.0 - 1e-8)
        bounded = replace(problem, bounds=(Bound(target=Target.THROUGHPUT, limit=rate),))
        least = plan(bounded, Target.LATENCY)
        assert isinstance(least, Distribution)
        assert found.metrics.latency_s <= least.metrics.latency_s * (1.0 + 1e-6), seed
    assert looked_at > 10


def test_of_configurations_that_send_as_little_the_quickest_is_used() -> None:
    # The slow one comes first.
    slow, quick = host(threads=1), host(threads=2)
    here = device(A, times(slow, [10 * MS] * 2), times(quick, [5 * MS] * 2))
    found = plan(problem(model(2, 10), [here]), Target.BYTES)
    assert isinstance(found, Distribution)
    assert found.metrics.wire_bytes == 0
    assert found.metrics.latency_s == pytest.approx(10 * MS)
    assert found.routes == (route(placed(0, 2, A, quick)),)
