"""The runner threads of a worker, over a real stream, with a runner in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent import clock
from edge_agent.errors import RunFailed
from edge_agent.plans import Epoch
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Array, Arrays
from edge_agent.transport import local
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.transport.memory import OwnMemory
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import frame_parts
from edge_agent.wire.hosting import Abandon
from edge_agent.wire.lending import Forget
from edge_agent.wire.messages import (
    Codec,
    Counted,
    Deployment,
    Ran,
    Ready,
    Run,
    RunError,
    WorkerMessage,
    decode,
)
from edge_agent.wire.parts import (
    Place,
    ShapeCount,
)
from edge_agent.worker.by_shape import REPORT_S, ShapeCounter
from edge_agent.worker.divided import DividedRunner, RouteState
from edge_agent.worker.dividing import Divided
from edge_agent.worker.epochs import Beside, Opened
from edge_agent.worker.linking import Links
from edge_agent.worker.serving import Serving

WAIT_S = 10.0
CODEC = Codec()
EPOCH = Epoch(owner="local", incarnation=1, model=ModelId("m"), number=1)
X = np.array([1.0, 2.0], np.float32)


class Doubling:
    """y = 2 x; fails, breaks or waits when asked to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.together: threading.Barrier | None = None
        self.threads: set[int] = set()
        self.pinned = 0
        self.is_unsendable = False

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        if self.together is not None:
            self.together.wait(WAIT_S)
        if self.is_unsendable:
            return {"y": np.zeros(1, "datetime64[s]")}
        return dict.fromkeys(outputs, feeds["x"] * 2)

    def pin_caller(self) -> None:
        self.pinned += 1


class AgentEnd:
    """The agent's end of the stream."""

    def __init__(self, stream: FrameStream, runner: Doubling, ended: threading.Event) -> None:
        self.stream = stream
        self.runner = runner
        self.ended = ended

    def send(self, sequence: int = 1, epoch: Epoch = EPOCH) -> None:
        heads, tensors = pack_arrays({"x": X})
        self.stream.send(CODEC.encode(Run(epoch, sequence, heads, ("y",))), tensors)

    def receive(self) -> tuple[WorkerMessage, Arrays]:
        raw, payload = self.stream.receive(clock.monotonic_s() + WAIT_S)
        message: WorkerMessage = decode(CODEC.from_worker, raw)
        if not isinstance(message, Ran) or message.is_placed:
            return message, {}
        return message, unpack_arrays(message.tensors, payload)

    def has_ended(self) -> bool:
        return self.ended.wait(WAIT_S)


def never(deployment: Deployment, beside: Beside) -> Opened:
    raise AssertionError(f"{deployment} is opened beside {beside}")


@contextmanager
def serving(
    instances: int = 1,
    runner: Doubling | None = None,
    counter: ShapeCounter | None = None,
    opens: Callable[[Deployment, Beside], Opened] = never,
) -> Iterator[AgentEnd]:
    """A worker in threads of this process, whose end of the stream closes when it is done."""
    ours, theirs = local.pair()
    runner, ended = runner or Doubling(), threading.Event()
    stream = FrameStream(theirs, takes_descriptors=True)
    opened = Opened(epoch=EPOCH, runner=runner, instances=instances, counter=counter)
    serves = Serving(stream, opened, opens)
    del opened

    def run() -> None:
        try:
            serves.run()
        except ConnectionLost:
            ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield AgentEnd(FrameStream(ours), runner, ended)
    finally:
        ours.close()
        thread.join(WAIT_S)
        theirs.close()
    assert ended.is_set()


def test_a_request_is_run_and_answered() -> None:
    with serving() as agent:
        agent.send(7)
        message, arrays = agent.receive()
        assert isinstance(message, Ran)
        assert (message.sequence, message.epoch) == (7, EPOCH)
        assert message.run_s >= 0.0
        np.testing.assert_array_equal(arrays["y"], X * 2)


def test_requests_that_arrive_together_are_answered_in_their_order_by_one_thread() -> None:
    with serving() as agent:
        for sequence in range(20):
            agent.send(sequence)
        got = [agent.receive()[0] for _ in range(20)]
        assert [m.sequence for m in got if isinstance(m, Ran)] == list(range(20))
        assert len(agent.runner.threads) == 1


