"""What workers of different devices send each other: tensors in chunks, and what steers them.

A message of ZeroMQ has one part or two. In one part lie records, one after the other, each at a
multiple of 8 bytes:

    offset  size  field
    0       1     version of this protocol
    1       1     kind: 0 message, 1 message with its tensors, 2 chunk
    2       2     bytes of zeros between a message and its tensors, little-endian
    4       4     bytes of the MessagePack message, or which tensor the chunk is of, little-endian
    8       …     the message, and of kind 1 the tensors, as in the payload of a frame (see
                  `frames.py`)

In two parts comes a chunk: the first has, behind such 8 bytes, another 8 that say where in its
tensor it begins, and the second is the chunk itself. Tensors that do not go with their message
follow it in chunks, in order, and no other tensors in between.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edge_agent.errors import OtherVersion, ProtocolError
from edge_agent.plans import Epoch
from edge_agent.wire.frames import ALIGNMENT_BYTES, Buffer, nbytes, padded_total, payload_parts
from edge_agent.wire.messages import Message, decode, encoded
from edge_agent.wire.parts import MAX_DEADLINE_S, MAX_TENSORS, Name, TensorHeads

PROTOCOL: Final = 1
MAX_CHUNK_BYTES: Final = 1 << 20
MAX_HEAD_BYTES: Final = 1 << 20
"""Of a message without its tensors."""
WITH_MESSAGE_BYTES: Final = 128 * 1024
"""Tensors that together have at most so many bytes go with their message: one buffer that is copied
costs less than several that are not (measured: below about 200 KiB)."""
TOGETHER_BYTES: Final = 512 * 1024
"""Records go together in a part while it has fewer bytes."""
MAX_PART_BYTES: Final = (
    TOGETHER_BYTES + MAX_HEAD_BYTES + WITH_MESSAGE_BYTES + (MAX_TENSORS + 1) * ALIGNMENT_BYTES
)
"""Any number of tensors may go with a message, and before each there may be a gap."""

HEAD_BYTES: Final = 4096
"""What a message costs of a window beside its tensors: no number of empty ones is free."""

_MESSAGE, _WHOLE, _CHUNK = range(3)
ELEMENT_BYTES: Final = 8
"""The largest element of a tensor. libzmq's memory for a part begins at a multiple of this, and so
do the tensors in it."""
_GAP: Final = bytes(ELEMENT_BYTES)
_PREFIX: Final = struct.Struct("<BBHI")
_OFFSET: Final = struct.Struct("<BBHIQ")

Count = Annotated[int, Meta(ge=0, le=2**53)]
Bytes = Annotated[int, Meta(ge=1, le=2**48)]
Stage = Annotated[int, Meta(ge=-1, le=4096)]
"""Number of a stage in its route; −1: the owner, who sends inputs and takes results."""
MAX_TOLD_CHARACTERS: Final = 4096
Text = Annotated[str, Meta(max_length=MAX_TOLD_CHARACTERS)]


class Opening(Message, frozen=True, tag="opening"):
    """First of all, from both sides: you may send me so much, until I say more."""

    window_bytes: Bytes


class Credit(Message, frozen=True, tag="credit"):
    """You may send me so much more."""

    granted_bytes: Bytes


class Narrowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A float32 tensor that is sent in fewer bits: as float16, or as uint8 that stands for
    (value − zero point) · scale."""

    tensor: Annotated[int, Meta(ge=0, lt=MAX_TENSORS)]
    """Which of the message, from 0."""
    scale: float = 1.0
    zero_point: Annotated[int, Meta(ge=0, le=255)] = 0


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
    narrowed: Annotated[tuple[Narrowed, ...], Meta(max_length=MAX_TENSORS)]
    """In the order of the tensors."""


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
        """A record of a message alone. Raises: BadRequest: as `messages.encoded`."""
        return self._record(_MESSAGE, message)

    def whole(self, message: Tensors, tensors: Sequence[Buffer]) -> list[Buffer]:
        """A record of a message with its tensors, as buffers to be joined."""
        record = self._record(_WHOLE, message)
        # Most have one tensor.
        parts = [record, *(tensors if len(tensors) == 1 else payload_parts(tensors))]
        gap = -nbytes(tensors[-1]) % ELEMENT_BYTES if tensors else 0
        if gap:
            parts.append(_GAP[:gap])
        return parts

    def _record(self, kind: int, message: Message) -> bytes:
        raw = encoded(self._encoder, message)
        gap = -len(raw) % ELEMENT_BYTES
        return _PREFIX.pack(PROTOCOL, kind, gap, len(raw)) + raw + _GAP[:gap]

    @staticmethod
    def chunk(tensor: int, offset_bytes: int) -> bytes:
        """The first part of a chunk."""
        return _OFFSET.pack(PROTOCOL, _CHUNK, 0, tensor, offset_bytes)

    def decode_chunk(self, first: memoryview) -> Chunk:
        """What stands before a chunk.

        Raises:
            OtherVersion: of another version of the protocol.
            ProtocolError: it is no such thing.
        """
        if first.nbytes != _OFFSET.size:
            raise ProtocolError(f"got {first.nbytes} bytes before a chunk, want {_OFFSET.size}")
        version, kind, gap, number, offset_bytes = _OFFSET.unpack(first)
        _check_version(version)
        if kind != _CHUNK or gap:
            raise ProtocolError(f"got kind {kind} with a gap of {gap} bytes before a chunk")
        return Chunk(tensor=number, offset_bytes=offset_bytes)

    def decode(self, part: memoryview) -> Iterator[tuple[StreamMessage, memoryview | None]]:
        """The messages of a part, each with the bytes of the tensors that came with it, if any did.

        Raises:
            OtherVersion: of another version of the protocol.
            ProtocolError: what comes next is no record.
        """
        at = 0
        while at < part.nbytes:
            message, begin, is_whole = self._decode_one(part, at)
            if not is_whole:
                yield message, None
                at = begin
                continue
            if not isinstance(message, Tensors):
                raise ProtocolError("got tensors with a message that has none")
            end = begin + padded_total([head.size_bytes for head in message.tensors])
            if end > part.nbytes:
                raise ProtocolError(
                    f"got a part of {part.nbytes} bytes, want {end} for its tensors"
                )
            yield message, part[begin:end]
            at = end + -end % ELEMENT_BYTES

    def _decode_one(self, part: memoryview, at: int) -> tuple[StreamMessage, int, bool]:
        """The message of the record that begins there, where it ends, and if tensors follow."""
        if part.nbytes < at + _PREFIX.size:
            raise ProtocolError(f"got {part.nbytes - at} bytes, want {_PREFIX.size} or more")
        version, kind, gap, size = _PREFIX.unpack_from(part, at)
        _check_version(version)
        if kind not in (_MESSAGE, _WHOLE) or gap >= ELEMENT_BYTES:
            raise ProtocolError(f"got a record of kind {kind} with a gap of {gap} bytes")
        start = at + _PREFIX.size
        end = start + size
        if size > MAX_HEAD_BYTES or end + gap > part.nbytes:
            raise ProtocolError(f"got a message of {size} bytes in a part of {part.nbytes}")
        message: StreamMessage = decode(self._decoder, part[start:end])
        return message, end + gap, kind == _WHOLE


def _check_version(version: int) -> None:
    if version != PROTOCOL:
        raise OtherVersion(
            f"got version {version} of the protocol between workers, want {PROTOCOL}: update "
            "edge-agent on the older device"
        )
