from __future__ import annotations

import subprocess
import sys
import threading

from edge_agent.worker.watching import Watch

LIMIT_S = 0.2


def test_a_run_that_ends_in_time_ends_nothing() -> None:
    ended = threading.Event()
    watch = Watch(LIMIT_S, ended.set)
    for _ in range(5):
        with watch.running():
            assert not ended.wait(LIMIT_S / 4)
    assert not ended.wait(2 * LIMIT_S)  # and nothing after the last one


def test_a_run_that_does_not_end_ends_the_process() -> None:
    ended = threading.Event()
    watch = Watch(LIMIT_S, ended.set)
    with watch.running(), watch.running():
        assert ended.wait(20 * LIMIT_S)


def test_runs_in_turn_are_watched_each_on_its_own() -> None:
    ended = threading.Event()
    watch = Watch(LIMIT_S, ended.set)
    for _ in range(8):  # together they take twice the limit
        with watch.running():
            assert not ended.wait(LIMIT_S / 4)
    with watch.running():
        assert ended.wait(20 * LIMIT_S)


def test_the_process_ends_although_a_thread_waits_for_ever() -> None:
    script = (
        "import threading; from edge_agent.worker.watching import Watch\n"
        "with Watch(0.1).running(): threading.Event().wait()"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=20, check=False)
    assert ended.returncode == -9
