"""Ends this process when a run on a compute unit beside the processor does not come back.

ONNX Runtime cannot be stopped inside of a provider, and the driver under it may wait for ever. The
agent runs what was under way again elsewhere, as after any death of a worker.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edge_agent import clock

log = logging.getLogger(__name__)

_LOOKS_PER_LIMIT = 8
_IDLE_S = 10.0


def end_at_once() -> None:
    """End this process, whatever its threads are caught in."""
    os.kill(os.getpid(), signal.SIGKILL)


class Watch:
    """Watches the runs of one chain; any thread may use it."""

    def __init__(
        self,
        limit_s: float,
        end: Callable[[], None] = end_at_once,
        now_s: Callable[[], float] = clock.monotonic_s,
    ) -> None:
        """A run that takes longer than `limit_s` seconds is taken for hung."""
        self._limit_s = limit_s
        self._end = end
        self._now_s = now_s
        self._numbers = itertools.count()
        self._started_s: dict[int, float] = {}
        self._begun = threading.Condition()
        self._is_looking = False
        """Whether there is a thread for it, which ends when nothing has run for a while."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around one run."""
        number = next(self._numbers)
        with self._begun:
            self._started_s[number] = self._now_s()
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._look, name="watch", daemon=True).start()
            elif len(self._started_s) == 1:
                self._begun.notify()
        try:
            yield
        finally:
            with self._begun:
                del self._started_s[number]

    def _look(self) -> None:
        while True:
            with self._begun:
                if not self._begun.wait_for(lambda: self._started_s, min(self._limit_s, _IDLE_S)):
                    self._is_looking = False
                    return
                oldest_s = min(self._started_s.values())
            if self._now_s() - oldest_s > self._limit_s:
                log.error("a run did not end within %g s: its unit hangs", self._limit_s)
                self._end()
                return
            clock.sleep_s(self._limit_s / _LOOKS_PER_LIMIT)
