"""When a builder may use the device: one at a time, while nothing is under way, or else a little
now and then."""

from __future__ import annotations

import threading
from collections import deque
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
    """Held by one thread at a time, in the order in which they came; who waits may give up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        """Who holds it, and behind it who waits."""

    @contextmanager
    def held(self, is_over: Callable[[], bool]) -> Iterator[bool]:
        """Hold it for the block, once it is free; False, and not held, if `is_over` came first.

        When that becomes true, call `look_again`.
        """
        place = object()
        try:
            with self._changed:
                self._queue.append(place)
                self._changed.wait_for(lambda: self._queue[0] is place or is_over())
                got = self._queue[0] is place
                if not got:
                    self._queue.remove(place)
            yield got
        finally:
            with self._changed:
                if place in self._queue:
                    self._queue.remove(place)
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
        BuilderLost: `is_stopped` is true, or became so meanwhile.
    """
    until_s = clock.monotonic_s() + MAX_WAIT_S
    while True:
        if is_stopped():
            raise BuilderLost("stopped")
        if traffic.quiet_for_s() >= QUIET_S or clock.monotonic_s() >= until_s:
            return
        on_wait()
        clock.sleep_s(GRANT_POLL_S)
