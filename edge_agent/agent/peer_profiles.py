"""The device profiles that peers told, in memory and on disk, so that planning over devices can
begin at once after a start."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from edge_agent.devices import DeviceId
from edge_agent.errors import ProtocolError, StorageError
from edge_agent.hardware import DeviceProfile
from edge_agent.peers import ProfileSummary, UnitSummary
from edge_agent.store.device_profiles import DeviceProfileStore
from edge_agent.wire.device_profiles import unpack_profile

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldProfile:
    """What a peer told."""

    packed: bytes
    digest: bytes
    """The SHA-256 of that."""
    profile: DeviceProfile
    summary: ProfileSummary


def held(packed: bytes) -> HeldProfile:
    """A profile that came. Raises: ProtocolError: it is none."""
    profile = unpack_profile(packed)
    return HeldProfile(packed, hashlib.sha256(packed).digest(), profile, summary_of(profile))


def summary_of(profile: DeviceProfile) -> ProfileSummary:
    """What people want to know of a profile."""
    source = profile.memory_bytes.source
    return ProfileSummary(
        name=profile.name,
        cores=profile.cores,
        memory_bytes=int(profile.memory_bytes.value),
        units=tuple(
            UnitSummary(
                id=unit.id,
                kind=unit.kind,
                operations_per_s=tuple((str(a), rate.value) for a, rate in unit.operations_per_s),
                bandwidth_bytes_per_s=unit.bandwidth_bytes_per_s.value,
                memory_bytes=None if unit.memory_bytes is None else int(unit.memory_bytes.value),
            )
            for unit in profile.units
        ),
        source=source.text,
        date=source.date.isoformat(),
    )


class PeerProfiles:
    """Any thread may use it; the disk is left to `later`."""

    def __init__(
        self, store: DeviceProfileStore, later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._store = store
        self._later = later
        self._held: dict[DeviceId, HeldProfile] = {}
        self._writing = threading.Lock()

    def load(self, devices: Iterable[DeviceId]) -> None:
        """Take up what these told before, and forget what others did."""
        for device in devices:
            try:
                packed = self._store.load_peer(device)
                if packed is not None:
                    self._held[device] = held(packed)
            except (StorageError, ProtocolError) as error:
                # As of another version: the peer is asked again.
                log.warning("the device profile of peer %s is not taken up: %s", device, error)
        self._later(self._collect)

    def of(self, device: DeviceId) -> HeldProfile | None:
        """What the device told."""
        return self._held.get(device)

    def keep(self, device: DeviceId, told: HeldProfile) -> None:
        """The device told this."""
        self._held[device] = told
        self._later(lambda: self._save(device))

    def keep_only(self, devices: Collection[DeviceId]) -> None:
        """Forget what all others told."""
        gone = [device for device in self._held if device not in devices]
        for device in gone:
            del self._held[device]
        if gone:
            self._later(self._collect)

    def _save(self, device: DeviceId) -> None:
        with self._writing:
            # What it told last; nothing if it was forgotten since.
            if (told := self._held.get(device)) is not None:
                _write(lambda: self._store.save_peer(device, told.packed))

    def _collect(self) -> None:
        with self._writing:
            _write(lambda: self._store.collect(set(self._held)))


def _write(action: Callable[[], None]) -> None:
    try:
        action()
    except StorageError as error:
        log.warning("device profiles of peers: %s", error)
