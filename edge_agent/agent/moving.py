"""How another epoch of a model takes over: opened by the worker that serves, beside what it serves,
or by a worker of its own that replaces the other.

The first spares the memory that each process has of its own, and the start of one. It is used where
ONNX Runtime lets threads run on while a session is created (`engine.aside`), unless the worker may
be caught in a run that nobody awaits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from edge_agent.agent.datapath import DataPath
from edge_agent.agent.lanes import Lane
from edge_agent.agent.loaded import Loaded
from edge_agent.agent.processes import Child
from edge_agent.agent.specialising import refuse
from edge_agent.agent.stations import OfDivided
from edge_agent.agent.workers import (
    OPEN_TIMEOUT_S,
    Serve,
    Worker,
    Workers,
    not_opened_in_time,
)
from edge_agent.errors import (
    EdgeAgentError,
    ModelRefused,
    RuntimeUnavailable,
    StorageError,
    WorkerLost,
)
from edge_agent.wire.messages import Ready
from edge_agent.wire.parts import ShapeCounts

log = logging.getLogger(__name__)

BESIDE_TIMEOUT_S = 60.0
"""A worker whose threads are all busy does not even begin before one of them is free."""


class Host(Protocol):
    """What is needed of the controller."""

    def counts(self, lane: Lane) -> bool:
        """Whether the requests of a lane are to be counted by shape."""
        ...

    def others_serve(self) -> bool:
        """Whether a new process should give way to what serves."""
        ...

    def worker_lost(self, worker: Worker) -> None:
        """A worker died, and its lane needs another one."""
        ...

    def shapes_counted(self, worker: Worker, counts: ShapeCounts) -> None:
        """A worker tells which shapes were asked lately."""
        ...

    def restart(self, loaded: Loaded) -> None:
        """Give a lane without a worker another one that serves as before."""
        ...

    def is_over(self, loaded: Loaded) -> bool:
        """Whether the model is gone, or the agent is about to end."""
        ...


class Moving:
    """Opens epochs and lets them take over. The steps of one model are called one at a time."""

    def __init__(self, datapath: DataPath, workers: Workers, host: Host) -> None:
        self._datapath = datapath
        self._workers = workers
        self._host = host

    def open(
        self,
        lane: Lane,
        serve: Serve,
        child: Child,
        counted: ShapeCounts = (),
        told: Callable[[OfDivided], None] | None = None,
    ) -> tuple[Worker, Ready]:
        """Have a prepared process open an epoch; it serves from `DataPath.cut_over` on. `told`
        hears what the worker says of it, if it is divided.

        Raises:
            EdgeAgentError: it cannot.
        """
        worker = self._workers.start(
            lane,
            self._counting(lane, serve, counted),
            child,
            self._host.worker_lost,
            self._host.shapes_counted,
            told,
        )
        try:
            ready = worker.ready.result(OPEN_TIMEOUT_S)
            child.restore_session()
            return worker, ready
        except TimeoutError:
            child.end()
            raise not_opened_in_time() from None
        except WorkerLost:
            raise
        except EdgeAgentError:
            self._datapath.retire(lane, worker.station)
            raise

    def move(self, loaded: Loaded, serve: Serve, *, may_be_beside: bool) -> None:
        """Let that epoch serve a model, once it can.

        Raises:
            EdgeAgentError: it cannot; what served before goes on serving.
        """
        worker, plan = loaded.worker, loaded.plan
        is_beside = may_be_beside and loaded.opens_aside
        ready = self._beside(loaded, serve) if is_beside else None
        if ready is None:
            try:
                ready = self._by_another(loaded, serve)
            except EdgeAgentError:
                if is_beside and worker is not None:
                    self._workers.discard(worker, serve.epoch)  # it goes on with what it has
                raise
            loaded.plan = plan  # also if it was given up meanwhile, by a restart
        loaded.serve = serve
        refuse(loaded, {u.shapes: u.reason for u in ready.unopened})

    def _counting(self, lane: Lane, serve: Serve, counted: ShapeCounts) -> Serve:
        return replace(serve, counted=counted) if self._host.counts(lane) else serve

    def _by_another(self, loaded: Loaded, serve: Serve) -> Ready:
        child = self._workers.prepare(is_background=self._host.others_serve())
        before = loaded.worker
        try:
            worker, ready = self.open(loaded.lane, serve, child, loaded.counted)
            loaded.worker = worker
            self._datapath.cut_over(loaded.lane, worker.station)
            return ready
        except EdgeAgentError:
            loaded.worker = before
            child.end()
            raise

    def _beside(self, loaded: Loaded, serve: Serve) -> Ready | None:
        """What the worker that serves says of it; None if another one has to be asked.

        Raises:
            EdgeAgentError: it is the fault of the epoch, or the model is over.
        """
        lane, worker = loaded.lane, loaded.worker
        if worker is None or self._datapath.call(lambda: _is_caught(lane, worker)):
            return None
        serve = self._counting(lane, serve, loaded.counted)
        try:
            ready = self._workers.open_beside(worker, serve).result(BESIDE_TIMEOUT_S)
            return ready if self._workers.switch(worker, serve) else None
        except (ModelRefused, RuntimeUnavailable, StorageError):
            raise
        except TimeoutError:
            log.warning("%s did not open %s in time", loaded.record.name, serve.epoch)
        except WorkerLost as error:
            log.warning("%s: %s; its plan is opened by another", loaded.record.name, error)
            self._host.restart(loaded)
            if self._host.is_over(loaded):
                raise
        except EdgeAgentError as error:
            log.warning("%s did not open %s: %s", loaded.record.name, serve.epoch, error)
        return None


def _is_caught(lane: Lane, worker: Worker) -> bool:
    station = worker.station
    return lane.active is not station or station.runs_for_nobody
