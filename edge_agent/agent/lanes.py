"""One lane per loaded model: its queue, the worker that serves, and what is in flight where.

A lane holds every request that was accepted until it is answered. When a worker dies, what it
had goes back to the front of the queue, in order, and runs again. Only the data thread touches
a lane. Nothing here does input or output: a worker is reached through the `Sender` protocol.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from edge_agent import clock
from edge_agent.agent.checking import RequestCheck
from edge_agent.errors import Busy, EdgeAgentError, ModelQuarantined, UnknownModel
from edge_agent.plans import Epoch
from edge_agent.tensors import TensorSpec
from edge_agent.transport.memory import SharedMemory
from edge_agent.transport.tally import Tally
from edge_agent.wire.frames import Buffer
from edge_agent.wire.parts import (
    Place,
    TensorHead,
)

DEATHS_TO_QUARANTINE = 3
SETTLED_S = 60.0
"""A worker that has lived as long and has nothing to do does not die of its model."""
AHEAD = 1
"""Requests sent beyond the ones that run, so that a worker never waits for the next."""


_FIRST_SWEEP = 1024


@dataclass(slots=True, eq=False)
class Request:
    """An accepted request, from admission until its answer."""

    lane: Lane
    sequence: int
    id: str
    heads: tuple[TensorHead, ...]
    outputs: tuple[str, ...]
    until_s: float | None
    size_bytes: int
    answer: Callable[[Request, Outcome], None]
    """Delivers the outcome; called exactly once."""
    payload: Buffer = b""
    """The inputs, one after the other as in a frame, unless they have a place."""
    place: Place | None = None
    memory: SharedMemory | None = None
    """Where the place is."""
    deaths: int = 0
    """How many workers died while they had this request."""
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Success:
    """The outputs of a run: heads, and bytes as in a frame."""

    heads: tuple[TensorHead, ...]
    payload: Buffer
    is_placed: bool = False
    """Whether they are in the request's place instead."""


Outcome = Success | EdgeAgentError


class Sender(Protocol):
    """The way to one worker."""

    def hand_over(self, request: Request) -> None:
        """Send it a request; its payload stays unchanged until it is answered."""
        ...

    def abandon(self, sequence: int) -> None:
        """Nobody waits any more for the answer to a request that it has."""
        ...

    def recall(self) -> None:
        """Ask it for every connection of a client that it has."""
        ...


@dataclass(slots=True, eq=False)
class Station:
    """A worker process as the lane sees it: the epoch it serves, and the requests it has."""

    epoch: Epoch
    sender: Sender
    window: int
    """How many requests it may have at once."""
    has: dict[int, Request] = field(default_factory=dict)
    since_s: float = field(default_factory=clock.monotonic_s)
    """When it was started."""
    answered: int = 0
    tally: Tally | None = None
    """What it counts on connections that are lent to it."""
    lent: int = 0
    """How many are, and have a client at the other end."""
    abandoned: int = 0
    """How many are, and have none any more."""
    is_divided: bool = False
    """Whether other devices have a part in what it serves."""

    @property
    def live(self) -> int:
        """How many of its requests are still awaited: not expired, not abandoned."""
        return sum(not request.is_done for request in self.has.values()) + self.running

    @property
    def runs_for_nobody(self) -> bool:
        """Whether something that it may be running is not awaited any more: a run cannot be
        stopped, and may take for ever."""
        return self.abandoned > 0 or any(request.is_done for request in self.has.values())

    @property
    def running(self) -> int:
        """How many of its requests came on lent connections and are awaited; for any thread."""
        # What it runs may be of clients that have gone.
        tally = self.tally  # the data thread may take it away meanwhile
        return max(0, min(tally.running - self.abandoned, self.lent)) if tally is not None else 0


def _is_innocent(station: Station) -> bool:
    """Whether a worker died of something else than its model: it had lived for a while, and had
    nothing to do."""
    is_idle = station.live == 0 and not station.runs_for_nobody
    return is_idle and clock.monotonic_s() - station.since_s >= SETTLED_S


@dataclass(frozen=True, slots=True)
class Idle:
    """What was taken of the limits and is not in use."""

    requests: int
    size_bytes: int


NOTHING_IDLE = Idle(0, 0)


