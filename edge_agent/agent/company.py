"""The other devices, as those see them who divide models over them. Any thread may use it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from edge_agent import clock
from edge_agent.agent.offers import Offers
from edge_agent.agent.peer_sessions import Session
from edge_agent.agent.peering import Peering
from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import AgentUnavailable, ProtocolError
from edge_agent.hardware import DeviceProfile
from edge_agent.known_peers import KnownPeer
from edge_agent.peers import Peer
from edge_agent.store.partial import Partial
from edge_agent.wire.messages import Message

log = logging.getLogger(__name__)

T = TypeVar("T")


class Company:
    """Implements `attempts.Peers` and `hosting.Peers`."""

    def __init__(self, peering: Peering) -> None:
        self._peering = peering

    @property
    def offers(self) -> Offers:
        """What each peer may have of the content of this device."""
        return self._peering.offers

    @property
    def device(self) -> DeviceId:
        """The id of this device. Raises: as `Peering.keys`."""
        return self._peering.keys.device

    @property
    def listens_at(self) -> Endpoint | None:
        """Where this agent listens; None: nowhere."""
        return self._peering.listens_at

    def own_endpoints(self) -> tuple[Endpoint, ...]:
        """Where other devices reach this one; () if it does not listen."""
        return self._peering.own_endpoints()

    def name_of(self, device: DeviceId) -> str:
        """What people call a peer, or this device; its id, if it is neither."""
        if device in (THIS_DEVICE, self.device):
            return self._peering.name
        return next((p.name for p in self._peering.book.peers if p.id == device), device)

    def device_of(self, name: str) -> DeviceId:
        """The peer of that name, id or key. Raises: UnknownPeer: it is not trusted."""
        return self._peering.book.find(name).id

    def tell(self, device: DeviceId, message: Message) -> bool:
        """Send to a peer, if it is there; whether it is, and takes it."""
        return self._ask(device, lambda s: s.is_there and s.send(message), otherwise=False)

    def offend(self, device: DeviceId, what: str) -> None:
        """A peer broke a rule, which is counted, and leads to a bar."""

        def on_thread() -> None:
            session = self._peering.session_with(device)
            if session is not None:
                session.offend(what, clock.monotonic_s())

        self._peering.post(on_thread)

    def reached_at(self, device: DeviceId) -> tuple[Endpoint, ...]:
        """Where the agent of a peer is reached, what works now first; () if it is no peer, or does
        not listen."""
        return self._ask(device, lambda session: session.reached_at, otherwise=())

    def dials(self, device: DeviceId) -> bool:
        """Whether this device made the connection to that peer."""
        return self._ask(device, lambda session: session.dials, otherwise=False)

    def _ask(self, device: DeviceId, question: Callable[[Session], T], otherwise: T) -> T:
        def look() -> T:
            session = self._peering.session_with(device)
            return otherwise if session is None else question(session)

        if not self._peering.has_begun:
            return otherwise
        try:
            return self._peering.call(look)
        except AgentUnavailable:  # this one is ending
            return otherwise

    def peer(self, device: DeviceId) -> Peer | None:
        """The peer with that id."""
        return next((p for p in self._peering.book.peers if p.id == device), None)

    def receive_bytes_per_s(self, device: DeviceId) -> float:
        """Goodput of the link from a peer to this device; 0 if it is not there or not known."""
        return self._ask(device, lambda s: s.receive_bytes_per_s or 0.0, otherwise=0.0)

    def fetch(self, peer: Peer, tensor: Partial, on_received: Callable[[int], None]) -> None:
        """See `Peering.fetch`. A peer offends with content that is not what its hash says; what
        others sent of it before is not held against it: then all of it is fetched once more."""
        had_bytes = tensor.received_bytes
        try:
            self._peering.fetch(peer, tensor, on_received)
        except ProtocolError as error:
            if had_bytes and not tensor.received_bytes:
                log.warning("%s; all of it is fetched again, from %s", error, peer.name)
                self.fetch(peer, tensor, on_received)
                return
            self.offend(peer.id, str(error))
            raise

    def known(self) -> tuple[KnownPeer, ...]:
        """All peers with all that is known of them, by name."""
        found = []
        for status in self._peering.statuses():
            told = self._peering.profiles.of(status.peer.id)
            found.append(KnownPeer(status=status, profile=None if told is None else told.profile))
        return tuple(found)

    def own_profile(self) -> DeviceProfile | None:
        """What this device can do; None: it was not measured yet."""
        return self._peering.own.profile
