"""How long a queue is over simulated time."""

from __future__ import annotations

from edge_agent.simulation.events import Events


class Length:
    """The length of a queue, its mean over time, and the most it was."""

    def __init__(self, events: Events) -> None:
        self.most = 0
        self._events = events
        self._length = 0
        self._settled_s = 0.0
        self._sum_s = 0.0

    def grow(self) -> None:
        """One more waits."""
        self._settle()
        self._length += 1

    def shrink(self) -> None:
        """One no longer waits."""
        self._settle()
        self._length -= 1

    def waited_s(self) -> float:
        """Seconds that all of them together waited so far: over a time, that is the mean length."""
        self._settle()
        return self._sum_s

    def _settle(self) -> None:
        passed_s = self._events.now_s - self._settled_s
        if passed_s > 0.0:
            # What goes on at once did not wait.
            self.most = max(self.most, self._length)
            self._sum_s += passed_s * self._length
        self._settled_s = self._events.now_s
