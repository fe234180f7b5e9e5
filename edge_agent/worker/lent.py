"""A client's connection while it is lent to the worker: reads what the client asks again and
again, and answers it, without the agent.

Whatever is not exactly that goes back to the agent with every byte that was read: it alone knows
what to do with other requests, with half a frame, or with a client that does not take its answer.
"""

from __future__ import annotations

import socket

from edge_agent.errors import ProtocolError
from edge_agent.tensors import Arrays
from edge_agent.wire.arrays import payload_bytes, unpack_arrays
from edge_agent.wire.frames import joined_frame, whole_frame
from edge_agent.wire.lending import Lend
from edge_agent.wire.messages import (
    ClientMessage,
    Codec,
    Infer,
    decode,
)


class NotAsLent(Exception):
    """What came is not what the connection was lent for; it is the agent's, with `read`."""

    def __init__(self, read: bytes = b"") -> None:
        super().__init__("not what the connection was lent for")
        self.read = read


class LentConnection:
    """One connection. One thread at a time reads it, and one answers on it."""

    def __init__(
        self, stream: socket.socket, lend: Lend, memory: memoryview | None, codec: Codec
    ) -> None:
        """`memory` is where the place of the requests lies, if they have one.

        Raises:
            ProtocolError: the place does not fit into it.
        """
        self.stream = stream
        self.number = lend.connection
        self.outputs = lend.outputs
        self.is_running = False
        """Whether a request that came on it has no answer yet."""
        self.must_return = False
        """Whether it goes back to the agent after that answer."""
        self.room = memoryview(b"")
        self._asked = (lend.model, lend.tensors, lend.wanted, lend.place)
        self._payload_bytes = payload_bytes(lend.tensors)
        self._codec = codec
        self._placed: Arrays | None = None
        if lend.place is not None:
            place = lend.place
            if memory is None or memory.nbytes < place.end:
                raise ProtocolError(f"connection lent with a place that is not here: {place}")
            # The same for every request: the client writes its inputs where these look.
            self._placed = unpack_arrays(lend.tensors, memory[: place.inputs_bytes])
            self._payload_bytes = 0
            self.room = memory[place.outputs_at : place.end]

    def read(self, scratch: memoryview) -> tuple[Infer, Arrays] | None:
        """The request that came, with its inputs; None if nothing did.

        Raises:
            NotAsLent: something else came, or the client has closed the connection.
        """
        try:
            count = self.stream.recv_into(scratch)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            raise NotAsLent from None  # the agent meets the same, and ends the connection
        if count == 0:
            raise NotAsLent
        read = scratch[:count]
        try:
            frame = whole_frame(read)
            if frame is None:
                raise NotAsLent(bytes(read))
            message, payload = frame
            infer: ClientMessage = decode(self._codec.from_client, message)
        except ProtocolError:
            raise NotAsLent(bytes(read)) from None
        if not isinstance(infer, Infer) or not self._is_as_lent(infer, payload.nbytes):
            raise NotAsLent(bytes(read))
        if self._placed is not None:
            return infer, self._placed
        return infer, unpack_arrays(infer.tensors, bytes(payload))

    def _is_as_lent(self, infer: Infer, size_bytes: int) -> bool:
        return (
            (infer.model, infer.tensors, infer.outputs, infer.place) == self._asked
            and size_bytes == self._payload_bytes
            and (infer.deadline_s is None or infer.deadline_s > 0)
        )

    def answer(self, message: bytes, tensors: list[memoryview]) -> bytes:
        """Send a frame; what the kernel does not take at once."""
        # In one piece, so that what is left is one too; large outputs have a place of their own.
        whole = joined_frame(message, tensors)
        try:
            sent = self.stream.send(whole)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return b""  # nobody is there any more, as the agent will notice too
        return whole[sent:]

    def close(self) -> None:
        """Close this process's end of it; the agent has another one."""
        self.stream.close()
