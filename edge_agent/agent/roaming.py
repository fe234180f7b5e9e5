"""Which of several addresses of a peer is the best one, as where a cable lies beside Wi-Fi: the
other ones are tried now and then, and a connection moves where it is plainly better off. Only the
thread of `peering.Peering` uses it.

What is compared is measured in the same way at each address: at the door of the peer, which sends
as many bytes as it is asked for. The connection that there is stays until the new one is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from edge_agent import clock
from edge_agent.agent.contents import ContentLine
from edge_agent.agent.peer_host import Host, understood
from edge_agent.endpoints import Endpoint
from edge_agent.errors import ProtocolError
from edge_agent.peers import Peer, PublicKey
from edge_agent.transport.peer_sockets import Dialled
from edge_agent.transport.watched import LinkEvent
from edge_agent.wire.messages import Message
from edge_agent.wire.peering import DoorAnswer, Sound, Sounded, Welcome, decode_from

log = logging.getLogger(__name__)

FIRST_S: Final = 3.0
"""After a connection was made."""
EVERY_S: Final = 300.0
AGAIN_S: Final = 10.0
"""After it could not be tried because the connection was in use, or gone."""
BETWEEN_S: Final = 2.0
"""Between two addresses: doors take few messages at once."""
TRIAL_S: Final = 3.0
"""How long an answer may take."""
REST_S: Final = 5.0
"""A connection for content that was used since is not ended."""
BETTER: Final = 1.5
"""So much quicker another address must be: less is noise, and not worth a move."""
_SMALL_BYTES, _LARGE_BYTES = 32 * 1024, 192 * 1024
STEPS: Final = ((1, 0), (1, 0), (2, _SMALL_BYTES), (4, _LARGE_BYTES))
"""Answers, and their bytes. The first one waits for the handshake, the second tells the round trip,
the others the goodput."""
ENOUGH_S: Final = 0.03
"""A step that takes so long tells enough."""
_WORK_BYTES: Final = 1 << 20
"""What is compared is how long so much takes to arrive."""


class Roamer(Protocol):
    """Who may be better off elsewhere."""

    peer: Peer
    contents: ContentLine

    @property
    def door(self) -> tuple[Endpoint, PublicKey] | None:
        """The door behind which it is connected by its own doing, with the key that is proven
        there; None: it is not."""
        ...

    def told(self, door: Endpoint, key: PublicKey, welcome: Welcome, now_s: float) -> bool:
        """The peer, which proved this key at this door, says where it listens. False: it is not the
        device that is connected, but another one with the same key."""
        ...

    def take_line(self, at: Endpoint, key: PublicKey) -> Dialled:
        """A connection to there beside the one that there is; what happens to it is told to
        `line_changed`."""
        ...

    def move(self, line: Dialled, door: Endpoint, welcome: Welcome, now_s: float) -> None:
        """Use this connection, which is open, from now on."""
        ...


class Roaming:
    """Of one peer."""

    def __init__(self, roamer: Roamer, host: Host) -> None:
        self._roamer = roamer
        self._host = host
        self._next_s = float("inf")
        self._left: list[Endpoint] = []
        """Doors that are still to be tried."""
        self._took_s: dict[Endpoint, float] = {}
        """What those that were tried need for `_WORK_BYTES`."""
        self._trial: _Trial | None = None
        self._line: Dialled | None = None
        self._until_s = 0.0
        self._target: tuple[Endpoint, Welcome] | None = None

    def begin_anew(self, now_s: float) -> None:
        """There is another connection."""
        self.close()
        self._next_s = now_s + FIRST_S

    def wait(self, now_s: float) -> None:
        """It has moved, and stays for a while."""
        self.close()
        self._next_s = now_s + EVERY_S

    def tick(self, now_s: float) -> None:
        """Go on, or begin, if it is time for that."""
        if self._trial is not None or self._line is not None:
            if now_s > self._until_s:
                self._give_up(now_s)
        elif now_s >= self._next_s:
            if self._left:
                self._sound(self._left.pop(0), now_s)
            elif self._took_s:
                self._decide(now_s)
            else:
                self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        at = self._roamer.door
        if at is None or now_s < self._roamer.contents.used_s + REST_S:
            self._next_s = now_s + AGAIN_S
            return
        door, key = at

        def told(welcome: Welcome | None) -> None:
            self._end_trial()
            now_s = clock.monotonic_s()
            self._next_s = now_s + EVERY_S
            if welcome is not None and self._roamer.told(door, key, welcome, now_s):
                self._queue(door, understood(welcome.endpoints))

        # Where it listens now: a cable may have been plugged in since it was connected.
        self._until_s = now_s + TRIAL_S
        self._trial = _Knock(self._host, door, key, told)

    def _queue(self, here: Endpoint, told: list[Endpoint]) -> None:
        known = told or [one for one in self._roamer.peer.endpoints if one.is_address]
        others = [one for one in known if one.host != here.host]
        if others:
            self._left = [here, *others]
            self._next_s = clock.monotonic_s()

    # ---- one door after the other

    def _sound(self, door: Endpoint, now_s: float) -> None:
        at = self._roamer.door
        if at is None:
            self.begin_anew(now_s)
            return

        def end(took_s: float | None) -> None:
            self._end_trial()
            if took_s is not None:
                self._took_s[door] = took_s
            elif door == at[0]:
                self._left.clear()  # there is nothing to compare with
            pause_s = BETWEEN_S if self._left else 0.0 if self._took_s else EVERY_S
            self._next_s = clock.monotonic_s() + pause_s

        self._until_s = now_s + TRIAL_S
        self._trial = _Sounding(self._host, door, at[1], end)

    def _decide(self, now_s: float) -> None:
        at, took_s = self._roamer.door, self._took_s
        self._took_s = {}
        self._next_s = now_s + EVERY_S
        if at is None or at[0] not in took_s or now_s < self._roamer.contents.used_s + REST_S:
            return
        best = min(took_s, key=lambda door: took_s[door])
        if took_s[best] * BETTER > took_s[at[0]]:
            return
        log.info(
            'peer "%s" is tried at %s instead of %s: 1 MiB takes %.3g s there, and here %.3g s',
            self._roamer.peer.name,
            best,
            at[0],
            took_s[best],
            took_s[at[0]],
        )
        self._until_s = now_s + TRIAL_S
        self._trial = _Knock(self._host, best, at[1], lambda answer: self._welcomed(best, answer))

    def _welcomed(self, door: Endpoint, welcome: Welcome | None) -> None:
        self._end_trial()
        at = self._roamer.door
        if welcome is None or at is None:
            return
        if self._roamer.told(door, at[1], welcome, clock.monotonic_s()):
            self._target = door, welcome
            self._line = self._roamer.take_line(door.at(welcome.port), at[1])

    def line_changed(self, line: Dialled, events: set[LinkEvent], now_s: float) -> None:
        """Something happened to a connection that is no one's yet."""
        if line is not self._line or LinkEvent.OPEN not in events:
            return
        assert self._target is not None
        door, welcome = self._target
        if now_s < self._roamer.contents.used_s + REST_S:
            self._give_up(now_s)
            return
        self._line = self._target = None
        self._roamer.move(line, door, welcome, now_s)

    # ---- the end

    def _give_up(self, now_s: float) -> None:
        if isinstance(self._trial, _Sounding):
            self._trial.end(None)
        else:
            self.close()
            self._next_s = now_s + EVERY_S

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()
            self._trial = None

    def close(self) -> None:
        """Give up what is under way."""
        self._end_trial()
        if self._line is not None:
            self._host.switchboard.close(self._line)
        self._line = self._target = None
        self._left.clear()
        self._took_s = {}


