"""When what happens: simulated time, and what is due at which moment of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

Act = Callable[[], None]


@dataclass(slots=True, order=True)
class Due:
    """Something that will happen, unless it is called off."""

    at_s: float
    number: int
    act: Act | None = field(compare=False)

    def call_off(self) -> None:
        """It will not happen."""
        self.act = None


class Events:
    """Simulated seconds from 0 on; what is due at the same time happens in the order in which it
    was asked for, so that equal questions have equal answers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[Due] = []
        self._number = 0

    def at(self, at_s: float, act: Act) -> Due:
        """Have something happen at a time, at once if that is past."""
        self._number += 1
        due = Due(max(at_s, self.now_s), self._number, act)
        heapq.heappush(self._due, due)
        return due

    def after(self, delay_s: float, act: Act) -> Due:
        """Have something happen so many seconds from now."""
        return self.at(self.now_s + delay_s, act)

    def run(self, *, is_over: Callable[[], bool], until_s: float = float("inf")) -> None:
        """Let things happen until it is over, the time is up, or nothing is due any more."""
        while not is_over():
            if not self._due:
                if until_s < float("inf"):
                    self.now_s = until_s
                return
            due = heapq.heappop(self._due)
            if due.act is None:
                continue
            if due.at_s > until_s:
                heapq.heappush(self._due, due)
                self.now_s = until_s
                return
            self.now_s = due.at_s
            due.act()
