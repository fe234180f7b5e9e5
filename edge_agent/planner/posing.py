"""A loaded model, this device and its peers as a planning problem.

This device has the times that were measured of the model. A peer has those of the stages that it
hosted, and for all other segments what its device profile lets expect (planning/estimate.py), made
better by what was measured here (planning/calibrate.py) and there (planning/stage_times.py).

What peers host are runs of segments, so that with peers no branches of the model run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from edge_agent.devices import THIS_DEVICE, ComputeUnit, DeviceId
from edge_agent.distributions import LeftOut
from edge_agent.errors import BadRequest
from edge_agent.hardware import DeviceProfile, NetworkProfile
from edge_agent.planning.calibrate import calibrated_device
from edge_agent.planning.estimate import network_s_per_byte, planned_device, planned_unit
from edge_agent.planning.narrowing import narrowed
from edge_agent.planning.present import spared_text
from edge_agent.planning.short import bytes_text
from edge_agent.planning.stage_times import MeasuredSegments, with_stages
from edge_agent.plans import Bound
from edge_agent.problems import (
    NOTHING_AROUND,
    DeviceStatistics,
    Link,
    PlannedDevice,
    PlannedUnit,
    PlanningPeer,
    Problem,
    SegmentPin,
    Surroundings,
)
from edge_agent.profiles import StageTimes
from edge_agent.store.profiled import ProfiledModel
from edge_agent.summaries import ModelSummary

Stages = Mapping[DeviceId, Sequence[StageTimes]]
"""What was measured of stages of the model, by the device that hosted them, the newest last."""


_HERE: Final = "this device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A problem, and what is to be said of how it was put."""

    problem: Problem
    whole: Problem | None = None
    """Where the owner keeps the whole model in memory, to fall back on: what it may do alone, with
    that memory, for then that is what serves. None: nothing is kept, or it does not fit."""
    measured: Mapping[DeviceId, MeasuredSegments]
    """Which segments were measured on each peer; on the owner all were."""
    left_out: tuple[LeftOut, ...] = ()
    """Peers that are no part of the problem."""
    notes: tuple[str, ...] = ()
    """As of `Planned`."""
    names: tuple[tuple[DeviceId, str], ...] = ()
    """As of `Planned`."""


