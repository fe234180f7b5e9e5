"""Files that belong to somebody else: opened so that nothing is read but themselves."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Self

from edge_agent.errors import ModelRefused
from edge_agent.store.blobs import read_range

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Follows no link, and does not wait for the writer of a FIFO."""


class SourceFolder:
    """The folder of a model that a user named, with the external data of the model.

    Use as a context manager: a file stays open until another one is read.
    """

    def __init__(self, model: Path) -> None:
        """`model` is the model file as the user named it, which messages name."""
        self._model = model
        self._location: str | None = None
        self._fd = -1

    def chunks(self, location: str, offset_bytes: int, length_bytes: int) -> Iterator[memoryview]:
        """A part of the file at `location`, relative to the folder, in pieces that are valid until
        the next one.

        Raises: ModelRefused if the location is not inside the folder, if any part of it is a link,
            if it is no readable regular file with one name, or if it is too short.
        """
        place = f'{self._model}: external data "{location}"'
        if location != self._location:
            self.close()
            parts = _contained(location, place)
            self._fd = _opened(self._model.parent, parts, place)
            self._location = location
        with refusing(place):
            yield from read_range(self._fd, offset_bytes, length_bytes)

    def close(self) -> None:
        """Close what is open. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._location, self._fd = None, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def refusing(place: str) -> Iterator[None]:
    """Turn what goes wrong with reading `place` into a refusal of the model."""
    try:
        yield
    except (OSError, EOFError, ValueError, RuntimeError) as error:
        # ValueError: a NUL in the name. RuntimeError: a loop of links (Python before 3.13).
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ModelRefused(f"{place}: cannot be read: {reason}") from error


def regular(path: Path) -> Path:
    """`path`, if a regular file is there and no link. Raises: ModelRefused; OSError."""
    kind = path.lstat().st_mode
    if not stat.S_ISREG(kind):
        raise ModelRefused(f"{path}: is {_kind(kind)}, want a regular file")
    return path


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "a regular file",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")


def _contained(location: str, place: str) -> tuple[str, ...]:
    path = PurePosixPath(location)
    inside = "want a path inside the model's folder"
    if path.is_absolute():
        raise ModelRefused(f"{place}: is an absolute path, {inside}")
    if ".." in path.parts:
        raise ModelRefused(f'{place}: contains "..", {inside}')
    if not path.parts:
        raise ModelRefused(f"{place}: names no file, {inside}")
    return path.parts


def _opened(folder: Path, parts: tuple[str, ...], place: str) -> int:
    with refusing(place):
        real = folder.resolve(strict=True)
        try:
            return _open_without_links(real, parts, place)
        except FileNotFoundError as error:
            raise ModelRefused(
                f"{place}: there is no {'/'.join(parts)} in {real}, beside the model; copy it "
                "there, or export the model again"
            ) from error


def _open_without_links(folder: Path, parts: tuple[str, ...], place: str) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            _require(stat.S_IFDIR, fd, part, place)
            inner = os.open(part, READ | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        _require(stat.S_IFREG, fd, parts[-1], place)
        file_fd = os.open(parts[-1], READ, dir_fd=fd)
    finally:
        os.close(fd)
    try:
        found = require_still_regular(file_fd, place)
        if found.st_nlink == 0:
            raise ModelRefused(f"{place}: was replaced while it was opened; load the model again")
        if found.st_nlink != 1:
            raise ModelRefused(
                f"{place}: has {found.st_nlink} names (hard links), want a regular file with one; "
                "replace it by a copy"
            )
    except ModelRefused:
        os.close(file_fd)
        raise
    return file_fd


def require_still_regular(fd: int, place: str) -> os.stat_result:
    """Asked of the open file: its name may mean another one by now than when it was looked at.

    Raises: ModelRefused.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise ModelRefused(f"{place}: is {_kind(found.st_mode)}, want a regular file")
    return found


def external_bytes(source_folder: Path, location: str, place: str) -> int:
    """Bytes of the external data file at `location`, checked as if it were to be copied.

    `place` names it in messages.
    Raises: ModelRefused if it is outside the folder, a link, or no regular file with one name.
    """
    parts = PurePosixPath(location).parts
    fd = _opened(source_folder, parts, place)
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _require(kind: int, folder_fd: int, part: str, place: str) -> None:
    mode = os.stat(part, dir_fd=folder_fd, follow_symlinks=False).st_mode
    if stat.S_IFMT(mode) == kind:
        return
    cure = "; replace it by a copy of what it points to" if stat.S_ISLNK(mode) else ""
    raise ModelRefused(f'{place}: "{part}" is {_kind(mode)}, want {_kind(kind)}{cure}')


def refuse_above(max_bytes: int, got_bytes: int, place: str) -> None:
    """Raises: ModelRefused if `got_bytes` are too many."""
    if got_bytes > max_bytes:
        raise ModelRefused(f"{place}: got {got_bytes} bytes, want at most {max_bytes}")
