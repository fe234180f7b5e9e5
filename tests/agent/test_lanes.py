"""Lanes: nothing is lost, doubled or overtaken, whatever happens to the workers."""

from __future__ import annotations

import pytest

from edge_agent.agent.lanes import (
    DEATHS_TO_QUARANTINE,
    SETTLED_S,
    Deadlines,
    Lanes,
    Limits,
    Success,
)
from edge_agent.errors import (
    Busy,
    DeadlineExceeded,
    ModelQuarantined,
    RunFailed,
    UnknownModel,
)
from tests.agent.made_lanes import DONE, Answers, FakeWorker, lane


def test_requests_wait_until_there_is_a_worker() -> None:
    model, answers, worker = lane(), Answers(), FakeWorker()
    model.put(answers.request(model, 1))
    assert (model.needs_worker, model.waiting, model.in_flight) == (True, 1, 1)
    model.cut_over(worker.station)
    assert worker.taken == [1]
    assert (model.needs_worker, model.waiting, model.in_flight) == (False, 0, 1)
    model.answered_by(worker.station, 1, DONE)
    assert answers.kinds() == {1: [Success]}
    assert (model.in_flight, model.answered, model.failed) == (0, 1, 0)


def test_a_worker_gets_no_more_than_its_window_and_the_next_with_every_answer() -> None:
    model, answers, worker = lane(), Answers(), FakeWorker(window=2)
    model.cut_over(worker.station)
    for number in range(1, 5):
        model.put(answers.request(model, number))
    assert worker.taken == [1, 2]
    model.answered_by(worker.station, 2, DONE)
    assert worker.taken == [1, 2, 3]
    assert answers.order == [2]


def test_the_next_request_goes_out_before_the_answer_is_delivered() -> None:
    model, answers, worker = lane(), Answers(), FakeWorker(window=1)
    model.cut_over(worker.station)
    seen: list[list[int]] = []
    first = answers.request(model, 1)
    first.answer = lambda _request, _outcome: seen.append(list(worker.taken))
    model.put(first)
    model.put(answers.request(model, 2))
    model.answered_by(worker.station, 1, DONE)
    assert seen == [[1, 2]]


def test_what_a_dead_worker_had_runs_first_on_the_next_one() -> None:
    model, answers, first, second = lane(), Answers(), FakeWorker(), FakeWorker(window=5)
    model.cut_over(first.station)
    for number in range(1, 5):
        model.put(answers.request(model, number))
    assert model.lost(first.station)
    assert model.needs_worker
    model.cut_over(second.station)
    assert second.taken == [1, 2, 3, 4]


def test_requests_of_several_dead_workers_run_in_the_order_of_their_arrival() -> None:
    model, answers = lane(), Answers()
    old, new, last = FakeWorker(window=2), FakeWorker(window=3), FakeWorker(window=9)
    model.cut_over(old.station)
    for number in range(1, 6):
        model.put(answers.request(model, number))
    model.cut_over(new.station)
    assert (old.taken, new.taken) == ([1, 2], [3, 4, 5])
    model.answered_by(new.station, 4, DONE)
    # The draining one dies: 1 goes to the new one, whose window is then full; 2 waits.
    assert not model.lost(old.station)
    assert new.taken == [3, 4, 5, 1]
    assert model.lost(new.station)
    model.cut_over(last.station)
    assert last.taken == [1, 2, 3, 5]


def test_an_old_worker_drains_while_the_new_one_serves() -> None:
    model, answers, old, new = lane(), Answers(), FakeWorker(), FakeWorker()
    model.cut_over(old.station)
    model.put(answers.request(model, 1))
    assert model.cut_over(new.station) is old.station
    model.put(answers.request(model, 2))
    assert new.taken == [2]
    assert model.draining == [old.station]
    model.answered_by(old.station, 1, DONE)
    assert answers.order == [1]


