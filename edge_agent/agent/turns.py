"""When a builder may use the device: one at a time, while nothing is under way, or else a little
now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from edge_agent import clock
from edge_agent.errors import BuilderLost

QUIET_S = 0.05
"""The builder gets its next slice when no request was under way for this long."""
GRANT_POLL_S = 0.01
MAX_WAIT_S = 0.5
"""Under traffic without a pause the builder, which gives way anyway, works a little all the same:
else a busy model would never get a plan."""


class Turn:
    """Held by one thread at a time; who waits for it may give up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_held = False

    @contextmanager
    def held(self, is_over: Callable[[], bool]) -> Iterator[bool]:
        """Hold it for the block, once it is free; False, and not held, if `is_over` came first.

        When that becomes true, call `look_again`.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_held or is_over())
            got = not self._is_held
            self._is_held = True
        try:
            yield got
        finally:
            if got:
                with self._changed:
                    self._is_held = False
                    self._changed.notify_all()

    def look_again(self) -> None:
        """Have those who wait see whether they still want it."""
        with self._changed:
            self._changed.notify_all()


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
