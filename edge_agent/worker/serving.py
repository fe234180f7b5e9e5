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
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import Buffer
from edge_agent.wire.messages import Codec, Ran, Run, RunError, decode, error_text

log = logging.getLogger(__name__)


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
                    received = self._stream.receive()
                self._answer(*received)
        except ConnectionLost:
            self._ended.set()
        except Exception:
            log.exception("the worker broke the protocol, or the agent did")
            self._ended.set()

    def _answer(self, raw: bytes, payload: Buffer) -> None:
        message = decode(self._codec.to_worker, raw)
        if not isinstance(message, Run):
            raise ProtocolError(f"worker got {type(message).__name__}, want Run")
        if message.epoch != self._epoch:
            # The agent waits for every request that it sent, so this is a fault of the agent.
            raise ProtocolError(f"request of epoch {message.epoch}, want {self._epoch}")
        feeds = unpack_arrays(message.tensors, payload)
        started_s = clock.precise_s()
        try:
            arrays = self._runner.run(feeds, message.outputs)
            heads, tensors = pack_arrays(arrays)
        except EdgeAgentError as error:
            answer = self._codec.encode(
                RunError(
                    epoch=self._epoch,
                    sequence=message.sequence,
                    code=error.code,
                    message=error_text(error),
                )
            )
            tensors = []
        else:
            answer = self._codec.encode(
                Ran(
                    epoch=self._epoch,
                    sequence=message.sequence,
                    tensors=heads,
                    run_s=clock.precise_s() - started_s,
                )
            )
        with self._sending:
            self._stream.send(answer, tensors)
