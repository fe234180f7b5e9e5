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
from collections.abc import Iterable, Sequence

import numpy as np

from edge_agent.errors import ProtocolError

MAGIC = b"EAG\x01"
PREFIX = struct.Struct("<4sIQ")
ALIGNMENT_BYTES = 64
MAX_MESSAGE_BYTES = 16 * 2**20

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes; a memoryview may have items of any type."""

_ZEROS = bytes(ALIGNMENT_BYTES)
_JOINED_BYTES = 1 << 14
_SMALL_BYTES = 1 << 16
"""Below this, writing zeros first costs less than asking numpy for memory."""


def pack_prefix(message_bytes: int, payload_bytes: int) -> bytes:
    """The 16 bytes that announce a message and a payload of these lengths."""
    return PREFIX.pack(MAGIC, message_bytes, payload_bytes)


def unpack_prefix(data: Buffer) -> tuple[int, int]:
    """Lengths of message and payload, in bytes, from the first 16 bytes of `data`.

    Raises:
        ProtocolError: the magic or version is not ours, or the message is over the limit.
    """
    magic: bytes
    magic, message_bytes, payload_bytes = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"frame starts with {magic!r}, want {MAGIC!r}: not this protocol")
    if message_bytes > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {message_bytes} bytes, want at most {MAX_MESSAGE_BYTES}")
    return message_bytes, payload_bytes


def nbytes(data: Buffer) -> int:
    """Bytes of a buffer of any kind."""
    return len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes


def padding(size_bytes: int) -> int:
    """How many zero bytes follow a tensor of `size_bytes` so that the next one is aligned."""
    return -size_bytes % ALIGNMENT_BYTES


def padded_total(sizes_bytes: Sequence[int]) -> int:
    """Bytes of a payload with tensors of these sizes; the last one is not padded."""
    if not sizes_bytes:
        return 0
    return sum(size + padding(size) for size in sizes_bytes[:-1]) + sizes_bytes[-1]


def frame_parts(message: bytes, tensors: Iterable[Buffer] = ()) -> list[Buffer]:
    """A whole frame as buffers to send one after the other; large tensors are not copied."""
    parts: list[Buffer] = [b""]
    payload_bytes = _add_payload(parts, tensors)
    parts[0] = pack_prefix(len(message), payload_bytes) + message
    # One small buffer is sent in less time than several.
    return parts if payload_bytes > _JOINED_BYTES else [b"".join(parts)]


def payload_parts(tensors: Iterable[Buffer]) -> list[Buffer]:
    """The payload of a frame alone, as buffers to send one after the other."""
    parts: list[Buffer] = []
    _add_payload(parts, tensors)
    return parts


def _add_payload(parts: list[Buffer], tensors: Iterable[Buffer]) -> int:
    payload_bytes = 0
    for tensor in tensors:
        gap = padding(payload_bytes)
        if gap:
            parts.append(_ZEROS[:gap])
        size = nbytes(tensor)
        if size:
            parts.append(tensor)
        payload_bytes += gap + size
    return payload_bytes


def joined_frame(message: bytes, tensors: Sequence[Buffer] = ()) -> bytes:
    """A whole frame in one piece: what `frame_parts` gives, joined."""
    if len(tensors) > 1:
        return b"".join(frame_parts(message, tensors))
    # Most have one tensor or none. Between two runs of a model the caches are cold, and there
    # every line that is not needed costs microseconds.
    payload_bytes = sum(map(nbytes, tensors))
    return b"".join((pack_prefix(len(message), payload_bytes), message, *tensors))


def fill(room: memoryview, tensors: Iterable[Buffer]) -> None:
    """Copy tensors into `room` as they lie in a payload; it is as large as they need or larger."""
    end = 0
    for tensor in tensors:
        start = end + padding(end)
        end = start + nbytes(tensor)
        # numpy takes items of types that `memoryview.cast` does not know.
        room[start:end] = np.frombuffer(tensor, np.uint8).data if end > start else b""


def whole_frame(data: memoryview) -> tuple[bytes, memoryview] | None:
    """Message, and payload as a view, if `data` is one frame, no more and no less.

    Raises:
        ProtocolError: the prefix is not ours, or the message is over the limit.
    """
    if data.nbytes < PREFIX.size:
        return None
    message_bytes, payload_bytes = unpack_prefix(data)
    end = PREFIX.size + message_bytes
    if data.nbytes != end + payload_bytes:
        return None
    return bytes(data[PREFIX.size : end]), data[end:]


class FrameReader:
    """Takes bytes as they come and says when a message, and then its payload, is whole.

    `feed` takes bytes that were read somewhere; it stops behind a message, so that the caller can
    decide where the payload goes: `accept_new` (a buffer of its own) or `discard` (nowhere). The
    rest of an accepted payload may be read straight into `wanted()`, followed by `filled`.
    """

    __slots__ = ("_at", "_header", "_is_discarding", "message", "payload", "payload_bytes")

    def __init__(self) -> None:
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

    def accept_new(self) -> None:
        """Read the payload into a buffer of its own."""
        size = self.payload_bytes
        # numpy, unlike bytearray, does not write zeros first.
        self.payload = (
            memoryview(bytearray(size)) if size < _SMALL_BYTES else np.empty(size, np.uint8).data
        )

    def take(self) -> tuple[bytes, memoryview]:
        """Message and payload (empty if discarded) of a complete frame; wait for the next."""
        assert self.message is not None
        message, payload = self.message, self.payload
        self.message = self.payload = None
        self.payload_bytes = self._at = 0
        self._is_discarding = False
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
        message_bytes, payload_bytes = unpack_prefix(header)
        more = min(data.nbytes - taken, PREFIX.size + message_bytes - len(header))
        header += data[taken : taken + more]
        if len(header) == PREFIX.size + message_bytes:
            self.message, self.payload_bytes = bytes(header[PREFIX.size :]), payload_bytes
            self._header = bytearray()
        return taken + more
