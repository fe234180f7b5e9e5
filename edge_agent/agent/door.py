"""The socket at the address that people know: peers are told where they may connect, and devices
that bring a token become peers. Only the thread of `peering.Peering` uses it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from edge_agent import clock
from edge_agent.agent.invitations import Invitations
from edge_agent.agent.offences import Pace
from edge_agent.agent.peer_host import Host, end_crowd, understood
from edge_agent.agent.peer_sessions import Session
from edge_agent.endpoints import Endpoint
from edge_agent.errors import EdgeAgentError, ProtocolError, StorageError
from edge_agent.peers import Origin, Peer, PublicKey, check_device_name, check_key
from edge_agent.transport.peer_sockets import Listener, Received
from edge_agent.wire.peering import (
    MAX_SOUND_BYTES,
    DoorAnswer,
    DoorMessage,
    Hello,
    Join,
    Joined,
    Refused,
    Sound,
    Sounded,
    decode_from,
    refusal,
)

log = logging.getLogger(__name__)

_SILENCE: Final = bytes(MAX_SOUND_BYTES)
DOMAIN: Final = b"door"
MESSAGES_PER_S: Final = 5.0
MESSAGES_AT_ONCE: Final = 20.0
"""Of one key; a device comes to the door once for each connection."""
A_TURN: Final = 32
MOST_CONNECTIONS: Final = 128
"""At once over which nothing came: each takes a descriptor. And as many over which something did:
a device comes to the door with one or two."""
_MOST_PACES: Final = 256

Say = Callable[[DoorAnswer], None]
"""Answers whoever asked; if it is gone, nobody."""


class DoorHost(Host, Protocol):
    """What the door needs of the agent."""

    invitations: Invitations

    def shut_door(self) -> None:
        """Close it, and open it again soon."""
        ...

    def session_of(self, key: PublicKey) -> Session | None:
        """The session of the peer that has this key."""
        ...


class Door:
    """Listens until it is closed."""

    def __init__(self, at: Endpoint, host: DoorHost) -> None:
        """Raises: UsageError: the address is taken, or not of this device."""
        self._host = host
        self._paces: OrderedDict[PublicKey, Pace] = OrderedDict()
        self._held_off: dict[PublicKey, float] = {}
        """Until when keys are not admitted that said too much."""
        self._joining: dict[PublicKey, list[Say]] = {}
        """Who waits for the disk; a device asks at all addresses at once."""
        self._listener = host.switchboard.listen(at, host.keys, DOMAIN, self._on_input)
        self.endpoint = self._listener.endpoint
        """Where it is."""

    def close(self) -> None:
        """Take nobody in any more."""
        self._host.switchboard.close(self._listener)

    def is_admitted(self, key: PublicKey, address: str) -> bool:
        """Whether that key may speak at the door; called for each attempt."""
        if self._is_held_off(key):
            return False
        if self._host.book.by_key(key) is not None or key in self._host.invitations:
            return True
        self._host.counters["connections with unknown keys refused"] += 1
        if self._host.seldom.is_due("unknown key", clock.monotonic_s()):
            log.warning(
                "refused a device with an unknown key at %s: %s (others are only counted, for a "
                "minute)",
                address,
                key,
            )
        return False

    def _is_held_off(self, key: PublicKey) -> bool:
        until_s = self._held_off.get(key)
        if until_s is None:
            return False
        if clock.monotonic_s() < until_s:
            return True
        del self._held_off[key]
        return False

    def _on_input(self, listener: Listener) -> None:
        now_s = clock.monotonic_s()
        listener.events()
        end_crowd(self._host, listener, MOST_CONNECTIONS, now_s)
        if listener.connections > 2 * MOST_CONNECTIONS:
            # Devices that are admitted hold them. Peers have sockets of their own: none of theirs
            # is among these.
            self._host.counters["crowds at the door ended"] += 1
            self._host.shut_door()
            return
        for _ in range(A_TURN):
            if (received := listener.receive()) is None:
                return
            if wait_s := self._pace_of(received.key).take(now_s):
                self._hold_off(received, wait_s, now_s)
            else:
                self._answer(received, now_s)

    def _hold_off(self, received: Received, wait_s: float, now_s: float) -> None:
        """It says too much. All keys share this socket: not to read on would hold up others, and to
        read on and drop it costs this device more than that one."""
        self._host.counters["messages at the door dropped"] += 1
        if not self._listener.end_connection(received.connection):
            return  # that was under way before the connection was ended
        self._held_off[received.key] = now_s + wait_s
        if (session := self._host.session_of(received.key)) is not None:
            session.offend("it says more at the door than it may", now_s)

    def _pace_of(self, key: PublicKey) -> Pace:
        # Only admitted keys come here, but whoever makes many tokens has many keys.
        pace = self._paces.pop(key, None) or Pace(MESSAGES_PER_S, MESSAGES_AT_ONCE)
        self._paces[key] = pace
        if len(self._paces) > _MOST_PACES:
            forgotten, _ = self._paces.popitem(last=False)
            self._held_off.pop(forgotten, None)
        return pace

    def _answer(self, received: Received, now_s: float) -> None:
        say = partial(self._say, received.route)
        session = self._host.session_of(received.key)
        try:
            message: DoorMessage = decode_from(self._host.codec.at_door, received.payload)
        except ProtocolError as error:
            self._host.counters["messages at the door not understood"] += 1
            if session is not None:
                session.not_understood(error, now_s)
            say(refusal(error))
            return
        match message:
            case Hello() if session is not None:
                say(session.greet(received.key, message, now_s))
            case Sound(length_bytes=length) if session is not None:
                if not session.offences.is_barred(now_s):
                    say(Sounded(_SILENCE[:length]))
            case Join() if received.key in self._host.invitations:
                self._join(received.key, message, say, now_s)
            case _:
                # Removed since it was admitted, or asks what its key is not for.
                say(Refused("peer-refused", "this device does not admit that key for this"))

    def _say(self, route: bytes, answer: DoorAnswer) -> None:
        self._listener.send(route, self._host.codec.encode(answer))

    def _join(self, invitation: PublicKey, message: Join, say: Say, now_s: float) -> None:
        try:
            key = check_key("key", message.key)
            name = check_device_name("name", message.name)
            self._host.invitations.check(invitation, key, now_s)
        except EdgeAgentError as error:
            self._host.counters["tokens refused"] += 1
            if self._host.seldom.is_due(f"token {invitation}", now_s):
                log.warning("a device that calls itself %r may not join: %s", message.name, error)
            say(refusal(error))
            return
        if self._host.book.by_key(key) is not None:
            # It joins again: its answer was lost, or it forgot this device. Where it listens, it
            # says when it connects.
            self._host.invitations.use(invitation, key)
            self._say_joined(say)
            return
        if key in self._joining:
            self._joining[key].append(say)
            return
        # From now on nobody else can use it.
        self._host.invitations.use(invitation, key)
        peer = Peer(
            key=key,
            name=name,
            endpoints=tuple(understood(message.endpoints)),
            origin=Origin.INVITED,
            added_at_s=clock.wall_s(),
        )
        self._joining[key] = [say]
        self._host.later(partial(self._admit, invitation, peer))

    def _admit(self, invitation: PublicKey, peer: Peer) -> None:
        """On a thread that may wait for the disk."""
        try:
            self._host.book.add(peer, is_told=True)
        except StorageError as error:
            log.error("%s", error)
            # Its paths are nobody else's business, and it is not the other device that is full.
            answer = Refused("peer-refused", "it cannot keep its list of peers: see its log")
            self._host.post(partial(self._not_admitted, invitation, peer, answer))
            return
        except EdgeAgentError as error:
            self._host.post(partial(self._not_admitted, invitation, peer, refusal(error)))
            return
        self._host.post(partial(self._admitted, peer))

    def _not_admitted(self, invitation: PublicKey, peer: Peer, answer: Refused) -> None:
        log.warning("device %s may not join: %s", peer.id, answer.message)
        if self._host.book.by_key(peer.key) is None:
            self._host.invitations.release(invitation, peer.key)
        for say in self._joining.pop(peer.key):
            say(answer)

    def _admitted(self, peer: Peer) -> None:
        self._host.sync()
        log.info('device %s joined as "%s"', peer.id, peer.name)
        for say in self._joining.pop(peer.key):
            self._say_joined(say)

    def _say_joined(self, say: Say) -> None:
        own = self._host.hello()
        say(Joined(name=own.name, endpoints=own.endpoints))