def test_as_many_requests_run_at_once_as_there_are_instances() -> None:
    with serving(instances=2) as agent:
        agent.runner.together = threading.Barrier(2)
        for sequence in (1, 2):
            agent.send(sequence)
        got = [agent.receive()[0] for _ in range(2)]
        assert sorted(m.sequence for m in got if isinstance(m, Ran)) == [1, 2]
        assert (len(agent.runner.threads), agent.runner.pinned) == (2, 2)


def test_a_request_may_be_abandoned_before_a_thread_begins_it() -> None:
    ours, theirs = local.pair()
    never_free = RouteState(number=0, share=1.0, most=0)
    runner = DividedRunner([never_free], None)
    opened = Opened(
        epoch=EPOCH,
        runner=runner,
        instances=1,
        divided=Divided(links=cast(Links, None), runner=runner),
    )
    serves = Serving(FrameStream(theirs), opened, never)
    agent = AgentEnd(FrameStream(ours), Doubling(), threading.Event())
    with ours, theirs:
        agent.send(7)
        answer = serves._from_agent()
        agent.stream.send(CODEC.encode(Abandon(sequence=7)))
        # Another thread reads it before the first one has begun.
        assert serves._from_agent() is None
        assert answer is not None
        answer()
        message, _ = agent.receive()
    assert isinstance(message, RunError)
    assert (message.sequence, message.code) == (7, "deadline-exceeded")
    assert serves._on_others == {}


def test_a_run_that_fails_is_answered_and_the_next_one_runs() -> None:
    with serving() as agent:
        agent.runner.error = RunFailed("caf\udce9 " + "x" * 100_000)
        agent.send(1)
        message, _ = agent.receive()
        assert isinstance(message, RunError)
        assert (message.sequence, message.code) == (1, "run-failed")
        assert message.message.startswith("caf? xxx")
        agent.runner.error = None
        agent.send(2)
        assert isinstance(agent.receive()[0], Ran)


def test_outputs_that_cannot_be_sent_are_an_answer() -> None:
    with serving() as agent:
        agent.runner.is_unsendable = True
        agent.send()
        message, _ = agent.receive()
        assert isinstance(message, RunError)
        assert message.code == "input-mismatch"


