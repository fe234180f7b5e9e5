"""Knows how one end of a connection sends or receives tensors, alone in its process.

An end is `python -m bench.streamed SPEC`. It says on stdout where it listens, or that it is
connected, and then answers one line of JSON per line of JSON on stdin, until that ends. A run
begins when the receiving end asks the sending one over the connection, and that is when its clock
starts; it ends when the last tensor is whole. Neither end looks at what is in the tensors.

Raw ends are a plain socket: `sendall` of the same buffer again and again, and `recv_into` until a
tensor is whole, with TCP_NODELAY as ZeroMQ has it. With 1 as `rooms` of a run, every tensor is
received over the one before it, so that nothing is left of it; with n, into one of n buffers in
turn, so that it stays as it is while n - 1 others arrive. All buffers are written once before the
first run. Ends that are not raw are `edge_agent.worker.streams`, and give every tensor back as soon
as it is whole.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol, TextIO

import numpy as np

from bench.repeated import busy_s
from edge_agent import clock
from edge_agent.endpoints import Endpoint
from edge_agent.peers import SecretKey
from edge_agent.plans import Epoch
from edge_agent.simulation.network import Transport
from edge_agent.subgraphs import ModelId
from edge_agent.transport.curve import keys_of
from edge_agent.wire.arrays import pack_arrays
from edge_agent.wire.streaming import HEAD_BYTES, Cancel, Tensors
from edge_agent.worker.flows import Arrived, Steering
from edge_agent.worker.streams import Stream, Streams

EPOCH = Epoch(owner="bench", incarnation=1, model=ModelId("0" * 64), number=1)
OPEN_S = 20.0
_SIGN = b"!"
"""Of a raw end: go on, or, all is here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSpec:
    """What an end is."""

    is_raw: bool
    sends: bool
    host: str
    """Of the receiving end, which listens."""
    port: int = 0
    size_bytes: int
    """Of a tensor; a multiple of 8."""
    is_encrypted: bool = False

    def to_json(self) -> str:
        """The argument of `python -m bench.streamed`."""
        return json.dumps(asdict(self))


def window_bytes(size_bytes: int) -> int:
    """What a stream of such tensors takes at once, as the simulator of plans has it."""
    transport = Transport()
    messages_bytes = transport.window_messages * (size_bytes + HEAD_BYTES)
    return max(transport.window_bytes, messages_bytes)


def window_tensors(size_bytes: int) -> int:
    """How many of such tensors fit into that at once."""
    return window_bytes(size_bytes) // (size_bytes + HEAD_BYTES)


class End(Protocol):
    """One end of a connection."""

    @property
    def port(self) -> int:
        """Where it listens, or what it is connected to."""
        ...

    def wait(self) -> None:
        """Wait until the receiving end asks for tensors."""
        ...

    def send(self, count: int) -> None:
        """Send so many; returns when the other end has them."""
        ...

    def receive(self, count: int, rooms: int) -> float:
        """Ask for so many; the seconds until they are here."""
        ...


class RawEnd:
    """An end that is a socket."""

    def __init__(self, spec: EndSpec) -> None:
        self._listener: socket.socket | None = None
        self._connected: socket.socket | None = None
        self._tensor = _tensor(spec.size_bytes).data.cast("B")
        self._rooms: list[memoryview] = []
        if spec.sends:
            self._connected = socket.create_connection((spec.host, spec.port))
            _hurry(self._connected)
            self.port = spec.port
        else:
            self._listener = socket.create_server((spec.host, spec.port))
            self.port = self._listener.getsockname()[1]
            rooms = window_tensors(spec.size_bytes)
            self._rooms = [memoryview(bytearray(spec.size_bytes)) for _ in range(rooms)]

    def wait(self) -> None:
        """See `End`."""
        _take_sign(self._connection)

    def send(self, count: int) -> None:
        """See `End`."""
        connection, tensor = self._connection, self._tensor
        for _ in range(count):
            connection.sendall(tensor)
        _take_sign(connection)

    def receive(self, count: int, rooms: int) -> float:
        """See `End`."""
        connection = self._connection
        start_s = clock.precise_s()
        connection.sendall(_SIGN)
        for i in range(count):
            room, whole = self._rooms[i % rooms], len(self._tensor)
            got = 0
            while got < whole:
                some = connection.recv_into(room[got:])
                if not some:
                    raise ConnectionError("the sending end is gone")
                got += some
        took_s = clock.precise_s() - start_s
        connection.sendall(_SIGN)
        return took_s

    @property
    def _connection(self) -> socket.socket:
        if self._connected is None:
            assert self._listener is not None
            self._connected, _ = self._listener.accept()
            _hurry(self._connected)
        return self._connected

    def close(self) -> None:
        """End the connection."""
        for one in (self._connected, self._listener):
            if one is not None:
                one.close()


