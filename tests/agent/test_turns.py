"""Builders take turns, and who does not want to build any more does not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edge_agent.agent.turns import Turn

WAIT_S = 10.0


class Waiter:
    """A thread that wants a turn."""

    def __init__(self, turn: Turn, is_over: Callable[[], bool]) -> None:
        self.got: bool | None = None
        self.has_ended = threading.Event()
        self.may_end = threading.Event()
        self._turn, self._is_over = turn, is_over
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._turn.held(self._is_over) as self.got:
            self.may_end.wait(WAIT_S)
        self.has_ended.set()


def test_one_at_a_time() -> None:
    turn = Turn()
    with turn.held(lambda: False) as got:
        assert got
        second = Waiter(turn, lambda: False)
        second.may_end.set()
        assert not second.has_ended.wait(0.1)
    assert second.has_ended.wait(WAIT_S)
    assert second.got is True


def test_who_gives_up_leaves_the_turn_with_whom_has_it() -> None:
    turn = Turn()
    over = threading.Event()
    with turn.held(lambda: False):
        gone, staying = Waiter(turn, over.is_set), Waiter(turn, lambda: False)
        gone.may_end.set()
        over.set()
        turn.look_again()
        assert gone.has_ended.wait(WAIT_S)
        assert gone.got is False
        assert staying.got is None  # it was not set free by the one that left
    staying.may_end.set()
    assert staying.has_ended.wait(WAIT_S)
    assert staying.got is True


def test_who_comes_again_goes_behind_who_waits() -> None:
    turn = Turn()
    with turn.held(lambda: False):
        waiting = Waiter(turn, lambda: False)
        waiting.may_end.set()
        assert not waiting.has_ended.wait(0.2)
    with turn.held(lambda: False):
        assert waiting.got is True


def test_a_turn_ends_with_an_error_in_it() -> None:
    turn = Turn()
    try:
        with turn.held(lambda: False):
            raise KeyError
    except KeyError:
        pass
    with turn.held(lambda: True) as got:
        assert got
