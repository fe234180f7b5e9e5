"""How far a request is, told from time to time: each message wakes the agent, which serves."""

from __future__ import annotations

import threading
from typing import Self

from edge_agent.planner.answering import Report

PERIOD_S = 0.25
"""What takes less is told nothing of."""


class Telling:
    """Hands on, every `period_s`, how far it is by then, if that is news: by a thread of its own,
    for a step may take long after it was begun. Use as a context manager; what comes after the
    block is sent after everything that is told."""

    def __init__(self, tell: Report, period_s: float = PERIOD_S) -> None:
        self._tell = tell
        self._period_s = period_s
        self._present: tuple[float, str] | None = None
        self._is_over = threading.Event()
        self._telling = threading.Thread(target=self._tell_on, name="telling", daemon=True)

    def report(self, fraction: float, what: str) -> None:
        """How far it is, 0 to 1, and what comes next."""
        self._present = fraction, what

    def _tell_on(self) -> None:
        told = None
        while not self._is_over.wait(self._period_s):
            present = self._present
            if present is not None and present != told:
                self._tell(*present)
                told = present

    def __enter__(self) -> Self:
        self._telling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._telling.join()
