"""The data path between real sockets: requests, answers, limits, deadlines, the end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edge_agent.agent.clients import MAX_UNSENT_ANSWERS
from edge_agent.errors import AgentUnavailable, InputMismatch, UnknownModel
from edge_agent.wire.messages import (
    AskModels,
    AskStatus,
    Done,
    Failure,
    Unload,
)
from tests.agent.made_lanes import lane
from tests.agent.rig import ClientEnd, Rig, X, infer_frame, wait_until


def code(client: ClientEnd) -> str:
    answer = client.answer()
    assert isinstance(answer, Failure), answer
    return answer.code


def test_a_request_is_answered_with_the_outputs_of_the_worker() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer("r1")
        run, inputs = worker.take()
        assert (run.outputs, run.tensors[0].name) == (("y",), "x")
        np.testing.assert_array_equal(inputs["x"], X)
        assert rig.in_flight() == (1, 8)
        worker.answer(run, X * 3)
        np.testing.assert_array_equal(client.y(), X * 3)
        assert rig.in_flight() == (0, 0)


def test_the_failure_of_a_run_reaches_the_client_with_its_request() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer("r1")
        worker.fail(worker.take()[0])
        assert client.answer() == Failure("r1", "run-failed", "it failed")


def test_requests_wait_for_the_first_worker() -> None:
    with Rig() as rig:
        client = rig.client()
        client.infer()
        wait_until(lambda: rig.in_flight()[0] == 1, "the request is admitted")
        worker = rig.serving()
        worker.answer(worker.take()[0], X)
        np.testing.assert_array_equal(client.y(), X)


def test_a_large_request_passes_in_pieces_while_a_small_one_of_another_client_is_served() -> None:
    with Rig(max_bytes=64 << 20, max_request_bytes=32 << 20) as rig:
        rig.serving().serve_in_thread()
        large = np.arange(4 << 20, dtype=np.float32).reshape(-1, 2)
        with ThreadPoolExecutor(1) as pool:
            slow, quick = rig.client(), rig.client()
            sending = pool.submit(slow.infer, "large", large)
            quick.infer("small")
            np.testing.assert_array_equal(quick.y(), X * 2)
            got = slow.y()
            sending.result()
        np.testing.assert_array_equal(got, large * 2)


def test_requests_of_one_connection_may_follow_each_other_without_waiting() -> None:
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        for number in range(6):
            client.infer(f"r{number}", X + number)
        for number in range(6):
            np.testing.assert_array_equal(client.y(), (X + number) * 2)


@pytest.mark.parametrize(
    ("model", "x", "deadline_s", "want"),
    [
        ("other", X, None, "unknown-model"),
        ("m", X.astype(np.float64), None, "input-mismatch"),
        ("m", X.reshape(2), None, "input-mismatch"),
        ("m", X, 0.0, "deadline-exceeded"),
        ("m", X, -1e300, "deadline-exceeded"),
        ("m", np.zeros((1 << 16, 2), np.float32), None, "bad-request"),
    ],
)
def test_a_request_that_is_refused_takes_nothing_and_the_connection_goes_on(
    model: str, x: np.ndarray, deadline_s: float | None, want: str
) -> None:
    with Rig(max_request_bytes=1 << 16) as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        client.infer("bad", x, model, deadline_s)
        assert code(client) == want
        assert rig.in_flight() == (0, 0)
        client.infer("good")
        np.testing.assert_array_equal(client.y(), X * 2)
        assert rig.counters["requests refused"] == 1


def test_a_large_refused_request_gets_exactly_one_answer() -> None:
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        client.infer("bad", np.zeros((1 << 15, 2), np.float32), "other")
        assert code(client) == "unknown-model"
        client.infer("good")
        np.testing.assert_array_equal(client.y(), X * 2)


def test_over_the_limit_of_requests_a_client_hears_busy() -> None:
    with Rig(max_requests=2) as rig:
        worker, client = rig.serving(), rig.client()
        for number in range(3):
            client.infer(f"r{number}")
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert (answer.request, answer.code) == ("r2", "busy")
        for _ in range(2):
            worker.answer(worker.take()[0], X)
            client.y()
        client.infer("r3")
        worker.answer(worker.take()[0], X)
        client.y()


def test_over_the_limit_of_bytes_a_client_hears_busy() -> None:
    with Rig(max_bytes=20) as rig:
        worker, client = rig.serving(), rig.client()
        for number in range(3):
            client.infer(f"r{number}")
        assert code(client) == "busy"
        assert rig.in_flight() == (2, 16)
        for _ in range(2):
            worker.answer(worker.take()[0], X)
            client.y()


def test_a_deadline_that_passes_is_answered_although_the_worker_is_silent() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer("slow", deadline_s=0.05)
        assert code(client) == "deadline-exceeded"
        assert rig.in_flight() == (0, 0)
        # What the worker says then is for nobody.
        worker.answer(worker.take()[0], X)
        client.infer("next")
        worker.answer(worker.take()[0], X * 5)
        np.testing.assert_array_equal(client.y(), X * 5)


def test_deadlines_pass_while_there_is_no_worker_at_all() -> None:
    with Rig() as rig:
        client = rig.client()
        for number, deadline_s in enumerate([0.06, 0.02, None, 0.04]):
            client.infer(f"r{number}", deadline_s=deadline_s)
        answers = [client.answer() for _ in range(3)]
        assert [a.request for a in answers if isinstance(a, Failure)] == ["r1", "r3", "r0"]
        assert rig.in_flight() == (1, 8)


def test_the_longest_deadline_does_not_disturb_the_others() -> None:
    with Rig() as rig:
        client = rig.client()
        client.infer("long", deadline_s=1e6)
        client.infer("short", deadline_s=0.02)
        assert code(client) == "deadline-exceeded"


def test_a_request_sent_again_over_a_new_connection_is_answered_there_once() -> None:
    with Rig() as rig:
        worker, old, new = rig.serving(), rig.client(), rig.client()
        old.infer("same")
        run, _ = worker.take()
        new.infer("same")
        rig.client().send(AskStatus())
        wait_until(lambda: rig.control.messages, "what was sent before is handled")
        old.close()
        worker.answer(run, X)
        np.testing.assert_array_equal(new.y(), X)
        assert rig.in_flight() == (0, 0)
        new.infer("another")
        assert worker.take()[0].sequence == run.sequence + 1
        assert rig.counters["requests abandoned by their client"] == 0


def test_a_client_that_goes_away_gives_its_request_up() -> None:
    with Rig() as rig:
        worker, client = rig.serving(), rig.client()
        client.infer()
        run, _ = worker.take()
        client.close()
        wait_until(lambda: rig.in_flight() == (0, 0), "the request is given up")
        assert rig.counters["requests abandoned by their client"] == 1
        worker.answer(run, X)
        other = rig.client()
        other.infer()
        worker.answer(worker.take()[0], X)
        other.y()


def test_a_model_unloaded_while_a_payload_is_on_the_way_refuses_it() -> None:
    with Rig() as rig:
        client = rig.client()
        frame = infer_frame("r", X)
        client.send_bytes(frame[:-4])
        wait_until(lambda: rig.in_flight() == (1, 8), "the message is admitted")
        rig.datapath.call(lambda: rig.datapath.lanes.remove("m"))
        client.send_bytes(frame[-4:])
        assert code(client) == "unknown-model"
        assert rig.in_flight() == (0, 0)


def test_a_model_replaced_while_a_payload_is_on_the_way_gets_it() -> None:
    with Rig() as rig:
        client = rig.client()
        frame = infer_frame("r", X)
        client.send_bytes(frame[:-4])
        wait_until(lambda: rig.in_flight() == (1, 8), "the message is admitted")
        new = lane()
        rig.add_lane(new)
        rig.serving(model=new).serve_in_thread()
        client.send_bytes(frame[-4:])
        np.testing.assert_array_equal(client.y(), X * 2)


def test_other_messages_go_to_the_control_and_come_back() -> None:
    with Rig() as rig:
        client = rig.client()
        client.send(AskModels())
        assert client.answer() == Done("AskModels")
        client.send(Unload("m"))
        assert client.answer() == Done("Unload")
        assert rig.control.messages == [AskModels(), Unload("m")]


def test_what_a_client_that_goes_away_waits_for_is_lost() -> None:
    with Rig() as rig:
        gone, waiting = rig.client(), rig.client()
        gone.send(AskModels())
        assert gone.answer() == Done("AskModels")
        rig.control.is_slow = True
        for client in (waiting, gone, gone):
            client.send(AskStatus())
        wait_until(lambda: len(rig.control.replies) == 4, "all is handled")
        gone.close()
        wait_until(lambda: rig.control.lost_clients, "it is told")
        answered, *lost = sorted(rig.control.replies, key=lambda reply: reply.is_lost)[1:]
        assert not rig.control.replies[0].is_lost
        assert [reply.is_lost for reply in lost] == [True, True]
        answered(Done("late"))
        lost[0](Done("to nobody"))
        assert waiting.answer() == Done("late")
        waiting.close()
        wait_until(lambda: rig.datapath.load().connections == 0, "it is gone")
        assert rig.control.lost_clients == 1


def test_a_client_that_reads_nothing_is_read_no_further() -> None:
    with Rig(max_requests=1000, max_bytes=1 << 30, max_request_bytes=1 << 20) as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        large = np.zeros((1 << 16, 2), np.float32)
        client.stream.socket.settimeout(0.5)

        def frames() -> Iterator[bytes]:
            for number in range(10 * MAX_UNSENT_ANSWERS):
                if number == 2 * MAX_UNSENT_ANSWERS:
                    # Else all might be read before so many are answered.
                    wait_until(lambda: rig.in_flight()[0] == 0, "what was read is answered")
                yield infer_frame(f"r{number}", large)

        with pytest.raises(TimeoutError):
            deque(map(client.send_bytes, frames()), maxlen=0)
        other = rig.client()
        other.infer("other")
        np.testing.assert_array_equal(other.y(), X * 2)


def test_many_clients_at_once_are_all_answered() -> None:
    with Rig(max_requests=1000) as rig:
        rig.serving(instances=2).serve_in_thread()
        clients = [rig.client() for _ in range(200)]
        for number, client in enumerate(clients):
            client.infer(f"r{number}", X * number)
        for number, client in enumerate(clients):
            np.testing.assert_array_equal(client.y(), X * number * 2)
        assert rig.datapath.load().connections == 200


def test_questions_run_on_the_data_thread_and_raise_to_who_asked() -> None:
    with Rig() as rig:
        assert rig.datapath.call(threading.current_thread).name == "data"
        with pytest.raises(UnknownModel):
            rig.datapath.call(lambda: rig.datapath.lanes.find("z"))


def test_an_action_that_fails_is_counted_and_the_thread_goes_on() -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    with Rig() as rig:
        rig.internal_errors = 1
        rig.datapath.post(fail)
        assert rig.datapath.call(lambda: 5) == 5
        assert rig.counters["internal errors"] == 1


# ---- the end


def test_a_stop_answers_what_is_in_flight_and_takes_nothing_new() -> None:
    with Rig() as rig:
        worker, busy, idle = rig.serving(), rig.client(), rig.client()
        busy.infer()
        run, _ = worker.take()
        idle.send(AskStatus())
        idle.answer()
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(rig.stop, 5.0)
            assert idle.is_ended()
            with pytest.raises(AgentUnavailable):
                rig.client()
            worker.answer(run, X)
            np.testing.assert_array_equal(busy.y(), X)
            stopping.result()
        assert busy.is_ended()
        assert worker.is_told_to_end()


def test_what_is_not_answered_in_time_ends_with_the_connection_so_that_it_is_sent_again() -> None:
    with Rig() as rig:
        rig.serving()
        client = rig.client()
        client.infer()
        wait_until(lambda: rig.in_flight()[0] == 1, "the request is admitted")
        rig.stop(0.02)
        assert client.is_ended()


def test_after_the_end_questions_are_refused_instead_of_waiting_for_ever() -> None:
    rig = Rig()
    with rig:
        pass
    with pytest.raises(AgentUnavailable):
        rig.datapath.call(lambda: 1)
    with pytest.raises(AgentUnavailable):
        rig.datapath.post(lambda: None)


def test_a_request_that_does_not_fit_says_what_is_wanted() -> None:
    with Rig() as rig:
        client = rig.client()
        client.infer("r", X.astype(np.int64))
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == InputMismatch.code
        assert answer.message == 'input "x": got int64[1,2], want float32[N,2]'
