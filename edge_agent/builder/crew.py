"""Threads that run the same thing at the same moment and say how long the round took.

Each runner that is measured has threads of its own, because a thread may be bound to a core for
one configuration and must not be for another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from edge_agent import clock


class Crew:
    """`count` threads that wait for rounds. Use as a context manager."""

    def __init__(self, count: int, prepare: Callable[[], None]) -> None:
        self._task: Callable[[], None] | None = None
        self._start = threading.Barrier(count + 1)
        self._end = threading.Barrier(count + 1)
        self._times_s: list[tuple[float, float]] = [(0.0, 0.0)] * count
        self._errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._work, args=(i, prepare), daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, index: int, prepare: Callable[[], None]) -> None:
        broken: Exception | None = None
        try:
            prepare()
        except Exception as error:
            # Told in the first round: a thread that is missing there would be waited for for ever.
            broken = error
        while True:
            self._start.wait()
            task = self._task
            if task is None:
                return
            started_s = clock.precise_s()
            try:
                if broken is not None:
                    raise broken
                task()
            except Exception as error:
                self._errors.append(error)
            self._times_s[index] = (started_s, clock.precise_s())
            self._end.wait()

    def round_s(self, task: Callable[[], None]) -> float:
        """Run `task` once on every thread at once; seconds from the first start to the last end.

        Raises: what the task raised, or what preparing a thread for it did.
        """
        self._task = task
        self._start.wait()
        self._end.wait()
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error
        return max(end for _, end in self._times_s) - min(start for start, _ in self._times_s)

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task = None
        self._start.wait()
        for thread in self._threads:
            thread.join()
