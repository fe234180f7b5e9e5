"""The client side of the data thread: connections in, requests admitted, answers out."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from edge_agent import clock
from edge_agent.agent.connections import Connection, Outgoing
from edge_agent.agent.lanes import Deadlines, Lane, Lanes, Limits, Outcome, Request
from edge_agent.agent.lending import ASKED_ALIKE, MOST_ASKED_ALIKE, Asked, Loan
from edge_agent.agent.poller import CAN_SEND, HAS_ENDED, HAS_INPUT, Poller
from edge_agent.agent.replies import Reply
from edge_agent.agent.stations import Stations
from edge_agent.errors import (
    BadRequest,
    Busy,
    DeadlineExceeded,
    EdgeAgentError,
    ProtocolError,
)
from edge_agent.transport import local
from edge_agent.transport.local import ConnectionLost
from edge_agent.transport.memory import PAGE_BYTES, SharedMemory
from edge_agent.wire.frames import Buffer, nbytes
from edge_agent.wire.messages import (
    ClientMessage,
    Codec,
    Failure,
    Infer,
    Message,
    Progress,
    Result,
    decode,
    error_text,
)
from edge_agent.wire.parts import Place

log = logging.getLogger(__name__)

PAYLOAD_S = 30.0
"""How long the payload of an admitted request may take to arrive."""
LENT_BYTES = 1 << 16
"""A connection is lent if its last answer had fewer bytes, or a place: larger ones may have to
wait for the client to take them, which is the agent's business."""
MAX_UNSENT_ANSWERS = 16
"""From a client that leaves so many answers unread, no more requests are taken until it reads."""


class Control(Protocol):
    """Takes every message that is no inference request."""

    def handle(self, message: ClientMessage, reply: Reply) -> None:
        """Deal with it on another thread."""
        ...

    def has_lost_client(self) -> None:
        """A reply, or several, became lost: see what is done for nobody."""
        ...


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A request that is admitted, while its payload is on the way."""

    message: Infer
    outputs: tuple[str, ...]
    lane: Lane
    arrived_s: float
    size_bytes: int
    """What it takes of the limits."""

    @property
    def patience_until_s(self) -> float:
        """When the payload has to be here: what it holds of the limits, others need."""
        deadline_s = self.message.deadline_s
        return self.arrived_s + min(PAYLOAD_S, PAYLOAD_S if deadline_s is None else deadline_s)


class ClientConnection(Connection):
    """A connection of a client."""

    def __init__(self, stream: socket.socket, scratch: memoryview, clients: Clients) -> None:
        super().__init__(stream, scratch)
        self.incoming: _Incoming | None = None
        self.memory: SharedMemory | None = None
        """What the client shares with the workers that answer it."""
        self.loan: Loan | None = None
        """Set while a worker has the connection."""
        self.asked: Asked | None = None
        """What the last request asked for."""
        self.alike = 0
        """How many requests in a row asked for that."""
        self.lent_after = ASKED_ALIKE
        """How many it takes to lend the connection."""
        self.replies: set[Reply] = set()
        """To the messages that are no requests and are being answered elsewhere."""
        self._clients = clients
        self._has_received = False

    def receive_once(self, target: memoryview) -> int:
        """See `Connection`; memory comes with the first byte, or never."""
        if self._has_received:
            return super().receive_once(target)
        count, descriptor = local.receive_some(self.stream, target)
        self._has_received = True
        if descriptor is not None:
            self.memory = self._clients.number_memory(descriptor)
        return count

    def on_message(self, message: bytes, payload_bytes: int) -> bool:
        """See `Connection`."""
        return self._clients.on_message(self, message, payload_bytes)

    def on_payload(self, payload: Buffer) -> None:
        """See `Connection`."""
        self._clients.on_payload(self, payload)

    def note(self, asked: Asked) -> None:
        """A request came."""
        self.alike = self.alike + 1 if asked == self.asked else 1
        self.asked = asked

    def given_back(self, payload: bytes, *, is_unsent: bool, is_recalled: bool) -> None:
        """See `lending.Lendable`."""
        self.loan = None
        self.alike = 0
        if not is_recalled:
            self.lent_after = min(2 * self.lent_after, MOST_ASKED_ALIKE)
        self._clients.resume(self, payload, is_unsent=is_unsent)

    def lost(self) -> None:
        """See `lending.Lendable`."""
        self.loan = None
        self._clients.drop(self)

    def close(self) -> None:
        """End the connection, also if a worker still has a descriptor of it."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        super().close()


