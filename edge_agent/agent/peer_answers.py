"""Answers the messages of clients about other devices."""

from __future__ import annotations

from collections import Counter

from edge_agent import clock
from edge_agent.agent.invitations import MAX_TTL_S
from edge_agent.agent.peer_profiles import summary_of
from edge_agent.agent.peering import Peering
from edge_agent.endpoints import parse_peer_endpoint
from edge_agent.errors import UsageError
from edge_agent.peers import Origin, Peer, check_device_name, check_key
from edge_agent.wire.about_peers import (
    AddPeer,
    AskPeers,
    Invite,
    Invited,
    JoinDevice,
    KeyRotated,
    PeerChanged,
    Peers,
    RemovePeer,
    RenamePeer,
    RotateKey,
)

PeerQuestion = Invite | JoinDevice | AskPeers | AddPeer | RemovePeer | RenamePeer | RotateKey
PeerAnswer = Invited | PeerChanged | Peers | KeyRotated


class PeerAnswers:
    """Passes on what clients ask, and says what came of it. Any thread may use it."""

    def __init__(self, peering: Peering) -> None:
        self._peering = peering

    @property
    def counters(self) -> Counter[str]:
        """What happened with other devices so far."""
        return self._peering.counters

    def answer(self, message: PeerQuestion) -> PeerAnswer:
        """The answer. Raises: EdgeAgentError: as `Peering` says."""
        match message:
            case Invite(ttl_s=ttl_s):
                return self._invite(ttl_s)
            case JoinDevice(token=token):
                peer, was_there = self._peering.join(token)
                return PeerChanged(peer=peer, was_there=was_there)
            case AskPeers():
                return self._peers()
            case AddPeer():
                return self._add(message)
            case RemovePeer(peer=name):
                return PeerChanged(peer=self._peering.remove(name), was_there=True)
            case RenamePeer(peer=name, to=to):
                return PeerChanged(peer=self._peering.rename(name, to), was_there=True)
            case RotateKey(is_forced=is_forced):
                keys, untold = self._peering.rotate(is_forced=is_forced)
                return KeyRotated(key=keys.public, untold=untold)

    def _invite(self, ttl_s: float) -> Invited:
        if ttl_s > MAX_TTL_S:
            raise UsageError(f"ttl: got {ttl_s:g} s, want at most {MAX_TTL_S:g} s (7 days)")
        return Invited(token=self._peering.invite(ttl_s), ttl_s=ttl_s)

    def _peers(self) -> Peers:
        peering = self._peering
        profile = peering.own.profile
        return Peers(
            name=peering.name,
            key=peering.keys.public,
            listens_at=peering.listens_at,
            endpoints=peering.own_endpoints(),
            peers=peering.statuses(),
            profile=None if profile is None else summary_of(profile),
        )

    def _add(self, message: AddPeer) -> PeerChanged:
        key = check_key("key", message.key)
        was_there = self._peering.book.by_key(key) is not None
        peer = Peer(
            key=key,
            name=check_device_name("name", message.name),
            endpoints=tuple(parse_peer_endpoint("endpoint", one) for one in message.endpoints),
            origin=Origin.ADDED,
            added_at_s=clock.wall_s(),
        )
        return PeerChanged(peer=self._peering.add(peer), was_there=was_there)
