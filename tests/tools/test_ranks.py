from __future__ import annotations

import pytest

from bench.ranks import rank_correlation


def test_one_order_correlates_fully_whatever_the_numbers() -> None:
    assert rank_correlation([1.0, 2.0, 30.0], [0.1, 5.0, 5.5]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 30.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)


def test_a_swap_of_neighbours_costs_what_spearmans_formula_says() -> None:
    # 1 - 6 sum d² / (n (n² - 1)), d² = 1 + 1, n = 5
    found = rank_correlation([1, 2, 3, 4, 5], [2, 1, 3, 4, 5])
    assert found == pytest.approx(1 - 6 * 2 / (5 * 24))


def test_ties_share_the_mean_of_their_ranks() -> None:
    # Ranks 1.5 1.5 3 4 against 1 2 3 4: covariance 4.5, variances 4.5 and 5.
    found = rank_correlation([7, 7, 8, 9], [1, 2, 3, 4])
    assert found == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0]), ([1, 2], [1, 2, 3]), ([1, 1], [1, 2])])
def test_what_has_no_order_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError):
        rank_correlation(a, b)
