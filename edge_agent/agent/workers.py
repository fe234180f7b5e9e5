"""Worker processes from start to end."""

from __future__ import annotations

import itertools
import logging
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from edge_agent.agent import processes
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.lanes import Lane, Station
from edge_agent.errors import EdgeAgentError, WorkerLost
from edge_agent.plans import Epoch
from edge_agent.tensors import TensorSpec
from edge_agent.transport.zeromq import Context, Link
from edge_agent.wire.frames import pack_prefix
from edge_agent.wire.messages import Codec, Deployment, Ready, Shapes, SubgraphFile

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """What a worker is to serve: a deployment without its addresses."""

    epoch: Epoch
    subgraphs: tuple[SubgraphFile, ...]
    instances: int
    pinned_cores: tuple[int, ...] = ()
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    warm_shapes: Shapes = ()


class Worker:
    """One worker process. The data thread calls the four `is_…` methods (see `WorkerEvents`)."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        serve: Serve,
        executor: Executor,
        on_lost: Callable[[Worker], None],
    ) -> None:
        self.process = process
        self.serve = serve
        self.station: Station
        self.ready: Future[Ready] = Future()
        """Set when the worker can take requests; fails with the reason if it never can."""
        self._executor = executor
        self._on_lost = on_lost

    def is_ready(self, ready: Ready) -> None:
        """The worker opened its sessions."""
        self.ready.set_result(ready)

    def is_refused(self, error: EdgeAgentError) -> None:
        """The worker could not open its sessions."""
        self.ready.set_exception(error)

    def is_dead(self, needs_another: bool) -> None:
        """The process ended without being told to."""
        self._executor.submit(self._bury, needs_another)

    def is_drained(self) -> None:
        """The worker has nothing left to answer and gets nothing more."""
        self._executor.submit(processes.end, self.process)

    def _bury(self, needs_another: bool) -> None:
        processes.end(self.process)
        how = processes.how_it_ended(self.process)
        if not self.ready.done():
            self.ready.set_exception(
                WorkerLost(f"the worker died while it opened the model ({how})")
            )
            return
        log.warning("worker %d of %s died (%s)", self.process.pid, self.serve.epoch, how)
        if needs_another:
            self._on_lost(self)


class Workers:
    """Starts workers and ends them."""

    def __init__(self, datapath: DataPath, folder: Path, executor: Executor) -> None:
        self._datapath = datapath
        self._folder = folder
        self._executor = executor
        self._context = Context()
        self._codec = Codec()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []

    def prepare(self, *, is_background: bool) -> subprocess.Popen[bytes]:
        """Start a process that loads ONNX Runtime while it waits to hear what to serve."""
        arguments = ["--background"] if is_background else []
        process = processes.start("edge_agent.worker", arguments)
        with self._lock:
            self._processes = [p for p in self._processes if p.returncode is None]
            self._processes.append(process)
        return process

    def start(
        self,
        lane: Lane,
        serve: Serve,
        process: subprocess.Popen[bytes],
        on_lost: Callable[[Worker], None],
    ) -> Worker:
        """Tell a prepared process what to serve; `worker.ready` says when it can.

        It gets no requests until `DataPath.cut_over`. `on_lost` is called on a thread of the
        executor when it dies later and its lane needs another worker.
        """
        link = Link(self._context, self._folder, f"w{next(self._numbers)}")
        worker = Worker(process, serve, self._executor, on_lost)
        message = self._codec.encode(
            Deployment(
                epoch=serve.epoch,
                subgraphs=serve.subgraphs,
                instances=serve.instances,
                pinned_cores=serve.pinned_cores,
                inputs=serve.inputs,
                outputs=serve.outputs,
                requests_address=link.requests_address,
                answers_address=link.answers_address,
                warm_shapes=serve.warm_shapes,
            )
        )
        assert process.stdin is not None
        try:
            process.stdin.write(pack_prefix(len(message), 0) + message)
            process.stdin.flush()
        except BrokenPipeError:
            # The data thread sees its death and says so through `ready`.
            log.warning("worker %d died before it was told what to serve", process.pid)
        worker.station = self._datapath.call(
            lambda: self._datapath.attach(
                lane, serve.epoch, link, process.pid, serve.instances, worker
            )
        )
        return worker

    def close(self) -> None:
        """End every worker, and ZeroMQ; the data thread has ended before."""
        with self._lock:
            living = [p for p in self._processes if p.returncode is None]
        for process in living:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        for process in living:
            processes.end(process)
        self._context.close()
