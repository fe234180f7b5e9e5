"""ZeroMQ between agent and worker, one pair of one-way sockets per worker.

Requests go agent → worker on PUSH/PULL, answers worker → agent on another PUSH/PULL. One-way
sockets let the threads of a worker take turns at receiving while others send. The agent never
sends more than a window of requests that it waits for, so no queue grows here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import zmq

from edge_agent.wire.frames import Buffer

HIGH_WATER_MARK = 64
"""Messages; above the window of requests in flight, so sends do not block."""


class Link:
    """The agent's end: sends requests, receives answers, never blocks. One thread owns it."""

    def __init__(self, context: Context, folder: Path, name: str) -> None:
        self._paths = (folder / f"{name}.q", folder / f"{name}.a")
        self.requests_address, self.answers_address = (f"ipc://{p}" for p in self._paths)
        previous = os.umask(0o177)
        try:
            self._push = context.socket(zmq.PUSH)
            self._push.bind(self.requests_address)
            self._pull = context.socket(zmq.PULL)
            self._pull.bind(self.answers_address)
        finally:
            os.umask(previous)

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when answers may have arrived (edge-triggered)."""
        return int(self._pull.getsockopt(zmq.FD))

    def send(self, message: bytes, tensors: Sequence[Buffer]) -> bool:
        """Send one request; False if the queue is full. Buffers must not change until answered."""
        try:
            self._push.send_multipart([message, *tensors], flags=zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def receive(self) -> tuple[memoryview, list[memoryview]] | None:
        """The next answer: its message and its tensors, or None."""
        try:
            frames = self._pull.recv_multipart(flags=zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return frames[0].buffer, [f.buffer for f in frames[1:]]

    def close(self) -> None:
        """Close both sockets and remove their files."""
        self._push.close(linger=0)
        self._pull.close(linger=0)
        for path in self._paths:
            path.unlink(missing_ok=True)


class WorkerLink:
    """The worker's end. `receive` and `send` may be used by different threads at once, each by
    one thread at a time (the caller holds a lock around either)."""

    def __init__(self, context: Context, requests_address: str, answers_address: str) -> None:
        self._pull = context.socket(zmq.PULL)
        self._pull.connect(requests_address)
        self._push = context.socket(zmq.PUSH)
        self._push.connect(answers_address)

    def receive(self) -> tuple[memoryview, list[memoryview]]:
        """Wait for the next request: its message and its tensors."""
        frames = self._pull.recv_multipart(copy=False)
        return frames[0].buffer, [f.buffer for f in frames[1:]]

    def send(self, message: bytes, tensors: Sequence[Buffer] = ()) -> None:
        """Send one answer; the buffers must stay unchanged."""
        self._push.send_multipart([message, *tensors], copy=False)

    def close(self, linger_s: float) -> None:
        """Close, waiting at most `linger_s` seconds for answers that were not yet taken."""
        self._pull.close(linger=0)
        self._push.close(linger=int(linger_s * 1e3))


class Context:
    """Owns ZeroMQ's input and output thread in this process."""

    def __init__(self) -> None:
        self._context = zmq.Context(io_threads=1)

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        """A socket that drops unsent messages on close and queues a bounded number."""
        made = self._context.socket(kind)
        made.set(zmq.LINGER, 0)
        made.set(zmq.SNDHWM, HIGH_WATER_MARK)
        made.set(zmq.RCVHWM, HIGH_WATER_MARK)
        return made

    def close(self) -> None:
        """End the input and output thread; all sockets must be closed."""
        self._context.term()


def version() -> str:
    """Versions of pyzmq and libzmq."""
    return f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}"
