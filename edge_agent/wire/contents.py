"""How agents ask each other for the content of tensors, by hash and piece by piece.

A message has one part: the version of the protocol between agents, the length of the MessagePack
message in 4 bytes, little-endian, the message, and behind a `Content` the piece itself.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edge_agent.errors import ProtocolError
from edge_agent.wire.messages import Message, decode, encoded
from edge_agent.wire.parts import Sha256, Size, Told
from edge_agent.wire.peering import PROTOCOL, Number, ShortText, check_size, check_version

MAX_PIECE_BYTES: Final = 192 * 1024
_PREFIX: Final = struct.Struct("<BI")


class AskContent(Message, frozen=True, tag="ask-content", kw_only=True):
    """What are these bytes of the tensor with this hash?"""

    number: Number
    """Of the question, for the answer."""
    sha256: Sha256
    offset_bytes: Size
    length_bytes: Annotated[int, Meta(ge=1, le=MAX_PIECE_BYTES)]


class AskProbe(Message, frozen=True, tag="ask-probe", kw_only=True):
    """Send me so many bytes, whatever they are: I measure how long they take."""

    number: Number
    length_bytes: Annotated[int, Meta(ge=1, le=MAX_PIECE_BYTES)]


class Content(Message, frozen=True, tag="content"):
    """These; they follow."""

    number: Number


class NoContent(Message, frozen=True, tag="no-content", kw_only=True):
    """None: it was not offered to you, or is not here any more; `code` is that of an error."""

    number: Number
    code: ShortText
    message: Told


ContentMessage = AskContent | AskProbe | Content | NoContent


class ContentCodec:
    """Encodes and decodes them."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ContentMessage)

    def encode(self, message: Message, piece: bytes = b"") -> bytes:
        """The message as it stands on the wire."""
        raw = encoded(self._encoder, message)
        return b"".join((_PREFIX.pack(PROTOCOL, len(raw)), raw, piece))

    def decode(self, part: bytes) -> tuple[ContentMessage, memoryview]:
        """The message and the piece that came with it.

        Raises:
            OtherVersion: of another version of the protocol.
            ProtocolError: it is no such message, or has a piece where it should have none.
        """
        if len(part) < _PREFIX.size:
            raise ProtocolError(f"got a message of {len(part)} bytes about content")
        check_size(part)
        version, length = _PREFIX.unpack_from(part)
        check_version(version)
        end = _PREFIX.size + length
        if end > len(part):
            raise ProtocolError(f"got {len(part)} bytes, want {end} for a message about content")
        view = memoryview(part)
        message: ContentMessage = decode(self._decoder, view[_PREFIX.size : end])
        piece = view[end:]
        if bool(piece.nbytes) != isinstance(message, Content):
            raise ProtocolError(f"got {piece.nbytes} bytes behind {type(message).__name__}")
        return message, piece