class Limits:
    """Requests and bytes in flight over all lanes."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0

    def take(self, size_bytes: int, idle: Idle = NOTHING_IDLE) -> None:
        """Admit one request of that size; what is taken and `idle` does not count.

        Raises:
            Busy: a limit is reached; nothing was taken.
        """
        requests, taken_bytes = self.requests - idle.requests, self.bytes - idle.size_bytes
        if requests >= self.max_requests:
            raise Busy(
                f"{requests} requests are in flight, the limit is {self.max_requests}: "
                "try again later"
            )
        if taken_bytes + size_bytes > self.max_bytes:
            raise Busy(
                f"{taken_bytes} bytes are in flight and this request has {size_bytes}, the limit "
                f"is {self.max_bytes}: try again later"
            )
        self.requests += 1
        self.bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """One request of that size is answered."""
        self.requests -= 1
        self.bytes -= size_bytes


class Lane:
    """The requests of one model and the workers that answer them."""

    def __init__(
        self, name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.check = RequestCheck(inputs, outputs).check
        self.active: Station | None = None
        self.draining: list[Station] = []
        self.quarantine: str | None = None
        self.is_closed = False
        """Whether no more requests may come in."""
        self.restarts = 0
        self._answered = 0
        self._failed = 0
        self._queue: deque[Request] = deque()
        self._deaths_in_a_row = 0

    @property
    def in_flight(self) -> int:
        """Requests accepted and not answered."""
        sent = sum(station.live for station in self._stations())
        return self.waiting + sent

    @property
    def answered(self) -> int:
        """Requests that had an answer."""
        return self._answered + sum(tally.answered for tally in self._tallies())

    @property
    def failed(self) -> int:
        """Requests that had an error for an answer."""
        return self._failed + sum(tally.failed for tally in self._tallies())

    @property
    def deaths_in_a_row(self) -> int:
        """How many workers died without an answer between; for any thread."""
        return self._deaths_in_a_row

    @property
    def needs_worker(self) -> bool:
        """Whether requests wait and nobody is there to take them."""
        return self.active is None and self.waiting > 0

    @property
    def waiting(self) -> int:
        """Requests that no worker has yet."""
        return sum(not r.is_done for r in self._queue)

    def _stations(self) -> Iterable[Station]:
        return itertools.chain((self.active,) if self.active else (), self.draining)

    def _tallies(self) -> Iterable[Tally]:
        return (station.tally for station in self._stations() if station.tally is not None)

    def check_is_run(self) -> None:
        """Raises: ModelQuarantined if the model is not run any more."""
        if self.quarantine is not None:
            raise ModelQuarantined(self.quarantine)

    def close(self) -> None:
        """Take no more requests."""
        self.is_closed = True
        for station in self._stations():
            station.sender.recall()

    def put(self, request: Request) -> None:
        """Accept a request whose payload is here."""
        if self.quarantine is not None:
            self.finish(request, ModelQuarantined(self.quarantine))
            return
        self._queue.append(request)
        self.dispatch()

    def dispatch(self) -> None:
        """Send waiting requests to the active worker as far as its window goes."""
        station = self.active
        if station is None:
            return
        while self._queue and len(station.has) < station.window:
            request = self._queue.popleft()
            if not request.is_done:
                station.has[request.sequence] = request
                station.sender.hand_over(request)

    def answered_by(self, station: Station, sequence: int, outcome: Outcome) -> None:
        """A worker answered; its next request goes out before the answer is delivered."""
        request = station.has.pop(sequence, None)
        if request is None:
            return
        station.answered += 1
        self._deaths_in_a_row = 0
        self.dispatch()
        self.finish(request, outcome)

    def cut_over(self, station: Station) -> Station | None:
        """New requests go to `station`; returns the old worker, which drains."""
        old, self.active = self.active, station
        if old is not None:
            self.draining.append(old)
            old.sender.recall()
        self.dispatch()
        return old

    def switch(self, station: Station, epoch: Epoch, window: int) -> None:
        """The worker that serves goes on with another epoch; what it has, it answers with the one
        before."""
        station.epoch, station.window = epoch, window
        self.dispatch()

    def retire(self, station: Station) -> None:
        """A worker gets no more requests."""
        if self.active is station:
            self.active = None
        if station not in self.draining:
            self.draining.append(station)
        station.sender.recall()

    def forget(self, station: Station) -> None:
        """A worker that has nothing left ends."""
        self.draining.remove(station)
        self._count(station)

    def _count(self, station: Station) -> None:
        """Keep what a worker counted that is no longer one of the lane's."""
        tally, station.tally = station.tally, None
        if tally is not None:
            self._answered += tally.answered
            self._failed += tally.failed
            if tally.answered:
                self._deaths_in_a_row = 0

    def lost(self, station: Station) -> bool:
        """A worker died: its requests wait at the front again. True if it was the active one."""
        was_active = station is self.active
        if was_active:
            self.active = None
        elif station in self.draining:
            self.draining.remove(station)
        self._count(station)
        is_innocent = _is_innocent(station)
        again = [r for r in station.has.values() if not r.is_done]
        station.has.clear()
        for request in again:
            request.deaths += 1
        self._queue = deque(sorted([*again, *self._queue], key=lambda r: r.sequence))
        if not was_active:
            self.dispatch()
            return False
        if not is_innocent:
            self.died()
        if any(r.deaths >= DEATHS_TO_QUARANTINE for r in again):
            self.isolate()
        return True

    def died(self, because: str | None = None) -> None:
        """Count a death; too many without an answer between them end the model.

        `because` tells why the worker could not open it; None: the worker was killed.
        """
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row >= DEATHS_TO_QUARANTINE:
            self.isolate(because)

    def isolate(self, because: str | None = None) -> None:
        """Quarantine the model: what waits and what comes is answered with that error."""
        what = (
            f"killed its worker {DEATHS_TO_QUARANTINE} times in a row"
            if because is None
            else f"cannot be opened ({because})"
        )
        self.quarantine = (
            f'model "{self.name}" {what} and is quarantined: unload it, or load '
            f"{'another version' if because is None else 'it again'} under this name"
        )
        self.fail_all(ModelQuarantined(self.quarantine))

    def fail_all(self, error: EdgeAgentError) -> None:
        """Answer everything in flight with `error`."""
        waiting, self._queue = list(self._queue), deque()
        for station in self._stations():
            waiting += station.has.values()
            station.has.clear()
        for request in waiting:
            self.finish(request, error)

    def finish(self, request: Request, outcome: Outcome) -> None:
        """Answer a request, once; if a worker still has it, what it says later is ignored."""
        if request.is_done:
            return
        request.is_done = True
        for station in self._stations():
            if station.has.get(request.sequence) is request:
                station.sender.abandon(request.sequence)
        if isinstance(outcome, Success):
            self._answered += 1
        else:
            self._failed += 1
        request.answer(request, outcome)


