"""When the agent lends a client's connection to a worker, and how it gets it back."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from edge_agent import clock
from edge_agent.agent import stations
from edge_agent.agent.lending import ASKED_ALIKE
from edge_agent.transport.memory import OwnMemory, mapped
from edge_agent.transport.tally import TALLY_BYTES, Tally
from edge_agent.wire.lending import Forget, GiveBack, Lend, Recall
from edge_agent.wire.lending import Tally as KeepTally
from edge_agent.wire.messages import (
    AskModels,
    Done,
    Failure,
    Result,
    Run,
    Switch,
)
from edge_agent.wire.parts import Place
from tests.agent.made_lanes import lane
from tests.agent.rig import WAIT_S, ClientEnd, Rig, WorkerEnd, X, framed, infer_frame, wait_until
from tests.agent.test_stations import beside


def answer_alike(worker: WorkerEnd, client: ClientEnd, times: int = ASKED_ALIKE) -> None:
    """Ask the same so often, through the agent."""
    for _ in range(times):
        client.infer()
        worker.answer(worker.next_run()[0], X * 2)
        np.testing.assert_array_equal(client.y(), X * 2)


class Borrowed:
    """What a worker gets when a connection is lent to it for the first time."""

    def __init__(self, worker: WorkerEnd, *, is_first: bool = True) -> None:
        if is_first:
            tally, _ = worker.next()
            assert isinstance(tally, KeepTally)
            self.tally = Tally(mapped(worker.stream.descriptors.popleft(), TALLY_BYTES))
        lend, _ = worker.next()
        assert isinstance(lend, Lend), lend
        self.lend = lend
        self.worker = worker
        self.stream = socket.socket(fileno=worker.stream.descriptors.popleft())

    def read(self) -> bytes:
        wait_until(self._has_input, "the request is here")
        return self.stream.recv(1 << 16)

    def _has_input(self) -> bool:
        try:
            return len(self.stream.recv(1, socket.MSG_PEEK)) > 0
        except BlockingIOError:
            return False

    def give_back(self, payload: bytes = b"", *, is_unsent: bool = False) -> None:
        self.worker.send(GiveBack(self.lend.connection, is_unsent), [memoryview(payload)])
        self.stream.close()

    def close(self) -> None:
        self.stream.close()


@contextmanager
def lent(rig: Rig, times: int = ASKED_ALIKE) -> Iterator[tuple[WorkerEnd, ClientEnd, Borrowed]]:
    """A worker with the connection of a client."""
    worker, client = rig.serving(takes_connections=True), rig.client()
    answer_alike(worker, client, times)
    borrowed = Borrowed(worker)
    try:
        yield worker, client, borrowed
    finally:
        borrowed.close()


def test_the_connection_of_a_client_that_asks_the_same_again_is_lent_to_its_worker() -> None:
    with Rig() as rig, lent(rig) as (_, client, borrowed):
        lend = borrowed.lend
        assert (lend.model, lend.wanted, lend.outputs, lend.place) == ("m", None, ("y",), None)
        assert [(t.name, t.shape) for t in lend.tensors] == [("x", (1, 2))]
        client.infer("direct")
        assert borrowed.read() == infer_frame("direct", X)
        borrowed.stream.sendall(framed(Result("direct", ()), {}))
        assert client.answer() == Result("direct", ())
        assert rig.datapath.load().lent == 1
        borrowed.give_back()


def test_a_connection_stays_lent_when_its_worker_goes_on_with_another_epoch() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        new = beside(2)
        rig.datapath.open_beside(worker.station, new)
        assert worker.next()[0] == new
        worker.say_ready_for(new)
        rig.datapath.switch(rig.lane, worker.station, new)
        assert worker.next()[0] == Switch(new.epoch)
        client.infer("direct")
        assert borrowed.read() == infer_frame("direct", X)
        borrowed.stream.sendall(framed(Result("direct", ()), {}))
        assert client.answer() == Result("direct", ())
        assert rig.datapath.load().lent == 1
        borrowed.give_back()


def test_a_client_that_asks_for_something_else_each_time_keeps_the_agent() -> None:
    with Rig() as rig:
        worker, client = rig.serving(takes_connections=True), rig.client()
        for rows in (1, 2, 1, 2, 1):
            client.infer(x=np.ones((rows, 2), np.float32))
            worker.answer(worker.next_run()[0], X)
            client.y()
        assert rig.datapath.load().lent == 0


def test_a_worker_that_takes_no_connections_gets_none() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        answer_alike(worker, client, 5)
        assert rig.datapath.load().lent == 0


def test_no_connection_is_lent_on_which_another_answer_is_awaited() -> None:
    with Rig() as rig:
        worker, client = rig.serving(takes_connections=True), rig.client()
        for request in "abc":
            client.infer(request)
        for lent_after in (0, 0, 1):
            worker.answer(worker.next_run()[0], X)
            client.y()
            wait_until(lambda want=lent_after: rig.datapath.load().lent == want, "as it should")
        Borrowed(worker).give_back()
        wait_until(lambda: rig.datapath.load().lent == 0, "it is back")


def test_loans_take_at_most_half_of_the_limit_on_requests() -> None:
    with Rig(max_requests=3) as rig:
        worker, one, two = rig.serving(takes_connections=True), rig.client(), rig.client()
        answer_alike(worker, one)
        borrowed = Borrowed(worker)
        answer_alike(worker, two, 4)
        assert rig.datapath.load().lent == 1
        borrowed.give_back()


@pytest.mark.parametrize("running", [0, 1])
def test_a_loan_that_is_not_in_use_makes_nobody_busy(running: int) -> None:
    with Rig(max_requests=3) as rig:
        worker, one, two = rig.serving(takes_connections=True), rig.client(), rig.client()
        answer_alike(worker, one)
        borrowed = Borrowed(worker)
        if running:
            borrowed.tally.take()
        for request in range(4):
            two.infer(f"r{request}")
        busy = two.answer()
        assert isinstance(busy, Failure)
        assert (busy.request, busy.code) == (f"r{3 - running}", "busy")
        assert "3 requests are in flight, the limit is 3" in busy.message
        if running:
            assert isinstance(two.answer(), Failure)
        recalls = []
        for _ in range(3 - running):
            while not isinstance(message := worker.next()[0], Run):
                recalls.append(message)
            worker.answer(message, X)
            two.y()
        if not running:
            # So that what comes on it is counted again.
            assert recalls == [Recall(borrowed.lend.connection)]
        borrowed.give_back()


def test_loans_take_at_most_half_of_the_limit_on_bytes() -> None:
    with Rig(max_bytes=15) as rig:
        worker, client = rig.serving(takes_connections=True), rig.client()
        answer_alike(worker, client, 4)
        assert rig.datapath.load().lent == 0
    with Rig(max_bytes=16) as rig, lent(rig) as (_, _, borrowed):
        borrowed.give_back()


def test_a_connection_with_memory_is_lent_with_the_place_that_the_worker_knows() -> None:
    place = Place(8, 64, 8)
    memory = OwnMemory(72)
    memory.view[:8] = X.tobytes()
    with Rig() as rig:
        worker, client = rig.serving(takes_connections=True), rig.client()
        for turn in range(ASKED_ALIKE):
            client.place(place, memory.fd if turn == 0 else None)
            run, _ = worker.next_run()
            for descriptor in worker.stream.descriptors:
                os.close(descriptor)
            worker.stream.descriptors.clear()
            worker.answer(run, X)
            client.y()
        borrowed = Borrowed(worker)
        assert (borrowed.lend.place, borrowed.lend.memory) == (place, run.memory)
        client.close()
        recall, forget = worker.next()[0], worker.next()[0]
        assert (recall, forget) == (Recall(borrowed.lend.connection), Forget(run.memory))
        borrowed.give_back()


def test_what_the_worker_did_not_understand_is_dealt_with_by_the_agent() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        other = infer_frame("other", np.ones((3, 2), np.float32))
        client.send_bytes(other)
        borrowed.give_back(borrowed.read())
        run, _ = worker.next_run()
        worker.answer(run, np.ones((3, 2), np.float32))
        assert client.y().shape == (3, 2)


@pytest.mark.parametrize("read_bytes", [1, 20, 100])
def test_half_a_request_that_the_worker_read_is_joined_with_the_rest(read_bytes: int) -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        frame = infer_frame("halved", X)
        client.send_bytes(frame[:read_bytes])
        read = borrowed.read()
        client.send_bytes(frame[read_bytes:])
        borrowed.give_back(read)
        worker.answer(worker.next_run()[0], X * 2)
        np.testing.assert_array_equal(client.y(), X * 2)


def test_garbage_that_the_worker_read_ends_the_connection_with_a_reason() -> None:
    with Rig() as rig, lent(rig) as (_, client, borrowed):
        client.send_bytes(b"garbage that is no frame at all")
        borrowed.give_back(borrowed.read())
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == "protocol"
        assert client.is_ended()
        assert rig.counters["messages not understood"] == 1


def test_a_question_to_the_agent_on_a_lent_connection_is_answered() -> None:
    with Rig() as rig, lent(rig) as (_, client, borrowed):
        client.send(AskModels())
        borrowed.give_back(borrowed.read())
        assert client.answer() == Done("AskModels")


def test_the_rest_of_an_answer_is_sent_before_anything_else() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        answer = framed(Result("direct", ()))
        client.infer("direct")
        borrowed.read()
        borrowed.stream.sendall(answer[:7])
        client.infer("next")
        borrowed.give_back(answer[7:], is_unsent=True)
        assert client.answer() == Result("direct", ())
        worker.answer(worker.next_run()[0], X * 2)
        np.testing.assert_array_equal(client.y(), X * 2)


def test_a_connection_that_came_back_for_its_requests_is_lent_later_and_later() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        for times in (2 * ASKED_ALIKE, 4 * ASKED_ALIKE):
            borrowed.give_back()
            wait_until(lambda: rig.datapath.load().lent == 0, "it is back")
            answer_alike(worker, client, times - 1)
            assert rig.datapath.load().lent == 0
            answer_alike(worker, client, 1)
            borrowed = Borrowed(worker, is_first=False)
        borrowed.give_back()


def test_at_a_cutover_connections_come_back_and_go_to_the_new_worker() -> None:
    with Rig() as rig, lent(rig) as (old, client, borrowed):
        new = rig.serving(takes_connections=True)
        assert old.next()[0] == Recall(borrowed.lend.connection)
        client.infer("direct")
        borrowed.read()
        borrowed.tally.take()
        assert rig.lane.in_flight == 1
        borrowed.stream.sendall(framed(Result("direct", ())))
        borrowed.tally.settle(is_answered=True)
        assert client.answer() == Result("direct", ())
        borrowed.give_back()
        assert old.is_told_to_end()
        assert old.events.next() == ("drained", None)
        answer_alike(new, client)
        Borrowed(new).give_back()
        assert rig.lane.answered == 2 * ASKED_ALIKE + 1


def test_when_a_model_is_unloaded_its_connections_are_recalled() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        rig.datapath.call(lambda: rig.datapath.lanes.remove("m"))
        assert worker.next()[0] == Recall(borrowed.lend.connection)
        borrowed.give_back()
        client.infer("late")
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == "unknown-model"
        rig.add_lane(rig.lane)


def test_when_a_model_is_replaced_its_connections_are_recalled() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        another = lane()
        rig.add_lane(another)
        assert worker.next()[0] == Recall(borrowed.lend.connection)
        borrowed.give_back()
        new = rig.serving(model=another)
        client.infer()
        new.answer(new.next_run()[0], X)
        np.testing.assert_array_equal(client.y(), X)


def test_when_the_worker_dies_the_connection_ends_so_that_the_client_asks_again() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        client.infer("unlucky")
        borrowed.read()
        borrowed.tally.take()
        borrowed.close()
        worker.close()
        assert client.is_ended()
        assert worker.events.next() == ("dead", True)
        assert rig.datapath.load().lent == 0


def test_answers_on_lent_connections_count_and_forgive_earlier_deaths() -> None:
    with Rig() as rig:
        for death in range(5):
            with lent(rig) as (worker, client, borrowed):
                borrowed.tally.take()
                borrowed.tally.settle(is_answered=True)
                borrowed.tally.take()
                borrowed.tally.settle(is_answered=False)
                borrowed.close()
                worker.close()
                assert client.is_ended()
                wait_until(lambda: rig.lane.active is None, "it is buried")
            assert rig.lane.quarantine is None
            assert rig.lane.answered == (ASKED_ALIKE + 1) * (death + 1)
            assert rig.lane.failed == death + 1


def test_a_client_that_goes_leaves_nothing_lent() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        client.close()
        assert worker.next()[0] == Recall(borrowed.lend.connection)
        load = rig.datapath.load()
        assert (load.lent, load.connections) == (0, 0)
        borrowed.give_back()


def test_a_run_for_a_client_that_is_gone_keeps_nobody_waiting() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        borrowed.tally.take()
        assert rig.in_flight()[0] == 1
        client.close()
        wait_until(lambda: rig.in_flight()[0] == 0, "nobody waits for it")
        assert rig.lane.in_flight == 0
        rig.datapath.retire(rig.lane, worker.station)
        assert worker.next()[0] == Recall(borrowed.lend.connection)
        assert worker.is_told_to_end()


def test_a_device_is_not_quiet_while_something_runs_on_a_lent_connection() -> None:
    with Rig() as rig, lent(rig) as (_, _, borrowed):
        borrowed.tally.take()
        assert rig.datapath.quiet_for_s() == 0.0
        before_s = clock.monotonic_s()
        borrowed.tally.settle(is_answered=True)
        assert 0.0 < rig.datapath.quiet_for_s() <= clock.monotonic_s() - before_s + 1e-3
        borrowed.give_back()


def test_an_agent_that_stops_waits_for_what_runs_on_lent_connections() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        client.infer("last")
        borrowed.read()
        borrowed.tally.take()

        def answer_and_return() -> None:
            assert worker.next()[0] == Recall(borrowed.lend.connection)
            borrowed.stream.sendall(framed(Result("last", ())))
            borrowed.tally.settle(is_answered=True)
            borrowed.give_back()

        answering = threading.Thread(target=answer_and_return)
        answering.start()
        started_s = clock.monotonic_s()
        rig.stop(WAIT_S)
        answering.join(WAIT_S)
        assert clock.monotonic_s() - started_s < WAIT_S
        assert client.answer() == Result("last", ())
        assert client.is_ended()


def test_an_agent_that_stops_waits_only_so_long_for_a_worker_that_keeps_a_connection() -> None:
    with Rig() as rig, lent(rig) as (_, client, _):
        rig.stop(0.05)
        assert client.is_ended()


def test_a_worker_that_gives_back_what_it_does_not_have_is_given_up() -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        worker.send(GiveBack(borrowed.lend.connection + 1, is_unsent=False))
        assert client.is_ended()
        assert worker.is_told_to_end()


@pytest.mark.parametrize("runs_for_nobody", [False, True])
def test_a_retired_worker_that_does_not_give_an_idle_connection_back_is_let_go_of(
    runs_for_nobody: bool,
) -> None:
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        if runs_for_nobody:
            other = rig.client()
            answer_alike(worker, other)
            second = Borrowed(worker, is_first=False)
            borrowed.tally.take()
            other.close()
            assert worker.next()[0] == Recall(second.lend.connection)
            second.close()
        rig.datapath.retire(rig.lane, worker.station)
        assert worker.next()[0] == Recall(borrowed.lend.connection)
        assert worker.is_told_to_end()
        assert client.is_ended()
        assert worker.events.next() == ("drained", None)
        assert rig.counters["connections that a worker did not give back"] == 1


def test_a_retired_worker_that_still_runs_for_a_client_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stations, "RECALL_S", 0.0)
    with Rig() as rig, lent(rig) as (worker, client, borrowed):
        borrowed.tally.take()
        rig.datapath.retire(rig.lane, worker.station)
        assert worker.next()[0] == Recall(borrowed.lend.connection)
        rig.datapath.call(lambda: None)
        rig.datapath.call(lambda: None)
        borrowed.stream.sendall(framed(Result("direct", ())))
        borrowed.tally.settle(is_answered=True)
        borrowed.give_back()
        assert client.answer() == Result("direct", ())
        assert worker.is_told_to_end()


def test_another_request_under_an_id_that_is_in_flight_is_refused() -> None:
    with Rig() as rig:
        worker, one, two = rig.serving(), rig.client(), rig.client()
        one.infer("same")
        run, _ = worker.next_run()
        two.infer("same", np.ones((5, 2), np.float32))
        refused = two.answer()
        assert isinstance(refused, Failure)
        assert (refused.request, refused.code) == ("same", "bad-request")
        worker.answer(run, X * 2)
        np.testing.assert_array_equal(one.y(), X * 2)
