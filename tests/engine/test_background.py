from __future__ import annotations

import os
import threading

import pytest

from edge_agent.engine.background import NICENESS, run_idle, run_in_thread


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_idle_work_gives_way_and_its_caller_does_not() -> None:
    before = own_niceness()
    assert run_idle(own_niceness) == max(before, NICENESS)
    assert own_niceness() == before


def test_work_in_a_thread_gives_its_result_at_normal_priority() -> None:
    assert run_in_thread(own_niceness) == own_niceness()


def test_what_the_work_raises_reaches_the_caller() -> None:
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run_idle(fail)
