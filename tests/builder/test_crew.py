"""A crew: as many threads as asked, in rounds, with the errors of any."""

from __future__ import annotations

import threading

import pytest

from edge_agent import clock
from edge_agent.builder.crew import Crew


def test_every_thread_is_prepared_once_and_runs_the_task_once_a_round() -> None:
    prepared: list[int] = []
    ran: list[int] = []
    with Crew(3, lambda: prepared.append(threading.get_ident())) as crew:
        for _ in range(4):
            crew.round_s(lambda: ran.append(threading.get_ident()))
    assert len(set(prepared)) == len(prepared) == 3
    assert sorted(ran) == sorted(prepared * 4)


def test_a_round_takes_as_long_as_its_slowest_thread() -> None:
    turn = iter([0.0, 0.05])
    lock = threading.Lock()

    def task() -> None:
        with lock:
            duration_s = next(turn)
        clock.sleep_s(duration_s)

    with Crew(2, lambda: None) as crew:
        assert 0.05 <= crew.round_s(task) < 1.0


def test_the_threads_of_a_round_run_at_the_same_time() -> None:
    together = threading.Barrier(2)
    with Crew(2, lambda: None) as crew:
        crew.round_s(lambda: together.wait(10.0) and None)


def test_what_a_task_raises_is_raised_and_the_crew_goes_on() -> None:
    def fail() -> None:
        raise ValueError("no")

    with Crew(2, lambda: None) as crew:
        with pytest.raises(ValueError, match="no"):
            crew.round_s(fail)
        assert crew.round_s(lambda: None) >= 0.0


def test_what_preparing_raises_is_raised_in_the_round_instead_of_waiting_for_ever() -> None:
    def fail() -> None:
        raise OSError("no such core")

    with Crew(2, fail) as crew, pytest.raises(OSError, match="no such core"):
        crew.round_s(lambda: None)


def test_a_crew_that_is_left_by_an_error_ends_its_threads() -> None:
    with pytest.raises(KeyError), Crew(2, lambda: None):
        raise KeyError("elsewhere")
