"""The control groups of a lab: what keeps its processes together, and limits those of a device.

Limits need the controllers of version 1, but for the core: where there is no set of cores, what is
started on a device is pinned, and stays so unless it decides otherwise. Every device and the host's
commands have a group in the hierarchy of version 2 as well, where there is one, because a process
cannot leave it by itself.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from edge_agent import clock
from lab.errors import LabError
from lab.network import PREFIX
from lab.options import Device

MOUNTS = Path("/proc/mounts")
UNIFIED = "unified"
CORES = "cpuset"
LIMITING = ("cpu", CORES, "memory")
PERIODS_S = (0.01, 0.1)
"""How often the processor time of a quota is dealt out; the longer only where its share of the
shorter would be less than the kernel takes."""
LEAST_QUOTA_S = 0.001
GONE_S = 10.0


def mounted() -> dict[str, Path]:
    """Where each controller is mounted on this machine; see `hierarchies`."""
    return hierarchies(MOUNTS.read_text())


def hierarchies(mounts: str) -> dict[str, Path]:
    """Where each controller is mounted, in the words of /proc/mounts; version 2 is `unified`."""
    found: dict[str, Path] = {}
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.setdefault(UNIFIED, Path(place))
        elif kind == "cgroup":
            for controller in set(options.split(",")) & set(LIMITING):
                found.setdefault(controller, Path(place))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A file of a control group and what is to be in it."""

    controller: str
    file: str
    value: str
    is_optional: bool = False
    """Some kernels lack it."""


def settings(device: Device, usable_cores: Iterable[int]) -> tuple[Setting, ...]:
    """What limits a device, in the order in which it must be written."""
    found: list[Setting] = []
    if device.core is not None:
        found.append(Setting(controller=CORES, file="cpuset.cpus", value=str(device.core)))
    if device.speed < 1:
        cores = 1 if device.core is not None else len(list(usable_cores))
        share = device.speed * cores
        period_s = next((p for p in PERIODS_S if p * share >= LEAST_QUOTA_S), PERIODS_S[-1])
        for file, span_s in (("period", period_s), ("quota", period_s * share)):
            value = str(round(span_s * 1e6))
            found.append(Setting(controller="cpu", file=f"cpu.cfs_{file}_us", value=value))
    if device.memory_bytes is not None:
        value = str(device.memory_bytes)
        found.append(Setting(controller="memory", file="memory.limit_in_bytes", value=value))
        # Without it, a device would go on in swap.
        swap = "memory.memsw.limit_in_bytes"
        found.append(Setting(controller="memory", file=swap, value=value, is_optional=True))
    return tuple(found)


def make(name: str, member: int | str, limits: Sequence[Setting] = ()) -> None:
    """The groups of a device or another member of a lab, with those limits.

    Raises:
        LabError: a controller is missing, or refuses.
    """
    places = mounted()
    # What is started is pinned instead: see `pinning`.
    limits = [s for s in limits if s.controller != CORES or CORES in places]
    controllers = {limit.controller for limit in limits}
    if missing := sorted(controllers - set(places)):
        raise LabError(
            f"found no control groups of version 1 for {', '.join(missing)}: leave out "
            "--speeds and --memory, or mount them under /sys/fs/cgroup"
        )
    made = tuple(
        places[controller] / f"{PREFIX}-{name}-{member}"
        for controller in (UNIFIED, *LIMITING)
        if controller in controllers or (controller == UNIFIED and UNIFIED in places)
    )
    try:
        for folder in made:
            folder.mkdir(exist_ok=True)
            # A set of cores takes no process before it has memory nodes.
            if (nodes := folder / "cpuset.mems").exists():
                nodes.write_text((folder.parent / "cpuset.mems").read_text())
        for limit in limits:
            file = places[limit.controller] / f"{PREFIX}-{name}-{member}" / limit.file
            if not limit.is_optional or file.exists():
                file.write_text(limit.value)
    except OSError as error:
        raise LabError(f"control group {error.filename}: {error.strerror}") from error


def pinning(device: Device) -> int | None:
    """The core to which what is started on a device must be pinned, since no set of cores does."""
    return device.core if CORES not in mounted() else None


def existing(name: str) -> list[Path]:
    """All groups of the lab of that name."""
    return of(name, "*")


def of(name: str, member: int | str) -> list[Path]:
    """The groups of a member of a lab."""
    found = (
        g for mount in set(mounted().values()) for g in mount.glob(f"{PREFIX}-{name}-{member}")
    )
    return sorted(g for g in found if g.is_dir())


def process_ids(groups: Iterable[Path]) -> set[int]:
    """The processes in any of these groups."""
    found: set[int] = set()
    for group in groups:
        # It may be removed before, or while, it is read.
        with suppress(OSError):
            found |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    return found


def leave(groups: Iterable[Path]) -> set[int]:
    """Take this process and those that wait for it out of these groups; all of their ids."""
    own = {os.getpid()} | {parent.pid for parent in psutil.Process().parents()}
    for group in groups:
        for pid in own & process_ids([group]):
            (group.parent / "cgroup.procs").write_text(str(pid))
    return own


def remove(groups: Iterable[Path]) -> None:
    """Remove groups whose processes were killed, once these are gone.

    Raises:
        LabError: one is not.
    """
    until_s = clock.monotonic_s() + GONE_S
    for group in groups:
        while not _is_removed(group):
            if clock.monotonic_s() > until_s:
                left = sorted(process_ids([group]))
                raise LabError(
                    f"control group {group}: still has processes {left}: call down again"
                )
            for pid in process_ids([group]):
                kill(pid)
            clock.sleep_s(0.01)


def kill(pid: int) -> None:
    """End a process at once, unless it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise LabError(f"control group {group}: {error.strerror}") from error
        return False
    return True
