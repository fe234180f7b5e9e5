"""A ZeroMQ socket that never blocks, with the events of its connections."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from edge_agent.endpoints import Endpoint, parse_endpoint
from edge_agent.errors import UsageError

Context = zmq.Context[zmq.Socket[bytes]]
MOST_EVENTS: Final = 256
"""That are looked at in one turn."""
HANDSHAKE_MS: Final = 5000
"""A connection that has not proven its key by then is ended."""
_BACKLOG: Final = 64
_NOW: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
"""As numbers: what an enumeration makes of them is made for each message."""


class LinkEvent(StrEnum):
    """What became of a connection."""

    CAME = "came"
    """Somebody connected to a listener; nothing is proven yet."""
    OPEN = "open"
    """It is encrypted and both sides are proven."""
    REFUSED = "refused"
    """The gate of the listening side does not admit the key of the other."""
    UNPROVEN = "unproven"
    """Something is there that has not proven its key, or broke the handshake."""
    ENDED = "ended"
    """It is no more, and nothing is said of why."""
    UNREACHED = "unreached"
    """Nobody took it. Only told to who asks for it, since each new try would tell it again."""


_EVENTS: Final = {
    zmq.EVENT_ACCEPTED: LinkEvent.CAME,
    zmq.EVENT_HANDSHAKE_SUCCEEDED: LinkEvent.OPEN,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: LinkEvent.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: LinkEvent.UNPROVEN,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: LinkEvent.UNPROVEN,
    zmq.EVENT_DISCONNECTED: LinkEvent.ENDED,
    zmq.EVENT_CLOSED: LinkEvent.UNREACHED,
}
ALL_WITH_AN_END: Final = sum(_EVENTS) - zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""Each connection that came or was made ends with `ENDED`. If libzmq 4.3.5 is to tell of a message
that was not encrypted rightly, it forgets to end the connection, which then stands still."""
ALL_BUT_UNREACHED: Final = ALL_WITH_AN_END - zmq.EVENT_CLOSED


class Watched:
    """Of such a kind, with at most so many bytes in a part and so many messages in each direction
    of each connection that wait."""

    def __init__(
        self,
        context: Context,
        kind: int,
        *,
        max_bytes: int,
        high_water: int,
        linger_ms: int,
        monitored: int = ALL_BUT_UNREACHED,
    ) -> None:
        self.socket = context.socket(kind)
        self.socket.linger = linger_ms
        self.socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        self.socket.setsockopt(zmq.SNDHWM, high_water)
        self.socket.setsockopt(zmq.RCVHWM, high_water)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        self.monitor = monitor_of(context, self.socket, monitored)

    def bind(self, at: Endpoint) -> Endpoint:
        """Listen there; where it is then, if the port is 0.

        Raises:
            UsageError: the address is not of this device, or taken; the socket is closed.
        """
        self.socket.setsockopt(zmq.IPV6, int(at.is_ipv6))
        try:
            self.socket.bind(str(at) if at.port else f"{str(at).rpartition(':')[0]}:*")
        except zmq.ZMQError as error:
            self.close()
            raise _cannot_listen(at, error) from error
        bound = parse_endpoint("bound", self.socket.get_string(zmq.LAST_ENDPOINT))
        return at.at(bound.port)

    def connect(self, to: Endpoint) -> None:
        """Connect to an address."""
        self.socket.setsockopt(zmq.IPV6, int(to.is_ipv6))
        self.socket.connect(str(to))

    def events(self) -> list[LinkEvent]:
        """What became of its connections since the last call, as far as a turn goes."""
        return [event for event, _ in self.numbered_events()]

    def numbered_events(self) -> list[tuple[LinkEvent, int]]:
        """The same; of a connection that came or ended also its number, which another one may have
        once it ended."""
        found: list[tuple[LinkEvent, int]] = []
        while len(found) < MOST_EVENTS and int(self.monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            told = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            found.append((_EVENTS[zmq.Event(told["event"])], told["value"]))
        return found

    def receive_parts(self) -> list[zmq.Frame] | None:
        """The parts of the next message; None: there is none now."""
        try:
            part = self.socket.recv(_NOW, copy=False)
        except zmq.Again:
            return None
        parts = [part]
        while part.more:
            # The parts of a message come together.
            part = self.socket.recv(_NOW, copy=False)
            parts.append(part)
        return parts

    def send_parts(self, parts: Sequence[bytes | bytearray | memoryview], *, copy: bool) -> bool:
        """Send a message; False: too much waits, or the one that it is for is gone."""
        try:
            for part in parts[:-1]:
                self.socket.send(part, _MORE, copy=copy)
            self.socket.send(parts[-1], _NOW, copy=copy)
        except (zmq.Again, zmq.ZMQError):
            return False
        return True

    def close(self) -> None:
        """End all its connections; what was sent last may still leave."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()


def monitor_of(context: Context, socket: zmq.Socket[bytes], monitored: int) -> zmq.Socket[bytes]:
    """Where it tells of its connections. Any number of events may wait there: with a limit, as
    `get_monitor_socket` has it, libzmq's thread waits for somebody to read them, and holds a lock
    without which the socket cannot be closed."""
    address = f"inproc://events-{socket.FD}"
    socket.monitor(address, monitored)
    made = context.socket(zmq.PAIR)
    made.setsockopt(zmq.RCVHWM, 0)
    made.connect(address)
    return made


def _cannot_listen(at: Endpoint, error: zmq.ZMQError) -> UsageError:
    match error.errno:
        case errno.EADDRINUSE:
            why = "another program listens there: stop that one, or choose another port"
        case errno.EADDRNOTAVAIL | errno.ENODEV:
            why = "no network interface of this device has that address"
        case _:
            why = f"{error.strerror}; choose another address or port"
    return UsageError(f"cannot listen at {at}: {why}")
