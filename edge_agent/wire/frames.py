"""The frame: a fixed prefix, one encoded message, then raw tensor bytes.

    offset  size  field
    0       4     magic and version, b"EAG\\x01"
    4       4     length of the message in bytes, little-endian
    8       8     length of the payload in bytes, little-endian
    16      …     the message (MessagePack, see messages.py)
    …       …     the payload: the tensors one after the other, each starting at a multiple
                  of 64 bytes of the payload, the gaps filled with zeros

Nothing here reads or writes a socket, and nothing is allocated before its size was checked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from edge_agent.errors import ProtocolError

MAGIC = b"EAG\x01"
PREFIX = struct.Struct("<4sIQ")
ALIGNMENT_BYTES = 64
MAX_MESSAGE_BYTES = 16 * 2**20

Buffer = bytes | bytearray | memoryview

_ZEROS = bytes(ALIGNMENT_BYTES)


def pack_prefix(message_bytes: int, payload_bytes: int) -> bytes:
    """The 16 bytes that announce a message and a payload of these lengths."""
    return PREFIX.pack(MAGIC, message_bytes, payload_bytes)


def unpack_prefix(prefix: Buffer) -> tuple[int, int]:
    """Lengths of message and payload, in bytes.

    Raises:
        ProtocolError: the magic or version is not ours, or the message is over the limit.
    """
    magic, message_bytes, payload_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise ProtocolError(
            f"frame starts with {bytes(magic)!r}, want {MAGIC!r}: not this protocol"
        )
    if message_bytes > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {message_bytes} bytes, want at most {MAX_MESSAGE_BYTES}")
    return message_bytes, payload_bytes


def padding(size_bytes: int) -> int:
    """How many zero bytes follow a tensor of `size_bytes` so that the next one is aligned."""
    return -size_bytes % ALIGNMENT_BYTES


def padded_total(sizes_bytes: Sequence[int]) -> int:
    """Bytes of a payload with tensors of these sizes; the last one is not padded."""
    if not sizes_bytes:
        return 0
    return sum(size + padding(size) for size in sizes_bytes[:-1]) + sizes_bytes[-1]


def payload_parts(tensors: Sequence[memoryview]) -> list[Buffer]:
    """The payload as a list of buffers to send one after the other; copies nothing."""
    parts: list[Buffer] = []
    gap = 0
    for tensor in tensors:
        if gap:
            parts.append(_ZEROS[:gap])
        if tensor.nbytes:
            parts.append(tensor)
        gap = padding(tensor.nbytes)
    return parts


def split_payload(payload: memoryview, sizes_bytes: Sequence[int]) -> list[memoryview]:
    """Views on the tensors of a payload.

    Raises:
        ProtocolError: the payload is not exactly as long as these tensors need.
    """
    total = padded_total(sizes_bytes)
    if payload.nbytes != total:
        raise ProtocolError(f"payload of {payload.nbytes} bytes, want {total} for its tensors")
    views, offset = [], 0
    for size in sizes_bytes:
        views.append(payload[offset : offset + size])
        offset += size + padding(size)
    return views


def frame_parts(message: bytes, tensors: Sequence[memoryview] = ()) -> list[Buffer]:
    """A whole frame as buffers to send one after the other."""
    payload_bytes = padded_total([t.nbytes for t in tensors])
    return [pack_prefix(len(message), payload_bytes) + message, *payload_parts(tensors)]


class FrameReader:
    """Takes bytes as they come and says when a message, and then its payload, is whole.

    The caller alternates: `wanted()` gives the buffer to fill next, `filled(n)` says how many
    bytes arrived. When `message` is set, the caller decides where the payload goes: `accept()`
    (into a fresh buffer) or `discard()` (nowhere), then reads on until `is_complete`.
    """

    __slots__ = ("_at", "_buffer", "_discarding", "_left", "message", "payload", "payload_bytes")

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget the last frame and wait for the next."""
        self._buffer = memoryview(bytearray(PREFIX.size))
        self._at = 0
        self._left = 0
        self._discarding = False
        self.message: bytes | None = None
        self.payload: memoryview | None = None
        self.payload_bytes = -1

    @property
    def is_idle(self) -> bool:
        """Whether not a single byte of the next frame has arrived."""
        return self.payload_bytes < 0 and self._at == 0

    @property
    def is_complete(self) -> bool:
        """Whether message and payload have arrived."""
        if self.message is None:
            return False
        if self.payload_bytes == 0:
            return True
        if self._discarding:
            return self._left == 0
        return self.payload is not None and self._at == self.payload_bytes

    def accept(self, buffer: memoryview) -> None:
        """Read the payload into `buffer`, which has `payload_bytes` bytes."""
        self.payload = self._buffer = buffer
        self._at = 0

    def discard(self, scratch: memoryview) -> None:
        """Read the payload and drop it; `scratch` is overwritten again and again."""
        self._discarding, self._left = True, self.payload_bytes
        self._buffer = scratch

    def wanted(self) -> memoryview:
        """Where the next bytes go."""
        if self._discarding:
            return self._buffer[: min(self._left, self._buffer.nbytes)]
        return self._buffer[self._at :]

    def filled(self, count: int) -> None:
        """`count` bytes were put into `wanted()`.

        Raises:
            ProtocolError: the prefix is not ours, or the message is over the limit.
        """
        if self._discarding:
            self._left -= count
            return
        self._at += count
        if self._at < self._buffer.nbytes or self.message is not None:
            return
        if self.payload_bytes < 0:
            message_bytes, self.payload_bytes = unpack_prefix(self._buffer)
            self._buffer, self._at = memoryview(bytearray(message_bytes)), 0
            if message_bytes:
                return
        self.message = bytes(self._buffer)
