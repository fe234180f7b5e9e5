"""How one thread asks another one and waits for what it says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def answering(question: Callable[[], T]) -> tuple[Future[T], Callable[[], None]]:
    """Where the answer will be, and what the other thread is to run: the answer is then what
    `question` returns, or raises what it raises."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    return answer, run
