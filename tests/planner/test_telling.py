"""How far the planner is, told from time to time."""

from __future__ import annotations

import queue

from edge_agent.planner.telling import Telling

WAIT_S = 10.0


def test_the_present_state_is_told_once_and_what_was_passed_quickly_is_not() -> None:
    told: queue.Queue[tuple[float, str]] = queue.Queue()
    with Telling(lambda fraction, what: told.put((fraction, what)), 0.05) as telling:
        telling.report(0.0, "first")
        telling.report(0.1, "second")
        assert told.get(timeout=WAIT_S) == (0.1, "second")
        telling.report(0.9, "last")
        assert told.get(timeout=WAIT_S) == (0.9, "last")
    assert told.empty()


def test_of_what_ends_soon_nothing_is_told() -> None:
    told: list[str] = []
    with Telling(lambda _, what: told.append(what), WAIT_S) as telling:
        telling.report(0.0, "first")
    assert told == []


def test_nothing_is_told_after_the_end() -> None:
    told: list[str] = []
    with Telling(lambda _, what: told.append(what), 0.001) as telling:
        pass
    telling.report(0.5, "too late")
    assert told == []
