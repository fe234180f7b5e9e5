"""Who uses an entry of the pool: a shared lock on its manifest, which dies with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Self

from edge_agent.store.folder import storage_errors


class Lease:
    """The use of one entry, until it is released or this process ends."""

    def __init__(self, manifest: Path, fd: int) -> None:
        """Use `take_lease`."""
        self.manifest = manifest
        self._fd = fd

    def release(self) -> None:
        """End the use. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take_lease(manifest: Path) -> Lease | None:
    """The use of an entry, which is noted as its last; None if there is no such entry.

    Raises: StorageError.
    """
    fd = _locked(manifest, fcntl.LOCK_SH)
    if fd is None:
        return None
    # A hint for eviction and no more: a file system that is mounted read-only serves all the same.
    with contextlib.suppress(OSError):
        os.utime(fd)
    return Lease(manifest, fd)


def take_alone(manifest: Path) -> Lease | None:
    """The use of an entry that nobody else uses, or can begin to until this is released; None if
    somebody does, or if there is no such entry.

    Raises: StorageError.
    """
    try:
        fd = _locked(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return None if fd is None else Lease(manifest, fd)


def _locked(manifest: Path, lock: int) -> int | None:
    with storage_errors(manifest, "open"):
        try:
            fd = os.open(manifest, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
    try:
        fcntl.flock(fd, lock)
        # It may have been removed, or replaced by another one, before the lock was ours.
        found = os.fstat(fd)
        is_there = os.path.samestat(found, manifest.stat())
    except FileNotFoundError:
        is_there = False
    except BaseException:
        os.close(fd)
        raise
    if is_there:
        return fd
    os.close(fd)
    return None
