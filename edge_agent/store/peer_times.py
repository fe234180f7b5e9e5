"""What was measured of the stages of loaded models on the devices that hosted them.

A file for each run of segments, so that to add one no other is read: who adds must not be held up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from edge_agent.devices import DeviceId
from edge_agent.errors import UsageError
from edge_agent.literals import literal
from edge_agent.profiles import StageTimes
from edge_agent.store.folder import (
    entries,
    make_folder,
    remove_file,
    remove_tree,
    sweep_staging,
    sweep_temporaries,
)
from edge_agent.store.registry import check_name
from edge_agent.store.sealed import read_or_set_aside, write_sealed
from edge_agent.subgraphs import ModelId

MOST_OF_A_DEVICE: Final = 32
"""Runs of segments that are kept of a model and device; of more, the oldest go."""

_VERSION = 1
_FILE = re.compile(r"(\d{8})\.(\d+-\d+)\.json")
_DEVICE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MODEL = re.compile(r"[A-Za-z0-9]{1,64}")

_log = logging.getLogger(__name__)


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    stage: StageTimes


class PeerTimesStore:
    """Under `root`/peer_times, a folder for each model and the name that it is loaded under, with
    one for each device; one process adds, others may read meanwhile."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "peer_times"
        self._staging = self._folder / "staging"
        make_folder(self._staging)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-done; returns what was removed.

        Raises: StorageError.
        """
        left = [path for folder in self._devices() for path in sweep_temporaries(folder)]
        return (*sweep_staging(self._staging), *left)

    def collect(self, loaded: Collection[tuple[str, ModelId]]) -> None:
        """Remove what belongs to others than these names and models. Raises: StorageError."""
        keep = {f"{name}@{model}" for name, model in loaded}
        for path in self._models():
            if path.name not in keep:
                remove_tree(path, self._staging)

    def add(self, name: str, model: ModelId, device: DeviceId, stage: StageTimes) -> None:
        """Keep what was measured on a device, in place of what was of the same segments.

        Raises: UsageError if a name is not allowed; StorageError.
        """
        folder = self._of(name, model, device)
        make_folder(folder)
        kept = self._kept(folder)
        number = kept[-1][0] + 1 if kept else 0
        run = f"{stage.segments.start}-{stage.segments.stop}"
        content = msgspec.json.encode(_Stored(v=_VERSION, stage=stage))
        write_sealed(folder / f"{number:08}.{run}.json", content)
        others = [path for _, other, path in kept if other != run]
        replaced = [path for _, other, path in kept if other == run]
        for path in (*replaced, *others[: max(len(others) + 1 - MOST_OF_A_DEVICE, 0)]):
            remove_file(path)

    def load(self, name: str, model: ModelId, device: DeviceId) -> tuple[StageTimes, ...]:
        """What is kept of a device, the newest last; what is damaged, or was written by another
        version, is left out.

        Raises: UsageError if a name is not allowed; StorageError.
        """
        found = (self._read(path) for _, _, path in self._kept(self._of(name, model, device)))
        return tuple(stage for stage in found if stage is not None)

    def _read(self, path: Path) -> StageTimes | None:
        content = read_or_set_aside(path, "the peer measures it again when it hosts it again")
        if content is None:
            return None
        try:
            stored = msgspec.json.decode(content, type=_Stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("%s: is not used: %s", path, error)
            return None
        return stored.stage if stored.v == _VERSION else None

    def _models(self) -> Iterator[Path]:
        return (path for path in entries(self._folder) if "@" in path.name)

    def _devices(self) -> Iterator[Path]:
        return (device for model in self._models() for device in entries(model))

    def _kept(self, folder: Path) -> list[tuple[int, str, Path]]:
        """(number, segments, file), the newest last."""
        found = ((_FILE.fullmatch(path.name), path) for path in entries(folder))
        return [(int(match[1]), match[2], path) for match, path in found if match]

    def _of(self, name: str, model: ModelId, device: DeviceId) -> Path:
        for what, text, allowed in (("model", model, _MODEL), ("device", device, _DEVICE)):
            if not allowed.fullmatch(text):
                raise UsageError(f"{what}: got {literal(text)}, want 1 to 64 letters and digits")
        return self._folder / f"{check_name(name)}@{model}" / device
