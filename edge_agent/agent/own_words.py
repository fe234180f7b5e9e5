"""What this device tells its peers of itself: what it can do, how it is, how its links are."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from edge_agent.hardware import DeviceProfile
from edge_agent.peers import Gauged, PeerLink
from edge_agent.telemetry import condition, host
from edge_agent.wire.device_profiles import pack_profile
from edge_agent.wire.telling import LEAST_SPEED, Statistics, ToldGoodput, ToldLink

log = logging.getLogger(__name__)

SAMPLE_S: Final = 4.0
"""The device is looked at so often while a peer is there; that takes 2 ms."""
LOAD_NEWS: Final = 0.1
MEMORY_NEWS: Final = 0.1
SPEED_NEWS: Final = 0.05
LINK_NEWS: Final = 0.2
"""Changes, the last three and memory relative, that are told at once."""
TRIP_NEWS_S: Final = 1e-3
"""Smaller changes of a round trip are noise."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A profile, and how it is told."""

    profile: DeviceProfile
    speed_fraction: float
    packed: bytes
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How this device is."""

    load_fraction: float
    free_memory_bytes: int
    speed_fraction: float | None
    battery_fraction: float | None


class Sampler:
    """Looks at this device; used by one thread at a time."""

    def __init__(self, own_work: Callable[[], Iterable[int]]) -> None:
        """`own_work` names the processes whose use of the processor is not that of others."""
        self._own_work = own_work
        self._others = host.OtherLoad(own_work())

    def look(self) -> Sample:
        """How it is, the load since the last look."""
        load_fraction = self._others.fraction()
        self._others.watch(self._own_work())
        return Sample(
            load_fraction=load_fraction,
            free_memory_bytes=host.free_memory_bytes(),
            speed_fraction=condition.speed_fraction(),
            battery_fraction=condition.battery_fraction(),
        )


def only_the_agent() -> tuple[int, ...]:
    """Its process; what models of its own use counts as that of others."""
    return (os.getpid(),)


class OwnWords:
    """What is told. The profile may be set and read from any thread; the rest is for the thread of
    `peering.Peering`, but for `look`."""

    def __init__(self) -> None:
        self.own_work: Callable[[], Iterable[int]] = only_the_agent
        """Processes whose use of the processor is not told as that of others."""
        self._told: _Told | None = None
        self._sampler: Sampler | None = None
        self._looking = threading.Lock()

    @property
    def profile(self) -> DeviceProfile | None:
        """Of this device; None: it was not measured yet."""
        told = self._told
        return None if told is None else told.profile

    @property
    def packed_profile(self) -> bytes | None:
        """As it is told."""
        told = self._told
        return None if told is None else told.packed

    def learn(self, profile: DeviceProfile, speed_fraction: float) -> None:
        """This device was measured, when limits left it so much of its full speed."""
        try:
            packed = pack_profile(profile)
        except ValueError as error:
            log.warning("peers are not told the profile of this device: %s", error)
            return
        digest = hashlib.sha256(packed).digest()
        self._told = _Told(profile, speed_fraction, packed, digest)

    def look(self) -> Sample:
        """How the device is; blocks for some milliseconds."""
        with self._looking:
            if self._sampler is None:
                self._sampler = Sampler(lambda: self.own_work())
            return self._sampler.look()

    def statistics(self, sample: Sample, links: Iterable[PeerLink]) -> Statistics:
        """What is told of this."""
        told = self._told
        speed = 1.0 if sample.speed_fraction is None else sample.speed_fraction
        if told is not None:
            # Its rates hold the limits already that there were when they were measured.
            speed /= told.speed_fraction
        return Statistics(
            load_fraction=sample.load_fraction,
            free_memory_bytes=sample.free_memory_bytes,
            speed_fraction=min(1.0, max(LEAST_SPEED, speed)),
            battery_fraction=sample.battery_fraction,
            profile=None if told is None else told.digest,
            links=tuple(
                ToldLink(
                    device=link.device,
                    round_trip_s=link.round_trip_s,
                    receive=_goodput(link.receive),
                    send=_goodput(link.send),
                )
                for link in links
            ),
        )


def _goodput(gauged: Gauged | None) -> ToldGoodput | None:
    return None if gauged is None else ToldGoodput(gauged.bytes_per_s, gauged.age_s)


def is_news(before: Statistics, now: Statistics) -> bool:
    """Whether the second says something that should not wait."""
    return (
        abs(now.load_fraction - before.load_fraction) >= LOAD_NEWS
        or _is_other(before.free_memory_bytes, now.free_memory_bytes, MEMORY_NEWS)
        or _is_other(before.speed_fraction, now.speed_fraction, SPEED_NEWS)
        or _is_other(before.battery_fraction, now.battery_fraction, SPEED_NEWS)
        or before.profile != now.profile
        or _are_other_links(before.links, now.links)
    )


def _is_other(before: float | None, now: float | None, share: float, least: float = 0.0) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) > max(share * max(before, now), least)


def _are_other_links(before: tuple[ToldLink, ...], now: tuple[ToldLink, ...]) -> bool:
    if [link.device for link in before] != [link.device for link in now]:
        return True
    return any(
        _is_other(old.round_trip_s, new.round_trip_s, LINK_NEWS, TRIP_NEWS_S)
        or _is_other(_rate(old.receive), _rate(new.receive), LINK_NEWS)
        or _is_other(_rate(old.send), _rate(new.send), LINK_NEWS)
        for old, new in zip(before, now, strict=True)
    )


def _rate(told: ToldGoodput | None) -> float | None:
    return None if told is None else told.bytes_per_s
