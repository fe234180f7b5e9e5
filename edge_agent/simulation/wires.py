"""How chunks take turns on a link, or on a medium that several links share.

One chunk is carried at a time, whole, in the order in which they were ready. A sending thread has
at most one chunk waiting here, so that links on one medium take turns chunk by chunk. What waits
for a link that is down lets the others pass; a chunk whose link goes down while it is carried
goes on where it was when the link is back.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.simulation.events import Act, Due, Events


@dataclass(slots=True, eq=False)
class Carrier:
    """One direction of a link, as bytes pass through it at present."""

    full_bytes_per_s: float
    fraction: float = 1.0
    """Of its goodput; 0: it is down."""

    @property
    def bytes_per_s(self) -> float:
        """Its goodput at present."""
        return self.full_bytes_per_s * self.fraction


@dataclass(slots=True, eq=False)
class Chunk:
    """Bytes that are to be carried."""

    carrier: Carrier
    left_bytes: float
    taken: Act
    """It is on the wire, and its sender may make the next one ready."""
    carried: Act
    """All of it left the wire."""
    is_taken: bool = False


class Wire:
    """A link or a medium: it carries one chunk at a time."""

    def __init__(self, events: Events, name: str) -> None:
        self.name = name
        self._events = events
        self._ready: list[Chunk] = []
        self._carried: Chunk | None = None
        self._bytes_per_s = 0.0
        self._settled_s = 0.0
        self._busy_s = 0.0
        self._next: Due | None = None

    def offer(self, chunk: Chunk) -> None:
        """Carry it when it is its turn."""
        self._ready.append(chunk)
        self._take()

    def speeds_changed(self) -> None:
        """Go on at the goodput that links have now."""
        self._settle()
        chunk = self._carried
        if chunk is None:
            self._take()
            return
        if self._next is not None:
            self._next.call_off()
        if chunk.carrier.fraction > 0.0:
            self._carry(chunk)
        else:
            self._carried = None
            self._ready.insert(0, chunk)
            self._take()

    def busy_s(self) -> float:
        """Seconds during which it carried something so far."""
        self._settle()
        return self._busy_s

    def _settle(self) -> None:
        passed_s = self._events.now_s - self._settled_s
        self._settled_s = self._events.now_s
        if self._carried is not None:
            self._busy_s += passed_s
            self._carried.left_bytes -= passed_s * self._bytes_per_s

    def _take(self) -> None:
        if self._carried is not None:
            return
        chunk = next((c for c in self._ready if c.carrier.fraction > 0.0), None)
        if chunk is None:
            return
        self._settle()
        self._ready.remove(chunk)
        self._carried = chunk
        self._carry(chunk)
        if not chunk.is_taken:
            chunk.is_taken = True
            chunk.taken()

    def _carry(self, chunk: Chunk) -> None:
        self._bytes_per_s = chunk.carrier.bytes_per_s
        self._next = self._events.after(
            max(chunk.left_bytes, 0.0) / self._bytes_per_s, lambda: self._end(chunk)
        )

    def _end(self, chunk: Chunk) -> None:
        self._settle()
        self._carried = None
        self._next = None
        self._take()
        chunk.carried()
