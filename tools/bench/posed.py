"""Knows planning problems over real devices: known mixes of them, and crowds of any number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from edge_agent.builder.summarising import SummarisedModel
from edge_agent.devices import DeviceId, Layout
from edge_agent.hardware import DeviceProfile, UnitProfile
from edge_agent.planning.estimate import estimated_times, planned_device
from edge_agent.problems import Link, PlannedDevice, Problem
from edge_agent.profile_files.reading import load
from edge_agent.profile_files.shipped import shipped
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.summaries import ModelSummary, Segment

CONFIGURATIONS = 9
"""Of each device of a crowd."""
_LAYOUTS = (Layout.BLOCKED, Layout.NCHW, Layout.NHWC)
_PLENTY_BYTES = 1 << 50
_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How two devices are joined, in both directions."""

    latency_s: float
    goodput_bytes_per_s: float
    medium: str = ""
    """As `Link.medium`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Devices that are found together; the first one has the requests."""

    name: str
    profiles: tuple[str, ...]
    """Names of files in device_profiles."""
    wire: Wire
    """What joins every two of them, if nothing else is said."""
    others: tuple[tuple[str, Wire], ...] = ()
    """What joins a device with all others."""


_GIGABIT = Wire(latency_s=0.3e-3, goodput_bytes_per_s=940 * _MBIT)
_WIFI = Wire(latency_s=3e-3, goodput_bytes_per_s=40 * _MBIT, medium="air")
_FAST_WIFI = Wire(latency_s=2e-3, goodput_bytes_per_s=400 * _MBIT, medium="air")
_UPLINK = Wire(latency_s=8e-3, goodput_bytes_per_s=100 * _MBIT)

MIXES = (
    Mix(
        name="boards on a switch",
        profiles=("raspberry-pi-4-4gb", "raspberry-pi-5-8gb", "orange-pi-5-8gb"),
        wire=_GIGABIT,
    ),
    Mix(
        name="boards on Wi-Fi",
        profiles=("raspberry-pi-zero-2-w", "raspberry-pi-4-4gb", "raspberry-pi-5-8gb"),
        wire=_WIFI,
    ),
    Mix(
        name="accelerators on a switch",
        profiles=(
            "verdin-imx8m-plus-4gb",
            "jetson-orin-nano-8gb",
            "orange-pi-5-8gb",
            "lattepanda-mu-n100-8gb",
        ),
        wire=_GIGABIT,
    ),
    Mix(
        name="board, Jetson, server far away",
        profiles=("raspberry-pi-5-8gb", "jetson-orin-nano-8gb", "poweredge-xr5610-l4"),
        wire=_GIGABIT,
        others=(("poweredge-xr5610-l4", _UPLINK),),
    ),
    Mix(
        name="laptops and a board on fast Wi-Fi",
        profiles=(
            "raspberry-pi-5-8gb",
            "zenbook-14-core-ultra-155h-32gb",
            "framework-13-ryzen-ai-340-16gb",
            "snapdragon-x-elite-dev-kit-32gb",
        ),
        wire=_FAST_WIFI,
    ),
    Mix(
        name="eight devices",
        profiles=(
            "lattepanda-mu-n100-8gb",
            "raspberry-pi-4-4gb",
            "raspberry-pi-5-8gb",
            "orange-pi-5-8gb",
            "jetson-orin-nano-8gb",
            "verdin-imx8m-plus-4gb",
            "zenbook-14-core-ultra-155h-32gb",
            "raspberry-pi-zero-2-w",
        ),
        wire=_GIGABIT,
        others=(
            ("raspberry-pi-zero-2-w", _WIFI),
            ("zenbook-14-core-ultra-155h-32gb", _FAST_WIFI),
        ),
    ),
)


def mixed_problem(mix: Mix, model: SummarisedModel, *, is_for_throughput: bool) -> Problem:
    """A model over a mix of devices, as `plan --devices` puts it."""
    files = shipped()
    devices = tuple(
        planned_device(load(files[name]), model.summary, is_for_throughput=is_for_throughput)
        for name in mix.profiles
    )
    own = dict(mix.others)
    links = []
    for a, b in permutations(devices, 2):
        wire = own.get(a.id) or own.get(b.id) or mix.wire
        links.append(
            Link(
                source=a.id,
                target=b.id,
                latency_s=wire.latency_s,
                goodput_bytes_per_s=wire.goodput_bytes_per_s,
                medium=wire.medium,
            )
        )
    return _problem(model, devices, links)


