from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.devices import Layout
from edge_agent.distributions import Distribution, Infeasible
from edge_agent.planning import planner
from edge_agent.planning.amounts import (
    Aim,
    Bottleneck,
    Caps,
    aim_row,
    aimed,
    as_weights,
    column_count,
    demanded,
    demanded_by,
    limits,
    memory_columns,
)
from edge_agent.planning.duals import Effort, priced_bound, priced_columns
from edge_agent.planning.labels import best_route
from edge_agent.planning.neighbourhoods import Neighbours
from edge_agent.planning.stays import stay_paths, stays
from edge_agent.planning.tables import Floats, Tables, tabulate
from edge_agent.plans import Target
from edge_agent.problems import Link, Problem
from tests.planning.made_models import accelerator, configuration, times
from tests.planning.made_routes import (
    Pieces,
    Priced,
    device,
    every_route,
    made_summary,
    priced,
    problems,
)
from tests.planning.oracle.milp import best_route as exact_route
from tests.planning.oracle.problems_made import crowded_problem

INF = float("inf")


def amounts_of(tables: Tables, route: Priced) -> Floats:
    """The row of amounts, by the formulas of `planning.metrics`."""
    return np.array(
        [
            route.seconds,
            route.joules,
            route.size_bytes,
            *(route.loads.get(name, 0.0) for name in tables.resources),
            *(route.memory.get(name, 0.0) for name in tables.pools),
        ]
    )


def caps_of(tables: Tables, row: Floats) -> Caps:
    split = 3 + len(tables.resources)
    return Caps(
        seconds=float(row[0]),
        joules=float(row[1]),
        size_bytes=float(row[2]),
        loads=row[3:split],
        memory=row[split:],
    )


def tabulated(problem: Problem, target: Target = Target.LATENCY) -> Tables:
    tables = tabulate(problem, target)
    assert tables is not None
    return tables


@st.composite
def aims(draw: st.DrawFn, tables: Tables) -> Aim:
    kind = draw(st.sampled_from(["loads", "memory", "sum", "sum", "sum"]))
    if kind != "sum":
        return Bottleneck(kind)
    row = np.zeros((1, column_count(tables)))
    column = draw(st.sampled_from([0, 1, 2, None]))
    if column is not None:
        row[0, column] = 1.0
    else:
        scale = np.where(np.arange(row.shape[1]) < memory_columns(tables)[0], 1.0, 1e-3)
        for k in range(row.shape[1]):
            row[0, k] = draw(st.integers(0, 3)) * scale[k]
    return as_weights(tables, row)


@settings(max_examples=15, deadline=None)
@given(problem=problems(most_routes=300))
def test_the_demands_of_every_route_are_those_of_the_metrics(problem: Problem) -> None:
    tables = tabulated(problem)
    for route in every_route(tables):
        np.testing.assert_allclose(
            demanded(tables, route.pieces), amounts_of(tables, route), rtol=1e-9, atol=1e-12
        )


@settings(max_examples=15, deadline=None)
@given(problem=problems(most_routes=300), data=st.data())
def test_routes_together_demand_what_each_demands(problem: Problem, data: st.DataObject) -> None:
    tables = tabulated(problem)
    routes = [route.pieces for route in every_route(tables)]
    if not routes:
        return
    some = data.draw(st.lists(st.sampled_from(routes), min_size=1, max_size=6))
    together = demanded_by(tables, some)
    for row, pieces in zip(together, some, strict=True):
        np.testing.assert_allclose(row, demanded(tables, pieces), rtol=1e-12)


def check_against_every_route(problem: Problem, data: st.DataObject) -> None:
    """Draw an aim, caps and an effort, and compare with the best of all routes."""
    tables = tabulated(problem)
    aim = data.draw(aims(tables))
    rows = [amounts_of(tables, route) for route in every_route(tables)]
    most = np.max([*rows, np.ones(column_count(tables))], axis=0)
    row = np.full(len(most), INF)
    for k in data.draw(st.frozensets(st.integers(0, len(row) - 1), max_size=5)):
        # Off every amount that a route may have, so that rounding decides nothing.
        row[k] = round(most[k] * data.draw(st.integers(0, 20)) / 20.0) + 0.123
    if data.draw(st.booleans()):
        row[memory_columns(tables)] = tables.budgets
    best = min((aimed(tables, aim, r) for r in rows if (r <= row).all()), default=INF)
    effort = data.draw(st.sampled_from([1e7, 1e7, 1e7, 0.0, 1e3, 5e3]))
    found = best_route(tables, aim, caps_of(tables, row), effort=effort)
    tolerance = 1e-8 * best if best < INF else 0.0
    assert found.bound <= best + tolerance
    if effort == 1e7:
        assert found.is_exact
        assert found.value == pytest.approx(best, rel=1e-8)
    if found.pieces is None:
        assert found.value == INF
        return
    assert found.value >= best - tolerance
    route = priced(tables, found.pieces)
    assert route is not None
    amounts = amounts_of(tables, route)
    assert (amounts <= row * (1 + 1e-9)).all()
    assert aimed(tables, aim, amounts) == pytest.approx(found.value, rel=1e-8)


