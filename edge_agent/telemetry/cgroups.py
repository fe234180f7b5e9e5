"""Where the limits of our control groups stand, in both versions of the kernel's interface.

A container's limits are those of its own group and of every group above it. Files and formats:
https://docs.kernel.org/admin-guide/cgroup-v2.html and .../cgroup-v1/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_V2: Final = ""


def processor_quotas(root: Path) -> Iterator[float]:
    """Every processor quota above us, in cores; `root` is where /proc and /sys are found."""
    yield from _quotas_v2(root)
    yield from _quotas_v1(root)


def _quotas_v2(root: Path) -> Iterator[float]:
    for folder in _own_cgroups(root, _V2):
        quota, _, period_us = text_of(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period_us.strip().isdigit():
            yield int(quota) / int(period_us)


def _quotas_v1(root: Path) -> Iterator[float]:
    for folder in _own_cgroups(root, "cpu"):
        quota_us = _number(folder / "cpu.cfs_quota_us")
        period_us = _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us:
            yield quota_us / period_us


def memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of every cgroup above us that has a limit.

    The kernel gives back file pages that nobody used lately, so they do not count as used.
    """
    for controller, limit_file, used_file, reclaimable in (
        (_V2, "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _own_cgroups(root, controller):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None:
                stat = dict(_pairs(text_of(folder / "memory.stat")))
                yield limit, max(0, used - stat.get(reclaimable, 0))


def _own_cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of our cgroup and of all above it, for a v1 controller, or _V2."""
    member = _membership(root, controller)
    mount = _mount(root, controller)
    if member is None or mount is None:
        return
    point, mounted = mount
    top = root / point.lstrip("/")
    # Inside a container the mount may show only our own part of the tree, under its root.
    below = member.removeprefix(mounted) if mounted != "/" else member
    folder = top / below.lstrip("/")
    if not folder.is_dir():
        folder = top
    while True:
        yield folder
        if folder == top:
            return
        folder = folder.parent


def _membership(root: Path, controller: str) -> str | None:
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" if controller == _V2 else controller in controllers.split(","):
            return path
    return None


def _mount(root: Path, controller: str) -> tuple[str, str] | None:
    """(mount point, the cgroup that is mounted there)."""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        mounted, point = fields.split(" ")[3:5]
        if controller == _V2 and kind == "cgroup2":
            return point, mounted
        if controller and kind == "cgroup" and controller in re.split(r"[ ,]", options):
            return point, mounted
    return None


def text_of(path: Path) -> str:
    """The content of a file of the kernel; "" if it cannot be read."""
    try:
        # As `read_text` does, in half of the time: while peers are there, this is asked often.
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """The whole number in a file; None if there is none, as in "max" or -1 for no limit."""
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if value.isdigit():
            yield key, int(value)
