"""Device profiles on disk: that of this device as it was measured, and those that peers told."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from edge_agent.devices import ComputeUnit, Device, DeviceId
from edge_agent.hardware import DeviceProfile
from edge_agent.store.folder import (
    TEMPORARY_PREFIX,
    entries,
    make_folder,
    remove_file,
    set_aside,
    sweep_temporaries,
)
from edge_agent.store.sealed import read_or_set_aside, write_sealed

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_LOST: Final = "this device is measured again"
_MEMORY_SLACK: Final = 0.05
"""The kernel keeps a little more or less of the memory for itself from one start to the next."""


class KeptProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The profile of this device, and what it is valid for."""

    device_key: str
    units: tuple[ComputeUnit, ...]
    load_fraction: float
    """Share of the processor that others used while it was measured."""
    speed_fraction: float
    """Share of the full speed that temperature or power limits left then."""
    profile: DeviceProfile

    def is_of(self, device: Device) -> bool:
        """Whether it is valid for the device as it is now."""
        memory_bytes = self.profile.memory_bytes.value
        is_as_large = abs(device.memory_bytes - memory_bytes) <= _MEMORY_SLACK * memory_bytes
        found = _known_by(self.device_key, self.units)
        return is_as_large and found == _known_by(device.key, device.units)


def _known_by(key: str, units: tuple[ComputeUnit, ...]) -> object:
    measured = [
        (u.id, u.kind, u.provider, u.provider_version, u.cores, u.options, u.layout_options)
        for u in units
    ]
    return key, measured


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    kept: KeptProfile


class DeviceProfileStore:
    """In the file `root`/device-profile.json, and a file for each peer in `root`/peer-profiles."""

    def __init__(self, root: Path) -> None:
        """Raises: StorageError."""
        self._root = root
        self._own = root / "device-profile.json"
        self._folder = root / "peer-profiles"

    def load(self) -> KeptProfile | None:
        """The profile of this device; None: none is kept, or it was damaged and is set aside.

        Raises: StorageError.
        """
        content = read_or_set_aside(self._own, _LOST)
        if content is None:
            return None
        try:
            stored = msgspec.json.decode(content, type=_Stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("%s: %s; kept as %s", self._own, error, set_aside(self._own).name)
            return None
        return stored.kept if stored.v == _VERSION else None

    def save(self, kept: KeptProfile) -> None:
        """Keep the profile of this device in place of the one before. Raises: StorageError."""
        make_folder(self._root)
        write_sealed(self._own, msgspec.json.encode(_Stored(v=_VERSION, kept=kept)))

    def load_peer(self, device: DeviceId) -> bytes | None:
        """What a peer told, packed; None: nothing, or it was damaged and is set aside.

        Raises: StorageError.
        """
        return read_or_set_aside(self._path(device), "the peer is asked again")

    def save_peer(self, device: DeviceId, packed: bytes) -> None:
        """Keep what a peer told. Raises: StorageError."""
        make_folder(self._folder)
        write_sealed(self._path(device), packed)

    def collect(self, keep: Collection[DeviceId]) -> None:
        """Forget what others told, and what dead processes left half-written.

        Raises: StorageError.
        """
        if not self._folder.exists():
            return
        sweep_temporaries(self._folder)
        for path in entries(self._folder):
            if path.stem not in keep and not path.name.startswith(TEMPORARY_PREFIX):
                remove_file(path)

    def _path(self, device: DeviceId) -> Path:
        return self._folder / f"{device}.bin"
