"""Models as admitted: copied, hashed and named by their content, out of reach of their source."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Self

import msgspec

from edge_agent.errors import ModelRefused, StorageError
from edge_agent.store.folder import (
    StagingFolder,
    entries,
    make_folder,
    move_folder,
    remove_tree,
    require_free_bytes,
    storage_errors,
    sweep_staging,
    sync_file,
    sync_folder,
    write_all,
)
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import ModelId

MODEL_FILE = "model.onnx"
_MANIFEST = "manifest.json"
_BUFFER_BYTES = 4 << 20
_KERNEL_COPY_BYTES = 64 << 20
"""Between two looks at the limit."""


class _StoredFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    location: str
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    model: _StoredFile
    external: tuple[_StoredFile, ...]

    def id(self) -> ModelId:
        named = sorted((file.location, file.sha256) for file in self.external)
        return ModelId(hashlib.sha256(msgspec.json.encode((self.model.sha256, named))).hexdigest())


class ModelStore:
    """The models under `root`/models, each in a folder named by its id; several processes may use
    one store at once."""

    def __init__(self, root: Path) -> None:
        self._models = root / "models"
        self._staging = root / "staging"
        make_folder(self._models)
        make_folder(self._staging)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-done; returns what was removed.

        Raises: StorageError.
        """
        return sweep_staging(self._staging)

    def stage(self, source: Path, max_bytes: int) -> Staged:
        """Copy the model file `source` into the store, not yet under its id.

        A symbolic link that the user names is followed. Use the result as a context manager:
        what was not committed is removed.
        Raises: ModelRefused if it is no readable regular file of at most `max_bytes` bytes;
        StorageError if the copy cannot be written.
        """
        with _refusing(str(source)):
            path = _regular(source.resolve(strict=True))
            fd = os.open(path, _READ)
        try:
            _require_still_regular(fd, str(path))
            staged = Staged(source=source, models=self._models, staging=self._staging)
            try:
                staged.copy_model(fd, max_bytes)
            except BaseException:
                staged.discard()
                raise
            return staged
        finally:
            os.close(fd)

    def ids(self) -> tuple[ModelId, ...]:
        """The ids of all stored models, sorted. Raises: StorageError."""
        return tuple(ModelId(p.name) for p in entries(self._models) if _is_id(p.name))

    def path(self, model: ModelId) -> Path:
        """Where the model file lies; its external data lie beside it.

        Raises: StorageError if the model is not stored.
        """
        path = self._folder(model) / MODEL_FILE
        if not path.is_file():
            raise StorageError(f"{path}: is missing; load the model again from its source")
        return path

    def verify(self, model: ModelId) -> None:
        """Read every file of the model and compare it with what was admitted.

        Raises: StorageError, naming the file that is missing or damaged.
        """
        folder = self._folder(model)
        content = read_sealed(folder / _MANIFEST)
        if content is None:
            raise StorageError(f"{folder}: no model is stored there; load it again")
        try:
            manifest = msgspec.json.decode(content, type=_Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageError(f"{folder / _MANIFEST}: is damaged: {error}") from error
        if manifest.id() != model:
            raise StorageError(f"{folder / _MANIFEST}: is that of another model: {manifest.id()}")
        for file in (manifest.model, *manifest.external):
            _verify(folder / file.location, file)

    def remove(self, model: ModelId) -> None:
        """Remove the model if it is stored; a process that has it open keeps what it has.

        Raises: StorageError.
        """
        remove_tree(self._folder(model), self._staging)

    def collect(self, keep: Set[ModelId]) -> tuple[ModelId, ...]:
        """Remove every model that is not in `keep`; returns their ids. Raises: StorageError."""
        unwanted = tuple(model for model in self.ids() if model not in keep)
        for model in unwanted:
            self.remove(model)
        return unwanted

    def _folder(self, model: ModelId) -> Path:
        if not _is_id(model):
            raise StorageError(f"model id: got {model!r}, want 64 hexadecimal digits")
        return self._models / model


class Staged:
    """A model on its way into the store, made by `ModelStore.stage`."""

    def __init__(self, *, source: Path, models: Path, staging: Path) -> None:
        self._source = source
        self._models = models
        self._staging = staging
        self._folder = StagingFolder(staging)
        self._model_bytes = 0
        self._model: _StoredFile | None = None
        self._external: dict[str, _StoredFile] = {}

    @property
    def path(self) -> Path:
        """The staged copy of the model file, for parsing it before it is committed."""
        return self._folder.path / MODEL_FILE

    @property
    def copied_bytes(self) -> int:
        """Bytes of all files staged so far."""
        return self._model_bytes + sum(file.bytes for file in self._external.values())

    def copy_model(self, source_fd: int, max_bytes: int) -> None:
        """Copy the model file itself; `ModelStore.stage` does so. `seal` does the rest."""
        place = str(self._source)
        with self._created(source_fd, MODEL_FILE, max_bytes, place) as fd:
            self._model_bytes = _copy(source_fd, fd, self.path, max_bytes, place)

    def contains(self, word: bytes) -> bool:
        """Whether the copy of the model file has these bytes somewhere. Raises: StorageError."""
        with storage_errors(self.path, "read"), self.path.open("rb") as file:
            if not self._model_bytes:  # nothing cannot be mapped
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return mapped.find(word) >= 0

    def seal(self) -> None:
        """Hash the copy of the model file and make it survive a power cut, if that is not done.

        Apart from the copying, because the copy can be used before. Raises: StorageError.
        """
        if self._model is not None:
            return
        with storage_errors(self.path, "read"), self.path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        sync_file(self.path)
        self._model = _StoredFile(location=MODEL_FILE, bytes=self._model_bytes, sha256=sha256)

    def add_external(self, location: str, source_folder: Path, max_bytes: int) -> None:
        """Copy the external data file at `location`, relative to `source_folder`.

        A location that was added before is not copied again.
        Raises: ModelRefused if the location is not inside the folder, if any part of it is a
        link, or if it is no readable regular file of at most `max_bytes` bytes with one name;
        StorageError if the copy cannot be written.
        """
        place = f'{self._source}: external data "{location}"'
        parts = _contained(location, place)
        name = "/".join(parts)
        if name in self._external:
            return
        with _refusing(place):
            fd = _open_without_links(source_folder.resolve(strict=True), parts, place)
        try:
            self._external[name] = self._copy_external(fd, name, max_bytes, place)
        finally:
            os.close(fd)

    def commit(self) -> tuple[ModelId, Path]:
        """Give the model its place in the store; returns its id and where its model file lies.

        A model that is there already, undamaged, is used as it is. Raises: StorageError.
        """
        self.seal()
        assert self._model is not None
        external = tuple(self._external[name] for name in sorted(self._external))
        manifest = _Manifest(model=self._model, external=external)
        model = manifest.id()
        target = self._models / model
        write_sealed(self._folder.path / _MANIFEST, msgspec.json.encode(manifest))
        while not move_folder(self._folder.path, target):
            try:
                ModelStore(self._models.parent).verify(model)
                break
            except StorageError:
                remove_tree(target, self._staging)
        self.discard()
        return model, target / MODEL_FILE

    def discard(self) -> None:
        """Remove the copies, unless they were committed. May be called again."""
        self._folder.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _copy_external(self, source_fd: int, name: str, max_bytes: int, place: str) -> _StoredFile:
        target = self._folder.path / name
        with self._created(source_fd, name, max_bytes, place) as fd:
            # In one pass, unlike the model file: these may be larger than the memory.
            digest = hashlib.sha256()
            copied_bytes = _copy(source_fd, fd, target, max_bytes, place, digest.update)
            with storage_errors(target, "sync"):
                os.fsync(fd)
        # The folder itself is synced when it gets its final name.
        for folder in target.relative_to(self._folder.path).parents[:-1]:
            sync_folder(self._folder.path / folder)
        return _StoredFile(location=name, bytes=copied_bytes, sha256=digest.hexdigest())

    @contextmanager
    def _created(self, source_fd: int, name: str, max_bytes: int, place: str) -> Iterator[int]:
        size_bytes = os.fstat(source_fd).st_size
        _refuse_above(max_bytes, size_bytes, place)
        require_free_bytes(self._folder.path, size_bytes)
        target = self._folder.path / name
        make_folder(target.parent)
        with storage_errors(target, "write"):
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        try:
            yield fd
        finally:
            os.close(fd)


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Follows no link, and does not wait for the writer of a FIFO."""


def _is_id(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        # ValueError: a NUL in the name. RuntimeError: a loop of links (Python before 3.13).
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ModelRefused(f"{place}: cannot be read: {reason}") from error


def _regular(path: Path) -> Path:
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
    if path.parts[0] in (MODEL_FILE, _MANIFEST):
        raise ModelRefused(f"{place}: that name is taken by the store; rename the file")
    return path.parts


def _open_without_links(folder: Path, parts: tuple[str, ...], place: str) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            _require(stat.S_IFDIR, fd, part, place)
            inner = os.open(part, _READ | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        _require(stat.S_IFREG, fd, parts[-1], place)
        file_fd = os.open(parts[-1], _READ, dir_fd=fd)
    finally:
        os.close(fd)
    try:
        found = _require_still_regular(file_fd, place)
        if found.st_nlink != 1:
            raise ModelRefused(
                f"{place}: has {found.st_nlink} names (hard links), want a regular file with one; "
                "replace it by a copy"
            )
    except ModelRefused:
        os.close(file_fd)
        raise
    return file_fd


def _require_still_regular(fd: int, place: str) -> os.stat_result:
    """Asked of the open file: its name may mean another one by now than when it was looked at."""
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
    with _refusing(place):
        fd = _open_without_links(source_folder.resolve(strict=True), parts, place)
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


def _refuse_above(max_bytes: int, got_bytes: int, place: str) -> None:
    if got_bytes > max_bytes:
        raise ModelRefused(f"{place}: got {got_bytes} bytes, want at most {max_bytes}")


def _copy(
    source_fd: int,
    target_fd: int,
    target: Path,
    max_bytes: int,
    place: str,
    see: Callable[[memoryview], None] | None = None,
) -> int:
    """Copy until the end of the source, which may grow meanwhile; returns the bytes.

    Without `see`, which is shown every piece, the bytes need not pass through this process.
    """
    copied_bytes = 0
    if see is None:
        while count := _copy_in_kernel(source_fd, target_fd):
            copied_bytes += count
            _refuse_above(max_bytes, copied_bytes, place)
    # All of it where the kernel cannot; and where it failed, this tells which side is to blame.
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while True:
        with _refusing(place):
            count = os.readv(source_fd, [buffer])
        if not count:
            return copied_bytes
        copied_bytes += count
        _refuse_above(max_bytes, copied_bytes, place)
        if see is not None:
            see(buffer[:count])
        with storage_errors(target, "write"):
            write_all(target_fd, buffer[:count])


def _copy_in_kernel(source_fd: int, target_fd: int) -> int:
    try:
        return os.copy_file_range(source_fd, target_fd, _KERNEL_COPY_BYTES)
    except OSError:
        return 0


def _verify(path: Path, wanted: _StoredFile) -> None:
    cure = "load the model again from its source"
    with storage_errors(path, "read"):
        if not path.is_file():
            raise StorageError(f"{path}: is missing; {cure}")
        with path.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
            got_bytes = file.tell()
    if got_bytes != wanted.bytes:
        raise StorageError(f"{path}: got {got_bytes} bytes, want {wanted.bytes}; {cure}")
    if got != wanted.sha256:
        raise StorageError(f"{path}: is damaged (SHA-256 differs); {cure}")
