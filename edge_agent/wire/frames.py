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

import numpy as np

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

    `feed` takes bytes that were read somewhere; it stops behind a message, so that the caller can
    decide where the payload goes: `accept` (into a buffer) or `discard` (nowhere). The rest of an
    accepted payload may be read straight into `wanted()`, followed by `filled`.
    """

    __slots__ = ("_at", "_header", "_is_discarding", "message", "payload", "payload_bytes")

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget the last frame and wait for the next."""
        self._header = bytearray()
        self._at = 0
        self._is_discarding = False
        self.message: bytes | None = None
        self.payload: memoryview | None = None
        self.payload_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether not a single byte of the next frame has arrived."""
        return self.message is None and not self._header

    @property
    def is_complete(self) -> bool:
        """Whether message and payload have arrived."""
        return self.message is not None and self._at == self.payload_bytes

    def accept(self, buffer: memoryview) -> None:
        """Read the payload into `buffer`, which has `payload_bytes` bytes."""
        self.payload = buffer

    def accept_new(self) -> None:
        """Read the payload into a buffer of its own."""
        # numpy, unlike bytearray, does not write zeros first.
        self.accept(memoryview(np.empty(self.payload_bytes, np.uint8).data))

    def take(self) -> tuple[bytes, memoryview]:
        """Message and payload (empty if discarded) of a complete frame; wait for the next."""
        assert self.message is not None
        message, payload = self.message, self.payload
        self.start()
        return message, payload if payload is not None else memoryview(b"")

    def discard(self) -> None:
        """Read the payload and drop it."""
        self._is_discarding = True

    def wanted(self) -> memoryview | None:
        """Where the rest of an accepted payload goes; None if bytes are to be fed."""
        return None if self.payload is None else self.payload[self._at :]

    def filled(self, count: int) -> None:
        """`count` bytes were put into `wanted()`."""
        self._at += count

    def feed(self, data: memoryview) -> int:
        """Take bytes from the front of `data`; how many.

        Takes all of them, or up to the end of the message, or up to the end of the frame.

        Raises:
            ProtocolError: the prefix is not ours, or the message is over the limit.
        """
        if self.message is None:
            return self._feed_header(data)
        taken = min(data.nbytes, self.payload_bytes - self._at)
        if self.payload is not None:
            self.payload[self._at : self._at + taken] = data[:taken]
        elif not self._is_discarding:
            return 0
        self._at += taken
        return taken

    def _feed_header(self, data: memoryview) -> int:
        header = self._header
        taken = 0
        if len(header) < PREFIX.size:
            taken = min(data.nbytes, PREFIX.size - len(header))
            header += data[:taken]
            if len(header) < PREFIX.size:
                return taken
        message_bytes, payload_bytes = unpack_prefix(header[: PREFIX.size])
        more = min(data.nbytes - taken, PREFIX.size + message_bytes - len(header))
        header += data[taken : taken + more]
        if len(header) == PREFIX.size + message_bytes:
            self.message, self.payload_bytes = bytes(header[PREFIX.size :]), payload_bytes
        return taken + more
