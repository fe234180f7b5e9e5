"""The Python API over the local socket: what programs use to ask the agent for anything.

Importing this module loads neither onnx nor onnxruntime.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edge_agent import clock
from edge_agent.config import load_settings
from edge_agent.devices import Device
from edge_agent.errors import (
    AgentUnavailable,
    BadRequest,
    DeadlineExceeded,
    ProtocolError,
    UnknownModel,
    error_from_code,
)
from edge_agent.plans import ExecutionPlan, Target
from edge_agent.tensors import Arrays, Shape, TensorName
from edge_agent.transport import local
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import Buffer
from edge_agent.wire.messages import (
    MAX_DEADLINE_S,
    AgentMessage,
    AskDevices,
    AskModels,
    AskPlan,
    AskStatus,
    ClientMessage,
    Codec,
    Devices,
    Done,
    Failure,
    Infer,
    Load,
    Models,
    ModelState,
    Plan,
    Replan,
    Result,
    Status,
    Unload,
    decode,
)

DEFAULT_DEADLINE_S = 60.0
RECONNECT_S = 0.05
"""Pause between two attempts to reach an agent that is gone."""
POLL_S = 0.1

M = TypeVar("M")


class Client:
    """A connection to the agent of this device; safe to use from several threads at once.

    Every request that is under way has a connection of its own, taken from a pool. If the agent
    dies while requests are under way, they are sent again under the same request id as soon as
    an agent answers at the socket, until their deadline.
    """

    def __init__(self, socket: str | Path | None = None) -> None:
        """Use the socket at that path; None: `EDGE_AGENT_SOCKET`, the settings, or the default."""
        self._path = load_settings(os.environ, socket=socket).socket
        self._codec = Codec()
        self._id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: list[local.FrameStream] = []
        self._is_closed = False
        self._has_connected = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections; requests under way end their own."""
        with self._lock:
            self._is_closed = True
        self._drop_idle()

    def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        outputs: Sequence[str] | None = None,
        *,
        deadline_s: float | None = DEFAULT_DEADLINE_S,
    ) -> Arrays:
        """Run a model: inputs by name to outputs by name.

        Args:
            model: the name under which it was loaded.
            inputs: one array per input, of exactly the dtype that the model declares.
            outputs: which outputs to return; None: all.
            deadline_s: seconds from now until the answer is no longer wanted; None: no limit.

        Returns:
            The outputs as arrays over received bytes.

        Raises:
            UnknownModel, InputMismatch: the request does not fit what is loaded.
            Busy: a limit of the agent is reached.
            DeadlineExceeded: there was no answer in time.
            RunFailed: the model failed on this input.
            ModelQuarantined: the model keeps killing its worker.
            AgentUnavailable: nothing answered at the socket until the deadline.
        """
        heads, tensors = pack_arrays({name: np.asarray(a) for name, a in inputs.items()})
        until_s = None if deadline_s is None else clock.monotonic_s() + _checked(deadline_s)
        request = f"{self._id}-{next(self._numbers)}"

        def message() -> Infer:
            left_s = None if until_s is None else until_s - clock.monotonic_s()
            return Infer(
                request=request,
                model=model,
                tensors=heads,
                outputs=None if outputs is None else tuple(outputs),
                deadline_s=left_s,
            )

        while True:
            try:
                answer, payload = self._exchange(message(), tensors, until_s)
                break
            except local.ConnectionLost:
                self._drop_idle()
            except AgentUnavailable:
                # An agent that was there before is starting again; one that never was is not.
                if not self._has_connected or _is_past(until_s, RECONNECT_S):
                    raise
            clock.sleep_s(RECONNECT_S)
        if not isinstance(answer, Result) or answer.request != request:
            raise ProtocolError(f"got {type(answer).__name__} for another request, want Result")
        return unpack_arrays(answer.tensors, payload)

    def load(
        self,
        path: str | Path,
        name: str | None = None,
        *,
        target: Target | str = Target.LATENCY,
        threads: int | None = None,
        shapes: Mapping[str, Shape] | None = None,
        subgraphs: int | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
    ) -> ModelState:
        """Load a model file; returns when it answers requests.

        Args:
            path: the ONNX file; external data lie beside it.
            name: how requests will call it; None: the file's name without its ending.
            target: what the plan is made for.
            threads: the most threads that the plan may use; None: all cores.
            shapes: input shapes to profile with, where the model leaves dimensions open.
            subgraphs: divide the model into so many, whether it pays or not; None: as it pays.
            wait: also wait until the plan is made and serves.
            timeout_s: how long to wait for the plan; None: no limit.

        Raises:
            ModelRefused: the file cannot be accepted; nothing of it is kept.
            StorageError: it cannot be stored.
        """
        message = Load(
            path=os.path.abspath(path),
            name=name,
            target=_target(target),
            threads=threads,
            shapes=tuple((TensorName(n), tuple(s)) for n, s in (shapes or {}).items()),
            subgraphs=subgraphs,
        )
        loaded = self._ask(message, Models).models[0]
        return self.wait(loaded.name, timeout_s) if wait else loaded

    def wait(self, model: str, timeout_s: float | None = None) -> ModelState:
        """Wait until the plan of a model is made (or failed to be) and serves.

        Raises:
            DeadlineExceeded: it took longer than `timeout_s` seconds.
            UnknownModel: it was unloaded meanwhile.
        """
        until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        while True:
            state = self.model(model)
            if state.planning in ("done", "failed") or state.state == "quarantined":
                return state
            if _is_past(until_s):
                raise DeadlineExceeded(
                    f'model "{model}" is not planned after {timeout_s} s ({state.progress}); '
                    "it serves meanwhile"
                )
            clock.sleep_s(POLL_S)

    def model(self, name: str) -> ModelState:
        """The state of one model.

        Raises:
            UnknownModel: no model has that name.
        """
        states = self.models()
        for state in states:
            if state.name == name:
                return state
        loaded = ", ".join(s.name for s in states) or "none"
        raise UnknownModel(f'model "{name}" is not loaded; loaded: {loaded}')

    def models(self) -> tuple[ModelState, ...]:
        """The states of all models, by name."""
        return self._ask(AskModels(), Models).models

    def status(self) -> Status:
        """The state of the agent and its counters."""
        return self._ask(AskStatus(), Status)

    def devices(self) -> Device:
        """The device with its compute units, and the ones that were refused."""
        return self._ask(AskDevices(), Devices).device

    def plan(self, model: str) -> ExecutionPlan:
        """The plan of a model, with everything that explains it.

        Raises:
            UnknownModel: no model has that name.
            BadRequest: it is not planned yet.
        """
        return self._ask(AskPlan(model=model), Plan).plan

    def replan(self, model: str, *, wait: bool = False) -> ModelState:
        """Measure and plan a model again while it goes on serving."""
        state = self._ask(Replan(model=model), Models).models[0]
        return self.wait(model) if wait else state

    def unload(self, model: str) -> None:
        """Stop serving a model, after what is in flight, and remove it.

        Raises:
            UnknownModel: no model has that name.
        """
        self._ask(Unload(model=model), Done)

    def _ask(self, message: ClientMessage, want: type[M]) -> M:
        try:
            # An idle connection may lead to an agent that has ended, and what is asked here must
            # not be asked twice.
            answer, _ = self._exchange(message, (), None, is_new=True)
        except local.ConnectionLost as error:
            raise AgentUnavailable(
                f"the agent at {self._path} ended before it answered: {error}"
            ) from error
        if not isinstance(answer, want):
            raise ProtocolError(f"got {type(answer).__name__}, want {want.__name__}")
        return answer

    def _exchange(
        self,
        message: ClientMessage,
        tensors: Sequence[Buffer],
        until_s: float | None,
        *,
        is_new: bool = False,
    ) -> tuple[AgentMessage, Buffer]:
        if _is_past(until_s):
            raise DeadlineExceeded("the deadline is already past")
        encoded = self._codec.encode(message)
        stream = self._take(is_new=is_new)
        try:
            stream.send(encoded, tensors, until_s)
            raw, payload = stream.receive(until_s)
            answer: AgentMessage = decode(self._codec.from_agent, raw)
        except BaseException:
            stream.close()
            raise
        if is_new:
            stream.close()
        else:
            self._give(stream)
        if isinstance(answer, Failure):
            raise error_from_code(answer.code, answer.message)
        return answer, payload

    def _take(self, *, is_new: bool) -> local.FrameStream:
        with self._lock:
            if self._is_closed:
                raise BadRequest("this Client is closed: make a new one")
            if self._idle and not is_new:
                return self._idle.pop()
        stream = local.connect(self._path)
        self._has_connected = True
        return stream

    def _give(self, stream: local.FrameStream) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(stream)
                return
        stream.close()

    def _drop_idle(self) -> None:
        """A connection broke, so the idle ones lead to the same dead agent."""
        with self._lock:
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()


def _is_past(until_s: float | None, margin_s: float = 0.0) -> bool:
    return until_s is not None and clock.monotonic_s() + margin_s >= until_s


def _checked(deadline_s: float) -> float:
    if deadline_s <= MAX_DEADLINE_S:
        return deadline_s
    raise BadRequest(
        f"deadline_s: got {deadline_s}, want at most {MAX_DEADLINE_S:.0f} seconds, or None for none"
    )


def _target(target: Target | str) -> Target:
    try:
        return Target(target)
    except ValueError:
        raise BadRequest(
            f'target: got "{target}", want one of {", ".join(t.value for t in Target)}'
        ) from None