class _Trial:
    """A question at a door, and another one."""

    def __init__(self, host: Host, door: Endpoint, key: PublicKey) -> None:
        self._host = host
        self._is_over = False
        self._dialled = host.switchboard.dial(door, host.keys, key, self._on_input)

    def _say(self, message: Message) -> None:
        self._dialled.send(self._host.codec.encode(message))

    def _on_input(self, dialled: Dialled) -> None:
        dialled.events()
        while not self._is_over and (raw := dialled.receive()) is not None:
            try:
                answer: DoorAnswer = decode_from(self._host.codec.from_door, raw)
            except ProtocolError:
                return  # nothing is believed of a door that says what makes no sense
            self._take(answer)

    def _take(self, answer: DoorAnswer) -> None:
        """It said that."""

    def close(self) -> None:
        """Ask no more."""
        self._is_over = True
        self._host.switchboard.close(self._dialled)


class _Sounding(_Trial):
    """How long a door needs to send something."""

    def __init__(
        self, host: Host, door: Endpoint, key: PublicKey, end: Callable[[float | None], None]
    ) -> None:
        super().__init__(host, door, key)
        self.end = end
        """Called once, with the seconds for `_WORK_BYTES`, or None."""
        self._trip_s = 0.0
        self._take_step(0)

    def _take_step(self, step: int) -> None:
        self._step = step
        self._asked_s = clock.monotonic_s()
        self._came: list[float] = []
        count, length_bytes = STEPS[step]
        for _ in range(count):
            self._say(Sound(length_bytes))

    def _take(self, answer: DoorAnswer) -> None:
        count, length_bytes = STEPS[self._step]
        if not isinstance(answer, Sounded) or len(answer.content) != length_bytes:
            self.end(None)
            return
        self._came.append(clock.monotonic_s())
        if len(self._came) < count:
            return
        if not length_bytes:
            self._trip_s = self._came[-1] - self._asked_s
            self._take_step(self._step + 1)
            return
        took_s = self._came[-1] - self._came[0]
        if took_s < ENOUGH_S and self._step + 1 < len(STEPS):
            self._take_step(self._step + 1)
            return
        bytes_per_s = (count - 1) * length_bytes / max(took_s, 1e-6)
        self.end(self._trip_s / 2 + _WORK_BYTES / bytes_per_s)


class _Knock(_Trial):
    """Asks a door where to connect."""

    def __init__(
        self, host: Host, door: Endpoint, key: PublicKey, end: Callable[[Welcome | None], None]
    ) -> None:
        super().__init__(host, door, key)
        self._end = end
        self._say(host.hello())

    def _take(self, answer: DoorAnswer) -> None:
        self._end(answer if isinstance(answer, Welcome) else None)
