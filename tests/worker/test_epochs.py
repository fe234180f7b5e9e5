"""Another epoch that a worker opens beside the one that it serves, and goes on with."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import pytest

from edge_agent.errors import StorageError
from edge_agent.plans import Epoch
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays
from edge_agent.wire.arrays import pack_arrays
from edge_agent.wire.messages import (
    Deployment,
    Discard,
    Ran,
    Ready,
    Run,
    RunError,
    Switch,
)
from edge_agent.wire.parts import SubgraphFile
from edge_agent.worker.by_shape import ShapeCounter
from edge_agent.worker.epochs import Beside, Opened
from tests.agent.rig import wait_until
from tests.worker.test_lent import Lent
from tests.worker.test_serving import CODEC, EPOCH, WAIT_S, AgentEnd, Doubling, X, serving


def epoch(number: int) -> Epoch:
    return Epoch(owner="local", incarnation=1, model=ModelId("m"), number=number)


def deployment(number: int, instances: int = 1) -> Deployment:
    return Deployment(
        epoch=epoch(number),
        subgraphs=(SubgraphFile(path="/m", level="none", threads=1, is_plain=False),),
        instances=instances,
        pinned_cores=(),
        inputs=None,
        outputs=None,
        warm_shapes=(),
    )


class Times(Doubling):
    """y = factor · x; waits to be let go, if it is held."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        if self.together is not None:
            self.together.wait(WAIT_S)
        self.has_begun.set()
        assert self.may_end.wait(WAIT_S)
        return dict.fromkeys(outputs, feeds["x"] * self.factor)


