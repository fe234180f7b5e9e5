"""How this device joins another one with a token. Only the thread of `peering.Peering` uses it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from edge_agent import clock
from edge_agent.agent.peer_host import Host, unproven
from edge_agent.endpoints import Endpoint
from edge_agent.errors import EdgeAgentError, PeerLost, PeerRefused, ProtocolError, error_from_code
from edge_agent.literals import plain_text
from edge_agent.peers import Origin, Peer, PublicKey
from edge_agent.transport.curve import keys_of
from edge_agent.transport.names import addresses_of
from edge_agent.transport.peer_sockets import Dialled
from edge_agent.transport.watched import LinkEvent
from edge_agent.wire.peering import (
    DoorAnswer,
    Hello,
    Join,
    Joined,
    Refused,
    Sounded,
    Welcome,
    decode_from,
)
from edge_agent.wire.tokens import Token

JOIN_S: Final = 10.0
"""How long the device that invites may take to answer."""


class Joining:
    """One attempt. The device that invites is asked at all its addresses at once; if it does not
    know the token (any more), whether it knows this device."""

    def __init__(self, token: Token, host: Host, own: PublicKey) -> None:
        self.done: Future[Peer] = Future()
        """The peer that this device has then, or why it has none: `PeerRefused`, `PeerLost`, or
        what the other device says."""
        self._token = token
        self._host = host
        self._own = own
        self._until_s = clock.monotonic_s() + JOIN_S
        self._asking: list[Dialled] = []
        self._is_known = False
        """Whether it is asked if it knows this device."""
        self._unproven = ""

    def start(self) -> None:
        """Ask."""
        self._host.later(self._look_up)

    def _look_up(self) -> None:
        found = addresses_of(self._token.endpoints)
        self._host.post(lambda: self._ask(found))

    def _ask(self, endpoints: tuple[Endpoint, ...]) -> None:
        if self.done.done():
            return
        own = self._host.hello()
        message: Hello | Join = own
        keys = self._host.keys
        if not self._is_known:
            keys = keys_of(self._token.secret)
            message = Join(
                key=self._own, name=own.name, endpoints=own.endpoints, version=own.version
            )
        raw = self._host.codec.encode(message)
        for endpoint in endpoints:
            made = self._host.switchboard.dial(endpoint, keys, self._token.key, self._on_input)
            self._asking.append(made)
            made.send(raw)
        if not endpoints:
            hosts = ", ".join(endpoint.host for endpoint in self._token.endpoints)
            self._end(PeerLost(f"{self._name}: no such host: {hosts}; is there a network?"))

    def _on_input(self, asked: Dialled) -> None:
        for event in asked.events():
            if event is LinkEvent.UNPROVEN:
                self._unproven = unproven(asked.endpoint)
            if event is LinkEvent.REFUSED:
                self._refused(asked)
                return
        raw = asked.receive()
        if raw is None or self.done.done():
            return
        try:
            answer: DoorAnswer = decode_from(self._host.codec.from_door, raw)
        except ProtocolError as error:
            self._end(error)
            return
        match answer:
            case Joined() | Welcome():
                self._end(self._peer(asked.endpoint))
            case Sounded():
                self._end(ProtocolError("it answered what was not asked"))
            case Refused(code=code, message=message):
                self._end(error_from_code(code, f"{self._name}: {plain_text(message)}"))

    @property
    def _name(self) -> str:
        return f'device "{self._token.name}"'

    def _peer(self, reached_at: Endpoint) -> Peer:
        peer = Peer(
            key=self._token.key,
            name=self._token.name,
            origin=Origin.JOINED,
            added_at_s=clock.wall_s(),
        )
        return peer.listens_at(self._token.endpoints, reached_at)

    def _refused(self, asked: Dialled) -> None:
        self._asking.remove(asked)
        self._host.switchboard.close(asked)
        if self._is_known:
            self._end(
                PeerRefused(
                    f"{self._name} does not take the token: it was not given out since that agent "
                    "started, or long ago; `edge-agent invite` there prints a new one"
                )
            )
        else:
            # The token is spent, perhaps by an attempt of ours whose answer was lost.
            endpoint = asked.endpoint
            self._close()
            self._is_known = True
            self._ask((endpoint,))

    def tick(self, now_s: float) -> None:
        """Give up when it takes too long."""
        if now_s > self._until_s and not self.done.done():
            places = ", ".join(map(str, self._token.endpoints))
            why = self._unproven or (
                f"it does not answer at {places}: is its agent running, and can this device reach "
                "it there (network, firewall)?"
            )
            self._end(PeerLost(f"{self._name}: {why}"))

    def _end(self, outcome: Peer | EdgeAgentError) -> None:
        self._close()
        if isinstance(outcome, Peer):
            self.done.set_result(outcome)
        else:
            self.done.set_exception(outcome)

    def stop(self) -> None:
        """The agent ends."""
        if not self.done.done():
            self._end(PeerLost("the agent is stopping"))

    def _close(self) -> None:
        for asked in self._asking:
            self._host.switchboard.close(asked)
        self._asking.clear()
