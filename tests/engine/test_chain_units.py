"""Chains over several units: whose turn it is, how long each took, and which values stay there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
import pytest

from edge_agent import clock
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.chain import Chain
from edge_agent.engine.session import Session
from edge_agent.errors import RunFailed
from edge_agent.tensors import Arrays, TensorSpec

WAIT_S = 10.0
"""Far more than anything here takes."""
ONE = np.float32([1])


class FakeSession:
    """Gives one more than the sum of what it takes, for each of its outputs."""

    def __init__(self, takes: str, gives: str, memory: str = "") -> None:
        self.takes = self.input_names = self.required_inputs = tuple(takes)
        self.output_names = tuple(gives)
        self.inputs: tuple[TensorSpec, ...] = ()
        self.overridable: tuple[TensorSpec, ...] = ()
        self.containers: set[str] = set()
        self.path = Path(f"{takes}-{gives}.onnx")
        self.memory = memory
        self.stayed: list[set[str]] = []
        """Which outputs stayed in the memory of the unit, run by run."""
        self.begins: Callable[[], object] = lambda: None
        """Called while it runs."""
        self._lock = threading.Lock()
        self._running = 0
        self.most_at_once = 0

    def value_of(self, _name: str, array: Any) -> Any:
        return array

    def compute(
        self,
        values: Mapping[str, Any],
        outputs: Sequence[str],
        _cancel: Cancellation | None,
        *,
        to_arrays: bool,
        staying: Collection[str],
    ) -> dict[str, Any]:
        assert not to_arrays
        self.stayed.append(set(staying))
        with self._lock:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            self.begins()
        finally:
            with self._lock:
                self._running -= 1
        return dict.fromkeys(outputs, sum(values.values()) + 1)

    def run_checked(
        self, arrays: Arrays, outputs: Sequence[str], cancel: Cancellation | None = None
    ) -> Arrays:
        return self.compute(arrays, outputs, cancel, to_arrays=False, staying=())


class Turn:
    """A turn of one at a time that tells how many came for it."""

    def __init__(self, is_limited: bool = True) -> None:
        self._turn = threading.Semaphore(1 if is_limited else 99)
        self._came = 0
        self._coming = threading.Condition()

    def __enter__(self) -> None:
        with self._coming:
            self._came += 1
            self._coming.notify_all()
        assert self._turn.acquire(timeout=WAIT_S)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._turn.release()

    def wait_until_came(self, count: int) -> None:
        with self._coming:
            assert self._coming.wait_for(lambda: self._came >= count, WAIT_S)


def chain_of(
    sessions: Sequence[FakeSession], outputs: str, turns: Sequence[Any] | None = None
) -> Chain:
    return Chain(cast(Sequence[Session], sessions), ["x"], list(outputs), turns)


def run(chain: Chain, x: float = 0.0, **rest: Any) -> dict[str, float]:
    got = chain.run_checked({"x": np.float32([x])}, chain.outputs, **rest)
    return {name: float(array[0]) for name, array in got.items()}


# ---- turns


def test_two_requests_are_in_different_sessions_at_once() -> None:
    first, second = FakeSession("x", "a"), FakeSession("a", "y")
    chain = chain_of([first, second], "y", [Turn(), Turn()])
    both = threading.Barrier(2)
    firsts = iter(range(2))

    def begin_first() -> None:
        if next(firsts) == 1:
            both.wait(WAIT_S)  # until the request before is in the second session

    seconds = iter(range(2))

    def begin_second() -> None:
        if next(seconds) == 0:
            both.wait(WAIT_S)

    first.begins, second.begins = begin_first, begin_second
    with ThreadPoolExecutor(2) as pool:
        assert [a["y"] for a in pool.map(lambda x: run(chain, x), (10.0, 20.0))] == [12.0, 22.0]
    assert (first.most_at_once, second.most_at_once) == (1, 1)


@pytest.mark.parametrize("count", [1, 2])
def test_two_requests_are_never_in_one_session_at_once(count: int) -> None:
    turn = Turn()
    session = FakeSession("x", "y")
    rest = [FakeSession("x", "z")] * (count - 1)
    chain = chain_of([session, *rest], "yz"[:count], [turn, *[Turn()] * (count - 1)])
    # The one that is there leaves only when the other has come.
    session.begins = lambda: turn.wait_until_came(2)
    with ThreadPoolExecutor(2) as pool:
        assert [a["y"] for a in pool.map(lambda x: run(chain, x), (10.0, 20.0))] == [11.0, 21.0]
    assert session.most_at_once == 1


def test_sessions_that_share_a_turn_are_never_run_at_once() -> None:
    turn = Turn()
    first, second = FakeSession("x", "a"), FakeSession("a", "y")
    chain = chain_of([first, second], "y", [turn, turn])
    is_in_first = threading.Event()
    running = []

    def begin_first() -> None:
        running.append("first")
        is_in_first.set()
        turn.wait_until_came(2)
        assert running == ["first"]

    first.begins = begin_first
    other = Chain(cast(Sequence[Session], [second]), ["a"], ["y"], [turn])
    with ThreadPoolExecutor(2) as pool:
        answers = pool.submit(run, chain)
        assert is_in_first.wait(WAIT_S)
        second.begins = lambda: running.append("second")
        got = pool.submit(other.run_checked, {"a": ONE}, ["y"])
        assert got.result(WAIT_S)["y"].tolist() == [2.0]
        assert answers.result(WAIT_S) == {"y": 2.0}
    assert running == ["first", "second", "second"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_that_fails_gives_its_turn_back(count: int) -> None:
    turn = Turn()
    session = FakeSession("x", "y")
    rest = [FakeSession("y", "z")] * (count - 1)
    chain = chain_of([session, *rest], "yz"[:count], [turn, *[Turn()] * (count - 1)])

    def fail() -> None:
        raise RunFailed("no")

    session.begins = fail
    with pytest.raises(RunFailed, match="no"):
        run(chain)
    session.begins = lambda: None
    assert run(chain)["y"] == 1.0


# ---- how long each took


class Time:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


class SlowTurn(Turn):
    """A turn that is waited for."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self._time = time

    def __enter__(self) -> None:
        super().__enter__()
        self._time.passes(50.0)