class Opening:
    """Opens epoch n as n times its input."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.may_open = threading.Event()
        self.may_open.set()
        self.beside: queue.Queue[Beside] = queue.Queue()
        self.runners: dict[int, Times] = {}
        self.closed: queue.Queue[int] = queue.Queue()

    def __call__(self, deployment: Deployment, beside: Beside) -> Opened:
        self.beside.put(beside)
        assert self.may_open.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        number = deployment.epoch.number
        runner = self.runners[number] = Times(number)
        leases = ExitStack()
        leases.callback(self.closed.put, number)
        return Opened(
            epoch=deployment.epoch,
            runner=runner,
            instances=deployment.instances,
            counter=beside.counter,
            leases=leases,
        )


def prepare(agent: AgentEnd, number: int, instances: int = 1) -> Ready | RunError:
    """What the worker says of an epoch that it is to open."""
    agent.stream.send(CODEC.encode(deployment(number, instances)))
    answer, _ = agent.receive()
    assert isinstance(answer, Ready | RunError)
    return answer


def switch(agent: AgentEnd, number: int) -> None:
    agent.stream.send(CODEC.encode(Switch(epoch(number))))


def move(agent: AgentEnd, number: int, instances: int = 1) -> None:
    assert isinstance(prepare(agent, number, instances), Ready)
    switch(agent, number)


def answers(agent: AgentEnd, number: int, factor: int) -> bool:
    """Whether a request of that epoch is answered under it with so many times its input."""
    agent.send(number, epoch(number))
    ran, arrays = agent.receive()
    assert isinstance(ran, Ran), ran
    assert ran.epoch == epoch(number)
    return np.array_equal(arrays["y"], X * factor)


def test_an_epoch_is_opened_beside_and_takes_over_when_the_agent_says_so() -> None:
    opening = Opening()
    with serving(opens=opening) as agent:
        ready = prepare(agent, 3)
        assert isinstance(ready, Ready)
        assert (ready.epoch, ready.takes_connections) == (epoch(3), True)
        assert answers(agent, 1, 2)
        switch(agent, 3)
        assert answers(agent, 3, 3)
        move(agent, 4)
        assert opening.closed.get(timeout=WAIT_S) == 3
        assert answers(agent, 4, 4)


def test_what_runs_at_the_switch_is_answered_by_the_epoch_that_began_it() -> None:
    opening = Opening()
    with serving(opens=opening) as agent:
        move(agent, 3, instances=2)
        held = opening.runners[3]
        held.may_end.clear()
        agent.send(1, epoch(3))
        assert held.has_begun.wait(WAIT_S)
        move(agent, 4)
        assert answers(agent, 4, 4)
        assert opening.closed.empty()
        held.may_end.set()
        ran, arrays = agent.receive()
        assert isinstance(ran, Ran)
        assert (ran.epoch, ran.sequence) == (epoch(3), 1)
        np.testing.assert_array_equal(arrays["y"], X * 3)
        assert opening.closed.get(timeout=WAIT_S) == 3
        assert answers(agent, 4, 4)


def test_requests_that_lie_before_the_switch_are_answered_by_the_epoch_they_are_of() -> None:
    with serving(opens=Opening()) as agent:
        assert isinstance(prepare(agent, 5), Ready)
        frames = [Run(EPOCH, n, pack_arrays({"x": X})[0], ("y",)) for n in range(3)]
        for run in frames:
            agent.stream.send(CODEC.encode(run), pack_arrays({"x": X})[1])
        switch(agent, 5)
        for n in range(3, 6):
            agent.send(n, epoch(5))
        got = [agent.receive() for _ in range(6)]
        assert [m.sequence for m, _ in got if isinstance(m, Ran)] == list(range(6))
        assert [m.epoch.number for m, _ in got if isinstance(m, Ran)] == [1, 1, 1, 5, 5, 5]
        assert [float(a["y"][0]) for _, a in got] == [2.0, 2.0, 2.0, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("counts", [(1, 2, 1), (2, 1, 3)])
def test_as_many_requests_run_at_once_as_the_epoch_has_instances(counts: tuple[int, ...]) -> None:
    opening = Opening()
    with serving(opens=opening) as agent:
        for number, instances in enumerate(counts, start=2):
            move(agent, number, instances)
            opening.runners[number].together = threading.Barrier(instances)
            for sequence in range(instances):
                agent.send(sequence, epoch(number))
            got = {agent.receive()[0] for _ in range(instances)}
            assert {m.sequence for m in got if isinstance(m, Ran)} == set(range(instances))
            opening.runners[number].together = None
        assert answers(agent, 4, 4)
        wanted = [f"run-{i}" for i in range(counts[-1])]
        wait_until(lambda: alive() == wanted, "the threads of epochs before have left")


def test_a_connection_that_is_lent_is_answered_by_the_epoch_that_serves() -> None:
    with serving(opens=Opening()) as agent:
        lent = Lent(agent)
        lent.ask("a")
        np.testing.assert_array_equal(lent.y("a"), X * 2)
        move(agent, 3)
        assert answers(agent, 3, 3)  # so that the switch was read
        lent.ask("b")
        np.testing.assert_array_equal(lent.y("b"), X * 3)
        lent.close()


def test_an_epoch_that_cannot_be_opened_is_refused_and_the_other_serves_on() -> None:
    opening = Opening()
    opening.error = StorageError("it is damaged")
    with serving(opens=opening) as agent:
        refused = prepare(agent, 3)
        assert refused == RunError(epoch(3), -1, "storage", "it is damaged")
        assert answers(agent, 1, 2)
        opening.error = None
        move(agent, 4)
        assert answers(agent, 4, 4)


def test_a_failure_that_nobody_expected_refuses_the_epoch_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opening = Opening()
    opening.error = MemoryError("no more")
    with serving(opens=opening) as agent, caplog.at_level(logging.CRITICAL):
        assert prepare(agent, 3) == RunError(epoch(3), -1, "error", "MemoryError: no more")
        assert answers(agent, 1, 2)


def test_an_epoch_that_was_never_switched_to_gives_way_to_the_next() -> None:
    opening = Opening()
    with serving(opens=opening) as agent:
        prepare(agent, 3)
        prepare(agent, 4)
        assert opening.closed.get(timeout=WAIT_S) == 3
        switch(agent, 4)
        assert answers(agent, 4, 4)


def test_a_switch_to_what_is_not_ready_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    with serving(opens=Opening()) as agent, caplog.at_level(logging.CRITICAL):
        prepare(agent, 3)
        switch(agent, 4)
        assert agent.has_ended()


def test_shapes_are_counted_on() -> None:
    counter = ShapeCounter(())
    opening = Opening()
    with serving(counter=counter, opens=opening) as agent:
        move(agent, 3)
        assert opening.beside.get(timeout=WAIT_S).counter is counter
        move(agent, 4)
        assert opening.beside.get(timeout=WAIT_S).counter is counter


def test_there_is_a_pause_only_while_nothing_runs() -> None:
    opening = Opening()
    with serving(opens=opening) as agent:
        move(agent, 3)
        beside = opening.beside.get(timeout=WAIT_S)
        assert beside.has_pause()
        held = opening.runners[3]
        held.may_end.clear()
        agent.send(1, epoch(3))
        assert held.has_begun.wait(WAIT_S)
        assert not beside.has_pause()
        held.may_end.set()
        assert isinstance(agent.receive()[0], Ran)


class Bound(Times):
    """Binds its callers to one core; remembers where they were."""

    def __init__(self, factor: int) -> None:
        super().__init__(factor)
        self.where: list[set[int]] = []

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        self.where.append(os.sched_getaffinity(0))
        return super().run(feeds, outputs)

    def pin_caller(self) -> None:
        if self.factor == 2:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def test_threads_of_the_next_epoch_are_bound_only_if_that_one_wants_it() -> None:
    everywhere = os.sched_getaffinity(0)
    first, second = Bound(2), Bound(3)
    cores: list[set[int]] = []

    def open_second(deployment: Deployment, beside: Beside) -> Opened:
        cores.append(os.sched_getaffinity(0))
        return Opened(epoch=deployment.epoch, runner=second, instances=1, counter=beside.counter)

    with serving(runner=first, opens=open_second) as agent:
        assert answers(agent, 1, 2)
        move(agent, 3)
        assert answers(agent, 3, 3)
    assert first.where == [{min(everywhere)}]
    assert cores == second.where == [everywhere]


def test_an_epoch_that_is_not_wanted_any_more_is_given_up() -> None:
    opening = Opening()
    with serving(opens=opening) as agent:
        prepare(agent, 3)
        agent.stream.send(CODEC.encode(Discard(epoch(3))))
        assert answers(agent, 1, 2)
        assert opening.closed.get(timeout=WAIT_S) == 3
        prepare(agent, 4)
        switch(agent, 4)
        assert answers(agent, 4, 4)


def test_an_epoch_that_is_not_wanted_when_it_is_open_is_given_up() -> None:
    opening = Opening()
    opening.may_open.clear()
    with serving(opens=opening) as agent:
        agent.stream.send(CODEC.encode(deployment(3)))
        agent.stream.send(CODEC.encode(Discard(epoch(3))))
        assert answers(agent, 1, 2)
        opening.may_open.set()
        assert opening.closed.get(timeout=WAIT_S) == 3


def alive() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("run-"))
