"""Which stages of other devices' models this one hosts, ready to be opened again, and which go when
they take too much."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_agent.devices import DeviceId
from edge_agent.errors import StorageError
from edge_agent.plans import Target
from edge_agent.stages import StageModel
from edge_agent.store.folder import (
    entries,
    free_bytes,
    make_folder,
    remove_file,
    storage_errors,
    sweep_temporaries,
)
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import Built

log = logging.getLogger(__name__)

_VERSION = 1
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedKey:
    """One stage as it is built for one owner."""

    stage: StageModel
    owner: DeviceId | None
    """The device whose model it is a part of; None: this one."""
    target: Target
    threads: int | None
    """As in `Build`."""
    half_bound: float | None = None
    """As in `Build`."""


class Hosted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stage that is hosted."""

    key: HostedKey
    built: Built | None = None
    """What is opened for it; None as long as it is not built."""


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    hosted: Hosted


class HostedStore:
    """Under `root`/hosted, a file for each stage that is hosted."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        """The stages of other devices may take `max_bytes` together, but at most half of what the
        disk would have free without them; those of this one's models share what these have.

        Raises: StorageError.
        """
        self._folder = root / "hosted"
        self._max_bytes = max_bytes
        make_folder(self._folder)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-written; returns what was removed.

        Raises: StorageError.
        """
        return sweep_temporaries(self._folder)

    def save(self, hosted: Hosted) -> None:
        """Keep a stage, in place of what was kept of it; to be done before its content comes, for
        what is not kept goes from the pool. It counts as a use. Raises: StorageError.
        """
        write_sealed(self._path(hosted.key), msgspec.json.encode(_Stored(_VERSION, hosted)))

    def find(self, key: HostedKey) -> Hosted | None:
        """What is kept of that stage; None if that is nothing, or was damaged or written by another
        version, which is logged. Raises: StorageError.
        """
        return _read(self._path(key))

    def touch(self, key: HostedKey) -> None:
        """It is used now: of what is not in use, those go first that were used longest ago.

        Raises: StorageError.
        """
        path = self._path(key)
        with storage_errors(path, "touch"):
            try:
                os.utime(path)
            except FileNotFoundError:
                return  # it was removed meanwhile

    def remove(self, key: HostedKey) -> None:
        """Host it no more. Raises: StorageError."""
        remove_file(self._path(key))

    def all(self) -> tuple[Hosted, ...]:
        """All that are kept, the one used longest ago first. Raises: StorageError."""
        return tuple(hosted for _, hosted in self._by_use())

    def make_room(self, stage: StageModel, in_use: Collection[ModelId]) -> tuple[Hosted, ...]:
        """Remove what was used longest ago, and is not in use, until `stage` may be hosted beside
        the rest; what was removed, whose content goes when the pool is tidied. `in_use` are ids of
        stages.

        Raises: StorageError: it is larger than what may be hosted beside those in use.
        """
        found = [(path, hosted) for path, hosted in self._by_use() if hosted.key.owner is not None]
        taken_bytes = _content_bytes(found)
        budget_bytes = min(self._max_bytes, (free_bytes(self._folder) + taken_bytes) // 2)
        removed = _give_way(found, budget_bytes, {*in_use, stage.id}, stage)
        if (got_bytes := _content_bytes(found, stage)) > budget_bytes:
            raise StorageError(
                f"{self._folder}: got {got_bytes} bytes with stage {stage.id[:12]} and those in "
                f"use, want at most {budget_bytes}; free some space there, or raise "
                "max_hosted_bytes in the settings"
            )
        return removed

    def shrink(self) -> tuple[Hosted, ...]:
        """Remove what was used longest ago beyond what may be hosted, as where the settings allow
        less than before; nothing may be in use. What was removed, whose content goes when the pool
        is tidied.

        Raises: StorageError.
        """
        found = [(path, hosted) for path, hosted in self._by_use() if hosted.key.owner is not None]
        return _give_way(found, self._max_bytes, ())

    def collect(self, models: Collection[ModelId]) -> set[ModelId]:
        """Forget the stages of this device's models other than these; the ids of all stages that
        are left, of other devices too. Raises: StorageError.
        """
        kept = set()
        for path, hosted in self._by_use():
            if hosted.key.owner is None and hosted.key.stage.model not in models:
                remove_file(path)
            else:
                kept.add(hosted.key.stage.id)
        return kept

    def _by_use(self) -> list[tuple[Path, Hosted]]:
        found = []
        for path in entries(self._folder):
            if path.suffix != _SUFFIX or path.name.startswith("."):
                continue
            hosted = _read(path)
            if hosted is None:
                remove_file(path)
                continue
            with storage_errors(path, "examine"):
                found.append((path.stat().st_mtime_ns, path, hosted))
        return [(path, hosted) for _, path, hosted in sorted(found, key=lambda f: f[:2])]

    def _path(self, key: HostedKey) -> Path:
        described = hashlib.sha256(msgspec.json.encode(key)).hexdigest()
        return self._folder / f"{described}{_SUFFIX}"


def _give_way(
    found: list[tuple[Path, Hosted]],
    budget_bytes: int,
    keep: Collection[ModelId],
    *more: StageModel,
) -> tuple[Hosted, ...]:
    """Remove the first of them, but for those to keep, until the rest fits with `more`; what was
    removed, which is no longer in `found`."""
    removed = []
    for path, hosted in tuple(found):
        if _content_bytes(found, *more) <= budget_bytes:
            break
        if hosted.key.stage.id not in keep:
            remove_file(path)
            removed.append(hosted)
            found.remove((path, hosted))
    return tuple(removed)


def _content_bytes(found: Iterable[tuple[Path, Hosted]], *more: StageModel) -> int:
    """What these stages take with `more`, each content counted once."""
    stages = (*(hosted.key.stage for _, hosted in found), *more)
    return sum(size for _, size in {(b.sha256, b.size_bytes) for s in stages for b in s.blobs})


def _read(path: Path) -> Hosted | None:
    try:
        content = read_sealed(path)
        stored = None if content is None else msgspec.json.decode(content, type=_Stored)
    except (StorageError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s: %s; the stage will be received and built again", path, error)
        return None
    return None if stored is None or stored.v != _VERSION else stored.hosted