@settings(max_examples=25, deadline=None)
@given(problem=problems(most_routes=100), data=st.data())
def test_the_route_is_the_best_of_all_that_keep_the_caps(
    problem: Problem, data: st.DataObject
) -> None:
    check_against_every_route(problem, data)


@pytest.mark.many
@settings(max_examples=1000, deadline=None)
@given(problem=problems(most_routes=1000), data=st.data())
def test_the_route_is_the_best_in_many_more_problems(problem: Problem, data: st.DataObject) -> None:
    check_against_every_route(problem, data)


def row_of(tables: Tables, route: Pieces) -> Floats:
    found = priced(tables, route)
    assert found is not None
    return amounts_of(tables, found)


def crowded(segments: int, devices: int) -> Tables:
    """Devices of different speed and price, none of which holds more than half of the model."""
    size = 1000
    order = [(7 * i + 3) % 11 for i in range(segments)]
    summary = made_summary(
        tuple(size * (1 + o) for o in order),
        tuple(size * (1 + o % 4) for o in order),
        tuple(100 * (1 + o % 5) for o in order[1:]),
    )
    total = sum(s.weight_bytes for s in summary.segments)
    choices = (configuration(Layout.NCHW, 1), configuration(Layout.NHWC, 1), accelerator())
    found = [
        device(
            f"d{k}",
            tuple(
                times(
                    which,
                    [(1 + (o * (c + 2)) % 7) * (1 + k % 3) * 1e-3 for o in order],
                    overhead_s=1e-3,
                    border_s_per_byte=1e-7,
                )
                for c, which in enumerate(choices)
            ),
            memory_bytes=int(total * (0.4 + 0.05 * (k % 3))),
        )
        for k in range(devices)
    ]
    links = tuple(
        Link(source=a.id, target=b.id, latency_s=1e-3, goodput_bytes_per_s=1e6, medium="air")
        for a in found
        for b in found
        if a != b
    )
    return tabulated(
        Problem(
            summary=summary, devices=tuple(found), owner=found[0].id, links=links, input_bytes=100
        )
    )


def fastest(tables: Tables) -> Aim:
    row = np.zeros((1, column_count(tables)))
    row[0, 0] = 1.0
    return as_weights(tables, row)


def budgeted(tables: Tables) -> Caps:
    row = np.full(column_count(tables), INF)
    row[memory_columns(tables)] = tables.budgets
    return caps_of(tables, row)


def test_a_model_that_fits_nowhere_is_divided_within_the_budgets() -> None:
    tables = crowded(20, 4)
    found = best_route(tables, fastest(tables), budgeted(tables), effort=1e6)
    assert found.pieces is not None
    assert (row_of(tables, found.pieces)[memory_columns(tables)] <= tables.budgets).all()
    assert found.bound <= found.value <= found.bound * 1.02


def test_equal_questions_have_equal_answers() -> None:
    tables = crowded(12, 3)
    once, again = (
        best_route(tables, fastest(tables), budgeted(tables), effort=1e5) for _ in range(2)
    )
    assert (once.pieces, once.value, once.bound, once.spent) == (
        again.pieces,
        again.value,
        again.bound,
        again.spent,
    )


def test_what_is_known_already_is_not_looked_for() -> None:
    tables = crowded(12, 3)
    best = best_route(tables, fastest(tables), budgeted(tables), effort=1e6)
    assert best.is_exact
    known = best_route(
        tables, fastest(tables), budgeted(tables), effort=1e6, known=best.value * 0.9
    )
    assert best.value * 0.9 * (1 - 1e-9) <= known.bound <= best.value
    assert known.spent < best.spent