@pytest.mark.parametrize("count", [1, 2])
def test_each_session_took_what_it_ran_and_waiting_for_a_turn_is_no_part_of_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(clock, "precise_s", time)
    sessions = [FakeSession("x", "a"), FakeSession("a", "y")][:count]
    for i, session in enumerate(sessions):
        session.begins = lambda i=i: time.passes(1.0 + i)  # type: ignore[misc]
    chain = chain_of(sessions, "ay"[:count], [SlowTurn(time) for _ in sessions])
    took_s: dict[Session, float] = {}
    run(chain, took_s=took_s)
    assert [took_s[cast(Session, s)] for s in sessions] == [1.0, 2.0][:count]


def test_a_session_of_which_nothing_is_wanted_took_no_time() -> None:
    sessions = [FakeSession("x", "a"), FakeSession("x", "b"), FakeSession("a", "y")]
    chain = chain_of(sessions, "y")
    took_s: dict[Session, float] = {}
    assert run(chain, took_s=took_s) == {"y": 2.0}
    assert list(took_s) == [sessions[0], sessions[2]]


# ---- what stays


def stayed(sessions: Sequence[FakeSession], outputs: str) -> list[set[str]]:
    """What stayed of each session's outputs in one run; of sessions that did not run, nothing."""
    run(chain_of(sessions, outputs))
    return [s.stayed[0] if s.stayed else set() for s in sessions]


def test_what_is_read_on_the_same_unit_alone_stays_there() -> None:
    sessions = [FakeSession("x", "a", "gpu"), FakeSession("a", "y", "gpu")]
    assert stayed(sessions, "y") == [{"a"}, set()]


def test_what_is_read_on_several_sessions_of_the_unit_stays_there() -> None:
    sessions = [
        FakeSession("x", "ab", "gpu"),
        FakeSession("a", "c", "gpu"),
        FakeSession("abc", "y", "gpu"),
    ]
    assert stayed(sessions, "y") == [{"a", "b"}, {"c"}, set()]


def test_what_the_processor_needs_comes_back_and_the_rest_stays() -> None:
    sessions = [
        FakeSession("x", "ab", "gpu"),
        FakeSession("a", "c"),
        FakeSession("bc", "y", "gpu"),
    ]
    assert stayed(sessions, "y") == [{"b"}, set(), set()]


def test_what_is_wanted_or_read_elsewhere_too_comes_back() -> None:
    sessions = [
        FakeSession("x", "abc", "gpu"),
        FakeSession("abc", "d", "gpu"),
        FakeSession("bd", "y"),
    ]
    assert stayed(sessions, "ya") == [{"c"}, set(), set()]


def test_what_only_sessions_read_that_are_not_run_does_not_matter() -> None:
    sessions = [
        FakeSession("x", "a", "gpu"),
        FakeSession("a", "y", "gpu"),
        FakeSession("a", "z"),
    ]
    chain = chain_of(sessions, "yz")
    chain.run_checked({"x": ONE}, ["y"])
    chain.run_checked({"x": ONE}, ["y", "z"])
    assert sessions[0].stayed == [{"a"}, set()]


@pytest.mark.parametrize(("one", "other"), [("gpu", "npu"), ("gpu", ""), ("", "gpu"), ("", "")])
def test_nothing_stays_between_other_units(one: str, other: str) -> None:
    sessions = [FakeSession("x", "a", one), FakeSession("a", "y", other)]
    assert stayed(sessions, "y") == [set(), set()]
