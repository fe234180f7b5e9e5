"""How a model whose worker died gets another one, and what is suspected when that one dies too."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Protocol

from edge_agent.agent.datapath import DataPath
from edge_agent.agent.loaded import Loaded, Planning
from edge_agent.agent.moving import Moving
from edge_agent.agent.specialising import refuse, refuse_all
from edge_agent.agent.stores import Stores
from edge_agent.agent.workers import Serve, Workers, plain_subgraph
from edge_agent.errors import EdgeAgentError, ModelQuarantined, StorageError, WorkerLost
from edge_agent.plans import Epoch
from edge_agent.subgraphs import ModelId
from edge_agent.wire.parts import Banned

log = logging.getLogger(__name__)

NO_ROOM_S = 0.5
"""So long until another process is tried to start where that failed."""
DEATHS_OF_SUSPECTS = 2
"""So many deaths in a row, and the specialised subgraphs and the providers of units beside the
processor are suspected first: one less than for a quarantine of the model."""
_DIED_AGAIN = "the worker died again and again"


class Host(Protocol):
    """What is needed of the controller."""

    is_stopping: threading.Event
    """Set when the agent is about to end."""

    def epoch(self, model: ModelId) -> Epoch:
        """A new one of that model."""
        ...

    def start_build(self, loaded: Loaded, *, is_fresh: bool) -> None:
        """Have a plan made, which will serve."""
        ...


class Restarts:
    """Gives lanes without a worker another one. The steps of one model are called one at a time."""

    def __init__(
        self, stores: Stores, datapath: DataPath, workers: Workers, moving: Moving, host: Host
    ) -> None:
        self._stores = stores
        self._datapath = datapath
        self._workers = workers
        self._moving = moving
        self._host = host

    def restart(self, loaded: Loaded) -> None:
        """Until a worker serves, or the model is gone or quarantined."""
        lane = loaded.lane
        while not self._host.is_stopping.is_set():
            if loaded.is_gone.is_set() and not self._datapath.call(lambda: lane.in_flight):
                return  # nobody waits for it any more
            if self._datapath.call(lambda: lane.quarantine) is not None:
                self._remember_quarantine(loaded)
                return
            if lane.deaths_in_a_row >= DEATHS_OF_SUSPECTS:
                self._give_up_suspects(loaded)
            try:
                self._open_again(loaded)
                return
            except (EdgeAgentError, OSError) as error:
                self._opening_failed(loaded, error)

    def _open_again(self, loaded: Loaded) -> None:
        lane = loaded.lane
        child = self._workers.prepare(is_background=False)
        try:
            files = self._stores.in_place(loaded.record.model, loaded.serve.subgraphs)
            loaded.serve = replace(loaded.serve, subgraphs=files)
            loaded.worker, ready = self._moving.open(lane, loaded.serve, child, loaded.counted)
            refuse(loaded, {u.shapes: u.reason for u in ready.unopened})
            self._datapath.cut_over(lane, loaded.worker.station)
        except BaseException:
            child.end()
            raise
        lane.restarts += 1

    def _opening_failed(self, loaded: Loaded, error: EdgeAgentError | OSError) -> None:
        """A plan that cannot be opened is given up for plain ONNX Runtime; plain is tried again."""
        log.warning("model %s could not be opened: %s", loaded.record.name, error)
        if isinstance(error, ModelQuarantined):
            return
        if isinstance(error, OSError):
            # Processes or descriptors are used up, for which it is not to blame.
            self._host.is_stopping.wait(NO_ROOM_S)
            return
        if loaded.serve.specialised:
            refuse_all(loaded, f"the worker could not be opened: {error}")
            return
        because = None if isinstance(error, WorkerLost) else str(error)
        if loaded.serve.subgraphs[0].compiled_for is not None:
            try:
                self._fall_back(loaded, f"its plan could not be opened: {error}")
                return
            except EdgeAgentError as damage:
                because = str(damage)
        self._datapath.call(lambda: loaded.lane.died(because))

    def _give_up_suspects(self, loaded: Loaded) -> None:
        """Serve without what is specialised, and without units beside the processor, which are
        left out of the plan from now on."""
        used = sorted({file.unit for file in loaded.serve.files if file.use is not None})
        refuse_all(loaded, _DIED_AGAIN)
        if not used:
            return
        log.warning("%s is planned without %s", loaded.record.name, ", ".join(used))
        loaded.banned += tuple(Banned(unit, _DIED_AGAIN) for unit in used)
        if all(file.use is None for file in loaded.serve.files):
            self._plan_again(loaded, "units beside the processor were not usable")
            return
        try:
            self._fall_back(loaded, _DIED_AGAIN)
        except EdgeAgentError as error:
            log.warning("model %s: %s", loaded.record.name, error)

    def _fall_back(self, loaded: Loaded, because: str) -> None:
        path = str(self._stores.model_path(loaded.record.model))
        plain = plain_subgraph(path, loaded.record.threads)
        loaded.serve = Serve(
            epoch=self._host.epoch(loaded.record.model),
            subgraphs=(plain,),
            instances=1,
            inputs=loaded.lane.inputs,
            outputs=loaded.lane.outputs,
        )
        loaded.hold(self._stores.hold(loaded.serve.files))
        loaded.plan = None
        self._plan_again(loaded, because)

    def _plan_again(self, loaded: Loaded, because: str) -> None:
        """Have a plan made, unless one is in the making."""
        if loaded.planning.state in ("done", "failed"):
            loaded.planning = Planning("waiting", 0.0, because)
            self._host.start_build(loaded, is_fresh=False)

    def _remember_quarantine(self, loaded: Loaded) -> None:
        log.error("%s", loaded.lane.quarantine)
        loaded.record = replace(loaded.record, quarantined=loaded.lane.quarantine)
        if not loaded.is_gone.is_set():  # else its name stands for another model, or for none
            try:
                self._stores.registry.save(loaded.record)
            except StorageError as error:
                log.warning("it will be tried again at the next start: %s", error)
