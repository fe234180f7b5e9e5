"""A data path on a real socket, with workers and clients that a test moves step by step."""

from __future__ import annotations

import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from edge_agent import clock
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.lanes import Lane, Station
from edge_agent.agent.replies import Reply
from edge_agent.errors import EdgeAgentError
from edge_agent.plans import Epoch
from edge_agent.tensors import Array, Arrays
from edge_agent.transport import local
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import Buffer, frame_parts
from edge_agent.wire.messages import (
    AgentMessage,
    AgentToWorker,
    ClientMessage,
    Codec,
    Deployment,
    Discard,
    Done,
    Infer,
    Message,
    Ran,
    Ready,
    Result,
    Run,
    RunError,
    Switch,
    decode,
)
from edge_agent.wire.parts import (
    Place,
    ShapeCounts,
    SubgraphFile,
)
from tests.agent.made_lanes import epoch, lane

WAIT_S = 10.0
"""Far more than anything here takes, also on a busy machine."""
CODEC = Codec()
X = np.array([[1.0, 2.0]], np.float32)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Poll under a deadline."""
    until_s = clock.monotonic_s() + WAIT_S
    while not is_so():
        assert clock.monotonic_s() < until_s, f"never: {what}"
        clock.sleep_s(0.002)


def framed(message: Message, arrays: Mapping[str, Array] | None = None) -> bytes:
    """A whole frame."""
    _, tensors = pack_arrays(arrays or {})
    return b"".join(bytes(part) for part in frame_parts(CODEC.encode(message), tensors))


def infer_frame(request: str, x: Array, model: str = "m", deadline_s: float | None = None) -> bytes:
    """A whole frame with a request."""
    heads, _ = pack_arrays({"x": x})
    return framed(Infer(request, model, heads, None, deadline_s), {"x": x})


class FakeControl:
    """Says done to everything at once, on the data thread; `is_slow`: to nothing."""

    def __init__(self) -> None:
        self.messages: list[ClientMessage] = []
        self.replies: list[Reply] = []
        self.lost_clients = 0
        self.is_slow = False

    def handle(self, message: ClientMessage, reply: Reply) -> None:
        self.messages.append(message)
        self.replies.append(reply)
        if not self.is_slow:
            reply(Done(type(message).__name__))

    def has_lost_client(self) -> None:
        self.lost_clients += 1


class RecordedEvents:
    """What the data path says of a worker."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[str, object]] = queue.Queue()

    def is_ready(self, ready: Ready) -> None:
        self.events.put(("ready", ready))

    def is_refused(self, epoch: Epoch, error: EdgeAgentError) -> None:  # noqa: ARG002
        self.events.put(("refused", error))

    def is_dead(self, needs_another: bool) -> None:
        self.events.put(("dead", needs_another))

    def is_drained(self) -> None:
        self.events.put(("drained", None))

    def has_counted(self, counts: ShapeCounts) -> None:
        self.events.put(("counted", counts))

    def next(self) -> tuple[str, object]:
        return self.events.get(timeout=WAIT_S)


class WorkerEnd:
    """A worker's end of its stream."""

    def __init__(self, stream: socket.socket, events: RecordedEvents) -> None:
        self.stream = FrameStream(stream, takes_descriptors=True)
        self.events = events
        self.station: Station
        self.epoch: Epoch
        self.opens_beside: Callable[[WorkerEnd, Deployment], None] = WorkerEnd.say_ready_for
        """What `serve_in_thread` does with another deployment."""
        self.discarded: list[Epoch] = []
        self._thread: threading.Thread | None = None

    def next(self) -> tuple[AgentToWorker, Buffer]:
        """The next message and its payload."""
        raw, payload = self.stream.receive(clock.monotonic_s() + WAIT_S)
        message: AgentToWorker = decode(CODEC.to_worker, raw)
        return message, payload

    def take_deployment(self) -> Deployment:
        message, _ = self.next()
        assert isinstance(message, Deployment)
        self.epoch = message.epoch
        return message

    def next_run(self) -> tuple[Run, Buffer]:
        """The next request and its payload."""
        message, payload = self.next()
        assert isinstance(message, Run), message
        return message, payload

    def take(self) -> tuple[Run, Arrays]:
        """The next request and its inputs."""
        run, payload = self.next_run()
        return run, unpack_arrays(run.tensors, payload)

    def send(self, message: Message, tensors: list[memoryview] | None = None) -> None:
        self.stream.send(CODEC.encode(message), tensors or [])

    def say_ready_for(self, deployment: Deployment) -> None:
        """It opened that, beside what it serves."""
        self.send(Ready(deployment.epoch, (), (), 0.1))

    def say_ready(self, *, takes_connections: bool = False) -> None:
        self.send(Ready(self.epoch, (), (), 0.1, takes_connections))

    def answer(self, run: Run, y: Array) -> None:
        heads, tensors = pack_arrays({"y": y})
        self.send(Ran(run.epoch, run.sequence, heads, 0.001), tensors)

    def fail(self, run: Run, code: str = "run-failed") -> None:
        self.send(RunError(self.epoch, run.sequence, code, "it failed"))

    def serve_in_thread(self, taken: Callable[[Run], object] = lambda _: None) -> None:
        """Answer every request with twice its input until the stream ends."""

        def serve() -> None:
            try:
                while True:
                    message, payload = self.next()
                    if isinstance(message, Deployment):
                        self.opens_beside(self, message)
                        continue
                    if isinstance(message, Switch):
                        self.epoch = message.epoch
                        continue
                    if isinstance(message, Discard):
                        self.discarded.append(message.epoch)
                        continue
                    assert isinstance(message, Run), message
                    run, inputs = message, unpack_arrays(message.tensors, payload)
                    assert run.epoch == self.epoch
                    taken(run)
                    with np.errstate(over="ignore"):  # a damaged request may hold anything
                        twice = inputs["x"] * 2
                    self.answer(run, twice)
            except ConnectionLost:
                self.stream.close()

        self._thread = threading.Thread(target=serve, name="fake-worker")
        self._thread.start()

    def close(self) -> None:
        """Die, or end a serving thread whose stream has ended."""
        if self._thread is None:
            self.stream.close()
        else:
            self._thread.join(WAIT_S)

    def is_told_to_end(self) -> bool:
        """Whether the agent has closed its end."""
        try:
            self.stream.receive(clock.monotonic_s() + WAIT_S)
        except ConnectionLost:
            return True
        return False


