"""What can go wrong on the way between two peers that talk over TCP, made on purpose: a relay on
loopback that delays, limits, cuts, swallows and corrupts, the same way for the same seed."""

from __future__ import annotations

import math
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from edge_agent import clock
from tests.relay_faults import MIB, Direction
from tests.relay_flows import CHUNK_BYTES, FAREWELL_S, Connection, Counts, Flow, Leaving, Side

__all__ = ["FAREWELL_S", "Counts", "Direction", "Relay", "Side"]

T = TypeVar("T")

KERNEL_BYTES = 2**17
"""What each socket of the relay may buffer; Linux takes twice as much."""
REPLY_S = 20.0
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Relay:
    """Accepts connections on a loopback port of its own while it is entered, and makes one to
    `target` for each; connections that are open at its end are reset.

    Every method and setting may be used from any other thread, and has taken effect when it
    returns. Faults lie at the same bytes of the n-th connection for the same seed and settings,
    however the bytes are divided into packets.

    Args:
        target: its IPv4 address and port. May be set anew, for connections from then on.
        seed: of every fault that is left to chance.
        at: its own IPv4 address and port; port 0: one that the system chooses.
        most_ahead_bytes: how much of each direction of a connection is held at most; then the
            sender has to wait. No more than this passes in each `latency_s`.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        seed: int = 0,
        at: tuple[str, int] = ("127.0.0.1", 0),
        most_ahead_bytes: int = MIB,
    ) -> None:
        self.target = target
        self._at = at
        self.to_target = Direction(self._do, f"{seed} {Side.TARGET}")
        self.to_client = Direction(self._do, f"{seed} {Side.CLIENT}")
        self._seed = seed
        self._most_ahead_bytes = most_ahead_bytes
        self._counts = Counts()
        self._connections: deque[Connection] = deque()
        self._leaving: list[Leaving] = []
        self._cuts_of_next: deque[bool] = deque()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._asked: deque[tuple[Callable[[], object], Future[Any]]] = deque()
        self._asking = threading.Lock()
        self._is_serving = False

    def __enter__(self) -> Self:
        # Holds the port while there is no listener: a socket that only is bound refuses.
        self._port_holder = _bound(self._at)
        self.host, self.port = self._port_holder.getsockname()
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)
        self._listen()
        self._is_serving = True
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        with self._asking:
            self._is_serving = False
            self._waker.send(b"\0")
        self._thread.join()
        self._thread = None
        for each in (self._waker, self._woken, self._port_holder, self._selector):
            each.close()
        if self._failure is not None:
            raise RuntimeError("the relay failed") from self._failure

    @property
    def endpoint(self) -> str:
        """Its address, as ZeroMQ writes it."""
        return f"tcp://{self.host}:{self.port}"

    @property
    def counts(self) -> Counts:
        """A copy of what has been counted up to now."""

        def copied() -> Counts:
            flows = [flow for each in self._connections for flow, _ in each.flows]
            return replace(
                self._counts,
                bytes_held=sum(flow.held_bytes for flow in flows),
                open=len(self._connections),
                bytes_to_target=self.to_target.written_bytes,
                bytes_to_client=self.to_client.written_bytes,
            )

        return self._do(copied)

    def cut(self, *, with_reset: bool = True) -> int:
        """Cut all open connections on both sides; how many. What they hold is lost.

        Without RST both peers see a FIN; what they still send is taken, and lost, until they
        close too or `FAREWELL_S` is over.
        """

        def act() -> int:
            found = tuple(self._connections)
            for connection in found:
                self._cut(connection, with_reset=with_reset)
            return len(found)

        return self._do(act)

    def cut_next(self, *, with_reset: bool = True) -> None:
        """Cut the next connection as soon as it is accepted; the target does not hear of it.
        Asked for twice, the one after it too. A reset may fail the client's `connect` already."""
        self._do(lambda: self._cuts_of_next.append(with_reset))

    def close_slowly(self, first: Side, *, other_after_s: float) -> int:
        """Close that side of all open connections with a FIN, and the other one that much later,
        or when its peer closes; how many. Nothing more passes in between, what comes is lost."""

        def act() -> int:
            now_s = clock.monotonic_s()
            found = tuple(self._connections)
            for connection in found:
                fins = {side: now_s + other_after_s * (side is not first) for side in Side}
                self._part(connection, fins)
            return len(found)

        return self._do(act)

    def black_hole(
        self, *, to_target: bool = True, to_client: bool = True, keep: bool = False
    ) -> None:
        """Pass on nothing in these directions, no end of a stream either, until `heal`.

        Everything is taken and lost, also what is held now: the stream has a hole afterwards.
        With `keep` it is held and passed on afterwards, like TCP does after a route was gone for
        a while; the sender has to wait from `most_ahead_bytes` on. In the other direction an
        earlier black hole stays as it is. Connections are still accepted.
        """

        def act() -> None:
            for direction, is_meant in ((self.to_target, to_target), (self.to_client, to_client)):
                if is_meant:
                    direction.passes = False
                    direction.loses = not keep
            for connection in self._connections:
                for flow, _ in connection.flows:
                    if flow.direction.loses:
                        flow.lose()

        self._do(act)

    def refuse(self) -> None:
        """Refuse new connections until `heal`; the port stays this relay's."""
        self._do(self._close_listener)

    def heal(self) -> None:
        """End black holes and refusals; settings stay as they are."""

        def act() -> None:
            for direction in (self.to_target, self.to_client):
                direction.passes = True
                direction.loses = False
            if self._listener is None:
                self._listen()

        self._do(act)

    def _do(self, action: Callable[[], T]) -> T:
        """Have the relay's thread do it; without one, do it here."""
        if self._thread is None:
            return action()
        done: Future[T] = Future()
        with self._asking:
            if not self._is_serving:
                raise RuntimeError("the relay has ended") from self._failure
            self._asked.append((action, done))
            self._waker.send(b"\0")
        return done.result(REPLY_S)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._failure = error
        finally:
            with self._asking:
                self._is_serving = False
                for _, done in self._asked:
                    done.set_exception(RuntimeError("the relay has ended"))
            self._close_all()

    def _serve(self) -> None:
        again_s = math.inf
        while self._is_serving:
            now_s = clock.monotonic_s()
            timeout_s = None if math.isinf(again_s) else max(0.0, again_s - now_s)
            for key, events in self._selector.select(timeout_s):
                key.data(events)
            self._answer()
            again_s = self._move_on(clock.monotonic_s())
            self._watch_all()

    def _answer(self) -> None:
        while self._asked:
            action, done = self._asked.popleft()
            try:
                done.set_result(action())
            except Exception as error:
                done.set_exception(error)

    def _move_on(self, now_s: float) -> float:
        """Do all that is due; when there is more to do."""
        again_s = math.inf
        # Under a limit that all share it is the next one's turn.
        self._connections.rotate()
        for connection in tuple(self._connections):
            again_s = min(again_s, connection.pass_on(now_s))
            cuts = [flow.cut_with_reset for flow, _ in connection.flows if flow.is_cut]
            if cuts:
                self._cut(connection, with_reset=any(cuts))
            elif connection.is_over:
                self._connections.remove(connection)
                for side in connection.sockets.values():
                    self._close(side, with_reset=connection.was_reset)
        for leaving in tuple(self._leaving):
            again_s = min(again_s, leaving.move_on(now_s))
            if leaving.is_over:
                self._leaving.remove(leaving)
                self._close(leaving.socket, with_reset=False)
        return again_s

    def _cut(self, connection: Connection, *, with_reset: bool) -> None:
        if with_reset:
            self._drop(connection)
            for side in connection.sockets.values():
                self._close(side, with_reset=True)
        else:
            self._part(connection, dict.fromkeys(Side, clock.monotonic_s()))

    def _part(self, connection: Connection, fins_at_s: dict[Side, float]) -> None:
        self._drop(connection)
        for side, each in connection.sockets.items():
            self._leave(each, fins_at_s[side])

    def _drop(self, connection: Connection) -> None:
        """A connection that is cut is none any more; its sockets are still to be closed."""
        self._connections.remove(connection)
        self._counts.cut += 1
        for flow, _ in connection.flows:
            flow.lose()
            self._forget(flow.source)

    def _leave(self, side: socket.socket, fin_at_s: float) -> None:
        leaving = Leaving(side, self._counts, fin_at_s)
        leaving.move_on(clock.monotonic_s())
        self._leaving.append(leaving)

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        while True:
            try:
                client, _address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._counts.accepted += 1
            if not self._cuts_of_next:
                self._connections.append(self._connected(client))
                continue
            self._counts.cut += 1
            if self._cuts_of_next.popleft():
                self._close(client, with_reset=True)
            else:
                self._leave(client, clock.monotonic_s())

    def _connected(self, client: socket.socket) -> Connection:
        target = socket.socket()
        target.setblocking(False)
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit(target)
        # The first read or write tells if it fails.
        target.connect_ex(self.target)
        seed = f"{self._seed} {self._counts.accepted}"
        make = partial(Flow, most_ahead_bytes=self._most_ahead_bytes, counts=self._counts)
        return Connection(
            make(self.to_target, source=client, sink=target, seed=f"{seed} {Side.TARGET}"),
            make(self.to_client, source=target, sink=client, seed=f"{seed} {Side.CLIENT}"),
        )

    def _listen(self) -> None:
        self._listener = _bound((self.host, self.port))
        self._listener.setblocking(False)
        self._listener.listen(128)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._close(self._listener, with_reset=False)
            self._listener = None

    def _wake_up(self, _: int) -> None:
        self._woken.recv(CHUNK_BYTES)

    def _watch_all(self) -> None:
        for connection in self._connections:
            for flow, back in connection.flows:
                wanted = selectors.EVENT_READ * flow.wants_bytes
                wanted |= selectors.EVENT_WRITE * back.wants_room
                self._watch(flow.source, wanted, partial(self._happened, flow, back))
        for leaving in self._leaving:
            self._watch(leaving.socket, selectors.EVENT_READ, partial(self._left, leaving))

    def _watch(self, one: socket.socket, wanted: int, on_events: Callable[[int], None]) -> None:
        # A socket that is watched for nothing would still tell, over and over, that it is gone.
        known = self._selector.get_map().get(one)
        if known is None and wanted:
            self._selector.register(one, wanted, on_events)
        elif known is not None and not wanted:
            self._selector.unregister(one)
        elif known is not None and known.events != wanted:
            self._selector.modify(one, wanted, on_events)

    @staticmethod
    def _happened(flow: Flow, back: Flow, events: int) -> None:
        if events & selectors.EVENT_READ and flow.wants_bytes:
            flow.read(clock.monotonic_s())
        if events & selectors.EVENT_WRITE:
            back.may_write()

    @staticmethod
    def _left(leaving: Leaving, _: int) -> None:
        leaving.read()

    def _forget(self, one: socket.socket) -> None:
        if one in self._selector.get_map():
            self._selector.unregister(one)

    def _close(self, one: socket.socket, *, with_reset: bool) -> None:
        self._forget(one)
        if with_reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        one.close()

    def _close_all(self) -> None:
        self._close_listener()
        for connection in self._connections:
            for flow, _ in connection.flows:
                flow.lose()
        for one in self._open_sockets():
            self._close(one, with_reset=True)
        self._connections.clear()
        self._leaving.clear()

    def _open_sockets(self) -> Iterator[socket.socket]:
        for connection in self._connections:
            yield from connection.sockets.values()
        yield from (leaving.socket for leaving in self._leaving)


def _bound(address: tuple[str, int]) -> socket.socket:
    """A socket that shares its address with others that do not listen."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _limit(made)
    made.bind(address)
    return made


def _limit(one: socket.socket) -> None:
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        one.setsockopt(socket.SOL_SOCKET, buffer, KERNEL_BYTES)