def test_a_long_model_is_searched_at_a_few_boundaries() -> None:
    tables = crowded(120, 3)
    found = best_route(tables, fastest(tables), budgeted(tables), effort=5e5)
    assert found.pieces is not None
    assert (row_of(tables, found.pieces)[memory_columns(tables)] <= tables.budgets).all()
    assert found.bound <= found.value <= found.bound * 1.05


@settings(max_examples=15, deadline=None)
@given(problem=problems(most_routes=200), data=st.data())
def test_no_route_within_the_caps_is_below_the_bound_of_stays(
    problem: Problem, data: st.DataObject
) -> None:
    tables = tabulated(problem)
    rows = [amounts_of(tables, route) for route in every_route(tables)]
    most = np.max([*rows, np.ones(column_count(tables))], axis=0)
    limit = np.full(len(most), INF)
    memory = memory_columns(tables)
    limit[memory] = np.ceil(most[memory] * data.draw(st.integers(1, 9)) / 10.0)
    if data.draw(st.booleans()):
        limit[3 : memory[0]] = most[3 : memory[0]] * data.draw(st.integers(1, 9)) / 10.0
    known = stays(tables, limit)
    if known is None:
        return
    weights = np.zeros((2, len(most)))
    weights[:, 0] = 1.0
    weights[1, memory] = 1e-9
    paths = stay_paths(known, weights)
    within = [row for row in rows if (row <= limit).all()]
    for b, route in enumerate(paths.routes()):
        least = min((float(weights[b] @ row) for row in within), default=INF)
        assert paths.totals[b] <= least * (1.0 + 1e-9)
        if route:
            assert paths.totals[b] <= weights[b] @ demanded(tables, route) * (1.0 + 1e-9)


def test_a_stay_never_holds_more_than_its_memory() -> None:
    tables = crowded(20, 4)
    limit = limits(tables, budgeted(tables))
    priced = priced_columns(
        aim_row(tables, fastest(tables)),
        np.zeros(0, np.int64),
        memory_columns(tables),
        limit,
    )
    bounds = [
        priced_bound(tables, priced, Effort(most=1e7), rounds=0, within=within).bound
        for within in (None, stays(tables, limit))
    ]
    # Without prices, the fastest route is on one device alone; no device holds the model.
    exact = best_route(tables, fastest(tables), budgeted(tables), effort=1e7)
    assert exact.is_exact
    assert bounds[0] < bounds[1] <= exact.value


def whole_on(tables: Tables, device: int) -> Pieces:
    return ((0, int(np.flatnonzero(tables.device_of == device)[0])),)


def test_a_route_that_is_too_large_is_repaired_and_bettered() -> None:
    tables = crowded(20, 4)
    limit = limits(tables, budgeted(tables))
    near = Neighbours(
        tables=tables,
        aim=fastest(tables),
        limit=limit,
        prices={int(k): 0.0 for k in memory_columns(tables)},
        effort=Effort(most=2e6),
    )
    assert not (demanded(tables, whole_on(tables, 0)) <= limit).all()
    repaired = near.repaired(whole_on(tables, 0), 3e5)
    before = demanded(tables, repaired)
    assert (before <= limit).all()
    bettered = near.improved(repaired, 2e5, 0.0)
    after = demanded(tables, bettered)
    assert (after <= limit).all()
    best = best_route(tables, fastest(tables), budgeted(tables), effort=5e5)
    assert best.value <= after[0] * (1 + 1e-9)
    assert after[0] <= min(before[0], best.value * 1.1)


@pytest.mark.long
@pytest.mark.parametrize("target", [Target.LATENCY, Target.ENERGY, Target.BYTES, Target.MEMORY])
def test_tight_middle_problems_are_solved_nearly_as_by_an_exact_solver(target: Target) -> None:
    gaps = []
    for number in range(6):
        segments = 12 if target is Target.MEMORY else 14 + number
        room = (1.3, 1.6, 2.2)[number % 3]
        rng = random.Random(number)
        made = crowded_problem(rng, segments=segments, devices=4, room=room)
        found, want = planner.plan(made, target), exact_route(made, target)
        if want is None:
            assert isinstance(found, Infeasible)
            continue
        assert isinstance(found, Distribution), f"problem {number}: {found}"
        assert found.bound <= want.value * (1 + 1e-6)
        value = found.metrics.value(target)
        gaps.append(value / want.value - 1.0 if want.value else value)
    assert len(gaps) >= 4
    assert max(gaps) <= 0.05
    assert sum(gaps) / len(gaps) <= 0.02