class ClientEnd:
    """A client's connection, one frame at a time."""

    def __init__(self, path: Path) -> None:
        self.stream = local.connect(path)

    def place(self, place: Place, descriptor: int | None = None, request: str = "r") -> None:
        """Send a request for x of 8 bytes whose inputs have a place."""
        heads, _ = pack_arrays({"x": X})
        infer = Infer(request, "m", heads, None, None, place)
        self.stream.send(CODEC.encode(infer), (), None, descriptor)

    def send(self, message: Message, arrays: Mapping[str, Array] | None = None) -> None:
        self.send_bytes(framed(message, arrays))

    def send_bytes(self, content: bytes) -> None:
        """Anything, blocking; the agent may end the connection meanwhile."""
        self.stream.socket.sendall(content)

    def infer(
        self, request: str = "r", x: Array = X, model: str = "m", deadline_s: float | None = None
    ) -> None:
        """Send a request without waiting for its answer."""
        heads, _ = pack_arrays({"x": x})
        self.send(Infer(request, model, heads, None, deadline_s), {"x": x})

    def receive(self) -> tuple[AgentMessage, Buffer]:
        raw, payload = self.stream.receive(clock.monotonic_s() + WAIT_S)
        answer: AgentMessage = decode(CODEC.from_agent, raw)
        return answer, payload

    def answer(self) -> AgentMessage:
        return self.receive()[0]

    def y(self) -> Array:
        """The output of the next answer, which must be a result."""
        answer, payload = self.receive()
        assert isinstance(answer, Result), answer
        return unpack_arrays(answer.tensors, payload)["y"]

    def is_ended(self) -> bool:
        """Whether the agent has ended this connection, with nothing more to say."""
        try:
            self.stream.receive(clock.monotonic_s() + WAIT_S)
        except ConnectionLost:
            return True
        return False

    def close(self) -> None:
        self.stream.close()


class Rig:
    """Use as a context manager."""

    def __init__(
        self, *, max_requests: int = 8, max_bytes: int = 1 << 20, max_request_bytes: int = 1 << 19
    ) -> None:
        # The folders of pytest have names too long for a socket.
        self._folder = Path(tempfile.mkdtemp(prefix="edge-agent-"))
        self.path = self._folder / "a.sock"
        self.control = FakeControl()
        self.lane = lane()
        self.datapath = DataPath(
            local.listen(self.path),
            self.control,
            max_requests=max_requests,
            max_bytes=max_bytes,
            max_request_bytes=max_request_bytes,
        )
        self.internal_errors = 0
        """How many a test provokes."""
        self._is_stopped = False
        self._cleanup = ExitStack()

    def __enter__(self) -> Rig:
        self.datapath.start()
        self.add_lane(self.lane)
        self.datapath.accept_clients()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(0.0)
        self._cleanup.close()
        shutil.rmtree(self._folder)
        if error is None:
            assert self.in_flight() == (0, 0)
            assert self.counters["internal errors"] == self.internal_errors

    def stop(self, timeout_s: float) -> None:
        """Stop the data path, once."""
        if not self._is_stopped:
            self._is_stopped = True
            self.datapath.stop(timeout_s)

    @property
    def counters(self) -> dict[str, int]:
        return self.datapath.counters

    def add_lane(self, model: Lane) -> None:
        self.datapath.call(lambda: self.datapath.lanes.add(model))

    def stream(self) -> tuple[socket.socket, WorkerEnd]:
        """The agent's end of a stream, and a worker at the other."""
        ours, theirs = local.pair()
        worker = WorkerEnd(theirs, RecordedEvents())
        self._cleanup.callback(worker.close)
        return ours, worker

    def started(self, *, instances: int = 1, model: Lane | None = None) -> WorkerEnd:
        """A worker that was just told what to serve."""
        ours, worker = self.stream()
        deployment = Deployment(
            epoch=epoch(),
            subgraphs=(SubgraphFile(path="/m", level="all", threads=None, is_plain=True),),
            instances=instances,
            pinned_cores=(),
            inputs=None,
            outputs=None,
            warm_shapes=(),
        )
        worker.station = self.datapath.attach(model or self.lane, deployment, ours, worker.events)
        assert worker.take_deployment() == deployment
        return worker

    def serving(
        self, *, instances: int = 1, model: Lane | None = None, takes_connections: bool = False
    ) -> WorkerEnd:
        """A worker that is ready and serves."""
        worker = self.started(instances=instances, model=model)
        worker.say_ready(takes_connections=takes_connections)
        assert worker.events.next()[0] == "ready"
        self.datapath.cut_over(model or self.lane, worker.station)
        return worker

    def client(self) -> ClientEnd:
        client = ClientEnd(self.path)
        self._cleanup.callback(client.close)
        return client

    def in_flight(self) -> tuple[int, int]:
        """Requests and their bytes."""
        return self.load()[:2]

    def load(self) -> tuple[int, int, int]:
        """Requests, their bytes, and connections."""
        load = self.datapath.load()
        return load.requests, load.size_bytes, load.connections
