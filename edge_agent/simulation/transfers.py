"""How a value gets from one device to another: credits, chunks, and three steps for each chunk.

A sender reserves a whole message in the window of its stream before its first chunk leaves: all
or nothing, first come first served. What is reserved comes back when the receiver starts to work
on the message, one latency later. A message larger than the window waits until the window is
empty. A stream is what crosses one border of the model over one link. The stage behind it waits
for streams of later borders only, and the last ones are taken as they arrive: so none waits for
itself in a circle, and there is no deadlock however small the windows are.

A connection has at each end a thread for each core, or as many as told; a message is the work of
one of them. The sending thread makes a chunk ready and goes on with the next one while the wire
carries it; so does the receiving one. Messages of one connection follow each other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from edge_agent.problems import Link
from edge_agent.profiles import HOST_UNIT
from edge_agent.simulation.events import Act, Events
from edge_agent.simulation.lengths import Length
from edge_agent.simulation.sharing import SharedResource
from edge_agent.simulation.spans import SpanKind, SpanLog
from edge_agent.simulation.wires import Carrier, Chunk, Wire


@dataclass(slots=True, eq=False)
class Transfer:
    """A message on its way."""

    request: int
    unsent_bytes: int
    done: Act
    unreceived: int
    """Chunks of it."""
    is_received_now: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class End:
    """What one side of a connection works with."""

    cores: SharedResource
    threads: int
    demand: float
    """Of one core, as a share of all."""
    s_per_byte: float


class Connection:
    """One direction of a link with its threads at both ends."""

    def __init__(
        self,
        events: Events,
        link: Link,
        wire: Wire,
        ends: tuple[End, End],
        *,
        chunk_bytes: int,
        log: SpanLog,
    ) -> None:
        self.link = link
        self.carrier = Carrier(link.goodput_bytes_per_s)
        self.sent_bytes = 0
        self._events = events
        self._wire = wire
        self._source, self._target = ends
        self._chunk_bytes = chunk_bytes
        self._waiting: deque[Transfer] = deque()
        self._senders = self._source.threads
        self._arrived: list[tuple[Transfer, int]] = []
        self._receivers = self._target.threads
        self._log = log

    def send(self, request: int, size_bytes: int, done: Act) -> None:
        """Send a message that was reserved; an empty one is a chunk without bytes."""
        chunks = max(1, -(-size_bytes // self._chunk_bytes))
        self.sent_bytes += size_bytes
        self._waiting.append(Transfer(request, size_bytes, done, chunks))
        self._spread()

    def _spread(self) -> None:
        while self._senders and self._waiting:
            self._senders -= 1
            self._make_ready(self._waiting.popleft())

    def _make_ready(self, transfer: Transfer) -> None:
        size = min(transfer.unsent_bytes, self._chunk_bytes)
        transfer.unsent_bytes -= size
        end, began_s = self._source, self._events.now_s

        def ready() -> None:
            self._log.add(SpanKind.SEND, transfer.request, end.cores.name, began_s)
            self._offer(transfer, size)

        end.cores.work(
            size * end.s_per_byte, demand=end.demand, unit=HOST_UNIT, comes_first=True, done=ready
        )

    def _offer(self, transfer: Transfer, size: int) -> None:
        took_s = 0.0

        def taken() -> None:
            nonlocal took_s
            took_s = self._events.now_s
            if transfer.unsent_bytes:
                self._make_ready(transfer)
            else:
                self._senders += 1
                self._spread()

        def carried() -> None:
            self._log.add(SpanKind.WIRE, transfer.request, self._wire.name, took_s)
            self._events.after(self.link.latency_s, lambda: self._arrive(transfer, size))

        self._wire.offer(Chunk(self.carrier, size, taken, carried))

    def _arrive(self, transfer: Transfer, size: int) -> None:
        self._arrived.append((transfer, size))
        self._receive()

    def _receive(self) -> None:
        while self._receivers:
            found = next((c for c in self._arrived if not c[0].is_received_now), None)
            if found is None:
                return
            self._arrived.remove(found)
            self._receivers -= 1
            found[0].is_received_now = True
            self._take_in(*found)

    def _take_in(self, transfer: Transfer, size: int) -> None:
        end, began_s = self._target, self._events.now_s

        def received() -> None:
            self._log.add(SpanKind.RECEIVE, transfer.request, end.cores.name, began_s)
            transfer.is_received_now = False
            transfer.unreceived -= 1
            self._receivers += 1
            self._receive()
            if not transfer.unreceived:
                transfer.done()

        end.cores.work(
            size * end.s_per_byte,
            demand=end.demand,
            unit=HOST_UNIT,
            comes_first=True,
            done=received,
        )


@dataclass(slots=True, eq=False)
class Stream:
    """What crosses one border over one connection, with its window of credit."""

    events: Events
    connection: Connection
    name: str
    window_bytes: int
    queue: Length
    """Messages that wait for credit."""
    _reserved_bytes: int = 0
    _waiting: deque[tuple[int, Act]] = field(default_factory=deque)

    def send(self, request: int, size_bytes: int, *, granted: Act, done: Act) -> None:
        """Reserve a message, tell that it is, and send it."""

        def start() -> None:
            self.connection.send(request, size_bytes, done)
            granted()

        self._waiting.append((size_bytes, start))
        self.queue.grow()
        self._grant()

    def consumed(self, size_bytes: int) -> None:
        """The receiver works on a message: its credit is on its way back."""

        def back() -> None:
            self._reserved_bytes -= size_bytes
            self._grant()

        self.events.after(self.connection.link.latency_s, back)

    def _grant(self) -> None:
        while self._waiting:
            size_bytes, start = self._waiting[0]
            if self._reserved_bytes and self._reserved_bytes + size_bytes > self.window_bytes:
                return
            self._waiting.popleft()
            self.queue.shrink()
            self._reserved_bytes += size_bytes
            start()
