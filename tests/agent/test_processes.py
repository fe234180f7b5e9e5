"""Children that give way to serving."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from edge_agent.agent.processes import NICENESS, Child, set_session
from edge_agent.engine import background

SESSION = Path("autogroup")


class BusyKernel:
    """A kernel that had other sessions to change the first times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.written: list[str] = []
        self.slept_s = 0.0

    def write(self, file: Path, text: str) -> None:
        assert file == SESSION
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.written.append(text)

    def sleep(self, duration_s: float) -> None:
        self.slept_s += duration_s


def session_of(pid: int) -> str:
    """The session's number and niceness; nothing where the kernel does not group by session."""
    file = Path(f"/proc/{pid}/autogroup")
    return file.read_text().strip() if file.exists() else ""


def test_a_child_that_gives_way_does_so_as_much_as_other_work_beside_serving() -> None:
    child = Child("edge_agent.worker")
    try:
        child.give_way()
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == background.NICENESS == NICENESS
    finally:
        child.end()


def test_the_session_of_a_child_gives_way_with_it_and_that_of_the_agent_does_not() -> None:
    child, own = Child("edge_agent.worker"), session_of(os.getpid())
    try:
        child.give_way()
        assert not own or session_of(child.pid).endswith(f" nice {NICENESS}")
        assert session_of(os.getpid()) == own
    finally:
        child.end()


def test_a_session_that_cannot_be_changed_yet_is_changed_a_little_later() -> None:
    kernel = BusyKernel(refusals=2)
    set_session(SESSION, NICENESS, 5, kernel.write, kernel.sleep)
    assert kernel.written == [str(NICENESS)]
    assert kernel.slept_s == pytest.approx(0.2)


def test_a_kernel_that_stays_busy_is_told_of_and_not_waited_for_any_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel = BusyKernel(refusals=1000)
    with caplog.at_level(logging.WARNING):
        set_session(SESSION, NICENESS, 5, kernel.write, kernel.sleep)
    assert not kernel.written
    assert kernel.slept_s == pytest.approx(0.5)
    assert "could not be set to" in caplog.text


def test_a_kernel_that_does_not_group_by_session_is_left_alone(tmp_path: Path) -> None:
    set_session(tmp_path / "gone" / "autogroup", NICENESS)
    assert not list(tmp_path.iterdir())


def test_a_worker_that_was_opened_in_the_background_serves_at_normal_priority() -> None:
    own = session_of(os.getpid())
    child = Child("edge_agent.worker", ["--background"])
    try:
        child.lower_session()
        assert not own or session_of(child.pid).endswith(f" nice {NICENESS}")
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        child.restore_session()
        assert not own or session_of(child.pid).endswith(" nice 0")
    finally:
        child.end()


def test_the_kernel_ends_a_child_before_the_agent_when_memory_runs_out() -> None:
    child = Child("edge_agent.worker")
    try:
        score, own = (Path(f"/proc/{pid}/oom_score_adj") for pid in (child.pid, os.getpid()))
        assert int(score.read_text()) > int(own.read_text())
    finally:
        child.end()