def test_a_request_that_expired_in_the_queue_is_not_sent() -> None:
    model, answers, worker = lane(), Answers(), FakeWorker()
    late, fine = answers.request(model, 1), answers.request(model, 2)
    model.put(late)
    model.put(fine)
    model.finish(late, DeadlineExceeded("late"))
    assert (model.waiting, model.in_flight) == (1, 1)
    model.cut_over(worker.station)
    assert worker.taken == [2]


def test_a_request_that_expired_at_a_worker_takes_its_place_until_it_is_answered() -> None:
    model, answers, worker = lane(), Answers(), FakeWorker(window=1)
    late = answers.request(model, 1)
    model.cut_over(worker.station)
    model.put(late)
    model.put(answers.request(model, 2))
    model.finish(late, DeadlineExceeded("late"))
    assert worker.taken == [1]
    assert worker.station.live == 0
    model.answered_by(worker.station, 1, DONE)
    assert worker.taken == [1, 2]
    assert answers.kinds() == {1: [DeadlineExceeded], 2: []}


def test_a_request_that_expired_at_a_dead_worker_does_not_run_again() -> None:
    model, answers, first, second = lane(), Answers(), FakeWorker(), FakeWorker()
    late = answers.request(model, 1)
    model.cut_over(first.station)
    model.put(late)
    model.finish(late, DeadlineExceeded("late"))
    model.lost(first.station)
    model.cut_over(second.station)
    assert second.taken == []
    assert (late.deaths, model.in_flight) == (0, 0)


def test_an_answer_to_what_nobody_asked_is_ignored() -> None:
    model, answers, worker = lane(), Answers(), FakeWorker()
    model.cut_over(worker.station)
    model.put(answers.request(model, 1))
    for sequence in (0, 2, -1, 2**40):
        model.answered_by(worker.station, sequence, DONE)
    model.answered_by(worker.station, 1, DONE)
    model.answered_by(worker.station, 1, RunFailed("again"))
    assert answers.kinds() == {1: [Success]}
    assert (model.answered, model.failed) == (1, 0)


def test_deaths_without_an_answer_between_them_quarantine_the_model() -> None:
    model, answers = lane(), Answers()
    for death in range(1, DEATHS_TO_QUARANTINE + 1):
        worker = FakeWorker()
        model.cut_over(worker.station)
        model.lost(worker.station)
        assert (model.quarantine is not None) == (death == DEATHS_TO_QUARANTINE)
    model.put(answers.request(model, 1))
    assert answers.kinds() == {1: [ModelQuarantined]}
    assert 'model "m" killed its worker 3 times' in str(answers.outcomes[1][0])


@pytest.mark.parametrize("has_request", [False, True])
def test_a_worker_that_lived_long_and_had_nothing_to_do_did_not_die_of_its_model(
    has_request: bool,
) -> None:
    model, answers = lane(), Answers()
    if has_request:
        model.put(answers.request(model, 0))
    for _ in range(DEATHS_TO_QUARANTINE):
        worker = FakeWorker()
        worker.station.since_s -= SETTLED_S
        model.cut_over(worker.station)
        model.lost(worker.station)
    assert model.deaths_in_a_row == (DEATHS_TO_QUARANTINE if has_request else 0)
    assert (model.quarantine is not None) == has_request


def test_an_answer_between_deaths_forgives_them() -> None:
    model, answers = lane(), Answers()
    for number in range(3 * DEATHS_TO_QUARANTINE):
        worker = FakeWorker()
        model.cut_over(worker.station)
        model.put(answers.request(model, number))
        model.answered_by(worker.station, number, DONE)
        model.lost(worker.station)
    assert model.quarantine is None


def test_a_request_that_kills_every_worker_quarantines_although_others_are_answered() -> None:
    model, answers = lane(), Answers()
    model.put(answers.request(model, 0))
    for number in range(1, DEATHS_TO_QUARANTINE + 1):
        worker = FakeWorker()
        model.cut_over(worker.station)
        model.put(answers.request(model, number))
        model.answered_by(worker.station, number, DONE)
        assert model.quarantine is None
        model.lost(worker.station)
    assert model.quarantine is not None
    assert answers.kinds()[0] == [ModelQuarantined]


