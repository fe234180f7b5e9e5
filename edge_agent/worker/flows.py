"""How tensors go out in chunks as there is credit, and come in within a window: no sockets here.

Credit is reserved for a whole message before its first byte leaves, so that no two messages ever
wait for each other with half of their bytes sent. Messages leave in the order in which they were
put. A message costs what its tensors have in bytes, and `HEAD_BYTES`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_agent.errors import ProtocolError
from edge_agent.tensors import Arrays
from edge_agent.wire.arrays import unpack_arrays
from edge_agent.wire.frames import Buffer, nbytes
from edge_agent.wire.messages import Message
from edge_agent.wire.parts import TensorHead
from edge_agent.wire.streaming import (
    ELEMENT_BYTES,
    HEAD_BYTES,
    MAX_CHUNK_BYTES,
    TOGETHER_BYTES,
    WITH_MESSAGE_BYTES,
    Abort,
    Cancel,
    Chunk,
    Credit,
    Opening,
    RunFailed,
    Stale,
    StreamCodec,
    Tensors,
)

COPIED_BYTES = 192 * 1024
"""Up to so many, copying what is sent costs less than having libzmq tell when it was sent."""
CREDIT_SHARE = 8
"""Less than this part of the window is not given back alone, unless nothing else is held."""


def cost_bytes(heads: Sequence[TensorHead]) -> int:
    """What a message with these tensors costs of a window."""
    return HEAD_BYTES + sum(head.size_bytes for head in heads)


@dataclass(slots=True)
class _Outgoing:
    message: Tensors
    buffers: Sequence[Buffer]
    cost_bytes: int
    tensor: int = 0
    offset: int = 0
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """A message of ZeroMQ."""

    parts: tuple[Buffer, ...]
    is_shared: bool
    """Whether it is large, so that it is sent without being copied once more."""


class Outflow:
    """What goes to one neighbour. One thread uses it."""

    def __init__(self, codec: StreamCodec, chunk_bytes: int = MAX_CHUNK_BYTES) -> None:
        self.chunk_bytes = min(chunk_bytes, MAX_CHUNK_BYTES)
        """Of the next chunks."""
        self._codec = codec
        self._steering: deque[Message] = deque()
        self._waiting: deque[_Outgoing] = deque()
        self._credit_bytes = 0
        self._window_bytes: int | None = None

    @property
    def waiting(self) -> int:
        """Messages with tensors that are not sent, or not wholly."""
        return len(self._waiting)

    @property
    def steering(self) -> int:
        """Messages without tensors that are not sent."""
        return len(self._steering)

    def open(self, window_bytes: int) -> None:
        """The other side takes so much at once. Raises: ProtocolError: it said so before."""
        if self._window_bytes is not None:
            raise ProtocolError("got a second opening, want one")
        self._window_bytes = self._credit_bytes = window_bytes

    def grant(self, granted_bytes: int) -> None:
        """The other side takes so much more. Raises: ProtocolError: more than was ever sent."""
        self._credit_bytes += granted_bytes
        if self._window_bytes is None or self._credit_bytes > self._window_bytes:
            raise ProtocolError("got credit for more than was sent")

    def steer(self, message: Message) -> None:
        """Send a message without tensors, before what waits."""
        self._steering.append(message)

    def put(self, message: Tensors, buffers: Sequence[Buffer]) -> None:
        """Send tensors. They must stay as they are until they were sent."""
        cost = HEAD_BYTES + sum(map(nbytes, buffers))
        self._waiting.append(_Outgoing(message, buffers, cost))

    def cancel(self, run: int) -> None:
        """Do not send, or not on, what is of this run."""
        for outgoing in [one for one in self._waiting if one.message.run == run]:
            self._waiting.remove(outgoing)
            if outgoing.has_begun:
                self._steering.append(Abort())

    @property
    def is_too_large(self) -> Tensors | None:
        """The message at the head of the queue if the other side can never take it."""
        if not self._waiting or self._window_bytes is None:
            return None
        first = self._waiting[0]
        return first.message if first.cost_bytes > self._window_bytes else None

    def next(self) -> Parts | None:
        """What is to be sent next; None: nothing, or it has to wait for credit."""
        if not self._steering and self._waiting and self._waiting[0].has_begun:
            return self._next_chunk(self._waiting[0])
        records: list[Buffer] = []
        size = 0
        while size < TOGETHER_BYTES and (record := self._next_record()):
            records += record
            for buffer in record:
                size += nbytes(buffer)
        if not records:
            return None
        part = records[0] if len(records) == 1 else b"".join(records)
        return Parts((part,), is_shared=size > COPIED_BYTES)

    def _next_record(self) -> list[Buffer]:
        """What is sent without a part of its own; empty if that is nothing at present."""
        if self._steering:
            return [self._codec.message(self._steering.popleft())]
        if not self._waiting:
            return []
        first = self._waiting[0]
        if first.has_begun or first.cost_bytes > self._credit_bytes:
            return []
        self._credit_bytes -= first.cost_bytes
        if first.cost_bytes <= WITH_MESSAGE_BYTES + HEAD_BYTES:
            self._waiting.popleft()
            return self._codec.whole(first.message, first.buffers)
        first.has_begun = True
        first.buffers = tuple(map(_bytes_of, first.buffers))
        _skip_empty(first)
        return [self._codec.message(first.message)]

    def _next_chunk(self, first: _Outgoing) -> Parts:
        buffer = memoryview(first.buffers[first.tensor])
        chunk = buffer[first.offset : first.offset + self.chunk_bytes]
        head = self._codec.chunk(first.tensor, first.offset)
        first.offset += chunk.nbytes
        if first.offset == buffer.nbytes:
            first.tensor, first.offset = first.tensor + 1, 0
            _skip_empty(first)
            if first.tensor == len(first.buffers):
                self._waiting.popleft()
        return Parts((head, chunk), is_shared=True)


_EMPTY = memoryview(b"")


def _bytes_of(buffer: Buffer) -> memoryview:
    # numpy takes items of types that `memoryview.cast` does not know.
    return np.frombuffer(buffer, np.uint8).data if nbytes(buffer) else _EMPTY


def _skip_empty(outgoing: _Outgoing) -> None:
    while outgoing.tensor < len(outgoing.buffers) and not nbytes(outgoing.buffers[outgoing.tensor]):
        outgoing.tensor += 1


@dataclass(frozen=True, slots=True)
class Arrived:
    """Tensors that are here."""

    message: Tensors
    arrays: Arrays
    cost_bytes: int
    """What is to be given back to `Inflow.release` when they are no longer needed."""


@dataclass(slots=True)
class _Incoming:
    message: Tensors
    cost_bytes: int
    buffers: list[Buffer] = field(default_factory=list)
    """Of the tensors that have come, wholly or in part."""
    offset: int = 0
    """How much of the last one has come."""


Steering = Opening | Credit | Cancel | RunFailed | Stale


class Inflow:
    """What comes from one neighbour. One thread uses it."""

    def __init__(self, codec: StreamCodec, window_bytes: int) -> None:
        self._codec = codec
        self._window_bytes = window_bytes
        self._free_bytes = window_bytes
        self._owed_bytes = 0
        self._incoming: _Incoming | None = None

    @property
    def held_bytes(self) -> int:
        """What of the window is in use."""
        return self._window_bytes - self._free_bytes

    def take(self, parts: Sequence[memoryview]) -> Iterator[Arrived | Steering]:
        """A message of ZeroMQ came: what is whole now.

        Raises:
            ProtocolError: it breaks the rules; of what comes after, nothing can be understood.
        """
        if len(parts) == 2:
            arrived = self._take_chunk(self._codec.decode_chunk(parts[0]), parts[1])
            if arrived is not None:
                yield arrived
            return
        if len(parts) != 1:
            raise ProtocolError(f"got a message of {len(parts)} parts, want 1 or 2")
        for message, payload in self._codec.decode(parts[0]):
            match message:
                case Tensors():
                    arrived = self._begin(message, payload)
                    if arrived is not None:
                        yield arrived
                case Abort():
                    self._abort()
                case _:
                    yield message

    def _begin(self, message: Tensors, payload: memoryview | None) -> Arrived | None:
        if self._incoming is not None:
            raise ProtocolError("got a message before the tensors of the last one were whole")
        cost = cost_bytes(message.tensors)
        # Before anything is allocated.
        if cost > self._free_bytes:
            raise ProtocolError(f"got {cost} bytes of tensors, want at most {self._free_bytes}")
        self._free_bytes -= cost
        if payload is not None:
            arrays = unpack_arrays(message.tensors, _placed(payload))
            return Arrived(message, arrays, cost)
        self._incoming = _Incoming(message, cost)
        return self._whole()

    def _take_chunk(self, chunk: Chunk, part: memoryview) -> Arrived | None:
        incoming = self._incoming
        if incoming is None:
            raise ProtocolError("got a chunk of no message")
        heads = incoming.message.tensors
        at = len(incoming.buffers) - (1 if incoming.offset else 0)
        size = heads[at].size_bytes
        rest = size - incoming.offset
        if chunk.tensor != at or chunk.offset_bytes != incoming.offset:
            raise ProtocolError(
                f"got a chunk of tensor {chunk.tensor} at {chunk.offset_bytes}, want {at} at "
                f"{incoming.offset}"
            )
        if not 0 < part.nbytes <= min(rest, MAX_CHUNK_BYTES):
            raise ProtocolError(f"got a chunk of {part.nbytes} bytes, want at most {rest}")
        if part.nbytes == size:
            incoming.buffers.append(_placed(part))
            return self._whole()
        if not incoming.offset:
            # numpy, unlike bytearray, does not write zeros first.
            incoming.buffers.append(np.empty(size, np.uint8).data)
        room = memoryview(incoming.buffers[at])
        room[incoming.offset : incoming.offset + part.nbytes] = part
        incoming.offset += part.nbytes
        if incoming.offset < size:
            return None
        incoming.offset = 0
        return self._whole()

    def _whole(self) -> Arrived | None:
        """The message, if all of it is here."""
        incoming = self._incoming
        assert incoming is not None
        heads = incoming.message.tensors
        while len(incoming.buffers) < len(heads) and not heads[len(incoming.buffers)].size_bytes:
            incoming.buffers.append(b"")
        if len(incoming.buffers) < len(heads):
            return None
        self._incoming = None
        arrays: Arrays = {}
        for head, buffer in zip(heads, incoming.buffers, strict=True):
            arrays |= unpack_arrays((head,), buffer)
        return Arrived(incoming.message, arrays, incoming.cost_bytes)

    def _abort(self) -> None:
        if self._incoming is None:
            raise ProtocolError("got the end of a message that had not begun")
        self.release(self._incoming.cost_bytes)
        self._incoming = None

    def release(self, freed_bytes: int) -> None:
        """What arrived is no longer needed."""
        self._free_bytes += freed_bytes
        self._owed_bytes += freed_bytes

    def credit(self) -> Credit | None:
        """What the other side is to be told it may send again; None: nothing, or too little to be
        worth a message as long as more will follow."""
        is_little = self._owed_bytes * CREDIT_SHARE < self._window_bytes
        if not self._owed_bytes or (is_little and self.held_bytes):
            return None
        owed, self._owed_bytes = self._owed_bytes, 0
        return Credit(owed)


def _placed(part: memoryview) -> memoryview:
    """The part itself, if elements of any size lie where they should; else a copy."""
    if not part.nbytes:
        return part
    # numpy knows of an element of this size there whether it is aligned, without looking at it.
    is_placed = part.nbytes >= ELEMENT_BYTES and np.ndarray(1, np.uint64, part).flags.aligned
    return part if is_placed else np.frombuffer(part, np.uint8).copy().data
