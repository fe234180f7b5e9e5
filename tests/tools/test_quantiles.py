"""Ratios of quantiles: their value, and an interval that is honest about few blocks."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bench.quantiles import quantile_ratio


def _blocks(seed: int, scale: float = 1.0, drift: bool = False) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    speeds = 1.0 + 0.5 * np.arange(12) / 12 if drift else np.ones(12)
    return [list(scale * speed * rng.gamma(20.0, 1.0, 40)) for speed in speeds]


def test_the_ratio_is_that_of_the_quantiles_of_all_samples() -> None:
    a, b = [[1.0, 2.0], [3.0, 10.0]], [[1.0, 1.0], [2.0, 5.0]]
    got = quantile_ratio(a, b, 1.0, random.Random(0))
    assert got.median == pytest.approx(2.0)
    assert got.pairs == 2
    assert got.low <= got.median <= got.high


@pytest.mark.long
def test_the_interval_of_equal_sides_mostly_holds_1() -> None:
    held = 0
    for seed in range(40):
        got = quantile_ratio(_blocks(2 * seed), _blocks(2 * seed + 1), 0.95, random.Random(seed))
        held += got.low <= 1.0 <= got.high
    assert held >= 34


@pytest.mark.long
def test_a_slower_side_is_told_although_the_speed_of_both_drifts() -> None:
    for seed in range(10):
        a = _blocks(2 * seed, drift=True)
        b = _blocks(2 * seed + 1, scale=1.25, drift=True)
        got = quantile_ratio(a, b, 0.95, random.Random(seed))
        assert got.high < 1.0
        assert got.median == pytest.approx(1 / 1.25, rel=0.1)
