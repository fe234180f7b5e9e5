"""The planning problem: a model, devices with their units, links, live statistics, targets.

All of it is frozen and made of plain values; nothing here knows how a problem is solved. Times
are seconds, sizes bytes, powers watts. What a value is scaled by is said where it is used
(planning/present.py, planning/metrics.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from edge_agent.devices import DeviceId, UnitId
from edge_agent.hardware import DeviceProfile
from edge_agent.plans import Bound, Target
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.summaries import ModelSummary
from edge_agent.tensors import WireType

CHUNK_BYTES = 1 << 20
"""Tensors cross a link in chunks of this many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUnit:
    """A compute unit as planning sees it."""

    id: UnitId
    idle_w: float = 0.0
    """Power while it does nothing."""
    busy_w: float = 0.0
    """Power while all of it works; of the processor, with all cores busy. 0: it is not known, for
    nothing works without any."""
    memory_bytes: int | None = None
    """Most bytes in memory of its own; None: it uses the device's."""
    banned_because: str = ""
    """Why it must not be used; "" if it may."""

    def __post_init__(self) -> None:
        _check_numbers(f"unit {self.id}", idle_w=self.idle_w, busy_w=self.busy_w)
        if self.busy_w < self.idle_w:
            raise ValueError(
                f"unit {self.id}: got busy_w {self.busy_w:g} below idle_w {self.idle_w:g}"
            )
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise ValueError(
                f"unit {self.id}: got memory_bytes {self.memory_bytes}, want at least 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A device as planning sees it, present or known from a profile alone."""

    id: DeviceId
    units: tuple[PlannedUnit, ...]
    times: tuple[SegmentTimes, ...]
    """The latency profile: seconds of every segment, per configuration."""
    memory_bytes: int
    """Most bytes of weights and activations that may be in its memory."""
    cores: int = 1
    """Processor cores that may be used."""
    send_s_per_byte: float = 0.0
    """Processor time of one core per byte that is sent."""
    receive_s_per_byte: float = 0.0
    most_crossing_bytes: int | None = None
    """Most bytes of one message that it accepts; None: any."""
    is_estimated: bool = False
    """Whether the latency profile was estimated from a device profile, not measured."""
    estimated_because: str = ""
    """Why, although there are measured times of the model; "" if there are none, or they fit."""

    def __post_init__(self) -> None:
        where = f"device {self.id}"
        _check_numbers(
            where,
            send_s_per_byte=self.send_s_per_byte,
            receive_s_per_byte=self.receive_s_per_byte,
            memory_bytes=self.memory_bytes,
            most_crossing_bytes=self.most_crossing_bytes or 0,
        )
        if self.cores < 1:
            raise ValueError(f"{where}: got {self.cores} cores, want at least 1")
        known = [unit.id for unit in self.units]
        if len(set(known)) < len(known):
            raise ValueError(f"{where}: got one unit twice among {', '.join(known)}")
        seen: set[Configuration] = set()
        for times in self.times:
            which = times.configuration
            if which.unit not in known:
                raise ValueError(
                    f"{where}: got times of unit {which.unit}, which it has not: it has "
                    f"{', '.join(known) or 'none'}"
                )
            if which in seen:
                raise ValueError(f"{where}: got the times of {which} twice")
            seen.add(which)
            check_times(f"{where}, {which}", times)
            if which.cores > self.cores:
                raise ValueError(
                    f"{where}: got times of {which}, whose runs need {which.cores} cores at once, "
                    f"want at most the {self.cores} that it has; leave them out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How bytes get from one device to another; one direction."""

    source: DeviceId
    target: DeviceId
    latency_s: float
    goodput_bytes_per_s: float
    medium: str = ""
    """What it shares with all links of the same medium, as on Wi-Fi: only one of them carries
    bytes at a time. "": its own wire."""
    joules_per_byte: float = 0.0
    """Of both network interfaces together, beside the processors' work."""
    wire: WireType | None = None
    """As what float32 tensors are sent; None: as they are."""
    ratio: float = 1.0
    """Bytes that are sent for each byte of tensors."""
    narrow_s_per_byte: float = 0.0
    """Processor time of one core of the source for each byte of tensors, to make fewer of it, and
    `widen_s_per_byte` of the target."""
    widen_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        where = f"link {self.source}-{self.target}"
        _check_numbers(
            where,
            latency_s=self.latency_s,
            joules_per_byte=self.joules_per_byte,
            narrow_s_per_byte=self.narrow_s_per_byte,
            widen_s_per_byte=self.widen_s_per_byte,
        )
        if not 0 < self.ratio <= 1:
            raise ValueError(f"{where}: got a ratio of {self.ratio:g}, want above 0 to 1")
        if not (math.isfinite(self.goodput_bytes_per_s) and self.goodput_bytes_per_s > 0):
            raise ValueError(
                f"{where}: got goodput_bytes_per_s {self.goodput_bytes_per_s:g}, want above 0"
            )
        if self.source == self.target:
            raise ValueError(f"{where}: got a link from a device to itself")

    @property
    def resource(self) -> str:
        """What it keeps busy while it carries bytes."""
        return f"medium {self.medium}" if self.medium else f"{self.source}→{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatistics:
    """What a device is like at present, beside its profile."""

    device: DeviceId
    load_fraction: float = 0.0
    """Share of the processor that others use, 0 to 1."""
    free_memory_bytes: int | None = None
    """What our plans may use now, with what they hold already; None: as the profile says."""
    speed_fraction: float = 1.0
    """Share of its full speed that temperature or power limits leave, above 0 to 1."""
    battery_fraction: float | None = None
    """Charge left, 0 to 1; None: it has no battery, or is charging."""
    slowdowns: tuple[tuple[UnitId, float], ...] = ()
    """Observed time over predicted time of a unit's own runs; where there is one, it is used
    instead of load and speed, which it already holds."""

    def __post_init__(self) -> None:
        where = f"statistics of {self.device}"
        _check_fraction(where, "load_fraction", self.load_fraction)
        _check_fraction(where, "speed_fraction", self.speed_fraction)
        if self.speed_fraction == 0.0:
            raise ValueError(f"{where}: got speed_fraction 0, want above 0; leave the device out")
        if self.battery_fraction is not None:
            _check_fraction(where, "battery_fraction", self.battery_fraction)
        if self.free_memory_bytes is not None and self.free_memory_bytes < 0:
            raise ValueError(
                f"{where}: got free_memory_bytes {self.free_memory_bytes}, want at least 0"
            )
        for unit, slowdown in self.slowdowns:
            if not (math.isfinite(slowdown) and slowdown > 0):
                raise ValueError(f"{where}: got slowdown {slowdown:g} of {unit}, want above 0")
        if len({unit for unit, _ in self.slowdowns}) < len(self.slowdowns):
            raise ValueError(f"{where}: got the slowdown of one unit twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningPeer:
    """What the owner of a model knows of another device when it plans."""

    device: DeviceId
    name: str
    """What people call it."""
    profile: DeviceProfile | None
    """None: it has not told what it can do yet."""
    device_key: str = ""
    """As of `LatencyProfile`: what was measured there under another key is of no use."""
    statistics: DeviceStatistics | None = None
    """None: nothing is known, as of an idle device."""
    held_bytes: int = 0
    """What the plan that is deployed now holds of its memory: `free_memory_bytes` of the statistics
    is without it, and a plan that takes the place of this one may use it."""
    most_crossing_bytes: int | None = None
    """As of `PlannedDevice`."""
    banned_because: str = ""
    """Why nothing may run there; "" if it may."""

    def __post_init__(self) -> None:
        _check_numbers(
            f"peer {self.name}",
            held_bytes=self.held_bytes,
            most_crossing_bytes=self.most_crossing_bytes or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the owner of a model plans with beside what was measured of the model."""

    peers: tuple[PlanningPeer, ...] = ()
    links: tuple[Link, ...] = ()
    """Between the peers and `THIS_DEVICE`."""
    profile: DeviceProfile | None = None
    """Of the owner: what is measured of a model there tells of peers as far as theirs are like it.
    None: it was not measured yet."""
    statistics: DeviceStatistics | None = None
    """Of the owner."""
    held_bytes: int = 0
    """As of `PlanningPeer`."""
    most_crossing_bytes: int | None = None
    """As of `PlannedDevice`."""
    wire: WireType | None = None
    """As what float32 tensors may be sent between devices where that pays; None: only as they
    are."""
    is_encrypted: bool = True
    """Whether what crosses between devices is."""
    keeps_whole: bool = False
    """Whether the owner holds a plan of the whole model in memory, to fall back on, and has only
    the rest for what it does in another one. `held_bytes` and the statistics are without it."""

    def __post_init__(self) -> None:
        _check_numbers(
            "owner",
            held_bytes=self.held_bytes,
            most_crossing_bytes=self.most_crossing_bytes or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPin:
    """The user's word where a segment runs."""

    segment: int
    device: DeviceId
    unit: UnitId | None = None
    """None: any unit of the device."""
    pattern: str = ""
    """Of the node names that it was said with, for messages."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything that a plan depends on. Requests arrive at `owner`, and answers leave there.

    What is looked up over and over is indexed once.
    """

    summary: ModelSummary
    devices: tuple[PlannedDevice, ...]
    owner: DeviceId
    links: tuple[Link, ...] = ()
    """At most one for each direction between two devices; where there is none, nothing can be
    sent."""
    statistics: tuple[DeviceStatistics, ...] = ()
    pins: tuple[SegmentPin, ...] = ()
    bounds: tuple[Bound, ...] = ()
    input_bytes: int | None = 0
    """What a request brings, and has to be sent where the first segment runs; None: its size is not
    known, so that the first segment runs on the owner."""
    output_bytes: int | None = 0
    """What an answer brings back; None: not known, so that the last segment runs on the owner."""
    chunk_bytes: int = CHUNK_BYTES
    least_battery_fraction: float = 0.2
    """A device with less charge than this does no work for others."""
    most_routes: int | None = None
    """Most routes of a plan; None: any number."""
    with_branches: bool = True
    """Whether independent branches of the model may run at once."""

    def __post_init__(self) -> None:
        known = [device.id for device in self.devices]
        if len(set(known)) < len(known):
            raise ValueError(f"got one device twice among {', '.join(known)}")
        _check_known("owner", [self.owner], known)
        _check_known("link", (d for k in self.links for d in (k.source, k.target)), known)
        _check_known("statistics", (s.device for s in self.statistics), known)
        _check_known("pin", (pin.device for pin in self.pins), known)
        _check_once("link", [f"{k.source}-{k.target}" for k in self.links])
        _check_once("statistics", [s.device for s in self.statistics])
        _check_once("bound", [b.target for b in self.bounds])
        _check_numbers(
            "problem", input_bytes=self.input_bytes or 0, output_bytes=self.output_bytes or 0
        )
        _check_fraction("problem", "least_battery_fraction", self.least_battery_fraction)
        if self.chunk_bytes < 1:
            raise ValueError(f"chunk_bytes: got {self.chunk_bytes}, want at least 1")
        if self.most_routes is not None and self.most_routes < 1:
            raise ValueError(f"most_routes: got {self.most_routes}, want at least 1")
        count = len(self.summary.segments)
        for device in self.devices:
            for times in device.times:
                if len(times.segment_s) != count:
                    raise ValueError(
                        f"device {device.id}, {times.configuration}: got times of "
                        f"{len(times.segment_s)} segments, want {count}"
                    )
                for segment in times.refused:
                    if not 0 <= segment < count:
                        raise ValueError(
                            f"device {device.id}, {times.configuration}: got refused segment "
                            f"{segment}, want 0 to {count - 1}"
                        )
        for pin in self.pins:
            if not 0 <= pin.segment < count:
                raise ValueError(
                    f'pin "{pin.pattern}": got segment {pin.segment}, want 0 to {count - 1}'
                )
            units = [unit.id for unit in self.device(pin.device).units]
            if pin.unit is not None and pin.unit not in units:
                raise ValueError(
                    f'pin "{pin.pattern}": {pin.device} has no unit {pin.unit}, it has '
                    f"{', '.join(units)}"
                )
        for statistics in self.statistics:
            units = [unit.id for unit in self.device(statistics.device).units]
            for unit, _ in statistics.slowdowns:
                if unit not in units:
                    raise ValueError(
                        f"statistics of {statistics.device}: got a slowdown of unit {unit}, it has "
                        f"{', '.join(units)}"
                    )

    def device(self, device: DeviceId) -> PlannedDevice:
        """The device of that id."""
        return self._devices[device]

    def statistics_of(self, device: DeviceId) -> DeviceStatistics:
        """What is known of its present state; nothing known is an idle device."""
        return self._statistics.get(device) or _idle(device)

    def link(self, source: DeviceId, target: DeviceId) -> Link | None:
        """The link from one device to another; None if there is none."""
        return self._links.get((source, target))

    def bound(self, target: Target) -> float | None:
        """The limit on a metric; None if there is none."""
        return next((b.limit for b in self.bounds if b.target is target), None)

    @cached_property
    def _devices(self) -> dict[DeviceId, PlannedDevice]:
        return {device.id: device for device in self.devices}

    @cached_property
    def _statistics(self) -> dict[DeviceId, DeviceStatistics]:
        return {statistics.device: statistics for statistics in self.statistics}

    @cached_property
    def _links(self) -> dict[tuple[DeviceId, DeviceId], Link]:
        return {(link.source, link.target): link for link in self.links}


@lru_cache(maxsize=256)
def _idle(device: DeviceId) -> DeviceStatistics:
    return DeviceStatistics(device=device)


def _check_numbers(where: str, **numbers: float) -> None:
    for key, number in numbers.items():
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"{where}: got {key} {number:g}, want a number of at least 0")


def check_times(where: str, times: SegmentTimes) -> None:
    """Raises: ValueError: a number in it is none that a time can have."""
    if times.configuration.instances < 1:
        raise ValueError(f"{where}: got {times.configuration.instances} instances, want at least 1")
    _check_numbers(
        where,
        overhead_s=times.overhead_s,
        border_s_per_byte=times.border_s_per_byte,
        error_fraction=times.error_fraction,
        turn_s_per_byte=times.turn_s_per_byte,
    )
    if times.turn_s_per_byte > times.border_s_per_byte:
        raise ValueError(
            f"{where}: got turn_s_per_byte {times.turn_s_per_byte:g} above border_s_per_byte "
            f"{times.border_s_per_byte:g}, of which it is a part"
        )
    for segment, took_s in enumerate(times.segment_s):
        if not (math.isfinite(took_s) and took_s >= 0):
            raise ValueError(
                f"{where}: got segment_s {took_s:g} of segment {segment}, want a number of at "
                "least 0"
            )


def _check_fraction(where: str, key: str, number: float) -> None:
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{where}: got {key} {number:g}, want 0 to 1")


def _check_known(what: str, named: Iterable[DeviceId], known: list[DeviceId]) -> None:
    for device in named:
        if device not in known:
            raise ValueError(
                f"{what}: got device {device}, which is not there: there are {', '.join(known)}"
            )


def _check_once(what: str, named: list[str]) -> None:
    for name, count in Counter(named).items():
        if count > 1:
            raise ValueError(f"{what} {name}: got it twice")


NOTHING_AROUND: Final = Surroundings()
