"""Plans and latency profiles as bytes on disk: where they lie and when they may be dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_agent.store.folder import (
    entries,
    make_folder,
    remove_file,
    sweep_temporaries,
)
from edge_agent.store.registry import check_name
from edge_agent.store.sealed import read_or_set_aside, write_sealed
from edge_agent.tensors import Shape, TensorName


class PlanStore:
    """The last plan of each loaded model, under `root`/plans."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "plans"
        make_folder(self._folder)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-written; returns what was removed.

        Raises: StorageError.
        """
        return sweep_temporaries(self._folder)

    def save_plan(self, name: str, content: bytes) -> None:
        """Keep `content` as the plan of the model loaded as `name`, in place of the one before.

        Raises: UsageError if the name is not allowed; StorageError.
        """
        write_sealed(self._path(name), content)

    def load_plan(self, name: str) -> bytes | None:
        """The plan that was saved last; None if there is none, or if it was damaged.

        A damaged one is set aside and a warning logged. Raises: StorageError.
        """
        return read_or_set_aside(self._path(name), "the model will be planned again")

    def remove_plan(self, name: str) -> None:
        """Remove the plan of `name`, if there is one. Raises: StorageError."""
        remove_file(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{check_name(name)}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What a latency profile is valid for."""

    content: str
    """Hash of graph and weights: sparse weights and denormal numbers change times."""
    shapes: tuple[tuple[TensorName, Shape], ...]
    """In any order: they are compared by input."""
    device_key: str
    """Processor, ONNX Runtime build and version."""


class ProfileStore:
    """Latency profiles under `root`/profiles; several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "profiles"
        make_folder(self._folder)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-done; returns what was removed.

        Raises: StorageError.
        """
        return tuple(p for folder in self._folders() for p in sweep_temporaries(folder))

    def put(self, key: ProfileKey, content: bytes) -> None:
        """Keep `content` under `key`, in place of what was there. Raises: StorageError."""
        path = self._path(key)
        make_folder(path.parent)
        write_sealed(path, content)

    def get(self, key: ProfileKey) -> bytes | None:
        """What was put under `key`; None if there is nothing, or if it was damaged.

        A damaged one is set aside and a warning logged. Raises: StorageError.
        """
        return read_or_set_aside(self._path(key), "the model will be measured again")

    def contents(self) -> Iterator[bytes]:
        """All that was put and is undamaged, by name of file. Raises: StorageError."""
        for folder in sorted(self._folders()):
            for path in sorted(folder.glob("*.json")):
                content = read_or_set_aside(path, "the model will be measured again")
                if content is not None:
                    yield content

    def _folders(self) -> list[Path]:
        return [p for p in entries(self._folder) if p.is_dir()]

    def _path(self, key: ProfileKey) -> Path:
        described = msgspec.json.encode((sorted(key.shapes), key.device_key))
        return self._folder / key.content / f"{hashlib.sha256(described).hexdigest()}.json"
