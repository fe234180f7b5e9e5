"""How bytes get onto the disk whole or not at all, and what a full or failing disk is called."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from edge_agent.errors import StorageError

TEMPORARY_PREFIX = ".new-"
"""Of temporary files; no stored file has a name that begins with a dot."""

_OTHER_FOLDER = "choose another folder with --state"
_CURES = {
    errno.ENOSPC: f"free some space there, or {_OTHER_FOLDER}",
    errno.EDQUOT: f"your disk quota is used up: free some space, or {_OTHER_FOLDER}",
    errno.EROFS: f"the file system is mounted read-only: remount it, or {_OTHER_FOLDER}",
    errno.EACCES: f"make the folder writable for this user, or {_OTHER_FOLDER}",
    errno.EPERM: f"make the folder writable for this user, or {_OTHER_FOLDER}",
    errno.ENOTDIR: f"move the file that stands in the way, or {_OTHER_FOLDER}",
    errno.EXDEV: "both places must be on one file system",
}


def storage_error(path: Path, action: str, error: OSError) -> StorageError:
    """What the user is told when `action` on `path` fails with `error`."""
    cure = _CURES.get(error.errno or 0, f"check the disk, or {_OTHER_FOLDER}")
    return StorageError(f"{path}: cannot {action}: {error.strerror or error}; {cure}")


@contextmanager
def storage_errors(path: Path, action: str) -> Iterator[None]:
    """Turn every OSError of the block into a StorageError that names `path` and a cure."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, action, error) from error


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents for this user alone; one that exists is left as it is.

    Raises: StorageError.
    """
    with storage_errors(folder, "create the folder"):
        for missing in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut. Raises: StorageError."""
    with storage_errors(folder, "sync"):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_file(path: Path) -> None:
    """Make the content of `path` survive a power cut. Raises: StorageError."""
    with storage_errors(path, "sync"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write on the file system of `folder`. Raises: StorageError."""
    with storage_errors(folder, "ask for free space"):
        disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def require_free_bytes(folder: Path, wanted_bytes: int) -> None:
    """Refuse early what would not fit. Raises: StorageError, naming both sizes."""
    got_bytes = free_bytes(folder)
    if got_bytes < wanted_bytes:
        raise StorageError(
            f"{folder}: got {got_bytes} bytes free, want {wanted_bytes}; {_CURES[errno.ENOSPC]}"
        )


def write_file(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: after a crash at any moment the old or the new file is there.

    Raises: StorageError; then the old file is untouched and nothing else is left.
    """
    with storage_errors(path, "write"):
        fd, temporary = open_temporary(path.parent)
        try:
            write_all(fd, content)
            os.fsync(fd)
            # Before the lock goes: another process would sweep the file as a leftover.
            os.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
    sync_folder(path.parent)


def write_all(fd: int, content: bytes | memoryview) -> None:
    """Write all of `content`; a single write may stop short on a full disk or at 2 GiB."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def open_temporary(folder: Path) -> tuple[int, Path]:
    """A new file in `folder` that `sweep_temporaries` leaves alone: its descriptor and path.

    Raises: OSError.
    """
    while True:
        fd, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=folder)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd, Path(name)
        # Another process swept the file between its creation and our lock.
        os.close(fd)


def remove_file(path: Path) -> None:
    """Remove `path` if it is there. Raises: StorageError."""
    with storage_errors(path, "remove"):
        path.unlink(missing_ok=True)
    sync_folder(path.parent)


def entries(folder: Path) -> tuple[Path, ...]:
    """What lies in `folder`, sorted by name; () without such a folder. Raises: StorageError."""
    with storage_errors(folder, "read"):
        try:
            return tuple(sorted(folder.iterdir()))
        except FileNotFoundError:
            return ()


def remove_tree(path: Path, staging: Path) -> None:
    """Remove the folder `path`, if it is there, so that no process ever sees half of it.

    `staging` is swept later should this process die meanwhile. Raises: StorageError.
    """
    doomed = staging / f"removed-{os.urandom(8).hex()}"
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        if not path.exists():
            return
        doomed = path
    except OSError:
        # A full disk may refuse even a rename: then removing in place is what frees it.
        doomed = path
    _remove_at_once(doomed)


def _remove_at_once(path: Path) -> None:
    # Two processes may sweep the same leftovers: what counts is that they are gone.
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        with storage_errors(path, "remove"):
            shutil.rmtree(path)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to `<name>.damaged-<N>`, the first N that is free; returns its path.

    Raises: StorageError.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with storage_errors(path, "set aside"):
        os.rename(path, aside)
    return aside


def move_folder(folder: Path, target: Path) -> bool:
    """Give `folder` its final name; False if `target` is already there.

    Everything in the folder must be synced. Raises: StorageError.
    """
    sync_folder(folder)
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise storage_error(target, "write", error) from error
    sync_folder(target.parent)
    return True


class StagingFolder:
    """A folder in which something is prepared; if its process dies, `sweep_staging` removes it.

    A lock on the folder itself marks it as in use: unlike a process id, it cannot outlive its
    owner or come to mean another process. Use as a context manager: what was not moved is removed.
    """

    def __init__(self, staging: Path) -> None:
        make_folder(staging)
        with storage_errors(staging, "create a folder in"):
            self._fd, self.path = _make_locked(staging)

    def discard(self) -> None:
        """Remove what was not moved. May be called again."""
        if self._fd >= 0:
            _remove_at_once(self.path)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def _make_locked(staging: Path) -> tuple[int, Path]:
    while True:
        path = Path(tempfile.mkdtemp(dir=staging))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists():
            return fd, path
        # Another process swept the folder between its creation and our lock.
        os.close(fd)


def sweep_staging(staging: Path) -> tuple[Path, ...]:
    """Remove the staging folders whose process is gone; returns what was removed.

    Raises: StorageError.
    """
    folders = (p for p in entries(staging) if p.is_dir() and not p.is_symlink())
    return tuple(p for p in folders if _sweep(p, _remove_at_once))


def sweep_temporaries(folder: Path) -> tuple[Path, ...]:
    """Remove the temporary files of `folder` whose process is gone; returns what was removed.

    Raises: StorageError.
    """
    files = (p for p in entries(folder) if p.name.startswith(TEMPORARY_PREFIX))
    return tuple(p for p in files if _sweep(p, remove_file))


def _sweep(path: Path, remove: Callable[[Path], None]) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        remove(path)
        return True
    finally:
        os.close(fd)
