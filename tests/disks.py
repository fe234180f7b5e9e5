"""Disks that are easily filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.running import wait_until


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own of that size; skips the test where none can be made."""
    if os.getuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        wait_until(
            lambda: not subprocess.run(["umount", str(folder)], check=False).returncode,
            "the file system is let go",
        )


def resize(folder: Path, size_bytes: int) -> None:
    """Give a small disk another size."""
    options = f"remount,size={size_bytes}"
    subprocess.run(["mount", "-o", options, str(folder)], check=True)
