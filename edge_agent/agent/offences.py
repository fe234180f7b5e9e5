"""How much of another device is put up with: how fast it may talk, how often it may be wrong."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
PATIENCE = 5
"""So many offences within the window, and the device is barred."""
FIRST_BAR_S = 30.0
"""Twice as long each time after that."""
LONGEST_BAR_S = 3600.0

TOLD_AGAIN_S = 60.0


@dataclass(slots=True)
class Pace:
    """How many messages may come: a token bucket."""

    per_s: float
    burst: float
    _tokens: float = -1.0
    _at_s: float = 0.0

    def take(self, now_s: float) -> float:
        """One came: 0 if it may, else for how many seconds nothing more is taken."""
        if self._tokens < 0:
            self._tokens, self._at_s = self.burst, now_s
        self._tokens = min(self.burst, self._tokens + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return (self.burst / 2 - self._tokens) / self.per_s
        self._tokens -= 1
        return 0.0


class Seldom:
    """What others can bring about as often as they like is told in the log once a minute."""

    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}

    def is_due(self, kind: str, now_s: float) -> bool:
        """Whether something of that kind is to be told now; it is then taken for told."""
        if now_s - self._told_s.get(kind, -math.inf) < TOLD_AGAIN_S:
            return False
        self._told_s[kind] = now_s
        return True


class Offences:
    """What a device did that it must not; it is barred for a while when it goes on."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=PATIENCE)
        self._bars = 0
        self._until_s: float | None = None
        self.count = 0
        """Since this agent started."""
        self.last = ""
        """What it did, in words."""

    def note(self, what: str, now_s: float) -> bool:
        """It did it again; whether it is barred from now on."""
        self.count += 1
        self.last = what
        if self.is_barred(now_s):
            return False
        self._recent.append(now_s)
        if len(self._recent) < PATIENCE or now_s - self._recent[0] > WINDOW_S:
            return False
        self._recent.clear()
        self._until_s = now_s + min(LONGEST_BAR_S, FIRST_BAR_S * 2**self._bars)
        self._bars = min(self._bars + 1, 16)
        return True

    def is_barred(self, now_s: float) -> bool:
        """Whether nothing is taken from it now."""
        return self._until_s is not None and now_s < self._until_s

    def bar_left_s(self, now_s: float) -> float:
        """For how long nothing will be taken from it."""
        return max(0.0, (self._until_s or now_s) - now_s)