def crowd_problem(
    model: SummarisedModel,
    devices: int,
    rng: random.Random,
    *,
    noise: float,
    is_for_throughput: bool,
) -> Problem:
    """A model over any number of devices with nine configurations each, all linked; nothing binds.

    Segments take what the estimate for a real device says, times a pace of the device and a noise
    of every segment in every configuration, evenly spread over 1 ± `noise`.
    """
    known = [load(path) for path in shipped().values()]
    drawn: list[DeviceProfile] = []
    while len(drawn) < devices:
        drawn += rng.sample(known, min(len(known), devices - len(drawn)))
    kinds = _Kinds.of(model.summary)
    made = [
        _crowded(replace(profile, id=f"d{number}"), kinds, rng, noise, is_for_throughput)
        for number, profile in enumerate(drawn)
    ]
    links = [
        Link(
            source=a.id,
            target=b.id,
            latency_s=rng.uniform(0.2e-3, 3e-3),
            goodput_bytes_per_s=rng.uniform(40, 1000) * _MBIT,
        )
        for a, b in permutations(made, 2)
    ]
    return _problem(model, made, links)


def _problem(
    model: SummarisedModel, devices: Sequence[PlannedDevice], links: Sequence[Link]
) -> Problem:
    return Problem(
        summary=model.summary,
        devices=tuple(devices),
        owner=DeviceId(devices[0].id),
        links=tuple(links),
        input_bytes=model.input_bytes,
        output_bytes=model.output_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kinds:
    """The segments of a long model, each kind of them once: a chain repeats its models."""

    summary: ModelSummary
    segments: tuple[Segment, ...]
    kind_of: tuple[int, ...]
    """Of each segment of the model."""

    @classmethod
    def of(cls, summary: ModelSummary) -> _Kinds:
        numbers: dict[tuple[object, ...], int] = {}
        kinds: list[Segment] = []
        kind_of = []
        for segment in summary.segments:
            key = (segment.operators, segment.work)
            if key not in numbers:
                numbers[key] = len(kinds)
                kinds.append(replace(segment, index=len(kinds)))
            kind_of.append(numbers[key])
        return cls(summary=summary, segments=tuple(kinds), kind_of=tuple(kind_of))

    def times(self, unit: UnitProfile, which: Configuration) -> SegmentTimes:
        """Estimated times of all segments of the model."""
        found = estimated_times(unit, which, self.segments)
        refused = frozenset(found.refused)
        return replace(
            found,
            segment_s=tuple(found.segment_s[kind] for kind in self.kind_of),
            refused=tuple(place for place, kind in enumerate(self.kind_of) if kind in refused),
        )


def _crowded(
    profile: DeviceProfile,
    kinds: _Kinds,
    rng: random.Random,
    noise: float,
    is_for_throughput: bool,
) -> PlannedDevice:
    pace = rng.uniform(0.8, 1.25)
    times = [
        _disturbed(kinds.times(unit, which), pace, noise, rng)
        for unit in _accelerators_first(profile)
        for which in _configurations(unit, is_for_throughput)
    ]
    usable = [one for one in times if len(one.refused) < len(kinds.kind_of)]
    one = replace(kinds.summary, segments=kinds.summary.segments[:1], cuts=(), forks=())
    device = planned_device(profile, one)
    return replace(
        device,
        times=tuple(usable[:CONFIGURATIONS]),
        memory_bytes=_PLENTY_BYTES,
        units=tuple(replace(unit, memory_bytes=None) for unit in device.units),
    )


def _accelerators_first(profile: DeviceProfile) -> list[UnitProfile]:
    return sorted(profile.units, key=lambda unit: unit.cores is not None)


def _configurations(unit: UnitProfile, is_for_throughput: bool) -> list[Configuration]:
    if unit.cores is None:
        return [Configuration(unit=unit.id, layout=x, threads=0) for x in unit.layouts]
    few, some, all_cores = unit.threads[0], unit.threads[1], unit.threads[-1]
    kinds = [(all_cores, 1), (some, 1), (few, 1)]
    if is_for_throughput:
        kinds = [(all_cores, 1), (1, int(unit.cores.value)), (some, 1)]
    return [
        Configuration(unit=unit.id, layout=layout, threads=threads, instances=instances)
        for layout in _LAYOUTS
        for threads, instances in kinds
    ]


def _disturbed(times: SegmentTimes, pace: float, noise: float, rng: random.Random) -> SegmentTimes:
    return replace(
        times,
        segment_s=tuple(s * pace * rng.uniform(1.0 - noise, 1.0 + noise) for s in times.segment_s),
    )
