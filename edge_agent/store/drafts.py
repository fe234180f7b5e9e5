"""Graphs in the pool's folder that are no entries: parts of models on their way to be compiled.

They must lie there, because ONNX Runtime maps tensors only from below the folder of the graph.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Self

from edge_agent.store.folder import entries, storage_errors

_PREFIX = ".part-"
_LOCK_SUFFIX = ".lock"


class Drafts:
    """Files of one process under names of its own; when they are not needed any more, or their
    process is dead, they are removed. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Raises: StorageError."""
        self._folder = folder
        while True:
            self._prefix = f"{_PREFIX}{secrets.token_hex(4)}"
            lock = folder / f"{self._prefix}{_LOCK_SUFFIX}"
            with storage_errors(lock, "create"):
                self._fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                return
            # Another process swept it between its creation and our lock.
            os.close(self._fd)

    def path(self, name: str) -> Path:
        """Where the draft of that name lies, or may be written."""
        return self._folder / f"{self._prefix}-{name}"

    def discard(self) -> None:
        """Remove all of them. May be called again."""
        if self._fd >= 0:
            _remove(self._folder, self._prefix)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def sweep_drafts(folder: Path) -> tuple[Path, ...]:
    """Remove the drafts whose process is gone; returns what was removed. Raises: StorageError."""
    prefixes = {_prefix_of(p.name) for p in entries(folder) if p.name.startswith(_PREFIX)}
    return tuple(p for prefix in sorted(prefixes) for p in _sweep(folder, prefix))


def _prefix_of(name: str) -> str:
    return _PREFIX + name.removeprefix(_PREFIX).partition("-")[0].removesuffix(_LOCK_SUFFIX)


def _sweep(folder: Path, prefix: str) -> tuple[Path, ...]:
    lock = folder / f"{prefix}{_LOCK_SUFFIX}"
    with storage_errors(lock, "open"):
        try:
            fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return _remove(folder, prefix)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ()
    else:
        return _remove(folder, prefix)
    finally:
        os.close(fd)


def _remove(folder: Path, prefix: str) -> tuple[Path, ...]:
    lock = folder / f"{prefix}{_LOCK_SUFFIX}"
    files = [p for p in entries(folder) if p.name.startswith(f"{prefix}-")]
    for path in (*files, lock):  # last: until then another process knows whose they are
        with storage_errors(path, "remove"):
            path.unlink(missing_ok=True)
    return (*files, lock)
