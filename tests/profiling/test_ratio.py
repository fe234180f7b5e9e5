"""Intervals against the tables and by simulation; comparisons of made-up sides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from edge_agent.profiles import RatioInterval
from edge_agent.profiling.ratio import (
    compare,
    compare_with_control,
    control_spread,
    is_better,
    is_no_worse,
    median_interval,
    timing_of,
)


def ranks(size: int) -> tuple[float, float, float]:
    return median_interval([float(i) for i in range(1, size + 1)])


def noisy(rng: random.Random, mean_s: float, spread: float = 0.03) -> Callable[[], float]:
    return lambda: mean_s * rng.lognormvariate(0.0, spread)


def interval(low: float, high: float, pairs: int = 50) -> RatioInterval:
    return RatioInterval(median=(low + high) / 2, low=low, high=high, pairs=pairs)


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (20, 6, 15), (50, 18, 33), (100, 40, 61)],
)
def test_the_interval_has_the_ranks_of_the_tables(size: int, low: int, high: int) -> None:
    median, got_low, got_high = ranks(size)
    assert (median, got_low, got_high) == ((size + 1) / 2, low, high)


def test_below_six_samples_the_extremes_are_returned() -> None:
    assert ranks(1) == (1, 1, 1)
    assert ranks(5) == (3, 1, 5)


def test_two_thousand_samples_are_no_problem() -> None:
    assert ranks(2000) == (1000.5, 956, 1045)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(7)
    covered = 0
    for _ in range(2000):
        _, low, high = median_interval([rng.expovariate(1.0) for _ in range(15)])
        covered += low <= 0.6931 <= high
    assert covered / 2000 == pytest.approx(0.965, abs=0.012)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="confidence"):
        median_interval([1.0], confidence=1.0)


def test_a_timing_is_a_median_with_its_interval() -> None:
    timing = timing_of([0.3, 0.1, 0.2])
    assert (timing.median_s, timing.low_s, timing.high_s, timing.samples) == (0.2, 0.1, 0.3, 3)


def test_a_comparison_ends_when_the_interval_is_narrow() -> None:
    rng = random.Random(1)
    got = compare(noisy(rng, 1.10), noisy(rng, 1.0), rng=rng)
    assert got.low <= 1.1 <= got.high
    assert got.high - got.low <= 0.02
    assert 20 <= got.pairs < 300


def test_a_comparison_ends_after_the_most_pairs() -> None:
    rng = random.Random(1)
    got = compare(noisy(rng, 1.0, 0.5), noisy(rng, 1.0, 0.5), rng=rng, max_pairs=40)
    assert got.pairs == 40


def test_a_large_effect_needs_no_narrow_interval_when_a_share_of_it_is_allowed() -> None:
    rng = random.Random(3)
    exact = compare(noisy(rng, 1.5), noisy(rng, 1.0), rng=rng)
    rough = compare(noisy(rng, 1.5), noisy(rng, 1.0), rng=rng, min_pairs=12, effect_share=0.2)
    assert rough.pairs == 12 < exact.pairs


def test_no_pair_begins_that_would_not_end_within_the_budget() -> None:
    now_s = 0.0

    def half_a_second() -> float:
        nonlocal now_s
        now_s += 0.5
        return 0.5

    got = compare(
        half_a_second,
        half_a_second,
        rng=random.Random(0),
        budget_s=4.9,
        half_width=0.0,
        min_pairs=30,
        clock_s=lambda: now_s,
    )
    assert got.pairs == 4
    assert now_s == 4.0


def test_the_order_within_pairs_is_random() -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or 1.0

    compare(side("a"), side("b"), rng=random.Random(0), min_pairs=40, max_pairs=40)
    first = order[::2]
    assert 8 < first.count("a") < 32
    assert all({x, y} == {"a", "b"} for x, y in zip(first, order[1::2], strict=True))


def test_a_pair_beside_other_load_is_thrown_away_and_repeated() -> None:
    def sides() -> Iterator[float]:
        yield from [1.0, 1.0, 9.0, 9.0] * 100

    times, quiets = sides(), iter([True, True, True, False] * 100)
    granted: list[int] = []
    got = compare(
        lambda: next(times),
        lambda: next(times),
        rng=random.Random(0),
        min_pairs=30,
        max_pairs=30,
        grant=lambda: granted.append(1),
        quiet=lambda: next(quiets),
    )
    assert (got.low, got.high, got.pairs) == (1.0, 1.0, 30)
    assert len(granted) == 59


def test_a_device_that_is_never_quiet_is_measured_all_the_same() -> None:
    got = compare(lambda: 1.0, lambda: 1.0, rng=random.Random(0), max_pairs=20, quiet=lambda: False)
    assert got.pairs == 20


@pytest.mark.parametrize(("quiet_pairs", "counted"), [(8, 38), (12, 12)])
def test_where_few_pairs_are_quiet_the_others_count_too(quiet_pairs: int, counted: int) -> None:
    # Asked before and after each pair; the first ones are quiet.
    answers = iter([True] * 2 * quiet_pairs + [False] * 100)
    rng = random.Random(3)
    got = compare(
        lambda: 1.2 * rng.uniform(0.9, 1.1),
        lambda: rng.uniform(0.9, 1.1),
        rng=rng,
        min_pairs=12,
        max_pairs=30,
        half_width=1e-6,
        budget_s=1e9,
        clock_s=iter(range(10**6)).__next__,
        quiet=lambda: next(answers),
    )
    assert got.pairs == counted


def test_a_control_compares_the_first_side_with_itself() -> None:
    rng = random.Random(5)
    ratio, control = compare_with_control(noisy(rng, 1.2), noisy(rng, 1.0), rng=rng)
    assert ratio.low <= 1.2 <= ratio.high
    assert control.low <= 1.0 <= control.high
    assert ratio.pairs == control.pairs
    assert control.high - control.low <= 0.02


def test_more_least_pairs_than_most_is_refused() -> None:
    with pytest.raises(ValueError, match="want 1 <= min <= max"):
        compare(lambda: 1.0, lambda: 1.0, rng=random.Random(0), min_pairs=9, max_pairs=8)


def test_the_spread_of_a_control_is_its_farthest_reach() -> None:
    assert control_spread(None) == 0.0
    assert control_spread(interval(0.98, 1.01)) == pytest.approx(0.02)
    assert control_spread(interval(1.0, 1.03)) == pytest.approx(0.03)


def test_no_worse_allows_the_spread_of_the_control() -> None:
    assert is_no_worse(interval(1.0, 1.02))
    assert not is_no_worse(interval(0.99, 1.02))
    assert is_no_worse(interval(0.99, 1.02), control=interval(0.985, 1.01))
    assert is_no_worse(interval(0.99, 1.0), bar=0.98)
    assert not is_no_worse(interval(1.1, 1.2, pairs=5))


def test_better_must_exceed_what_the_control_is_off_by() -> None:
    assert is_better(interval(1.01, 1.03))
    assert not is_better(interval(1.0, 1.03))
    for off in (interval(0.95, 1.01), interval(0.99, 1.05)):
        assert not is_better(interval(1.01, 1.03), off)
        assert is_better(interval(1.021, 1.05), off)
    assert is_better(interval(1.01, 1.03), interval(0.8, 1.2))  # wide, and not off
    assert not is_better(interval(1.1, 1.2, pairs=5))
