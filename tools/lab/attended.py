"""Runs one command on the host while a lab is up, and lets no signal keep the lab from being
removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from edge_agent import clock
from lab.labs import HOST, Lab

GRACE_S = 10.0
"""For the command to end after a signal that should end it."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal came while a lab was made."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number
        super().__init__(f"ended by {signal.Signals(number).name}: nothing of the lab is left")


class Attended:
    """Takes the signals that would end this process while a `with` block lasts.

    Before the command runs, the first of them raises `Stopped`; while it runs, they are passed on
    to it; afterwards, when the lab is removed, they change nothing.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[Any] | None = None
        self._is_ending = False
        self._until_s: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._take) for number in ENDING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def run(self, lab: Lab, command: Sequence[str]) -> int:
        """Run the command in a lab that is up; its exit code, 128 and more if a signal ended it."""
        self._process = lab.popen(HOST, command)
        try:
            while True:
                try:
                    code = self._process.wait(0.1)
                    return code if code >= 0 else 128 - code
                except subprocess.TimeoutExpired:
                    if self._until_s is not None and clock.monotonic_s() > self._until_s:
                        self._process.kill()
        finally:
            self._is_ending = True

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._is_ending:
            return
        if self._process is None:
            self._is_ending = True
            raise Stopped(number)
        self._until_s = self._until_s or clock.monotonic_s() + GRACE_S
        # The terminal sends Ctrl-C to the command too; twice would break off how it ends.
        if not (number == signal.SIGINT and _is_in_foreground()):
            self._process.send_signal(number)


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
