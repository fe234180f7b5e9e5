"""One connection of the data thread: bytes in, frames out, without ever blocking it."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence

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
        """Whether nothing more is taken and, when everything queued is sent, nothing more sent."""
        self.outgoing: deque[list[Buffer]] = deque()

    @property
    def fd(self) -> int:
        """The descriptor to wait on."""
        return self.stream.fileno()

    @property
    def wants_to_send(self) -> bool:
        """Whether frames wait for the kernel to take them."""
        return bool(self.outgoing)

    def read(
        self, scratch: memoryview, on_message: Callable[[], None], on_frame: Callable[[], None]
    ) -> None:
        """Read what is there, up to a turn's worth.

        `on_message` is called when the message of a frame is here, and must accept or discard its
        payload if it has one; `on_frame` when the payload is here too, and must start the reader.

        Raises:
            ConnectionLost: the other side closed, or the connection broke.
            ProtocolError: what came is no frame.
        """
        turn = 0
        while turn < READ_TURN_BYTES:
            wanted = self.reader.wanted()
            target = scratch if wanted is None else wanted
            count = self._receive(target)
            if count == 0:
                return
            if wanted is None:
                self._feed(scratch[:count], on_message, on_frame)
            else:
                self.reader.filled(count)
                if self.reader.is_complete:
                    on_frame()
            turn += count
            if count < target.nbytes:
                return

    def _receive(self, target: memoryview) -> int:
        try:
            count = self.stream.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if count == 0:
            raise ConnectionLost("closed by the other side")
        return count

    def _feed(
        self, data: memoryview, on_message: Callable[[], None], on_frame: Callable[[], None]
    ) -> None:
        reader = self.reader
        while data.nbytes:
            had_message = reader.message is not None
            data = data[reader.feed(data) :]
            if reader.message is not None and not had_message:
                on_message()
            if reader.is_complete:
                on_frame()

    def drain(self, scratch: memoryview) -> None:
        """Read what is there and forget it.

        Raises:
            ConnectionLost: the other side closed, or the connection broke.
        """
        self._receive(scratch)

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

    def end_sending(self) -> None:
        """Tell the other side that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self.stream.close()
