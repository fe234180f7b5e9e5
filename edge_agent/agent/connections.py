"""One connection of the data thread: bytes in, frames out, without ever blocking it."""

from __future__ import annotations

import contextlib
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from edge_agent.transport.local import ConnectionLost, send_some
from edge_agent.wire.frames import Buffer, FrameReader, frame_parts, whole_frame

READ_TURN_BYTES = 8 * 2**20
"""How much one connection may read before the others have their turn."""


class Enclosed(Protocol):
    """Something whose descriptor goes with a frame; open as long as it is referred to."""

    fd: int


@dataclass(slots=True)
class Outgoing:
    """The parts of a frame, and what goes with its first byte."""

    parts: list[Buffer]
    enclosed: Enclosed | None


class Connection(ABC):
    """Reads frames into the reader as bytes come, and sends queued frames as the kernel takes
    them. One thread uses it; `scratch` may be shared by all connections of the thread."""

    def __init__(self, stream: socket.socket, scratch: memoryview) -> None:
        self.stream = stream
        self.fd = stream.fileno()
        """The descriptor to wait on."""
        self.reader = FrameReader()
        self.is_closing = False
        """Whether nothing more is taken and, when everything queued is sent, nothing more sent."""
        self.outgoing: deque[Outgoing] = deque()
        """Frames that wait for the kernel to take them."""
        self._scratch = scratch

    @abstractmethod
    def on_message(self, message: bytes, payload_bytes: int) -> bool:
        """The message of a frame is here: whether its payload is wanted."""

    @abstractmethod
    def on_payload(self, payload: Buffer) -> None:
        """The wanted payload of the last message is here too, in a buffer of its own."""

    def read(self) -> None:
        """Read what is there, up to a turn's worth.

        Raises:
            ConnectionLost: the other side closed, or the connection broke.
            ProtocolError: what came is no frame.
        """
        reader = self.reader
        turn = 0
        while turn < READ_TURN_BYTES:
            wanted = reader.wanted()
            target = self._scratch if wanted is None else wanted
            count = self.receive_into(target)
            if count == 0:
                return
            if wanted is None:
                self.take_in(self._scratch[:count])
            else:
                reader.filled(count)
                self._finish()
            turn += count
            if count < target.nbytes:
                return

    def take_in(self, data: memoryview) -> None:
        """Deal with bytes that were read.

        Raises:
            ConnectionLost, ProtocolError: as `read`.
        """
        reader = self.reader
        if reader.is_idle:
            # Most frames come whole.
            whole = whole_frame(data)
            if whole is not None:
                message, payload = whole
                if self.on_message(message, payload.nbytes):
                    self.on_payload(bytes(payload))
                return
        while data.nbytes:
            had_message = reader.message is not None
            data = data[reader.feed(data) :]
            if reader.message is None:
                return
            if not had_message:
                if self.on_message(reader.message, reader.payload_bytes):
                    reader.accept_new()
                else:
                    reader.discard()
            self._finish()

    def _finish(self) -> None:
        """Deliver the frame if it is complete."""
        reader = self.reader
        if reader.is_complete:
            is_wanted = reader.payload is not None
            _, payload = reader.take()
            if is_wanted:
                self.on_payload(payload)

    def receive_into(self, target: memoryview) -> int:
        """One read; 0 if nothing is there yet.

        Raises:
            ConnectionLost: the other side closed, or the connection broke.
        """
        try:
            count = self.receive_once(target)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if count == 0:
            raise ConnectionLost("closed by the other side")
        return count

    def receive_once(self, target: memoryview) -> int:
        """Ask the kernel for what is there; what it raises is dealt with in `receive_into`."""
        return self.stream.recv_into(target)

    def drain(self) -> None:
        """Read what is there and forget it.

        Raises:
            ConnectionLost: the other side closed, or the connection broke.
        """
        self.receive_into(self._scratch)

    def send(
        self, message: bytes, tensors: Iterable[Buffer] = (), enclosed: Enclosed | None = None
    ) -> bool:
        """Append a frame to what is to be sent, with what is enclosed, and send what the kernel
        takes now; whether nothing is left.

        Raises:
            ConnectionLost: the connection broke.
        """
        self.outgoing.append(Outgoing(frame_parts(message, tensors), enclosed))
        return self.flush()

    def flush(self) -> bool:
        """Send as much as the kernel takes now; whether nothing is left.

        Raises:
            ConnectionLost: the connection broke.
        """
        outgoing = self.outgoing
        try:
            while outgoing:
                first = outgoing[0]
                while first.parts:
                    if first.enclosed is None:
                        send_some(self.stream, first.parts)
                    else:
                        send_some(self.stream, first.parts, first.enclosed.fd)
                        first.enclosed = None
                outgoing.popleft()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        return True

    def end_sending(self) -> None:
        """Tell the other side that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self.stream.close()
