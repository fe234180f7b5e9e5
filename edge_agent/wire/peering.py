"""Messages between the agents of two devices, on an encrypted connection of which both are proven.

A peer can ask for nothing that is not here: the messages of the local socket are no part of it.
Each begins with one byte, the version of this protocol, so that another version can be told.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from edge_agent.errors import EdgeAgentError, OtherVersion, ProtocolError
from edge_agent.peers import MAX_BEAT_S, MAX_ENDPOINTS, MIN_BEAT_S
from edge_agent.wire.deploying import Deploying
from edge_agent.wire.hosting import Key, Port
from edge_agent.wire.messages import Message, decode, encoded, error_text
from edge_agent.wire.parts import MAX_TOLD_CHARACTERS, Told
from edge_agent.wire.telling import AskProfile, Profile, Statistics

T = TypeVar("T")

PROTOCOL: Final = 1
MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Of one message between agents, about content too."""
LAST_PROTOCOL: Final = 31
"""Versions to come have at most this number: what begins with another one is something else."""
_VERSION: Final = bytes([PROTOCOL])

ShortText = Annotated[str, Meta(max_length=256)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Duration = Annotated[float, Meta(ge=0, le=1e6)]
"""Seconds, on the clock of the sender: how long something took there, never when it was."""
Interval = Annotated[float, Meta(ge=MIN_BEAT_S / 2, le=MAX_BEAT_S)]
MAX_SOUND_BYTES: Final = 192 * 1024
EndpointTexts = Annotated[tuple[ShortText, ...], Meta(max_length=MAX_ENDPOINTS)]


# To the door, which listens at the address that people know


class Join(Message, frozen=True, tag="join", kw_only=True):
    """With the key of an invitation: take me for a peer. May be repeated by the same device."""

    key: Key
    """The long-term key of the device that joins."""
    name: ShortText
    endpoints: EndpointTexts
    """Where it listens itself."""
    version: ShortText


class Joined(Message, frozen=True, tag="joined", kw_only=True):
    """You are a peer from now on."""

    name: ShortText
    endpoints: EndpointTexts


class Hello(Message, frozen=True, tag="hello", kw_only=True):
    """With the long-term key of a peer: where may I connect?"""

    name: ShortText
    endpoints: EndpointTexts
    """Where it listens itself."""
    version: ShortText
    beat_s: Interval
    """How often its heartbeats will come."""
    agent: ShortText
    """Drawn when the agent started: two that run at once with one key are told apart by it."""


class Welcome(Message, frozen=True, tag="welcome", kw_only=True):
    """At this port of the same address, where only you may."""

    port: Port
    content_port: Port
    """For what is asked of content, so that it does not hold up heartbeats."""
    endpoints: EndpointTexts
    """Where this device listens."""
    version: ShortText
    beat_s: Interval
    agent: ShortText
    """As in `Hello`."""


class Refused(Message, frozen=True, tag="refused"):
    """No; `code` is that of an error class."""

    code: ShortText
    message: Told


def refusal(error: EdgeAgentError) -> Refused:
    """The answer that tells an error."""
    return Refused(error.code, error_text(error)[:MAX_TOLD_CHARACTERS])


class Sound(Message, frozen=True, tag="sound"):
    """With the long-term key of a peer: send me so many bytes; I measure how long they take."""

    length_bytes: Annotated[int, Meta(ge=0, le=MAX_SOUND_BYTES)]


class Sounded(Message, frozen=True, tag="sounded"):
    """These, whatever they are."""

    content: Annotated[bytes, Meta(max_length=MAX_SOUND_BYTES)]


DoorMessage = Join | Hello | Sound
DoorAnswer = Joined | Welcome | Refused | Sounded


# Between two peers


class Beat(Message, frozen=True, tag="beat", kw_only=True):
    """A heartbeat: I am here."""

    number: Number
    """Counts up."""
    echo: Number | None
    """The number of the last one that came from the other side."""
    held_s: Duration
    """How long ago that was."""


class Goodput(Message, frozen=True, tag="goodput"):
    """What you send reaches me so fast, as I measured."""

    bytes_per_s: Annotated[float, Meta(gt=0, le=1e15)]


class NewKey(Message, frozen=True, tag="new-key"):
    """I will have this key from now on, instead of the one that this connection proves."""

    key: Key


class NotedKey(Message, frozen=True, tag="noted-key"):
    """I will know you by this key."""

    key: Key


class Leaving(StrEnum):
    """Why an agent ends a connection."""

    STOPPED = "stopped"
    """It ends."""
    REMOVED = "removed"
    """The other side is no peer of it any more."""
    RECONNECTS = "reconnects"
    """It comes again at once."""


class Goodbye(Message, frozen=True, tag="goodbye"):
    """I end this connection."""

    why: Leaving


PeerMessage = (
    Beat | Goodput | NewKey | NotedKey | Goodbye | Statistics | AskProfile | Profile | Deploying
)


class PeerCodec:
    """Encodes any message between agents and decodes those of one place."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self.at_door = msgspec.msgpack.Decoder(DoorMessage)
        self.from_door = msgspec.msgpack.Decoder(DoorAnswer)
        self.from_peer = msgspec.msgpack.Decoder(PeerMessage)

    def encode(self, message: Message) -> bytes:
        """The message as it stands on the wire."""
        return _VERSION + encoded(self._encoder, message)


def decode_from(decoder: msgspec.msgpack.Decoder[T], raw: bytes) -> T:
    """The message.

    Raises:
        OtherVersion: of a version that this one does not speak.
        ProtocolError: it is no such message.
    """
    if not raw:
        raise ProtocolError("message not understood: it is empty")
    check_size(raw)
    check_version(raw[0])
    return decode(decoder, memoryview(raw)[1:])


def check_size(raw: bytes) -> None:
    """Raises: ProtocolError: it is larger than a message may be."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"got a message of {len(raw)} bytes, want at most {MAX_MESSAGE_BYTES}")


def check_version(version: int) -> None:
    """Raises:
    OtherVersion: it is another one than this one speaks.
    ProtocolError: it is none.
    """
    if not 0 < version <= LAST_PROTOCOL:
        raise ProtocolError(f"message not understood: it begins with {version}, want a version")
    if version != PROTOCOL:
        older = "this device" if version > PROTOCOL else "the other device"
        raise OtherVersion(
            f"got version {version} of the protocol between devices, want {PROTOCOL}: update "
            f"edge-agent on {older}"
        )