def pose(
    model: ProfiledModel,
    around: Surroundings = NOTHING_AROUND,
    stages: Stages | None = None,
    *,
    bounds: tuple[Bound, ...] = (),
    pins: tuple[SegmentPin, ...] = (),
    most_routes: int | None = None,
    is_for_throughput: bool = True,
) -> Posed:
    """The problem of planning a loaded model over this device and what surrounds it.

    Where nobody measured what units draw, their powers are 0. What the user pinned to units of
    this device is refused everywhere else on it, as its profile says, and by every peer.
    Of the stages, those are used that are of this division and of what their device is now.

    Raises:
        BadRequest: bounds or pins contradict each other, or a pin names a device that is left out.
    """
    names = tuple((peer.device, peer.name) for peer in around.peers)
    try:
        devices, measured, left_out = _peers(model, around, stages or {}, is_for_throughput)
        _check_pins(pins, left_out, dict(names))
        own = _owner(model, around)
        problem = Problem(
            summary=model.summary,
            devices=(own, *devices),
            owner=own.id,
            links=tuple(_links(around, (own, *devices), model.summary)),
            statistics=tuple(_statistics(around, (own, *devices))),
            pins=(*pins, *(_own_pins(model) if devices else ())),
            bounds=bounds,
            input_bytes=model.input_bytes,
            output_bytes=model.output_bytes,
            most_routes=most_routes,
            with_branches=not devices,
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error
    posed = Posed(problem=problem, measured=measured, left_out=left_out, names=names)
    if around.keeps_whole and devices:
        posed = _keeping_whole(posed)
    return replace(posed, notes=tuple(_notes(posed, around)))


def whole_bytes(summary: ModelSummary) -> int:
    """Memory that the whole model takes, one request at a time."""
    working = max(segment.working_bytes for segment in summary.segments)
    return sum(segment.constant_bytes for segment in summary.segments) + working


def _keeping_whole(posed: Posed) -> Posed:
    problem = posed.problem
    own, *others = problem.devices
    kept = whole_bytes(problem.summary)
    if kept > own.memory_bytes:
        return posed
    smaller = replace(own, memory_bytes=own.memory_bytes - kept)
    alone = tuple(replace(device, times=()) for device in others)
    present = problem.statistics_of(own.id)
    free_bytes = present.free_memory_bytes
    if free_bytes is not None:
        present = replace(present, free_memory_bytes=free_bytes + kept)
    statistics = (present, *(s for s in problem.statistics if s.device != own.id))
    return replace(
        posed,
        problem=replace(problem, devices=(smaller, *others)),
        whole=replace(problem, devices=(own, *alone), statistics=statistics),
    )


def _owner(model: ProfiledModel, around: Surroundings) -> PlannedDevice:
    profile = around.profile
    measured = {times.configuration.unit for times in model.profile.times}
    network = NetworkProfile() if profile is None else profile.network
    send_s_per_byte, receive_s_per_byte = network_s_per_byte(
        network, is_encrypted=around.is_encrypted
    )
    memory_bytes = model.device.memory_bytes
    if profile is not None and profile.available_bytes is not None:
        memory_bytes = int(profile.available_bytes.value)
    return PlannedDevice(
        id=THIS_DEVICE,
        units=tuple(_own_unit(u, profile) for u in model.device.units if u.id in measured),
        times=model.profile.times,
        memory_bytes=memory_bytes,
        cores=model.cores,
        send_s_per_byte=send_s_per_byte,
        receive_s_per_byte=receive_s_per_byte,
        most_crossing_bytes=around.most_crossing_bytes,
    )


def _own_unit(unit: ComputeUnit, profile: DeviceProfile | None) -> PlannedUnit:
    made = PlannedUnit(id=unit.id, memory_bytes=unit.memory_bytes or None)
    known = () if profile is None else profile.units
    found = next((one for one in known if one.id == unit.id), None)
    if profile is None or found is None:
        return made
    power = planned_unit(profile, found)
    return replace(made, idle_w=power.idle_w, busy_w=power.busy_w)


def _peers(
    model: ProfiledModel, around: Surroundings, stages: Stages, is_for_throughput: bool
) -> tuple[tuple[PlannedDevice, ...], dict[DeviceId, MeasuredSegments], tuple[LeftOut, ...]]:
    """(those that may take part, what was measured on them, the others)."""
    devices: list[PlannedDevice] = []
    measured: dict[DeviceId, MeasuredSegments] = {}
    left_out: list[LeftOut] = []
    for peer in around.peers:
        reason = _why_left(peer, around.links)
        if not reason and peer.profile is not None:
            own = [s for s in stages.get(peer.device, ()) if _is_of(s, peer, model.summary)]
            device = _expected(peer, peer.profile, model, around, is_for_throughput)
            try:
                device, seen = with_stages(device, peer.profile, model.summary, own)
            except ValueError as error:
                # Others are not to be planned without because of what one says.
                reason = f"what it says of itself cannot be: {error}"
            else:
                if device.times:
                    devices.append(device)
                    measured[device.id] = seen
                    continue
                reason = "none of its units takes any part of the model"
        left_out.append(LeftOut(device=peer.device, reason=reason))
    return tuple(devices), measured, tuple(left_out)


def _why_left(peer: PlanningPeer, links: Sequence[Link]) -> str:
    """Why a peer can be no part of a problem; empty if it can."""
    if peer.banned_because:
        return peer.banned_because
    if peer.profile is None:
        return "it has not told yet what it can do"
    ways = {(link.source, link.target) for link in links}
    is_reached = (THIS_DEVICE, peer.device) in ways
    if not is_reached or (peer.device, THIS_DEVICE) not in ways:
        return f"no link {'back from' if is_reached else 'to'} it is known"
    return ""


def _is_of(stage: StageTimes, peer: PlanningPeer, summary: ModelSummary) -> bool:
    return stage.device_key == peer.device_key and stage.division == summary.division


def _expected(
    peer: PlanningPeer,
    profile: DeviceProfile,
    model: ProfiledModel,
    around: Surroundings,
    is_for_throughput: bool,
) -> PlannedDevice:
    """A peer as its device profile lets expect it."""
    summary = model.summary
    device = planned_device(
        profile,
        summary,
        is_encrypted=around.is_encrypted,
        is_for_throughput=is_for_throughput,
    )
    device = replace(device, id=peer.device, most_crossing_bytes=peer.most_crossing_bytes)
    if around.profile is None:
        return device
    return calibrated_device(device, profile, summary, around.profile, model.profile.times)


def _links(
    around: Surroundings, devices: Sequence[PlannedDevice], summary: ModelSummary
) -> Iterator[Link]:
    known = {device.id: device for device in devices}
    for link in around.links:
        if link.source in known and link.target in known:
            ends = known[link.source], known[link.target]
            yield link if around.wire is None else narrowed(link, *ends, around.wire, summary)


def _statistics(
    around: Surroundings, devices: Sequence[PlannedDevice]
) -> Iterator[DeviceStatistics]:
    told = {peer.device: (peer.statistics, peer.held_bytes) for peer in around.peers}
    told[THIS_DEVICE] = (around.statistics, around.held_bytes)
    for device in devices:
        present, held_bytes = told[device.id]
        if present is None:
            continue
        free_bytes = present.free_memory_bytes
        units = {unit.id for unit in device.units}
        yield replace(
            present,
            device=device.id,
            free_memory_bytes=None if free_bytes is None else free_bytes + held_bytes,
            slowdowns=tuple((unit, by) for unit, by in present.slowdowns if unit in units),
        )


def _own_pins(model: ProfiledModel) -> Iterator[SegmentPin]:
    """What the user pinned to a unit of this device when it was loaded."""
    for segment, unit in enumerate(model.pinned):
        if unit is not None:
            # The profile of this device refuses its other units.
            yield SegmentPin(segment=segment, device=THIS_DEVICE, pattern=str(unit))


def _check_pins(
    pins: Sequence[SegmentPin], left_out: Sequence[LeftOut], names: Mapping[DeviceId, str]
) -> None:
    reasons = {out.device: out.reason for out in left_out}
    for pin in pins:
        if pin.device in reasons:
            name = names[pin.device]
            raise BadRequest(
                f'pin "{pin.pattern}": {name} is left out: {reasons[pin.device]}; pin to another '
                "device"
            )


def _notes(posed: Posed, around: Surroundings) -> Iterator[str]:
    problem, names = posed.problem, dict(posed.names)
    for out in posed.left_out:
        yield f"{names[out.device]} is left out: {out.reason}."
    for device in problem.devices[1:]:
        spared = spared_text(problem, device.id)
        if spared:
            yield f"{names[device.id]} is left out: {spared}."
    by = "device profiles"
    if around.profile is not None:
        by += ", and from what was measured of the model on this device"
    for device in problem.devices:
        if device.is_estimated:
            because = f" ({device.estimated_because})" if device.estimated_because else ""
            yield f"Times on {names[device.id]}{because} are estimated from {by}."
    fewer = [
        f"{names.get(link.source, _HERE)} → {names.get(link.target, _HERE)} "
        f"({100 * link.ratio:.0f} % of the bytes)"
        for link in problem.links
        if link.wire is not None
    ]
    if around.wire is not None:
        where = ", ".join(fewer) or "nowhere"
        yield f"Tensors are sent as {around.wire} where that pays: {where}."
    if posed.whole is not None:
        kept = bytes_text(whole_bytes(problem.summary))
        yield f"The whole model stays in memory on this device, to fall back on: {kept}."
