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
_COSTS = np.random.default_rng(0).random((_STEPS, _CHOICES))
_SHORT, _LONG = 8, 200
"""How often the sum is made for the pace of a moment, and of this machine."""
PACE_S = 1.55e-3
"""The pace of a desktop's processor, on which a planner's effort is about a microsecond."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(Generic[Result]):
    """What a call gave, and the seconds that each repetition took."""

    result: Result
    took_s: tuple[float, ...]
    processor_s: tuple[float, ...]
    """Of this process, for each: less than it took where others had the processor."""
    paces_s: tuple[float, ...]
    """Of this machine around each, as `pace_s`: others slow it down by half, for moments."""

    @property
    def median_s(self) -> float:
        """The median of the repetitions."""
        return float(np.median(self.took_s))

    @property
    def paced_s(self) -> tuple[float, ...]:
        """What each would have taken at the pace of a desktop's processor."""
        both = zip(self.took_s, self.paces_s, strict=True)
        return tuple(took_s * PACE_S / pace_s for took_s, pace_s in both)

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
    found: list[tuple[float, float, float]] = []

    def timed() -> Result:
        before_s = short_pace_s()
        start_s, start_busy_s = clock.monotonic_s(), busy_s()
        result = call()
        took_s, processor_s = clock.monotonic_s() - start_s, busy_s() - start_busy_s
        found.append((took_s, processor_s, (before_s + short_pace_s()) / 2.0))
        return result

    result = timed()
    if found[0][0] < budget_s:
        found.clear()
        while len(found) < least or (
            len(found) < most and sum(took_s for took_s, *_ in found) < budget_s
        ):
            if timed() != result:
                raise ValueError("two calls with equal inputs gave unequal results")
    took_s, processor_s, paces_s = zip(*found, strict=True)
    return Repeated(result=result, took_s=took_s, processor_s=processor_s, paces_s=paces_s)


def busy_s() -> float:
    """Processor time that all threads of this process had so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def pace_s() -> Repeated[float]:
    """How long a fixed sum of shortest steps takes: with it, times of two machines compare."""
    took_s = tuple(_sweep_s() for _ in range(_LONG))
    value = _sweep()
    return Repeated(result=value, took_s=took_s, processor_s=took_s, paces_s=took_s)


def short_pace_s() -> float:
    """The same, of a moment."""
    return float(np.median([_sweep_s() for _ in range(_SHORT)]))


def _sweep_s() -> float:
    start_s = clock.monotonic_s()
    _sweep()
    return clock.monotonic_s() - start_s


def _sweep() -> float:
    best = np.zeros(_CHOICES)
    for step in _COSTS:
        best = np.minimum(best, best.min() + 0.1) + step
    return float(best.min())
