"""How bytes get through a relay: read from one peer, held, made wrong and written to the other."""

from __future__ import annotations

import errno
import math
import random
import socket
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from tests.relay_faults import MIB, Direction, Flips, Occurrences

CHUNK_BYTES = 2**16
"""The most that is read or passed on at once."""
FAREWELL_S = 2.0
"""How long a relay, after a FIN of its own, still takes what the peer sends."""


class Side(StrEnum):
    """Who is at the other end of a connection of the relay."""

    CLIENT = "client"
    TARGET = "target"


@dataclass(slots=True, kw_only=True)
class Counts:
    """What has happened so far, over all connections. Flips and cuts count once they are done."""

    accepted: int = 0
    open: int = 0
    """Connections that pass bytes now, or would without a black hole."""
    unreached: int = 0
    """Accepted, but refused by the target: the client was reset."""
    cut: int = 0
    """By the relay in any way, not by a peer."""
    flipped: int = 0
    bytes_to_target: int = 0
    """Handed to the system for the target."""
    bytes_to_client: int = 0
    bytes_held: int = 0
    """Taken from a peer, and neither passed on nor lost yet."""
    bytes_lost: int = 0
    """Taken from a peer and never passed on. What a reset destroys in the system's buffers is
    not known and not counted."""


class End(StrEnum):
    """How a peer ends what it sends."""

    FIN = "fin"
    RESET = "reset"


class Flow:
    """The bytes of one connection in one direction: read, held, made wrong and written."""

    def __init__(
        self,
        direction: Direction,
        *,
        source: socket.socket,
        sink: socket.socket,
        seed: str,
        most_ahead_bytes: int,
        counts: Counts,
    ) -> None:
        self.direction = direction
        self.source = source
        self.sink = sink
        self.end: End | None = None
        self.is_finished = False
        """Whether the sink has been told of the end."""
        self.cut_with_reset: bool | None = None
        """Whether the connection is cut once what is staged is written, and how."""
        self._end_at_s = 0.0
        self._is_void = False
        self._is_blocked = False
        self._most_ahead_bytes = most_ahead_bytes
        self._counts = counts
        self._held: deque[tuple[float, memoryview]] = deque()
        self._held_bytes = 0
        self._staged = memoryview(b"")
        self._flips = Flips(f"{seed} flips")
        self._cuts = Occurrences(f"{seed} cuts")
        self._resets = random.Random(f"{seed} resets")

    @property
    def held_bytes(self) -> int:
        """Read and not written yet."""
        return self._held_bytes + len(self._staged)

    @property
    def wants_bytes(self) -> bool:
        """Whether the source shall be read."""
        return self.end is None and self._room() > 0

    @property
    def wants_room(self) -> bool:
        """Whether it waits for the sink to take more."""
        return self._is_blocked and bool(self._staged) and self.direction.passes

    @property
    def is_cut(self) -> bool:
        """Whether everything before a cut has been written."""
        return self.cut_with_reset is not None and not self._staged

    def read(self, now_s: float) -> None:
        """Take what the source has sent."""
        try:
            found = self.source.recv(self._room())
        except BlockingIOError:
            return
        except OSError as error:
            self.broken(error, now_s)
            return
        if self.direction.tap is not None:
            self.direction.tap(found)
        if not found:
            self.ended(End.FIN, now_s)
        elif self._loses():
            self._counts.bytes_lost += len(found)
        else:
            self._held.append((now_s, memoryview(found)))
            self._held_bytes += len(found)

    def ended(self, how: End, now_s: float) -> None:
        """The source sends nothing more; the sink is told after all that came before."""
        self.end = how
        self._end_at_s = now_s
        self.is_finished = False

    def broken(self, error: OSError, now_s: float) -> None:
        """The source is gone, as a read from it or a write to it has told."""
        self._counts.unreached += error.errno == errno.ECONNREFUSED
        self.ended(End.RESET, now_s)

    def become_void(self) -> None:
        """The sink is gone: nothing can be passed on any more."""
        self._is_void = True
        self.lose()

    def lose(self) -> None:
        """Forget all that is held."""
        self._counts.bytes_lost += self.held_bytes
        self._held.clear()
        self._held_bytes = 0
        self._staged = memoryview(b"")

    def may_write(self) -> None:
        """The sink takes more."""
        self._is_blocked = False

    def pass_on(self, now_s: float) -> float:
        """Write what is due; when there may be more to do without an event of a socket.

        Raises:
            OSError: the sink is gone.
        """
        if not self.direction.passes or self._is_void:
            return math.inf
        if not self._staged and self._held and (again_s := self._stage(now_s)) is not None:
            return again_s
        if self._staged:
            return self._write(now_s)
        if self.end is not None and not self.is_finished and not self._held:
            due_s = self._end_at_s + self.direction.latency_s
            if due_s > now_s:
                return due_s
            self.is_finished = True
            if self.end is End.FIN:
                self.sink.shutdown(socket.SHUT_WR)
        return math.inf

    def _room(self) -> int:
        if self._loses():
            return CHUNK_BYTES
        return min(CHUNK_BYTES, self._most_ahead_bytes - self.held_bytes)

    def _loses(self) -> bool:
        return self._is_void or self.direction.loses

    def _stage(self, now_s: float) -> float | None:
        """Make ready to be written what may pass now; if nothing may, when to ask again."""
        due_s = self._held[0][0] + self.direction.latency_s
        if due_s > now_s:
            return due_s
        length = self.direction.granted(self._due_bytes(now_s), now_s)
        if length == 0:
            return now_s + self.direction.wait_s(self._due_bytes(now_s))
        if random_cuts := self._cuts.take(length, self.direction.cuts_per_mib / MIB):
            length = random_cuts[0] + 1
            self.cut_with_reset = self._resets.random() < 0.5
        if (asked_cut := self.direction.cut_within(length)) is not None:
            length, self.cut_with_reset = asked_cut
        staged = self._taken(length)
        self._counts.flipped += self._flips.apply(staged, self.direction.flips_per_byte)
        self._counts.flipped += self.direction.passing(staged)
        self._staged = memoryview(staged)
        return None

    def _due_bytes(self, now_s: float) -> int:
        due = 0
        latency_s = self.direction.latency_s
        for arrived_s, piece in self._held:
            if due >= CHUNK_BYTES or arrived_s + latency_s > now_s:
                break
            due += len(piece)
        return min(due, CHUNK_BYTES)

    def _taken(self, length_bytes: int) -> bytearray:
        taken = bytearray()
        while len(taken) < length_bytes:
            arrived_s, piece = self._held.popleft()
            part = piece[: length_bytes - len(taken)]
            taken += part
            if len(part) < len(piece):
                self._held.appendleft((arrived_s, piece[len(part) :]))
        self._held_bytes -= length_bytes
        return taken

    def _write(self, now_s: float) -> float:
        if self._is_blocked:
            return math.inf
        try:
            written = self.sink.send(self._staged)
        except BlockingIOError:
            self._is_blocked = True
            return math.inf
        self._staged = self._staged[written:]
        self.direction.written_bytes += written
        return now_s


