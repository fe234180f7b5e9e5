from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.planning.amounts import (
    Aim,
    Bottleneck,
    Caps,
    aimed,
    as_weights,
    column_count,
    demanded,
    memory_columns,
)
from edge_agent.planning.labels import best_route
from edge_agent.planning.tables import Floats, Tables, tabulate
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.planning.made_routes import Priced, every_route, priced, problems

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


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_the_demands_of_every_route_are_those_of_the_metrics(problem: Problem) -> None:
    tables = tabulated(problem)
    for route in every_route(tables):
        np.testing.assert_allclose(
            demanded(tables, route.pieces), amounts_of(tables, route), rtol=1e-9, atol=1e-12
        )


@settings(max_examples=150, deadline=None)
@given(problem=problems(), data=st.data())
def test_the_route_is_the_best_of_all_that_keep_the_caps(
    problem: Problem, data: st.DataObject
) -> None:
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
