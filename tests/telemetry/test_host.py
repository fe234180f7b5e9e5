from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from edge_agent import clock
from edge_agent.telemetry import host
from edge_agent.telemetry.host import OtherLoad, ProcessorTime

GIB = 1 << 30

X86 = """processor : 0
model name : Fast 9000
flags : fpu avx2 sse4_1 avx fma avx512f

processor : 1
model name : Fast 9000
flags : fpu fma avx2 avx sse4_1
"""
BIG_LITTLE = """processor : 0
Features : fp asimd asimddp bf16
CPU implementer : 0x41
CPU part : 0xd46

processor : 1
Features : fp asimd asimddp
CPU implementer : 0x41
CPU part : 0xd47

Hardware : Board
"""


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """A root whose process is in the v2 group /a/b, two levels down."""
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    mount = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    write(tmp_path, "proc/self/mountinfo", mount)
    (tmp_path / "sys/fs/cgroup/a/b").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A root in a container: its mounts show the group /docker/x as their own root."""
    groups = "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x/y\n0::/\n"
    write(tmp_path, "proc/self/cgroup", groups)
    mounts = (
        "31 30 0:27 /docker/x /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "32 30 0:28 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    )
    write(tmp_path, "proc/self/mountinfo", mounts)
    (tmp_path / "sys/fs/cgroup/cpu,cpuacct/y").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    return tmp_path


def test_no_limits_are_found_where_there_are_none(tmp_path: Path) -> None:
    assert host.quota_cores(tmp_path) is None
    assert host.granted_cores(tmp_path) == host.usable_cores()
    assert host.memory_bytes(tmp_path) == psutil.virtual_memory().total


def test_the_smallest_quota_on_the_way_up_counts(v2: Path) -> None:
    write(v2, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert host.quota_cores(v2) is None
    write(v2, "sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    assert host.quota_cores(v2) == 1.5
    write(v2, "sys/fs/cgroup/a/b/cpu.max", "50000 100000\n")
    assert host.quota_cores(v2) == 0.5
    assert host.granted_cores(v2) == host.usable_cores()[:1]


def test_a_quota_of_the_first_version_counts_inside_a_container(v1: Path) -> None:
    write(v1, "sys/fs/cgroup/cpu,cpuacct/y/cpu.cfs_quota_us", "-1\n")
    write(v1, "sys/fs/cgroup/cpu,cpuacct/y/cpu.cfs_period_us", "100000\n")
    assert host.quota_cores(v1) is None
    write(v1, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n")
    write(v1, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert host.quota_cores(v1) == 2.5


def test_memory_limits_of_both_versions_count_and_idle_file_pages_do_not(v2: Path) -> None:
    write(v2, "sys/fs/cgroup/a/memory.max", f"{GIB}\n")
    write(v2, "sys/fs/cgroup/a/memory.current", f"{GIB // 2}\n")
    write(v2, "sys/fs/cgroup/a/memory.stat", f"anon 5\ninactive_file {GIB // 4}\n")
    write(v2, "sys/fs/cgroup/a/b/memory.max", "max\n")
    assert host.memory_bytes(v2) == GIB
    assert host.free_memory_bytes(v2) == GIB * 3 // 4


def test_a_memory_limit_of_the_first_version_counts(v1: Path) -> None:
    write(v1, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    write(v1, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GIB + 5}\n")
    assert host.memory_bytes(v1) == GIB
    assert host.free_memory_bytes(v1) == 0


def test_a_processor_is_named_with_what_all_its_cores_have(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", X86)
    assert host.processor(tmp_path) == "Fast 9000 (sse4_1 avx avx2 fma)"
    write(tmp_path, "proc/cpuinfo", BIG_LITTLE)
    parts = "implementer 0x41 part 0xd46 + implementer 0x41 part 0xd47"
    assert host.processor(tmp_path) == f"{parts} (asimd asimddp)"


def test_this_processor_has_a_name() -> None:
    assert "unknown" not in host.processor()
    assert host.processor() == host.processor()


class Counters:
    """Processor times that a test sets."""

    def __init__(self) -> None:
        self.now = ProcessorTime(busy_s=100, idle_s=50, own_s={1: 10, 2: 20})

    def __call__(self, pids: Iterable[int]) -> ProcessorTime:
        assert tuple(pids) == (1, 2)
        return self.now


def test_what_the_watched_processes_use_is_no_other_load() -> None:
    counters = Counters()
    others = OtherLoad((1, 2), counters)
    counters.now = ProcessorTime(busy_s=106, idle_s=54, own_s={1: 13, 2: 22})
    assert others.fraction() == pytest.approx(0.1)
    counters.now = ProcessorTime(busy_s=110, idle_s=54, own_s={1: 15, 2: 24})
    assert others.fraction() == 0.0
    counters.now = ProcessorTime(busy_s=112, idle_s=54, own_s={1: 15})
    assert others.fraction() == 1.0
    assert others.fraction() == 0.0


BUSY = "import time; t = time.perf_counter()\nwhile time.perf_counter() - t < 0.4: pass"


def test_a_busy_process_is_seen_unless_it_is_watched() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
        unwatched, watched = OtherLoad(()), OtherLoad((busy.pid,))
        busy_until_s = clock.monotonic_s() + 0.3
        while clock.monotonic_s() < busy_until_s:
            clock.sleep_s(0.05)
        with_it, without_it = unwatched.fraction(), watched.fraction()
    share = 1 / len(host.usable_cores())
    assert with_it > 0.5 * share
    assert without_it < with_it


def test_the_state_of_this_device_is_sane() -> None:
    state = host.state(OtherLoad(()))
    assert 0 < state.free_memory_bytes <= host.memory_bytes()
    assert 0 <= state.load_fraction <= 1


def test_memory_of_a_process_is_resident_and_proportional() -> None:
    resident, proportional = host.process_memory_bytes(os.getpid())
    assert 0 < proportional <= resident


def test_a_process_that_is_gone_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as done:
        pass
    with pytest.raises(ProcessLookupError, match=f"process {done.pid} is gone"):
        host.process_memory_bytes(done.pid)


def test_children_that_run_are_known_and_those_that_ended_are_not() -> None:
    before = host.child_processes()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert set(host.child_processes()) - set(before) == {child.pid}
        child.kill()
    assert host.child_processes() == before


def test_what_a_process_uses_is_not_that_of_others_once_it_is_watched() -> None:
    times = iter(
        [
            host.ProcessorTime(busy_s=0, idle_s=0, own_s={}),
            host.ProcessorTime(busy_s=1, idle_s=1, own_s={}),
            host.ProcessorTime(busy_s=2, idle_s=2, own_s={7: 5}),
            host.ProcessorTime(busy_s=3, idle_s=3, own_s={7: 6}),
        ]
    )
    others = host.OtherLoad((), read=lambda _pids: next(times))
    assert others.fraction() == 0.5
    others.watch((7,))
    assert others.fraction() == 0.5
    assert others.fraction() == 0.0
