"""Knows how far two lists put the same things into the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, those of ties averaged.

    1 if both have the same order, -1 if one is the other reversed.

    Raises:
        ValueError: the lists differ in length or have fewer than two numbers, or all numbers of one
            are equal.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"got {len(a)} and {len(b)} numbers, want as many, and at least 2")
    ranks = np.array([_ranks(a), _ranks(b)])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    norms = np.sqrt((centred**2).sum(axis=1))
    if not norms.all():
        raise ValueError("got equal numbers only, which have no order")
    return float(centred[0] @ centred[1] / (norms[0] * norms[1]))


def _ranks(numbers: Sequence[float]) -> npt.NDArray[np.float64]:
    values = np.asarray(numbers, np.float64)
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    return np.asarray(below + (equal + 1) / 2, np.float64)
