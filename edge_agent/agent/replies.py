"""Where the answer to a message of a client goes, and whether anybody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edge_agent.wire.messages import Message


class Reply:
    """Takes any number of `Progress` and then the answer, from any thread."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._is_lost = threading.Event()

    def __call__(self, message: Message) -> None:
        self._send(message)

    @property
    def is_lost(self) -> bool:
        """Whether the client is gone."""
        return self._is_lost.is_set()

    def lose(self) -> None:
        """The client is gone."""
        self._is_lost.set()
