"""Who owns a folder, known by its process id, and who may change what several processes use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from edge_agent.errors import AlreadyRunning
from edge_agent.store.folder import make_folder, storage_errors

_NAME = "lock"


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Keep other processes, and other threads, out of the block; waits until they have left it.

    `path` is made if it is missing, and never removed. Raises: StorageError.
    """
    with storage_errors(path, "lock"):
        fd = _opened(path)
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def exclusively_now(path: Path) -> Iterator[bool]:
    """`exclusively` that does not wait: whether nobody else is in such a block. Raises:
    StorageError.
    """
    with storage_errors(path, "lock"):
        fd = _opened(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_ours = False
    else:
        is_ours = True
    try:
        yield is_ours
    finally:
        os.close(fd)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


class FolderLock:
    """The ownership of one folder, for as long as this object holds it or its process lives.

    The kernel drops the lock with the process, so a file that a killed one left is no obstacle.
    The file itself is never removed: a second process could else lock a file with no name while
    a third one locks its successor.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises: AlreadyRunning, naming the process that has it; StorageError.
        """
        assert self._fd < 0, "acquired twice"
        make_folder(self._folder)
        path = self._folder / _NAME
        with storage_errors(path, "open"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            self._take(fd)
            with storage_errors(path, "write"):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _take(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            # Empty for the instant between the other's lock and its write.
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise AlreadyRunning(
                f"{self._folder}: is in use by the agent with process id {holder}; "
                "stop that one, or choose another with --state, --socket, EDGE_AGENT_STATE or "
                "EDGE_AGENT_SOCKET"
            ) from error

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
