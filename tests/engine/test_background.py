from __future__ import annotations

import os
import threading

import pytest

from edge_agent.engine.background import NICENESS, give_way, run_in_thread


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_thread_that_gives_way_does_so_alone() -> None:
    before = own_niceness()

    def politely() -> int:
        give_way()
        return own_niceness()

    assert run_in_thread(politely) == max(before, NICENESS)
    assert own_niceness() == before


def test_work_in_a_thread_gives_its_result_at_normal_priority() -> None:
    assert run_in_thread(own_niceness) == own_niceness()


def test_what_the_work_raises_reaches_the_caller() -> None:
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run_in_thread(fail)
