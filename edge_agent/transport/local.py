"""Frames over AF_UNIX stream sockets: connect, listen, send and receive.

Addresses longer than the kernel takes (107 bytes) are refused with the length named.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from edge_agent import clock
from edge_agent.errors import AgentUnavailable, DeadlineExceeded, ProtocolError, UsageError
from edge_agent.wire.frames import Buffer, FrameReader, frame_parts

ADDRESS_LIMIT_BYTES = 107
BUFFER_BYTES = 1 << 20
"""Kernel buffer of each direction, so that an image passes in one piece (the kernel may cap it)."""

SCRATCH_BYTES = 1 << 16
"""How much is read at once as long as it is not known where it goes."""

PATIENCE_S = 1.0
"""Longest time in one system call, after which the deadline is looked at."""

_MAX_PARTS = 512
"""Buffers for one sendmsg call; the kernel takes at most 1024."""
_TIMEVAL = struct.Struct("ll")
_CREDENTIALS = struct.Struct("3i")


class ConnectionLost(Exception):
    """The other side closed the connection, or it broke."""


def check_address(path: Path) -> None:
    """Refuse a socket path that the kernel would refuse.

    Raises:
        UsageError: the path is too long.
    """
    length = len(os.fsencode(path))
    if length > ADDRESS_LIMIT_BYTES:
        raise UsageError(
            f"socket path {path} has {length} bytes, want at most {ADDRESS_LIMIT_BYTES}: "
            "choose a shorter one with --socket"
        )


def listen(path: Path) -> socket.socket:
    """A listening socket at `path` with mode 0600; a stale file of a dead agent is replaced.

    The caller holds the lock that says no other agent lives.
    """
    check_address(path)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(previous)
    listener.listen(512)
    listener.setblocking(False)
    return listener


def widen(stream: socket.socket) -> None:
    """Ask for large kernel buffers, so that large tensors need few system calls."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


def peer_user(stream: socket.socket) -> int:
    """User id of the process at the other end."""
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def connect(path: Path) -> FrameStream:
    """A blocking connection to the agent.

    Raises:
        AgentUnavailable: nothing listens there.
    """
    check_address(path)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(os.fspath(path))
    except OSError as error:
        stream.close()
        raise AgentUnavailable(
            f"no agent answers at {path} ({error.strerror}): start one with `edge-agent serve`, "
            "or name its socket with --socket or EDGE_AGENT_SOCKET"
        ) from error
    widen(stream)
    return FrameStream(stream)


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair, one end for a child process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    widen(ours)
    widen(theirs)
    return ours, theirs


def _left_s(deadline_s: float | None) -> float:
    """Seconds that one system call may block."""
    if deadline_s is None:
        return PATIENCE_S
    left_s = deadline_s - clock.monotonic_s()
    if left_s <= 0:
        raise DeadlineExceeded("the deadline passed while waiting for the answer")
    return min(left_s, PATIENCE_S)


def send_some(stream: socket.socket, parts: list[Buffer]) -> int:
    """Send as much of `parts` as one call takes and remove it from the list; bytes sent."""
    sent = stream.sendmsg(parts[:_MAX_PARTS])
    left = sent
    done = 0
    for part in parts:
        size = len(part) if not isinstance(part, memoryview) else part.nbytes
        if left < size:
            break
        left -= size
        done += 1
    del parts[:done]
    if left:
        parts[0] = memoryview(parts[0])[left:]
    return sent


class FrameStream:
    """Whole frames over a blocking connection.

    One thread at a time may send, and one at a time receive; they may be two.
    """

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self._patience_s = 0.0
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._left = self._scratch[:0]
        self._reader = FrameReader()

    def send(
        self,
        message: bytes,
        tensors: Sequence[memoryview] = (),
        deadline_s: float | None = None,
    ) -> None:
        """Send one frame; `deadline_s` is a time of `clock.monotonic_s`.

        Raises:
            ConnectionLost: the other side is gone.
            DeadlineExceeded: it was not sent in time; the connection is of no more use.
        """
        parts = frame_parts(message, tensors)
        while parts:
            self._be_patient(_left_s(deadline_s))
            try:
                send_some(self.socket, parts)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionLost(str(error)) from error

    def _be_patient(self, patience_s: float) -> None:
        """Let the kernel end a blocking call after that long.

        Python's own timeouts cost three more system calls per message; this one is set only when
        it changes, which short deadlines alone bring about.
        """
        if patience_s != self._patience_s:
            self._patience_s = patience_s
            timeval = _TIMEVAL.pack(int(patience_s), int(patience_s % 1 * 1e6) or 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def receive(
        self, deadline_s: float | None = None, limit_bytes: int | None = None
    ) -> tuple[bytes, memoryview]:
        """Wait for one frame: its message and its payload, in a buffer of its own.

        Raises:
            ConnectionLost: the other side is gone.
            DeadlineExceeded: it did not arrive in time; the connection is of no more use.
            ProtocolError: it is no frame, or its payload is over `limit_bytes`.
        """
        reader = self._reader
        while not reader.is_complete:
            if reader.message is not None and reader.payload is None:
                _accept(reader, limit_bytes)
            if self._left.nbytes:
                self._left = self._left[reader.feed(self._left) :]
            else:
                self._read_more(deadline_s)
        return reader.take()

    def _read_more(self, deadline_s: float | None) -> None:
        wanted = self._reader.wanted()
        target = self._scratch if wanted is None else wanted
        self._be_patient(_left_s(deadline_s))
        try:
            count = self.socket.recv_into(target)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if count == 0:
            raise ConnectionLost("the other side closed the connection")
        if wanted is None:
            self._left = self._scratch[:count]
        else:
            self._reader.filled(count)

    def wait_until_closed(self) -> None:
        """Block until the other side closes the connection or dies; nothing is read."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        poll.poll()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def _accept(reader: FrameReader, limit_bytes: int | None) -> None:
    if limit_bytes is not None and reader.payload_bytes > limit_bytes:
        raise ProtocolError(f"payload of {reader.payload_bytes} bytes, want at most {limit_bytes}")
    reader.accept_new()
