"""How a run that has begun is stopped from another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edge_agent.engine.runtime import load_runtime
from edge_agent.errors import DeadlineExceeded, EdgeAgentError


class Cancellation:
    """Stops the one request it was made for: make one per request.

    ONNX Runtime looks at it between two nodes, so one long node runs to its end.
    Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._because: EdgeAgentError | None = None
        self._options: Any = None

    def cancel(self, because: EdgeAgentError | None = None) -> None:
        """Stop the run, which then raises `because` (by default DeadlineExceeded)."""
        with self._lock:
            if self._because is None:
                self._because = because or DeadlineExceeded("the deadline passed while running")
            if self._options is not None:
                self._options.terminate = True

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._because is not None

    def check(self) -> None:
        """Raise the reason if `cancel` was called; else do nothing."""
        if self._because is not None:
            raise self._because

    def run_options(self) -> Any:
        """The RunOptions of this request, shared by all sessions that it passes."""
        with self._lock:
            if self._options is None:
                self._options = load_runtime().RunOptions()
                # The exception says it all; a log line for every cancelled run would flood stderr.
                self._options.log_severity_level = 4
                self._options.terminate = self._because is not None
            return self._options


@contextmanager
def cancelled_after(limit_s: float) -> Iterator[Cancellation]:
    """A Cancellation for runs inside of the block, which are stopped when `limit_s` are over."""
    cancel = Cancellation()
    because = DeadlineExceeded(f"the run took longer than {limit_s:g} s")
    timer = threading.Timer(limit_s, cancel.cancel, (because,))
    timer.start()
    try:
        yield cancel
    finally:
        timer.cancel()
        timer.join()
