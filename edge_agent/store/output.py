"""How files and folders that a user asked for are written whole or not at all, and what may be
replaced."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edge_agent.errors import StorageError, UsageError

MANIFEST_FILE = "manifest.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_LINKS = 40
"""As many as Linux follows."""
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


def check_file(option: str, name: str) -> Path:
    """The path of a file that an option names for writing; there may be one of that name.

    Raises:
        UsageError: the name is that of a folder or socket, or its folder is not there.
    """
    path = Path(name)
    try:
        found = _mode(path)
    except OSError as error:
        raise UsageError(
            f"{option} {name}: cannot be written: {error.strerror}; name another file"
        ) from error
    if name.endswith("/") or stat.S_ISDIR(found):
        raise UsageError(f"{option} {name}: names a folder, want a file; name one in it")
    if stat.S_ISSOCK(found):
        raise UsageError(f"{option} {name}: is a socket, want a file; name another one")
    # Of a link, the folder of what it leads to.
    if not found and not Path(os.path.realpath(path)).parent.is_dir():
        raise UsageError(f"{option} {name}: there is no such folder; make it first")
    return path


def is_passed_on(path: Path) -> bool:
    """Whether what is written there goes on through a device, a FIFO or an open descriptor."""
    found = _mode(path)
    is_special = bool(found) and not (stat.S_ISREG(found) or stat.S_ISDIR(found))
    return is_special or _descriptor(path) is not None


def is_standard_output(path: Path) -> bool:
    """Whether what is written there comes out with what the command prints."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


def is_same_file(path: Path, other: Path) -> bool:
    """Whether both are there and one file, by whatever name."""
    try:
        return path.samefile(other)
    except OSError:
        return False


def write_whole(path: Path, text: str) -> None:
    """Write a text as `written_file` does. Raises: StorageError."""
    with written_file(path) as file:
        file.write(text.encode())


@contextmanager
def written_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that the user named, to be written in place of what has that name: all of it, or
    nothing. Where that is a link, what it leads to is replaced. Devices, FIFOs and open
    descriptors, as /dev/stdout, stay what they are, and are written to.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        descriptor = _descriptor(path)
        if descriptor is not None:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                yield file
        elif is_passed_on(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb") as file:
                yield file
        else:
            with _replacing(Path(os.path.realpath(path))) as file:
                yield file
    except OSError as error:
        free = "free some space, or " if error.errno in _FULL else ""
        raise StorageError(
            f"{path}: cannot be written: {error.strerror}; {free}name another file"
        ) from error


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    made = _beside(path, "new")
    mode = _mode(path)
    try:
        with made.open("xb") as file:
            if mode:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _mode(path: Path) -> int:
    """What is there, or where a link leads to, as `stat` tells; 0: nothing. Raises: OSError."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _descriptor(path: Path) -> int | None:
    """The open descriptor of this process that a path like /dev/stdout leads to. It is written to
    as it is: opened again, a file that standard output goes to would be written from its start."""
    ours = Path(f"/proc/{os.getpid()}/fd")
    for _ in range(_MOST_LINKS):
        folder = Path(os.path.realpath(path.parent))
        if folder == ours and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = folder / path.readlink()
    return None


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
    is_full = error.errno in _FULL
    return StorageError(
        f"{path}: cannot be written: {error.strerror}; "
        f"{'free some space, or ' if is_full else ''}name another folder with --out"
    )


def _exists(target: Path) -> UsageError:
    return UsageError(
        f"{target}: exists already; name another folder with --out, or replace it with --force"
    )
