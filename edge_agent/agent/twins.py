"""Two devices that have one key, because the state folder of one was copied to the other: neither
is to push the other one out, and the user is to know."""

from __future__ import annotations

import math
from typing import Final

ONE_KEY: Final = "two devices have one key: `edge-agent key rotate` on one of them"
SHOWN_S: Final = 15.0
"""After the last attempt of the second one, which comes again every few seconds."""


class Twins:
    """Which agent has the connection of a peer, by what each drew when it started."""

    def __init__(self) -> None:
        self._agent = ""
        self._seen_s = -math.inf

    def is_other(self, agent: str) -> bool:
        """Whether it is not the one that was let in last, which may have started anew."""
        return "" not in (agent, self._agent) and agent != self._agent

    def let_in(self, agent: str) -> None:
        """It has the connection from now on."""
        self._agent = agent

    def seen(self, now_s: float) -> None:
        """Another one came while this one was there."""
        self._seen_s = now_s

    def are_there(self, now_s: float) -> bool:
        """Whether that was lately."""
        return now_s - self._seen_s < SHOWN_S
