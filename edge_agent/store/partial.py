"""Tensors on their way here from another device. What has come is on disk, so that a transfer that
breaks goes on where it was, also after a restart; nothing is used before its hash was right."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from edge_agent.errors import AlreadyRunning, ProtocolError
from edge_agent.store.blobs import read_range
from edge_agent.store.folder import (
    entries,
    make_folder,
    remove_file,
    require_free_bytes,
    storage_errors,
    write_all,
)

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_SUFFIX: Final = ".part"


class Partial:
    """One tensor, to be used as a context manager, by one thread at a time."""

    def __init__(self, path: Path, sha256: str, size_bytes: int) -> None:
        """Use `PartialStore.open`."""
        self.path = path
        self.sha256 = sha256
        self.size_bytes = size_bytes
        self._fd = -1
        self.received_bytes = 0
        """What has come: the next byte that is wanted."""

    def __enter__(self) -> Self:
        while True:
            with storage_errors(self.path, "open"):
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                if self._lock():
                    self._take()
                    return self
            except BaseException:
                os.close(self._fd)
                raise
            os.close(self._fd)

    def _lock(self) -> bool:
        """Whether it is still there: before it was locked, it may have been removed."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(f"{self.path}: is being received already") from error
        with storage_errors(self.path, "examine"):
            return os.fstat(self._fd).st_nlink > 0

    def _take(self) -> None:
        with storage_errors(self.path, "examine"):
            self.received_bytes = os.fstat(self._fd).st_size
        if self.received_bytes > self.size_bytes:
            self._begin_anew()
        require_free_bytes(self.path.parent, self.size_bytes - self.received_bytes)

    def _begin_anew(self) -> None:
        with storage_errors(self.path, "write"):
            os.ftruncate(self._fd, 0)
        self.received_bytes = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # With the descriptor goes the lock.
        os.close(self._fd)

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self.received_bytes == self.size_bytes

    def write(self, offset_bytes: int, data: bytes | memoryview) -> None:
        """Take what comes next.

        Raises:
            ProtocolError: it is not what comes next, or too much.
            StorageError: the disk is full or fails; what came before is kept.
        """
        count = memoryview(data).nbytes
        if offset_bytes != self.received_bytes or count > self.size_bytes - offset_bytes:
            raise ProtocolError(
                f"tensor {self.sha256[:12]}…: got {count} bytes at {offset_bytes}, want at most "
                f"{self.size_bytes - self.received_bytes} at {self.received_bytes}"
            )
        with storage_errors(self.path, "write"):
            os.lseek(self._fd, offset_bytes, os.SEEK_SET)
            try:
                write_all(self._fd, data)
            except OSError:
                # A part of it may be there, of which nobody knows how much.
                os.ftruncate(self._fd, offset_bytes)
                raise
        self.received_bytes += count

    def check(self) -> None:
        """Compare what came with its hash.

        Raises:
            ProtocolError: it is another one: all of it is thrown away.
            StorageError: it cannot be read.
        """
        assert self.is_whole
        digest = hashlib.sha256()
        for chunk in self:
            digest.update(chunk)
        if digest.hexdigest() != self.sha256:
            self._begin_anew()
            raise ProtocolError(
                f"tensor {self.sha256[:12]}…: got bytes with the SHA-256 {digest.hexdigest()[:12]}…"
            )

    def __iter__(self) -> Iterator[memoryview]:
        """What came, in pieces that are valid until the next one. Raises: StorageError."""
        with storage_errors(self.path, "read"):
            yield from read_range(self._fd, 0, self.received_bytes)

    def discard(self) -> None:
        """It is stored elsewhere, or not wanted any more. Raises: StorageError."""
        remove_file(self.path)


class PartialStore:
    """What is being received, under `root`/partial."""

    def __init__(self, root: Path) -> None:
        """Raises: StorageError."""
        self._folder = root / "partial"
        make_folder(self._folder)

    def open(self, sha256: str, size_bytes: int) -> Partial:
        """A tensor of that hash and size, with what has come of it before; enter it to go on.

        Entering it raises AlreadyRunning if it is being received already, and StorageError if
        there is no room for the rest.
        Raises: ProtocolError: that is no hash, or no size.
        """
        if not _HASH.fullmatch(sha256) or size_bytes < 0:
            raise ProtocolError(f"got a tensor {sha256[:80]!r} of {size_bytes} bytes")
        return Partial(self._path(sha256), sha256, size_bytes)

    def received_bytes(self, sha256: str) -> int:
        """How much of that tensor has come, 0 if nobody ever wanted it. Raises: StorageError."""
        path = self._path(sha256)
        with storage_errors(path, "examine"):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return 0

    def discard(self, hashes: Collection[str]) -> None:
        """Remove what is not wanted any more, or stored elsewhere, unless it is being received.

        Raises: StorageError.
        """
        for sha256 in hashes:
            _remove_unused(self._path(sha256))

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}{_SUFFIX}"

    def collect(self, keep: Collection[str]) -> tuple[Path, ...]:
        """Remove what is not in `keep`, by hash, and not being received now; what was removed.

        Raises: StorageError.
        """
        removed = []
        for path in entries(self._folder):
            if path.name.removesuffix(_SUFFIX) not in keep and _remove_unused(path):
                removed.append(path)
        return tuple(removed)


def _remove_unused(path: Path) -> bool:
    with storage_errors(path, "remove"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
    return True
