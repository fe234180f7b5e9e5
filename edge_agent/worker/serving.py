"""Takes requests off the stream and off lent connections, runs the chain of sessions, and sends
the answers.

The runner threads take turns: whoever holds the lock of its epoch waits for the next request, then
passes the lock on and runs. A request is thus received, run and answered by one thread, without
a hand-over between threads (each would cost about 50 µs).

The next epoch is opened beside (`epochs.NextEpoch`). From the moment at which the agent says so it
has threads of its own, which take what comes; those of the epoch before answer what they have, and
the last of them closes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge_agent import clock
from edge_agent.errors import EdgeAgentError, ProtocolError
from edge_agent.plans import Epoch
from edge_agent.tensors import Arrays
from edge_agent.transport.local import SCRATCH_BYTES, ConnectionLost, FrameStream
from edge_agent.transport.memory import mapped
from edge_agent.transport.tally import TALLY_BYTES, Tally
from edge_agent.wire.arrays import pack_arrays, payload_bytes, unpack_arrays
from edge_agent.wire.frames import Buffer, fill
from edge_agent.wire.hosting import Abandon, Compare, Dial, GiveUpRoute, Listen
from edge_agent.wire.lending import Forget, GiveBack, Lend, Recall
from edge_agent.wire.lending import Tally as KeepTally
from edge_agent.wire.messages import (
    AgentToWorker,
    Codec,
    Counted,
    Deployment,
    Discard,
    Failure,
    Infer,
    Message,
    Ran,
    Result,
    Run,
    RunError,
    Switch,
    decode,
    error_text,
)
from edge_agent.wire.parts import TensorHeads
from edge_agent.worker.epochs import Beside, NextEpoch, Opened
from edge_agent.worker.lent import LentConnection, NotAsLent
from edge_agent.worker.runners import Asked

if TYPE_CHECKING:
    from edge_agent.worker.divided import DividedRunner
    from edge_agent.worker.dividing import Divided

log = logging.getLogger(__name__)

_NO_ROOM = memoryview(b"")
_PAUSE_S = 0.05
_PAUSE_WITHIN_S = 0.5
_PAUSE_POLL_S = 5e-3


class Serving:
    """The runner threads of one worker."""

    def __init__(
        self,
        stream: FrameStream,
        opened: Opened,
        open_deployment: Callable[[Deployment, Beside], Opened],
    ) -> None:
        """`opened` is served first, and what `open_deployment` gives after it.

        Make it on a thread that is bound to no core.
        """
        self._stream = stream
        self._opened = opened
        """What serves what comes from now on. Only threads of it read: the stream, lent
        connections, and what belongs to reading; one at a time, which holds `reading`."""
        self._next_epoch = NextEpoch(open_deployment)
        self._cores = os.sched_getaffinity(0)
        self._busy: set[int] = set()
        """Threads that answer something."""
        self._codec = Codec()
        self._memory: dict[int, memoryview] = {}
        """What clients share, by the agent's number."""
        self._poll = select.epoll()
        self._poll.register(stream.socket, select.EPOLLIN)
        self._events: list[tuple[int, int]] = []
        """What `_poll` found and nobody has looked at yet."""
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._tally = Tally(memoryview(bytearray(TALLY_BYTES)))
        self._lent: dict[int, LentConnection] = {}
        """By descriptor."""
        self._on_others: dict[int, tuple[DividedRunner, Asked]] = {}
        """What is asked of other devices and not answered yet, by sequence."""
        self._settling = threading.Lock()
        """Held by who settles a request of a lent connection, or gives one back."""
        self._sending = threading.Lock()
        self._ended = threading.Event()

    def run(self) -> None:
        """Answer until the stream closes.

        Raises:
            ConnectionLost: it did.
        """
        self._start_threads()
        self._ended.wait()
        with self._settling:
            for lent in list(self._lent.values()):
                lent.close()
        raise ConnectionLost("the agent closed the stream")

    def _start_threads(self) -> None:
        opened = self._opened
        for i in range(opened.threads):
            threading.Thread(
                target=self._serve, args=(opened,), name=f"run-{i}", daemon=True
            ).start()

    def _serve(self, opened: Opened) -> None:
        try:
            # A thread inherits the core of the one that starts it.
            os.sched_setaffinity(0, self._cores)
            opened.runner.pin_caller()
            own = threading.get_ident()
            while (answer := self._received(opened)) is not None:
                self._busy.add(own)
                answer()
                self._busy.discard(own)
            opened.leave()
        except ConnectionLost:
            self._ended.set()
        except Exception:
            log.exception("the worker broke the protocol, or the agent did")
            self._ended.set()

    def _has_pause(self) -> bool:
        quiet_since_s = now_s = clock.monotonic_s()
        until_s = now_s + _PAUSE_WITHIN_S
        while now_s < until_s:
            if self._busy:
                quiet_since_s = now_s
            elif now_s - quiet_since_s >= _PAUSE_S:
                return True
            clock.sleep_s(_PAUSE_POLL_S)
            now_s = clock.monotonic_s()
        return False

    # ---- receiving

    def _received(self, opened: Opened) -> Callable[[], None] | None:
        """What is to be done for the next request; None if there will be none of that epoch."""
        with opened.reading:
            if self._ended.is_set() or self._opened is not opened:
                return None
            try:
                found = self._next(opened)
                if found is not None and opened.counter is not None:
                    opened.counter.will_count()
                return found
            except BaseException:
                # Before another thread waits for what never comes.
                self._ended.set()
                raise

    def _next(self, opened: Opened) -> Callable[[], None] | None:
        """The next request, as what is to be done to answer it; None if another epoch takes it."""
        while self._opened is opened:
            if self._stream.holds_more:
                answer = self._from_agent()
            else:
                if not self._events:
                    self._events = self._poll.poll(self._tell_counts())
                if not self._events:
                    continue
                fd, _ = self._events.pop(0)
                lent = self._lent.get(fd)
                if lent is not None:
                    answer = self._from_client(lent)
                elif fd == self._stream.socket.fileno():
                    answer = self._from_agent()
                else:
                    continue  # given back since
            if answer is not None:
                return answer
        return None

    def _tell_counts(self) -> float | None:
        """Tell the agent which shapes are asked, if it is time; seconds until it may be next.

        Here nobody waits for this thread: it has answered, and is about to wait itself.
        """
        counter = self._opened.counter
        if counter is None:
            return None
        wait_s = counter.wait_s()
        if wait_s == 0.0:
            counts = counter.news()
            if counts is not None:
                self.send(Counted(counts))
            return None
        return wait_s

    def _from_agent(self) -> Callable[[], None] | None:
        raw, payload = self._stream.receive()
        message: AgentToWorker = decode(self._codec.to_worker, raw)
        match message:
            case Run():
                return self._run_of(message, payload)
            case Forget(memory=number):
                self._memory.pop(number, None)
            case KeepTally():
                self._keep_tally()
            case Lend():
                self._borrow(message)
            case Recall(connection=number):
                self._recall(number)
            case Deployment():
                beside = Beside(
                    counter=self._opened.counter, has_pause=self._has_pause, tell=self.send
                )
                self._next_epoch.begin(message, beside, self.send)
            case Switch(epoch=epoch):
                self._opened = self._next_epoch.take(epoch)
                self._start_threads()
            case Discard(epoch=epoch):
                self._next_epoch.discard(epoch)
            case Abandon(sequence=sequence):
                if (found := self._on_others.get(sequence)) is not None:
                    runner, asked = found
                    runner.abandon(asked)
            case Listen() | Dial() | GiveUpRoute() | Compare():
                self._tell_divided(message)
        return None

    def _divided(self, epoch: Epoch) -> Divided | None:
        """What of that epoch runs on other devices, if it is open."""
        opened = self._opened
        return opened.divided if opened.epoch == epoch else self._next_epoch.divided(epoch)

    def _tell_divided(self, message: Listen | Dial | GiveUpRoute | Compare) -> None:
        divided = self._divided(message.epoch)
        if divided is None:
            return  # it was given up meanwhile
        match message:
            case Listen():
                divided.listen(message)
            case Dial():
                divided.dial(message)
            case GiveUpRoute():
                divided.give_up(message)
            case Compare():
                divided.compare(message, self._has_pause, self.send)

    def _run_of(self, run: Run, payload: Buffer) -> Callable[[], None]:
        opened = self._opened
        if run.epoch != opened.epoch:
            # The agent waits for every request that it sent, so this is a fault of the agent.
            raise ProtocolError(f"request of epoch {run.epoch}, want {opened.epoch}")
        if opened.divided is not None and (runner := opened.divided.runner) is not None:
            # Before anything else is read, which may be that it is abandoned.
            until_s = None if run.left_s is None else clock.monotonic_s() + run.left_s
            self._on_others[run.sequence] = runner, Asked(until_s)
        if run.place is None:
            return lambda: self._answer_agent(opened, run, payload, _NO_ROOM)
        memory = self._memory_of(run.memory, run.place.end)
        inputs = memory[: run.place.inputs_bytes]
        room = memory[run.place.outputs_at : run.place.end]
        return lambda: self._answer_agent(opened, run, inputs, room)

    def _memory_of(self, number: int, size_bytes: int) -> memoryview:
        """Memory that was mapped for an earlier request, or whose descriptor came with this one."""
        memory = self._memory.get(number)
        if memory is not None and memory.nbytes >= size_bytes:
            return memory
        try:
            memory = mapped(self._descriptor("request with a place in memory"), size_bytes)
        except OSError as error:
            log.error("the memory of a request cannot be mapped: %s", error.strerror)
            return _NO_ROOM  # the inputs do not fit into it, which is the answer
        self._memory[number] = memory
        return memory

    def _descriptor(self, what: str) -> int:
        if not self._stream.descriptors:
            raise ProtocolError(f"{what} that did not come with it")
        return self._stream.descriptors.popleft()

    def _from_client(self, lent: LentConnection) -> Callable[[], None] | None:
        with self._settling:
            if lent.stream.fileno() not in self._lent:
                return None  # given back by another thread just now
            if lent.is_running:
                # It asks for more before it has its answer, which is for the agent to judge.
                lent.must_return = True
                self._poll.unregister(lent.stream)
                return None
        try:
            read = lent.read(self._scratch)
        except NotAsLent as error:
            with self._settling:
                self._give_back(lent, error.read, is_unsent=False)
            return None
        if read is None:
            return None
        infer, feeds = read
        opened = self._opened
        lent.is_running = True
        self._tally.take()
        return lambda: self._answer_client(opened, lent, infer, feeds)

    # ---- lent connections

    def _keep_tally(self) -> None:
        try:
            self._tally = Tally(mapped(self._descriptor("memory to count in"), TALLY_BYTES))
        except OSError as error:
            raise ProtocolError(f"memory to count in cannot be mapped: {error}") from error

    def _borrow(self, lend: Lend) -> None:
        stream = socket.socket(fileno=self._descriptor("lent connection"))
        memory = self._memory.get(lend.memory) if lend.place is not None else None
        try:
            lent = LentConnection(stream, lend, memory, self._codec)
        except ProtocolError:
            stream.close()
            raise
        self._lent[stream.fileno()] = lent
        self._poll.register(stream, select.EPOLLIN)

    def _recall(self, number: int) -> None:
        with self._settling:
            for lent in list(self._lent.values()):
                if lent.number == number:
                    lent.must_return = True
                    if not lent.is_running:
                        self._give_back(lent)

    def _give_back(
        self, lent: LentConnection, payload: bytes = b"", *, is_unsent: bool = False
    ) -> None:
        fd = lent.stream.fileno()
        del self._lent[fd]
        with contextlib.suppress(FileNotFoundError):
            self._poll.unregister(fd)
        try:
            self.send(GiveBack(lent.number, is_unsent), [memoryview(payload)])
        finally:
            lent.close()

    # ---- answering

    def _answer_agent(self, opened: Opened, run: Run, inputs: Buffer, room: memoryview) -> None:
        started_s = clock.precise_s()
        try:
            feeds = unpack_arrays(run.tensors, inputs)
            heads, tensors, is_placed = _packed(self._outputs(opened, run, feeds), room)
        except EdgeAgentError as error:
            self.send(
                RunError(
                    epoch=opened.epoch,
                    sequence=run.sequence,
                    code=error.code,
                    message=error_text(error),
                )
            )
            return
        finally:
            self._on_others.pop(run.sequence, None)
        self.send(
            Ran(
                epoch=opened.epoch,
                sequence=run.sequence,
                tensors=heads,
                run_s=clock.precise_s() - started_s,
                is_placed=is_placed,
            ),
            tensors,
        )

    def _outputs(self, opened: Opened, run: Run, feeds: Arrays) -> Arrays:
        if (found := self._on_others.get(run.sequence)) is None:
            return opened.runner.run(feeds, run.outputs)
        runner, asked = found
        return runner.run(feeds, run.outputs, asked)

    def _answer_client(
        self, opened: Opened, lent: LentConnection, infer: Infer, feeds: Arrays
    ) -> None:
        answer: Result | Failure
        tensors: list[memoryview] = []
        try:
            outputs = opened.runner.run(feeds, lent.outputs)
            heads, tensors, is_placed = _packed(outputs, lent.room)
            answer = Result(infer.request, heads, is_placed)
        except EdgeAgentError as error:
            answer = Failure(infer.request, error.code, error_text(error))
        message = self._codec.encode(answer)
        with self._settling:
            self._tally.settle(is_answered=isinstance(answer, Result))
            unsent = lent.answer(message, tensors)
            lent.is_running = False
            if (unsent or lent.must_return) and not self._ended.is_set():
                self._give_back(lent, unsent, is_unsent=bool(unsent))

    def send(self, message: Message, tensors: Sequence[memoryview] = ()) -> None:
        """Send to the agent. Raises: ConnectionLost."""
        encoded = self._codec.encode(message)
        with self._sending:
            self._stream.send(encoded, tensors)


def _packed(arrays: Arrays, room: memoryview) -> tuple[TensorHeads, list[memoryview], bool]:
    """Heads and bytes of the outputs, and whether the bytes were put into `room`."""
    heads, tensors = pack_arrays(arrays)
    if room.nbytes > 0 and payload_bytes(heads) <= room.nbytes:
        fill(room, tensors)
        return heads, [], True
    return heads, tensors, False
