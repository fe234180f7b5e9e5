"""What everything between devices needs of the agent, and what is said of other devices."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from edge_agent.agent.liveness import Patience
from edge_agent.agent.offences import Seldom
from edge_agent.agent.offers import Offers
from edge_agent.agent.own_words import OwnWords
from edge_agent.agent.peer_book import PeerBook
from edge_agent.agent.peer_profiles import PeerProfiles
from edge_agent.endpoints import Endpoint, parse_peer_endpoint
from edge_agent.errors import UsageError
from edge_agent.peers import KeyPair, Peer, PeerCondition
from edge_agent.transport.peer_sockets import Listener, Switchboard
from edge_agent.wire.deploying import Deploying
from edge_agent.wire.peering import Hello, PeerCodec
from edge_agent.wire.telling import Statistics

log = logging.getLogger(__name__)


class Host(Protocol):
    """Everything of it is for the thread of `peering.Peering`, but for `later` and `post`."""

    switchboard: Switchboard
    codec: PeerCodec
    patience: Patience
    book: PeerBook
    offers: Offers
    counters: Counter[str]
    seldom: Seldom
    own: OwnWords
    profiles: PeerProfiles
    statistics: Statistics | None
    """How this device is; None: it was not looked at yet."""

    @property
    def keys(self) -> KeyPair:
        """Of this device."""
        ...

    @property
    def listens_at(self) -> Endpoint | None:
        """Where the door is; None: this device does not listen."""
        ...

    def hello(self) -> Hello:
        """What this device says of itself."""
        ...

    def later(self, action: Callable[[], None]) -> None:
        """Run `action`, which may block, on another thread."""
        ...

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the thread of the sessions."""
        ...

    def sync(self) -> None:
        """The list of peers has changed: there is a session for each, and no other."""
        ...

    def deploys(self, peer: Peer, message: Deploying) -> None:
        """A peer says something of an epoch that is divided over devices.

        Raises: ProtocolError: which it must not say.
        """
        ...

    def has_changed(self, peer: Peer, condition: PeerCondition) -> None:
        """A peer is so from now on."""
        ...


def end_crowd(host: Host, listener: Listener, most: int, now_s: float) -> None:
    """Anybody can connect to a port: of the connections that have proven nothing, the oldest are
    ended once there are more than so many. Those that are proven go on."""
    ended = listener.end_unproven(most)
    if not ended:
        return
    host.counters["connections without a proof ended"] += ended
    if host.seldom.is_due("crowd", now_s):
        log.warning(
            "more than %d connections at %s prove no key: the oldest are ended (others are only "
            "counted, for a minute)",
            most,
            listener.endpoint,
        )


def unproven(endpoint: Endpoint) -> str:
    """What is told of something that is there and proves no key."""
    return (
        f"something answers at {endpoint}, but it does not prove the key that it should have: it "
        "is another device or program, or its key was rotated"
    )


def understood(texts: Iterable[str]) -> list[Endpoint]:
    """What a peer says of where it listens; names are left out, because looking them up would tell
    others whom this device looks for."""
    found = []
    for text in texts:
        try:
            endpoint = parse_peer_endpoint("endpoint", text)
        except UsageError:
            continue
        if endpoint.is_address:
            found.append(endpoint)
    return found