class Connection:
    """A client's connection and the one to the target that was made for it."""

    def __init__(self, to_target: Flow, to_client: Flow) -> None:
        self.to_target = to_target
        self.to_client = to_client
        self.sockets = {Side.CLIENT: to_target.source, Side.TARGET: to_target.sink}

    @property
    def flows(self) -> tuple[tuple[Flow, Flow], tuple[Flow, Flow]]:
        """Each flow with the other one."""
        return (self.to_target, self.to_client), (self.to_client, self.to_target)

    @property
    def was_reset(self) -> bool:
        """Whether a reset by one peer has reached the other."""
        return any(flow.is_finished and flow.end is End.RESET for flow, _ in self.flows)

    @property
    def is_over(self) -> bool:
        """Whether both peers have ended it and know that the other did."""
        return self.was_reset or all(flow.is_finished for flow, _ in self.flows)

    def pass_on(self, now_s: float) -> float:
        """See `Flow.pass_on`."""
        again_s = math.inf
        for flow, back in self.flows:
            try:
                again_s = min(again_s, flow.pass_on(now_s))
            except OSError as error:
                back.broken(error, now_s)
                again_s = now_s
        for flow, back in self.flows:
            if flow.end is End.RESET:
                back.become_void()
        return again_s


class Leaving:
    """One side of a connection that passes nothing any more: what comes is lost."""

    def __init__(self, side: socket.socket, counts: Counts, fin_at_s: float) -> None:
        self.socket = side
        self.is_over = False
        self._counts = counts
        self._fin_at_s = fin_at_s
        self._has_sent_fin = False

    def read(self) -> None:
        """Lose what has come."""
        try:
            found = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.is_over = True
            return
        self._counts.bytes_lost += len(found)
        self.is_over = not found

    def move_on(self, now_s: float) -> float:
        """Send the FIN when it is time; when there is more to do."""
        if now_s < self._fin_at_s:
            return self._fin_at_s
        if not self._has_sent_fin:
            self._has_sent_fin = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.is_over = True
        self.is_over |= now_s >= self._fin_at_s + FAREWELL_S
        return now_s if self.is_over else self._fin_at_s + FAREWELL_S
