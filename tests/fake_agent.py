"""An agent's socket with a made-up agent behind it: what it says is up to the test."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from edge_agent.errors import EdgeAgentError, ProtocolError
from edge_agent.plans import Target
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Array, Arrays, ElementType, TensorName, TensorSpec
from edge_agent.transport import local
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.transport.memory import mapped
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import Buffer, fill
from edge_agent.wire.messages import (
    AskModels,
    ClientMessage,
    Codec,
    Failure,
    Infer,
    Message,
    Models,
    Result,
    decode,
)
from edge_agent.wire.parts import ModelState

CODEC = Codec()
FLOATS = ElementType.FLOAT32


def state(name: str = "m", **changes: object) -> ModelState:
    """A model with input x and output y, float32[N,2]."""
    known: dict[str, object] = {
        "name": name,
        "model": ModelId("0" * 64),
        "target": Target.LATENCY,
        "threads": None,
        "state": "serving",
        "planning": "done",
        "progress_fraction": 1.0,
        "progress": "done",
        "plan": "plain ONNX Runtime",
        "is_plain": True,
        "epoch": 1,
        "instances": 1,
        "inputs": (TensorSpec(name=TensorName("x"), element_type=FLOATS, dims=("N", 2)),),
        "outputs": (TensorSpec(name=TensorName("y"), element_type=FLOATS, dims=("N", 2)),),
        "shapes": (),
        "in_flight": 0,
        "answered": 12,
        "failed": 0,
        "restarts": 0,
        "worker_pid": 4242,
        "memory_bytes": 3 << 20,
        "source": "/models/m.onnx",
    }
    return ModelState(**(known | changes))  # type: ignore[arg-type]


class Asked:
    """One message of a client, and the way to answer it."""

    def __init__(
        self, message: ClientMessage, payload: Buffer, stream: FrameStream, memory: memoryview
    ) -> None:
        self.message = message
        self.memory = memory
        """Where the request has its place, if it has one."""
        self._payload = payload
        self._stream = stream

    @property
    def infer(self) -> Infer:
        assert isinstance(self.message, Infer)
        return self.message

    def arrays(self) -> Arrays:
        place = self.infer.place
        payload = self._payload if place is None else self.memory[: place.inputs_bytes]
        return unpack_arrays(self.infer.tensors, payload)

    def answer(self, message: Message, arrays: Mapping[str, Array] | None = None) -> None:
        _, tensors = pack_arrays(arrays or {})
        self._stream.send(CODEC.encode(message), tensors)

    def answer_bytes(self, content: bytes) -> None:
        self._stream.socket.sendall(content)

    def result(self, arrays: Mapping[str, Array], request: str | None = None) -> None:
        heads, _ = pack_arrays(arrays)
        self.answer(Result(request or self.infer.request, heads), arrays)

    def placed_result(self, arrays: Mapping[str, Array]) -> None:
        """Put the outputs into the request's place."""
        heads, tensors = pack_arrays(arrays)
        assert self.infer.place is not None
        fill(self.memory[self.infer.place.outputs_at :], tensors)
        self.answer(Result(self.infer.request, heads, is_placed=True))

    def fail(self, error: EdgeAgentError) -> None:
        request = self.message.request if isinstance(self.message, Infer) else None
        self.answer(Failure(request, error.code, str(error)))

    def hang_up(self) -> None:
        self._stream.socket.shutdown(socket.SHUT_RDWR)


OnAsked = Callable[[Asked], None]


def doubles(asked: Asked) -> None:
    """A well-behaved agent with one model."""
    if isinstance(asked.message, AskModels):
        asked.answer(Models((state(),)))
    else:
        asked.result({"y": asked.arrays()["x"] * 2})


class FakeAgent:
    """Listens; `on_asked` is called for every message, on the thread of its connection."""

    def __init__(self, on_asked: OnAsked = doubles) -> None:
        self.on_asked = on_asked
        # The folders of pytest have names too long for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="edge-agent-"))
        self.path = self.folder / "a.sock"
        self.asked: list[Asked] = []
        self.connections = 0
        self._streams: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket

    def __enter__(self) -> FakeAgent:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.die()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        """Answer at the socket, also again."""
        self._listener = local.listen(self.path)
        self._listener.setblocking(True)
        self._in_thread(lambda: self._accept(self._listener))

    def die(self) -> None:
        """End, with every connection, as a killed process does."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stream in self._streams:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client has closed it
        for thread in self._threads:
            thread.join()
        self._streams, self._threads = [], []

    def _in_thread(self, action: Callable[[], None]) -> None:
        thread = threading.Thread(target=action, name="fake-agent")
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._streams.append(stream)
            self._in_thread(lambda stream=stream: self._serve(stream))  # type: ignore[misc]

    def _serve(self, stream: socket.socket) -> None:
        frames = FrameStream(stream, takes_descriptors=True)
        memory = memoryview(b"")
        try:
            while True:
                raw, payload = frames.receive()
                message: ClientMessage = decode(CODEC.from_client, raw)
                if isinstance(message, Infer) and message.place is not None:
                    memory = mapped(os.dup(frames.descriptors[0]), message.place.end)
                asked = Asked(message, payload, frames, memory)
                self.asked.append(asked)
                self.on_asked(asked)
        except (ConnectionLost, ProtocolError, OSError):
            stream.close()
            for descriptor in frames.descriptors:
                os.close(descriptor)
