"""The device profile of this device: measured once, kept over restarts, and measured again when the
device is another one or others disturbed it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from edge_agent.agent.measuring import MOST_LOAD, Measured, Measuring, measured_here
from edge_agent.agent.probing import Prober
from edge_agent.agent.turns import Traffic, Turn, wait_for_quiet
from edge_agent.config import Settings
from edge_agent.devices import Device
from edge_agent.errors import EdgeAgentError, StorageError
from edge_agent.hardware import DeviceProfile
from edge_agent.store.device_profiles import DeviceProfileStore, KeptProfile
from edge_agent.telemetry import condition

log = logging.getLogger(__name__)

FIRST_S: Final = 5.0
"""After the start: the models that were loaded before come first."""
LOOK_S: Final = 60.0
"""It is looked so often whether the device is another one, as after `replan`, which asks what there
is."""
FIRST_AGAIN_S: Final = 60.0
LONGEST_AGAIN_S: Final = 3600.0
"""Before it is measured again that others disturbed, or that failed; the pause doubles."""


END_S: Final = 2.0


class Host(Protocol):
    """What it needs of the controller."""

    building: Turn
    """Held by whoever measures."""
    prober: Prober
    """Knows the device."""


Measure = Callable[[Device], Measured]


class OwnProfile:
    """Has a thread of its own from `begin` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        traffic: Traffic,
        host: Host,
        on_known: Callable[[DeviceProfile, float], None],
        measure: Measure | None = None,
    ) -> None:
        """`on_known` hears each new profile, and how much of the full speed limits left meanwhile;
        `measure` does it, by child processes if it is None."""
        self._settings = settings
        self._store = DeviceProfileStore(settings.state)
        self._traffic = traffic
        self._host = host
        self._on_known = on_known
        self._measure = measure or self._by_children
        self._measuring = Measuring(
            log.info,
            self._wait_for_quiet,
            # A builder may measure between two units.
            lambda: host.building.held(self._is_over.is_set),
            is_background=True,
        )
        self._is_over = threading.Event()
        self._again_s = FIRST_AGAIN_S
        self._kept: KeptProfile | None = None
        self._thread = threading.Thread(target=self._run, name="own-profile", daemon=True)

    def begin(self) -> None:
        """Somebody wants to know it. To be called once."""
        self._thread.start()

    def stop(self) -> None:
        """End what is under way."""
        self._is_over.set()
        self._measuring.stop()
        self._host.building.look_again()
        if self._thread.ident is not None:
            # What is being probed ends by itself, or with the agent.
            self._thread.join(END_S)

    def _run(self) -> None:
        try:
            self._kept = self._load()
            if self._kept is not None:
                # Until it is known what there is, it is what there was.
                self._on_known(self._kept.profile, self._kept.speed_fraction)
            self._is_over.wait(FIRST_S)
            while not self._is_over.is_set():
                self._is_over.wait(self._turn())
        except Exception:
            log.exception("the profile of this device is not known")

    def _load(self) -> KeptProfile | None:
        try:
            return self._store.load()
        except StorageError as error:
            log.warning("%s", error)
            return None

    def _turn(self) -> float:
        """Measure if there is need to; for how long there is none then."""
        try:
            device = self._device()
            if self._kept is not None and self._kept.is_of(device):
                if self._kept.load_fraction <= MOST_LOAD:
                    return LOOK_S
            else:
                self._kept = None
            self._take(device, self._measured(device))
        except EdgeAgentError as error:
            if not self._is_over.is_set():
                log.warning("the profile of this device could not be measured: %s", error)
        if self._kept is not None and self._kept.load_fraction <= MOST_LOAD:
            self._again_s = FIRST_AGAIN_S
            return LOOK_S
        pause_s = self._again_s
        self._again_s = min(LONGEST_AGAIN_S, 2 * pause_s)
        return pause_s

    def _device(self) -> Device:
        if self._host.prober.known is None:
            self._wait_for_quiet()
        return self._host.prober.device()

    def _measured(self, device: Device) -> Measured:
        log.info("measuring this device for its peers: %s", ", ".join(u.id for u in device.units))
        return self._measure(device)

    def _wait_for_quiet(self) -> None:
        wait_for_quiet(self._traffic, self._is_over.is_set, lambda: None)

    def _by_children(self, device: Device) -> Measured:
        limit_s = self._settings.planning.unit_s
        return self._measuring.profile(device, measured_here(device), limit_s)

    def _take(self, device: Device, found: Measured) -> None:
        if self._kept is not None and found.load_fraction > self._kept.load_fraction:
            log.info("this device is as busy as when it was measured last: that is kept")
            return
        profile = found.profile
        if found.is_disturbed:
            log.warning(
                "this device was measured while others used %.0f %% of the processor: again later",
                100 * found.load_fraction,
            )
        else:
            log.info("this device is measured: %s", profile.name)
        self._kept = KeptProfile(
            device_key=device.key,
            units=device.units,
            load_fraction=found.load_fraction,
            speed_fraction=condition.speed_fraction() or 1.0,
            profile=profile,
        )
        self._on_known(profile, self._kept.speed_fraction)
        try:
            self._store.save(self._kept)
        except StorageError as error:
            log.warning("the profile of this device is not kept: %s", error)