class Lanes:
    """The lanes that take requests, by the name of their model."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def add(self, lane: Lane) -> None:
        """Accept requests for a model, in place of the lane that had its name."""
        before = self._lanes.get(lane.name)
        if before is not None:
            before.close()
        self._lanes[lane.name] = lane

    def find(self, name: str) -> Lane:
        """The lane of that name.

        Raises:
            UnknownModel: there is none.
        """
        try:
            return self._lanes[name]
        except KeyError:
            loaded = ", ".join(sorted(self._lanes)) or "none"
            raise UnknownModel(f'model "{name}" is not loaded; loaded: {loaded}') from None

    def remove(self, name: str) -> None:
        """Take no more requests for a model.

        Raises:
            UnknownModel: there is none of that name.
        """
        self.find(name).close()
        del self._lanes[name]


class Deadlines:
    """Which accepted request expires next."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        """How many requests are kept; some may be answered."""
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Watch a request that has a deadline."""
        if request.until_s is None:
            return
        if len(self._heap) >= self._sweep_at:
            # One slow request would keep all answered ones behind it until its own deadline.
            self._heap = [entry for entry in self._heap if not entry[2].is_done]
            heapq.heapify(self._heap)
            self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._heap))
        heapq.heappush(self._heap, (request.until_s, request.sequence, request))

    def next_s(self) -> float | None:
        """When to look next: no live request expires before."""
        return self._heap[0][0] if self._heap else None

    def expired(self, now_s: float) -> list[Request]:
        """Take out the live requests whose deadline has passed."""
        found = []
        while self._heap and (self._heap[0][0] <= now_s or self._heap[0][2].is_done):
            _, _, request = heapq.heappop(self._heap)
            if not request.is_done:
                found.append(request)
        return found
