"""One loaded model as the controller knows it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from edge_agent.agent.builders import Builder
from edge_agent.agent.lanes import Lane
from edge_agent.agent.workers import Serve, Worker
from edge_agent.plans import ExecutionPlan
from edge_agent.store.leases import Lease
from edge_agent.store.registry import LoadedModel
from edge_agent.wire.messages import ModelState


@dataclass(frozen=True, slots=True)
class Planning:
    """How far the plan of a model is."""

    state: str
    """waiting, working, done or failed"""
    fraction: float
    what: str


@dataclass(slots=True, eq=False)
class Loaded:
    """A model that is served under a name; changed only by the steps of the controller."""

    record: LoadedModel
    lane: Lane
    serve: Serve
    """What the next worker is to serve."""
    worker: Worker | None = None
    plan: ExecutionPlan | None = None
    planning: Planning = Planning("waiting", 0.0, "waiting for its turn")
    builder: Builder | None = None
    leases: tuple[Lease, ...] = ()
    """On the compiled files of `serve`."""
    is_gone: threading.Event = field(default_factory=threading.Event)
    """Set when it is unloaded or replaced, so that its building stops."""

    def hold(self, leases: tuple[Lease, ...]) -> None:
        """Hold these leases, which see to it that what the next worker opens is still there then,
        in place of those before."""
        before, self.leases = self.leases, leases
        for lease in before:
            lease.release()

    def state(self, memory_bytes: int | None) -> ModelState:
        """The model as `models` and `status` show it."""
        lane, worker = self.lane, self.worker
        if lane.quarantine is not None:
            word = "quarantined"
        elif lane.active is not None:
            word = "serving"
        else:
            word = "restarting" if worker is not None else "starting"
        return ModelState(
            name=self.record.name,
            model=self.record.model,
            target=self.record.target,
            threads=self.record.threads,
            state=word,
            planning=self.planning.state,
            progress_fraction=self.planning.fraction,
            progress=self.planning.what,
            plan=self._plan_text(),
            is_plain=self.plan is None or self.plan.is_plain,
            epoch=self.serve.epoch.number,
            instances=self.serve.instances,
            inputs=lane.inputs,
            outputs=lane.outputs,
            shapes=self.plan.shapes if self.plan is not None else self.record.shapes,
            in_flight=lane.in_flight,
            answered=lane.answered,
            failed=lane.failed,
            restarts=lane.restarts,
            worker_pid=worker.pid if worker is not None else None,
            memory_bytes=memory_bytes,
            source=self.record.source,
        )

    def _plan_text(self) -> str:
        if self.plan is None:
            return "plain ONNX Runtime"
        chosen = " + ".join(
            f"[{s.subgraph.segments}] {s.subgraph.configuration}" for s in self.plan.subgraphs
        )
        return f"plain ONNX Runtime: {chosen}" if self.plan.is_plain else chosen
