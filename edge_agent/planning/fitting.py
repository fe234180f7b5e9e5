"""Which measured times of a device profile are of a model as it is divided here, and what differs
of others."""

from __future__ import annotations

from collections.abc import Sequence

from edge_agent.devices import UnitId
from edge_agent.hardware import DeviceProfile, MeasuredTimes
from edge_agent.summaries import ModelSummary
from edge_agent.tensors import Shape

_SHOWN_STARTS = 8


def is_of(measured: MeasuredTimes, summary: ModelSummary) -> bool:
    """Whether times are of this model, divided like this, for its shapes."""
    return (
        measured.model == summary.model
        and measured.starts == _starts(summary)
        and sorted(measured.shapes) == sorted(summary.shapes)
    )


def measured_units(profile: DeviceProfile, summary: ModelSummary) -> frozenset[UnitId]:
    """Units of a profile that have measured times of this model."""
    return frozenset(one.times.configuration.unit for one in profile.latency if is_of(one, summary))


def why_unfit(profile: DeviceProfile, summary: ModelSummary) -> str:
    """Why a profile's measured times of this model are of no use for some units; empty if they
    are, or there are none."""
    own = [one for one in profile.latency if one.model == summary.model]
    fit = measured_units(profile, summary)
    unfit = [one for one in own if one.times.configuration.unit not in fit]
    if not unfit:
        return ""
    units = ", ".join(dict.fromkeys(one.times.configuration.unit for one in unfit))
    starts = _starts(summary)
    at_least = next((one for one in unfit if one.starts == starts), None)
    if at_least is not None:
        why = (
            f"are for {_shapes_text(at_least.shapes)}, and here are {_shapes_text(summary.shapes)}"
        )
    else:
        why = (
            f"are of {_count_text(unfit[0].starts)} that begin at nodes "
            f"{_nodes_text(unfit[0].starts)}, and here are {_nodes_text(starts)}"
        )
    return f"the measured times of this model on {units} are not used: they {why}"


def _starts(summary: ModelSummary) -> tuple[int, ...]:
    return tuple(segment.start for segment in summary.segments)


def _shapes_text(shapes: Sequence[tuple[str, Shape]]) -> str:
    return ", ".join(f"{name}[{','.join(map(str, dims))}]" for name, dims in shapes) or "no shapes"


def _count_text(starts: Sequence[int]) -> str:
    return "1 segment" if len(starts) == 1 else f"{len(starts)} segments"


def _nodes_text(starts: Sequence[int]) -> str:
    shown = ", ".join(map(str, starts[:_SHOWN_STARTS]))
    return f"{shown}, …" if len(starts) > _SHOWN_STARTS else shown
