"""What a builder found out of each loaded model, so that it can be planned again without it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_agent.devices import Device, UnitId
from edge_agent.errors import BadRequest, StorageError
from edge_agent.profiles import LatencyProfile
from edge_agent.store.folder import (
    TEMPORARY_PREFIX,
    entries,
    make_folder,
    remove_file,
    sweep_temporaries,
)
from edge_agent.store.registry import check_name
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import ModelSummary

_VERSION = 1
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModel:
    """A loaded model as planning sees it, as it was measured here."""

    summary: ModelSummary
    profile: LatencyProfile
    device: Device
    cores: int
    """How many of the device's cores its plans may use."""
    input_bytes: int | None = None
    """What a request brings, for the shapes of the summary; None: it is not known."""
    output_bytes: int | None = None
    """What an answer brings back; None: it is not known before it is computed."""
    pinned: tuple[UnitId | None, ...] = ()
    """The unit of this device that the user pinned each segment to; () if none is pinned."""

    def __post_init__(self) -> None:
        count = len(self.summary.segments)
        for times in self.profile.times:
            if len(times.segment_s) != count:
                raise ValueError(
                    f"{times.configuration}: got times of {len(times.segment_s)} segments, want "
                    f"{count}"
                )
        if len(self.pinned) not in (0, count):
            raise ValueError(f"pinned: got {len(self.pinned)} segments, want {count}")
        if self.cores < 1:
            raise ValueError(f"cores: got {self.cores}, want at least 1")


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    model: ProfiledModel


class ProfiledStore:
    """Under `root`/profiled, a file for the name of each loaded model."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "profiled"
        make_folder(self._folder)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-written; returns what was removed.

        Raises: StorageError.
        """
        return sweep_temporaries(self._folder)

    def collect(self, names: Collection[str]) -> None:
        """Remove what belongs to other names. Raises: StorageError."""
        keep = {f"{name}{_SUFFIX}" for name in names}
        for path in entries(self._folder):
            if path.name not in keep and not path.name.startswith(TEMPORARY_PREFIX):
                remove_file(path)

    def save(self, name: str, model: ProfiledModel) -> None:
        """Keep what was found out of the model loaded as `name`, in place of what was kept before.

        Raises: UsageError if the name is not allowed; StorageError.
        """
        write_sealed(self._path(name), msgspec.json.encode(_Stored(v=_VERSION, model=model)))

    def load(self, name: str, model: ModelId) -> ProfiledModel:
        """What was saved last under that name.

        Raises:
            BadRequest: nothing is kept of that model there.
            StorageError: it is damaged, or was written by another version.
            UsageError: the name is not allowed.
        """
        path, cure = self._path(name), f"`edge-agent replan {name}` measures it again"
        content = read_sealed(path)
        if content is None:
            raise BadRequest(
                f'model "{name}": nothing is kept of what was measured of it, as of models planned '
                f"by older versions; {cure}"
            )
        try:
            stored = msgspec.json.decode(content, type=_Stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StorageError(f"{path}: is damaged: {error}; {cure}") from error
        if stored.v != _VERSION:
            raise StorageError(f"{path}: got version {stored.v}, want {_VERSION}; {cure}")
        if stored.model.summary.model != model:
            raise BadRequest(
                f'model "{name}": what was measured under this name is of another model; wait for '
                f"its plan, or {cure}"
            )
        return stored.model

    def _path(self, name: str) -> Path:
        return self._folder / f"{check_name(name)}{_SUFFIX}"
