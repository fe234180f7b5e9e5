"""How files and folders that a user asked for are written whole or not at all, and what may be
replaced."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge_agent.errors import StorageError, UsageError

MANIFEST_FILE = "manifest.json"
_OURS = re.compile(r"manifest\.json|part-\d+\.onnx(\.weights)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file and its content."""

    file: str
    bytes: int
    sha256: str


def digest(path: Path, name: str) -> FileDigest:
    """Size and SHA-256 of the file at `path`, which is called `name`. Raises: StorageError."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            return FileDigest(file=name, bytes=file.tell(), sha256=found)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error


def stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file does. Raises: StorageError."""
    try:
        status = path.stat()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_target(target: Path, source: Path, *, is_replaced: bool) -> None:
    """Refuse a folder that must not be written.

    It may be there if it is empty, and with `is_replaced` if nothing else lies in it than what
    `split` wrote there.

    Raises:
        UsageError: it exists, `source` lies in it, or the folder above does not exist.
    """
    if not target.parent.is_dir():
        raise UsageError(f"--out {target}: there is no folder {target.parent}; make it first")
    if not os.path.lexists(target):
        return
    is_folder = target.is_dir() and not target.is_symlink()
    if is_folder and not any(target.iterdir()):
        return
    if not is_replaced:
        raise _exists(target)
    if not is_folder:
        raise UsageError(f"{target}: is no folder; name another one with --out")
    if source.resolve().is_relative_to(target.resolve()):
        raise UsageError(f"{target}: the model lies in it; name another folder with --out")
    foreign = [p.name for p in sorted(target.iterdir()) if not _OURS.fullmatch(p.name)]
    if foreign or not (target / MANIFEST_FILE).is_file():
        what = f'has "{foreign[0]}" in it' if foreign else f"has no {MANIFEST_FILE}"
        raise UsageError(
            f"{target}: was not written by split alone: it {what}; remove it yourself, or name "
            "another folder with --out"
        )


@contextmanager
def written_folder(target: Path, *, is_replaced: bool) -> Iterator[Path]:
    """A new folder beside `target` that becomes `target` when the block succeeds.

    Otherwise it is removed, and what `target` was stays. What killed processes left beside it is
    removed too.

    Raises:
        StorageError: it cannot be written.
        UsageError: `target` came to be there meanwhile, and is not empty, without `is_replaced`.
    """
    try:
        _sweep(target)
        folder = _beside(target, "new")
        folder.mkdir()
        # Tells others that its process lives; ends with it.
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield folder
        _take_place(folder, target, is_replaced=is_replaced)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def write_text(path: Path, text: str) -> None:
    """Write a new file. Raises: StorageError."""
    try:
        path.write_text(text)
    except OSError as error:
        raise _unwritable(path, error) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file that the user named, in place of what has that name: all of it, or nothing.

    Raises: StorageError.
    """
    made = _beside(path, "new")
    try:
        try:
            made.write_text(text)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written: {error.strerror}; name another file"
        ) from error


def _take_place(folder: Path, target: Path, *, is_replaced: bool) -> None:
    old = _beside(target, "old")
    try:
        if is_replaced and target.exists():
            target.rename(old)
        try:
            folder.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _exists(target) from error
        raise _unwritable(target, error) from error
    shutil.rmtree(old, ignore_errors=True)


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{what}-{os.urandom(6).hex()}")


def _sweep(target: Path) -> None:
    leftover = re.compile(re.escape(f".{target.name}.new-") + "[0-9a-f]{12}")
    for path in target.parent.iterdir():
        if not leftover.fullmatch(path.name) or path.is_symlink():
            continue
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(fd)


def _unwritable(path: Path, error: OSError) -> StorageError:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError(
        f"{path}: cannot be written: {error.strerror}; "
        f"{'free some space, or ' if is_full else ''}name another folder with --out"
    )


def _exists(target: Path) -> UsageError:
    return UsageError(
        f"{target}: exists already; name another folder with --out, or replace it with --force"
    )
