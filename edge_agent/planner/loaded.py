"""A loaded model and this device, as they were measured, as a planning problem."""

from __future__ import annotations

from edge_agent.devices import THIS_DEVICE, ComputeUnit
from edge_agent.errors import BadRequest
from edge_agent.plans import Bound
from edge_agent.problems import PlannedDevice, PlannedUnit, Problem
from edge_agent.store.profiled import ProfiledModel


def problem_of(model: ProfiledModel, bounds: tuple[Bound, ...] = ()) -> Problem:
    """The problem of planning it over this device alone.

    Nobody has measured what the units draw, so their powers are 0. Pins are in the profile: a
    segment is refused everywhere else.

    Raises:
        BadRequest: the bounds contradict each other.
    """
    measured = {times.configuration.unit for times in model.profile.times}
    device = PlannedDevice(
        id=THIS_DEVICE,
        units=tuple(_planned(unit) for unit in model.device.units if unit.id in measured),
        times=model.profile.times,
        memory_bytes=model.device.memory_bytes,
        cores=model.cores,
    )
    try:
        return Problem(summary=model.summary, devices=(device,), owner=THIS_DEVICE, bounds=bounds)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _planned(unit: ComputeUnit) -> PlannedUnit:
    return PlannedUnit(id=unit.id, memory_bytes=unit.memory_bytes or None)
