"""Whether one thing is faster than another: medians of paired times with intervals that hold.

Intervals are those of the binomial order statistics, which assume nothing of the distribution
(Conover, Practical Nonparametric Statistics, 3rd ed., 1999, section 3.2; Hollander, Wolfe and
Chicken, Nonparametric Statistical Methods, 3rd ed., 2014, section 3.6). The two sides run in
pairs, in random order, so that drift and load fall on both; their ratio is taken pair by pair.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate

from edge_agent.clock import precise_s
from edge_agent.profiles import RatioInterval, Timing

LEAST_PAIRS = 6
"""Fewer samples have no 95 % interval of the median: even the extremes cover less."""

Run = Callable[[], float]
"""Does its work once and returns the seconds that it took."""


def median_interval(
    samples: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Median, lower and upper end of its interval, all in the unit of `samples`.

    The interval is the narrowest symmetric pair of order statistics x(l), x(n+1-l) with
    P(l <= B <= n-l) >= confidence for B ~ Binomial(n, 1/2). With fewer than `LEAST_PAIRS` samples
    (at 95 %) there is none, and the extremes are returned, which cover less.

    Raises:
        ValueError: no samples, or `confidence` is not inside (0, 1).
    """
    if not samples:
        raise ValueError("got no samples, want at least one")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: got {confidence}, want inside (0, 1)")
    ordered = sorted(samples)
    size = len(ordered)
    middle = (ordered[(size - 1) // 2] + ordered[size // 2]) / 2.0
    skip = _skipped(size, confidence)
    return middle, ordered[skip], ordered[size - 1 - skip]


def _skipped(size: int, confidence: float) -> int:
    """How many extremes on each side lie outside: as many k >= 1 as have P(B <= k) <= tail."""
    tail_cases = Fraction((1.0 - confidence) / 2.0) * 2**size
    below = accumulate(math.comb(size, k) for k in range(size // 2))
    inside = sum(1 for cases in below if cases <= tail_cases)
    return max(inside - 1, 0)


def timing_of(samples: Sequence[float]) -> Timing:
    """Median of `samples` (seconds) with its 95 % interval. Raises: as `median_interval`."""
    median, low, high = median_interval(samples)
    return Timing(median_s=median, low_s=low, high_s=high, samples=len(samples))


def compare(
    a: Run,
    b: Run,
    *,
    rng: random.Random,
    max_pairs: int = 300,
    min_pairs: int = 20,
    half_width: float = 0.01,
    effect_share: float = 0.0,
    budget_s: float = math.inf,
    clock_s: Run = precise_s,
    grant: Callable[[], None] | None = None,
    quiet: Callable[[], bool] | None = None,
) -> RatioInterval:
    """Time of `a` over time of `b`, paired: above 1, `b` is faster.

    Ends when the 95 % interval is within ± `half_width` (or within `effect_share` of the median's
    distance from 1, where that is wider), after `max_pairs`, or with the last pair that fits into
    `budget_s`; at least one pair runs. `grant` may block before each pair. `quiet` tells whether
    nothing else worked on the device since its last call: a pair that was not quiet is thrown away
    and repeated, at most `max_pairs` times in all.
    """
    (ratio,) = _measure(
        (a, b), ((0, 1),), rng, max_pairs, min_pairs, half_width, effect_share, budget_s,
        clock_s, grant, quiet,
    )  # fmt: skip
    return ratio


def compare_with_control(
    a: Run,
    b: Run,
    *,
    rng: random.Random,
    max_pairs: int = 300,
    min_pairs: int = 20,
    half_width: float = 0.01,
    effect_share: float = 0.0,
    budget_s: float = math.inf,
    clock_s: Run = precise_s,
    grant: Callable[[], None] | None = None,
    quiet: Callable[[], bool] | None = None,
) -> tuple[RatioInterval, RatioInterval]:
    """As `compare`, and `a` over itself from the same rounds: (ratio, control).

    Each round runs `a`, `a` and `b` in random order; both intervals must be narrow enough. Each
    order is followed by its reverse: what a run does to the one behind it would otherwise not
    cancel in a few rounds.
    """
    ratio, control = _measure(
        (a, b, a), ((0, 1), (0, 2)), rng, max_pairs, min_pairs, half_width, effect_share,
        budget_s, clock_s, grant, quiet,
    )  # fmt: skip
    return ratio, control


def control_spread(control: RatioInterval | None) -> float:
    """How far from 1 the interval of a side against itself reaches; 0 without a control."""
    return 0.0 if control is None else max(control.high - 1.0, 1.0 - control.low, 0.0)


def is_no_worse(
    interval: RatioInterval, bar: float = 1.0, control: RatioInterval | None = None
) -> bool:
    """Whether the lower end is at least the bar less the control's spread."""
    return interval.pairs >= LEAST_PAIRS and interval.low >= bar - control_spread(control)


def is_better(interval: RatioInterval, control: RatioInterval | None = None) -> bool:
    """Whether the lower end lies above 1 by more than the control's median strays from 1.

    The interval knows of the noise already; what it does not know of is a bias of the rounds, and
    that is what the control shows.
    """
    bias = 0.0 if control is None else abs(control.median - 1.0)
    return interval.pairs >= LEAST_PAIRS and interval.low > 1.0 + bias


def interval_of(ratios: Sequence[float]) -> RatioInterval:
    """Median of paired ratios with its 95 % interval. Raises: as `median_interval`."""
    median, low, high = median_interval(ratios)
    return RatioInterval(median=median, low=low, high=high, pairs=len(ratios))


def _measure(
    runs: Sequence[Run],
    pairs: Sequence[tuple[int, int]],
    rng: random.Random,
    max_pairs: int,
    min_pairs: int,
    half_width: float,
    effect_share: float,
    budget_s: float,
    clock_s: Run,
    grant: Callable[[], None] | None,
    quiet: Callable[[], bool] | None,
) -> list[RatioInterval]:
    if not 1 <= min_pairs <= max_pairs:
        raise ValueError(f"got {min_pairs} to {max_pairs} pairs, want 1 <= min <= max")
    start_s = clock_s()
    taken: list[list[float]] = [[] for _ in pairs]
    disturbed: list[list[float]] = [[] for _ in pairs]
    longest_s = 0.0
    orders = _orders(len(runs), rng)
    while len(taken[0]) < max_pairs and len(disturbed[0]) < max_pairs:
        if (taken[0] or disturbed[0]) and clock_s() + longest_s > start_s + budget_s:
            break
        if grant is not None:
            grant()
        if quiet is not None:
            quiet()
        round_start_s = clock_s()
        times = _round(runs, next(orders))
        longest_s = max(longest_s, clock_s() - round_start_s)
        is_quiet = quiet is None or quiet()
        for ratios, (over, under) in zip(taken if is_quiet else disturbed, pairs, strict=True):
            ratios.append(times[over] / times[under])
        if len(taken[0]) >= min_pairs and _narrow(taken, half_width, effect_share):
            break
    if len(taken[0]) < max(LEAST_PAIRS, min_pairs):
        # On a device that is never quiet, pairs that share the same disturbance still tell more
        # than a handful of others; their wide intervals speak for themselves.
        taken = [[*few, *more] for few, more in zip(taken, disturbed, strict=True)]
    return [interval_of(ratios) for ratios in taken]


def _orders(count: int, rng: random.Random) -> Iterator[Sequence[int]]:
    """Random orders, each followed by its reverse."""
    while True:
        order = rng.sample(range(count), count)
        yield order
        yield order[::-1]


def _round(runs: Sequence[Run], order: Sequence[int]) -> list[float]:
    times = [0.0] * len(runs)
    for index in order:
        times[index] = runs[index]()
    return times


def _narrow(taken: Sequence[Sequence[float]], half_width: float, effect_share: float) -> bool:
    intervals = [interval_of(ratios) for ratios in taken]
    wanted = max(half_width, effect_share * abs(intervals[0].median - 1.0))
    return all(max(i.high - i.median, i.median - i.low) <= wanted for i in intervals)
