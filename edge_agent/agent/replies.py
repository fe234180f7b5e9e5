"""Where the answer to a message of a client goes, and whether anybody waits for it."""

from __future__ import annotations

from collections.abc import Callable

from edge_agent.wire.messages import Message


class Reply:
    """Takes any number of `Progress` and then the answer, from any thread."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self.is_lost = False
        """Whether the client is gone; once so, it stays so."""

    def __call__(self, message: Message) -> None:
        self._send(message)
