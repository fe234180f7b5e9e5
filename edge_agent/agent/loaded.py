"""One loaded model as the controller knows it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from edge_agent.agent.builders import Builder
from edge_agent.agent.kept import Kept, Specialisation
from edge_agent.agent.lanes import Lane
from edge_agent.agent.workers import Serve, Worker
from edge_agent.devices import Device
from edge_agent.errors import EdgeAgentError
from edge_agent.plans import DividedPlan, ExecutionPlan
from edge_agent.store.leases import Lease
from edge_agent.store.registry import LoadedModel
from edge_agent.tensors import ShapeSet, shape_names
from edge_agent.wire.messages import (
    Build,
    Built,
    PlanInMaking,
)
from edge_agent.wire.parts import (
    Banned,
    ModelState,
    ShapeCounts,
    SpecialisedState,
    SubgraphFile,
)


@dataclass(frozen=True, slots=True)
class Planning:
    """How far the plan of a model is."""

    state: str
    """waiting, working, done or failed"""
    fraction: float
    what: str


WAITING = PlanInMaking(0.0, "waiting for its turn")


@dataclass(slots=True, eq=False)
class ShapeWork:
    """What is being planned for single sets of shapes of a model (see `specialising`)."""

    changing: threading.Lock = field(default_factory=threading.Lock)
    """Held to change what follows."""
    is_running: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set to end the thread that runs; the next one gets another."""
    builder: Builder | None = None
    asked: list[ShapeSet] = field(default_factory=list)
    """By users, and not answered yet."""
    answers: OrderedDict[ShapeSet, ExecutionPlan | EdgeAgentError] = field(
        default_factory=OrderedDict
    )
    progress: PlanInMaking = field(default_factory=lambda: WAITING)


@dataclass(slots=True, eq=False)
class Dividing:
    """What is being done to divide a model over devices, and what came of it (see `deploying`)."""

    is_running: bool = False
    is_wanted: bool = False
    is_fresh: bool = False
    """Whether stages are to be measured again."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set to end the thread that runs; the next one gets another."""
    state: str = "none"
    """none, waiting, working, done or failed"""
    fraction: float = 0.0
    what: str = ""
    plan: DividedPlan | None = None
    """The last one that was tried."""
    wire_refused: str = ""
    """Why tensors are sent as they are although the user allows fewer bits; "" if nothing speaks
    against it."""

    def tell(self, state: str, fraction: float, what: str) -> None:
        """It is there now, for who asks."""
        self.state, self.fraction, self.what = state, fraction, what


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
    specialisations: tuple[Specialisation, ...] = ()
    """For which shapes a plan of their own was made, whether it serves or not."""
    counted: ShapeCounts = ()
    """Recent requests by shapes, as the worker told last."""
    shape_work: ShapeWork = field(default_factory=ShapeWork)
    dividing: Dividing = field(default_factory=Dividing)
    banned: tuple[Banned, ...] = ()
    """Units that killed its worker."""
    opens_aside: bool = False
    """Whether its worker can open another epoch while it serves, as the last builder found."""

    def hold(self, leases: tuple[Lease, ...]) -> None:
        """Hold these leases, which see to it that what the next worker opens is still there then,
        in place of those before."""
        before, self.leases = self.leases, leases
        for lease in before:
            lease.release()

    def bans(self, files: Iterable[SubgraphFile]) -> bool:
        """Whether some of them are opened on units that killed its worker."""
        banned = {b.unit for b in self.banned if not b.is_keeping}
        return any(file.use is not None and file.unit in banned for file in files)

    def ask_until_allowed(self, ask: Callable[[bool], Built], *, is_fresh: bool) -> Built:
        """What a builder makes; asked again while its worker died of the units of it meanwhile.
        `ask` is told whether to forget what was measured."""
        built = ask(is_fresh)
        while self.bans(built.subgraphs):
            built = ask(False)
        return built

    def asked_for(self, *, is_fresh: bool, device: Device | None) -> Build:
        """What a builder is to make: the plan that the user asked for."""
        record = self.record
        return Build(
            model=record.model,
            target=record.target,
            threads=record.threads,
            shapes=record.shapes,
            subgraphs=record.subgraphs,
            is_fresh=is_fresh,
            pins=record.pins,
            banned=self.banned,
            device=device,
            samples=record.samples,
            half_bound=record.half_bound,
            name=record.name,
        )

    def kept(self, units: str) -> Kept:
        """What is to be on disk of it; `units` as in `Kept`."""
        serve = self.serve
        return Kept(
            model=self.record.model,
            inputs=self.lane.inputs,
            outputs=self.lane.outputs,
            plan=self.plan,
            subgraphs=serve.subgraphs,
            instances=serve.instances,
            pinned_cores=serve.pinned_cores,
            warm_shapes=serve.warm_shapes,
            specialisations=self.specialisations,
            counted=self.counted,
            units=units,
        )

    def state(self, memory_bytes: int | None) -> ModelState:
        """The model as `models` and `status` show it."""
        lane, worker, planning = self.lane, self.worker, self.planning
        if lane.quarantine is not None:
            word, planning = "quarantined", Planning("failed", 1.0, lane.quarantine)
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
            planning=planning.state,
            progress_fraction=planning.fraction,
            progress=planning.what,
            plan=self._divided or ("plain ONNX Runtime" if self.plan is None else str(self.plan)),
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
            specialised=self._specialised(),
            specialising=self.shape_work.progress.what if self.shape_work.is_running else "",
            divided=self._divided,
            dividing=self.dividing.state,
            dividing_fraction=self.dividing.fraction,
            dividing_progress=self.dividing.what,
            is_over_asked=bool(self.record.over),
        )

    @property
    def _divided(self) -> str:
        plan = self.dividing.plan
        is_serving = self.serve.division is not None and plan is not None and plan.is_used
        return str(plan) if is_serving else ""

    def _specialised(self) -> tuple[SpecialisedState, ...]:
        total = sum(c.count for c in self.counted) or 1
        shares = {c.shapes: c.count / total for c in self.counted}
        names = shape_names(self.lane.inputs)
        states = (
            SpecialisedState(
                shapes=tuple(zip(names, s.shapes, strict=True)),
                share=shares.get(s.shapes, 0.0),
                is_serving=any(s.shapes == serve.shapes for serve in self.serve.specialised),
                plan="none" if s.plan is None else str(s.plan),
                reason=s.reason,
                measured_s=None if s.plan is None else s.plan.measured_s,
                general_over_plan=None if s.plan is None else s.plan.general_over_plan,
            )
            for s in self.specialisations
        )
        return tuple(sorted(states, key=lambda s: (-s.share, s.shapes)))
