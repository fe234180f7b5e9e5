"""The data thread: one loop over client connections and workers that moves every tensor.

It is the only thread that touches connections, lanes and stations; others ask it with `call`.
Everything in it is short: no disk, no waiting, no planning.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from edge_agent import clock
from edge_agent.agent.clients import Clients, Control
from edge_agent.agent.lanes import AHEAD, Lane, Lanes, Limits, Station
from edge_agent.agent.lending import Lending
from edge_agent.agent.poller import Poller
from edge_agent.agent.stations import Stations, WorkerEvents
from edge_agent.answering import answering
from edge_agent.errors import AgentUnavailable
from edge_agent.plans import Epoch
from edge_agent.wire.messages import (
    Codec,
    Deployment,
    Message,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
DRAINING_LOOK_S = 0.1
"""What a retired worker counts changes without an event."""
_SCRATCH_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is under way on the data path."""

    requests: int
    """In flight."""
    size_bytes: int
    """What they take of the limits, but for those on lent connections."""
    connections: int
    """Of clients."""
    lent: int
    """How many of the connections are lent to workers."""


class DataPath:
    """The data thread and everything it owns."""

    def __init__(
        self,
        listener: socket.socket,
        control: Control,
        *,
        max_requests: int,
        max_bytes: int,
        max_request_bytes: int,
    ) -> None:
        codec = Codec()
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.counters: Counter[str] = Counter()
        self.lanes = Lanes()
        """On the data thread only."""
        self._limits = Limits(max_requests, max_bytes)
        self._poller = Poller()
        self._lending = Lending(self._limits)
        self._stations = Stations(
            self._poller, codec, scratch, self.counters, self._lending, max_bytes
        )
        self._clients = Clients(
            listener,
            control,
            self._poller,
            self.lanes,
            self._limits,
            codec,
            scratch,
            self.counters,
            self.post,
            self._stations,
            max_request_bytes,
        )
        self._calls: deque[Callable[[], None]] = deque()
        self._posting = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_ended = False
        self._thread = threading.Thread(target=self._loop, name="data", daemon=True)

    # ---- what other threads may use

    def start(self) -> None:
        """Start the thread; clients wait until `accept_clients`."""
        self._poller.add(self._wake_fd, self._woken)
        self._thread.start()

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the data thread soon.

        Raises:
            AgentUnavailable: the thread has ended.
        """
        with self._posting:
            if self._is_ended:
                raise AgentUnavailable("the agent is ending")
            self._calls.append(action)
            os.eventfd_write(self._wake_fd, 1)

    def call(self, question: Callable[[], T]) -> T:
        """Run `question` on the data thread and return what it returns, or raise what it raises.

        Raises:
            AgentUnavailable: the thread has ended.
        """
        answer, run = answering(question)

        self.post(run)
        return answer.result()

    def quiet_for_s(self) -> float:
        """Seconds since the last request was under way; 0 while one is."""
        if self._in_flight():
            return 0.0
        answered_at_s = max(self._clients.answered_at_s, self._stations.answered_at_s)
        return clock.monotonic_s() - answered_at_s

    def _in_flight(self) -> int:
        """Loans hold a request of the limits also while nothing is asked."""
        return self._limits.requests - self._lending.requests + self._stations.running

    def load(self) -> Load:
        """What is under way."""
        return Load(
            requests=self._in_flight(),
            size_bytes=self._limits.bytes - self._lending.bytes,
            connections=self._clients.count,
            lent=self._lending.requests,
        )

    def accept_clients(self) -> None:
        """Take the connections that wait and that come."""
        self.call(self._clients.accept_clients)

    def stop(self, timeout_s: float) -> None:
        """Take nothing new, answer what is in flight for at most `timeout_s`, close everything."""
        until_s = clock.monotonic_s() + timeout_s
        self.call(self._clients.stop_accepting)
        self.call(self._stations.recall_all)
        while clock.monotonic_s() < until_s and (
            self._limits.requests or self.call(lambda: self._clients.has_unsent)
        ):
            clock.sleep_s(0.01)
        self.post(self._end)
        self._thread.join()
        self._poller.close()
        os.close(self._wake_fd)

    # ---- workers

    def attach(
        self, lane: Lane, deployment: Deployment, stream: socket.socket, events: WorkerEvents
    ) -> Station:
        """Tell the worker at the other end of `stream` what to serve, and watch it."""
        window = deployment.most_instances + AHEAD
        return self.call(lambda: self._stations.attach(lane, deployment, stream, window, events))

    def cut_over(self, lane: Lane, station: Station) -> None:
        """Let a worker serve its lane; the one before it drains and is retired.

        Raises:
            WorkerLost: the worker died since it was ready.
            ModelQuarantined: the model was, meanwhile.
        """
        self.call(lambda: self._stations.cut_over(lane, station))

    def open_beside(self, station: Station, deployment: Deployment) -> None:
        """Tell a worker that serves to open another epoch.

        Raises:
            WorkerLost: it is dead.
        """
        self.call(lambda: self._stations.open_beside(station, deployment))

    def switch(self, lane: Lane, station: Station, deployment: Deployment) -> bool:
        """Let a worker that serves go on with an epoch that it opened; False, and nothing is
        changed, if it may be caught in a run that nobody awaits.

        Raises:
            WorkerLost: it died, or was retired, since that was ready.
        """
        window = deployment.most_instances + AHEAD
        return self.call(lambda: self._stations.switch(lane, station, deployment, window))

    def tell(self, station: Station, message: Message) -> None:
        """Send a worker a message, unless it is dead."""
        self.call(lambda: self._stations.tell_station(station, message))

    def discard(self, station: Station, epoch: Epoch) -> None:
        """Have a worker give up an epoch that it was told to open beside what it serves."""
        self.call(lambda: self._stations.discard(station, epoch))

    def retire(self, lane: Lane, station: Station) -> None:
        """Take a worker out of its lane: it ends when what it has is answered."""
        self.call(lambda: self._stations.retire(lane, station))

    # ---- the loop

    def _loop(self) -> None:
        poller = self._poller
        timeout_s: float | None = None
        while not self._is_ended:
            for fd, bits in poller.wait(timeout_s):
                on_event = poller.on_event(fd)
                if on_event is not None:
                    try:
                        on_event(bits)
                    except Exception:
                        self._note_error()
            while self._calls:
                self._guarded(self._calls.popleft())
            timeout_s = self._expire()
            if self._stations.is_draining:
                self._guarded(self._stations.let_go_of_drained)
                timeout_s = (
                    DRAINING_LOOK_S if timeout_s is None else min(timeout_s, DRAINING_LOOK_S)
                )

    def _woken(self, _: int) -> None:
        os.eventfd_read(self._wake_fd)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self._note_error()

    def _note_error(self) -> None:
        log.exception("the data thread met an error of its own")
        self.counters["internal errors"] += 1

    def _expire(self) -> float | None:
        """Deal with deadlines that have passed; how long until the next one."""
        next_s = self._clients.next_event_s()
        if next_s is None:
            return None
        left_s = next_s - clock.monotonic_s()
        if left_s <= 0:
            self._guarded(self._clients.expire)
            return 0.0
        return left_s + 1e-3

    def _end(self) -> None:
        with self._posting:
            self._is_ended = True
        self._clients.close()
        self._stations.close()
        self._poller.remove(self._wake_fd)
