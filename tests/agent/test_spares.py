"""Worker processes that are started before they are needed. The processes are real."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from edge_agent import clock
from edge_agent.agent import spares
from edge_agent.agent.processes import Child
from edge_agent.agent.spares import Spares, WorkerKind
from tests.system.running import wait_until

HOSTING = WorkerKind(is_divided=True)
BACKGROUND = WorkerKind(is_background=True, is_divided=True)


class Started:
    """What was started."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.kinds: list[WorkerKind] = []

    def start(self, kind: WorkerKind) -> Child:
        self.kinds.append(kind)
        self.children.append(Child("edge_agent.worker", kind.arguments))
        return self.children[-1]


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    yield made
    for child in made.children:
        child.end()


@pytest.fixture
def some(started: Started) -> Iterator[Spares]:
    made = Spares(started.start)
    yield made
    made.stop()


def is_running(child: Child) -> bool:
    return child.process.poll() is None


def test_a_kind_says_what_it_loads() -> None:
    assert WorkerKind().arguments == ()
    assert HOSTING.arguments == ("--divided",)
    assert BACKGROUND.arguments == ("--background", "--divided")


def test_one_of_each_kind_waits_and_is_taken_once(some: Spares, started: Started) -> None:
    for _ in range(2):
        some.expect(HOSTING)
        some.expect(BACKGROUND)
    assert started.kinds == [HOSTING, BACKGROUND]
    assert some.take(WorkerKind()) is None
    assert some.take(HOSTING) is started.children[0]
    assert some.take(HOSTING) is None
    assert some.take(BACKGROUND) is started.children[1]
    assert all(map(is_running, started.children))


def test_where_the_next_is_expected_it_is_started_after_a_while(
    some: Spares, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "AFTER_S", 0.1)
    assert some.take(HOSTING, is_next_expected=True) is None
    assert started.children == []
    wait_until(lambda: started.children, "it is started")
    assert some.take(HOSTING) is started.children[0]
    clock.sleep_s(0.3)
    assert len(started.children) == 1


def test_one_that_is_not_used_ends(some: Spares, started: Started) -> None:
    some.expect(HOSTING, keep_s=0.2)
    wait_until(lambda: started.children[0].process.returncode is not None, "it ends")
    assert some.take(HOSTING) is None


def test_to_expect_it_again_keeps_it_longer(some: Spares, started: Started) -> None:
    some.expect(HOSTING, keep_s=0.2)
    some.expect(HOSTING, keep_s=60.0)
    clock.sleep_s(0.4)
    assert some.take(HOSTING) is started.children[0]


def test_one_that_was_killed_is_not_given_to_anybody(some: Spares, started: Started) -> None:
    some.expect(HOSTING)
    started.children[0].process.send_signal(signal.SIGKILL)
    started.children[0].process.wait()
    assert some.take(HOSTING) is None
    some.expect(HOSTING)
    assert some.take(HOSTING) is started.children[1]


def test_with_little_memory_there_is_none(
    some: Spares, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "free_memory_bytes", lambda: spares.LEAST_FREE_BYTES - 1)
    some.expect(HOSTING)
    assert started.children == []


def test_after_the_end_there_is_none(some: Spares, started: Started) -> None:
    some.expect(HOSTING)
    some.take(BACKGROUND, is_next_expected=True)
    some.stop()
    assert not is_running(started.children[0])
    some.expect(HOSTING)
    assert some.take(HOSTING) is None
    assert len(started.children) == 1
