"""Which divisions there can be, and what their routes are."""

from __future__ import annotations

import pytest

from edge_agent.stages import OWNER, Crossing, Division
from edge_agent.tensors import TensorName


def crossing(source: int, target: int) -> Crossing:
    return Crossing(source=source, target=target, tensors=(TensorName("v"),))


def division(*pairs: tuple[int, int]) -> Division:
    return Division(crossings=tuple(crossing(*pair) for pair in pairs))


def test_a_pipeline_is_one_route_and_replicas_are_several() -> None:
    pipeline = division((OWNER, 0), (0, 1), (1, 2), (2, OWNER))
    assert pipeline.stages == (0, 1, 2)
    assert pipeline.routes() == (frozenset({0, 1, 2}),)
    replicas = division((OWNER, 3), (3, OWNER), (OWNER, 1), (1, OWNER))
    assert replicas.routes() == (frozenset({1}), frozenset({3}))
    mixture = division((OWNER, 4), (4, OWNER), (OWNER, 0), (0, 9), (9, OWNER))
    assert mixture.routes() == (frozenset({0, 9}), frozenset({4}))


def test_branches_are_of_one_route_however_they_are_written() -> None:
    pairs = [(OWNER, 0), (0, 1), (0, 2), (1, 3), (2, 3), (3, OWNER), (OWNER, 2)]
    for turn in range(len(pairs)):
        assert division(*pairs[turn:], *pairs[:turn]).routes() == (frozenset({0, 1, 2, 3}),)
    # Two branches that only the owner brings together are joined by nothing else.
    assert len(division((OWNER, 0), (OWNER, 1), (0, OWNER), (1, OWNER)).routes()) == 2


def test_what_comes_to_a_stage_and_what_leaves_it() -> None:
    made = division((OWNER, 0), (0, 1), (0, OWNER), (1, OWNER))
    assert made.takes(0) == (crossing(OWNER, 0),)
    assert made.gives(0) == (crossing(0, 1), crossing(0, OWNER))
    assert made.takes(OWNER) == (crossing(0, OWNER), crossing(1, OWNER))


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        (((OWNER, 0),), "stage 0 takes nothing or gives nothing"),
        (((0, OWNER),), "stage 0 takes nothing or gives nothing"),
        (((OWNER, 0), (0, 1), (0, OWNER)), "stage 1 takes nothing or gives nothing"),
        (((OWNER, 0), (OWNER, 0), (0, OWNER)), "two crossings between the same stages"),
        (((OWNER, 0), (0, 1), (1, 0), (1, OWNER)), r"stages \[0, 1\] wait for each other"),
    ],
)
def test_a_division_that_cannot_run_is_refused(
    pairs: tuple[tuple[int, int], ...], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        division(*pairs)


def test_a_stage_hands_nothing_to_itself() -> None:
    with pytest.raises(ValueError, match="stage 3 hands tensors to itself"):
        crossing(3, 3)
