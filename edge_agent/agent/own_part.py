"""The owner's part of a divided epoch: opened by the worker that serves its model, or by another
one that takes over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from edge_agent.agent.datapath import DataPath
from edge_agent.agent.loaded import Loaded
from edge_agent.agent.moving import BESIDE_TIMEOUT_S, Moving
from edge_agent.agent.stations import OfDivided
from edge_agent.agent.workers import Serve, Worker, Workers
from edge_agent.errors import EdgeAgentError, WorkerLost
from edge_agent.wire.messages import Message

log = logging.getLogger(__name__)


class OwnPart:
    """Used by one thread at a time."""

    def __init__(
        self,
        datapath: DataPath,
        workers: Workers,
        moving: Moving,
        loaded: Loaded,
        told: Callable[[OfDivided], None],
        *,
        others_serve: bool,
    ) -> None:
        """`told` hears, on the data thread, what the worker says of the epoch."""
        self._datapath = datapath
        self._workers = workers
        self._moving = moving
        self._loaded = loaded
        self._told = told
        self._others_serve = others_serve
        self._worker: Worker | None = None
        self._is_beside = False
        self.serve: Serve

    def open(self, serve: Serve) -> str:
        """Open it; the key by which other workers know the one that has it.

        Raises: EdgeAgentError: it cannot be opened; what serves goes on.
        """
        self.serve = serve
        loaded = self._loaded
        serving = loaded.worker
        if serving is not None and loaded.opens_aside:
            serving.hear(serve.epoch, self._told)
            self._worker, self._is_beside = serving, True
            try:
                return self._workers.open_beside(serving, serve).result(BESIDE_TIMEOUT_S).key
            except TimeoutError:
                self.discard()
                raise WorkerLost("the worker is too busy to open another epoch") from None
        child = self._workers.prepare(is_background=self._others_serve, is_divided=True)
        try:
            self._worker, ready = self._moving.open(
                loaded.lane, serve, child, loaded.counted, self._told
            )
        except EdgeAgentError:
            child.end()
            raise
        return ready.key

    def tell(self, message: Message) -> None:
        """Send a message of the epoch to the worker."""
        if self._worker is not None:
            self._datapath.tell(self._worker.station, message)

    def take_over(self) -> bool:
        """Have it serve; False: it cannot, because the worker may be caught in a run that nobody
        awaits.

        Raises: WorkerLost: the worker is gone.
        """
        loaded, worker = self._loaded, self._worker
        if worker is None or (self._is_beside and worker is not loaded.worker):
            raise WorkerLost("the worker died since it opened the epoch")
        if self._is_beside:
            if not self._workers.switch(worker, self.serve):
                return False
        else:
            loaded.worker = worker
            self._datapath.cut_over(loaded.lane, worker.station)
        loaded.serve = replace(self.serve, specialised=loaded.serve.specialised)
        return True

    def discard(self) -> None:
        """It will not serve: what was opened for it is given up."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        if self._is_beside:
            worker.hear(self.serve.epoch, None)
            self._workers.discard(worker, self.serve.epoch)
        else:
            self._datapath.retire(self._loaded.lane, worker.station)
