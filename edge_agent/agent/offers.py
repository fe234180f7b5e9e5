"""Which content of the store each peer may have: nothing is sent that was not offered to it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_agent.devices import DeviceId
from edge_agent.stages import StageModel
from edge_agent.store.pool import Pool
from edge_agent.store.stage_content import places


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A tensor in a file of the store, at its beginning."""

    path: Path
    size_bytes: int


def content_of(stage: StageModel, pool: Pool) -> dict[str, Offered]:
    """All that a host of the stage may have.

    Raises: StorageError if it is no entry of the pool.
    """
    found = places(stage, pool)
    return {
        blob.sha256: Offered(path=found[blob.sha256], size_bytes=blob.size_bytes)
        for blob in stage.blobs
    }


class Offers:
    """Which tensors each peer may have. Any thread may use it."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._offered: dict[DeviceId, dict[str, Offered]] = {}

    def offer(self, device: DeviceId, tensors: Mapping[str, Offered]) -> None:
        """The device may have these, by hash, too."""
        with self._changing:
            self._offered.setdefault(device, {}).update(tensors)

    def withdraw(self, device: DeviceId, hashes: Iterable[str] | None = None) -> None:
        """The device may have these no more; None: nothing."""
        with self._changing:
            if hashes is None:
                self._offered.pop(device, None)
                return
            for sha256 in hashes:
                self._offered.get(device, {}).pop(sha256, None)

    def find(self, device: DeviceId, sha256: str) -> Offered | None:
        """What was offered to it under that hash."""
        with self._changing:
            return self._offered.get(device, {}).get(sha256)
