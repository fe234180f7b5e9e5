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
        self._folder = Path(f"/proc/{pid}")
        self._since_s = clock.monotonic_s()
        self._first_s = self._had_s = self._read_s()
        self.windows = 0
        """In a row in which it starved."""

    @property
    def spent_s(self) -> float:
        """Seconds of a core that it had from the start to the last look."""
        return self._had_s - self._first_s

    def is_starving(self) -> bool:
        """Whether it wants to run and got next to nothing since the last look that was a window
        ago. One that is stopped, waits or has ended does not want to."""
        now_s = clock.monotonic_s()
        if now_s - self._since_s < WINDOW_S:
            return False
        has_s = self._read_s()
        share = (has_s - self._had_s) / (now_s - self._since_s)
        self._since_s, self._had_s = now_s, has_s
        is_starving = share < LEAST_SHARE and self._wants_to_run()
        self.windows = self.windows + 1 if is_starving else 0
        return is_starving

    def _read_s(self) -> float:
        """Seconds of a core that it has had, with all its threads."""
        fields = _fields(self._folder)
        ticks = int(fields[_USER]) + int(fields[_SYSTEM]) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def _wants_to_run(self) -> bool:
        return any(
            fields[_STATE] == _RUNNABLE
            for fields in map(_fields, self._folder.glob("task/*"))
            if fields
        )


def _fields(folder: Path) -> list[str]:
    """Of a process or thread, those behind its name; none if it has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
