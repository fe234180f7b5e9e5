"""Requests whose tensors are in memory that the client shares: checked, passed on, forgotten."""

from __future__ import annotations

import os

import numpy as np
import pytest

from edge_agent.errors import ProtocolError
from edge_agent.tensors import ElementType
from edge_agent.transport.memory import OwnMemory, mapped
from edge_agent.wire.lending import Forget
from edge_agent.wire.messages import (
    Failure,
    Ran,
    Result,
)
from edge_agent.wire.parts import (
    Place,
    TensorHead,
)
from tests.agent.rig import CODEC, Rig, WorkerEnd, X, wait_until

Y = (TensorHead("y", ElementType.FLOAT32, (1, 2)),)
PLACE = Place(8, 64, 8)


def memory_with_x(size_bytes: int = 72) -> OwnMemory:
    memory = OwnMemory(size_bytes)
    memory.view[:8] = X.tobytes()
    return memory


def answer_in_place(worker: WorkerEnd, size_bytes: int = 72) -> int:
    """Map what comes with the next request, put 2 · x into its place; its sequence."""
    run, _ = worker.next_run()
    view = mapped(worker.stream.descriptors.popleft(), size_bytes)
    assert run.place is not None
    view[run.place.outputs_at : run.place.end] = (2 * np.frombuffer(view[:8], np.float32)).tobytes()
    worker.send(Ran(worker.epoch, run.sequence, Y, 0.1, is_placed=True))
    return run.memory


def test_a_request_with_a_place_is_computed_where_the_client_reads_it() -> None:
    with Rig() as rig:
        worker, client, memory = rig.serving(), rig.client(), memory_with_x()
        client.place(PLACE, memory.fd)
        answer_in_place(worker)
        answer = client.answer()
        assert answer == Result("r", Y, is_placed=True)
        np.testing.assert_array_equal(np.frombuffer(memory.view[64:72], np.float32), 2 * X[0])


def test_the_descriptor_goes_to_each_worker_once_and_again_when_more_is_used() -> None:
    with Rig() as rig:
        worker, client, memory = rig.serving(), rig.client(), memory_with_x()
        number = 0
        for turn, (place, comes) in enumerate(
            [(PLACE, True), (PLACE, False), (Place(8, 64, 800), True), (PLACE, False)]
        ):
            memory.grow(place.end)
            client.place(place, memory.fd if turn == 0 else None)
            run, _ = worker.next_run()
            assert len(worker.stream.descriptors) == comes
            assert run.memory == (number or run.memory)
            number = run.memory
            for _ in range(len(worker.stream.descriptors)):
                os.close(worker.stream.descriptors.popleft())
            worker.send(Ran(worker.epoch, run.sequence, Y, 0.1), [memoryview(X.tobytes())])
            assert isinstance(client.answer(), Result)
        other = rig.serving()
        client.place(PLACE)
        assert answer_in_place(other) == number


def test_a_worker_that_dies_leaves_the_place_to_the_next_one() -> None:
    with Rig() as rig:
        first, client, memory = rig.serving(), rig.client(), memory_with_x()
        client.place(PLACE, memory.fd)
        first.next_run()
        os.close(first.stream.descriptors.popleft())
        first.close()
        assert first.events.next() == ("dead", True)
        answer_in_place(rig.serving())
        assert isinstance(client.answer(), Result)


def test_memory_of_a_client_that_is_gone_is_forgotten_by_workers_and_agent() -> None:
    with Rig() as rig:
        worker, memory = rig.serving(), memory_with_x()
        before = len(os.listdir("/proc/self/fd"))
        client = rig.client()
        client.place(PLACE, memory.fd)
        number = answer_in_place(worker)
        client.answer()
        client.close()
        raw, _ = worker.stream.receive()
        assert CODEC.to_worker.decode(raw) == Forget(number)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, "it is closed")


@pytest.mark.parametrize(
    "place",
    [
        Place(8, 64, 9),
        Place(8, 64, 2**40),
        Place(8, 0, 8),
        Place(8, 8 + 4096, 8),
        Place(2**40, 2**40, 0),
    ],
)
def test_a_place_that_does_not_fit_is_refused(place: Place) -> None:
    with Rig() as rig:
        worker, client, memory = rig.serving(), rig.client(), memory_with_x()
        client.place(place, memory.fd, "bad")
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert (answer.request, answer.code) == ("bad", "bad-request")
        client.place(PLACE)
        answer_in_place(worker)
        assert isinstance(client.answer(), Result)


def test_inputs_that_do_not_fill_their_place_are_refused() -> None:
    with Rig() as rig:
        client, memory = rig.client(), memory_with_x()
        client.place(Place(4, 64, 8), memory.fd)
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert "payload of 4 bytes, want 8" in answer.message


def test_a_place_in_memory_that_did_not_come_is_refused() -> None:
    with Rig() as rig:
        client = rig.client()
        client.place(PLACE)
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == "busy"


def test_room_counts_against_the_limit_of_bytes_in_flight() -> None:
    with Rig(max_bytes=1000) as rig:
        client, memory = rig.client(), memory_with_x(2000)
        for place, code in ((Place(8, 64, 990), "busy"), (Place(8, 64, 1500), "bad-request")):
            client.place(place, memory.fd)
            answer = client.answer()
            assert isinstance(answer, Failure)
            assert answer.code == code


def test_memory_that_may_shrink_ends_the_connection() -> None:
    with Rig() as rig:
        client, unsealed = rig.client(), os.memfd_create("m")
        try:
            client.place(PLACE, unsealed)
            answer = client.answer()
            assert isinstance(answer, Failure)
            assert answer.code == ProtocolError.code
            assert client.is_ended()
        finally:
            os.close(unsealed)


def test_memory_that_comes_later_is_not_taken() -> None:
    with Rig() as rig:
        worker, client, memory = rig.serving(), rig.client(), memory_with_x()
        worker.serve_in_thread()
        client.infer()
        client.y()
        before = len(os.listdir("/proc/self/fd"))
        client.place(PLACE, memory.fd)
        assert isinstance(client.answer(), Failure)
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_request_sent_again_with_a_place_is_computed_for_its_new_place() -> None:
    with Rig() as rig:
        worker = rig.serving(instances=2)
        old, new = rig.client(), rig.client()
        first, second = memory_with_x(), memory_with_x()
        old.place(PLACE, first.fd)
        run, _ = worker.next_run()
        os.close(worker.stream.descriptors.popleft())
        new.place(PLACE, second.fd)
        assert isinstance(old.answer(), Failure)
        answer_in_place(worker)
        assert isinstance(new.answer(), Result)
        np.testing.assert_array_equal(np.frombuffer(second.view[64:72], np.float32), 2 * X[0])
        worker.send(Ran(worker.epoch, run.sequence, Y, 0.1, is_placed=True))
        new.place(PLACE, request="next")
        run, _ = worker.next_run()
        worker.send(Ran(worker.epoch, run.sequence, Y, 0.1, is_placed=True))
        assert new.answer() == Result("next", Y, is_placed=True)
