"""Answers every message of a client that is no inference request."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from edge_agent import __version__, clock
from edge_agent.agent.controller import Controller
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.deploying import Deployer
from edge_agent.agent.loaded import Loaded
from edge_agent.agent.peer_answers import PeerAnswers
from edge_agent.agent.planners import Planners
from edge_agent.agent.replies import Reply
from edge_agent.config import Settings, settings_key
from edge_agent.devices import Device
from edge_agent.errors import BadRequest, EdgeAgentError
from edge_agent.plans import ExecutionPlan
from edge_agent.telemetry.host import process_memory_bytes
from edge_agent.tensors import Shape, TensorName
from edge_agent.wire.about_peers import (
    AddPeer,
    AskPeers,
    Invite,
    JoinDevice,
    RemovePeer,
    RenamePeer,
    RotateKey,
)
from edge_agent.wire.messages import (
    AskDevices,
    AskDistributions,
    AskModels,
    AskPlan,
    AskStatus,
    ClientMessage,
    Devices,
    Distributions,
    Done,
    Failure,
    Infer,
    Load,
    Message,
    Models,
    Plan,
    PlanInMaking,
    Replan,
    Status,
    Unload,
    error_text,
)
from edge_agent.wire.parts import ModelState
from edge_agent.wire.planning import PlanLoaded

log = logging.getLogger(__name__)


class Answers:
    """Deals with messages on the threads of the executor. `connect` comes before the first."""

    def __init__(
        self,
        settings: Settings,
        incarnation: int,
        device: Callable[[], Device],
        executor: Executor,
        planners: Planners,
        peer_answers: PeerAnswers,
    ) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._device = device
        self._executor = executor
        self._planners = planners
        self._peer_answers = peer_answers
        self._started_s = clock.monotonic_s()
        self._controller: Controller
        self._datapath: DataPath
        self._deployer: Deployer

    def connect(self, controller: Controller, datapath: DataPath, deployer: Deployer) -> None:
        """Say who knows the models, the requests, and what is divided over devices."""
        self._controller, self._datapath, self._deployer = controller, datapath, deployer

    def handle(self, message: ClientMessage, reply: Reply) -> None:
        """See `datapath.Control`."""
        self._executor.submit(self._answer, message, reply)

    def has_lost_client(self) -> None:
        """See `datapath.Control`."""
        # A planner may be about to start, for which this would wait.
        self._executor.submit(self._planners.look_again)

    def _answer(self, message: ClientMessage, reply: Reply) -> None:
        answer: Message
        try:
            answer = self._do(message, reply)
        except EdgeAgentError as error:
            answer = Failure(request=None, code=error.code, message=error_text(error))
        except Exception:
            log.exception("%s failed", type(message).__name__)
            answer = Failure(request=None, code="error", message="the agent failed: see its log")
        reply(answer)

    def _do(self, message: ClientMessage, reply: Reply) -> Message:
        match message:
            case Load():
                loaded = self._controller.load(message)
                self._planners.look_again()
                return Models(models=(self._state(loaded),))
            case Unload(model=name):
                self._controller.unload(name)
                self._planners.look_again()
                return Done(detail=f'model "{name}" is unloaded')
            case Replan(model=name):
                return Models(models=(self._state(self._controller.replan(name)),))
            case AskPlan(model=name, shapes=None):
                loaded = self._controller.loaded(name)
                return Plan(plan=_plan_of(loaded), divided=self._deployer.plan_of(loaded))
            case AskPlan(model=name, shapes=shapes):
                return self._plan_for(name, dict(shapes or ()))
            case AskDistributions():
                return self._distributions(message, reply)
            case AskModels():
                return Models(models=self._states())
            case AskStatus():
                return self._status()
            case AskDevices():
                return Devices(device=self._device())
            case (
                Invite()
                | JoinDevice()
                | AskPeers()
                | AddPeer()
                | RemovePeer()
                | RenamePeer()
                | RotateKey()
            ):
                return self._peer_answers.answer(message)
            case Infer():
                raise BadRequest("inference does not pass here")

    def _plan_for(self, name: str, shapes: Mapping[TensorName, Shape]) -> Plan | PlanInMaking:
        loaded = self._controller.loaded(name)
        if loaded.plan is None and loaded.planning.state in ("waiting", "working"):
            _plan_of(loaded)  # which says how far it is
        found = self._controller.specialiser.plan_for(loaded, shapes)
        return found if isinstance(found, PlanInMaking) else Plan(plan=found)

    def _distributions(self, message: AskDistributions, reply: Reply) -> Distributions:
        while True:
            loaded = self._controller.loaded(message.model)
            answer: Distributions | EdgeAgentError
            try:
                answer = self._distributions_of(loaded, message, reply)
            except EdgeAgentError as error:
                answer = error
            # What was measured goes with the model. By now its name may stand for none, or for
            # another one, of which this says nothing.
            if self._controller.loaded(message.model) is loaded:
                break
        if isinstance(answer, EdgeAgentError):
            raise answer
        return answer

    def _distributions_of(
        self, loaded: Loaded, message: AskDistributions, reply: Reply
    ) -> Distributions:
        plan = _plan_of(loaded)
        if plan.plain_s is None:
            raise BadRequest(f'model "{message.model}" was not measured: {plan.reason}')
        return self._planners.ask(
            PlanLoaded(
                name=message.model,
                model=plan.model,
                around=self._deployer.surroundings(loaded),
                targets=message.targets,
                bounds=message.bounds,
                is_pareto=message.is_pareto,
            ),
            report=reply,
            is_unwanted=lambda: reply.is_lost or loaded.is_gone.is_set(),
        )

    def _states(self) -> tuple[ModelState, ...]:
        return tuple(self._state(loaded) for loaded in self._controller.all_loaded())

    def _state(self, loaded: Loaded) -> ModelState:
        worker = loaded.worker
        memory_bytes = None if worker is None else _resident_bytes(worker.pid)
        return self._datapath.call(lambda: loaded.state(memory_bytes))

    def _status(self) -> Status:
        load = self._datapath.load()
        pool = self._controller.pool_sizes()
        return Status(
            version=__version__,
            pid=os.getpid(),
            uptime_s=clock.monotonic_s() - self._started_s,
            incarnation=self._incarnation,
            socket=str(self._settings.socket),
            state_folder=str(self._settings.state),
            models=self._states(),
            in_flight=load.requests,
            in_flight_bytes=load.size_bytes,
            connections=load.connections,
            lent=load.lent,
            counters=dict(self._datapath.counters + self._peer_answers.counters),
            memory_bytes=_resident_bytes(os.getpid()) or 0,
            model_disk_bytes=pool.model_bytes,
            compiled_disk_bytes=pool.compiled_bytes,
            max_compiled_disk_bytes=pool.budget_bytes,
            settings_key=settings_key(self._settings),
        )


def _plan_of(loaded: Loaded) -> ExecutionPlan:
    if loaded.plan is None:
        loaded.lane.check_is_run()
        name, planning = loaded.record.name, loaded.planning
        if planning.state == "failed":
            raise EdgeAgentError(
                f'model "{name}" has no plan: {planning.what}; it serves on plain ONNX Runtime'
            )
        raise BadRequest(
            f'model "{name}" has no plan yet ({planning.state}: {planning.what}); it serves on '
            "plain ONNX Runtime meanwhile"
        )
    return loaded.plan


def _resident_bytes(pid: int) -> int | None:
    try:
        return process_memory_bytes(pid)[0]
    except ProcessLookupError:
        return None
