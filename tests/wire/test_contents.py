"""Messages about content: what is written is read, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.errors import OtherVersion, ProtocolError
from edge_agent.wire.contents import (
    MAX_PIECE_BYTES,
    AskContent,
    Content,
    ContentCodec,
    ContentMessage,
    NoContent,
)
from edge_agent.wire.peering import PROTOCOL

CODEC = ContentCodec()
ASK = AskContent(number=1, sha256="0" * 64, offset_bytes=2**40, length_bytes=MAX_PIECE_BYTES)


@pytest.mark.parametrize(
    ("message", "piece"),
    [
        (ASK, b""),
        (Content(2**53), b"\0" * MAX_PIECE_BYTES),
        (NoContent(number=0, code="storage", message="é"), b""),
    ],
)
def test_what_is_written_is_read(message: ContentMessage, piece: bytes) -> None:
    got, got_piece = CODEC.decode(CODEC.encode(message, piece))
    assert got == message
    assert got_piece == piece


@pytest.mark.parametrize("message", [ASK, NoContent(number=1, code="x", message="y")])
def test_a_piece_stands_behind_content_alone(message: ContentMessage) -> None:
    with pytest.raises(ProtocolError, match=r"^got 5 bytes behind"):
        CODEC.decode(CODEC.encode(message, b"piece"))
    with pytest.raises(ProtocolError, match=r"^got 0 bytes behind Content$"):
        CODEC.decode(CODEC.encode(Content(1)))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(raw: bytes) -> None:
    for part in (raw, bytes([PROTOCOL]) + raw):
        try:
            CODEC.decode(part)
        except ProtocolError:
            continue
        raise AssertionError("that was understood")


def test_a_message_cut_anywhere_is_refused() -> None:
    whole = CODEC.encode(ASK)
    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            CODEC.decode(whole[:length])


def test_another_version_is_told() -> None:
    with pytest.raises(OtherVersion, match="update edge-agent on this device"):
        CODEC.decode(bytes([PROTOCOL + 1]) + CODEC.encode(ASK)[1:])
