"""The Python API over the local socket: what programs use to ask the agent for anything.

Importing this module loads neither onnx nor onnxruntime.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from edge_agent import clock
from edge_agent.config import find_socket
from edge_agent.devices import Device
from edge_agent.errors import (
    AgentUnavailable,
    BadRequest,
    DeadlineExceeded,
    ProtocolError,
    UnknownModel,
    error_from_code,
)
from edge_agent.peer_calls import PeerCalls
from edge_agent.plan_calls import PlanCalls, unheard
from edge_agent.plans import ExecutionPlan, Target
from edge_agent.tensors import Arrays, Shape
from edge_agent.transport import local
from edge_agent.transport.memory import OwnMemory
from edge_agent.wire.arguments import (
    check_progress,
    check_socket,
    count_of,
    deadline_of,
    flag_of,
    half_bound,
    mapping_of,
    model_of,
    path_of,
    pins_of,
    served_target,
    shapes_of,
    text_of,
    texts_of,
    timeout_of,
    wire_of,
)
from edge_agent.wire.arrays import pack_arrays, payload_bytes, unpack_arrays
from edge_agent.wire.frames import Buffer, fill, nbytes, padding
from edge_agent.wire.messages import (
    MAX_SUBGRAPHS,
    MAX_THREADS,
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
    Plan,
    PlanInMaking,
    Progress,
    Replan,
    Result,
    Status,
    Unload,
    decode,
)
from edge_agent.wire.parts import ModelState, Place, TensorHead

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

DEFAULT_DEADLINE_S = 60.0
RECONNECT_S = 0.05
"""Pause between two attempts to reach an agent that is gone."""
POLL_S = 0.1

SHARED_FROM_BYTES = 1 << 16
"""Tensors that together have at least so many bytes pass through shared memory."""

MAX_IDLE_OTHERS = 8
"""A request takes a connection that served another model if so many are idle."""

M = TypeVar("M")


class Link:
    """A connection to the agent, and the memory that it shares with whoever answers."""

    def __init__(self, stream: local.FrameStream, memory: OwnMemory | None) -> None:
        self.stream = stream
        self.memory = memory
        self.model = ""
        """Which model the last request was for."""
        self._is_new = True

    def send(self, message: bytes, tensors: Sequence[Buffer], until_s: float | None) -> None:
        """Send a frame; the first one takes the memory's descriptor along."""
        memory = self.memory if self._is_new else None
        self.stream.send(message, tensors, until_s, None if memory is None else memory.fd)
        self._is_new = False

    def close(self) -> None:
        """Close the connection."""
        self.stream.close()


