"""What every test gets: nothing may be left running or open, and the fetched models."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from zmq.utils.garbage import GarbageCollectorThread

from edge_agent import clock
from models.fetch import cached, default_cache

# How long an example takes depends on what else runs on the machine.
settings.register_profile("edge-agent", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edge-agent")

SETTLE_S = 2.0
"""What a test ended may need a moment to be gone."""


def pytest_collection_finish() -> None:
    """Have the search for garbage pass over what was imported and collected, which stays to the
    end: with it, each search took a quarter of a second, and tests with threads end with one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process, a socket or an open file."""
    before = _running()
    yield
    until_s = clock.monotonic_s() + SETTLE_S
    while left := _running() - before:
        if clock.monotonic_s() > until_s:
            pytest.fail(f"left behind: {', '.join(sorted(left))}")
        gc.collect()
        clock.sleep_s(0.01)


def _running() -> set[str]:
    return _threads() | _children() | _open_files()


def _threads() -> set[str]:
    # One of pyzmq's, which tells whose memory libzmq has sent, serves the whole run.
    found = [t for t in threading.enumerate() if not isinstance(t, GarbageCollectorThread)]
    return {f"thread {t.name} ({t.ident})" for t in found}


def _children() -> set[str]:
    found: set[str] = set()
    if not _may_have_children():
        return found
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.NoSuchProcess:
            continue
        # One helper of multiprocessing serves the whole run and ends with it.
        if "multiprocessing.resource_tracker" not in line:
            found.add(f"process {child.pid} {line}")
    return found


def _may_have_children() -> bool:
    """Asked before the search through all processes, which takes milliseconds for each test."""
    lists = list(Path("/proc/self/task").glob("*/children"))
    # Some kernels have no such lists, and a thread may end meanwhile.
    with suppress(FileNotFoundError):
        return not lists or any(children.read_text() for children in lists)
    return True


def _open_files() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        is_file = target.startswith("/") and not target.startswith(("/dev/", "/proc/"))
        if is_file or target.startswith("socket:"):
            found.add(f"descriptor {descriptor.name} of {target}")
    return found


@pytest.fixture(scope="session")
def zoo() -> dict[str, Path]:
    """The models that `tools/zoo` has fetched, by name; skips the test where there are none.

    For tests marked `zoo`; their inputs come from `models.inputs.standard_inputs`.
    """
    found = cached(default_cache())
    if not found:
        pytest.skip("no models: run tools/zoo")
    return found
