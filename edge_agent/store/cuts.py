"""Which stages were cut out of each loaded model, so that they are not cut again."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from edge_agent.errors import StorageError
from edge_agent.stages import StageModel
from edge_agent.store.folder import (
    TEMPORARY_PREFIX,
    entries,
    make_folder,
    remove_file,
    remove_tree,
    storage_errors,
    sweep_staging,
    sweep_temporaries,
)
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import ModelId, SampleSetId, SegmentRange
from edge_agent.tensors import Shape, TensorName
from edge_agent.wire.cutting import CutStages

log = logging.getLogger(__name__)

MOST_STAGES: Final = 32
"""That are kept of each model; with each lie its samples, which are as large as what crosses."""
_VERSION = 1
_STAGING = "staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutKey:
    """What a stage is cut out of, and where."""

    model: ModelId
    shapes: tuple[tuple[TensorName, Shape], ...]
    """In any order."""
    samples: SampleSetId | None
    starts: tuple[int, ...]
    """The first node of every segment of the model."""
    segments: SegmentRange


def key_of(asked: CutStages, segments: SegmentRange) -> CutKey:
    """Of one of the stages that are asked for."""
    return CutKey(
        model=asked.model,
        shapes=asked.shapes,
        samples=asked.samples,
        starts=asked.starts,
        segments=segments,
    )


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    stage: StageModel


class CutStore:
    """Under `root`/cuts, a folder for each model; several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        """Raises: StorageError."""
        self._folder = root / "cuts"
        self._staging = self._folder / _STAGING
        make_folder(self._staging)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-done; returns what was removed.

        Raises: StorageError.
        """
        half_written = (p for folder in self._folders() for p in sweep_temporaries(folder))
        return (*half_written, *sweep_staging(self._staging))

    def put(self, key: CutKey, stage: StageModel) -> None:
        """Keep a stage, before it is an entry of the pool: what is not kept goes from there.

        Raises: StorageError.
        """
        path = self._path(key)
        make_folder(path.parent)
        write_sealed(path, msgspec.json.encode(_Stored(_VERSION, stage)))

    def get(self, key: CutKey) -> StageModel | None:
        """What was put under `key`, which counts as a use; None if there is nothing, or if it was
        damaged or written by another version, which is logged. Raises: StorageError.
        """
        path = self._path(key)
        found = _read(path)
        if found is not None:
            with storage_errors(path, "touch"):
                os.utime(path)
        return found

    def collect(self, models: Collection[ModelId]) -> set[ModelId]:
        """Forget the stages of other models, and of each of these all but those used last; the ids
        of those that are left. Raises: StorageError.
        """
        for folder in self._folders():
            if folder.name not in models:
                remove_tree(folder, self._staging)
        kept: set[ModelId] = set()
        for folder in self._folders():
            kept.update(_collected(folder))
        return kept

    def _folders(self) -> list[Path]:
        return [p for p in entries(self._folder) if p.name != _STAGING]

    def _path(self, key: CutKey) -> Path:
        described = (sorted(key.shapes), key.samples, key.starts, key.segments)
        digest = hashlib.sha256(msgspec.json.encode(described)).hexdigest()
        return self._folder / key.model / f"{digest}.json"


def _read(path: Path) -> StageModel | None:
    try:
        content = read_sealed(path)
        stored = None if content is None else msgspec.json.decode(content, type=_Stored)
    except (StorageError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s: %s; the stage will be cut again", path, error)
        return None
    return None if stored is None or stored.v != _VERSION else stored.stage


def _collected(folder: Path) -> set[ModelId]:
    found = [p for p in entries(folder) if not p.name.startswith(TEMPORARY_PREFIX)]
    with storage_errors(folder, "read"):
        found.sort(key=lambda path: (-path.stat().st_mtime_ns, path.name))
    kept: set[ModelId] = set()
    for number, path in enumerate(found):
        stage = _read(path) if number < MOST_STAGES else None
        if stage is None:
            remove_file(path)
        else:
            kept.add(stage.id)
    return kept