class Client(PeerCalls, PlanCalls):
    """A connection to the agent of this device; safe to use from several threads at once.

    Every request that is under way has a connection of its own, taken from a pool. If the agent
    dies while requests are under way, they are sent again under the same request id as soon as
    an agent answers at the socket, until their deadline.
    """

    def __init__(self, socket: str | Path | None = None) -> None:
        """Use the socket at that path; None: `EDGE_AGENT_SOCKET`, the settings, or the default."""
        check_socket(socket)
        self._path = find_socket(os.environ, socket)
        self._codec = Codec()
        self._id = uuid.uuid4().hex
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._idle_with_memory: list[Link] = []
        self._outputs_bytes: dict[str, int] = {}
        """Of the last answer of each model whose outputs are large."""
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
        inputs: Mapping[str, npt.ArrayLike | Sequence[Any] | Mapping[Any, Any] | None],
        outputs: Sequence[str] | None = None,
        *,
        deadline_s: float | None = DEFAULT_DEADLINE_S,
    ) -> Arrays:
        """Run a model: inputs by name to outputs by name.

        Args:
            model: the name under which it was loaded.
            inputs: one array per input, of exactly the dtype that the model declares; a list of
                arrays for a sequence, a dict for a map, None for an empty optional.
            outputs: which outputs to return; None: all.
            deadline_s: seconds from now until the answer is no longer wanted; None: no limit.

        Returns:
            Arrays over received bytes; lists of them for sequences, dicts for maps and None for
            empty optionals.

        Raises:
            UnknownModel, InputMismatch: the request does not fit what is loaded.
            Busy: a limit of the agent is reached.
            DeadlineExceeded: there was no answer in time.
            RunFailed: the model failed on this input.
            ModelQuarantined: the model keeps killing its worker.
            AgentUnavailable: nothing answered at the socket until the deadline.
        """
        model = model_of("model", model)
        given = mapping_of("inputs", inputs, "arrays by the names of inputs")
        heads, tensors = pack_arrays({name: _value(a) for name, a in given.items()})
        until_s = _until_s(deadline_of(deadline_s))
        wanted = None if outputs is None else texts_of("outputs", outputs, "names of outputs")
        if self._pid != os.getpid():
            self._begin_anew()
        request = f"{self._id}-{next(self._numbers)}"
        while True:
            try:
                return self._ask_once(request, model, heads, tensors, wanted, until_s)
            except local.ConnectionLost:
                self._drop_idle()
            except AgentUnavailable:
                # An agent that was there before is starting again; one that never was is not.
                if not self._has_connected or _is_past(until_s, RECONNECT_S):
                    raise
            clock.sleep_s(RECONNECT_S)

    def _ask_once(
        self,
        request: str,
        model: str,
        heads: tuple[TensorHead, ...],
        tensors: Sequence[Buffer],
        outputs: tuple[str, ...] | None,
        until_s: float | None,
    ) -> Arrays:
        left_s = None if until_s is None else until_s - clock.monotonic_s()
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("the deadline is already past")
        link, place = self._take(model, payload_bytes(heads))
        link.model = model
        if place is not None:
            assert link.memory is not None
            fill(link.memory.view, tensors)
            tensors = ()
        infer = Infer(request, model, heads, outputs, left_s, place)
        answer, payload = self._exchange(link, infer, tensors, until_s)
        try:
            if not isinstance(answer, Result) or answer.request != request:
                got = type(answer).__name__
                raise ProtocolError(f"got {got} for another request, want Result")
            if answer.is_placed:
                payload = _copy_of_outputs(link, place, payload_bytes(answer.tensors))
        except ProtocolError:
            link.close()
            raise
        self._give(link)
        arrays = unpack_arrays(answer.tensors, payload)
        if nbytes(payload) >= SHARED_FROM_BYTES:
            # The next answer has room in shared memory.
            self._outputs_bytes[model] = nbytes(payload)
        return arrays

    def load(
        self,
        path: str | Path,
        name: str | None = None,
        *,
        target: Target | str = Target.LATENCY,
        threads: int | None = None,
        shapes: Mapping[str, Shape] | None = None,
        subgraphs: int | None = None,
        pins: Mapping[str, str] | None = None,
        samples: str | Path | None = None,
        allow: Sequence[str] = (),
        over: Sequence[str] | None = None,
        wire: str | None = None,
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
            pins: units (see `devices`) by patterns of node names, with `*`, `?` and `[…]`: these
                nodes run there, whether it pays or not.
            samples: a folder with real inputs, which candidates are compared and timed with:
                files as `numpy.savez` writes them, with arrays by input name, and folders of ONNX
                test data. They are copied.
            allow: `fp16`, or `fp16=0.05`: units may compute in float16 where the outputs stay
                within that share of their range (0.01 without a number).
            over: names of peers over which it is divided, whether it pays or not; (): it runs on
                this device alone; None: over all of them, as it pays.
            wire: `fp16` or `int8`, or with a number as in `fp16=0.05`: what float32 tensors may be
                sent to other devices as, where that pays and the outputs stay within that share
                of their range (0.01 without a number); None: they are sent as they are.
            wait: also wait until the plan is made and serves.
            timeout_s: how long to wait for the plan; None: no limit.

        Raises:
            BadRequest: an argument is wrong.
            ModelRefused: the file cannot be accepted; nothing of it is kept.
            StorageError: it cannot be stored.
        """
        timeout_s = timeout_of(timeout_s)
        wait = flag_of("wait", wait)
        message = Load(
            path=path_of("path", path, "the path of a model file"),
            name=None if name is None else text_of("name", name, "a name for the model, or None"),
            target=served_target(target),
            threads=count_of("threads", threads, MAX_THREADS),
            shapes=shapes_of(shapes),
            subgraphs=count_of("subgraphs", subgraphs, MAX_SUBGRAPHS),
            pins=pins_of(pins),
            samples=None
            if samples is None
            else path_of("samples", samples, "the path of a folder"),
            half_bound=half_bound(allow),
            over=None if over is None else texts_of("over", over, "names of peers"),
            wire=wire_of(wire),
        )
        loaded = self._ask(message, Models).models[0]
        return self.wait(loaded.name, timeout_s) if wait else loaded

    def wait(self, model: str, timeout_s: float | None = None) -> ModelState:
        """Wait until the plan of a model is made (or failed to be) and serves, and that over
        several devices was tried, if there are any.

        Raises:
            BadRequest: `timeout_s` is no number.
            DeadlineExceeded: it took longer than `timeout_s` seconds.
            UnknownModel: it was unloaded meanwhile.
        """
        until_s = _until_s(timeout_of(timeout_s))
        model = model_of("model", model)
        while True:
            state = self.model(model)
            if state.is_settled or state.state == "quarantined":
                return state
            if _is_past(until_s):
                raise DeadlineExceeded(
                    f'model "{model}" is not planned after {timeout_s} s ({state.unsettled[1]}); '
                    "it serves meanwhile"
                )
            clock.sleep_s(POLL_S)

    def model(self, name: str) -> ModelState:
        """The state of one model.

        Raises:
            UnknownModel: no model has that name.
        """
        model_of("name", name)
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

    def plan(
        self,
        model: str,
        shapes: Mapping[str, Shape] | None = None,
        *,
        on_progress: Callable[[float, str], None] = unheard,
    ) -> ExecutionPlan:
        """The plan of a model, with everything that explains it.

        With `shapes`, the plan for these input shapes alone. Shapes that follow from the ones
        given, or are those of the general plan, may be left out. If there is none, the agent
        measures and makes one now, which takes about 20 seconds, and tells meanwhile how far it
        is (a fraction, and what it does); it is not used to serve.

        Raises:
            UnknownModel: no model has that name.
            InputMismatch: the shapes contradict what the model declares.
            BadRequest: it is not planned yet: `wait` for that.
            EdgeAgentError: its plan could not be made.
        """
        model = model_of("model", model)
        check_progress(on_progress)
        if shapes is None:
            return self._ask(AskPlan(model=model), Plan).plan
        ask = AskPlan(model=model, shapes=shapes_of(shapes))
        while isinstance(answer := self._asked(ask), PlanInMaking):
            on_progress(answer.fraction, answer.what)
            clock.sleep_s(POLL_S)
        return _wanted(answer, Plan).plan

    def replan(self, model: str, *, wait: bool = False) -> ModelState:
        """Measure and plan a model again while it goes on serving."""
        wait = flag_of("wait", wait)
        state = self._ask(Replan(model=model_of("model", model)), Models).models[0]
        return self.wait(model) if wait else state

    def unload(self, model: str) -> None:
        """Stop serving a model, after what is in flight, and remove it.

        Raises:
            UnknownModel: no model has that name.
        """
        self._ask(Unload(model=model_of("model", model)), Done)

    def _ask(
        self,
        message: ClientMessage,
        want: type[M],
        on_progress: Callable[[float, str], None] = unheard,
    ) -> M:
        return _wanted(self._asked(message, on_progress), want)

    def _asked(
        self, message: ClientMessage, on_progress: Callable[[float, str], None] = unheard
    ) -> AgentMessage:
        try:
            # An idle connection may lead to an agent that has ended, and what is asked here must
            # not be asked twice.
            link = Link(self._connect(), None)
            answer, _ = self._exchange(link, message, (), None, on_progress)
        except local.ConnectionLost as error:
            raise AgentUnavailable(
                f"the agent at {self._path} ended before it answered: {error}"
            ) from error
        link.close()
        return answer

    def _exchange(
        self,
        link: Link,
        message: ClientMessage,
        tensors: Sequence[Buffer],
        until_s: float | None,
        on_progress: Callable[[float, str], None] = unheard,
    ) -> tuple[AgentMessage, Buffer]:
        """Send and receive; the link is closed if that fails, or if what is asked fails while
        somebody may still write into its memory."""
        try:
            link.send(self._codec.encode(message), tensors, until_s)
            while True:
                raw, payload = link.stream.receive(until_s)
                answer: AgentMessage = decode(self._codec.from_agent, raw)
                if not isinstance(answer, Progress):
                    break
                on_progress(answer.fraction, answer.what)
        except BaseException:
            link.close()
            raise
        if isinstance(answer, Failure):
            if isinstance(message, Infer) and link.memory is None:
                self._give(link)
            else:
                link.close()
            raise error_from_code(answer.code, answer.message)
        return answer, payload

    def _take(self, model: str, inputs_bytes: int) -> tuple[Link, Place | None]:
        """A link for a request to a model, and where in its memory the tensors go, if they do."""
        outputs_bytes = self._outputs_bytes.get(model, 0)
        if max(inputs_bytes, outputs_bytes) >= SHARED_FROM_BYTES:
            outputs_at = inputs_bytes + padding(inputs_bytes)
            place = Place(inputs_bytes, outputs_at, outputs_bytes)
            link = self._take_idle(self._idle_with_memory, model)
            try:
                if link is None:
                    memory = OwnMemory(place.end)
                    return Link(self._connect(), memory), place
                assert link.memory is not None
                link.memory.grow(place.end)
                return link, place
            except OSError as error:
                # Without memory to share, everything still passes through the socket.
                log.debug("no shared memory: %s", error)
        link = self._take_idle(self._idle, model)
        return link or Link(self._connect(), None), None

    def _take_idle(self, idle: list[Link], model: str) -> Link | None:
        """The link on which this model was asked last, for its connection may be lent to the
        model's worker; another one only if there are enough of them."""
        with self._lock:
            if self._is_closed:
                raise BadRequest("this Client is closed: make a new one")
            for at in reversed(range(len(idle))):
                if idle[at].model == model:
                    return idle.pop(at)
            return idle.pop(0) if len(idle) >= MAX_IDLE_OTHERS else None

    def _connect(self) -> local.FrameStream:
        if self._is_closed:
            raise BadRequest("this Client is closed: make a new one")
        stream = local.connect(self._path)
        self._has_connected = True
        return stream

    def _give(self, link: Link) -> None:
        with self._lock:
            if not self._is_closed:
                (self._idle if link.memory is None else self._idle_with_memory).append(link)
                return
        link.close()

    def _begin_anew(self) -> None:
        """In a forked process the connections and the request ids are the parent's."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._id = os.getpid(), uuid.uuid4().hex
                self._close_idle()

    def _drop_idle(self) -> None:
        """A connection broke, so the idle ones lead to the same dead agent."""
        with self._lock:
            self._close_idle()

    def _close_idle(self) -> None:
        """For who holds the lock."""
        for idle in (self._idle, self._idle_with_memory):
            for link in idle:
                link.close()
            idle.clear()


def _copy_of_outputs(link: Link, place: Place | None, size_bytes: int) -> memoryview:
    if link.memory is None or place is None or size_bytes > place.outputs_bytes:
        raise ProtocolError(f"outputs of {size_bytes} bytes in a place of {place}")
    # The memory is used again for the next request.
    room = link.memory.view[place.outputs_at : place.outputs_at + size_bytes]
    return np.frombuffer(room, np.uint8).copy().data


def _value(given: Any) -> Any:
    """What is sent for an input: an array, unless it can only be a sequence, map or optional."""
    if given is None or isinstance(given, dict):
        return given
    is_list = isinstance(given, (list, tuple)) and len(given) > 0
    if is_list and all(isinstance(item, (np.ndarray, dict)) for item in given):
        return list(given)
    return np.asarray(given)


def _until_s(limit_s: float | None) -> float | None:
    return None if limit_s is None else clock.monotonic_s() + limit_s


def _is_past(until_s: float | None, margin_s: float = 0.0) -> bool:
    return until_s is not None and clock.monotonic_s() + margin_s >= until_s


def _wanted(answer: AgentMessage, want: type[M]) -> M:
    if not isinstance(answer, want):
        raise ProtocolError(f"got {type(answer).__name__}, want {want.__name__}")
    return answer
