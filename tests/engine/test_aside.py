"""How it is found out whether threads go on while a session is created."""

from __future__ import annotations

import sys

from edge_agent import clock
from edge_agent.engine.aside import opens_aside, paused_fraction
from edge_agent.engine.runtime import CPU, runtime_version

WORK_S = 0.1


def spin() -> None:
    """Keeps the interpreter, if its switch interval is long."""
    until_s = clock.precise_s() + WORK_S
    while clock.precise_s() < until_s:
        pass


def test_work_that_lets_threads_run_hardly_pauses_them() -> None:
    assert min(paused_fraction(lambda: clock.sleep_s(WORK_S)) for _ in range(5)) < 0.2


def test_work_that_keeps_the_interpreter_pauses_them_all_the_time() -> None:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(10 * WORK_S)
    try:
        assert paused_fraction(spin) > 0.9
    finally:
        sys.setswitchinterval(before_s)


def test_the_runtime_is_found_as_its_version_is_known_to_be() -> None:
    version = tuple(int(part) for part in runtime_version().split(".")[:2])
    if version <= (1, 27):
        assert not opens_aside(CPU)
    elif version == (1, 32):
        assert opens_aside(CPU)