def test_quarantine_answers_everything_that_waits_or_runs() -> None:
    model, answers, old, new = lane(), Answers(), FakeWorker(window=1), FakeWorker(window=1)
    model.cut_over(old.station)
    model.put(answers.request(model, 1))
    model.cut_over(new.station)
    model.put(answers.request(model, 2))
    model.put(answers.request(model, 3))
    model.isolate()
    assert answers.kinds() == {n: [ModelQuarantined] for n in (1, 2, 3)}
    assert model.in_flight == 0
    model.answered_by(old.station, 1, DONE)
    assert answers.kinds()[1] == [ModelQuarantined]


def test_lanes_are_found_by_name_and_replaced_ones_are_closed() -> None:
    lanes, old, new = Lanes(), lane("a"), lane("a")
    lanes.add(old)
    lanes.add(lane("b"))
    lanes.add(new)
    assert lanes.find("a") is new
    assert (old.is_closed, new.is_closed) == (True, False)
    with pytest.raises(UnknownModel, match='"c" is not loaded; loaded: a, b'):
        lanes.find("c")
    lanes.remove("a")
    assert new.is_closed
    with pytest.raises(UnknownModel):
        lanes.remove("a")


def test_limits_count_requests_and_bytes_and_take_nothing_when_full() -> None:
    limits = Limits(2, 100)
    limits.take(60)
    with pytest.raises(Busy, match="60 bytes are in flight and this request has 41, the limit"):
        limits.take(41)
    limits.take(40)
    with pytest.raises(Busy, match="2 requests are in flight, the limit is 2"):
        limits.take(0)
    assert (limits.requests, limits.bytes) == (2, 100)
    limits.give_back(60)
    limits.give_back(40)
    assert (limits.requests, limits.bytes) == (0, 0)


def test_deadlines_expire_in_their_order_and_only_what_is_not_answered() -> None:
    model, answers, deadlines = lane(), Answers(), Deadlines()
    requests = [answers.request(model, n, until_s=u) for n, u in enumerate([5.0, 3.0, None, 4.0])]
    for request in requests:
        deadlines.add(request)
    assert deadlines.next_s() == 3.0
    requests[1].is_done = True
    assert deadlines.expired(3.9) == []
    assert deadlines.next_s() == 4.0
    assert [r.sequence for r in deadlines.expired(5.0)] == [3, 0]
    assert deadlines.next_s() is None


def test_answered_requests_do_not_pile_up_behind_a_slow_one() -> None:
    model, answers, deadlines = lane(), Answers(), Deadlines()
    deadlines.add(answers.request(model, 0, until_s=1.0))
    for number in range(1, 10_000):
        request = answers.request(model, number, until_s=1.0 + number)
        deadlines.add(request)
        request.is_done = True
    assert len(deadlines) <= 1025
    assert deadlines.next_s() == 1.0


def test_a_worker_hears_once_that_nobody_waits_for_what_it_has() -> None:
    it, answers, worker = lane(), Answers(), FakeWorker(window=1)
    it.cut_over(worker.station)
    sent, waiting = answers.request(it, 1), answers.request(it, 2)
    it.put(sent)
    it.put(waiting)
    it.finish(waiting, DeadlineExceeded("too late"))
    assert worker.abandoned == []  # it never had it
    it.finish(sent, DeadlineExceeded("too late"))
    it.finish(sent, DeadlineExceeded("too late"))
    assert worker.abandoned == [1]
    it.answered_by(worker.station, 1, Success((), b""))
    assert worker.abandoned == [1]
    assert [len(answers.outcomes[n]) for n in (1, 2)] == [1, 1]


def test_what_was_answered_is_not_abandoned() -> None:
    it, answers, worker = lane(), Answers(), FakeWorker()
    it.cut_over(worker.station)
    it.put(answers.request(it, 1))
    it.answered_by(worker.station, 1, Success((), b""))
    assert worker.abandoned == []
