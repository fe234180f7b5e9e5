"""The data thread: one loop over client connections and workers that moves every tensor.

It is the only thread that touches connections, lanes and links; others ask it with `call`.
Everything in it is short: no disk, no waiting, no planning.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

import numpy as np

from edge_agent import clock
from edge_agent.agent.checking import check_request
from edge_agent.agent.connections import READ_TURN_BYTES, Connection
from edge_agent.agent.lanes import (
    AHEAD,
    Deadlines,
    Lane,
    Limits,
    Outcome,
    Request,
    Station,
    Success,
)
from edge_agent.errors import (
    BadRequest,
    DeadlineExceeded,
    EdgeAgentError,
    ModelQuarantined,
    ProtocolError,
    UnknownModel,
    WorkerLost,
    error_from_code,
)
from edge_agent.plans import Epoch
from edge_agent.transport import local
from edge_agent.transport.zeromq import Link
from edge_agent.wire.frames import split_payload
from edge_agent.wire.messages import (
    ClientMessage,
    Codec,
    Failure,
    Infer,
    Message,
    Ran,
    Ready,
    Result,
    Run,
    RunError,
    WorkerMessage,
    decode,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
_SCRATCH_BYTES = 1 << 18


class WorkerEvents(Protocol):
    """What the supervisor wants to hear; called on the data thread, so it must be quick."""

    def is_ready(self, ready: Ready) -> None:
        """The worker opened its sessions."""
        ...

    def is_refused(self, error: EdgeAgentError) -> None:
        """The worker could not open its sessions."""
        ...

    def is_dead(self, needs_another: bool) -> None:
        """The process ended without being told to; the lane may need another worker."""
        ...

    def is_drained(self) -> None:
        """The worker has no requests left and gets no more."""
        ...


class Control(Protocol):
    """Takes every message that is no inference request."""

    def handle(self, message: ClientMessage, reply: Callable[[Message], None]) -> None:
        """Deal with it on another thread; `reply` may be called from any thread, once."""
        ...


class _Attached:
    """A worker process as the data thread sees it."""

    def __init__(
        self, lane: Lane, epoch: Epoch, link: Link, pidfd: int, instances: int, codec: Codec
    ) -> None:
        self.lane = lane
        self.link = link
        self.pidfd = pidfd
        self.events: WorkerEvents
        self.station = Station(epoch=epoch, sender=self, window=instances + AHEAD)
        self._codec = codec

    def send(self, epoch: Epoch, request: Request) -> bool:
        message = Run(
            epoch=epoch, sequence=request.sequence, tensors=request.heads, outputs=request.outputs
        )
        return self.link.send(self._codec.encode(message), request.views)


class DataPath:
    """The data thread and everything it owns."""

    def __init__(
        self,
        listener: socket.socket,
        control: Control,
        *,
        max_requests: int,
        max_bytes: int,
        max_request_bytes: int,
    ) -> None:
        self._listener = listener
        self._control = control
        self._codec = Codec()
        self._limits = Limits(max_requests, max_bytes)
        self._max_request_bytes = max_request_bytes
        self._deadlines = Deadlines()
        self._lanes: dict[str, Lane] = {}
        self._connections: dict[int, Connection] = {}
        self._workers: dict[int, _Attached] = {}
        self._requests: dict[str, tuple[Request, Connection]] = {}
        self._incoming: dict[int, tuple[Infer, tuple[str, ...], Lane]] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._sequence = itertools.count(1)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._users = {0, os.getuid()}
        self._is_stopping = False
        self._active_at_s = clock.monotonic_s()
        self.counters: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._loop, name="data", daemon=True)

    # ---- what other threads may use

    def start(self) -> None:
        """Start the thread; clients wait until `accept_clients`."""
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread.start()

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the data thread soon."""
        self._calls.append(action)
        os.eventfd_write(self._wake_fd, 1)

    def call(self, question: Callable[[], T]) -> T:
        """Run `question` on the data thread and return what it returns."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        self.post(run)
        return answer.result()

    def quiet_for_s(self) -> float:
        """Seconds since the last request was under way; 0 while one is."""
        return 0.0 if self._limits.requests else clock.monotonic_s() - self._active_at_s

    def load(self) -> tuple[int, int, int]:
        """Requests in flight, their bytes, and connections."""
        return self._limits.requests, self._limits.bytes, len(self._connections)

    def stop(self, timeout_s: float) -> None:
        """Take nothing new, answer what is in flight for at most `timeout_s`, close everything."""
        until_s = clock.monotonic_s() + timeout_s
        self.post(self._stop_accepting)
        while clock.monotonic_s() < until_s and (self._limits.requests or self.call(self._unsent)):
            clock.sleep_s(0.01)
        self.post(self._end)
        self._thread.join()

    def accept_clients(self) -> None:
        """Take the connections that wait and that come; on the data thread."""
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    # ---- lanes and workers; on the data thread (through `call` or `post`)

    def add_lane(self, lane: Lane) -> None:
        """Accept requests for a model, in place of the lane that had its name."""
        before = self._lanes.get(lane.name)
        if before is not None:
            before.is_closed = True
        self._lanes[lane.name] = lane

    def lane(self, name: str) -> Lane:
        """The lane of that name.

        Raises:
            UnknownModel: there is none.
        """
        try:
            return self._lanes[name]
        except KeyError:
            loaded = ", ".join(sorted(self._lanes)) or "none"
            raise UnknownModel(f'model "{name}" is not loaded; loaded: {loaded}') from None

    def remove_lane(self, name: str) -> Lane:
        """Take no more requests for a model."""
        lane = self.lane(name)
        lane.is_closed = True
        del self._lanes[name]
        return lane

    def attach(
        self, lane: Lane, epoch: Epoch, link: Link, pid: int, instances: int, events: WorkerEvents
    ) -> Station:
        """Watch a worker process that was just started."""
        pidfd = os.pidfd_open(pid)
        worker = _Attached(lane, epoch, link, pidfd, instances, self._codec)
        worker.events = events
        for fd in (link.fd, pidfd):
            self._workers[fd] = worker
            self._epoll.register(fd, select.EPOLLIN)
        self._take_answers(worker)
        return worker.station

    def cut_over(self, lane: Lane, station: Station) -> None:
        """Let `station` serve; the worker before it drains and is retired.

        Raises:
            WorkerLost: the worker died since it was ready.
        """
        if self._worker_of(station) is None:
            raise WorkerLost("the worker died before it served")
        old = lane.cut_over(station)
        if old is not None:
            self._retire_if_drained(self._worker_of(old))

    def retire(self, lane: Lane, station: Station) -> None:
        """Take a worker out of its lane: it ends when what it has is answered."""
        if lane.active is station:
            lane.active = None
            lane.draining.append(station)
        self._retire_if_drained(self._worker_of(station))

    def _worker_of(self, station: Station) -> _Attached | None:
        for worker in self._workers.values():
            if worker.station is station:
                return worker
        return None

    def _retire_if_drained(self, worker: _Attached | None) -> None:
        if worker is None or worker.station.has or worker.station is worker.lane.active:
            return
        if worker.station in worker.lane.draining:
            worker.lane.draining.remove(worker.station)
        self._detach(worker)
        worker.events.is_drained()

    def _detach(self, worker: _Attached) -> None:
        for fd in (worker.link.fd, worker.pidfd):
            self._epoll.unregister(fd)
            del self._workers[fd]
        os.close(worker.pidfd)
        worker.link.close()

    # ---- the loop

    def _loop(self) -> None:
        while not (self._is_stopping and self._listener.fileno() < 0):
            for fd, event in self._epoll.poll(self._timeout_s()):
                try:
                    self._handle(fd, event)
                except Exception:
                    log.exception("the data thread met an error of its own")
                    self.counters["internal errors"] += 1
            self._run_calls()
            for request in self._deadlines.expired(clock.monotonic_s()):
                request.lane.finish(
                    request, DeadlineExceeded("the deadline passed before the answer")
                )

    def _timeout_s(self) -> float:
        next_s = self._deadlines.next_s()
        if next_s is None:
            return -1.0
        return max(0.0, next_s - clock.monotonic_s()) + 1e-3

    def _handle(self, fd: int, event: int) -> None:
        connection = self._connections.get(fd)
        if connection is not None:
            self._serve(connection, event)
        elif fd in self._workers:
            worker = self._workers[fd]
            if fd == worker.pidfd:
                self._bury(worker)
            else:
                self._take_answers(worker)
        elif fd == self._wake_fd:
            os.eventfd_read(self._wake_fd)
        elif fd == self._listener.fileno():
            self._accept()

    def _run_calls(self) -> None:
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("the data thread met an error of its own")
                self.counters["internal errors"] += 1

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            if local.peer_user(stream) not in self._users:
                self.counters["connections of other users refused"] += 1
                stream.close()
                continue
            stream.setblocking(False)
            local.widen(stream)
            connection = Connection(stream)
            self._connections[connection.fd] = connection
            self._epoll.register(connection.fd, select.EPOLLIN)

    def _serve(self, connection: Connection, event: int) -> None:
        try:
            if event & select.EPOLLOUT:
                self._flush(connection)
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._read(connection)
        except local.ConnectionLost:
            if not connection.reader.is_idle:
                self.counters["connections broken inside a frame"] += 1
            self._drop(connection)
        except ProtocolError as error:
            self.counters["messages not understood"] += 1
            self._fail(connection, None, error)
            connection.is_closing = True
            self._settle(connection)

    def _read(self, connection: Connection) -> None:
        if connection.is_closing:
            # Read and forget: closing with unread bytes would throw away the answer on its way.
            connection.drain(self._scratch)
            return
        reader = connection.reader
        turn = 0
        while turn < READ_TURN_BYTES:
            count = connection.read_some()
            if count == 0:
                return
            turn += count
            if reader.message is not None and reader.payload is None:
                self._on_message(connection)
            if reader.is_complete:
                self._on_frame(connection)

    def _on_message(self, connection: Connection) -> None:
        """The message of a frame is here: decide where its payload goes."""
        reader = connection.reader
        if connection.fd in self._incoming:
            return
        assert reader.message is not None
        message = decode(self._codec.from_client, reader.message)
        if reader.payload_bytes > self._max_request_bytes:
            raise ProtocolError(
                f"payload of {reader.payload_bytes} bytes, the limit is {self._max_request_bytes}"
            )
        if not isinstance(message, Infer):
            if reader.payload_bytes:
                raise ProtocolError(f"{type(message).__name__} with a payload")
            self._control.handle(message, self._reply_to(connection))
            return
        if self._is_stopping:
            # The client sends it again to the next agent.
            raise local.ConnectionLost("the agent is stopping")
        try:
            lane = self.lane(message.model)
            if lane.quarantine is not None:
                raise ModelQuarantined(lane.quarantine)
            outputs = check_request(message, reader.payload_bytes, lane.inputs, lane.outputs)
            if message.deadline_s is not None and message.deadline_s <= 0:
                raise DeadlineExceeded(
                    f"the deadline was already past ({message.deadline_s:.3f} s) on arrival"
                )
            self._limits.take(reader.payload_bytes)
        except EdgeAgentError as error:
            self.counters["requests refused"] += 1
            self._fail(connection, message.request, error)
            reader.discard(self._scratch)
            return
        self._incoming[connection.fd] = (message, outputs, lane)
        reader.accept(memoryview(np.empty(reader.payload_bytes, np.uint8).data))

    def _on_frame(self, connection: Connection) -> None:
        """Message and payload are here."""
        reader = connection.reader
        payload = reader.payload if reader.payload is not None else memoryview(b"")
        reader.start()
        incoming = self._incoming.pop(connection.fd, None)
        if incoming is None:
            return
        message, outputs, lane = incoming
        if lane.is_closed:
            # Unloaded or replaced while the payload was on its way.
            try:
                lane = self.lane(message.model)
                outputs = check_request(message, payload.nbytes, lane.inputs, lane.outputs)
            except EdgeAgentError as error:
                self._limits.give_back(payload.nbytes)
                self._fail(connection, message.request, error)
                return
        deadline_s = message.deadline_s
        request = Request(
            lane=lane,
            sequence=next(self._sequence),
            id=message.request,
            heads=message.tensors,
            outputs=outputs,
            until_s=None if deadline_s is None else clock.monotonic_s() + deadline_s,
            size_bytes=payload.nbytes,
            answer=self._deliver,
            views=split_payload(payload, [h.size_bytes for h in message.tensors]),
        )
        if message.request in self._requests:
            # The client sent it again over a new connection while it is still being answered.
            first, _ = self._requests[message.request]
            self._requests[message.request] = (first, connection)
            self._limits.give_back(request.size_bytes)
            return
        self._requests[message.request] = (request, connection)
        self._deadlines.add(request)
        lane.put(request)

    # ---- answers

    def _deliver(self, request: Request, outcome: Outcome) -> None:
        self._limits.give_back(request.size_bytes)
        self._active_at_s = clock.monotonic_s()
        _, connection = self._requests.pop(request.id)
        request.views = []
        if isinstance(outcome, EdgeAgentError):
            self._fail(connection, request.id, outcome)
            return
        message = self._codec.encode(Result(request=request.id, tensors=outcome.heads))
        self._send(connection, message, outcome.tensors)

    def _fail(self, connection: Connection, request: str | None, error: EdgeAgentError) -> None:
        failure = Failure(request=request, code=error.code, message=str(error)[:60000])
        self._send(connection, self._codec.encode(failure))

    def _reply_to(self, connection: Connection) -> Callable[[Message], None]:
        def reply(message: Message) -> None:
            encoded = self._codec.encode(message)
            self.post(lambda: self._send(connection, encoded))

        return reply

    def _send(
        self, connection: Connection, message: bytes, tensors: list[memoryview] | None = None
    ) -> None:
        if self._connections.get(connection.fd) is not connection:
            return
        connection.queue(message, tensors or ())
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush()
        except local.ConnectionLost:
            self._drop(connection)
            return
        self._settle(connection)

    def _settle(self, connection: Connection) -> None:
        if connection.wants_to_send:
            self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
        elif connection.is_closing:
            self._drop(connection)
        else:
            self._epoll.modify(connection.fd, select.EPOLLIN)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.fd, None) is None:
            return
        self._epoll.unregister(connection.fd)
        incoming = self._incoming.pop(connection.fd, None)
        if incoming is not None:
            self._limits.give_back(connection.reader.payload_bytes)
        connection.close()
        for request, waiting in list(self._requests.values()):
            if waiting is connection:
                self.counters["requests abandoned by their client"] += 1
                request.lane.finish(request, BadRequest("the client closed the connection"))

    def _take_answers(self, worker: _Attached) -> None:
        while True:
            received = worker.link.receive()
            if received is None:
                break
            raw, tensors = received
            message: WorkerMessage = decode(self._codec.from_worker, raw)
            match message:
                case Ready() as ready:
                    worker.events.is_ready(ready)
                case RunError(sequence=-1, code=code, message=text):
                    worker.events.is_refused(error_from_code(code, text))
                case RunError(sequence=sequence, code=code, message=text):
                    worker.lane.answered_by(worker.station, sequence, error_from_code(code, text))
                case Ran(sequence=sequence, tensors=heads):
                    worker.lane.answered_by(worker.station, sequence, Success(heads, tensors))
        self._retire_if_drained_and_draining(worker)

    def _retire_if_drained_and_draining(self, worker: _Attached) -> None:
        if worker.station in worker.lane.draining:
            self._retire_if_drained(worker)

    def _bury(self, worker: _Attached) -> None:
        """A worker process ended by itself: take its last answers, then run the rest again."""
        self._take_answers(worker)
        if worker.pidfd not in self._workers:
            return
        self.counters["workers lost"] += 1
        needs_another = worker.lane.lost(worker.station)
        self._detach(worker)
        worker.events.is_dead(needs_another)

    # ---- the end

    def _stop_accepting(self) -> None:
        self._is_stopping = True
        self._epoll.unregister(self._listener.fileno())
        for connection in list(self._connections.values()):
            busy = any(c is connection for _, c in self._requests.values())
            if not busy and connection.fd not in self._incoming and not connection.wants_to_send:
                self._drop(connection)

    def _unsent(self) -> bool:
        return any(c.wants_to_send for c in self._connections.values())

    def _end(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        for worker in set(self._workers.values()):
            self._detach(worker)
        self._listener.close()
