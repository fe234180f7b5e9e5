"""How this device asks at the door of a peer where it may connect. Only the thread of
`peering.Peering` uses it."""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from edge_agent import clock
from edge_agent.agent.peer_host import Host, unproven
from edge_agent.endpoints import Endpoint
from edge_agent.errors import OtherVersion, ProtocolError
from edge_agent.peers import MAX_ENDPOINTS, Peer, PublicKey
from edge_agent.transport.names import addresses_of
from edge_agent.transport.peer_sockets import Dialled
from edge_agent.transport.watched import LinkEvent
from edge_agent.wire.peering import (
    DoorAnswer,
    Joined,
    Refused,
    Sounded,
    Welcome,
    decode_from,
)

KNOCK_S: Final = 3.0
"""How long an answer of the door may take."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts to reach a peer; the pause doubles."""
REFUSED_PAUSE_S: Final = 2.0
"""After an attempt that was refused."""


class Caller(Protocol):
    """Who wants to be let in."""

    peer: Peer

    @property
    def wants_in(self) -> bool:
        """Whether there is no connection, and one can be made."""
        ...

    def welcomed(self, at: Endpoint, key: PublicKey, welcome: Welcome, now_s: float) -> None:
        """The peer, which proved this key at this door, says where."""
        ...

    def knocked_in_vain(self, why: str, now_s: float, *, is_refused: bool) -> None:
        """It does not answer, or (`is_refused`) does not admit this device."""
        ...

    def offend(self, what: str, now_s: float) -> None:
        """It broke a rule."""
        ...


class Knocking:
    """One attempt after the other, each at all addresses of the peer at once."""

    def __init__(self, caller: Caller, host: Host, now_s: float) -> None:
        self._caller = caller
        self._host = host
        self._knocks: list[Dialled] = []
        self._is_looking_up = False
        self._until_s = 0.0
        self._next_s = now_s
        self._pause_s = FIRST_PAUSE_S
        self._unproven = ""

    def tick(self, now_s: float) -> None:
        """Give up, or begin, if it is time for that."""
        if self._knocks and now_s > self._until_s:
            self._end(self._unproven or "nothing answers", now_s)
        is_busy = self._knocks or self._is_looking_up
        if not is_busy and now_s >= self._next_s and self._caller.wants_in:
            self._is_looking_up = True
            endpoints = self._caller.peer.endpoints
            if all(endpoint.is_address for endpoint in endpoints):
                self._knock(endpoints)
            else:
                self._host.later(partial(self._look_up, endpoints))

    def _look_up(self, endpoints: tuple[Endpoint, ...]) -> None:
        found = addresses_of(endpoints)
        self._host.post(lambda: self._knock(found))

    def _knock(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._is_looking_up = False
        now_s = clock.monotonic_s()
        if not self._caller.wants_in:
            return
        if not endpoints:
            names = ", ".join(map(str, self._caller.peer.endpoints))
            self._end(f"no such host: {names}", now_s)
            return
        self._until_s = now_s + KNOCK_S
        self._unproven = ""
        hello = self._host.codec.encode(self._host.hello())
        for endpoint in endpoints[:MAX_ENDPOINTS]:
            for key in self._caller.peer.keys:
                made = self._host.switchboard.dial(endpoint, self._host.keys, key, self._on_input)
                self._knocks.append(made)
                made.send(hello)

    def _on_input(self, knock: Dialled) -> None:
        now_s = clock.monotonic_s()
        for event in knock.events():
            if event is LinkEvent.UNPROVEN:
                self._unproven = unproven(knock.endpoint)
            if event is LinkEvent.REFUSED:
                why = (
                    "it does not admit this device: it was removed there, or `edge-agent peer add "
                    f"{self._host.keys.public}` is missing there"
                )
                self._drop(knock, why, now_s, is_refused=True)
                return
        if (raw := knock.receive()) is not None:
            self._answered(knock, raw, now_s)

    def _answered(self, knock: Dialled, raw: bytes, now_s: float) -> None:
        try:
            answer: DoorAnswer = decode_from(self._host.codec.from_door, raw)
        except OtherVersion as error:
            self._drop(knock, str(error), now_s)
            return
        except ProtocolError as error:
            self._caller.offend(str(error), now_s)
            self._drop(knock, str(error), now_s)
            return
        match answer:
            case Welcome():
                at, key = knock.endpoint, knock.key
                self.close()
                self._caller.welcomed(at, key, answer, now_s)
            case Refused(message=message):
                self._drop(knock, message, now_s)
            case Joined() | Sounded():
                self._caller.offend("it answered what was not asked", now_s)
                self._drop(knock, "it answered what was not asked", now_s)

    def _drop(self, knock: Dialled, why: str, now_s: float, *, is_refused: bool = False) -> None:
        # An offence may have ended them all.
        if knock in self._knocks:
            self._knocks.remove(knock)
            self._host.switchboard.close(knock)
        if is_refused:
            self._caller.knocked_in_vain(why, now_s, is_refused=True)
        if not self._knocks:
            self._end(why, now_s)
            self._next_s = now_s + REFUSED_PAUSE_S

    def _end(self, why: str, now_s: float) -> None:
        self.close()
        self.pause(now_s)
        self._caller.knocked_in_vain(why, now_s, is_refused=False)

    def pause(self, now_s: float, least_s: float = 0.0) -> None:
        """Wait before the next attempt, longer each time."""
        self._next_s = now_s + max(least_s, self._pause_s)
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def hurry(self, now_s: float) -> None:
        """Try at once."""
        self._next_s = now_s

    def succeeded(self) -> None:
        """The connection works: the next pause is a short one."""
        self._pause_s = FIRST_PAUSE_S

    def close(self) -> None:
        """Give up what is under way."""
        for knock in self._knocks:
            self._host.switchboard.close(knock)
        self._knocks.clear()
