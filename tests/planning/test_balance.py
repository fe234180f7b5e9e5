"""Parts of equal work: as even as any choice of the places allows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning.balance import equal_cuts


@pytest.mark.parametrize(
    ("work_before", "total", "parts", "places"),
    [
        ([1, 2, 3], 4, 2, (1,)),
        ([1, 2, 3], 4, 4, (0, 1, 2)),
        ([1, 2, 3], 4, 1, ()),
        ([1, 9], 10, 2, (0,)),
        ([], 1, 1, ()),
        ([5, 5], 10, 2, (0,)),
    ],
)
def test_the_most_even_places_are_chosen(
    work_before: list[float], total: float, parts: int, places: tuple[int, ...]
) -> None:
    assert equal_cuts(work_before, total, parts) == places


def test_too_few_places_give_none() -> None:
    assert equal_cuts([1.0], 2.0, 3) is None
    assert equal_cuts([], 1.0, 2) is None
    assert equal_cuts([], 1.0, 0) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 5))
def test_no_other_choice_is_more_even(work: list[int], parts: int) -> None:
    *before, total = itertools.accumulate(work)
    found = equal_cuts(before, total, parts)
    choices = list(itertools.combinations(range(len(before)), parts - 1))

    def unevenness(chosen: tuple[int, ...]) -> int:
        bounds = [0, *(before[i] for i in chosen), total]
        return sum((b - a) ** 2 for a, b in itertools.pairwise(bounds))

    if not choices:
        assert found is None
    else:
        assert found is not None
        assert unevenness(found) == min(map(unevenness, choices))
