"""Invitation tokens: what one device prints and another one takes, to admit each to the other."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from edge_agent.endpoints import Endpoint, parse_peer_endpoint
from edge_agent.errors import UsageError
from edge_agent.peers import (
    KEY_BYTES,
    MAX_ENDPOINTS,
    PublicKey,
    SecretKey,
    base32,
    check_device_name,
    from_base32,
    public_key,
    raw_key,
)

_PREFIX = "edge"
_VERSION = 1
# The name of the command begins with the same letters.
_BEGINNING = re.compile(rf"{_PREFIX}[0-9]")
_WRITTEN = re.compile(rf"{_PREFIX}[0-9][A-Za-z2-7]{{24,}}")
_CHECK_BYTES = 4
_MAX_CHARACTERS = 4096

_Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What lets one device join another, once."""

    key: PublicKey
    """Of the device that invites: whoever answers has to prove it."""
    name: str
    """What that device calls itself."""
    endpoints: tuple[Endpoint, ...]
    """Where it listens."""
    secret: SecretKey
    """Proves that the other device was invited; its public half is on the list of the first."""


class _Content(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    key: _Key
    name: str
    endpoints: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_ENDPOINTS)]
    secret: _Key


def write_token(token: Token) -> str:
    """The token as one word of letters and digits, which notices when it is not copied whole."""
    content = msgspec.msgpack.encode(
        _Content(
            key=raw_key(token.key),
            name=token.name,
            endpoints=tuple(map(str, token.endpoints)),
            secret=token.secret.raw,
        )
    )
    return f"{_PREFIX}{_VERSION}{base32(content + _check(content))}"


def read_token(text: str) -> Token:
    """The token that `write_token` wrote.

    Raises:
        UsageError: it is none, is not whole, or is of another version of edge-agent.
    """
    word = "".join(text.split())
    if not word:
        raise _refused("got nothing, as where standard input is empty")
    if not _BEGINNING.match(word) or not 10 <= len(word) <= _MAX_CHARACTERS:
        raise _refused("that is no token")
    if not word.startswith(f"{_PREFIX}{_VERSION}"):
        raise _refused("it is of another version of edge-agent: use the same on both devices")
    try:
        raw = from_base32(word[len(_PREFIX) + 1 :])
        content = raw[:-_CHECK_BYTES]
        if raw[-_CHECK_BYTES:] != _check(content):
            raise ValueError
        found = msgspec.msgpack.decode(content, type=_Content)
    except (ValueError, msgspec.DecodeError):
        raise _refused("it is not whole, or has a wrong character") from None
    return Token(
        key=public_key(found.key),
        name=check_device_name("token: name", found.name),
        endpoints=tuple(parse_peer_endpoint("token: address", one) for one in found.endpoints),
        secret=SecretKey(found.secret),
    )


def without_tokens(text: str) -> str:
    """A text for people in which somebody may have written a token in the place of a name."""
    return _WRITTEN.sub(f"{_PREFIX}{_VERSION}…", text)


def _check(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_CHECK_BYTES]


def _refused(why: str) -> UsageError:
    # Never the text itself: a part of a token is a part of a secret.
    return UsageError(
        f"token: {why}; copy the whole line that `edge-agent invite` printed on the other device"
    )
