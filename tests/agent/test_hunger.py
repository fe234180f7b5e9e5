"""A process starves that wants to run and may not; nobody else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from edge_agent import clock
from edge_agent.agent import hunger
from edge_agent.agent.hunger import Hunger

BUSY = "while True: pass"
WAITING = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunger, "WINDOW_S", 0.3)


@contextmanager
def running(code: str) -> Iterator[int]:
    """A process in our session, on one core."""
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", code]) as process:
        try:
            clock.sleep_s(0.3)
            yield process.pid
        finally:
            process.kill()


def starves(pid: int) -> bool:
    looking = Hunger(pid)
    assert not looking.is_starving()
    clock.sleep_s(0.4)
    return looking.is_starving()


def test_one_that_may_not_run_beside_another_starves() -> None:
    with ExitStack() as stack:
        pid = stack.enter_context(running(BUSY))
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        stack.enter_context(running(BUSY))
        looking = Hunger(pid)
        for window in (1, 2):
            clock.sleep_s(0.4)
            assert looking.is_starving()
            assert looking.windows == window
        assert looking.spent_s < 0.2


@pytest.mark.parametrize("code", [BUSY, WAITING])
def test_one_that_is_stopped_or_waits_does_not(code: str) -> None:
    with running(code) as pid:
        if code == BUSY:
            os.kill(pid, signal.SIGSTOP)
        assert not starves(pid)


def test_one_that_has_ended_does_not() -> None:
    with running(WAITING) as pid:
        os.kill(pid, signal.SIGKILL)
        assert not starves(pid)
    assert not starves(pid)
