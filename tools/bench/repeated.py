"""Knows how long a call takes here when it is repeated, and what this machine's pace is."""

from __future__ import annotations

import resource
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
    processor_s: tuple[float, ...]
    """Of this process, for each: less than it took where others had the processor."""

    @property
    def median_s(self) -> float:
        """The median of the repetitions."""
        return float(np.median(self.took_s))

    @property
    def median_processor_s(self) -> float:
        """The median of the processor times."""
        return float(np.median(self.processor_s))

    @property
    def p95_s(self) -> float:
        """The 95th percentile of the repetitions."""
        return float(np.quantile(self.took_s, 0.95))


def repeated(
    call: Callable[[], Result], *, budget_s: float, least: int = 3, most: int = 20
) -> Repeated[Result]:
    """Time `call` after one call to warm up, `least` to `most` times, as long as the budget lasts.

    Where the first call alone takes longer than the budget, it is the only one.

    Raises:
        ValueError: two calls gave unequal results.
    """
    found: list[tuple[float, float]] = []

    def timed() -> Result:
        start_s, busy_s = clock.monotonic_s(), _busy_s()
        result = call()
        found.append((clock.monotonic_s() - start_s, _busy_s() - busy_s))
        return result

    result = timed()
    if found[0][0] < budget_s:
        found.clear()
        while len(found) < least or (
            len(found) < most and sum(took_s for took_s, _ in found) < budget_s
        ):
            if timed() != result:
                raise ValueError("two calls with equal inputs gave unequal results")
    took_s, processor_s = zip(*found, strict=True)
    return Repeated(result=result, took_s=took_s, processor_s=processor_s)


def _busy_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def pace_s() -> Repeated[float]:
    """How long a fixed sum of shortest steps takes: with it, times of two machines compare."""
    costs = np.random.default_rng(0).random((_STEPS, _CHOICES))

    def sweep() -> float:
        best = np.zeros(_CHOICES)
        for step in costs:
            best = np.minimum(best, best.min() + 0.1) + step
        return float(best.min())

    return repeated(sweep, budget_s=1.0, least=20, most=200)
