"""Knows how long a call takes here when it is repeated, and what this machine's pace is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from edge_agent import clock

_STEPS = 500
_CHOICES = 72
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(Generic[Result]):
    """What a call gave, and the seconds that each repetition took."""

    result: Result
    took_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median of the repetitions."""
        return float(np.median(self.took_s))

    @property
    def p95_s(self) -> float:
        """The 95th percentile of the repetitions."""
        return float(np.quantile(self.took_s, 0.95))


def repeated(
    call: Callable[[], Result], *, budget_s: float, least: int = 5, most: int = 20
) -> Repeated[Result]:
    """Time `call` after one call to warm up, `least` to `most` times, as long as the budget lasts.

    Raises:
        ValueError: two calls gave unequal results.
    """
    result = call()
    took_s: list[float] = []
    while len(took_s) < least or (len(took_s) < most and sum(took_s) < budget_s):
        start_s = clock.monotonic_s()
        again = call()
        took_s.append(clock.monotonic_s() - start_s)
        if again != result:
            raise ValueError("two calls with equal inputs gave unequal results")
    return Repeated(result=result, took_s=tuple(took_s))


def pace_s() -> Repeated[float]:
    """How long a fixed sum of shortest steps takes: with it, times of two machines compare."""
    costs = np.random.default_rng(0).random((_STEPS, _CHOICES))

    def sweep() -> float:
        best = np.zeros(_CHOICES)
        for step in costs:
            best = np.minimum(best, best.min() + 0.1) + step
        return float(best.min())

    return repeated(sweep, budget_s=1.0, least=20, most=200)
