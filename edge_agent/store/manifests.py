"""What an entry of the pool is made of: its graph and the regions that this maps, under a seal."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec

from edge_agent.errors import StorageError
from edge_agent.store.blobs import Region
from edge_agent.store.folder import entries, storage_errors
from edge_agent.store.leases import Lease, take_alone
from edge_agent.store.sealed import read_sealed, write_sealed

SUFFIX = ".json"
GRAPH_SUFFIX = ".onnx"
_DISOWNED_SUFFIX = ".disowned"
_LINE_BYTES = 256
"""More than the first line of a sealed file has."""


class EntryKind(StrEnum):
    """What the pool holds."""

    MODEL = "model"
    """A model as it was loaded: lost, it has to be loaded again."""
    COMPILED = "compiled"
    """A subgraph compiled for this device: lost, it is compiled again."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry."""

    kind: EntryKind
    key: str
    description: str
    """What the key was made from, for people."""
    graph_bytes: int
    graph_sha256: str
    regions: tuple[Region, ...]
    """Everything that the graph maps, and with each form its tensor; each once."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the tensors that lie outside of the graph, without their forms."""
        return sum(r.length_bytes for r in self.regions if r.offset_bytes == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry in use, until its lease is released or this process ends."""

    graph: Path
    manifest: Manifest
    lease: Lease

    def release(self) -> None:
        """End the use. May be called again."""
        self.lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Manifests:
    """The manifests in one folder, each read once for as long as it does not change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[bytes, Manifest] = {}
        """By their first line, which has the hash of the rest: times and inodes come again."""

    def path(self, key: str) -> Path:
        """Where the manifest of an entry lies, or would."""
        return self._folder / f"{key}{SUFFIX}"

    def graph(self, key: str) -> Path:
        """Where the graph of an entry lies, or would."""
        return self._folder / f"{key}{GRAPH_SUFFIX}"

    def write(self, manifest: Manifest) -> None:
        """Publish an entry whose parts are on disk. Raises: StorageError."""
        write_sealed(self.path(manifest.key), msgspec.json.encode(manifest))

    def read(self, path: Path) -> Manifest | None:
        """The manifest at `path`; None if there is none. Raises: StorageError if it is damaged."""
        content = read_sealed(path)
        if content is None:
            return None
        try:
            found = msgspec.json.decode(content, type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageError(f"{path}: is damaged: {error}") from error
        if found.key != path.name.split(".")[0]:
            raise StorageError(f"{path}: is the manifest of another entry: {found.key}")
        return found

    def all(self) -> tuple[dict[Path, Manifest], dict[Path, StorageError]]:
        """The manifests of all entries, those that were disowned included, and what is damaged.

        Raises: StorageError if the folder cannot be read.
        """
        found: dict[Path, Manifest] = {}
        damages: dict[Path, StorageError] = {}
        known: dict[bytes, Manifest] = {}
        for path in entries(self._folder):
            if path.name.startswith(".") or path.suffix not in (SUFFIX, _DISOWNED_SUFFIX):
                continue
            line = _first_line(path)
            try:
                manifest = self._known.get(line) or self.read(path)
            except StorageError as damage:
                damages[path] = damage
                continue
            if manifest is not None:
                found[path] = known[line] = manifest
        self._known = known
        return found, damages

    def remove_unused(self, path: Path) -> bool:
        """Remove an entry unless somebody uses it; whether it was removed. Raises: StorageError."""
        alone = take_alone(path)
        if alone is None:
            return False
        with alone, storage_errors(path, "remove"):
            path.unlink()
            path.with_suffix(GRAPH_SUFFIX).unlink(missing_ok=True)
        return True

    def drop(self, path: Path) -> None:
        """Remove an entry, if it is there, although somebody may use it: then it is only put out
        of reach, and what it maps stays until nobody does.

        Raises: StorageError.
        """
        if self.remove_unused(path):
            return
        target = path.with_suffix(f".{os.urandom(4).hex()}{_DISOWNED_SUFFIX}")
        with storage_errors(path, "set aside"), contextlib.suppress(FileNotFoundError):
            os.rename(path, target)


def is_disowned(path: Path) -> bool:
    """Whether a manifest is that of an entry which only those that have it open still use."""
    return path.suffix == _DISOWNED_SUFFIX


def graph_sha256(graph: Path) -> tuple[int, str]:
    """Length and hash of a graph's file. Raises: StorageError if it cannot be read."""
    with storage_errors(graph, "read"), graph.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def _first_line(path: Path) -> bytes:
    with storage_errors(path, "read"):
        try:
            with path.open("rb") as file:
                return file.read(_LINE_BYTES).partition(b"\n")[0]
        except FileNotFoundError:
            return b""
