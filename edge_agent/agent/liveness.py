"""Whether a peer is there, from when its heartbeats came: no clock is read here, and no clock of
another device is ever compared with ours."""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from dataclasses import dataclass

from edge_agent.peers import PeerCondition

LATE_SHARE = 0.6
"""A peer whose heartbeats stay out for this share of the time after which it is silent is slow."""
MISSED_BEATS = 3.0
"""Nobody is silent before so many of its heartbeats are missing."""
_KEPT = 16
_AWAITED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """After how long without a heartbeat a peer is what."""

    beat_s: float = 0.25
    """How often ours go out."""
    silent_s: float = 1.0
    gone_s: float = 10.0


class Liveness:
    """What is known of one peer. All times are of our monotonic clock."""

    def __init__(self, patience: Patience, now_s: float) -> None:
        self._patience = patience
        self._their_beat_s = patience.beat_s
        self._silent_s = self._late_s = 0.0
        """After so long without a heartbeat it is silent, and late."""
        self._awaits(patience.beat_s)
        self._heard_s: float | None = None
        """When it was heard last, but for the time that this agent slept since."""
        self._came_s = now_s
        """When it was heard last."""
        self._heard_number: int | None = None
        self._number = 0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._round_trips: deque[float] = deque(maxlen=_KEPT)
        self.round_trip_s: float | None = None
        """The median of the last few."""
        self._late_until_s = now_s
        self.condition = PeerCondition.GONE
        self.since_s = now_s

    def begin(self, their_beat_s: float, now_s: float) -> None:
        """A connection is made."""
        self._awaits(their_beat_s)
        self._sent.clear()
        self._round_trips.clear()
        self.round_trip_s = None
        self._heard(now_s)

    def _awaits(self, their_beat_s: float) -> None:
        self._their_beat_s = their_beat_s
        self._silent_s = max(self._patience.silent_s, MISSED_BEATS * their_beat_s)
        self._late_s = LATE_SHARE * self._silent_s

    def next_beat(self, now_s: float) -> tuple[int, int | None, float]:
        """A heartbeat goes out: its number, the last one that came, and how long ago that was."""
        self._number += 1
        self._sent[self._number] = now_s
        while len(self._sent) > _AWAITED:
            self._sent.popitem(last=False)
        held_s = 0.0 if self._heard_s is None else max(0.0, now_s - self._came_s)
        return self._number, self._heard_number, held_s

    def beat(self, number: int, echo: int | None, held_s: float, now_s: float) -> None:
        """A heartbeat came."""
        sent_s = None if echo is None else self._sent.pop(echo, None)
        if sent_s is not None:
            # What the other side tells may be wrong: a round trip is not negative.
            self._round_trips.append(max(0.0, now_s - sent_s - held_s))
            self.round_trip_s = statistics.median(self._round_trips)
            # Whatever went before it will not be echoed any more.
            self._sent = OrderedDict((n, at_s) for n, at_s in self._sent.items() if n > (echo or 0))
        if self._heard_s is not None and now_s - self._heard_s > self._late_s:
            self._late_until_s = now_s + self._silent_s
        self._heard_number = number
        self._heard(now_s)

    def _heard(self, now_s: float) -> None:
        self._heard_s = self._came_s = now_s
        self.look(now_s)

    def slept(self, duration_s: float, now_s: float) -> None:
        """This agent itself did not run for so long: nobody is to blame for that."""
        if self._heard_s is not None:
            self._heard_s = min(now_s, self._heard_s + duration_s)
        # Their answers may have waited here: how long they took cannot be known.
        self._sent.clear()

    def end(self, now_s: float) -> None:
        """It said that it leaves, or its connections were ended here."""
        self._heard_s = None
        self._heard_number = None
        self.look(now_s)

    def look(self, now_s: float) -> bool:
        """What it is now; whether that is news."""
        found = self._found(now_s)
        if found is self.condition:
            return False
        self.condition = found
        self.since_s = now_s
        return True

    def _unreached_s(self, now_s: float) -> float:
        """For how long nothing of ours is known to arrive, as when a connection is dead in one
        direction alone. An echo may wait there for the next heartbeat."""
        oldest_s = next(iter(self._sent.values()), now_s)
        return now_s - oldest_s - self._their_beat_s

    def _found(self, now_s: float) -> PeerCondition:
        if self._heard_s is None:
            return PeerCondition.GONE
        quiet_s = now_s - self._heard_s
        if quiet_s > max(self._patience.gone_s, self._silent_s):
            return PeerCondition.GONE
        quiet_s = max(quiet_s, self._unreached_s(now_s))
        if quiet_s > self._silent_s:
            return PeerCondition.SILENT
        trip_s = self.round_trip_s
        is_late = quiet_s > self._late_s or now_s < self._late_until_s
        is_far = trip_s is not None and trip_s > self._late_s
        return PeerCondition.SLOW if is_late or is_far else PeerCondition.UP
