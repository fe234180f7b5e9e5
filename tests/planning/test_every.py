from __future__ import annotations

from hypothesis import given, settings

from edge_agent.planning.every import every_route
from edge_agent.problems import Problem
from tests.planning.made_mixtures import pair, tabled
from tests.planning.made_routes import every_route as enumerated
from tests.planning.made_routes import problems


def test_all_routes_of_two_devices_are_there_and_each_once() -> None:
    tables, _ = tabled(pair((1.0, 1.0), (1.0, 1.0)))
    found = every_route(tables, 10)
    assert found == [((0, 0),), ((0, 0), (1, 1)), ((0, 1), (1, 0)), ((0, 1),)]


def test_too_many_routes_are_not_enumerated() -> None:
    tables, _ = tabled(pair((1.0,) * 4, (1.0,) * 4))
    assert every_route(tables, 15) is None
    assert len(every_route(tables, 16) or ()) == 16


def test_the_routes_of_a_very_long_model_can_be_counted() -> None:
    tables, _ = tabled(pair((1.0,) * 2000, (1.0,) * 2000))
    assert every_route(tables, 1000) is None


@settings(max_examples=25, deadline=None)
@given(problem=problems(most_routes=100))
def test_they_are_those_that_can_be_priced(problem: Problem) -> None:
    tables, _ = tabled(problem)
    found = every_route(tables, 10_000)
    assert found is not None
    assert sorted(found) == sorted(route.pieces for route in enumerated(tables))
