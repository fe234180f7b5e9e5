"""Compiled subgraphs on disk: under what key each may be used again, and whether it is intact."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_agent.devices import Layout, UnitId
from edge_agent.errors import StorageError
from edge_agent.store.folder import (
    StagingFolder,
    entries,
    make_folder,
    move_folder,
    remove_tree,
    storage_errors,
    sweep_staging,
    sync_file,
)
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Shape, TensorName

GRAPH_FILE = "graph.onnx"
WEIGHTS_FILE = "weights.bin"
_KEY_FILE = "key.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactKey:
    """What a compiled subgraph was compiled from and for: with another key it is another one."""

    model: ModelId
    nodes: tuple[int, int]
    """Nodes [start, stop) of the topological order."""
    unit: UnitId
    layout: Layout
    level: str
    """Graph optimisation level of ONNX Runtime."""
    runtime_version: str
    runtime_build: str
    processor: str
    shapes: tuple[tuple[TensorName, Shape], ...] = ()
    """Input shapes that the graph was specialised for, in the order of the model's inputs."""

    def digest(self) -> str:
        """SHA-256 of the key, in hexadecimal: the name of its folder."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    bytes: int
    modified_ns: int
    sha256: str


class _Contents(msgspec.Struct, forbid_unknown_fields=True):
    key: ArtifactKey
    parts: tuple[_Part, ...]


class ArtifactStore:
    """Compiled subgraphs under `root`/compiled; several processes may use it at once.

    What is lost or damaged here is compiled again, so damage is removed and logged, not raised.
    """

    def __init__(self, root: Path) -> None:
        self._compiled = root / "compiled"
        self._staging = root / "staging"
        make_folder(self._compiled)
        make_folder(self._staging)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-done; returns what was removed.

        Raises: StorageError.
        """
        return sweep_staging(self._staging)

    def workspace(self) -> StagingFolder:
        """A folder to compile into, on the file system of the store, for `put`.

        Use as a context manager: what was not put is removed. Raises: StorageError.
        """
        return StagingFolder(self._staging)

    def put(self, key: ArtifactKey, folder: Path) -> Path:
        """Move `folder`, which holds graph.onnx and any other files, under `key`.

        Returns where it lies now. One that is there already, intact, is used instead, and
        `folder` stays where it is. Raises: StorageError.
        """
        assert (folder / GRAPH_FILE).is_file(), f"{folder}: holds no {GRAPH_FILE}"
        parts = tuple(_part(p) for p in sorted(folder.iterdir()) if p.name != _KEY_FILE)
        contents = msgspec.json.encode(_Contents(key=key, parts=parts))
        write_sealed(folder / _KEY_FILE, contents)
        target = self._compiled / key.digest()
        while not move_folder(folder, target):
            if self.get(key):
                break
        return target

    def get(self, key: ArtifactKey, *, thorough: bool = False) -> Path | None:
        """The folder of the compiled subgraph; None if there is none, or if it was damaged.

        The graph is compared with its checksum. So are weights whose time of change differs, and
        all of them if `thorough`; else their size is enough (hashing takes about 0.7 s/GB).
        Raises: StorageError if damage cannot be removed.
        """
        folder = self._compiled / key.digest()
        return folder if self._is_intact(folder, thorough=thorough) else None

    def holds(self, graph: Path) -> bool:
        """Whether `graph` is the graph file of a compiled subgraph here that `get` would return.

        Raises: StorageError if damage cannot be removed.
        """
        folder = graph.parent
        is_here = folder.parent == self._compiled and graph.name == GRAPH_FILE
        return is_here and self._is_intact(folder, thorough=False)

    def _is_intact(self, folder: Path, *, thorough: bool) -> bool:
        try:
            contents = _read_contents(folder)
            if contents is None:
                return False
            if contents.key.digest() != folder.name:
                raise StorageError(f"{folder}: was compiled from something else: {contents.key}")
            for part in contents.parts:
                _check(folder / part.name, part, thorough=thorough)
        except StorageError as damage:
            _log.warning("%s; removed, it will be compiled again", damage)
            remove_tree(folder, self._staging)
            return False
        return True

    def collect(self, keep: Set[ModelId]) -> tuple[Path, ...]:
        """Remove what was compiled from models that are not in `keep`; returns what was removed.

        Raises: StorageError.
        """
        unwanted = [p for p in entries(self._compiled) if not _is_of(p, keep)]
        for folder in unwanted:
            remove_tree(folder, self._staging)
        return tuple(unwanted)


def _is_of(folder: Path, models: Set[ModelId]) -> bool:
    try:
        contents = _read_contents(folder)
    except StorageError as damage:
        _log.warning("%s; removed, it will be compiled again", damage)
        return False
    return contents is not None and contents.key.model in models


def _read_contents(folder: Path) -> _Contents | None:
    path = folder / _KEY_FILE
    content = read_sealed(path)
    if content is None:
        if folder.exists():
            raise StorageError(f"{path}: is missing")
        return None
    try:
        return msgspec.json.decode(content, type=_Contents)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: is damaged: {error}") from error


def _part(path: Path) -> _Part:
    sync_file(path)
    with storage_errors(path, "read"):
        found = path.stat()
    return _Part(
        name=path.name,
        bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        sha256=_sha256(path),
    )


def _check(path: Path, wanted: _Part, *, thorough: bool) -> None:
    with storage_errors(path, "read"):
        found = path.stat()
    if found.st_size != wanted.bytes:
        raise StorageError(f"{path}: is damaged: got {found.st_size} bytes, want {wanted.bytes}")
    unchanged = found.st_mtime_ns == wanted.modified_ns
    if wanted.name == WEIGHTS_FILE and unchanged and not thorough:
        return
    if _sha256(path) != wanted.sha256:
        raise StorageError(f"{path}: is damaged: its SHA-256 differs")


def _sha256(path: Path) -> str:
    with storage_errors(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
