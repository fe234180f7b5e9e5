"""Real inputs that users gave with their models, as bytes on disk: named by content, until no model
that is loaded refers to them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence, Set
from pathlib import Path

from edge_agent.errors import StorageError
from edge_agent.store.folder import (
    StagingFolder,
    entries,
    make_folder,
    move_folder,
    remove_tree,
    require_free_bytes,
    sweep_staging,
)
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import SampleSetId

_ID = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".sample"


class SampleStore:
    """Sets of samples under `root`/samples, a folder for each; several processes may use it."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "samples"
        self._staging = self._folder / "staging"
        make_folder(self._staging)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-done; returns what was removed.

        Raises: StorageError.
        """
        return sweep_staging(self._staging)

    def put(self, samples: Sequence[bytes]) -> SampleSetId:
        """Keep a set of samples, in this order; one that is there, undamaged, is used as it is.

        Raises: StorageError; then nothing of it is left.
        """
        sample_set = _id_of(samples)
        target = self._folder / sample_set
        require_free_bytes(self._folder, sum(map(len, samples)))
        with StagingFolder(self._staging) as staged:
            for number, content in enumerate(samples):
                write_sealed(staged.path / f"{number:04}{_SUFFIX}", content)
            while not move_folder(staged.path, target):
                try:
                    self.get(sample_set)
                    break
                except StorageError:
                    remove_tree(target, self._staging)
        return sample_set

    def get(self, sample_set: SampleSetId) -> tuple[bytes, ...]:
        """The samples of a set, in their order.

        Raises: StorageError if one is missing or damaged.
        """
        folder = self._folder / sample_set
        paths = [path for path in entries(folder) if path.suffix == _SUFFIX]
        samples = tuple(content for p in paths if (content := read_sealed(p)) is not None)
        if _id_of(samples) != sample_set:
            raise StorageError(f"{folder}: is damaged: samples are missing or others")
        return samples

    def collect(self, keep: Set[SampleSetId]) -> tuple[SampleSetId, ...]:
        """Remove every set that is not in `keep`; returns their ids. Raises: StorageError."""
        found = (SampleSetId(p.name) for p in entries(self._folder) if _ID.fullmatch(p.name))
        unwanted = tuple(sample_set for sample_set in found if sample_set not in keep)
        for sample_set in unwanted:
            remove_tree(self._folder / sample_set, self._staging)
        return unwanted


def _id_of(samples: Sequence[bytes]) -> SampleSetId:
    whole = hashlib.sha256()
    for content in samples:
        whole.update(hashlib.sha256(content).digest())
    return SampleSetId(whole.hexdigest())
