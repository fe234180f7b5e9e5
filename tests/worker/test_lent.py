"""Connections that are lent to a worker, over real sockets: what it answers, what it gives back."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import socket
import termios
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent import clock
from edge_agent.errors import RunFailed
from edge_agent.tensors import Array
from edge_agent.transport import local
from edge_agent.transport.local import FrameStream
from edge_agent.transport.memory import OwnMemory
from edge_agent.transport.tally import TALLY_BYTES, Tally
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import frame_parts
from edge_agent.wire.lending import GiveBack, Lend, Recall
from edge_agent.wire.lending import Tally as KeepTally
from edge_agent.wire.messages import (
    AgentMessage,
    AskModels,
    Failure,
    Infer,
    Message,
    Result,
    Run,
    WorkerMessage,
    decode,
)
from edge_agent.wire.parts import Place
from tests.agent.rig import wait_until
from tests.worker.test_serving import CODEC, EPOCH, WAIT_S, AgentEnd, X, serving

HEADS, _ = pack_arrays({"x": X})
PLACE = Place(8, 64, 8)


def framed(message: Message, x: Array | None = None) -> bytes:
    _, tensors = pack_arrays({} if x is None else {"x": x})
    return b"".join(bytes(part) for part in frame_parts(CODEC.encode(message), tensors))


class Lent:
    """A client, its connection, and what the agent lent it for."""

    def __init__(self, agent: AgentEnd, number: int = 1, place: Place | None = None) -> None:
        self.agent = agent
        self.number = number
        self.place = place
        theirs, ours = local.pair()
        ours.setblocking(False)
        self.client = FrameStream(theirs)
        self.agents_end = ours
        lend = Lend(number, "m", HEADS, None, ("y",), place, 5 if place else 0)
        agent.stream.send(CODEC.encode(lend), (), None, ours.fileno())

    def close(self) -> None:
        self.client.close()
        self.agents_end.close()

    def request(self, **changes: Any) -> Infer:
        asked = Infer("r", "m", HEADS, None, 5.0, self.place)
        return msgspec.structs.replace(asked, **changes)

    def ask(self, request: str = "r", x: Array = X) -> None:
        self.client.socket.sendall(framed(self.request(request=request), x))

    def answer(self) -> tuple[AgentMessage, Any]:
        raw, payload = self.client.receive(clock.monotonic_s() + WAIT_S)
        answer: AgentMessage = decode(CODEC.from_agent, raw)
        return answer, payload

    def y(self, request: str = "r") -> Array:
        answer, payload = self.answer()
        assert isinstance(answer, Result), answer
        assert answer.request == request
        return unpack_arrays(answer.tensors, payload)["y"]

    def given_back(self) -> tuple[GiveBack, bytes]:
        """What the worker says when it gives the connection back."""
        raw, payload = self.agent.stream.receive(clock.monotonic_s() + WAIT_S)
        message: WorkerMessage = decode(CODEC.from_worker, raw)
        assert isinstance(message, GiveBack), message
        assert message.connection == self.number
        return message, bytes(payload)


@contextmanager
def lent(agent: AgentEnd, number: int = 1, place: Place | None = None) -> Iterator[Lent]:
    connection = Lent(agent, number, place)
    try:
        yield connection
    finally:
        connection.close()


def hold(agent: AgentEnd) -> threading.Barrier:
    """Let runs wait for each other, two by two."""
    agent.runner.together = threading.Barrier(2)
    return agent.runner.together


def until_one_runs(barrier: threading.Barrier) -> None:
    until_s = clock.monotonic_s() + WAIT_S
    while barrier.n_waiting == 0:
        assert clock.monotonic_s() < until_s
        clock.sleep_s(0.002)


def _read(stream: socket.socket) -> bytes:
    try:
        return stream.recv(1 << 20)
    except BlockingIOError:
        return b""


def map_memory(agent: AgentEnd, memory: OwnMemory) -> None:
    """A request through the agent that brings the memory along."""
    memory.view[:8] = X.tobytes()
    run = Run(EPOCH, 1, HEADS, ("y",), PLACE, 5)
    agent.stream.send(CODEC.encode(run), (), None, memory.fd)
    agent.receive()


def test_what_a_client_asks_again_is_answered_without_the_agent() -> None:
    with serving() as agent, lent(agent) as connection:
        for turn in range(5):
            connection.ask(f"r{turn}", X + turn)
            np.testing.assert_array_equal(connection.y(f"r{turn}"), (X + turn) * 2)


def test_a_request_with_a_place_is_computed_there() -> None:
    with serving() as agent:
        memory = OwnMemory(72)
        map_memory(agent, memory)
        with lent(agent, place=PLACE) as connection:
            for turn in range(3):
                memory.view[:8] = (X + turn).tobytes()
                connection.client.send(CODEC.encode(connection.request()))
                answer, payload = connection.answer()
                assert (answer, bytes(payload)) == (
                    Result("r", pack_arrays({"y": X})[0], is_placed=True),
                    b"",
                )
                y = np.frombuffer(memory.view[64:72], np.float32)
                np.testing.assert_array_equal(y, (X + turn) * 2)


def test_a_failed_run_is_told_to_the_client_and_the_connection_stays() -> None:
    with serving() as agent, lent(agent) as connection:
        agent.runner.error = RunFailed("it does not like this")
        connection.ask()
        answer, _ = connection.answer()
        assert answer == Failure("r", "run-failed", "it does not like this")
        agent.runner.error = None
        connection.ask()
        np.testing.assert_array_equal(connection.y(), X * 2)


def test_the_tally_counts_what_was_answered_and_what_failed() -> None:
    with serving() as agent, lent(agent) as connection:
        memory = OwnMemory(TALLY_BYTES)
        tally = Tally(memory.view)
        agent.stream.send(CODEC.encode(KeepTally()), (), None, memory.fd)
        agent.send()  # answered after the tally is kept
        agent.receive()
        for _ in range(3):
            connection.ask()
            connection.y()
        agent.runner.error = RunFailed("no")
        connection.ask()
        connection.answer()
        assert (tally.answered, tally.failed, tally.running) == (3, 1, 0)


OTHERS: dict[str, dict[str, Any]] = {
    "another model": {"model": "other"},
    "another shape": {"tensors": pack_arrays({"x": X[:1]})[0]},
    "other outputs": {"outputs": ("y",)},
    "a deadline that is past": {"deadline_s": 0.0},
    "a place": {"place": PLACE},
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_request_for_something_else_goes_back_with_every_byte(what: str) -> None:
    with serving() as agent, lent(agent) as connection:
        x = X[:1] if what == "another shape" else X
        frame = framed(connection.request(**OTHERS[what]), x)
        connection.client.socket.sendall(frame)
        assert connection.given_back() == (GiveBack(1, is_unsent=False), frame)
        # The client never notices: its connection is open, and nobody answered.
        connection.agents_end.sendall(framed(Result("r", ())))
        assert connection.answer()[0] == Result("r", ())


NO_REQUESTS = {
    "half a frame": framed(Infer("r", "m", HEADS, None, 5.0), X)[:50],
    "two frames": framed(Infer("r", "m", HEADS, None, 5.0), X) * 2,
    "a payload of another length": framed(Infer("r", "m", HEADS, None, 5.0), X[:1]),
    "another message": framed(AskModels()),
    "garbage": b"garbage that is no frame",
    "a message that cannot be decoded": b"EAG\x01\x02\0\0\0\0\0\0\0\0\0\0\0\xc1\xc1",
}


@pytest.mark.parametrize("what", NO_REQUESTS)
def test_what_is_no_request_goes_back_as_it_came(what: str) -> None:
    with serving() as agent, lent(agent) as connection:
        connection.client.socket.sendall(NO_REQUESTS[what])
        assert connection.given_back() == (GiveBack(1, is_unsent=False), NO_REQUESTS[what])


def test_a_client_that_closes_its_connection_is_left_to_the_agent() -> None:
    with serving() as agent, lent(agent) as connection:
        connection.client.socket.shutdown(socket.SHUT_RDWR)
        assert connection.given_back() == (GiveBack(1, is_unsent=False), b"")


def test_a_recalled_connection_comes_back_and_others_stay() -> None:
    with serving() as agent, lent(agent, 1) as one, lent(agent, 2) as other:
        for connection in (one, other):
            connection.ask()
            connection.y()
        agent.stream.send(CODEC.encode(Recall(1)))
        assert one.given_back() == (GiveBack(1, is_unsent=False), b"")
        agent.stream.send(CODEC.encode(Recall(1)))  # crossed on the way
        other.ask()
        np.testing.assert_array_equal(other.y(), X * 2)


def test_a_request_under_way_is_answered_before_its_connection_is_given_back() -> None:
    with serving(instances=2) as agent, lent(agent) as connection:
        barrier = hold(agent)
        connection.ask()
        until_one_runs(barrier)
        agent.stream.send(CODEC.encode(Recall(1)))
        agent.send()  # the recall was read when this one runs beside
        np.testing.assert_array_equal(connection.y(), X * 2)
        seen = {type(decode(CODEC.from_worker, agent.stream.receive()[0])) for _ in range(2)}
        assert GiveBack in seen


def test_who_asks_again_before_the_answer_is_left_to_the_agent_after_it() -> None:
    with serving(instances=2) as agent, lent(agent) as connection:
        barrier = hold(agent)
        connection.ask("first")
        until_one_runs(barrier)
        connection.ask("second")
        agent.send()
        np.testing.assert_array_equal(connection.y("first"), X * 2)
        agent.runner.together = None
        payloads = []
        for _ in range(2):
            raw, payload = agent.stream.receive(clock.monotonic_s() + WAIT_S)
            message: WorkerMessage = decode(CODEC.from_worker, raw)
            if isinstance(message, GiveBack):
                payloads.append(bytes(payload))
        # The second request was never read: the agent finds it in the socket.
        assert payloads == [b""]
        second = framed(connection.request(request="second"), X)
        connection.agents_end.settimeout(WAIT_S)
        assert connection.agents_end.recv(1 << 16) == second


def test_the_rest_of_an_answer_that_the_client_does_not_take_is_the_agents() -> None:
    with serving() as agent, lent(agent) as connection:
        connection.agents_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        answer = framed(Result("r", pack_arrays({"y": X})[0]), X * 2)
        poll = select.poll()
        poll.register(agent.stream.socket, select.POLLIN)
        asked = 0
        while not poll.poll(10):
            # One that is asked before the other is answered is given back for that.
            before = _unread_bytes(connection.client.socket)
            connection.ask()
            asked += 1
            wait_until(
                lambda before=before: (
                    _unread_bytes(connection.client.socket) > before or poll.poll(0)
                ),
                "it is answered, or given back",
            )
        message, payload = connection.given_back()
        assert message.is_unsent
        # What the client has not taken yet, the rest of one answer, and requests nobody read.
        connection.client.socket.setblocking(False)
        taken = b"".join(iter(partial(_read, connection.client.socket), b""))
        answered = len(taken + payload) // len(answer)
        assert taken + payload == answer * answered
        assert 1 < answered <= asked


def _unread_bytes(connection: socket.socket) -> int:
    unread = array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, unread)
    return unread[0]


@pytest.mark.parametrize("what", ["connection", "memory", "tally"])
def test_what_should_have_come_along_and_did_not_ends_the_worker(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = PLACE if what == "memory" else None
    with serving() as agent, caplog.at_level(logging.CRITICAL):
        if what == "memory":
            with lent(agent, place=place):
                assert agent.has_ended()
            return
        message = KeepTally() if what == "tally" else Lend(1, "m", HEADS, None, ("y",), None, 0)
        agent.stream.send(CODEC.encode(message))
        assert agent.has_ended()


def test_nothing_lent_is_left_open_when_the_worker_ends() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with serving() as agent, lent(agent) as connection:
        connection.ask()
        connection.y()
    assert agent.ended.is_set()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_client_that_is_gone_when_its_answer_comes_harms_nobody() -> None:
    with serving(instances=2) as agent, lent(agent, 1) as gone, lent(agent, 2) as other:
        barrier = hold(agent)
        gone.ask()
        until_one_runs(barrier)
        gone.agents_end.close()
        gone.client.close()
        other.ask()
        np.testing.assert_array_equal(other.y(), X * 2)
        assert gone.given_back() == (GiveBack(1, is_unsent=False), b"")
