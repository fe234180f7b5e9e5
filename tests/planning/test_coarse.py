from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from edge_agent.planning.coarse import coarsen, kept_boundaries, refined
from edge_agent.planning.shortest import Weights, cheapest
from edge_agent.planning.tables import tabulate
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.planning.made_routes import every_route, priced, problems


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(problem=problems(), data=st.data())
def test_the_best_coarse_route_is_the_best_that_changes_only_at_kept_boundaries(
    problem: Problem, data: st.DataObject
) -> None:
    tables = tabulate(problem, Target.LATENCY)
    assert tables is not None
    inner = st.frozensets(st.integers(1, tables.places - 1))
    boundaries = (0, *sorted(data.draw(inner)))
    weights = Weights.none(tables)
    weights.seconds[0] = 1.0
    paths = cheapest(coarsen(tables, boundaries), weights)
    possible = [
        route.seconds
        for route in every_route(tables)
        if {start for start, _ in route.pieces} <= set(boundaries)
    ]
    best = min(possible, default=float("inf"))
    if best == float("inf"):
        assert paths.totals[0] == best
        return
    assert abs(paths.totals[0] - best) <= 1e-9 * best
    blocks = [piece for piece in paths.pieces() if isinstance(piece, tuple)]
    found = priced(tables, refined(boundaries, blocks))
    assert found is not None
    assert abs(found.seconds - best) <= 1e-9 * best


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_tables_of_all_boundaries_are_those_of_the_segments(problem: Problem) -> None:
    tables = tabulate(problem, Target.THROUGHPUT)
    assert tables is not None
    coarse = coarsen(tables, range(tables.places))
    for name in ("seconds", "refusal", "weights", "arenas", "border", "barrier", "inner"):
        assert_array_equal(getattr(coarse, name), getattr(tables, name))
    assert_array_equal(coarse.sends.seconds, tables.sends.seconds)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), data=st.data())
def test_boundaries_that_were_used_are_kept_as_far_as_there_is_room(
    problem: Problem, data: st.DataObject
) -> None:
    tables = tabulate(problem, Target.LATENCY)
    assert tables is not None
    used = data.draw(st.frozensets(st.integers(0, tables.places - 1)))
    most = data.draw(st.integers(1, tables.places))
    kept = kept_boundaries(tables, used, most)
    assert kept[0] == 0
    assert list(kept) == sorted(set(kept))
    assert len(kept) <= most
    assert used <= set(kept) or (len(kept) == most and set(kept) <= used | {0})
