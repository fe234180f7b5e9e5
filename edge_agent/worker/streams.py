"""The thread of a worker that holds its connections to the workers of other devices."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from edge_agent.answering import answering
from edge_agent.endpoints import Endpoint
from edge_agent.errors import ProtocolError, WorkerLost
from edge_agent.peers import KeyPair, PublicKey
from edge_agent.transport.data_sockets import DataSocket
from edge_agent.transport.data_switch import DataSwitch
from edge_agent.wire.frames import Buffer
from edge_agent.wire.messages import Message
from edge_agent.wire.streaming import (
    MAX_PART_BYTES,
    Credit,
    Opening,
    StreamCodec,
    Tensors,
)
from edge_agent.worker.flows import Arrived, Inflow, Outflow, Parts, Steering, cost_bytes

log = logging.getLogger(__name__)

A_TURN: Final = 16
"""Messages of one neighbour that are taken before the others have their turn."""
MAX_WAITING: Final = 4096
"""Messages without tensors that wait to be sent to one neighbour."""
_TOO_LARGE: Final = "which is more than the window of the other side"
_NOT_TAKEN: Final = "messages wait for the other side, which does not take them"

T = TypeVar("T")


class Receiver(Protocol):
    """What a stream tells, on the thread of the streams. None of it may block."""

    def opened(self, stream: Stream) -> None:
        """Both sides are there. Said before anything came."""
        ...

    def arrived(self, stream: Stream, arrived: Arrived) -> None:
        """Tensors came: `stream.release(arrived)` when they are no longer needed."""
        ...

    def steered(self, stream: Stream, message: Steering) -> None:
        """A message without tensors came."""
        ...

    def broken(self, stream: Stream, why: str, *, is_offence: bool) -> None:
        """It is over: a message is larger than the window of the other side, that one broke the
        rules (then `is_offence`), does not take what it is told, or is gone. Said once, and nothing
        after it."""
        ...


class Stream:
    """A connection to one neighbour. Its methods may be called from any thread."""

    def __init__(
        self, streams: Streams, socket: DataSocket, receiver: Receiver, window_bytes: int
    ) -> None:
        codec = streams.codec
        self.endpoint = socket.endpoint
        """Where it listens, or what it connects to."""
        self.domain = b""
        """Of a listening one."""
        self.outflow = Outflow(codec)
        """Only for the thread of the streams, as all that follows."""
        self.inflow = Inflow(codec, window_bytes)
        self.socket = socket
        self.receiver = receiver
        self.pending: Parts | None = None
        self.wants_room = False
        self.is_over = False
        self._streams = streams
        self.outflow.steer(Opening(window_bytes))

    def put(self, message: Tensors, buffers: Sequence[Buffer]) -> None:
        """Send tensors, which must stay as they are; nothing happens if the stream is over."""
        self._streams.post(self, lambda _: self.outflow.put(message, buffers))

    def steer(self, message: Message) -> None:
        """Send a message without tensors, before what waits."""
        self._streams.post(self, lambda _: self.outflow.steer(message))

    def cancel(self, run: int) -> None:
        """Do not send what is of this run and still waits."""
        self._streams.post(self, lambda _: self.outflow.cancel(run))

    def release(self, arrived: Arrived) -> None:
        """These tensors are no longer needed."""
        if self._streams.is_serving(self):
            # What came is answered at the end of the turn.
            self.inflow.release(arrived.cost_bytes)
        else:
            self._streams.post(self, lambda _: self.inflow.release(arrived.cost_bytes))

    def close(self) -> None:
        """End it; the receiver hears nothing more, but for what it is being told meanwhile."""
        if self._streams.is_here:
            self._streams.drop(self)
        else:
            self._streams.post(self, lambda _: self._streams.drop(self))


class Streams:
    """All streams of a worker."""

    def __init__(self) -> None:
        """Raises: RuntimeUnavailable: this libzmq cannot encrypt."""
        self.codec = StreamCodec()
        self._admitted: dict[bytes, PublicKey] = {}
        self._switch = DataSwitch(lambda domain, key, _: self._admitted.get(domain) == key)
        self._numbers = itertools.count(1)
        self._streams: dict[Any, Stream] = {}
        self._served: Stream | None = None
        self._posted: deque[tuple[Stream | None, Callable[[Any], object]]] = deque()
        self._is_ended = False
        self._posting = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="streams", daemon=True)
        self._thread.start()

    def listen(
        self,
        at: Endpoint,
        keys: KeyPair | None,
        admitted: PublicKey | None,
        receiver: Receiver,
        window_bytes: int,
    ) -> Stream:
        """A stream with the worker that has the key `admitted`, which will connect.

        Without keys nothing is encrypted, and whoever connects is taken.
        Raises: UsageError: the address is taken or not of this device. WorkerLost: as `_call`.
        """

        def make() -> Stream:
            domain = b"data:%d" % next(self._numbers)
            socket = self._switch.socket(MAX_PART_BYTES)
            if admitted is not None:
                self._admitted[domain] = admitted
            try:
                socket.listen(at, keys, domain)
            except BaseException:
                self._admitted.pop(domain, None)
                raise
            return self._add(socket, receiver, window_bytes, domain)

        return self._call(make)

    def dial(
        self,
        to: Endpoint,
        keys: KeyPair | None,
        server: PublicKey | None,
        receiver: Receiver,
        window_bytes: int,
    ) -> Stream:
        """A stream with the worker that listens there and has the key `server`.

        Raises: WorkerLost: as `_call`.
        """

        def make() -> Stream:
            socket = self._switch.socket(MAX_PART_BYTES)
            socket.dial(to, keys, server)
            return self._add(socket, receiver, window_bytes, b"")

        return self._call(make)

    def _add(
        self, socket: DataSocket, receiver: Receiver, window_bytes: int, domain: bytes
    ) -> Stream:
        made = Stream(self, socket, receiver, window_bytes)
        made.domain = domain
        self._switch.add(socket)
        self._streams[socket] = made
        self._pump(made)
        return made

    def _call(self, make: Callable[[], T]) -> T:
        """Run it on the thread. Raises: what it raises; WorkerLost: the thread has ended."""

        def make_unless_ended() -> T:
            if self._is_ended:
                raise WorkerLost("the worker is ending")
            return make()

        answer, run = answering(make_unless_ended)
        with self._posting:
            if self._is_ended:
                raise WorkerLost("the worker is ending")
            self._posted.append((None, lambda _: run()))
        self._switch.wake()
        return answer.result()

    def post(self, stream: Stream, action: Callable[[Any], object]) -> None:
        """Run `action` on the thread soon, and send what there is to send; not if it is over."""
        self._posted.append((stream, action))
        if not self.is_here:
            self._switch.wake()

    @property
    def is_here(self) -> bool:
        """Whether the caller is the thread of the streams."""
        return threading.get_ident() == self._thread.ident

    def is_serving(self, stream: Stream) -> bool:
        """Whether the caller is told of what came on this stream."""
        return self._served is stream and self.is_here

    def stop(self) -> None:
        """End all streams."""
        with self._posting:
            self._is_ended = True
        self._switch.wake()
        self._thread.join()

    # ---- on the thread

    def _loop(self) -> None:
        try:
            while not self._is_ended:
                eventful, ready = self._switch.wait()
                for socket in ready:
                    if (stream := self._streams.get(socket)) is not None:
                        self._guarded(stream, self._serve)
                # After the input: what came last may be what a connection ended for.
                for socket in eventful:
                    if (stream := self._streams.get(socket)) is not None:
                        self._guarded(stream, self._look)
                self._do_posted()
        finally:
            with self._posting:
                self._is_ended = True
            for stream in list(self._streams.values()):
                self.drop(stream)
            while self._posted:
                stream_or_none, action = self._posted.popleft()
                if stream_or_none is None:
                    action(None)
            self._switch.end()

    def _do_posted(self) -> None:
        touched: dict[Stream, None] = {}
        while self._posted:
            stream, action = self._posted.popleft()
            if stream is None:
                action(None)
            elif not stream.is_over:
                self._guarded(stream, action)
                touched[stream] = None
        for stream in touched:
            if not stream.is_over:
                self._guarded(stream, self._pump)

    def _guarded(self, stream: Stream, action: Callable[[Stream], object]) -> None:
        try:
            action(stream)
        except ProtocolError as error:
            self._break(stream, str(error), is_offence=True)
        except Exception as error:
            log.exception("a stream met an error of its own")
            self._break(stream, f"an error of this worker: {error}")

    def _serve(self, stream: Stream) -> None:
        if not stream.socket.is_open:
            # Before what came: it tells that both sides are there.
            self._look(stream)
        self._served = stream
        for _ in range(A_TURN):
            if stream.is_over or (parts := stream.socket.receive()) is None:
                break
            self._take(stream, parts)
        self._served = None
        if not stream.is_over:
            self._pump(stream)

    def _look(self, stream: Stream) -> None:
        was_open = stream.socket.is_open
        why = stream.socket.look()
        if stream.socket.is_open and not was_open:
            stream.receiver.opened(stream)
        if why is not None and not stream.is_over:
            self._serve(stream)
            self._break(stream, why)

    def _take(self, stream: Stream, parts: Sequence[memoryview]) -> None:
        for found in stream.inflow.take(parts):
            match found:
                case Arrived():
                    stream.receiver.arrived(stream, found)
                case Opening(window_bytes=window_bytes):
                    stream.outflow.open(window_bytes)
                case Credit(granted_bytes=granted_bytes):
                    stream.outflow.grant(granted_bytes)
                case _:
                    stream.receiver.steered(stream, found)
            if stream.is_over:
                return

    def _pump(self, stream: Stream) -> None:
        """Send what may be sent, as far as ZeroMQ takes it."""
        while True:
            parts = stream.pending or self._next(stream)
            if parts is None:
                if (large := stream.outflow.is_too_large) is not None:
                    cost = cost_bytes(large.tensors)
                    self._break(stream, f"run {large.run} needs {cost} bytes, {_TOO_LARGE}")
                    return
                break
            if not stream.socket.send(parts.parts, is_shared=parts.is_shared):
                stream.pending = parts
                if stream.outflow.steering > MAX_WAITING:
                    self._break(stream, f"{stream.outflow.steering} {_NOT_TAKEN}")
                    return
                break
            stream.pending = None
        if stream.wants_room != (stream.pending is not None):
            stream.wants_room = not stream.wants_room
            self._switch.want_room(stream.socket, wanted=stream.wants_room)

    @staticmethod
    def _next(stream: Stream) -> Parts | None:
        # Not while something waits for room: else there is one more with each turn.
        credit = stream.inflow.credit()
        if credit is not None:
            stream.outflow.steer(credit)
        return stream.outflow.next()

    def _break(self, stream: Stream, why: str, *, is_offence: bool = False) -> None:
        if stream.is_over:
            return
        self.drop(stream)
        try:
            stream.receiver.broken(stream, why, is_offence=is_offence)
        except Exception:
            log.exception("a stream could not tell of its end")

    def drop(self, stream: Stream) -> None:
        """End a stream without telling anybody."""
        if stream.is_over:
            return
        stream.is_over = True
        del self._streams[stream.socket]
        self._admitted.pop(stream.domain, None)
        self._switch.remove(stream.socket)
