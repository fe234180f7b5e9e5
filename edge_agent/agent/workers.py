"""Worker processes from start to end."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from edge_agent import clock
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.lanes import Lane, Station
from edge_agent.agent.processes import Child
from edge_agent.agent.spares import Spares, WorkerKind
from edge_agent.agent.stations import OfDivided
from edge_agent.errors import DeadlineExceeded, EdgeAgentError, ModelRefused, WorkerLost
from edge_agent.plans import Epoch
from edge_agent.tensors import TensorSpec
from edge_agent.transport import local
from edge_agent.wire.hosting import DividedPart
from edge_agent.wire.messages import (
    Codec,
    Deployment,
    Ready,
    decode,
)
from edge_agent.wire.opening import OpenAhead
from edge_agent.wire.parts import (
    ShapeCounts,
    Shapes,
    Specialised,
    SubgraphFile,
)

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 600.0
CLOSE_S = 0.5
"""How long all workers together may take to end when the agent ends."""
_HOSTING = WorkerKind(is_divided=True)


def plain_subgraph(path: str, threads: int | None) -> SubgraphFile:
    """The whole model as a user's own ONNX Runtime session would open it."""
    return SubgraphFile(path=path, level="all", threads=threads, is_plain=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """What a worker is to serve."""

    epoch: Epoch
    subgraphs: tuple[SubgraphFile, ...]
    instances: int
    pinned_cores: tuple[int, ...] = ()
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    warm_shapes: Shapes = ()
    specialised: tuple[Specialised, ...] = ()
    counted: ShapeCounts | None = None
    division: DividedPart | None = None
    """See `Deployment`."""

    @property
    def files(self) -> tuple[SubgraphFile, ...]:
        """All that it opens."""
        return (*self.subgraphs, *(file for s in self.specialised for file in s.subgraphs))

    def deployment(self) -> Deployment:
        """What a worker is told of it."""
        return Deployment(
            epoch=self.epoch,
            subgraphs=self.subgraphs,
            instances=self.instances,
            pinned_cores=self.pinned_cores,
            inputs=self.inputs,
            outputs=self.outputs,
            warm_shapes=self.warm_shapes,
            specialised=self.specialised,
            counted=self.counted,
            division=self.division,
        )


class Worker:
    """One worker process. The data thread calls what is of `WorkerEvents`."""

    def __init__(
        self,
        lane: Lane,
        child: Child,
        serve: Serve,
        on_lost: Callable[[Worker], None],
        on_counted: Callable[[Worker, ShapeCounts], None] = lambda _worker, _counts: None,
    ) -> None:
        self._on_counted = on_counted
        self.lane = lane
        self.child = child
        self.serve = serve
        self.station: Station
        self._opens: dict[Epoch, Future[Ready]] = {}
        self._heard: dict[Epoch, Callable[[OfDivided], None]] = {}
        self.ready = self.will_open(serve.epoch)
        """Set when the worker can take requests; fails with the reason if it never can."""
        self._on_lost = on_lost

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    def will_open(self, epoch: Epoch) -> Future[Ready]:
        """It is about to be told to open that epoch."""
        self._opens[epoch] = Future()
        return self._opens[epoch]

    def is_ready(self, ready: Ready) -> None:
        """The worker opened the sessions of an epoch."""
        self._opens.pop(ready.epoch).set_result(ready)

    def is_refused(self, epoch: Epoch, error: EdgeAgentError) -> None:
        """The worker could not open the sessions of that epoch."""
        self._opens.pop(epoch).set_exception(error)

    def hear(self, epoch: Epoch, told: Callable[[OfDivided], None] | None) -> None:
        """Have `told` hear, on the data thread, what the worker says of a divided epoch; None:
        nobody."""
        if told is None:
            self._heard.pop(epoch, None)
        else:
            self._heard[epoch] = told

    def has_told(self, message: OfDivided) -> None:
        """The worker tells of a divided epoch."""
        told = self._heard.get(message.epoch)
        if told is not None:
            told(message)

    def is_dead(self, needs_another: bool) -> None:
        """The process ended without being told to."""
        # A thread of its own: who waits for `ready` may occupy a whole pool.
        _in_thread(lambda: self._bury(needs_another))

    def is_drained(self) -> None:
        """The worker has nothing left to answer and gets nothing more."""
        self.child.release()
        _in_thread(self.child.end)

    def has_counted(self, counts: ShapeCounts) -> None:
        """The worker tells how often which shapes were asked lately."""
        self._on_counted(self, counts)

    def _bury(self, needs_another: bool) -> None:
        self.child.end()
        how = self.child.how_it_ended()
        has_served = self.ready.done()
        for opening in list(self._opens.values()):
            opening.set_exception(died_opening(how))
        if not has_served:
            return
        log.warning("worker %d of %s died (%s)", self.pid, self.serve.epoch, how)
        if needs_another:
            self._on_lost(self)


class OpeningAhead:
    """The opening of a model file by a prepared worker before the model is admitted.

    Whatever the file is, it meets ONNX Runtime in that worker alone, and what becomes of it is
    asked for only after the builder has found the file good: its reasons go first.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._stream = local.FrameStream(child.stream)
        self._codec = Codec()
        self._is_begun = False

    def begin(self, file: SubgraphFile) -> None:
        """Tell the worker to open `file`."""
        self._is_begun = True
        with contextlib.suppress(local.ConnectionLost):  # `wait` says what became of it
            self._stream.send(self._codec.encode(OpenAhead(file=file)))

    def wait(self) -> None:
        """Block until the worker no longer uses the path of the file, if it ever did.

        Raises:
            WorkerLost: it died of the file.
            ModelRefused: it takes too long.
        """
        if not self._is_begun:
            return
        decode(self._codec.from_new_worker, when_opened(self._child, self._stream))


def when_opened(child: Child, stream: local.FrameStream) -> bytes:
    """What a worker says next, which is opening something.

    Raises:
        WorkerLost: it died of that.
        ModelRefused: it takes too long.
    """
    try:
        raw, _ = stream.receive(clock.monotonic_s() + OPEN_TIMEOUT_S)
    except local.ConnectionLost as error:
        child.end()
        raise died_opening(child.how_it_ended()) from error
    except DeadlineExceeded:
        raise not_opened_in_time() from None
    return raw


def died_opening(how: str) -> WorkerLost:
    """What is said of a worker that ended so before it could serve."""
    return WorkerLost(f"the worker died while it opened the model ({how})")


def not_opened_in_time() -> ModelRefused:
    """What is said of a model that takes longer to open than anybody would wait."""
    return ModelRefused(f"ONNX Runtime did not open it within {OPEN_TIMEOUT_S:.0f} s")


def _in_thread(action: Callable[[], None]) -> None:
    threading.Thread(target=action, name="worker-end", daemon=True).start()


class Workers:
    """Starts workers and ends them."""

    def __init__(self, datapath: DataPath) -> None:
        self._datapath = datapath
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._spares = Spares(self._start_child)

    def prepare(self, *, is_background: bool, is_divided: bool = False) -> Child:
        """A process that loads ONNX Runtime while it waits to hear what to serve, or has done so.

        In the background it gives way to what serves until `Child.restore_session`; `is_divided`:
        the model is divided over devices.
        """
        kind = WorkerKind(is_background=is_background, is_divided=is_divided)
        return self._spares.take(kind) or self._start_child(kind)

    def prepare_to_host(self) -> Child:
        """One for stages of another device's model, which is likely to come again."""
        return self._spares.take(_HOSTING, is_next_expected=True) or self._start_child(_HOSTING)

    def expect_divided(self, *, is_background: bool) -> None:
        """One will be wanted soon for a divided model, of this device or to host."""
        self._spares.expect(WorkerKind(is_background=is_background, is_divided=True))

    def _start_child(self, kind: WorkerKind) -> Child:
        child = Child("edge_agent.worker", kind.arguments)
        child.go_first()
        if kind.is_background:
            child.lower_session()
        with self._lock:
            self._children = [c for c in self._children if c.process.returncode is None]
            self._children.append(child)
        return child

    def opening_ahead(self, child: Child) -> OpeningAhead:
        """The way to have a prepared process open a file before `start`."""
        return OpeningAhead(child)

    def start(
        self,
        lane: Lane,
        serve: Serve,
        child: Child,
        on_lost: Callable[[Worker], None],
        on_counted: Callable[[Worker, ShapeCounts], None],
        told: Callable[[OfDivided], None] | None = None,
    ) -> Worker:
        """Tell a prepared process what to serve; `worker.ready` says when it can.

        It gets no requests until `DataPath.cut_over`. `on_lost` is called on a thread of its own
        when it dies later and its lane needs another worker, `on_counted` on the data thread.
        """
        worker = Worker(lane, child, serve, on_lost, on_counted)
        # The data thread gets a descriptor of its own: closing one that it waits on would hide the
        # end of the stream from it.
        worker.hear(serve.epoch, told)
        stream = child.stream.dup()
        worker.station = self._datapath.attach(lane, serve.deployment(), stream, worker)
        return worker

    def open_beside(self, worker: Worker, serve: Serve) -> Future[Ready]:
        """Have a worker that serves open another epoch; set when it has, as `Worker.ready` is.

        It serves that from `switch` on.

        Raises:
            WorkerLost: it is dead.
        """
        ready = worker.will_open(serve.epoch)
        self._datapath.open_beside(worker.station, serve.deployment())
        return ready

    def switch(self, worker: Worker, serve: Serve) -> bool:
        """Let a worker go on with what it opened beside what it serves; False, and nothing is
        changed, if it may be caught in a run that nobody awaits.

        Raises:
            WorkerLost: it died since.
        """
        if not self._datapath.switch(worker.lane, worker.station, serve.deployment()):
            return False
        worker.serve = serve
        return True

    def discard(self, worker: Worker, epoch: Epoch) -> None:
        """Have a worker give up what it was told to open beside what it serves."""
        self._datapath.discard(worker.station, epoch)

    def close(self) -> None:
        """End every worker; the data thread has let go of them before."""
        self._spares.stop()
        with self._lock:
            living = [c for c in self._children if c.process.returncode is None]
        for child in living:
            child.release()
        until_s = clock.monotonic_s() + CLOSE_S
        for child in living:
            child.end(max(0.0, until_s - clock.monotonic_s()))
