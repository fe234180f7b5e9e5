"""Messages between a client and the agent about other devices."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from edge_agent.endpoints import Endpoint
from edge_agent.peers import MAX_ENDPOINTS, Peer, PeerStatus, ProfileSummary, PublicKey
from edge_agent.wire.parts import MAX_DEADLINE_S, Message, Name

# Client → agent


class Invite(Message, frozen=True, tag="invite"):
    """Make a token with which another device may join."""

    ttl_s: Annotated[float, Meta(gt=0, le=MAX_DEADLINE_S)]
    """Seconds for which it is good."""


class JoinDevice(Message, frozen=True, tag="join-device"):
    """Join the device that gave out this token."""

    token: Annotated[str, Meta(max_length=4096)]


class AskPeers(Message, frozen=True, tag="peers"):
    """Which devices are trusted, and how are they?"""


class AddPeer(Message, frozen=True, tag="add-peer", kw_only=True):
    """Trust a device from now on."""

    key: Name
    name: Name
    endpoints: Annotated[tuple[Name, ...], Meta(max_length=MAX_ENDPOINTS)] = ()


class RemovePeer(Message, frozen=True, tag="remove-peer"):
    """Trust a device, named by name, id or key, no more."""

    peer: Name


class RenamePeer(Message, frozen=True, tag="rename-peer"):
    """Call a device, named by name, id or key, differently here."""

    peer: Name
    to: Name


class RotateKey(Message, frozen=True, tag="rotate-key"):
    """Give this device a new key, and tell its peers."""

    is_forced: bool
    """Also if some peers cannot be told."""


# Agent → client


class Invited(Message, frozen=True, tag="invited", kw_only=True):
    """A token."""

    token: str
    ttl_s: float


class Peers(Message, frozen=True, tag="peers-reply", kw_only=True):
    """This device and those that it trusts."""

    name: str
    key: PublicKey
    listens_at: Endpoint | None
    """None: it does not listen."""
    endpoints: tuple[Endpoint, ...]
    """Where other devices reach it."""
    peers: tuple[PeerStatus, ...]
    profile: ProfileSummary | None
    """What this device can do; None: it was not measured yet."""


class PeerChanged(Message, frozen=True, tag="peer-changed", kw_only=True):
    """A device as it is on the list now, or was before it was removed."""

    peer: Peer
    was_there: bool
    """Whether it was on the list before."""


class KeyRotated(Message, frozen=True, tag="key-rotated", kw_only=True):
    """The new key of this device."""

    key: PublicKey
    untold: tuple[str, ...]
    """Names of the peers that could not be told."""
