"""ZeroMQ sockets between workers: each for one neighbour, and for one connection. When that breaks,
the socket is of no use any more, because nobody knows what of the stream arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import zmq

from edge_agent.endpoints import Endpoint
from edge_agent.peers import KeyPair, PublicKey
from edge_agent.transport.curve import encrypt_as_client, encrypt_as_server
from edge_agent.transport.watched import ALL_WITH_AN_END, Context, LinkEvent, Watched

HIGH_WATER: Final = 16
"""Messages that wait in one direction: what steers a stream waits behind so many chunks."""
LINGER_MS: Final = 0
_NEVER: Final = -1

Part = bytes | bytearray | memoryview


class DataSocket(Watched):
    """One end of a connection between two workers. Without keys it is not encrypted."""

    def __init__(self, context: Context, *, max_part_bytes: int) -> None:
        super().__init__(
            context,
            zmq.DEALER,
            max_bytes=max_part_bytes,
            high_water=HIGH_WATER,
            linger_ms=LINGER_MS,
            monitored=ALL_WITH_AN_END,
        )
        self.socket.setsockopt(zmq.RECONNECT_IVL, _NEVER)
        self.endpoint: Endpoint
        """Where it listens, or what it connects to."""
        self.is_open = False
        self._listens = False
        self._came: set[int] = set()
        """The numbers of a listener's connections."""
        self._neighbours: set[int] = set()
        """Those of them that were there when one of them proved its key: it is among them."""

    def listen(self, at: Endpoint, keys: KeyPair | None, domain: bytes) -> None:
        """Take a connection of whom the gate admits to the domain.

        Raises: UsageError: as `Watched.bind`.
        """
        if keys is not None:
            encrypt_as_server(self.socket, keys, domain)
        self._listens = True
        self.endpoint = self.bind(at)

    def dial(self, to: Endpoint, keys: KeyPair | None, server: PublicKey | None) -> None:
        """Connect to the worker that has the key."""
        assert (keys is None) == (server is None)
        if keys is not None and server is not None:
            encrypt_as_client(self.socket, keys, server)
        self.endpoint = to
        self.connect(to)

    def look(self) -> str | None:
        """See what became of the connection: why it is of no use any more, or None."""
        for event, number in self.numbered_events():
            if event is LinkEvent.OPEN:
                if self.is_open:
                    return "the other side connected a second time"
                self.is_open = True
                self._neighbours = set(self._came)
            elif not self._listens:
                return f"the connection is {event}"
            elif event is LinkEvent.CAME:
                self._came.add(number)
            elif event is LinkEvent.ENDED:
                # Anybody may come and go; who proves nothing is gone after `HANDSHAKE_MS`.
                self._came.discard(number)
                self._neighbours.discard(number)
                if self.is_open and not self._neighbours:
                    return f"the connection is {event}"
        return None

    def receive(self) -> list[memoryview] | None:
        """The parts of the next message, over the memory in which they came; None: there is none
        now."""
        parts = self.receive_parts()
        return None if parts is None else [part.buffer for part in parts]

    def send(self, parts: Sequence[Part], *, is_shared: bool) -> bool:
        """Send a message, without copying what is shared; False: too much waits."""
        return self.send_parts(parts, copy=not is_shared)
