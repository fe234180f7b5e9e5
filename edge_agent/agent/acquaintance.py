"""What one peer told of itself, and what it was told of this device. Only the thread of
`peering.Peering` uses it.

Each side says often how it is, and with that the hash of its device profile. Who does not have that
profile asks for it: so nothing is lost when a connection breaks, and nothing is sent again to a
device that has it on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from edge_agent.agent.own_words import is_news
from edge_agent.agent.peer_host import Host
from edge_agent.agent.peer_profiles import HeldProfile, held
from edge_agent.devices import DeviceId
from edge_agent.errors import ProtocolError
from edge_agent.peers import Gauged, PeerLink, PeerState
from edge_agent.wire.messages import Message
from edge_agent.wire.telling import AskProfile, Profile, Statistics, ToldGoodput

TOLD_S: Final = 4.0
"""It is told how this device is at least so often."""
ASK_AGAIN_S: Final = 5.0
"""A profile that did not come is asked for again."""


class Acquaintance:
    """With one peer."""

    def __init__(
        self,
        host: Host,
        device: Callable[[], DeviceId],
        send: Callable[[Message], bool],
        offend: Callable[[str], None],
    ) -> None:
        self._host = host
        self._device = device
        self._send = send
        self._offend = offend
        self._told: Statistics | None = None
        self._told_s = 0.0
        self._seen: Statistics | None = None
        """Of this it is known that it is no news."""
        self.heard_last: Statistics | None = None
        """How it said that it is, since it came."""
        self._heard_s = 0.0
        self._asked_s: float | None = None
        """When it was asked for its profile, if it has not answered."""
        self._refused: bytes | None = None
        """The hash of a profile that makes no sense, and need not come again."""

    def begin_anew(self) -> None:
        """It is there again: what it said before holds no more, and what it was told may be
        lost."""
        self._told = self.heard_last = None
        self._asked_s = None

    def tick(self, now_s: float) -> None:
        """Say what is to be said; the peer is there."""
        now = self._host.statistics
        if now is None or not self._is_due(now, now_s):
            self._seen = now
        elif self._send(now):
            self._told, self._told_s = now, now_s
        if self._wants_profile and (self._asked_s is None or now_s > self._asked_s + ASK_AGAIN_S):
            self._asked_s = now_s if self._send(AskProfile()) else None

    def _is_due(self, now: Statistics, now_s: float) -> bool:
        if self._told is None or now_s >= self._told_s + TOLD_S:
            return True
        return now is not self._seen and is_news(self._told, now)

    @property
    def _wants_profile(self) -> bool:
        wanted = None if self.heard_last is None else self.heard_last.profile
        has = self.profile
        return wanted not in (None, self._refused, None if has is None else has.digest)

    @property
    def profile(self) -> HeldProfile | None:
        """What it told, now or before this agent started."""
        return self._host.profiles.of(self._device())

    # ---- what comes

    def heard(self, statistics: Statistics, now_s: float) -> None:
        """It said how it is."""
        if any(link.device == self._device() for link in statistics.links):
            self._offend("it tells of a link from itself to itself")
            return
        self.heard_last, self._heard_s = statistics, now_s

    def asked(self) -> None:
        """It wants to know the profile of this device."""
        # None: it was not measured, which the peer was told.
        if (packed := self._host.own.packed_profile) is not None:
            self._send(Profile(packed))

    def heard_profile(self, packed: bytes) -> None:
        """It said what it can do."""
        if self._asked_s is None:
            self._offend("it told a device profile that nobody asked for")
            return
        self._asked_s = None
        digest = hashlib.sha256(packed).digest()
        if self.heard_last is None or digest != self.heard_last.profile:
            return  # it has another one since, and says so
        try:
            told = held(packed)
        except ProtocolError as error:
            self._refused = digest
            self._offend(str(error))
            return
        self._host.profiles.keep(self._device(), told)

    # ---- what is known

    def state(self, now_s: float) -> PeerState | None:
        """How it is, as it told."""
        told = self.heard_last
        if told is None:
            return None
        free_bytes = told.free_memory_bytes
        if self.profile is not None:
            free_bytes = min(free_bytes, self.profile.summary.memory_bytes)
        return PeerState(
            load_fraction=told.load_fraction,
            free_memory_bytes=free_bytes,
            speed_fraction=told.speed_fraction,
            battery_fraction=told.battery_fraction,
            age_s=now_s - self._heard_s,
        )

    def links(self, own: DeviceId, now_s: float) -> tuple[PeerLink, ...]:
        """What it knows of its links to others than `own`, which is this device."""
        if self.heard_last is None:
            return ()
        since_s = now_s - self._heard_s
        return tuple(
            PeerLink(
                device=DeviceId(link.device),
                round_trip_s=link.round_trip_s,
                receive=_gauged(link.receive, since_s),
                send=_gauged(link.send, since_s),
            )
            for link in self.heard_last.links
            if link.device != own
        )


def _gauged(told: ToldGoodput | None, since_s: float) -> Gauged | None:
    return (
        None if told is None else Gauged(bytes_per_s=told.bytes_per_s, age_s=told.age_s + since_s)
    )
