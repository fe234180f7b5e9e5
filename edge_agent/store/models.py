"""Model files as admitted, until their tensors are in the pool: copied, named by their hash, out of
reach of their source."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from edge_agent.errors import StorageError
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
    write_all,
)
from edge_agent.store.foreign import READ, refuse_above, refusing, regular, require_still_regular
from edge_agent.subgraphs import ModelId

MODEL_FILE = "model.onnx"
_LOAD_AGAIN = "load the model again from its source"
_BUFFER_BYTES = 4 << 20
_KERNEL_COPY_BYTES = 64 << 20
"""Between two looks at the limit."""


class ModelStore:
    """The model files under `root`/models, each in a folder named by its id; several processes may
    use one store at once. Models with external data never lie here."""

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
        with refusing(str(source)):
            path = regular(source.resolve(strict=True))
            fd = os.open(path, READ)
        try:
            require_still_regular(fd, str(path))
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
        """Where the model file lies.

        Raises: StorageError if the model is not stored.
        """
        path = self._folder(model) / MODEL_FILE
        if not path.is_file():
            raise StorageError(f"{path}: is missing; {_LOAD_AGAIN}")
        return path

    def verify(self, model: ModelId) -> None:
        """Read the model file and compare it with what was admitted.

        Raises: StorageError, naming the file that is missing or damaged.
        """
        path = self.path(model)
        with storage_errors(path, "read"), path.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
        if got != model:
            raise StorageError(f"{path}: is damaged (SHA-256 differs); {_LOAD_AGAIN}")

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
        self._sha256: str | None = None

    @property
    def path(self) -> Path:
        """The staged copy of the model file, for parsing it before it is committed."""
        return self._folder.path / MODEL_FILE

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copy."""
        return self._model_bytes

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

    def seal(self) -> str:
        """Hash the copy and make it survive a power cut, if that is not done; returns its SHA-256.

        Apart from the copying, because the copy can be used before. Raises: StorageError.
        """
        if self._sha256 is None:
            with storage_errors(self.path, "read"), self.path.open("rb") as file:
                self._sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            sync_file(self.path)
        return self._sha256

    def commit(self) -> tuple[ModelId, Path]:
        """Give the model its place in the store; returns its id and where its model file lies.

        A model that is there already, undamaged, is used as it is. Raises: StorageError.
        """
        model = ModelId(self.seal())
        target = self._models / model
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

    @contextmanager
    def _created(self, source_fd: int, name: str, max_bytes: int, place: str) -> Iterator[int]:
        size_bytes = os.fstat(source_fd).st_size
        refuse_above(max_bytes, size_bytes, place)
        require_free_bytes(self._folder.path, size_bytes)
        target = self._folder.path / name
        make_folder(target.parent)
        with storage_errors(target, "write"):
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        try:
            yield fd
        finally:
            os.close(fd)


def _is_id(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


def _copy(
    source_fd: int,
    target_fd: int,
    target: Path,
    max_bytes: int,
    place: str,
) -> int:
    """Copy until the end of the source, which may grow meanwhile; returns the bytes."""
    copied_bytes = 0
    while count := _copy_in_kernel(source_fd, target_fd):
        copied_bytes += count
        refuse_above(max_bytes, copied_bytes, place)
    # All of it where the kernel cannot; and where it failed, this tells which side is to blame.
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while True:
        with refusing(place):
            count = os.readv(source_fd, [buffer])
        if not count:
            return copied_bytes
        copied_bytes += count
        refuse_above(max_bytes, copied_bytes, place)
        with storage_errors(target, "write"):
            write_all(target_fd, buffer[:count])


def _copy_in_kernel(source_fd: int, target_fd: int) -> int:
    try:
        return os.copy_file_range(source_fd, target_fd, _KERNEL_COPY_BYTES)
    except OSError:
        return 0
