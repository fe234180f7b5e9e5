"""One client connection: bytes in, frames out, without ever blocking the data thread."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

from edge_agent.transport.local import ConnectionLost, send_some
from edge_agent.wire.frames import Buffer, FrameReader, frame_parts

READ_TURN_BYTES = 8 * 2**20
"""How much one connection may read before the others have their turn."""


class Connection:
    """Reads frames into the reader as bytes come, and sends queued frames as the kernel takes
    them. One thread uses it."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.reader = FrameReader()
        self.is_closing = False
        """Whether to close as soon as everything queued is sent."""
        self.outgoing: deque[list[Buffer]] = deque()

    @property
    def fd(self) -> int:
        """The descriptor to wait on."""
        return self.stream.fileno()

    @property
    def wants_to_send(self) -> bool:
        """Whether frames wait for the kernel to take them."""
        return bool(self.outgoing)

    def read_some(self) -> int:
        """Read into the reader once; bytes read, 0 if there is nothing now.

        Raises:
            ConnectionLost: the client closed, or the connection broke.
            ProtocolError: what came is no frame.
        """
        try:
            count = self.stream.recv_into(self.reader.wanted())
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if count == 0:
            raise ConnectionLost("closed by the client")
        self.reader.filled(count)
        return count

    def drain(self, scratch: memoryview) -> None:
        """Read what is there and forget it.

        Raises:
            ConnectionLost: the client closed, or the connection broke.
        """
        try:
            if self.stream.recv_into(scratch) == 0:
                raise ConnectionLost("closed by the client")
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def queue(self, message: bytes, tensors: Sequence[memoryview] = ()) -> None:
        """Append a frame to what is to be sent."""
        self.outgoing.append(frame_parts(message, tensors))

    def flush(self) -> None:
        """Send as much as the kernel takes now.

        Raises:
            ConnectionLost: the connection broke.
        """
        try:
            while self.outgoing:
                parts = self.outgoing[0]
                while parts:
                    send_some(self.stream, parts)
                self.outgoing.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def close(self) -> None:
        """Close the socket."""
        self.stream.close()
