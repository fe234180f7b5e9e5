"""Which content of the store each peer may have: nothing is sent that was not offered to it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge_agent.devices import DeviceId
from edge_agent.stages import StageModel
from edge_agent.store.pool import Pool
from edge_agent.store.stage_content import places


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Bytes at the beginning of a file of the store, or, if there is a `content`, these."""

    path: Path = Path()
    size_bytes: int
    content: bytes | None = None


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
    """Which content each peer may have. Any thread may use it."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._offered: dict[DeviceId, dict[str, Offered]] = {}
        self._counts: Counter[tuple[DeviceId, str]] = Counter()
        """How often each is offered: models share tensors."""

    def offer(self, device: DeviceId, content: Mapping[str, Offered]) -> None:
        """The device may have these, by hash, too."""
        with self._changing:
            self._offered.setdefault(device, {}).update(content)
            self._counts.update((device, sha256) for sha256 in content)

    def withdraw(self, device: DeviceId, content: Iterable[str] | None = None) -> None:
        """What was offered once more by `offer` is offered once less; None: nothing is offered to
        the device any more."""
        with self._changing:
            known = self._offered.get(device, {})
            for sha256 in list(known) if content is None else content:
                self._counts[device, sha256] -= 1
                if content is None or self._counts[device, sha256] <= 0:
                    del self._counts[device, sha256]
                    known.pop(sha256, None)
            if not known:
                self._offered.pop(device, None)

    @contextmanager
    def offering(self, device: DeviceId, content: Mapping[str, Offered]) -> Iterator[None]:
        """As `offer`, for the block."""
        self.offer(device, content)
        try:
            yield
        finally:
            self.withdraw(device, content)

    def find(self, device: DeviceId, sha256: str) -> Offered | None:
        """What was offered to it under that hash."""
        with self._changing:
            return self._offered.get(device, {}).get(sha256)
