"""Routes in order, against all routes enumerated and sorted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.devices import Layout
from edge_agent.planning.amounts import SECONDS, demanded, load_columns
from edge_agent.planning.ranked import first_within, ranked
from edge_agent.planning.shortest import Paths, Pieces, Weights, cheapest
from edge_agent.planning.tables import Tables, tabulate
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.planning.made_models import chain, configuration, times
from tests.planning.made_routes import device, every_route, problems


def tabulated(problem: Problem) -> Tables:
    tables = tabulate(problem, Target.LATENCY)
    assert tables is not None
    return tables


def alone(problem: Problem) -> Tables:
    """The first device without the others, its times in whole numbers, so that ties are exact."""
    one = replace(
        problem,
        devices=problem.devices[:1],
        links=(),
        statistics=(),
        pins=(),
        input_bytes=0,
        output_bytes=0,
    )
    tables = tabulated(one)
    return replace(
        tables,
        seconds=np.rint(tables.seconds),
        overhead=np.rint(tables.overhead),
        border=np.rint(tables.border),
        inner=np.rint(tables.inner),
    )


def by_seconds(tables: Tables) -> Paths:
    none = Weights.none(tables)
    return cheapest(tables, replace(none, seconds=none.seconds + 1.0))


def rank(tables: Tables, pieces: Pieces) -> tuple[float, int, tuple[int, ...], tuple[int, ...]]:
    starts, choices = zip(*pieces, strict=True)
    return float(demanded(tables, pieces)[SECONDS]), len(pieces), choices, starts


@given(problems(most_routes=300), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_over_several_devices_the_cheapest_routes_come_in_order(
    problem: Problem, count: int
) -> None:
    tables = tabulated(problem)
    found = ranked(by_seconds(tables), count)
    want = sorted(route.seconds for route in every_route(tables))[:count]
    assert [demanded(tables, pieces)[SECONDS] for pieces in found] == pytest.approx(want)
    assert len(set(found)) == len(found)


@given(problems(most_routes=300), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_equal_routes_are_ordered_by_subgraphs_then_choices_then_cuts(
    problem: Problem, count: int
) -> None:
    tables = alone(problem)
    everything = sorted(rank(tables, route.pieces) for route in every_route(tables))
    found = ranked(by_seconds(tables), count)
    assert [rank(tables, pieces) for pieces in found] == everything[:count]


@given(problems(most_routes=300), st.data())
@settings(max_examples=40, deadline=None)
def test_the_first_route_that_keeps_to_the_loads_is_found(
    problem: Problem, data: st.DataObject
) -> None:
    tables = alone(problem)
    routes = [route.pieces for route in every_route(tables)]
    if not routes:
        assert first_within(by_seconds(tables), np.zeros(len(tables.resources)), 1.0, 10) is None
        return
    columns = load_columns(tables)
    most = demanded(tables, data.draw(st.sampled_from(routes)))[columns]
    most = np.maximum(most + data.draw(st.integers(-2, 5)), 0.0)
    kept = [p for p in routes if (demanded(tables, p)[columns] <= most).all()]
    want = min((rank(tables, pieces) for pieces in kept), default=None)
    found = first_within(by_seconds(tables), most, np.inf, 100_000)
    assert (None if found is None else rank(tables, found)) == want


def test_where_everything_costs_nothing_few_routes_are_looked_at() -> None:
    """There are 12 to the power of 300 of them."""
    used = [configuration(layout, k) for layout in Layout for k in (1, 2, 3)]
    free = tuple(times(which, [0.0] * 300) for which in used)
    here = device("here", free, cores=3)
    problem = Problem(summary=chain(300), devices=(here,), owner=here.id)
    found = ranked(by_seconds(tabulated(problem)), len(used) + 1)
    assert found == [*(((0, c),) for c in range(len(used))), ((0, 0), (1, 1))]


def test_fewer_routes_than_asked_for_are_all_there_are() -> None:
    here = device("here", (times(configuration(), [1.0, 2.0]),))
    problem = Problem(summary=chain(2), devices=(here,), owner=here.id)
    assert ranked(by_seconds(tabulated(problem)), 5) == [((0, 0),)]


def test_where_nothing_runs_a_segment_there_is_no_route() -> None:
    here = device("here", (times(configuration(), [1.0, 2.0], refused=[1]),))
    problem = Problem(summary=chain(2), devices=(here,), owner=here.id)
    paths = by_seconds(tabulated(problem))
    assert ranked(paths, 5) == []
    assert first_within(paths, np.full(1, np.inf), np.inf, 10) is None
