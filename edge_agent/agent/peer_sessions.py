"""The connection to one peer: how it is made, kept, watched and ended. Only the thread of
`peering.Peering` uses it.

Either side may dial: whoever knows where the other listens knocks at its door, is told the port of
a socket that takes its key alone, and connects there. Both may do so at once; whichever connection
is up carries the messages of both.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from edge_agent import clock
from edge_agent.agent.acquaintance import Acquaintance
from edge_agent.agent.contents import ContentLine
from edge_agent.agent.gauging import Gauge
from edge_agent.agent.kept_words import KeptWords
from edge_agent.agent.knocking import KNOCK_S, REFUSED_PAUSE_S, Knocking
from edge_agent.agent.liveness import Liveness
from edge_agent.agent.offences import Offences, Pace
from edge_agent.agent.peer_host import Host, end_crowd
from edge_agent.agent.roaming import Roaming
from edge_agent.agent.twins import ONE_KEY, Twins
from edge_agent.endpoints import Endpoint
from edge_agent.errors import EdgeAgentError, OtherVersion, ProtocolError
from edge_agent.literals import plain_text
from edge_agent.peers import (
    Peer,
    PeerCondition,
    PeerStatus,
    PublicKey,
)
from edge_agent.transport.peer_sockets import Dialled, Listener
from edge_agent.transport.watched import LinkEvent
from edge_agent.wire.messages import Message
from edge_agent.wire.peering import (
    Beat,
    DoorAnswer,
    Goodbye,
    Goodput,
    Hello,
    Leaving,
    NewKey,
    NotedKey,
    PeerMessage,
    Refused,
    Welcome,
    decode_from,
)
from edge_agent.wire.telling import AskProfile, Profile, Statistics

log = logging.getLogger(__name__)

MESSAGES_PER_S: Final = 100.0
MESSAGES_AT_ONCE: Final = 200.0
CONNECTIONS_PER_S: Final = 2.0
CONNECTIONS_AT_ONCE: Final = 40.0
"""That a peer may make, one after the other: libzmq ends one on which it sends what it must not,
and it could go on so."""
MOST_CONNECTIONS: Final = 16
"""At the socket of a peer at once over which nothing came; as many over which something did are an
offence, since a peer needs one."""
A_TURN: Final = 16
"""Messages of one peer that are dealt with before the others have their turn."""
STAYS_OUT: Final = "its heartbeats stay out: it does not run, or the network is down"
_KEPT_ROUTES: Final = 8
_ENDS: Final = frozenset({LinkEvent.ENDED, LinkEvent.UNPROVEN, LinkEvent.REFUSED})


class Session:
    """One peer."""

    def __init__(self, peer: Peer, host: Host, now_s: float) -> None:
        self.peer = peer
        self.domain = b"peer:" + peer.id.encode()
        """Of the socket that takes this peer alone; stays when its key changes."""
        self.liveness = Liveness(host.patience, now_s)
        self.offences = Offences()
        self.on_noted: Callable[[PublicKey], None] | None = None
        """Called when the peer has noted a new key of this device."""
        self.contents = ContentLine(
            host,
            peer.id.encode(),
            lambda: self.peer.id,
            lambda what: self.offend(what, clock.monotonic_s()),
        )
        self.gauge = Gauge(self.contents.ask_probe, self._measured, now_s)
        self.contents.on_piece = lambda count, is_pressed: self.gauge.came(
            count, is_pressed=is_pressed
        )
        self.acquaintance = Acquaintance(
            host,
            lambda: self.peer.id,
            self.send,
            lambda what: self.offend(what, clock.monotonic_s()),
        )
        self._send_bytes_per_s: float | None = None
        self._send_told_s = 0.0
        self._host = host
        self._listener: Listener | None = None
        self._route: bytes | None = None
        self._left_routes: deque[bytes] = deque(maxlen=_KEPT_ROUTES)
        """Of connections that were followed by another one."""
        self._twins = Twins()
        self._dialled: Dialled | None = None
        self._is_open = False
        self._dialled_s = 0.0
        self._knocking = Knocking(self, host, now_s)
        self._roaming = Roaming(self, host)
        self._door_at: tuple[Endpoint, PublicKey] | None = None
        self._next_beat_s = now_s
        self._pace = Pace(MESSAGES_PER_S, MESSAGES_AT_ONCE)
        self._connections = Pace(CONNECTIONS_PER_S, CONNECTIONS_AT_ONCE)
        self._kept = KeptWords(self, host)
        self._paused: list[tuple[float, Listener | Dialled]] = []
        self._their_beat_s = host.patience.beat_s
        self._version = ""
        self._why = self._first_why()
        self._is_barred = False
        self._is_ended = False

    def _first_why(self) -> str:
        if self.peer.endpoints:
            return "not reached yet"
        if self._host.listens_at is None:
            return (
                "nobody can connect: this agent does not listen (`serve --listen`), and where the "
                "peer listens is not known (`peer add … --at`)"
            )
        return "it has not connected yet"

    # ---- what happens by itself

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        if self.offences.is_barred(now_s):
            return
        if self._is_barred:
            self._is_barred = False
            self._why = "it was barred until now"
        self._resume_paused(now_s)
        if self.liveness.look(now_s):
            if not self.is_there:
                self._why = self._why or STAYS_OUT
            self._tell_condition()
        if now_s >= self._next_beat_s and self._has_channel:
            self._beat(now_s)
        if self._dialled is not None and not self.is_there and self._is_stale(now_s):
            self._hang_up(now_s)
        self._knocking.tick(now_s)
        if self.is_there:
            self.gauge.tick(now_s)
            self._roaming.tick(now_s)
            self.acquaintance.tick(now_s)

    def due_s(self, now_s: float) -> float:
        """When `tick` is due next, if nothing is asked before."""
        if self.liveness.condition is PeerCondition.UP and self._has_channel:
            return self._next_beat_s
        return now_s + self._host.patience.beat_s / 2

    @property
    def is_there(self) -> bool:
        """Whether its heartbeats come."""
        return self.liveness.condition in (PeerCondition.UP, PeerCondition.SLOW)

    @property
    def reached_at(self) -> tuple[Endpoint, ...]:
        """Where the agent of the peer is, what works now first."""
        own = (self._dialled.endpoint,) if self._dialled is not None and self.dials else ()
        return tuple(dict.fromkeys((*own, *self.peer.endpoints)))

    @property
    def receive_bytes_per_s(self) -> float | None:
        """Goodput of the link from the peer; None: it is not there, or was not measured."""
        return self.gauge.bytes_per_s if self.is_there else None

    @property
    def dials(self) -> bool:
        """Whether this device made the connection that is used."""
        return self._dialled is not None and self._is_open

    def _is_stale(self, now_s: float) -> bool:
        return now_s - self._dialled_s > KNOCK_S

    @property
    def _has_channel(self) -> bool:
        return self._is_open or self._route is not None

    def _beat(self, now_s: float) -> bool:
        number, echo, held_s = self.liveness.next_beat(now_s)
        # The beats of all peers go out together, so that this device is woken less often.
        beat_s = self._host.patience.beat_s
        self._next_beat_s = (now_s // beat_s + 1) * beat_s
        return self.send(Beat(number=number, echo=echo, held_s=held_s))

    def send(self, message: Message) -> bool:
        """Send on whichever connection is up; False: none is, or too much waits already."""
        raw = self._host.codec.encode(message)
        if self._dialled is not None and self._is_open:
            return self._dialled.send(raw)
        if self._listener is not None and self._route is not None:
            if self._listener.send(self._route, raw):
                return True
            self._route = None
        return False

    def _measured(self, bytes_per_s: float) -> None:
        self.send(Goodput(bytes_per_s))

    # ---- dialling

    @property
    def wants_in(self) -> bool:
        """See `knocking.Caller`."""
        is_connected = self._dialled is not None or (self.is_there and self._has_channel)
        return bool(self.peer.endpoints) and not is_connected and not self._is_ended

    def knocked_in_vain(self, why: str, now_s: float, *, is_refused: bool) -> None:
        """See `knocking.Caller`."""
        self._why = plain_text(why)
        if is_refused and not self._has_channel:
            # It is there, and nothing is to be awaited of it.
            self.liveness.end(now_s)

    def welcomed(self, at: Endpoint, key: PublicKey, welcome: Welcome, now_s: float) -> None:
        """See `knocking.Caller`."""
        if not self.told(at, key, welcome, now_s):
            return
        self._twins.let_in(welcome.agent)
        self._dialled = self._host.switchboard.dial(
            at.at(welcome.port), self._host.keys, key, self._on_dialled_input
        )
        self._door_at = at, key
        self._dialled_s = now_s
        self._is_open = False
        self._roaming.begin_anew(now_s)
        self.contents.dial(at.at(welcome.content_port), key)

    # ---- being better off elsewhere

    @property
    def door(self) -> tuple[Endpoint, PublicKey] | None:
        """See `roaming.Roamer`."""
        return self._door_at if self._dialled is not None and self._is_open else None

    def told(self, door: Endpoint, key: PublicKey, welcome: Welcome, now_s: float) -> bool:
        """See `roaming.Roamer`."""
        if self._is_twin(key, welcome.agent, now_s):
            return False
        self._told(key, welcome.version, welcome.beat_s, door, welcome.endpoints, now_s)
        return True

    def take_line(self, at: Endpoint, key: PublicKey) -> Dialled:
        """See `roaming.Roamer`."""
        return self._host.switchboard.dial(at, self._host.keys, key, self._on_dialled_input)

    def move(self, line: Dialled, door: Endpoint, welcome: Welcome, now_s: float) -> None:
        """See `roaming.Roamer`."""
        if self._dialled is not None:
            self._close(self._dialled)
        self._dialled, self._door_at = line, (door, line.key)
        self._dialled_s = now_s
        self._is_open = True
        self._beat(now_s)
        self.contents.dial(door.at(welcome.content_port), line.key)
        self.gauge.begin_anew(now_s)
        self._roaming.wait(now_s)

    # ---- the connection that this device made

    def _on_dialled_input(self, dialled: Dialled) -> None:
        now_s = clock.monotonic_s()
        events = set(dialled.events())
        if dialled is not self._dialled:
            self._roaming.line_changed(dialled, events, now_s)
        elif LinkEvent.OPEN in events:
            self._is_open = True
            self._beat(now_s)
        # Before its end: what it said last is a goodbye.
        for _ in range(A_TURN):
            if dialled is not self._dialled or self._is_paused(dialled):
                return
            if (raw := dialled.receive()) is None:
                break
            self._take(raw, dialled, now_s)
        if events & _ENDS and dialled is self._dialled:
            self._hang_up(now_s)

    def _hang_up(self, now_s: float) -> None:
        if self._dialled is not None:
            self._close(self._dialled)
            self._dialled = None
        self._is_open = False
        self._roaming.close()
        self._knocking.pause(now_s)

    # ---- being dialled

    def not_understood(self, error: ProtocolError, now_s: float) -> None:
        """What it said at the door was nothing that is said there."""
        if isinstance(error, OtherVersion):
            self._why = plain_text(str(error))
        else:
            self.offend(str(error), now_s)

    def greet(self, key: PublicKey, hello: Hello, now_s: float) -> DoorAnswer:
        """The peer stands at the door: where it may connect, or why not."""
        if self.offences.is_barred(now_s):
            return Refused("busy", self._why_barred(now_s))
        if self._is_twin(key, hello.agent, now_s):
            return Refused("peer-refused", ONE_KEY)
        at = self._host.listens_at
        assert at is not None, "somebody stands at a door that is not there"
        try:
            if self._listener is None:
                self._listener = self._host.switchboard.listen(
                    at.at(0), self._host.keys, self.domain, self._on_listener_input
                )
            content_port = self.contents.listen(at.at(0))
        except EdgeAgentError as error:
            log.error('peer "%s" cannot connect: %s', self.peer.name, error)
            return Refused("busy", "it cannot open a socket for this device: see its log")
        self._twins.let_in(hello.agent)
        self._told(key, hello.version, hello.beat_s, None, hello.endpoints, now_s)
        own = self._host.hello()
        return Welcome(
            port=self._listener.endpoint.port,
            content_port=content_port,
            endpoints=own.endpoints,
            version=own.version,
            beat_s=own.beat_s,
            agent=own.agent,
        )

    def _is_twin(self, key: PublicKey, agent: str, now_s: float) -> bool:
        """Whether another device than the one that is connected comes with its key. One that
        started anew has left the connection that it had; one with the next key is who told it."""
        if not self._twins.is_other(agent) or key == self.peer.next_key:
            return False
        if not (self.is_there and self._has_channel and self._beat(now_s)):
            return False
        self._twins.seen(now_s)
        self._host.counters["devices with the key of another one refused"] += 1
        if self._host.seldom.is_due(f"one key: {self.peer.id}", now_s):
            log.warning('peer "%s": %s', self.peer.name, ONE_KEY)
        return True

    def _on_listener_input(self, listener: Listener) -> None:
        now_s = clock.monotonic_s()
        for event in listener.events():
            # Proven ones alone: anybody can connect to a port and be wrong there.
            if event is LinkEvent.OPEN and self._connections.take(now_s):
                self.offend("it connects again and again", now_s)
        end_crowd(self._host, listener, MOST_CONNECTIONS, now_s)
        if listener is self._listener and listener.connections > 2 * MOST_CONNECTIONS:
            self._crowded(now_s)
        for _ in range(A_TURN):
            if listener is not self._listener or self._is_paused(listener):
                return
            if (received := listener.receive()) is None:
                return
            if received.key not in self.peer.keys:
                self._host.counters["messages with another key than the connection's"] += 1
                continue
            if received.route in self._left_routes:
                continue  # its device has connected anew, or another one with its key has
            if self._route is not None and received.route != self._route:
                self._left_routes.append(self._route)
            self._route = received.route
            self._take(received.payload, listener, now_s)

    def _crowded(self, now_s: float) -> None:
        """It holds connections to its socket on which it proved its key: it gets another one."""
        assert self._listener is not None
        self.send(Goodbye(Leaving.RECONNECTS))
        self._close(self._listener)
        self._listener = self._route = None
        self.offend("it holds more connections than it may", now_s)

    # ---- what comes

    def _take(self, raw: bytes, source: Listener | Dialled, now_s: float) -> None:
        wait_s = self._pace.take(now_s)
        if wait_s:
            self._host.switchboard.pause(source)
            self._paused.append((now_s + wait_s, source))
            self.offend("it sends more messages than it may", now_s)
            return
        try:
            message: PeerMessage = decode_from(self._host.codec.from_peer, raw)
        except ProtocolError as error:
            self.offend(str(error), now_s)
            return
        match message:
            case Beat(number=number, echo=echo, held_s=held_s):
                self._heard_beat(number, echo, held_s, now_s)
            case Goodput(bytes_per_s=bytes_per_s):
                self._send_bytes_per_s, self._send_told_s = bytes_per_s, now_s
            case NewKey(key=key):
                self._kept.will_have_key(key, now_s)
            case NotedKey(key=key):
                if self.on_noted is not None:
                    self.on_noted(PublicKey(key))
            case Goodbye(why=why):
                self._left(why, now_s)
            case Statistics():
                self.acquaintance.heard(message, now_s)
            case AskProfile():
                self.acquaintance.asked()
            case Profile(packed=packed):
                self.acquaintance.heard_profile(packed)
            case _:
                try:
                    self._host.deploys(self.peer, message)
                except ProtocolError as error:
                    self.offend(str(error), now_s)

    def _heard_beat(self, number: int, echo: int | None, held_s: float, now_s: float) -> None:
        before = self.liveness.condition
        if before is PeerCondition.GONE:
            self.liveness.begin(self._their_beat_s, now_s)
            self.gauge.begin_anew(now_s)
            self.acquaintance.begin_anew()
            self._knocking.succeeded()
            if self._is_open is False:
                # It knows that it was heard when an answer comes.
                self._beat(now_s)
        self.liveness.beat(number, echo, held_s, now_s)
        if self.liveness.condition is not before:
            self._why = ""
            self._tell_condition()

    def _left(self, why: Leaving, now_s: float) -> None:
        self._hang_up(now_s)
        # It has closed its socket for content, too: what was asked for will not come.
        self.contents.hang_up()
        self._route = None
        match why:
            case Leaving.RECONNECTS:
                self._knocking.hurry(now_s)
                return
            case Leaving.STOPPED:
                self._why = "it was stopped"
            case Leaving.REMOVED:
                self._why = "it removed this device from its list"
                self._knocking.pause(now_s, REFUSED_PAUSE_S)
        self.liveness.end(now_s)
        self._tell_condition()

    def _told(
        self,
        key: PublicKey,
        version: str,
        beat_s: float,
        reached_at: Endpoint | None,
        told: Iterable[str],
        now_s: float,
    ) -> None:
        """The peer, with this key, said of itself."""
        self._version = plain_text(version, 64)
        self._their_beat_s = max(beat_s, 1e-3)
        self._kept.listens_at(key, told, reached_at, now_s)

    # ---- rules

    def offend(self, what: str, now_s: float) -> None:
        """It broke a rule."""
        # It may quote what the peer sent.
        what = plain_text(what)
        self._host.counters["offences of peers"] += 1
        is_first = self.offences.count == 0
        if self.offences.note(what, now_s):
            left_s = self.offences.bar_left_s(now_s)
            log.warning('peer "%s" is barred for %.0f s: %s', self.peer.name, left_s, what)
            self._is_barred = True
            self._disconnect()
            self.liveness.end(now_s)
            self._host.has_changed(self.peer, PeerCondition.BARRED)
        elif is_first:
            log.warning('peer "%s": %s', self.peer.name, what)

    def _is_paused(self, source: Listener | Dialled) -> bool:
        return any(source is one for _, one in self._paused)

    def _resume_paused(self, now_s: float) -> None:
        for until_s, source in [one for one in self._paused if one[0] <= now_s]:
            self._paused.remove((until_s, source))
            self._host.switchboard.resume(source)

    # ---- the end

    def _close(self, made: Listener | Dialled) -> None:
        self._paused = [one for one in self._paused if one[1] is not made]
        self._host.switchboard.close(made)

    def _disconnect(self) -> None:
        self._knocking.close()
        self._roaming.close()
        self.contents.close()
        for made in (self._listener, self._dialled):
            if made is not None:
                self._close(made)
        self._listener = self._dialled = self._route = None
        self._is_open = False

    def reconnect(self, now_s: float) -> None:
        """End what is connected, and connect anew: this device has another key."""
        self.send(Goodbye(Leaving.RECONNECTS))
        self._disconnect()
        self._knocking.succeeded()
        self._knocking.hurry(now_s)

    def end(self, *, is_removed: bool) -> None:
        """End all connections at once; the other side is told, if it listens."""
        self.send(Goodbye(Leaving.REMOVED if is_removed else Leaving.STOPPED))
        self._disconnect()
        self._kept.end()
        self._is_ended = True

    # ---- what it is

    def _tell_condition(self) -> None:
        condition = self.liveness.condition
        level = logging.INFO if condition is PeerCondition.UP else logging.WARNING
        why = f": {self._why}" if self._why and condition is PeerCondition.GONE else ""
        log.log(level, 'peer "%s" is %s%s', self.peer.name, condition, why)
        self._host.has_changed(self.peer, condition)

    def _why_barred(self, now_s: float) -> str:
        left_s = self.offences.bar_left_s(now_s)
        return f"{self.offences.last}: nothing is taken for {left_s:.0f} s"

    def status(self, now_s: float) -> PeerStatus:
        """How it is."""
        is_barred = self.offences.is_barred(now_s)
        is_away = self.liveness.condition is PeerCondition.GONE
        why = "" if self.is_there else self._why
        if self._twins.are_there(now_s):
            why = ONE_KEY
        if is_barred:
            why = self._why_barred(now_s)
        profile = self.acquaintance.profile
        known = PeerStatus(
            peer=self.peer,
            condition=PeerCondition.BARRED if is_barred else self.liveness.condition,
            for_s=now_s - self.liveness.since_s,
            why=why,
            endpoint=self._dialled.endpoint if self._dialled and self._is_open else None,
            version=self._version,
            offences=self.offences.count,
            profile=None if profile is None else profile.summary,
        )
        if is_away:
            return known
        receive, send = self.gauge.bytes_per_s, self._send_bytes_per_s
        return replace(
            known,
            round_trip_s=self.liveness.round_trip_s,
            receive_bytes_per_s=receive,
            receive_age_s=None if receive is None else now_s - self.gauge.measured_s,
            send_bytes_per_s=send,
            send_age_s=None if send is None else now_s - self._send_told_s,
            state=self.acquaintance.state(now_s),
            links=self.acquaintance.links(self._host.keys.device, now_s),
        )
