"""Knows how far quantiles of two sides, measured in blocks, are apart, and how sure that is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from edge_agent.profiles import RatioInterval

_RESAMPLES = 1000


def quantile_ratio(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], at: float, rng: random.Random
) -> RatioInterval:
    """The quantile of all samples of `a` over that of `b`, with its 95 % interval.

    Block i of `a` and block i of `b`, all equally long, were measured near each other in time: the
    interval comes from drawing such pairs with replacement (paired block bootstrap: Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13).
    """
    pairs = len(a)
    blocks = np.array(a), np.array(b)

    def ratio(drawn: Sequence[int]) -> float:
        first, second = (np.quantile(side[list(drawn)], at) for side in blocks)
        return float(first / second)

    resampled = [ratio(rng.choices(range(pairs), k=pairs)) for _ in range(_RESAMPLES)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return RatioInterval(median=ratio(range(pairs)), low=float(low), high=float(high), pairs=pairs)
