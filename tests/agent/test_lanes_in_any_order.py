"""A lane under random events, beside a model of what must be true."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_agent.agent.lanes import DEATHS_TO_QUARANTINE, Deadlines, Request, Success
from edge_agent.errors import DeadlineExceeded, EdgeAgentError, ModelQuarantined, RunFailed
from tests.agent.made_lanes import DONE, Answers, FakeWorker, lane

ANSWERS = {Success, RunFailed, DeadlineExceeded, ModelQuarantined}


class LaneMachine(RuleBasedStateMachine):
    """Puts, answers, deaths, cut-overs, deadlines and quarantine in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.model = lane()
        self.answers = Answers()
        self.deadlines = Deadlines()
        self.requests: dict[int, Request] = {}
        self.workers: list[FakeWorker] = []
        """Alive and in the lane: the last may be active, the others drain."""
        self.deaths_while_draining = 0
        self.now_s = 0.0

    # ---- what happens

    @rule(wait_s=st.none() | st.floats(0.0, 5.0))
    def put(self, wait_s: float | None) -> None:
        number = len(self.requests) + 1
        until_s = None if wait_s is None else self.now_s + wait_s
        request = self.answers.request(self.model, number, until_s)
        self.requests[number] = request
        self.deadlines.add(request)
        self.model.put(request)

    @precondition(lambda self: self.model.quarantine is None)
    @rule(window=st.integers(1, 3))
    def cut_over(self, window: int) -> None:
        worker = FakeWorker(window=window)
        old = self.model.cut_over(worker.station)
        assert old is None or old is self.workers[-1].station
        self.workers.append(worker)

    @precondition(lambda self: any(w.station.has for w in self.workers))
    @rule(data=st.data(), fails=st.booleans())
    def answer(self, data: st.DataObject, fails: bool) -> None:
        worker = data.draw(st.sampled_from([w for w in self.workers if w.station.has]))
        sequence = data.draw(st.sampled_from(sorted(worker.station.has)))
        outcome = RunFailed("no") if fails else DONE
        was_done = self.requests[sequence].is_done
        self.model.answered_by(worker.station, sequence, outcome)
        if not was_done:
            assert self.answers.outcomes[sequence] == [outcome]

    @precondition(lambda self: bool(self.workers))
    @rule(data=st.data(), sequence=st.integers(-1, 30))
    def say_nonsense(self, data: st.DataObject, sequence: int) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        if sequence not in worker.station.has:
            before = self.answers.kinds()
            self.model.answered_by(worker.station, sequence, DONE)
            assert self.answers.kinds() == before

    @precondition(lambda self: bool(self.workers))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        was_active = worker.station is self.model.active
        self.deaths_while_draining += not was_active
        had = [r for r in worker.station.has.values() if not r.is_done]
        self.workers.remove(worker)
        assert self.model.lost(worker.station) == was_active
        assert not worker.station.has
        if self.model.quarantine is None:
            assert not any(r.is_done for r in had)

    @rule(passes_s=st.floats(0.0, 3.0))
    def let_time_pass(self, passes_s: float) -> None:
        self.now_s += passes_s
        for request in self.deadlines.expired(self.now_s):
            assert request.until_s is not None
            assert request.until_s <= self.now_s
            self.model.finish(request, DeadlineExceeded("late"))

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.requests.values())))
        self.model.finish(request, RunFailed("the client is gone"))

    @precondition(lambda self: self.model.active is not None)
    @rule()
    def retire(self) -> None:
        active = self.model.active
        assert active is not None
        self.model.active = None
        self.model.draining.append(active)

    # ---- what must be true

    @invariant()
    def no_request_has_two_outcomes(self) -> None:
        for number, outcomes in self.answers.kinds().items():
            assert len(outcomes) == int(self.requests[number].is_done)
            assert set(outcomes) <= ANSWERS

    @invariant()
    def every_request_is_answered_or_somewhere_once(self) -> None:
        held = [r for w in self.workers for r in w.station.has.values()]
        assert len({id(r) for r in held}) == len(held)
        live = sum(not r.is_done for r in self.requests.values())
        assert self.model.in_flight == live
        assert self.model.waiting == live - sum(not r.is_done for r in held)

    @invariant()
    def windows_are_respected(self) -> None:
        assert all(len(w.station.has) <= w.window for w in self.workers)

    @invariant()
    def nothing_waits_while_there_is_room(self) -> None:
        active = self.model.active
        if active is not None and len(active.has) < active.window:
            assert self.model.waiting == 0

    @invariant()
    def nobody_overtakes(self) -> None:
        waiting = [
            number
            for number, request in self.requests.items()
            if not request.is_done and not any(number in w.station.has for w in self.workers)
        ]
        if waiting and self.workers:
            newest = self.workers[-1]
            # What the newest worker took last, it took before anything that still waits came.
            fresh = [n for n in newest.taken if self.requests[n].deaths == 0]
            assert not fresh or all(self.requests[n].deaths > 0 or n > max(fresh) for n in waiting)

    @invariant()
    def counts_add_up(self) -> None:
        outcomes = [o for per_request in self.answers.outcomes.values() for o in per_request]
        failed = sum(isinstance(o, EdgeAgentError) for o in outcomes)
        assert (self.model.answered, self.model.failed) == (len(outcomes) - failed, failed)

    @invariant()
    def quarantine_leaves_nothing_in_flight(self) -> None:
        if self.model.quarantine is not None:
            assert self.model.in_flight == 0
            assert max((r.deaths for r in self.requests.values()), default=0) <= (
                DEATHS_TO_QUARANTINE + self.deaths_while_draining
            )

    def teardown(self) -> None:
        """Whatever happened: with one worker that lives, everything is answered in order."""
        if self.model.quarantine is None:
            self.cut_over(window=1)
            last = self.workers[-1]
            for worker in self.workers[:-1]:
                self.model.lost(worker.station)
            while last.station.has:
                self.model.answered_by(last.station, min(last.station.has), DONE)
        for number, outcomes in self.answers.outcomes.items():
            assert len(outcomes) == 1, number


LaneMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestALaneInAnyOrder = LaneMachine.TestCase
