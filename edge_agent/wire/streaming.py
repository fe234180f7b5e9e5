"""What workers of different devices send each other: tensors in chunks, and what steers them.

A message of ZeroMQ has one part or two. The first begins with 8 bytes:

    offset  size  field
    0       1     version of this protocol
    1       1     kind: 0 message, 1 message with its tensors, 2 chunk
    2       2     zero
    4       4     bytes of the MessagePack message, or which tensor the chunk is of, little-endian

A message follows at once, and if it is of kind 1, its tensors as in the payload of a frame (see
`frames.py`). Before a chunk, whose bytes are the second part, come 8 bytes: where in its tensor it
begins. Tensors that do not go with their message follow it in chunks, in order, and nothing else of
tensors in between.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edge_agent.errors import OtherVersion, ProtocolError
from edge_agent.plans import Epoch
from edge_agent.wire.messages import Message, decode, encoded
from edge_agent.wire.parts import MAX_DEADLINE_S, Name, TensorHeads

PROTOCOL: Final = 1
MAX_CHUNK_BYTES: Final = 1 << 20
MAX_HEAD_BYTES: Final = 1 << 20
"""Of a message without its tensors."""
WITH_MESSAGE_BYTES: Final = 128 * 1024
"""Tensors that together have at most so many bytes go with their message: one buffer that is copied
costs less than several that are not (measured: below about 200 KiB)."""

_MESSAGE, _WHOLE, _CHUNK = range(3)
_PREFIX: Final = struct.Struct("<BBHI")
_OFFSET: Final = struct.Struct("<BBHIQ")

Count = Annotated[int, Meta(ge=0, le=2**53)]
Bytes = Annotated[int, Meta(ge=1, le=2**48)]
Stage = Annotated[int, Meta(ge=-1, le=4096)]
"""Number of a stage in its route; −1: the owner, who sends inputs and takes results."""
Text = Annotated[str, Meta(max_length=4096)]


class Opening(Message, frozen=True, tag="opening"):
    """First of all, from both sides: you may send me so much, until I say more."""

    window_bytes: Bytes


class Credit(Message, frozen=True, tag="credit"):
    """You may send me so much more."""

    granted_bytes: Bytes


class Tensors(Message, frozen=True, tag="tensors", kw_only=True):
    """What one stage hands to another one, or to the owner, for one run."""

    epoch: Epoch
    run: Count
    """Counts up over all runs of the epoch."""
    source: Stage
    target: Stage
    tensors: TensorHeads
    left_s: Annotated[float, Meta(ge=0, le=MAX_DEADLINE_S)] | None
    """Seconds until the answer is no longer wanted, when this was sent; None: however long."""


class Abort(Message, frozen=True, tag="abort"):
    """The rest of the tensors that are being sent will not come."""


class Cancel(Message, frozen=True, tag="cancel", kw_only=True):
    """Nobody waits for this run any more."""

    epoch: Epoch
    run: Count


class RunFailed(Message, frozen=True, tag="run-failed", kw_only=True):
    """This run ends here; `code` is that of an error class."""

    epoch: Epoch
    run: Count
    stage: Stage
    code: Name
    message: Text


class Stale(Message, frozen=True, tag="stale", kw_only=True):
    """This epoch is not, or no longer, known here: run it again."""

    epoch: Epoch
    run: Count


StreamMessage = Opening | Credit | Tensors | Abort | Cancel | RunFailed | Stale


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What the first part says of the second one."""

    tensor: int
    """Which of the tensors of the message before, from 0."""
    offset_bytes: int


class StreamCodec:
    """Encodes and decodes first parts."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StreamMessage)

    def message(self, message: Message) -> bytes:
        """A message alone. Raises: BadRequest: as `messages.encoded`."""
        raw = encoded(self._encoder, message)
        return _PREFIX.pack(PROTOCOL, _MESSAGE, 0, len(raw)) + raw

    def whole(self, message: Tensors) -> bytes:
        """The beginning of a message that its tensors follow in the same part."""
        raw = encoded(self._encoder, message)
        return _PREFIX.pack(PROTOCOL, _WHOLE, 0, len(raw)) + raw

    @staticmethod
    def chunk(tensor: int, offset_bytes: int) -> bytes:
        """The first part of a chunk."""
        return _OFFSET.pack(PROTOCOL, _CHUNK, 0, tensor, offset_bytes)

    def decode(self, first: memoryview) -> tuple[StreamMessage | Chunk, memoryview | None]:
        """What the first part is, and the tensors that came with it, if they did.

        Raises:
            OtherVersion: of another version of the protocol.
            ProtocolError: it is none of them.
        """
        if first.nbytes < _PREFIX.size:
            raise ProtocolError(f"got a part of {first.nbytes} bytes, want {_PREFIX.size} or more")
        version, kind, zero, number = _PREFIX.unpack_from(first)
        if version != PROTOCOL:
            raise OtherVersion(
                f"got version {version} of the protocol between workers, want {PROTOCOL}: update "
                "edge-agent on the older device"
            )
        if zero or kind not in (_MESSAGE, _WHOLE, _CHUNK):
            raise ProtocolError(
                f"got a part of kind {kind} with {zero}, want kind 0, 1 or 2 with 0"
            )
        if kind == _CHUNK:
            if first.nbytes != _OFFSET.size:
                raise ProtocolError(f"got {first.nbytes} bytes before a chunk, want {_OFFSET.size}")
            return Chunk(tensor=number, offset_bytes=_OFFSET.unpack(first)[4]), None
        end = _PREFIX.size + number
        if number > MAX_HEAD_BYTES or end > first.nbytes:
            raise ProtocolError(f"got a message of {number} bytes in a part of {first.nbytes}")
        message: StreamMessage = decode(self._decoder, first[_PREFIX.size : end])
        if kind == _WHOLE:
            return message, first[end:]
        if end != first.nbytes:
            raise ProtocolError(f"got {first.nbytes - end} bytes behind a message, want none")
        return message, None