class Clients:
    """All client connections and their requests. Only the data thread uses it."""

    def __init__(
        self,
        listener: socket.socket,
        control: Control,
        poller: Poller,
        lanes: Lanes,
        limits: Limits,
        codec: Codec,
        scratch: memoryview,
        counters: Counter[str],
        post: Callable[[Callable[[], None]], None],
        stations: Stations,
        max_request_bytes: int,
    ) -> None:
        self._listener = listener
        self._control = control
        self._poller = poller
        self._lanes = lanes
        self._limits = limits
        self._codec = codec
        self._scratch = scratch
        self._counters = counters
        self._post = post
        self._stations = stations
        self._max_request_bytes = max_request_bytes
        self._users = {0, os.getuid()}
        self._sequence = itertools.count(1)
        self._memories = itertools.count(1)
        self._connections: set[ClientConnection] = set()
        self._incoming: set[ClientConnection] = set()
        """The ones on which a payload is on its way."""
        self._requests: dict[str, tuple[Request, ClientConnection]] = {}
        self._is_accepting = False
        self._is_stopping = False
        self.deadlines = Deadlines()
        self.answered_at_s = clock.monotonic_s()

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def accept_clients(self) -> None:
        """Take the connections that wait and that come."""
        self._poller.add(self._listener.fileno(), lambda _: self._accept())
        self._is_accepting = True

    def _stop_listening(self) -> None:
        if self._is_accepting:
            self._poller.remove(self._listener.fileno())
            self._is_accepting = False

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # No descriptors are left: who waits is taken when a connection closes.
                log.warning("no more connections can be taken: %s", error.strerror)
                self._counters["times without a descriptor for a client"] += 1
                if self._connections:
                    self._stop_listening()
                return
            if local.peer_user(stream) not in self._users:
                self._counters["connections of other users refused"] += 1
                stream.close()
                continue
            stream.setblocking(False)
            local.widen(stream)
            connection = ClientConnection(stream, self._scratch, self)
            self._connections.add(connection)
            self._poller.add(connection.fd, partial(self._on_event, connection))

    def _on_event(self, connection: ClientConnection, bits: int) -> None:
        if connection not in self._connections:
            return  # dropped by an event before this one
        if connection.loan is not None:
            if bits & HAS_ENDED:
                self.drop(connection)
            return
        if bits & CAN_SEND:
            self._flush(connection)
        if bits & HAS_INPUT and connection in self._connections:
            if connection.is_closing:
                # Read and forget until the client has read why and closes: if this side
                # closed first, a client that is still sending would only learn that the
                # connection broke.
                self._read(connection, connection.drain)
            else:
                self._read(connection, connection.read)

    def _read(self, connection: ClientConnection, read: Callable[[], None]) -> None:
        try:
            read()
        except ConnectionLost:
            if not connection.reader.is_idle:
                self._counters["connections broken inside a frame"] += 1
            self.drop(connection)
        except ProtocolError as error:
            self._counters["messages not understood"] += 1
            connection.is_closing = True
            self._fail(connection, None, error)

    def resume(self, connection: ClientConnection, payload: bytes, *, is_unsent: bool) -> None:
        """A lent connection is here again; `payload` was read from it, or is to be sent first."""
        self._poller.watch(connection)
        if is_unsent:
            connection.outgoing.append(Outgoing([payload], None))
            self._flush(connection)
        elif payload:
            self._read(connection, lambda: connection.take_in(memoryview(payload)))
        if self._is_stopping and connection in self._connections and not connection.outgoing:
            self.drop(connection)

    # ---- requests

    def on_message(self, connection: ClientConnection, raw: bytes, payload_bytes: int) -> bool:
        """The message of a frame is here: whether its payload is wanted."""
        if connection not in self._connections:
            raise ConnectionLost("the client did not wait for its last answer")
        message: ClientMessage = decode(self._codec.from_client, raw)
        if self._is_stopping:
            # The client sends it again to the next agent.
            raise ConnectionLost("the agent is stopping")
        if not isinstance(message, Infer):
            if payload_bytes:
                raise ProtocolError(f"{type(message).__name__} with a payload")
            self._control.handle(message, self._reply_to(connection))
            return False
        try:
            if message.place is not None:
                self._check_place(message.place, payload_bytes, connection.memory)
            lane, outputs = self._admit(message, payload_bytes)
            size_bytes = message.place.end if message.place else payload_bytes
            self._take(size_bytes)
        except EdgeAgentError as error:
            self._counters["requests refused"] += 1
            self._fail(connection, message.request, error)
            return False
        connection.note(Asked.of(message))
        connection.incoming = _Incoming(message, outputs, lane, clock.monotonic_s(), size_bytes)
        self._incoming.add(connection)
        return True

    def _take(self, size_bytes: int) -> None:
        try:
            self._limits.take(size_bytes)
        except Busy:
            idle = self._stations.idle_loans()
            if not idle.requests:
                raise
            # What is lent and not in use is not in flight: nobody is refused because of it.
            self._stations.recall_all()
            self._limits.take(size_bytes, idle)

    def _check_place(self, place: Place, payload_bytes: int, memory: SharedMemory | None) -> None:
        if memory is None:
            # Sent, but lost on the way: the kernel gave no descriptor for it.
            raise Busy("the agent has no descriptor left for the memory of this request: try again")
        is_tight = place.inputs_bytes <= place.outputs_at < place.inputs_bytes + PAGE_BYTES
        if payload_bytes or not is_tight or not memory.holds(place.end):
            raise BadRequest(
                f"the place of the tensors does not fit: {place} with a payload of {payload_bytes} "
                "bytes"
            )
        if place.outputs_bytes > self._limits.max_bytes:
            raise BadRequest(
                f"room for outputs of {place.outputs_bytes} bytes, want at most "
                f"{self._limits.max_bytes}"
            )

    def _admit(self, message: Infer, payload_bytes: int) -> tuple[Lane, tuple[str, ...]]:
        if message.place is not None:
            payload_bytes = message.place.inputs_bytes
        if payload_bytes > self._max_request_bytes:
            raise BadRequest(
                f"the inputs have {payload_bytes} bytes, want at most {self._max_request_bytes}: "
                "send less, or raise max_request_bytes under [limits] in the config file"
            )
        lane = self._lanes.find(message.model)
        lane.check_is_run()
        outputs = lane.check(message, payload_bytes)
        if message.deadline_s is not None and message.deadline_s <= 0:
            raise DeadlineExceeded(
                f"the deadline was already past ({message.deadline_s:.3f} s) on arrival"
            )
        return lane, outputs

    def on_payload(self, connection: ClientConnection, payload: Buffer) -> None:
        """The payload of a request is here."""
        incoming = connection.incoming
        assert incoming is not None
        connection.incoming = None
        self._incoming.discard(connection)
        message, outputs, lane = incoming.message, incoming.outputs, incoming.lane
        if lane.is_closed:
            # Unloaded or replaced while the payload was on its way.
            try:
                lane, outputs = self._admit(message, nbytes(payload))
            except EdgeAgentError as error:
                self._limits.give_back(incoming.size_bytes)
                self._fail(connection, message.request, error)
                return
        if message.request in self._requests:
            # The client sent it again over a new connection while it is still being answered.
            first, _ = self._requests[message.request]
            asked = (message.model, message.tensors, outputs)
            if (first.lane.name, first.heads, first.outputs) != asked:
                self._limits.give_back(incoming.size_bytes)
                clash = BadRequest("another request of this id is in flight: give each its own")
                self._fail(connection, message.request, clash)
                return
            if first.place is None and message.place is None:
                self._requests[message.request] = (first, connection)
                self._limits.give_back(incoming.size_bytes)
                return
            # The answer would come to a place that the client does not look at any more.
            first.lane.finish(first, BadRequest("the request was sent again"))
        deadline_s = message.deadline_s
        request = Request(
            lane=lane,
            sequence=next(self._sequence),
            id=message.request,
            heads=message.tensors,
            outputs=outputs,
            until_s=None if deadline_s is None else incoming.arrived_s + deadline_s,
            size_bytes=incoming.size_bytes,
            answer=self._deliver,
            payload=payload,
            place=message.place,
            memory=connection.memory if message.place else None,
        )
        self._requests[message.request] = (request, connection)
        self.deadlines.add(request)
        lane.put(request)

    def next_event_s(self) -> float | None:
        """When to look next at deadlines, of requests and of payloads that are on their way."""
        first = self.deadlines.next_s()
        if not self._incoming:
            return first
        payloads = [c.incoming.patience_until_s for c in self._incoming if c.incoming]
        return min(payloads if first is None else [*payloads, first], default=None)

    def expire(self) -> None:
        """Answer the requests whose deadline has passed, and give up payloads that do not come."""
        now_s = clock.monotonic_s()
        for request in self.deadlines.expired(now_s):
            request.lane.finish(request, DeadlineExceeded("the deadline passed before the answer"))
        for connection in list(self._incoming):
            incoming = connection.incoming
            if incoming is not None and incoming.patience_until_s <= now_s:
                self._counters["payloads that did not arrive"] += 1
                self.drop(connection)

    # ---- answers

    def _deliver(self, request: Request, outcome: Outcome) -> None:
        self._limits.give_back(request.size_bytes)
        self.answered_at_s = clock.monotonic_s()
        _, connection = self._requests.pop(request.id)
        request.payload, request.memory = b"", None
        if isinstance(outcome, EdgeAgentError):
            self._fail(connection, request.id, outcome)
            return
        message = self._codec.encode(
            Result(request=request.id, tensors=outcome.heads, is_placed=outcome.is_placed)
        )
        self._send(connection, message, (outcome.payload,))
        if connection.alike >= connection.lent_after and nbytes(outcome.payload) < LENT_BYTES:
            self._lend(connection, request)

    def _lend(self, connection: ClientConnection, request: Request) -> None:
        is_quiet = (
            connection in self._connections
            and connection.incoming is None
            and connection.reader.is_idle
            and not connection.outgoing
            and not connection.is_closing
            and not connection.replies
            and not self._is_stopping
            and not any(awaits is connection for _, awaits in self._requests.values())
        )
        if not is_quiet or connection.asked is None:
            return
        connection.loan = self._stations.lend(
            request.lane, connection, connection.asked, request.outputs, request.size_bytes
        )
        if connection.loan is not None:
            self._poller.watch_end(connection)

    def _fail(
        self, connection: ClientConnection, request: str | None, error: EdgeAgentError
    ) -> None:
        failure = Failure(request=request, code=error.code, message=error_text(error))
        self._send(connection, self._codec.encode(failure))

    def _reply_to(self, connection: ClientConnection) -> Reply:
        def send(encoded: bytes, *, is_last: bool) -> None:
            if is_last:
                connection.replies.discard(reply)
            self._send(connection, encoded)

        def post(message: Message) -> None:
            encoded = self._codec.encode(message)
            is_last = not isinstance(message, Progress)
            self._post(lambda: send(encoded, is_last=is_last))

        reply = Reply(post)
        connection.replies.add(reply)
        return reply

    def _send(
        self, connection: ClientConnection, message: bytes, tensors: tuple[Buffer, ...] = ()
    ) -> None:
        if connection not in self._connections:
            return
        try:
            is_sent = connection.send(message, tensors)
        except ConnectionLost:
            self.drop(connection)
            return
        if not is_sent or connection.is_closing:
            self._follow_up(connection)

    def _flush(self, connection: ClientConnection) -> None:
        try:
            connection.flush()
        except ConnectionLost:
            self.drop(connection)
            return
        self._follow_up(connection)

    def _follow_up(self, connection: ClientConnection) -> None:
        self._poller.watch(connection, and_read=len(connection.outgoing) < MAX_UNSENT_ANSWERS)
        if connection.is_closing and not connection.outgoing:
            connection.end_sending()

    def number_memory(self, descriptor: int) -> SharedMemory:
        """Memory that came with a connection.

        Raises:
            ProtocolError: it is none, or may shrink.
        """
        return SharedMemory(descriptor, next(self._memories))

    def drop(self, connection: ClientConnection) -> None:
        """End a connection at once, with everything that is under way on it."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._poller.remove(connection.fd)
        self._incoming.discard(connection)
        if connection.incoming is not None:
            self._limits.give_back(connection.incoming.size_bytes)
            connection.incoming = None
        connection.close()
        if not self._is_accepting and not self._is_stopping:
            self.accept_clients()
        for request, waiting in list(self._requests.values()):
            if waiting is connection:
                self._counters["requests abandoned by their client"] += 1
                request.lane.finish(request, BadRequest("the client closed the connection"))
        if connection.loan is not None:
            self._stations.lending.closed(connection.loan)
            connection.loan = None
        if connection.memory is not None:
            self._stations.forget(connection.memory)
            connection.memory = None
        if connection.replies:
            for reply in connection.replies:
                reply.is_lost = True
            connection.replies.clear()
            self._control.has_lost_client()

    # ---- the end

    def stop_accepting(self) -> None:
        """Take nothing new; connections on which nothing is awaited are closed."""
        self._is_stopping = True
        self._stop_listening()
        self._listener.close()
        awaited = {connection for _, connection in self._requests.values()}
        for connection in list(self._connections):
            is_busy = connection in awaited or connection.incoming is not None
            if not is_busy and not connection.outgoing and connection.loan is None:
                self.drop(connection)

    @property
    def has_unsent(self) -> bool:
        """Whether answers wait for their client to take them."""
        return any(connection.outgoing for connection in self._connections)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._connections):
            self.drop(connection)
