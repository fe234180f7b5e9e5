"""Takes requests off the stream, runs the chain of sessions, and sends the answers.

The runner threads take turns: whoever holds the receiving lock waits for the next request, then
passes the lock on and runs. A request is thus received, run and answered by one thread, without
a hand-over between threads (each would cost about 50 µs).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from edge_agent import clock
from edge_agent.errors import EdgeAgentError, ProtocolError
from edge_agent.plans import Epoch
from edge_agent.tensors import Arrays
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.transport.memory import mapped
from edge_agent.wire.arrays import pack_arrays, payload_bytes, unpack_arrays
from edge_agent.wire.frames import Buffer, fill
from edge_agent.wire.messages import Codec, Forget, Ran, Run, RunError, decode, error_text

log = logging.getLogger(__name__)

_NO_ROOM = memoryview(b"")


class Runner(Protocol):
    """What a worker serves: all subgraphs of one epoch, safe to run from several threads."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Outputs by name for one set of inputs.

        Raises:
            EdgeAgentError: the run failed.
        """
        ...

    def pin_caller(self) -> None:
        """Bind the calling thread to the core that the sessions leave to their caller, if any."""
        ...


class Serving:
    """The runner threads of one worker."""

    def __init__(self, stream: FrameStream, runner: Runner, epoch: Epoch, instances: int) -> None:
        self._stream = stream
        self._runner = runner
        self._epoch = epoch
        self._codec = Codec()
        self._memory: dict[int, memoryview] = {}
        """What clients share, by the agent's number."""
        self._receiving = threading.Lock()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, name=f"run-{i}", daemon=True)
            for i in range(instances)
        ]

    def run(self) -> None:
        """Answer until the stream closes.

        Raises:
            ConnectionLost: it did.
        """
        for thread in self._threads:
            thread.start()
        self._ended.wait()
        raise ConnectionLost("the agent closed the stream")

    def _serve(self) -> None:
        try:
            self._runner.pin_caller()
            while True:
                with self._receiving:
                    run, payload, room = self._next()
                self._answer(run, payload, room)
        except ConnectionLost:
            self._ended.set()
        except Exception:
            log.exception("the worker broke the protocol, or the agent did")
            self._ended.set()

    def _next(self) -> tuple[Run, Buffer, memoryview]:
        """The next request, its inputs, and room for its outputs."""
        while True:
            raw, payload = self._stream.receive()
            message = decode(self._codec.to_worker, raw)
            if isinstance(message, Forget):
                self._memory.pop(message.memory, None)
                continue
            if not isinstance(message, Run):
                raise ProtocolError(f"worker got {type(message).__name__}, want Run")
            if message.epoch != self._epoch:
                # The agent waits for every request that it sent, so this is a fault of the agent.
                raise ProtocolError(f"request of epoch {message.epoch}, want {self._epoch}")
            if message.place is None:
                return message, payload, _NO_ROOM
            memory = self._memory_of(message.memory, message.place.end)
            inputs = memory[: message.place.inputs_bytes]
            return message, inputs, memory[message.place.outputs_at : message.place.end]

    def _memory_of(self, number: int, size_bytes: int) -> memoryview:
        """Memory that was mapped for an earlier request, or whose descriptor came with this one."""
        memory = self._memory.get(number)
        if memory is not None and memory.nbytes >= size_bytes:
            return memory
        if not self._stream.descriptors:
            raise ProtocolError("request with a place in memory that did not come with it")
        try:
            memory = mapped(self._stream.descriptors.popleft(), size_bytes)
        except OSError as error:
            log.error("the memory of a request cannot be mapped: %s", error.strerror)
            return _NO_ROOM  # the inputs do not fit into it, which is the answer
        self._memory[number] = memory
        return memory

    def _answer(self, run: Run, inputs: Buffer, room: memoryview) -> None:
        started_s = clock.precise_s()
        try:
            feeds = unpack_arrays(run.tensors, inputs)
            arrays = self._runner.run(feeds, run.outputs)
            heads, tensors = pack_arrays(arrays)
            if is_placed := payload_bytes(heads) <= room.nbytes > 0:
                fill(room, tensors)
                tensors = []
        except EdgeAgentError as error:
            tensors = []
            answer = self._codec.encode(
                RunError(
                    epoch=self._epoch,
                    sequence=run.sequence,
                    code=error.code,
                    message=error_text(error),
                )
            )
        else:
            answer = self._codec.encode(
                Ran(
                    epoch=self._epoch,
                    sequence=run.sequence,
                    tensors=heads,
                    run_s=clock.precise_s() - started_s,
                    is_placed=is_placed,
                )
            )
        with self._sending:
            self._stream.send(answer, tensors)
