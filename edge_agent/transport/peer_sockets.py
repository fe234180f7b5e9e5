"""ZeroMQ sockets between agents: one that listens for one domain, one that dials one key, and what
waits for all of them. Nothing here blocks but `Switchboard.wait`.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import zmq

from edge_agent.endpoints import Endpoint
from edge_agent.errors import StorageError
from edge_agent.peers import KeyPair, PublicKey
from edge_agent.transport.curve import check_curve, encrypt_as_client, encrypt_as_server
from edge_agent.transport.gate import Gate, Judge
from edge_agent.transport.watched import Context, LinkEvent, Watched
from edge_agent.wire.peering import MAX_MESSAGE_BYTES

HIGH_WATER: Final = 32
"""Messages that wait in one direction of one connection."""
GOODBYE_MS: Final = 200
"""How long a closed socket may go on with what was sent on it."""
_RECONNECT_MS: Final = 100
_RECONNECT_MAX_MS: Final = 2000
_FAMILY: Final = socket.AF_INET
"""Whatever is said here, the system knows of which family a socket is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message from another agent."""

    key: PublicKey
    """Of whom it is from: proven by the connection."""
    route: bytes
    """Where an answer goes."""
    payload: bytes
    """May be larger than it may be, so that whoever sent it is told of."""
    connection: int
    """The number of the connection on which it came, for `Listener.end_connection`."""


class _Watched(Watched):
    """Of agents."""

    def __init__(self, context: Context, kind: int) -> None:
        super().__init__(
            context,
            kind,
            # Who sends more than that is cut off by libzmq, which tells nobody.
            max_bytes=2 * MAX_MESSAGE_BYTES,
            high_water=HIGH_WATER,
            linger_ms=GOODBYE_MS,
        )
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)

    def _waiting(self) -> list[zmq.Frame] | None:
        # To ask is cheaper than to be told by an exception, of which every turn has one.
        if not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return None
        return self.receive_parts()


class Listener(_Watched):
    """Takes connections of the keys that are admitted to a domain."""

    def __init__(self, context: Context, at: Endpoint, keys: KeyPair, domain: bytes) -> None:
        """Listen at an address; port 0: one that the system chooses.

        Raises:
            UsageError: the address is not of this device, or taken.
        """
        super().__init__(context, zmq.ROUTER)
        encrypt_as_server(self.socket, keys, domain)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # All that may connect here have one key, or are told apart by it: who comes again with
        # the same routing id is the same device after its connection broke.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.endpoint = self.bind(at)
        """Where it listens."""
        self._unproven: dict[int, None] = {}
        """The numbers of connections over which nothing came, the oldest first."""
        self._proven: set[int] = set()

    @property
    def connections(self) -> int:
        """How many there are, proven or not, as far as `events` told."""
        return len(self._unproven) + len(self._proven)

    def events(self) -> list[LinkEvent]:
        """See `Watched`."""
        found = self.numbered_events()
        for event, number in found:
            if event in (LinkEvent.CAME, LinkEvent.ENDED):
                self._unproven.pop(number, None)
                self._proven.discard(number)
            if event is LinkEvent.CAME:
                self._unproven[number] = None
        return [event for event, _ in found]

    def receive(self) -> Received | None:
        """The next message; None: there is none now."""
        frames = self._waiting()
        if frames is None:
            return None
        # Of every frame, because the routing id is whatever the other side says.
        key = PublicKey(str(frames[-1].get("User-Id")))
        number = int(frames[-1].get(zmq.SRCFD))
        if number in self._unproven:
            del self._unproven[number]
            self._proven.add(number)
        return Received(
            key=key, route=frames[0].bytes, payload=_whole(frames[1:]), connection=number
        )

    def end_unproven(self, most: int) -> int:
        """End the oldest connections over which nothing came, until there are at most so many;
        how many were ended."""
        surplus = list(self._unproven)[: max(0, len(self._unproven) - most)]
        for number in surplus:
            self.end_connection(number)
        return len(surplus)

    def end_connection(self, number: int) -> bool:
        """End one of them, as if the other side had: libzmq has no call for that. What came over
        it before may still be received. False: it has ended already."""
        is_there = number in self._unproven or number in self._proven
        self._unproven.pop(number, None)
        self._proven.discard(number)
        if is_there:
            self._shut_down(number)
        return is_there

    def _shut_down(self, number: int) -> None:
        with suppress(OSError), socket.fromfd(number, _FAMILY, socket.SOCK_STREAM) as held:
            # The number may be that of another file by now, which is not to end.
            if held.getsockname()[1:2] == (self.endpoint.port,):
                held.shutdown(socket.SHUT_RDWR)

    def send(self, route: bytes, payload: bytes) -> bool:
        """Send to whom a message came from; False: that cannot be done now, or at all."""
        return self.send_parts([route, payload], copy=True)


class Dialled(_Watched):
    """A connection to the agent that has a key, made again by itself when it breaks."""

    def __init__(self, context: Context, to: Endpoint, keys: KeyPair, server: PublicKey) -> None:
        super().__init__(context, zmq.DEALER)
        encrypt_as_client(self.socket, keys, server)
        self.endpoint = to
        self.key = server
        self.connect(to)

    def receive(self) -> bytes | None:
        """The next message; None: there is none now."""
        frames = self._waiting()
        return None if frames is None else _whole(frames)

    def send(self, payload: bytes) -> bool:
        """Send; False: too much waits already."""
        return self.send_parts([payload], copy=True)


def _whole(frames: list[zmq.Frame]) -> bytes:
    """A message has one part: of one that has not, nothing is understood."""
    return frames[0].bytes if len(frames) == 1 else b""


class Switchboard:
    """All sockets between this agent and others, and one wait for all of them. One thread uses it,
    but for `wake`."""

    def __init__(self, judge: Judge) -> None:
        """Raises: RuntimeUnavailable: this libzmq cannot encrypt. StorageError: there are no
        descriptors left."""
        check_curve()
        self._context: Context = zmq.Context()
        try:
            self._gate = Gate(self._context, judge)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise StorageError(f"cannot open sockets to other devices: {error}") from error
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._gate.socket, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._calls: dict[Any, Callable[[], None]] = {}
        self._waking = threading.Lock()
        self._is_ended = False

    def listen(
        self, at: Endpoint, keys: KeyPair, domain: bytes, on_input: Callable[[Listener], None]
    ) -> Listener:
        """A listener; `on_input` is called when there is a message or an event.

        Raises: UsageError: as `Listener`.
        """
        made = Listener(self._context, at, keys, domain)
        self._add(made, lambda: on_input(made))
        return made

    def dial(
        self, to: Endpoint, keys: KeyPair, server: PublicKey, on_input: Callable[[Dialled], None]
    ) -> Dialled:
        """A connection; `on_input` is called when there is a message or an event."""
        made = Dialled(self._context, to, keys, server)
        self._add(made, lambda: on_input(made))
        return made

    def _add(self, made: _Watched, on_input: Callable[[], None]) -> None:
        for source in (made.socket, made.monitor):
            self._poller.register(source, zmq.POLLIN)
            self._calls[source] = on_input

    def pause(self, made: Listener | Dialled) -> None:
        """Take no input from it until `resume`: whoever floods it waits."""
        self._poller.unregister(made.socket)

    def resume(self, made: Listener | Dialled) -> None:
        """Take input from it again."""
        self._poller.register(made.socket, zmq.POLLIN)

    def close(self, made: Listener | Dialled) -> None:
        """End its connections."""
        for source in (made.socket, made.monitor):
            if source in self._poller:
                self._poller.unregister(source)
            del self._calls[source]
        made.close()

    def wake(self) -> None:
        """Have `wait` return. Any thread may call it."""
        with self._waking:
            # After the end there is nobody to wake, and the number may be that of another file.
            if not self._is_ended:
                os.eventfd_write(self._wake_fd, 1)

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait for input, a wake or the timeout: what has input, for `serve`."""
        return [ready for ready, _ in self._poller.poll(max(0, math.ceil(timeout_s * 1000)))]

    def serve(self, ready: list[Any]) -> None:
        """Call whoever has input."""
        for source in ready:
            if source is self._gate.socket:
                self._gate.serve()
            elif source == self._wake_fd:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
            # One may be closed by what another one brought; and both of a pair may be ready.
            elif (call := self._calls.get(source)) is not None:
                call()

    def end(self) -> None:
        """Close everything; what was sent last may still leave."""
        self._gate.close()
        self._context.destroy()
        with self._waking:
            self._is_ended = True
            os.close(self._wake_fd)
