"""Frames over AF_UNIX stream sockets: connect, listen, send and receive.

Addresses longer than the kernel takes (107 bytes) are refused with the length named.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_agent import clock
from edge_agent.errors import AgentUnavailable, DeadlineExceeded, UsageError
from edge_agent.wire.frames import (
    Buffer,
    FrameReader,
    frame_parts,
    joined_frame,
    nbytes,
    whole_frame,
)

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
_TOO_LATE = "the deadline passed while waiting for the answer"
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")
# No more than one fits: the kernel closes others.
_ONE_DESCRIPTOR_BYTES = socket.CMSG_LEN(_DESCRIPTOR.size)


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


def send_some(stream: socket.socket, parts: list[Buffer], descriptor: int | None = None) -> None:
    """Send as much of `parts` as one call takes, with a copy of `descriptor`, and remove it from
    the list."""
    some = parts if len(parts) <= _MAX_PARTS else parts[:_MAX_PARTS]
    if descriptor is None:
        left = stream.sendmsg(some)
    else:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))
        left = stream.sendmsg(some, [rights])
    done = 0
    for part in parts:
        size = nbytes(part)
        if left < size:
            break
        left -= size
        done += 1
    del parts[:done]
    if left:
        # numpy takes items of types that `memoryview.cast` does not know.
        parts[0] = np.frombuffer(parts[0], np.uint8).data[left:]


def receive_some(stream: socket.socket, target: memoryview) -> tuple[int, int | None]:
    """What is there, at most as much as `target` takes, and the descriptor that came with it."""
    count, ancillary, _, _ = stream.recvmsg_into(
        [target], _ONE_DESCRIPTOR_BYTES, socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind, len(data)) == (
            socket.SOL_SOCKET,
            socket.SCM_RIGHTS,
            _DESCRIPTOR.size,
        ):
            return count, _DESCRIPTOR.unpack(data)[0]
    return count, None


class FrameStream:
    """Whole frames over a blocking connection.

    One thread at a time may send, and one at a time receive; they may be two.
    """

    def __init__(self, stream: socket.socket, *, takes_descriptors: bool = False) -> None:
        self.socket = stream
        self.descriptors: deque[int] = deque()
        """What came with the frames and nobody has taken yet, in their order."""
        self._takes_descriptors = takes_descriptors
        self._patience_s = 0.0
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._left = self._scratch[:0]
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)

    @property
    def holds_more(self) -> bool:
        """Whether bytes of the next frame were read already: the socket need not have more."""
        return self._left.nbytes > 0 or not self._reader.is_idle

    def send(
        self,
        message: bytes,
        tensors: Sequence[Buffer] = (),
        deadline_s: float | None = None,
        descriptor: int | None = None,
    ) -> None:
        """Send one frame, with a copy of `descriptor`; `deadline_s` is a time of
        `clock.monotonic_s`.

        Raises:
            ConnectionLost: the other side is gone.
            DeadlineExceeded: it was not sent in time; the connection is of no more use.
        """
        if tensors or descriptor is not None:
            parts = frame_parts(message, tensors)
        else:
            parts = self._send_at_once(joined_frame(message), deadline_s)
        while parts:
            self._be_patient(deadline_s)
            try:
                send_some(self.socket, parts, descriptor)
                descriptor = None
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionLost(str(error)) from error

    def _send_at_once(self, whole: bytes, deadline_s: float | None) -> list[Buffer]:
        """What the kernel does not take at once."""
        if deadline_s is not None and clock.monotonic_s() >= deadline_s:
            raise DeadlineExceeded(_TOO_LATE)
        try:
            sent = self.socket.send(whole, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        return [whole[sent:]] if sent < len(whole) else []

    def is_coming(self, until_s: float) -> bool:
        """Whether a frame, or the end of the connection, is there by then, a time of
        `clock.monotonic_s`."""
        left_s = max(0.0, until_s - clock.monotonic_s())
        return self.holds_more or bool(self._poll.poll(math.ceil(1e3 * left_s)))

    def _wait_for_frame(self, deadline_s: float | None) -> None:
        """Block until the first bytes of a frame are here.

        Not with a blocking read: the kernel would wake this thread also when the other side takes
        what was sent before, which is when the other side wants the processor. And not in one
        wait without end: a signal that comes just before the kernel call does not interrupt it, so
        that Ctrl-C would be lost.
        """
        left_s = PATIENCE_S
        while True:
            if deadline_s is not None:
                left_s = min(PATIENCE_S, max(0.0, deadline_s - clock.monotonic_s()))
            if self._poll.poll(math.ceil(1e3 * left_s)):
                return
            if deadline_s is not None and clock.monotonic_s() >= deadline_s:
                raise DeadlineExceeded(_TOO_LATE)

    def _be_patient(self, deadline_s: float | None) -> None:
        """Let the kernel end the next blocking call in time to look at the deadline.

        Python's own timeouts cost three more system calls per message; this one is set only when
        it changes, which short deadlines alone bring about.
        """
        patience_s = PATIENCE_S
        if deadline_s is not None:
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                raise DeadlineExceeded(_TOO_LATE)
            patience_s = min(left_s, PATIENCE_S)
        if patience_s != self._patience_s:
            self._patience_s = patience_s
            timeval = _TIMEVAL.pack(int(patience_s), int(patience_s % 1 * 1e6) or 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def receive(self, deadline_s: float | None = None) -> tuple[bytes, Buffer]:
        """Wait for one frame: its message and its payload, in a buffer of its own.

        Raises:
            ConnectionLost: the other side is gone.
            DeadlineExceeded: it did not arrive in time; the connection is of no more use.
            ProtocolError: it is no frame.
        """
        reader = self._reader
        if reader.is_idle and not self._left.nbytes:
            self._wait_for_frame(deadline_s)
            self._read_more()
            # Most frames come whole.
            whole = whole_frame(self._left)
            if whole is not None:
                message, payload = whole
                self._left = self._left[:0]
                return message, bytearray(payload)
        while True:
            if self._left.nbytes:
                self._left = self._left[reader.feed(self._left) :]
            else:
                self._be_patient(deadline_s)
                self._read_more()
            if reader.message is not None:
                if reader.is_complete:
                    return reader.take()
                if reader.payload is None:
                    reader.accept_new()

    def _read_more(self) -> None:
        wanted = self._reader.wanted()
        try:
            if self._takes_descriptors and wanted is None:
                count, descriptor = receive_some(self.socket, self._scratch)
                if descriptor is not None:
                    self.descriptors.append(descriptor)
            else:
                count = self.socket.recv_into(self._scratch if wanted is None else wanted)
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
