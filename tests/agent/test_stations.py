"""Workers on the data path: ready, cut over, dead, drained, and not to be trusted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.agent.lanes import AHEAD
from edge_agent.errors import ModelQuarantined, RuntimeUnavailable, WorkerLost
from edge_agent.tensors import ElementType
from edge_agent.wire.frames import pack_prefix
from edge_agent.wire.messages import (
    Deployment,
    Done,
    Failure,
    Ran,
    Ready,
    Result,
    Run,
    RunError,
    Switch,
)
from edge_agent.wire.parts import (
    SubgraphFile,
    TensorHead,
)
from tests.agent.made_lanes import epoch, lane
from tests.agent.rig import CODEC, Rig, X, framed, wait_until


def test_a_worker_that_is_ready_gets_requests_only_after_the_cut_over() -> None:
    with Rig() as rig:
        worker, client = rig.started(), rig.client()
        worker.say_ready()
        assert worker.events.next()[0] == "ready"
        client.infer()
        wait_until(lambda: rig.in_flight()[0] == 1, "the request is admitted")
        assert rig.datapath.call(lambda: rig.lane.waiting) == 1
        rig.datapath.cut_over(rig.lane, worker.station)
        worker.answer(worker.take()[0], X)
        client.y()


def test_a_worker_that_cannot_open_the_model_says_why() -> None:
    with Rig() as rig:
        worker = rig.started()
        worker.send(RunError(worker.epoch, -1, "runtime-unavailable", "no such operator"))
        name, error = worker.events.next()
        assert (name, type(error), str(error)) == (
            "refused",
            RuntimeUnavailable,
            "no such operator",
        )
        rig.datapath.retire(rig.lane, worker.station)
        assert worker.events.next()[0] == "drained"
        assert worker.is_told_to_end()


def test_a_worker_gets_one_request_more_than_it_runs_at_once() -> None:
    with Rig() as rig:
        worker, client = rig.serving(instances=2), rig.client()
        for number in range(5):
            client.infer(f"r{number}")
        runs = [worker.take()[0] for _ in range(2 + AHEAD)]
        wait_until(lambda: rig.in_flight()[0] == 5, "all are admitted")
        assert rig.datapath.call(lambda: rig.lane.waiting) == 2
        worker.answer(runs[1], X)
        assert worker.take()[0].sequence == runs[-1].sequence + 1


def test_requests_of_a_worker_that_dies_are_answered_by_the_next_one() -> None:
    with Rig() as rig:
        first, client = rig.serving(), rig.client()
        for number in range(4):
            client.infer(f"r{number}", X + number)
        first.take()
        first.close()
        assert first.events.next() == ("dead", True)
        rig.serving().serve_in_thread()
        for number in range(4):
            np.testing.assert_array_equal(client.y(), (X + number) * 2)
        assert rig.counters["workers lost"] == 1


def test_answers_that_a_worker_sent_before_it_died_count() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer("a")
        client.infer("b")
        run, _ = worker.take()
        worker.answer(run, X * 7)
        worker.close()
        np.testing.assert_array_equal(client.y(), X * 7)
        assert worker.events.next() == ("dead", True)
        second = rig.serving()
        assert second.take()[0].sequence == run.sequence + 1


def test_half_an_answer_of_a_worker_that_dies_is_no_answer() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer()
        run, _ = worker.take()
        head = TensorHead("y", ElementType.FLOAT32, (1, 2))
        frame = framed(Ran(worker.epoch, run.sequence, (head,), 0.1), {"y": X})
        worker.stream.socket.sendall(frame[:-3])
        worker.close()
        assert worker.events.next() == ("dead", True)
        rig.serving().serve_in_thread()
        np.testing.assert_array_equal(client.y(), X * 2)


def test_a_worker_that_dies_before_it_serves_needs_no_other_and_cannot_be_cut_over_to() -> None:
    with Rig() as rig:
        worker = rig.started()
        worker.say_ready()
        worker.close()
        assert worker.events.next()[0] == "ready"
        assert worker.events.next() == ("dead", False)
        with pytest.raises(WorkerLost):
            rig.datapath.cut_over(rig.lane, worker.station)


def test_after_a_cut_over_the_old_worker_answers_what_it_has_and_ends() -> None:
    with Rig() as rig:
        old, client = rig.serving(), rig.client()
        client.infer("old", X)
        run, _ = old.take()
        new = rig.serving()
        client.infer("new", X * 10)
        new_run, inputs = new.take()
        np.testing.assert_array_equal(inputs["x"], X * 10)
        new.answer(new_run, X * 20)
        np.testing.assert_array_equal(client.y(), X * 20)
        old.answer(run, X * 2)
        np.testing.assert_array_equal(client.y(), X * 2)
        assert old.events.next()[0] == "drained"
        assert old.is_told_to_end()


def test_an_idle_worker_ends_at_the_cut_over() -> None:
    with Rig() as rig:
        old = rig.serving()
        rig.serving()
        assert old.events.next()[0] == "drained"
        assert old.is_told_to_end()


def test_a_retired_worker_is_not_waited_for_when_its_requests_have_expired() -> None:
    with Rig() as rig:
        old, client = rig.serving(), rig.client()
        client.infer("stuck", deadline_s=0.05)
        old.take()
        rig.serving()
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == "deadline-exceeded"
        assert old.events.next()[0] == "drained"


def test_an_old_worker_that_dies_while_draining_needs_no_other() -> None:
    with Rig() as rig:
        old, client = rig.serving(), rig.client()
        client.infer()
        old.take()
        rig.serving().serve_in_thread()
        old.close()
        assert old.events.next() == ("dead", False)
        np.testing.assert_array_equal(client.y(), X * 2)


def test_a_request_that_kills_three_workers_quarantines_the_model() -> None:
    with Rig() as rig:
        client = rig.client()
        client.infer("poison")
        for _ in range(3):
            worker = rig.serving()
            worker.take()
            worker.close()
            assert worker.events.next() == ("dead", True)
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == ModelQuarantined.code
        client.infer("next")
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == ModelQuarantined.code
        assert rig.counters["requests refused"] == 1


def beside(number: int, instances: int = 1) -> Deployment:
    """Another epoch for a worker that serves."""
    return Deployment(
        epoch=epoch(number),
        subgraphs=(SubgraphFile(path="/m", level="none", threads=1, is_plain=False),),
        instances=instances,
        pinned_cores=(),
        inputs=None,
        outputs=None,
        warm_shapes=(),
    )


def test_a_worker_that_opened_another_epoch_goes_on_with_it() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer("old")
        old, _ = worker.take()
        new = beside(2, instances=3)
        rig.datapath.open_beside(worker.station, new)
        assert worker.next()[0] == new
        worker.say_ready_for(new)
        assert worker.events.next()[0] == "ready"
        rig.datapath.switch(rig.lane, worker.station, new)
        assert worker.next()[0] == Switch(new.epoch)
        for number in range(5):
            client.infer(f"r{number}")
        runs = [worker.take()[0] for _ in range(3)]  # with the old one as many as its window has
        assert {run.epoch for run in runs} == {new.epoch}
        worker.answer(old, X)
        np.testing.assert_array_equal(client.y(), X)
        runs += [worker.take()[0] for _ in range(1)]
        for run in runs:
            worker.answer(run, X)
        worker.answer(worker.take()[0], X)
        for _ in range(5):
            client.y()


def test_a_worker_that_is_dead_opens_nothing_and_is_not_switched() -> None:
    with Rig() as rig:
        worker = rig.serving()
        worker.close()
        assert worker.events.next() == ("dead", True)
        with pytest.raises(WorkerLost):
            rig.datapath.open_beside(worker.station, beside(2))
        with pytest.raises(WorkerLost):
            rig.datapath.switch(rig.lane, worker.station, beside(2))


def test_a_worker_that_was_replaced_meanwhile_is_not_switched() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer()
        run, _ = worker.take()
        rig.serving()
        with pytest.raises(WorkerLost):
            rig.datapath.switch(rig.lane, worker.station, beside(2))
        worker.answer(run, X)
        client.y()


def nonsense(run: Run) -> dict[str, bytes]:
    """What a worker whose memory was overwritten might send."""
    head = TensorHead("y", ElementType.FLOAT32, (1, 2))
    ran = Ran(run.epoch, run.sequence, (head,), 0.1)
    message = CODEC.encode(ran)
    return {
        "no frame": b"Segmentation fault (core dumped)",
        "no message": pack_prefix(5, 0) + b"\xc1" * 5,
        "a message of ours": framed(run),
        "too few bytes": pack_prefix(len(message), 4) + message + bytes(4),
        "bytes without a tensor": framed(Done("x")) + bytes(64),
        "ready again": framed(Ready(run.epoch, (), (), 0.1)),
        "ready with what it was not to open": framed(Ready(epoch(77), (), (), 0.1)),
        "never ready": framed(RunError(run.epoch, -1, "run-failed", "no")),
        "an endless message": pack_prefix(2**32 - 1, 0),
    }


CASES = sorted(nonsense(Run(epoch(), 1, (), ())))


@pytest.mark.parametrize("case", CASES)
def test_a_worker_that_talks_nonsense_is_given_up_and_its_request_runs_elsewhere(
    case: str,
) -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer()
        run, _ = worker.take()
        worker.stream.socket.sendall(nonsense(run)[case])
        assert worker.events.next() == ("dead", True)
        assert worker.is_told_to_end()
        rig.serving().serve_in_thread()
        np.testing.assert_array_equal(client.y(), X * 2)
        assert rig.counters["workers lost"] == 1


@settings(max_examples=25)
@given(st.data())
def test_a_damaged_answer_is_an_answer_or_the_end_of_the_worker(data: st.DataObject) -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer(deadline_s=0.3)
        run, _ = worker.take()
        head = TensorHead("y", ElementType.FLOAT32, (1, 2))
        frame = bytearray(framed(Ran(worker.epoch, run.sequence, (head,), 0.1), {"y": X}))
        for _ in range(data.draw(st.integers(1, 3))):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        worker.stream.socket.sendall(frame)
        worker.close()
        rig.serving().serve_in_thread()
        # The outputs may be wrong (nothing checks them), but there is one answer.
        answer, _ = client.receive()
        assert isinstance(answer, Result | Failure)
        other = rig.client()
        other.infer("other")
        np.testing.assert_array_equal(other.y(), X * 2)


def test_outputs_over_the_limit_fail_their_request_and_not_the_worker() -> None:
    with Rig(max_bytes=1 << 16) as rig:
        worker, client = rig.serving(), rig.client()
        client.infer()
        worker.answer(worker.take()[0], np.zeros((1 << 14, 2), np.float32))
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == "run-failed"
        assert "131072 bytes, want at most 65536" in answer.message
        client.infer()
        worker.answer(worker.take()[0], X)
        client.y()


def test_a_worker_that_does_not_read_holds_up_nobody_else() -> None:
    with Rig(max_bytes=64 << 20, max_request_bytes=32 << 20) as rig:
        other_lane = lane("other")
        rig.add_lane(other_lane)
        stuck, client = rig.serving(), rig.client()
        rig.serving(model=other_lane).serve_in_thread()
        large = np.zeros((2 << 20, 2), np.float32)
        client.infer("large", large)
        wait_until(lambda: rig.in_flight()[0] == 1, "the request is admitted")
        quick = rig.client()
        quick.infer("quick", model="other")
        np.testing.assert_array_equal(quick.y(), X * 2)
        run, inputs = stuck.take()
        assert inputs["x"].shape == large.shape
        stuck.answer(run, X)
        client.y()
