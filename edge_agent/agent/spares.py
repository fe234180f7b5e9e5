"""Worker processes that wait to be used: the start of Python and ONNX Runtime takes longer than
opening most models, half a second and more on a small device. One is started where it will likely
be needed soon, and ended if it was not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge_agent.agent.processes import Child
from edge_agent.telemetry.host import free_memory_bytes

KEEP_S: Final = 300.0
"""One that is not used is ended after so long."""
AFTER_S: Final = 3.0
"""Where one was used, the next one is started so much later: first what it was used for."""
LEAST_FREE_BYTES: Final = 512 << 20
"""With less memory available there is none: it takes 50 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """What a worker is started for."""

    is_background: bool = False
    """Whether it gives way to what serves until it does itself."""
    is_divided: bool = False
    """Whether what it opens is of a model that is divided over devices."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """For `edge_agent.worker`."""
        background = ("--background",) if self.is_background else ()
        return (*background, *(("--divided",) if self.is_divided else ()))


class Spares:
    """At most one of each kind. Any thread may use it."""

    def __init__(self, start: Callable[[WorkerKind], Child]) -> None:
        """`start` starts one."""
        self._start = start
        self._changing = threading.Lock()
        self._waiting: dict[WorkerKind, Child] = {}
        self._timers: dict[WorkerKind, threading.Timer] = {}
        self._is_stopped = False

    def expect(self, kind: WorkerKind, keep_s: float = KEEP_S) -> None:
        """One will likely be needed within `keep_s`."""
        with self._changing:
            if self._is_stopped or free_memory_bytes() < LEAST_FREE_BYTES:
                return
            if not self._is_there(kind):
                self._waiting[kind] = child = self._start(kind)
                # From outside, whatever it is for: it must not disturb what runs.
                child.lower_session()
            self._later(kind, keep_s, self.give_up)

    def take(self, kind: WorkerKind, *, is_next_expected: bool = False) -> Child | None:
        """The one that waits, which is the caller's now; None: there is none. Where the next one is
        expected, it is started soon."""
        with self._changing:
            child = self._waiting.pop(kind) if self._is_there(kind) else None
            self._forget_timer(kind)
            if is_next_expected and not self._is_stopped:
                self._later(kind, AFTER_S, self.expect)
        if child is not None and not kind.is_background:
            child.restore_session()
        return child

    def give_up(self, kind: WorkerKind) -> None:
        """It was not needed."""
        with self._changing:
            child = self._waiting.pop(kind, None)
            self._forget_timer(kind)
        if child is not None:
            child.end()

    def stop(self) -> None:
        """End all of them, and start no more."""
        with self._changing:
            self._is_stopped = True
            kinds = {*self._waiting, *self._timers}
        for kind in kinds:
            self.give_up(kind)

    def _is_there(self, kind: WorkerKind) -> bool:
        child = self._waiting.get(kind)
        if child is not None and child.process.poll() is not None:
            # Ended by whoever needed memory, or by hand.
            self._waiting.pop(kind).release()
            child = None
        return child is not None

    def _later(self, kind: WorkerKind, after_s: float, do: Callable[[WorkerKind], None]) -> None:
        self._forget_timer(kind)
        self._timers[kind] = timer = threading.Timer(after_s, do, (kind,))
        timer.daemon = True
        timer.name = "spare"
        timer.start()

    def _forget_timer(self, kind: WorkerKind) -> None:
        timer = self._timers.pop(kind, None)
        if timer is not None:
            timer.cancel()
