"""What the kernel makes of slices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edge_agent.agent.slices import LONGEST_S, SHORTEST_S, set_slice, slice_s
from tests.system.running import KNOWS_SLICES

STARTS_THREAD = """
import sys, threading
sys.stdin.readline()
threading.Thread(target=sys.stdin.read).start()
print("started", flush=True)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", STARTS_THREAD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("seconds", [SHORTEST_S, LONGEST_S])
def test_a_slice_holds_for_threads_that_start_later_and_changes_nothing_else(
    process: subprocess.Popen[str], seconds: float
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    os.setpriority(os.PRIO_PROCESS, process.pid, 3)
    set_slice(process.pid, seconds)
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "started\n"
    threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
    assert len(threads) == 2
    for thread in threads:
        if KNOWS_SLICES:
            assert slice_s(thread) == pytest.approx(seconds)
        assert os.sched_getscheduler(thread) == os.SCHED_OTHER
        assert os.getpriority(os.PRIO_PROCESS, thread) == 3


def test_a_slice_outlives_another_policy(process: subprocess.Popen[str]) -> None:
    set_slice(process.pid, LONGEST_S)
    os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    if KNOWS_SLICES:
        assert slice_s(process.pid) == pytest.approx(LONGEST_S)
    assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE


def test_no_slice_is_given_to_who_is_not_there() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    with pytest.raises(ProcessLookupError):
        set_slice(gone.pid, LONGEST_S)


def test_no_other_machine_is_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(OSError, match="the numbers of system calls on riscv64 are not known"):
        set_slice(os.getpid(), LONGEST_S)
