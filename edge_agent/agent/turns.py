"""When a builder may use the device: while nothing is under way, or else a little now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_agent import clock
from edge_agent.errors import BuilderLost

QUIET_S = 0.05
"""The builder gets its next slice when no request was under way for this long."""
GRANT_POLL_S = 0.01
MAX_WAIT_S = 0.5
"""Under traffic without a pause the builder, which gives way anyway, works a little all the same:
else a busy model would never get a plan."""


class Traffic(Protocol):
    """What serves."""

    def quiet_for_s(self) -> float:
        """Seconds since the last request was under way; 0 while one is."""
        ...


def wait_for_quiet(
    traffic: Traffic, is_stopped: Callable[[], bool], on_wait: Callable[[], None]
) -> None:
    """Block until a slice of work may begin; `on_wait` is called when that takes time.

    Raises:
        BuilderLost: `is_stopped` became true meanwhile.
    """
    until_s = clock.monotonic_s() + MAX_WAIT_S
    while traffic.quiet_for_s() < QUIET_S and clock.monotonic_s() < until_s:
        if is_stopped():
            raise BuilderLost("stopped")
        on_wait()
        clock.sleep_s(GRANT_POLL_S)
