"""What may run where, before anything is measured: by evidence, by the rules of the units, and by
the user's pins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from edge_agent.devices import ComputeUnit, Device, UnitId
from edge_agent.errors import EdgeAgentError, ModelRefused
from edge_agent.plans import Target
from edge_agent.profiles import HOST_UNIT, Configuration, Placement, Rejection
from edge_agent.summaries import ModelSummary

Look = Callable[[ComputeUnit], Placement]
"""Finds out which nodes a unit takes. Raises: EdgeAgentError if it does not open the model."""


@dataclass(slots=True, kw_only=True)
class Allowed:
    """What may be measured."""

    configurations: list[Configuration] = field(default_factory=list)
    refused: dict[Configuration, frozenset[int]] = field(default_factory=dict)
    """Segments that a configuration must not run, where there are any."""
    placements: list[Placement] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)

    def refuse(self, what: str, why: str) -> None:
        """Have it said that `what` is not tried."""
        self.rejections.append(Rejection(candidate=what, reason="refused", detail=why))


def configurations(unit: ComputeUnit, target: Target, cores: int) -> tuple[Configuration, ...]:
    """What may be measured on a unit: every layout, with thread counts up to `cores`.

    For latency one run at a time; for throughput as many at once as the cores allow. A unit that
    uses none of the host's cores runs once at a time. Of other units than the processor, what is
    likely to be best comes first.
    """
    if not unit.cores:
        return tuple(Configuration(unit=unit.id, layout=x, threads=0) for x in unit.layouts)
    cores = min(cores, unit.cores)
    counts = sorted({1, *(2**i for i in range(1, 11) if 2**i < cores), cores})
    if unit.id != HOST_UNIT and target is Target.LATENCY:
        counts.reverse()
    return tuple(
        Configuration(
            unit=unit.id,
            layout=layout,
            threads=threads,
            instances=1 if target is Target.LATENCY else max(1, cores // threads),
        )
        for layout in unit.layouts
        for threads in counts
    )


def host_unit(device: Device) -> ComputeUnit:
    """The processor, which everything can fall back to.

    Raises: ModelRefused if it does not work.
    """
    found = next((unit for unit in device.units if unit.id == HOST_UNIT), None)
    if found is None:
        raise ModelRefused(
            "the processor is no unit of this device, so nothing can be measured: see "
            "`edge-agent doctor`"
        )
    return found


def allow(
    summary: ModelSummary,
    units: Sequence[ComputeUnit],
    look: Look,
    *,
    target: Target,
    cores: int,
    pinned: Sequence[UnitId | None],
    is_fixed: bool,
    is_half: bool = False,
) -> Allowed:
    """What may run where. `pinned` has the unit, if any, that each segment is pinned to;
    `is_fixed` says that no dimension is open, `is_half` that float16 may take the place of
    float32."""
    found = Allowed()
    for unit in units:
        refused = {at for at, wanted in enumerate(pinned) if wanted not in (None, unit.id)}
        offered = configurations(unit, target, cores)
        beyond: set[int] = set()
        if unit.id != HOST_UNIT:
            placement = _placed(unit, look, found, is_fixed=is_fixed)
            if placement is None:
                continue
            found.placements.append(placement)
            by_itself = _refused_segments(summary, placement)
            beyond = _beyond_memory(summary, unit, refused | by_itself)
            refused |= by_itself | beyond
            is_partial = bool(by_itself) and placement.taken > 0
            if is_partial and not any(pinned) and not _beyond_memory(summary, unit, set()):
                found.configurations += _falling_back(unit, target, cores)
            if is_half and unit.takes_floats:
                offered = (*offered, *(replace(c, is_half=True) for c in offered))
            elif is_half:
                found.refuse(f"{unit.id}/fp16", "not tried: it is made for what is quantised")
        if len(refused) == len(summary.segments):
            detail = "no segment is left that it may run whole"
            if beyond:
                detail += (
                    f": it may hold {unit.memory_bytes} bytes, memory_bytes of [units.{unit.id}] "
                    "in the config file, and no segment that it takes needs as little"
                )
            found.refuse(unit.id, detail)
            continue
        found.configurations += offered
        if refused:
            found.refused |= dict.fromkeys(offered, frozenset(refused))
    if is_half and all(unit.id == HOST_UNIT for unit in units):
        found.refuse("fp16", "the processor computes as the model says, and there is no other unit")
    return found


def _placed(unit: ComputeUnit, look: Look, found: Allowed, *, is_fixed: bool) -> Placement | None:
    if not (is_fixed or unit.takes_open_dimensions):
        reason = (
            "it takes fixed dimensions alone: shapes that are asked often get subgraphs of their "
            "own, which it may run; to pin nodes there, fix the dimensions in the model"
        )
    else:
        try:
            return look(unit)
        except EdgeAgentError as error:
            reason = str(error)
    found.refuse(unit.id, reason)
    return None


def _falling_back(unit: ComputeUnit, target: Target, cores: int) -> Iterator[Configuration]:
    """The unit with the processor for what it refuses, as ONNX Runtime would run it."""
    most = min(cores, unit.cores) if unit.cores else cores
    for configuration in configurations(unit, target, cores):
        if configuration.threads in (0, most):
            yield replace(configuration, threads=most, falls_back=True)


def _refused_segments(summary: ModelSummary, placement: Placement) -> set[int]:
    positions = {node.position for node in placement.refused}
    return {
        segment.index
        for segment in summary.segments
        if not positions.isdisjoint(range(segment.start, segment.stop))
    }


def _beyond_memory(summary: ModelSummary, unit: ComputeUnit, refused: set[int]) -> set[int]:
    """The segments to leave out, heaviest first, so that all others fit into what the unit may
    take, however they are put together."""
    left = [segment for segment in summary.segments if segment.index not in refused]
    cap = unit.memory_bytes
    beyond: set[int] = set()
    for segment in sorted(left, key=lambda s: (-s.weight_bytes - s.activation_bytes, s.index)):
        kept = [s for s in left if s.index not in beyond]
        needed = sum(s.weight_bytes for s in kept)
        needed += max((s.activation_bytes for s in kept), default=0)
        if not cap or needed <= cap:
            break
        beyond.add(segment.index)
    return beyond


def pinned_segments(
    summary: ModelSummary,
    pinned: Sequence[UnitId | None],
    label: Callable[[int], str],
) -> tuple[UnitId | None, ...]:
    """The unit that each segment is pinned to, by what its nodes are pinned to.

    Raises:
        ModelRefused: nodes that are pinned to different units cannot be parted.
    """
    return tuple(_pinned(pinned, s.start, s.stop, label) for s in summary.segments)


def _pinned(
    pinned: Sequence[UnitId | None], start: int, stop: int, label: Callable[[int], str]
) -> UnitId | None:
    first: dict[UnitId, int] = {}
    for at in range(start, stop):
        unit = pinned[at]
        if unit is not None:
            first.setdefault(unit, at)
    if len(first) > 1:
        nodes = " and ".join(f"{label(at)} to {unit}" for unit, at in first.items())
        raise ModelRefused(
            f"it is pinned where it cannot be divided: {nodes}; pin what lies between as well, or "
            "both to one unit"
        )
    return next(iter(first), None)