@pytest.mark.parametrize("what", ["a bug in the runner", "another epoch", "no request", "garbage"])
def test_what_must_not_happen_ends_the_worker_so_that_another_takes_over(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as agent, caplog.at_level(logging.CRITICAL):
        match what:
            case "a bug in the runner":
                agent.runner.error = ZeroDivisionError("bug")
                agent.send()
            case "another epoch":
                agent.send(epoch=Epoch(owner="local", incarnation=1, model=ModelId("m"), number=2))
            case "no request":
                agent.stream.send(CODEC.encode(Ready(EPOCH, (), (), 0.1)))
            case _:
                agent.stream.socket.sendall(b"garbage that is no frame")
        assert agent.has_ended()


@settings(max_examples=30)
@given(st.data())
def test_damaged_requests_are_answered_or_end_the_worker(data: st.DataObject) -> None:
    heads, tensors = pack_arrays({"x": X})
    parts = frame_parts(CODEC.encode(Run(EPOCH, 1, heads, ("y",))), tensors)
    frame = bytearray(b"".join(bytes(part) for part in parts))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    logging.disable()
    try:
        with serving() as agent:
            agent.stream.socket.sendall(frame)
    finally:
        logging.disable(logging.NOTSET)


class Placing:
    """Asks for X + n with the inputs and the room for the outputs in memory."""

    def __init__(self, agent: AgentEnd, size_bytes: int = 72) -> None:
        self.agent = agent
        self.memory = OwnMemory(size_bytes)

    def send(self, addend: int, room_bytes: int, descriptor: int | None, number: int = 5) -> None:
        self.memory.view[:8] = (X + addend).tobytes()
        heads, _ = pack_arrays({"x": X})
        run = Run(EPOCH, addend, heads, ("y",), Place(8, 64, room_bytes), number)
        self.agent.stream.send(CODEC.encode(run), (), None, descriptor)

    def y(self) -> Array:
        """The output, wherever it is."""
        raw, payload = self.agent.stream.receive(clock.monotonic_s() + WAIT_S)
        ran: WorkerMessage = decode(CODEC.from_worker, raw)
        assert isinstance(ran, Ran), ran
        if ran.is_placed:
            assert not payload
            payload = bytes(self.memory.view[64:72])
        return unpack_arrays(ran.tensors, payload)["y"]


@pytest.mark.parametrize("room_bytes", [0, 7, 8])
def test_inputs_in_shared_memory_are_run_and_outputs_put_there_if_they_fit(
    room_bytes: int,
) -> None:
    with serving() as agent:
        placing = Placing(agent)
        placing.send(1, room_bytes, placing.memory.fd)
        np.testing.assert_array_equal(placing.y(), (X + 1) * 2)
        is_placed = bytes(placing.memory.view[64:72]) != bytes(8)
        assert is_placed == (room_bytes == 8)
        # The worker has the memory now.
        placing.send(2, room_bytes, None)
        np.testing.assert_array_equal(placing.y(), (X + 2) * 2)


def test_memory_is_mapped_anew_when_more_of_it_is_used_and_after_it_was_forgotten() -> None:
    with serving() as agent:
        placing = Placing(agent)
        placing.send(1, 8, placing.memory.fd)
        placing.y()
        placing.memory.grow(5000)
        placing.send(2, 4900, placing.memory.fd)
        np.testing.assert_array_equal(placing.y(), (X + 2) * 2)
        agent.stream.send(CODEC.encode(Forget(5)))
        placing.send(3, 8, placing.memory.fd)
        np.testing.assert_array_equal(placing.y(), (X + 3) * 2)
        agent.stream.send(CODEC.encode(Forget(77)))
        placing.send(4, 8, None)
        np.testing.assert_array_equal(placing.y(), (X + 4) * 2)


def test_requests_with_and_without_memory_may_lie_in_the_stream_together() -> None:
    with serving() as agent:
        placings = [Placing(agent) for _ in range(3)]
        agent.send(100)
        for number, placing in enumerate(placings):
            placing.send(number, 8, placing.memory.fd, number)
            agent.send(100 + number)
        got = [agent.receive()[0] for _ in range(7)]
        assert all(isinstance(message, Ran) for message in got), got
        for number, placing in enumerate(placings):
            y = np.frombuffer(placing.memory.view[64:72], np.float32)
            np.testing.assert_array_equal(y, (X + number) * 2)


def test_memory_that_cannot_be_mapped_fails_that_request_alone() -> None:
    with serving() as agent, open("/dev/null", "rb") as no_memory:
        placing = Placing(agent)
        placing.send(1, 8, no_memory.fileno())
        message, _ = agent.receive()
        assert isinstance(message, RunError)
        placing.send(2, 8, placing.memory.fd)
        np.testing.assert_array_equal(placing.y(), (X + 2) * 2)


def test_memory_that_never_came_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as agent, caplog.at_level(logging.CRITICAL):
        Placing(agent).send(1, 8, None)
        assert agent.has_ended()


def test_the_end_of_the_stream_ends_all_threads() -> None:
    with serving(instances=3) as agent:
        agent.send()
        agent.receive()
    assert agent.ended.is_set()


class Later:
    """A clock by which more time has passed whenever somebody looks."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += REPORT_S
        return self.now_s


class CountingShapes(Doubling):
    """Counts as `by_shape.ByShape` does."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = ShapeCounter((), Later())

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        self.counter.count((feeds["x"].shape,))
        return super().run(feeds, outputs)


@pytest.mark.parametrize("instances", [1, 2])
def test_the_agent_is_told_which_shapes_come_after_the_answers(instances: int) -> None:
    runner = CountingShapes()
    with serving(instances, runner, runner.counter) as agent:
        for sequence in range(3):
            agent.send(sequence)
        answers, last = 0, Counted(())
        while answers < 3 or sum(c.count for c in last.counts) < 3:
            message, _ = agent.receive()
            if isinstance(message, Ran):
                answers += 1
                continue
            assert isinstance(message, Counted)
            last = message
            # Of two, one may count what it has not yet answered while the other tells.
            assert instances > 1 or sum(c.count for c in last.counts) <= answers
        assert answers == 3
        assert last.counts == (ShapeCount((X.shape,), 3),)
