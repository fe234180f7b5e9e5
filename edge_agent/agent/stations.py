"""The worker side of the data thread: requests out to workers, answers back, and their deaths."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from functools import partial
from typing import Protocol

from edge_agent import clock
from edge_agent.agent.connections import Connection, Enclosed
from edge_agent.agent.lanes import Idle, Lane, Outcome, Request, Station, Success
from edge_agent.agent.lending import Asked, Lendable, Lending, Loan
from edge_agent.agent.poller import CAN_SEND, HAS_INPUT, Poller
from edge_agent.errors import (
    EdgeAgentError,
    ProtocolError,
    RunFailed,
    WorkerLost,
    error_from_code,
)
from edge_agent.plans import Epoch
from edge_agent.transport.local import ConnectionLost
from edge_agent.transport.memory import SharedMemory
from edge_agent.wire.arrays import payload_bytes
from edge_agent.wire.frames import Buffer, nbytes
from edge_agent.wire.hosting import Abandon, Closed, Compared, Linked, Listening, Unlinked
from edge_agent.wire.lending import Forget, GiveBack
from edge_agent.wire.messages import (
    Codec,
    Counted,
    Deployment,
    Discard,
    Message,
    Ran,
    Ready,
    Run,
    RunError,
    Switch,
    WorkerMessage,
    decode,
)
from edge_agent.wire.parts import (
    Names,
    ShapeCounts,
)

log = logging.getLogger(__name__)

OfDivided = Listening | Linked | Unlinked | Compared | Closed
RECALL_S = 1.0
"""How long a retired worker that runs nothing may keep a connection."""


class WorkerEvents(Protocol):
    """What the supervisor wants to hear; called on the data thread, so it must be quick."""

    def is_ready(self, ready: Ready) -> None:
        """The worker opened the sessions of an epoch."""
        ...

    def is_refused(self, epoch: Epoch, error: EdgeAgentError) -> None:
        """The worker could not open the sessions of that epoch."""
        ...

    def is_dead(self, needs_another: bool) -> None:
        """The worker is gone without being told to; the lane may need another one."""
        ...

    def is_drained(self) -> None:
        """The worker has no requests left and gets no more."""
        ...

    def has_counted(self, counts: ShapeCounts) -> None:
        """The worker tells how often which shapes were asked lately."""
        ...

    def has_told(self, message: OfDivided) -> None:
        """The worker tells of an epoch that is divided over devices."""
        ...


class Attached(Connection):
    """A worker process as the data thread sees it: a connection, and its place in a lane."""

    def __init__(
        self,
        lane: Lane,
        epoch: Epoch,
        stream: socket.socket,
        window: int,
        events: WorkerEvents,
        stations: Stations,
    ) -> None:
        super().__init__(stream, stations.scratch)
        self.lane = lane
        self.events = events
        self.station = Station(epoch=epoch, sender=self, window=window)
        self.opens = {epoch}
        """Of which epochs it has not said yet that they are ready, or never will be."""
        self.has_mapped: dict[int, int] = {}
        """How many bytes of which memory."""
        self.takes_connections = False
        self.idle_since_s: float | None = None
        """Since when it is retired and has nothing but connections that it does not give back."""
        self.loans: dict[int, Loan] = {}
        self._message = b""
        self._stations = stations

    def hand_over(self, request: Request) -> None:
        """See `lanes.Sender`."""
        memory, place = request.memory, request.place
        left_s = None
        if self.station.is_divided and request.until_s is not None:
            left_s = max(0.0, request.until_s - clock.monotonic_s())
        run = Run(
            epoch=self.station.epoch,
            sequence=request.sequence,
            tensors=request.heads,
            outputs=request.outputs,
            place=place,
            memory=memory.number if memory else 0,
            left_s=left_s,
        )
        if memory and place and self.has_mapped.get(memory.number, -1) < place.end:
            self.has_mapped[memory.number] = place.end
            self._stations.tell(self, run, enclosed=memory)
        else:
            self._stations.tell(self, run, (request.payload,))

    def tell(self, message: Message, enclosed: Enclosed | None = None) -> None:
        """See `lending.Borrower`."""
        self._stations.tell(self, message, enclosed=enclosed)

    def abandon(self, sequence: int) -> None:
        """See `lanes.Sender`."""
        if self.station.is_divided:
            self._stations.tell(self, Abandon(sequence))

    def recall(self) -> None:
        """See `lanes.Sender`."""
        self._stations.lending.recall(self)

    def on_message(self, message: bytes, payload_bytes: int) -> bool:
        """See `Connection`."""
        self._message = message
        if self._stations.takes(payload_bytes):
            return True
        self._stations.on_frame(self, message, b"")
        return False

    def on_payload(self, payload: Buffer) -> None:
        """See `Connection`."""
        self._stations.on_frame(self, self._message, payload)


class Stations:
    """All attached workers. Only the data thread uses it."""

    def __init__(
        self,
        poller: Poller,
        codec: Codec,
        scratch: memoryview,
        counters: Counter[str],
        lending: Lending,
        max_answer_bytes: int,
    ) -> None:
        self._poller = poller
        self._codec = codec
        self.scratch = scratch
        self._counters = counters
        self.lending = lending
        self._max_answer_bytes = max_answer_bytes
        self._attached: dict[Station, Attached] = {}
        self._draining: set[Attached] = set()

    def attach(
        self,
        lane: Lane,
        deployment: Deployment,
        stream: socket.socket,
        window: int,
        events: WorkerEvents,
    ) -> Station:
        """Tell a worker process at the other end of `stream` what to serve, and watch it."""
        stream.setblocking(False)
        worker = Attached(lane, deployment.epoch, stream, window, events, self)
        worker.station.is_divided = deployment.division is not None
        self._attached[worker.station] = worker
        self._poller.add(worker.fd, partial(self._on_event, worker))
        self.tell(worker, deployment)
        return worker.station

    def tell(
        self,
        worker: Attached,
        message: Message,
        tensors: tuple[Buffer, ...] = (),
        enclosed: Enclosed | None = None,
    ) -> None:
        """Queue a message for a worker and send what goes."""
        try:
            is_sent = worker.send(self._codec.encode(message), tensors, enclosed)
        except ConnectionLost:
            # The end of the stream is read next, and then its requests run again elsewhere.
            worker.outgoing.clear()
            return
        if not is_sent:
            self._poller.watch(worker)

    def forget(self, memory: SharedMemory) -> None:
        """No request will have a place in this memory any more."""
        for worker in list(self._attached.values()):
            if worker.has_mapped.pop(memory.number, None) is not None:
                self.tell(worker, Forget(memory.number))

    def lend(
        self, lane: Lane, connection: Lendable, asked: Asked, outputs: Names, size_bytes: int
    ) -> Loan | None:
        """Lend a connection of a client to the worker that serves a lane; None if that cannot be
        done."""
        worker = self._attached.get(lane.active) if lane.active is not None else None
        if worker is None or lane.is_closed or worker.station.is_divided:
            return None
        return self.lending.lend(worker, connection, asked, outputs, size_bytes)

    def idle_loans(self) -> Idle:
        """What loans hold of the limits while nothing runs on them."""
        running = self.running
        # Which of them those are, nobody knows here.
        idle_bytes = 0 if running else self.lending.bytes
        return Idle(self.lending.requests - running, idle_bytes)

    def recall_all(self) -> None:
        """Ask for every connection back that was lent."""
        for worker in list(self._attached.values()):
            worker.recall()

    @property
    def running(self) -> int:
        """Requests that run on lent connections; for any thread."""
        return sum(station.running for station in list(self._attached))

    @property
    def answered_at_s(self) -> float:
        """When the last of them was answered, on `clock.monotonic_s`; for any thread."""
        tallies = [station.tally for station in list(self._attached)]
        return max((tally.answered_at_s for tally in tallies if tally is not None), default=0.0)

    def cut_over(self, lane: Lane, station: Station) -> None:
        """Let `station` serve; the worker before it drains and is retired.

        Raises:
            WorkerLost: the worker died since it was ready.
            ModelQuarantined: the model was, meanwhile.
        """
        lane.check_is_run()
        if station not in self._attached:
            raise WorkerLost("the worker died before it served")
        old = lane.cut_over(station)
        if old is not None:
            self._draining.add(self._attached[old])

    def open_beside(self, station: Station, deployment: Deployment) -> None:
        """Tell a worker that serves to open another epoch.

        Raises:
            WorkerLost: it is dead.
        """
        worker = self._attached.get(station)
        if worker is None:
            raise WorkerLost("the worker died before it opened another epoch")
        worker.opens.add(deployment.epoch)
        self.tell(worker, deployment)

    def tell_station(self, station: Station, message: Message) -> None:
        """Send a worker a message, unless it is dead."""
        worker = self._attached.get(station)
        if worker is not None:
            self.tell(worker, message)

    def switch(self, lane: Lane, station: Station, deployment: Deployment, window: int) -> bool:
        """Let a worker that serves go on with an epoch that it opened; False, and nothing is
        changed, if it may be caught in a run that nobody awaits, and then would not hear of it.

        Raises:
            WorkerLost: it died, or was retired, since that was ready.
        """
        worker = self._attached.get(station)
        if worker is None or lane.active is not station:
            raise WorkerLost("the worker died before it served another epoch")
        if station.runs_for_nobody:
            return False
        if deployment.division is not None:
            # What a client abandons is to end on all devices, and the agent alone knows of it.
            worker.recall()
        self.tell(worker, Switch(deployment.epoch))
        station.is_divided = deployment.division is not None
        lane.switch(station, deployment.epoch, window)
        return True

    def discard(self, station: Station, epoch: Epoch) -> None:
        """Have a worker give up an epoch that it opened, or is about to, beside what it serves."""
        worker = self._attached.get(station)
        if worker is not None:
            self.tell(worker, Discard(epoch))

    def retire(self, lane: Lane, station: Station) -> None:
        """Take a worker out of its lane: it ends when what it has is answered."""
        worker = self._attached.get(station)
        if worker is None:
            return
        lane.retire(station)
        self._draining.add(worker)

    @property
    def is_draining(self) -> bool:
        """Whether a retired worker still has requests."""
        return bool(self._draining)

    def let_go_of_drained(self) -> None:
        """End the retired workers whose requests are all answered, expired or abandoned: a run
        that nobody waits for may take for ever. So may a worker that is to give idle connections
        back: after a while they are closed, and their clients make new ones."""
        for worker in list(self._draining):
            station = worker.station
            if station.live:
                worker.idle_since_s = None
                continue
            if station.lent:
                now_s = clock.monotonic_s()
                if worker.idle_since_s is None:
                    worker.idle_since_s = now_s
                if now_s - worker.idle_since_s < RECALL_S:
                    continue
                self._counters["connections that a worker did not give back"] += station.lent
                self.lending.lost(worker)
            worker.lane.forget(station)
            self._detach(worker)
            worker.events.is_drained()

    def _detach(self, worker: Attached) -> None:
        del self._attached[worker.station]
        self._draining.discard(worker)
        self._poller.remove(worker.fd)
        worker.close()

    def _on_event(self, worker: Attached, bits: int) -> None:
        if worker.station not in self._attached:
            return  # let go of by an event before this one
        try:
            if bits & CAN_SEND:
                worker.flush()
                self._poller.watch(worker)
            if bits & HAS_INPUT:
                worker.read()
        except ConnectionLost:
            self._bury(worker)
        except ProtocolError as error:
            # What it runs has damaged it, so that it cannot be trusted with another request.
            log.error("a worker of %s is given up: %s", worker.station.epoch, error)
            self._bury(worker)

    def takes(self, payload_bytes: int) -> bool:
        """Whether an answer may be so large."""
        return payload_bytes <= self._max_answer_bytes

    def on_frame(self, worker: Attached, raw: bytes, payload: Buffer) -> None:
        """A message, and its payload unless that is too large."""
        message: WorkerMessage = decode(self._codec.from_worker, raw)
        lane, station = worker.lane, worker.station
        match message:
            case Ran(sequence=sequence):
                lane.answered_by(station, sequence, self._outcome(message, payload))
            case Ready(epoch=epoch):
                self._report(worker, epoch)
                worker.takes_connections = message.takes_connections
                worker.events.is_ready(message)
            case RunError(epoch=epoch, sequence=-1, code=code, message=text):
                self._report(worker, epoch)
                worker.events.is_refused(epoch, error_from_code(code, text))
            case RunError(sequence=sequence, code=code, message=text):
                lane.answered_by(station, sequence, error_from_code(code, text))
            case Counted(counts=counts):
                worker.events.has_counted(counts)
            case Listening() | Linked() | Unlinked() | Compared() | Closed():
                worker.events.has_told(message)
            case GiveBack(connection=number, is_unsent=is_unsent):
                self.lending.given_back(worker, number, bytes(payload), is_unsent=is_unsent)

    def _report(self, worker: Attached, epoch: Epoch) -> None:
        if epoch not in worker.opens:
            raise ProtocolError(f"worker reported on {epoch} twice, or without being asked")
        worker.opens.remove(epoch)

    def _outcome(self, ran: Ran, payload: Buffer) -> Outcome:
        total_bytes = payload_bytes(ran.tensors)
        if total_bytes > self._max_answer_bytes:
            return RunFailed(
                f"the outputs have {total_bytes} bytes, want at most {self._max_answer_bytes}: "
                "ask for fewer, or raise max_bytes_in_flight under [limits] in the config file"
            )
        want_bytes = 0 if ran.is_placed else total_bytes
        if nbytes(payload) != want_bytes:
            raise ProtocolError(f"payload of {nbytes(payload)} bytes, want {want_bytes}")
        return Success(ran.tensors, payload, ran.is_placed)

    def _bury(self, worker: Attached) -> None:
        """A worker ended by itself, and its last answers are in: the rest runs again."""
        if self._attached.get(worker.station) is not worker:
            return
        self._counters["workers lost"] += 1
        self.lending.lost(worker)
        needs_another = worker.lane.lost(worker.station)
        self._detach(worker)
        worker.events.is_dead(needs_another)

    def close(self) -> None:
        """Let go of every worker; each ends when its stream does."""
        for worker in list(self._attached.values()):
            self._detach(worker)
