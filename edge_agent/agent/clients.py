"""The client side of the data thread: connections in, requests admitted, answers out."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edge_agent import clock
from edge_agent.agent.checking import check_request
from edge_agent.agent.connections import Connection
from edge_agent.agent.lanes import Deadlines, Lane, Lanes, Limits, Outcome, Request
from edge_agent.agent.poller import CAN_SEND, HAS_INPUT, Poller
from edge_agent.errors import (
    BadRequest,
    DeadlineExceeded,
    EdgeAgentError,
    ModelQuarantined,
    ProtocolError,
)
from edge_agent.transport import local
from edge_agent.transport.local import ConnectionLost
from edge_agent.wire.frames import split_payload
from edge_agent.wire.messages import (
    ClientMessage,
    Codec,
    Failure,
    Infer,
    Message,
    Result,
    decode,
    error_text,
)

log = logging.getLogger(__name__)

PAYLOAD_S = 30.0
"""How long the payload of an admitted request may take to arrive."""
MAX_UNSENT_ANSWERS = 16
"""From a client that leaves so many answers unread, no more requests are taken until it reads."""


class Control(Protocol):
    """Takes every message that is no inference request."""

    def handle(self, message: ClientMessage, reply: Callable[[Message], None]) -> None:
        """Deal with it on another thread; `reply` may be called from any thread, once."""
        ...


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A request that is admitted, while its payload is on the way."""

    message: Infer
    outputs: tuple[str, ...]
    lane: Lane
    arrived_s: float

    @property
    def patience_until_s(self) -> float:
        """When the payload has to be here: what it holds of the limits, others need."""
        deadline_s = self.message.deadline_s
        return self.arrived_s + min(PAYLOAD_S, PAYLOAD_S if deadline_s is None else deadline_s)


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
        self._max_request_bytes = max_request_bytes
        self._users = {0, os.getuid()}
        self._sequence = itertools.count(1)
        self._connections: set[Connection] = set()
        self._incoming: dict[Connection, _Incoming] = {}
        self._requests: dict[str, tuple[Request, Connection]] = {}
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
            self._add(Connection(stream))

    def _add(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._poller.add(connection.fd, lambda bits: self._on_event(connection, bits))

    def _on_event(self, connection: Connection, bits: int) -> None:
        if connection not in self._connections:
            return  # dropped by an event before this one
        try:
            if bits & CAN_SEND:
                self._flush(connection)
            if bits & HAS_INPUT and connection in self._connections:
                self._read(connection)
        except ConnectionLost:
            if not connection.reader.is_idle:
                self._counters["connections broken inside a frame"] += 1
            self._drop(connection)
        except ProtocolError as error:
            self._counters["messages not understood"] += 1
            connection.is_closing = True
            self._fail(connection, None, error)

    def _read(self, connection: Connection) -> None:
        if connection.is_closing:
            # Read and forget until the client has read why and closes: if this side closed first,
            # a client that is still sending would only learn that the connection broke.
            connection.drain(self._scratch)
            return
        connection.read(
            self._scratch,
            lambda: self._on_message(connection),
            lambda: self._on_frame(connection),
        )

    # ---- requests

    def _on_message(self, connection: Connection) -> None:
        """The message of a frame is here: decide where its payload goes."""
        if connection not in self._connections:
            raise ConnectionLost("the client did not wait for its last answer")
        reader = connection.reader
        assert reader.message is not None
        message: ClientMessage = decode(self._codec.from_client, reader.message)
        if self._is_stopping:
            # The client sends it again to the next agent.
            raise ConnectionLost("the agent is stopping")
        if not isinstance(message, Infer):
            if reader.payload_bytes:
                raise ProtocolError(f"{type(message).__name__} with a payload")
            self._control.handle(message, self._reply_to(connection))
            return
        try:
            lane, outputs = self._admit(message, reader.payload_bytes)
            self._limits.take(reader.payload_bytes)
        except EdgeAgentError as error:
            self._counters["requests refused"] += 1
            self._fail(connection, message.request, error)
            reader.discard()
            return
        self._incoming[connection] = _Incoming(message, outputs, lane, clock.monotonic_s())
        reader.accept_new()

    def _admit(self, message: Infer, payload_bytes: int) -> tuple[Lane, tuple[str, ...]]:
        if payload_bytes > self._max_request_bytes:
            raise BadRequest(
                f"the inputs have {payload_bytes} bytes, want at most {self._max_request_bytes}: "
                "send less, or raise max_request_bytes under [limits] in the config file"
            )
        lane = self._lanes.find(message.model)
        if lane.quarantine is not None:
            raise ModelQuarantined(lane.quarantine)
        outputs = check_request(message, payload_bytes, lane.inputs, lane.outputs)
        if message.deadline_s is not None and message.deadline_s <= 0:
            raise DeadlineExceeded(
                f"the deadline was already past ({message.deadline_s:.3f} s) on arrival"
            )
        return lane, outputs

    def _on_frame(self, connection: Connection) -> None:
        """Message and payload are here."""
        _, payload = connection.reader.take()
        incoming = self._incoming.pop(connection, None)
        if incoming is None:
            return
        message, outputs, lane = incoming.message, incoming.outputs, incoming.lane
        if lane.is_closed:
            # Unloaded or replaced while the payload was on its way.
            try:
                lane, outputs = self._admit(message, payload.nbytes)
            except EdgeAgentError as error:
                self._limits.give_back(payload.nbytes)
                self._fail(connection, message.request, error)
                return
        if message.request in self._requests:
            # The client sent it again over a new connection while it is still being answered.
            first, _ = self._requests[message.request]
            self._requests[message.request] = (first, connection)
            self._limits.give_back(payload.nbytes)
            return
        deadline_s = message.deadline_s
        request = Request(
            lane=lane,
            sequence=next(self._sequence),
            id=message.request,
            heads=message.tensors,
            outputs=outputs,
            until_s=None if deadline_s is None else incoming.arrived_s + deadline_s,
            size_bytes=payload.nbytes,
            answer=self._deliver,
            views=split_payload(payload, [h.size_bytes for h in message.tensors]),
        )
        self._requests[message.request] = (request, connection)
        self.deadlines.add(request)
        lane.put(request)

    def next_event_s(self) -> float | None:
        """When a deadline passes next, of a request or of a payload that is on its way."""
        payloads = [i.patience_until_s for i in self._incoming.values()]
        first = self.deadlines.next_s()
        return min(payloads if first is None else [*payloads, first], default=None)

    def expire(self) -> None:
        """Answer the requests whose deadline has passed, and give up payloads that do not come."""
        now_s = clock.monotonic_s()
        for request in self.deadlines.expired(now_s):
            request.lane.finish(request, DeadlineExceeded("the deadline passed before the answer"))
        for connection, incoming in list(self._incoming.items()):
            if incoming.patience_until_s <= now_s:
                self._counters["payloads that did not arrive"] += 1
                self._drop(connection)

    # ---- answers

    def _deliver(self, request: Request, outcome: Outcome) -> None:
        self._limits.give_back(request.size_bytes)
        self.answered_at_s = clock.monotonic_s()
        _, connection = self._requests.pop(request.id)
        request.views = []
        if isinstance(outcome, EdgeAgentError):
            self._fail(connection, request.id, outcome)
            return
        message = self._codec.encode(Result(request=request.id, tensors=outcome.heads))
        self._send(connection, message, outcome.tensors)

    def _fail(self, connection: Connection, request: str | None, error: EdgeAgentError) -> None:
        failure = Failure(request=request, code=error.code, message=error_text(error))
        self._send(connection, self._codec.encode(failure), [])

    def _reply_to(self, connection: Connection) -> Callable[[Message], None]:
        def reply(message: Message) -> None:
            encoded = self._codec.encode(message)
            self._post(lambda: self._send(connection, encoded, []))

        return reply

    def _send(self, connection: Connection, message: bytes, tensors: list[memoryview]) -> None:
        if connection in self._connections:
            connection.queue(message, tensors)
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            self._poller.flush(connection, and_read=len(connection.outgoing) < MAX_UNSENT_ANSWERS)
        except ConnectionLost:
            self._drop(connection)
            return
        if connection.is_closing and not connection.wants_to_send:
            connection.end_sending()

    def _drop(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._poller.remove(connection.fd)
        if self._incoming.pop(connection, None) is not None:
            self._limits.give_back(connection.reader.payload_bytes)
        connection.close()
        if not self._is_accepting and not self._is_stopping:
            self.accept_clients()
        for request, waiting in list(self._requests.values()):
            if waiting is connection:
                self._counters["requests abandoned by their client"] += 1
                request.lane.finish(request, BadRequest("the client closed the connection"))

    # ---- the end

    def stop_accepting(self) -> None:
        """Take nothing new; connections on which nothing is awaited are closed."""
        self._is_stopping = True
        self._stop_listening()
        self._listener.close()
        awaited = {connection for _, connection in self._requests.values()}
        for connection in list(self._connections):
            is_busy = connection in awaited or connection in self._incoming
            if not is_busy and not connection.wants_to_send:
                self._drop(connection)

    @property
    def has_unsent(self) -> bool:
        """Whether answers wait for their client to take them."""
        return any(connection.wants_to_send for connection in self._connections)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._connections):
            self._drop(connection)
