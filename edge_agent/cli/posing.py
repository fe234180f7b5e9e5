"""From the options of `plan --devices` to a planning problem."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.cli.output import settings_of
from edge_agent.cli.plan_options import (
    ALL,
    NamedProfile,
    Place,
    parse_bounds,
    parse_device_pins,
    parse_devices,
    parse_links,
    parse_places,
)
from edge_agent.cli.shapes import parse_shapes
from edge_agent.cli.statistics_file import load_statistics
from edge_agent.devices import DeviceId, UnitId
from edge_agent.errors import UsageError
from edge_agent.planning.estimate import planned_device
from edge_agent.plans import Target
from edge_agent.problems import PlannedDevice, Problem, SegmentPin
from edge_agent.profile_files.fields import close_to
from edge_agent.profile_files.reading import load
from edge_agent.profile_files.shipped import shipped
from edge_agent.store.output import is_same_file

if TYPE_CHECKING:
    from edge_agent.builder.summarising import SummarisedModel
    from edge_agent.hardware import DeviceProfile
    from edge_agent.subgraphs import ModelId


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A problem, and what the user should hear of how it was put."""

    problem: Problem
    notes: tuple[str, ...]


def pose(options: argparse.Namespace, targets: Sequence[Target]) -> Posed:
    """The problem that the options of `plan --devices` put.

    Raises:
        UsageError: an option or a file is wrong; the message names it and what to do.
        ModelRefused, InputMismatch: the model cannot be read, or not with these shapes.
    """
    named = parse_devices(options.devices, shipped())
    _check_drawings(options, [one.path for one in named])
    profiles = _profiles(named)
    units = {DeviceId(p.id): [unit.id for unit in p.units] for p in profiles}
    ids = list(units)
    links = parse_links(options.link or (), ids)
    owner = DeviceId(options.owner) if options.owner is not None else ids[0]
    if owner not in ids:
        raise UsageError(
            f"--owner {owner}: is none of the devices: there are {', '.join(ids)}"
            f"{close_to(owner, ids)}"
        )
    bounds = parse_bounds(options.bound or ())
    pins = parse_device_pins(options.pin or (), units)
    bans = parse_places("--ban", options.ban or (), units)
    _check_pins(pins, bans, units)
    statistics = () if options.stats is None else load_statistics(Path(options.stats), units)
    model = _model(options, pins, {times.model for p in profiles for times in p.latency})
    # Without targets it is planned for all of them.
    is_rate = not targets or Target.THROUGHPUT in {*targets, *(b.target for b in bounds)}
    devices = (planned_device(p, model.summary, is_for_throughput=is_rate) for p in profiles)
    where = {str(place): (pattern, place) for pattern, place in pins}
    try:
        problem = Problem(
            summary=model.summary,
            devices=tuple(_banned(device, bans) for device in devices),
            owner=owner,
            links=links,
            statistics=statistics,
            pins=_segment_pins(model, where),
            bounds=bounds,
            input_bytes=model.input_bytes,
            output_bytes=model.output_bytes,
            most_routes=options.routes,
        )
    except ValueError as error:
        raise UsageError(f"--devices: {error}") from error
    return Posed(problem=problem, notes=tuple(_remarks(model, problem)))


def _check_drawings(options: argparse.Namespace, profiles: Sequence[Path]) -> None:
    """Refuse drawings in the place of what is read. Raises: UsageError."""
    stats = [] if options.stats is None else [Path(options.stats)]
    for option, name in (("--svg", options.svg), ("--timeline", options.timeline)):
        if name is None:
            continue
        for read in (Path(options.model), *stats, *profiles):
            if is_same_file(Path(name), read):
                raise UsageError(
                    f"{option} {name}: the plan is made of that file, which would be lost; "
                    "name another one"
                )


def _check_pins(
    pins: Sequence[tuple[str, Place]],
    bans: Sequence[Place],
    units: Mapping[DeviceId, Sequence[UnitId]],
) -> None:
    """Refuse pins to where nothing may run. Raises: UsageError, naming the bans."""
    for pattern, place in pins:
        here = [ban for ban in bans if ban.device == place.device]
        wanted = units[place.device] if place.unit is None else [place.unit]
        if all(any(ban.unit in (None, unit) for ban in here) for unit in wanted):
            named = [str(b) for b in here if place.unit is None or b.unit in (None, place.unit)]
            raise UsageError(
                f"--pin {pattern}={place}: {place} is banned by --ban {' '.join(named)}; leave one "
                "of the two out"
            )


def _remarks(model: SummarisedModel, problem: Problem) -> list[str]:
    remarks = list(model.notes)
    for device in problem.devices:
        if device.estimated_because:
            remarks.append(
                f"{device.id}: {device.estimated_because}; give --shape and pins as they were "
                "measured with, or measure again with `edge-agent devices --export --model`"
            )
    if model.summary.undivided_because is not None:
        remarks.append(f"the model is not divided: {model.summary.undivided_because}")
    if len(problem.devices) > 1 and not problem.links:
        remarks.append(
            f"there is no --link, so only {problem.owner} can be used; "
            f"--link {ALL}=1Gbit,0.3ms joins all devices"
        )
    return remarks


def _profiles(named: Sequence[NamedProfile]) -> tuple[DeviceProfile, ...]:
    found: dict[str, DeviceProfile] = {}
    for one in named:
        profile = load(one.path)
        profile = profile if one.id is None else replace(profile, id=one.id)
        if profile.id == ALL:
            raise UsageError(
                f"--devices {one.text}: {ALL} stands for every device; give it an id of its own"
            )
        if profile.id in found:
            raise UsageError(
                f"--devices {one.text}: {profile.id} is there already; give it an id of its own, "
                f"as in {profile.id}-2={one.text.rpartition('=')[2]}"
            )
        found[profile.id] = profile
    return tuple(found.values())


def _model(
    options: argparse.Namespace, pins: Sequence[tuple[str, Place]], measured: Collection[ModelId]
) -> SummarisedModel:
    # Only here, because onnx takes as long to import as all of the rest.
    from edge_agent.builder.summarising import summarise_file

    return summarise_file(
        Path(options.model),
        settings_of(options).limits,
        parse_shapes(options.shape),
        [(pattern, str(place)) for pattern, place in pins],
        measured,
    )


def _segment_pins(
    model: SummarisedModel, where: Mapping[str, tuple[str, Place]]
) -> tuple[SegmentPin, ...]:
    pins = []
    for segment, wanted in enumerate(model.pinned):
        if wanted is not None:
            pattern, place = where[wanted]
            pins.append(
                SegmentPin(segment=segment, device=place.device, unit=place.unit, pattern=pattern)
            )
    return tuple(pins)


def _banned(device: PlannedDevice, bans: Sequence[Place]) -> PlannedDevice:
    here = [place for place in bans if place.device == device.id]

    def reason(unit: UnitId) -> str:
        found = next((place for place in here if place.unit in (None, unit)), None)
        return "" if found is None else f"banned by --ban {found}"

    units = tuple(
        replace(unit, banned_because=reason(unit.id) or unit.banned_because)
        for unit in device.units
    )
    return replace(device, units=units)
