"""What the operating system grants this process and what it sees: cores, memory, load."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from edge_agent import clock
from edge_agent.devices import DeviceState
from edge_agent.telemetry import cgroups

_ROOT: Final = Path("/")
_SETTLE_S: Final = 0.2
_MOST_PIDS_BYTES: Final = 1 << 16

X86_FLAGS: Final = (
    *("sse4_1", "avx", "avx2", "f16c", "fma", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
)
ARM_FLAGS: Final = (
    *("asimd", "asimdhp", "asimddp", "asimdfhm", "i8mm", "bf16"),
    *("sve", "sve2", "svei8mm", "svebf16", "sme", "sme2"),
)
"""Flags of /proc/cpuinfo that decide which kernels ONNX Runtime picks (its MLAS library)."""


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may run on, ascending, without regard to quotas.

    Of the main thread: the calling thread may be pinned to one core.
    """
    return tuple(sorted(os.sched_getaffinity(os.getpid())))


def granted_cores(root: Path = _ROOT) -> tuple[int, ...]:
    """The usable cores, cut down to the cgroup quota rounded down, and never less than one.

    A thread more than the quota would be stopped for a part of every period.
    """
    cores = usable_cores()
    quota = quota_cores(root)
    return cores if quota is None else cores[: max(1, int(quota))]


def quota_cores(root: Path = _ROOT) -> float | None:
    """Processor time per time that the cgroups of this process allow; None if unlimited.

    The smallest quota on the way from our cgroup to the root: `cpu.max` (v2) or
    `cpu.cfs_quota_us` over `cpu.cfs_period_us` (v1).
    """
    return min(cgroups.processor_quotas(root), default=None)


def memory_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory that this process may use: physical, or the cgroup limit if smaller."""
    limits = (limit for limit, _ in cgroups.memory_limits(root))
    return min([int(psutil.virtual_memory().total), *limits])


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Bytes that can still be had without swapping, within every cgroup limit."""
    room = (max(0, limit - used) for limit, used in cgroups.memory_limits(root))
    return min([int(psutil.virtual_memory().available), *room])


def processor(root: Path = _ROOT) -> str:
    """Model name of the processor with the instruction sets that all its cores have.

    Such as `AMD EPYC (sse4_1 avx avx2 f16c fma)`; the same text means that files compiled on one
    run on the other.
    """
    cores = [
        _fields(part)
        for part in cgroups.text_of(root / "proc/cpuinfo").split("\n\n")
        if part.strip()
    ]
    names = sorted({name for core in cores if (name := _core_name(core))})
    sets = [set(text.split()) for core in cores if (text := _flags(core))]
    shared = set.intersection(*sets) if sets else set()
    flags = [flag for flag in (*X86_FLAGS, *ARM_FLAGS) if flag in shared]
    return f"{' + '.join(names) or 'unknown processor'} ({' '.join(flags)})"


def _fields(part: str) -> dict[str, str]:
    split = (line.partition(":") for line in part.splitlines())
    return {key.strip(): value.strip() for key, _, value in split}


def _flags(core: Mapping[str, str]) -> str:
    return core.get("flags", "") or core.get("Features", "")


def _core_name(core: Mapping[str, str]) -> str:
    if name := core.get("model name", ""):
        return name
    if "CPU part" in core:
        return f"implementer {core.get('CPU implementer', '?')} part {core['CPU part']}"
    return ""


def child_processes() -> tuple[int, ...]:
    """Processes that this one started and has not waited for yet; () where the kernel was built
    without such lists."""
    found: list[int] = []
    # There may be a hundred threads, and this is asked often: no more than needed for each.
    for thread in os.listdir("/proc/self/task"):
        try:
            file = os.open(f"/proc/self/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found += map(int, os.read(file, _MOST_PIDS_BYTES).split())
        except OSError:
            continue
        finally:
            os.close(file)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorTime:
    """Seconds of processor time since boot, summed over the usable cores."""

    busy_s: float
    idle_s: float
    own_s: Mapping[int, float]
    """What each watched process has used, by process id."""


def read_processor_time(pids: Iterable[int]) -> ProcessorTime:
    """The counters now; a process that is gone is left out."""
    busy_s = idle_s = 0.0
    per_core = psutil.cpu_times(percpu=True)
    for core in usable_cores():
        t = per_core[core]
        # Time of virtual machines (guest) is part of user already; stolen time was not ours.
        busy_s += t.user + t.nice + t.system + t.irq + t.softirq + t.steal
        idle_s += t.idle + t.iowait
    own_s = {pid: used for pid in pids if (used := _used_s(pid)) is not None}
    return ProcessorTime(busy_s=busy_s, idle_s=idle_s, own_s=own_s)


def _used_s(pid: int) -> float | None:
    try:
        t = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return None
    return float(t.user + t.system + t.children_user + t.children_system)


class OtherLoad:
    """How much of the usable cores all processes but the given ones used between two calls.

    The kernel counts in ticks of 10 ms, so that windows of 0.2 s and more mean something. What a
    watched process used in a window in which it ended is counted as that of others.
    """

    def __init__(
        self,
        pids: Iterable[int],
        read: Callable[[Iterable[int]], ProcessorTime] = read_processor_time,
    ) -> None:
        """Watch `pids`, whose use does not count; the first window begins now."""
        self._pids = tuple(pids)
        self._read = read
        self._last = read(self._pids)

    def watch(self, pids: Iterable[int]) -> None:
        """Watch these from now on. What one that is new among them used in the window that has
        begun counts as that of others."""
        self._pids = tuple(pids)

    def fraction(self) -> float:
        """Share of the processor, 0 to 1, that others used since the last call."""
        last, now = self._last, self._read(self._pids)
        self._last = now
        busy_s = now.busy_s - last.busy_s
        total_s = busy_s + now.idle_s - last.idle_s
        if total_s <= 0:
            return 0.0
        own_s = sum(used - last.own_s.get(pid, used) for pid, used in now.own_s.items())
        return min(1.0, max(0.0, (busy_s - own_s) / total_s))


def state(others: OtherLoad | None = None) -> DeviceState:
    """Free memory, and the load by others since the last call with the same `others`.

    Without `others`, the load by all processes but this one over the next 0.2 s.
    """
    if others is None:
        others = OtherLoad((os.getpid(),))
        clock.sleep_s(_SETTLE_S)
    return DeviceState(free_memory_bytes=free_memory_bytes(), load_fraction=others.fraction())


def process_memory_bytes(pid: int) -> tuple[int, int]:
    """(resident, proportional) memory of a process; pages shared by n count 1/n in the second.

    Where the system does not tell the proportional size, the resident one stands for it.

    Raises: ProcessLookupError if there is no such process.
    """
    try:
        process = psutil.Process(pid)
        resident = int(process.memory_info().rss)
        try:
            return resident, int(process.memory_full_info().pss)
        except (psutil.AccessDenied, AttributeError):
            return resident, resident
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(f"process {pid} is gone") from error
