"""Evened routes: never worse, and even where a few segments given away make them so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.planning.amounts import demanded, load_columns
from edge_agent.planning.shifts import evened
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Tables, tabulate
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.planning.made_models import accelerator, chain, configuration, times
from tests.planning.made_routes import device, every_route, problems

CPU, GPU = configuration(), accelerator()


def tabulated(problem: Problem) -> Tables:
    tables = tabulate(problem, Target.THROUGHPUT)
    assert tables is not None
    return tables


def cost(tables: Tables, pieces: Pieces) -> tuple[float, float]:
    loads = demanded(tables, pieces)[load_columns(tables)]
    return float(loads.max()), float(loads.sum())


@given(problems(most_routes=300), st.data())
@settings(max_examples=60, deadline=None)
def test_an_evened_route_is_a_route_and_as_good_as_any_with_one_change(
    problem: Problem, data: st.DataObject
) -> None:
    here = replace(problem, devices=problem.devices[:1], links=(), statistics=(), pins=())
    tables = tabulated(replace(here, input_bytes=0, output_bytes=0))
    routes = [route.pieces for route in every_route(tables)]
    if not routes:
        return
    first = data.draw(st.sampled_from(routes))
    found = evened(tables, first, 50)
    assert found in routes
    before, after = cost(tables, first), cost(tables, found)
    assert after[0] <= before[0] * (1 + 1e-12)
    own = spread(tables, found)
    for route in routes:
        (changed,) = np.nonzero(spread(tables, route) != own)
        is_one_run = len(changed) and changed[-1] - changed[0] + 1 == len(changed)
        if is_one_run and len(changed) <= 4 and len(set(spread(tables, route)[changed])) == 1:
            assert cost(tables, route)[0] >= after[0] * (1 - 1e-9)


def spread(tables: Tables, pieces: Pieces) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    starts, choices = zip(*pieces, strict=True)
    return np.repeat(np.array(choices), np.diff(starts, append=tables.places))


def test_segments_go_to_the_resource_that_has_less_to_do() -> None:
    used = (times(CPU, [2.0] * 9, 0.0, 1e-3), times(GPU, [1.0] * 9, 0.0, 1e-3))
    here = device("here", used)
    problem = Problem(summary=chain(9, [0] * 8), devices=(here,), owner=here.id)
    tables = tabulated(problem)
    assert cost(tables, ((0, 0),)) == (18.0, 18.0)
    found = evened(tables, ((0, 0),), 10)
    assert cost(tables, found) == (6.0, 12.0)
    assert cost(tables, evened(tables, ((0, 0),), 1))[0] < 18.0
    assert evened(tables, found, 10) == found


def test_what_is_refused_or_cannot_be_cut_stays() -> None:
    used = (times(CPU, [2.0] * 4), times(GPU, [1.0] * 4, refused=[1]))
    here = device("here", used)
    problem = Problem(summary=chain(4, [None, None, 0]), devices=(here,), owner=here.id)
    found = evened(tabulated(problem), ((0, 0),), 10)
    assert found == ((0, 0), (3, 1))
