"""Which models are loaded under which name, and the numbers that must never be used twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_agent import clock
from edge_agent.errors import StorageError, UsageError
from edge_agent.literals import literal
from edge_agent.plans import AllowedWire, Pin, Target
from edge_agent.store.folder import (
    entries,
    make_folder,
    remove_file,
    set_aside,
    sweep_temporaries,
)
from edge_agent.store.lock import exclusively
from edge_agent.store.sealed import read_or_set_aside, read_sealed, write_sealed
from edge_agent.subgraphs import ModelId, SampleSetId
from edge_agent.tensors import Shape, TensorName

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that the agent serves under a name, as the user loaded it."""

    name: str
    model: ModelId
    target: Target
    threads: int | None
    """Processor threads that the user allows it; None: the agent chooses."""
    shapes: tuple[tuple[TensorName, Shape], ...]
    """Input shapes that the user fixed, as (input, shape)."""
    loaded_at_s: float
    """Wall time."""
    source: str
    """The file that it was loaded from, for people."""
    subgraphs: int | None = None
    """How many subgraphs the user wants, whether it pays or not; None: the agent chooses."""
    pins: tuple[Pin, ...] = ()
    """Which nodes the user wants to run on which units."""
    samples: SampleSetId | None = None
    """Real inputs that the user gave to compare and time with."""
    half_bound: float | None = None
    """How far outputs may be from those in float32, as a share of their range, where float16 makes
    a unit faster; None: float16 is not allowed."""
    over: tuple[str, ...] | None = None
    """Names of the devices over which the user wants it divided, whether it pays or not; (): this
    one alone; None: as it pays."""
    wire: AllowedWire | None = None
    """As what tensors may be sent to other devices where that pays; None: only as they are."""
    quarantined: str | None = None
    """Why it is no longer run; None if it is."""


def check_name(name: str) -> str:
    """`name`, if a model can be called so.

    Raises: UsageError.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"model name: got {literal(name)}, want 1 to 64 of A-Z a-z 0-9 . _ - beginning "
            "with a letter or digit; choose one with --name"
        )
    return name


class _Counters(msgspec.Struct, forbid_unknown_fields=True):
    incarnation: int
    epochs: dict[ModelId, int]
    """Number of the last epoch of each model in this incarnation."""
    floor: int = 0
    """Where a model without an entry in `epochs` goes on from."""


class Registry:
    """The loaded models under `root`/registry, a file for each name, and the counters."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "registry"
        self._counters = root / "counters.json"
        make_folder(self._folder)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-written; returns what was removed.

        Raises: StorageError.
        """
        return sweep_temporaries(self._folder) + sweep_temporaries(self._root)

    def load(self) -> tuple[tuple[LoadedModel, ...], tuple[StorageError, ...]]:
        """The loaded models by name, and an error to report for each file that was damaged.

        A damaged file is set aside as `<name>.json.damaged-<N>`.
        Raises: StorageError if the folder cannot be read, or a damaged file not be moved.
        """
        loaded: list[LoadedModel] = []
        damages: list[StorageError] = []
        for path in entries(self._folder):
            if path.name.startswith(".") or path.suffix != _SUFFIX:
                continue
            try:
                loaded += _read(path)
            except StorageError as damage:
                aside = set_aside(path)
                damages.append(
                    StorageError(f"{damage}; kept as {aside.name}; load the model again")
                )
        return tuple(loaded), tuple(damages)

    def save(self, loaded: LoadedModel) -> None:
        """Write `loaded`, in place of what its name stood for.

        Raises: UsageError if its name is not allowed; StorageError.
        """
        write_sealed(self._path(loaded.name), msgspec.json.encode(loaded))

    def remove(self, name: str) -> None:
        """Forget the model of that name, if there is one.

        Raises: UsageError if the name is not allowed; StorageError.
        """
        remove_file(self._path(name))

    def next_incarnation(self) -> int:
        """A number above all that were returned before; it is on disk. Raises: StorageError."""
        with self._counting() as counters:
            counters.incarnation += 1
            # Unique within an incarnation is enough: models that are gone are forgotten here.
            counters.epochs, counters.floor = {}, 0
            return counters.incarnation

    def next_epoch(self, model: ModelId) -> int:
        """A number above all that were returned for `model` in this incarnation; it is on disk.

        Raises: StorageError.
        """
        with self._counting() as counters:
            number = counters.epochs.get(model, counters.floor) + 1
            counters.epochs[model] = number
            return number

    @contextmanager
    def _counting(self) -> Iterator[_Counters]:
        with exclusively(self._counters.with_suffix(".lock")):
            counters = self._read_counters()
            yield counters
            write_sealed(self._counters, msgspec.json.encode(counters))

    def _read_counters(self) -> _Counters:
        fresh = not self._counters.exists()
        content = read_or_set_aside(self._counters, "counting goes on from the time of day")
        if content is not None:
            try:
                return msgspec.json.decode(content, type=_Counters)
            except (msgspec.DecodeError, UnicodeDecodeError):
                set_aside(self._counters)
        # An honest count reaches the time in seconds only with one start or epoch a second.
        floor = 0 if fresh else int(clock.wall_s())
        return _Counters(incarnation=floor, epochs={}, floor=floor)

    def _path(self, name: str) -> Path:
        return self._folder / f"{check_name(name)}{_SUFFIX}"


def _read(path: Path) -> list[LoadedModel]:
    content = read_sealed(path)
    if content is None:
        # Removed by another process since the folder was listed.
        return []
    try:
        loaded = msgspec.json.decode(content, type=LoadedModel)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: is damaged: {error}") from error
    if loaded.name != path.name.removesuffix(_SUFFIX):
        raise StorageError(f"{path}: is the file of another name: {literal(loaded.name)}")
    return [loaded]
