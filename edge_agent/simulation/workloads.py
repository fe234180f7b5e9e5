"""How requests arrive, and which route each of them takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Routing(StrEnum):
    """Which route a request takes."""

    BY_SHARE = "by share"
    """In turns, smoothly: each route is as near to its share at any moment as it can be."""
    TO_THE_FREE = "to the free"
    """The one with the fewest requests under way for its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lone:
    """One request that finds everything idle."""

    at_s: float = 0.0
    route: int = 0
    """Which of the routes it takes, counted from 0."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ValueError(f"lone request: got at_s {self.at_s:g}, want a number of at least 0")
        if self.route < 0:
            raise ValueError(f"lone request: got route {self.route}, want at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """A fixed number of requests under way: as one is answered, the next one arrives."""

    in_flight: int | None = None
    """None: as many as keep the busiest resource busy."""
    requests: int | None = None
    """It ends when so many are answered. None: when the time is up or, without `duration_s`, after
    so many that what is measured is steady."""
    duration_s: float | None = None
    routing: Routing = Routing.BY_SHARE

    def __post_init__(self) -> None:
        for key, number in (("in_flight", self.in_flight), ("requests", self.requests)):
            if number is not None and number < 1:
                raise ValueError(f"closed loop: got {key} {number}, want at least 1")
        if self.duration_s is not None and not (
            math.isfinite(self.duration_s) and self.duration_s > 0
        ):
            raise ValueError(
                f"closed loop: got duration_s {self.duration_s:g}, want a number above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests that arrive at given times, whatever is under way."""

    arrivals_s: tuple[float, ...]
    routing: Routing = Routing.BY_SHARE

    def __post_init__(self) -> None:
        if not self.arrivals_s:
            raise ValueError("open loop: got no arrivals, want at least one")
        if not all(math.isfinite(at_s) and at_s >= 0 for at_s in self.arrivals_s):
            raise ValueError("open loop: got an arrival that is negative or no number")


Workload = Lone | ClosedLoop | OpenLoop


def at_rate(rate_per_s: float, requests: int, *, routing: Routing = Routing.BY_SHARE) -> OpenLoop:
    """Requests that arrive evenly, the first at 0.

    Raises:
        ValueError: `rate_per_s` is not above 0, or there are no requests.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise ValueError(f"open loop: got rate_per_s {rate_per_s:g}, want a number above 0")
    return OpenLoop(arrivals_s=tuple(i / rate_per_s for i in range(requests)), routing=routing)


class Turns:
    """Which route is next."""

    def __init__(self, shares: Sequence[float], routing: Routing) -> None:
        self._shares = shares
        self._routing = routing
        self._due = [0.0] * len(shares)
        self._under_way = [0] * len(shares)

    def take(self) -> int:
        """The route of a request that arrives now."""
        match self._routing:
            case Routing.BY_SHARE:
                self._due = [d + share for d, share in zip(self._due, self._shares, strict=True)]
                route = max(range(len(self._due)), key=lambda r: (self._due[r], -r))
                self._due[route] -= sum(self._shares)
            case Routing.TO_THE_FREE:
                used = [r for r, share in enumerate(self._shares) if share > 0]
                route = min(used, key=lambda r: ((self._under_way[r] + 1) / self._shares[r], r))
        self._under_way[route] += 1
        return route

    def end(self, route: int) -> None:
        """A request on that route was answered."""
        self._under_way[route] -= 1
