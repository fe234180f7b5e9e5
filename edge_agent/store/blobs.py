"""Tensors on disk, each in a file named by its hash: its bytes first, then forms made of them.

A file only grows: a form (a prepacked copy that a kernel reads) is appended at the next page, so
that whoever has mapped the file is not disturbed. What nothing uses any more is cut off or punched
out. A file whose time of change is `SEALED_AT_S` was forced to disk and is as it was left: every
later writing sets another time, so that only then its content has to be read to be believed.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from edge_agent.store.folder import (
    entries,
    make_folder,
    open_temporary,
    storage_errors,
    sweep_temporaries,
    sync_folder,
    write_all,
)

PAGE_BYTES = mmap.PAGESIZE
SEALED_AT_S = 1_000_000_000
_CHUNK_BYTES = 4 << 20
_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of fallocate(2)."""


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Bytes [offset_bytes, offset_bytes + length_bytes) of a blob, and their hash.

    A tensor itself lies at offset 0, and its hash is the blob's name.
    """

    blob: str
    offset_bytes: int
    length_bytes: int
    sha256: str

    @property
    def stop_bytes(self) -> int:
        """Where the region ends."""
        return self.offset_bytes + self.length_bytes


class Blobs:
    """The files under `folder`. Only who holds the pool's lock may call what changes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def path(self, blob: str) -> Path:
        """Where a blob lies, or would."""
        return self.folder / blob

    def names(self) -> tuple[str, ...]:
        """All blobs, sorted. Raises: StorageError."""
        return tuple(p.name for p in entries(self.folder) if not p.name.startswith("."))

    def state(self, blob: str) -> tuple[int, bool]:
        """Length of a blob's file, and whether it is as it was left; (0, False) without one.

        Raises: StorageError.
        """
        with storage_errors(self.path(blob), "read"):
            try:
                found = self.path(blob).stat()
            except FileNotFoundError:
                return 0, False
        return found.st_size, found.st_mtime_ns == SEALED_AT_S * 10**9

    def is_sealed(self, blob: str) -> bool:
        """Whether the file is there and as it was left. Raises: StorageError."""
        return self.state(blob)[1]

    def seal(self, blob: str, *, is_good: bool = True) -> None:
        """Force the file to disk and, if `is_good`, say that its content is known.

        Raises: StorageError.
        """
        _seal(self.path(blob), is_good=is_good)

    def is_intact(self, region: Region) -> bool:
        """Whether the bytes of a region are what they were; reads them. Raises: StorageError."""
        path = self.path(region.blob)
        with storage_errors(path, "read"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
            try:
                os.posix_fadvise(fd, region.offset_bytes, region.length_bytes, _SEQUENTIAL)
                digest = hashlib.sha256()
                for chunk in read_range(fd, region.offset_bytes, region.length_bytes):
                    digest.update(chunk)
            except EOFError:
                return False
            finally:
                os.close(fd)
        return digest.hexdigest() == region.sha256

    def put(self, chunks: Iterable[bytes | memoryview], *, doubt: bool) -> tuple[Region, bool]:
        """Store a tensor; the region that holds it, and whether the file is new.

        A file that is there is used if it is sealed; with `doubt`, or if it is not, only if its
        bytes are right. One that is damaged is replaced. The new file is not sealed. Chunks that
        can be gone through twice are not written if they are there already.
        Raises: StorageError; what `chunks` raises; then nothing is left of it.
        """
        known = digest_of(chunks)
        if known is not None and self._has(Region(known[1], 0, *known), doubt=doubt):
            return Region(known[1], 0, *known), False
        with storage_errors(self.folder, "write"):
            fd, temporary = open_temporary(self.folder)
        try:
            length_bytes, sha256 = _append(fd, chunks, temporary)
            region = Region(sha256, 0, length_bytes, sha256)
            if self._has(region, doubt=doubt):
                temporary.unlink()
                return region, False
            with storage_errors(self.path(sha256), "write"):
                os.rename(temporary, self.path(sha256))
            return region, True
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def share(self, blob: str, length_bytes: int) -> Region | None:
        """The region of a tensor that is there and good; None if there is none. It is read only if
        its file is not sealed. Raises: StorageError.
        """
        region = Region(blob, 0, length_bytes, blob)
        return region if self._has(region, doubt=False) else None

    def adopt(self, source: Path, blob: str, length_bytes: int) -> Region:
        """Take the file at `source`, which has exactly that content, as a tensor; it is sealed.

        It is moved, not copied: a model may fill half of the disk. Raises: StorageError.
        """
        _seal(source, is_good=True)
        with storage_errors(self.path(blob), "write"):
            os.rename(source, self.path(blob))
        return Region(blob, 0, length_bytes, blob)

    def _has(self, region: Region, *, doubt: bool) -> bool:
        got_bytes, is_sealed = self.state(region.blob)
        if got_bytes < region.length_bytes:
            return False
        return (is_sealed and not doubt) or self.is_intact(region)

    def append(self, blob: str, chunks: Iterable[bytes | memoryview], used_bytes: int) -> Region:
        """Write a form of the tensor behind the first `used_bytes` of its blob.

        The file is not sealed. Raises: StorageError; what `chunks` raises.
        """
        path = self.path(blob)
        offset_bytes = -(-used_bytes // PAGE_BYTES) * PAGE_BYTES
        with storage_errors(path, "write"):
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            with storage_errors(path, "write"):
                os.ftruncate(fd, offset_bytes)
                os.lseek(fd, offset_bytes, os.SEEK_SET)
            length_bytes, sha256 = _append(fd, chunks, path)
        finally:
            os.close(fd)
        return Region(blob, offset_bytes, length_bytes, sha256)

    def cut(self, blob: str, size_bytes: int) -> None:
        """Drop what lies behind `size_bytes`; the whole file if that is 0. Raises: StorageError."""
        path = self.path(blob)
        with storage_errors(path, "remove what is not used"):
            if size_bytes == 0:
                path.unlink(missing_ok=True)
            else:
                os.truncate(path, size_bytes)

    def keep_only(self, blob: str, regions: Sequence[Region]) -> None:
        """Give back the space of all that is not in `regions`, as far as the file system can.

        Nobody may have mapped what is given back. Raises: StorageError.
        """
        stop_bytes = max((r.stop_bytes for r in regions), default=0)
        got_bytes, was_sealed = self.state(blob)
        has_changed = got_bytes > stop_bytes
        if has_changed:
            self.cut(blob, stop_bytes)
        for start, stop in _gaps(regions):
            has_changed |= self._punch(blob, start, stop)
        if has_changed and was_sealed and regions:
            self.seal(blob)

    def _punch(self, blob: str, start: int, stop: int) -> bool:
        if not _holds_data(self.path(blob), start, stop):
            return False
        with storage_errors(self.path(blob), "remove what is not used"):
            fd = os.open(self.path(blob), os.O_WRONLY | os.O_NOFOLLOW)
            try:
                return _punch_hole(fd, start, stop - start)
            finally:
                os.close(fd)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-written. Raises: StorageError."""
        return sweep_temporaries(self.folder)

    def sync_names(self) -> None:
        """Make the names of all files survive a power cut. Raises: StorageError."""
        sync_folder(self.folder)


_SEQUENTIAL = os.POSIX_FADV_SEQUENTIAL


def _seal(path: Path, *, is_good: bool) -> None:
    with storage_errors(path, "sync"):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
            if is_good:
                os.utime(fd, (SEALED_AT_S, SEALED_AT_S))
        finally:
            os.close(fd)


def read_range(fd: int, offset_bytes: int, length_bytes: int) -> Iterator[memoryview]:
    """The bytes of a part of a file, in pieces that are valid until the next one.

    Raises: EOFError if the file ends before; OSError.
    """
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, length_bytes)))
    stop_bytes = offset_bytes + length_bytes
    while offset_bytes < stop_bytes:
        count = os.preadv(fd, [buffer[: stop_bytes - offset_bytes]], offset_bytes)
        if not count:
            raise EOFError(f"got {offset_bytes} bytes, want {stop_bytes}")
        offset_bytes += count
        yield buffer[:count]


def digest_of(chunks: Iterable[bytes | memoryview]) -> tuple[int, str] | None:
    """Length and hash of what can be gone through again; None if it can be only once.

    Raises: what `chunks` raises.
    """
    if iter(chunks) is chunks:
        return None
    digest, length_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        length_bytes += memoryview(chunk).nbytes
    return length_bytes, digest.hexdigest()


def _append(fd: int, chunks: Iterable[bytes | memoryview], path: Path) -> tuple[int, str]:
    """Write what comes; its length and hash."""
    digest, length_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        with storage_errors(path, "write"):
            write_all(fd, chunk)
        length_bytes += memoryview(chunk).nbytes
    return length_bytes, digest.hexdigest()


def _gaps(regions: Sequence[Region]) -> Iterator[tuple[int, int]]:
    """The whole pages between regions."""
    reached = 0
    for region in sorted(regions, key=lambda r: r.offset_bytes):
        start = -(-reached // PAGE_BYTES) * PAGE_BYTES
        stop = region.offset_bytes // PAGE_BYTES * PAGE_BYTES
        if start < stop:
            yield start, stop
        reached = max(reached, region.stop_bytes)


def _holds_data(path: Path, start: int, stop: int) -> bool:
    with storage_errors(path, "read"):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return os.lseek(fd, start, os.SEEK_DATA) < stop
        except OSError as error:
            if error.errno == errno.ENXIO:  # only holes up to the end
                return False
            raise
        finally:
            os.close(fd)


def _punch_hole(fd: int, offset_bytes: int, length_bytes: int) -> bool:
    """fallocate(2), which Python does not offer; False where the file system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    # musl has the 64-bit form under the plain name alone.
    call = getattr(library, "fallocate64", None) or library.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(fd, _KEEP_SIZE_AND_PUNCH_HOLE, offset_bytes, length_bytes) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number))
