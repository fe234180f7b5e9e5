"""Whether a process that gives way to all others gets any of the processor.

Under SCHED_IDLE a process gets about 0.3 % of a core that somebody else wants all the time, so that
even the start of Python, a third of a second, takes minutes there.
"""

from __future__ import annotations

import os
from pathlib import Path

from edge_agent import clock

WINDOW_S = 1.0
"""It is looked at over so long, so that a pause of the others is not taken for peace."""
LEAST_SHARE = 0.1
"""Of one core: with less it starves."""
_RUNNABLE = "R"
_STATE, _USER, _SYSTEM = 0, 11, 12
"""Fields of /proc/PID/stat behind the name."""


class Hunger:
    """What one process gets of the processor from one look to the next."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/stat")
        self._since_s = clock.monotonic_s()
        self._had_s, _ = self._read()

    def is_starving(self) -> bool:
        """Whether it wants to run and got next to nothing since the last look that was a window
        ago. One that is stopped, waits or has ended does not want to."""
        now_s = clock.monotonic_s()
        if now_s - self._since_s < WINDOW_S:
            return False
        has_s, state = self._read()
        share = (has_s - self._had_s) / (now_s - self._since_s)
        self._since_s, self._had_s = now_s, has_s
        return state == _RUNNABLE and share < LEAST_SHARE

    def _read(self) -> tuple[float, str]:
        """Seconds of a core that it has had, and its state."""
        try:
            fields = self._file.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            return 0.0, ""
        ticks = int(fields[_USER]) + int(fields[_SYSTEM])
        return ticks / os.sysconf("SC_CLK_TCK"), fields[_STATE]