class StreamEnd:
    """An end that is a stream of a worker. What it hears comes on the thread of the streams."""

    def __init__(self, spec: EndSpec) -> None:
        self._heads, self._buffers = pack_arrays({"x": _tensor(spec.size_bytes)})
        self._opened, self._told = threading.Event(), threading.Semaphore(0)
        self._left = 0
        self._whole_s = 0.0
        self._why = ""
        sender, receiver = (keys_of(SecretKey(bytes([n]) * 32)) for n in (1, 2))
        self._streams = Streams()
        window = window_bytes(spec.size_bytes)
        at = Endpoint(host=spec.host, port=spec.port)
        if spec.sends:
            own, other = (sender, receiver.public) if spec.is_encrypted else (None, None)
            self._stream = self._streams.dial(at, own, other, self, window)
        else:
            own, other = (receiver, sender.public) if spec.is_encrypted else (None, None)
            self._stream = self._streams.listen(at, own, other, self, window)
        self.port = self._stream.endpoint.port

    def wait(self) -> None:
        """See `End`."""
        self._wait_until_told()

    def send(self, count: int) -> None:
        """See `End`."""
        for run in range(count):
            message = Tensors(
                epoch=EPOCH,
                run=run,
                source=0,
                target=1,
                tensors=self._heads,
                left_s=None,
                narrowed=(),
            )
            self._stream.put(message, self._buffers)
        self._wait_until_told()

    def receive(self, count: int, rooms: int) -> float:
        """See `End`."""
        del rooms
        if not self._opened.wait(OPEN_S):
            raise ConnectionError("the sending end does not come")
        self._left = count
        start_s = clock.precise_s()
        self._sign()
        self._wait_until_told()
        took_s = self._whole_s - start_s
        self._sign()
        return took_s

    def _sign(self) -> None:
        # Any message without tensors that means nothing here.
        self._stream.steer(Cancel(epoch=EPOCH, run=0))

    def _wait_until_told(self) -> None:
        self._told.acquire()
        if self._why:
            raise ConnectionError(self._why)

    def opened(self, _: Stream) -> None:
        """See `Receiver`."""
        self._opened.set()

    def arrived(self, stream: Stream, arrived: Arrived) -> None:
        """See `Receiver`."""
        stream.release(arrived)
        self._left -= 1
        if not self._left:
            self._whole_s = clock.precise_s()
            self._told.release()

    def steered(self, _: Stream, message: Steering) -> None:
        """See `Receiver`."""
        del message
        self._told.release()

    def broken(self, _: Stream, why: str, *, is_offence: bool) -> None:
        """See `Receiver`."""
        del is_offence
        self._why = why
        self._told.release()

    def close(self) -> None:
        """End the connection."""
        self._streams.stop()


@contextmanager
def opened(spec: EndSpec) -> Iterator[End]:
    """The end, which is closed behind the block."""
    end = RawEnd(spec) if spec.is_raw else StreamEnd(spec)
    try:
        yield end
    finally:
        end.close()


def serve(end: End, sends: bool, lines: TextIO, answers: TextIO) -> None:
    """Answer commands until there are no more."""

    def say(answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say(end.port)
    for line in lines:
        command = json.loads(line)
        count = int(command["count"])
        start_s = busy_s()
        if sends:
            say("waiting")
            end.wait()
            end.send(count)
            say({"processor_s": busy_s() - start_s})
        else:
            took_s = end.receive(count, int(command["rooms"]))
            say({"took_s": took_s, "processor_s": busy_s() - start_s})


def _tensor(size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(0).random(size_bytes // 8)


def _hurry(connection: socket.socket) -> None:
    # A sign must not wait until the one before it is confirmed, which may take 40 ms.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _take_sign(connection: socket.socket) -> None:
    if not connection.recv(len(_SIGN)):
        raise ConnectionError("the other end is gone")


def main(text: str) -> None:
    """Be the end."""
    spec = EndSpec(**json.loads(text))
    with opened(spec) as end:
        serve(end, spec.sends, sys.stdin, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
