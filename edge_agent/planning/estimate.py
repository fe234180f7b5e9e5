"""Latency profiles estimated from what a device can do, where nothing was measured.

Roofline (Williams, Waterman, Patterson: Roofline, an insightful visual performance model for
multicore architectures, CACM 52(4), 2009) for each class of operators of a segment:

    time = max(operations / (peak * efficiency), bytes / bandwidth) + operator_s * nodes

where the peak is what a large matrix product reaches: `_SUSTAINED` of one that was not measured,
as data sheets tell what the hardware could do at best. Activations, which are mostly in a cache
still when a processor reads them, count `_CACHED_SHARE` of their bytes there.

Peak and bandwidth are those that the configuration's threads reach: as many cores' worth, up to
that of all, or to an equal part of it where several run at once. What ONNX Runtime does not spread
over threads runs at the speed of one core (Amdahl, AFIPS 1967), or at such a part if that is less.
A segment is refused that has an operator which the unit refuses, or computes in what it does not
take. Of a model that was measured on the device, the measured times are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edge_agent.devices import DeviceId, Layout, UnitKind
from edge_agent.hardware import (
    DeviceProfile,
    NetworkProfile,
    Sourced,
    SourceKind,
    UnitProfile,
)
from edge_agent.planning.fitting import is_of, why_unfit
from edge_agent.problems import PlannedDevice, PlannedUnit
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.summaries import Arithmetic, ModelSummary, OperatorClass, OperatorWork, Segment

ERROR_FRACTION = 0.4
"""How far an estimate is off in the median, of models that the constants here were not chosen with:
0.38 on one thread and 0.45 on two, measured by tools/bench_estimates on one processor. Of other
kinds of units nothing is known."""

_AVAILABLE = 0.75
"""The share of the memory that is left to models, where the profile does not say."""
_SEND_S_PER_BYTE, _RECEIVE_S_PER_BYTE = 0.6e-9, 1.3e-9
ENCRYPTED_S_PER_BYTE = 2.4e-9
"""Processor time of a desktop core, where the profile does not say."""
_OWN_MEMORY_S_PER_BYTE = 1 / 12e9
"""Into memory of the unit's own and back, where the profile does not say: PCIe 3.0 x16."""
_CORE_BANDWIDTH_CORES = 2
"""One core gets as much of the bandwidth as so many would if it were shared out evenly."""

_SUSTAINED = 0.75
_IS_SUSTAINED = frozenset({SourceKind.MEASURED, SourceKind.PUBLISHED})
# Of processors they were chosen with measured models (tools/bench_estimates), of other units they
# are guesses from what kernels of their kind are known to reach.
_EFFICIENCIES: Mapping[UnitKind, Mapping[OperatorClass, float]] = MappingProxyType(
    {
        UnitKind.CPU: {
            OperatorClass.CONVOLUTION: 0.9,
            OperatorClass.GROUPED: 0.3,
            OperatorClass.DEPTHWISE: 0.13,
            OperatorClass.PRODUCT: 0.8,
            OperatorClass.RECURRENT: 0.8,
            OperatorClass.POOL: 0.1,
            OperatorClass.ELEMENTWISE: 0.05,
            OperatorClass.NORMALISATION: 0.045,
            OperatorClass.MOVEMENT: 0.02,
            OperatorClass.OTHER: 0.02,
        },
        UnitKind.GPU: {
            OperatorClass.CONVOLUTION: 0.4,
            OperatorClass.GROUPED: 0.1,
            OperatorClass.DEPTHWISE: 0.05,
            OperatorClass.PRODUCT: 0.5,
            OperatorClass.RECURRENT: 0.02,
            OperatorClass.POOL: 0.05,
            OperatorClass.ELEMENTWISE: 0.05,
            OperatorClass.NORMALISATION: 0.02,
            OperatorClass.MOVEMENT: 0.05,
            OperatorClass.OTHER: 0.05,
        },
        UnitKind.NPU: {
            OperatorClass.CONVOLUTION: 0.3,
            OperatorClass.GROUPED: 0.05,
            OperatorClass.DEPTHWISE: 0.03,
            OperatorClass.PRODUCT: 0.2,
            OperatorClass.RECURRENT: 0.01,
            OperatorClass.POOL: 0.02,
            OperatorClass.ELEMENTWISE: 0.01,
            OperatorClass.NORMALISATION: 0.01,
            OperatorClass.MOVEMENT: 0.01,
            OperatorClass.OTHER: 0.01,
        },
    }
)
_CACHED_SHARE = 0.6
_BLOCKED_ONLY: Mapping[OperatorClass, float] = MappingProxyType(
    {
        OperatorClass.CONVOLUTION: 0.8,
        OperatorClass.GROUPED: 0.4,
        OperatorClass.DEPTHWISE: 0.3,
    }
)
"""What convolutions on a processor reach in other layouts of their speed in blocked."""
_INSTEAD: Mapping[Arithmetic, tuple[Arithmetic, ...]] = MappingProxyType(
    {
        Arithmetic.FLOAT32: (Arithmetic.FLOAT32, Arithmetic.FLOAT16, Arithmetic.INT8),
        Arithmetic.FLOAT16: (Arithmetic.FLOAT16, Arithmetic.FLOAT32, Arithmetic.INT8),
        Arithmetic.INT8: (Arithmetic.INT8, Arithmetic.FLOAT16, Arithmetic.FLOAT32),
    }
)
"""Of which arithmetic the peak is used, the first that there is one for."""


def planned_device(
    profile: DeviceProfile,
    summary: ModelSummary,
    *,
    is_for_throughput: bool = False,
    is_encrypted: bool = True,
) -> PlannedDevice:
    """The device as planning sees it, with the latency profile of a model.

    Of a unit that the profile has measured times of, for this model divided as in `summary` and
    for its shapes, those are used and no others: an estimate beside them might seem better by its
    error alone. Of other units it has estimates; configurations that take no segment are left out.
    `is_for_throughput` adds configurations with several runs at once.

    Raises:
        ValueError: the work of a segment was not counted by class.
    """
    measured = tuple(one.times for one in profile.latency if is_of(one, summary))
    known = {times.configuration.unit for times in measured}
    estimated = (
        estimated_times(unit, which, summary.segments)
        for unit in profile.units
        if unit.id not in known
        for which in configurations(unit, is_for_throughput=is_for_throughput)
    )
    usable = tuple(times for times in estimated if len(times.refused) < len(summary.segments))
    send_s_per_byte, receive_s_per_byte = network_s_per_byte(
        profile.network, is_encrypted=is_encrypted
    )
    return PlannedDevice(
        id=DeviceId(profile.id),
        units=tuple(planned_unit(profile, unit) for unit in profile.units),
        times=(*measured, *usable),
        memory_bytes=_available_bytes(profile),
        cores=profile.cores,
        send_s_per_byte=send_s_per_byte,
        receive_s_per_byte=receive_s_per_byte,
        is_estimated=bool(usable),
        estimated_because=why_unfit(profile, summary),
    )


def network_s_per_byte(
    network: NetworkProfile, *, is_encrypted: bool = True
) -> tuple[float, float]:
    """Processor time of one core for each byte that is sent, and that is received."""
    if is_encrypted:
        return (
            _value(network.encrypted_send_s_per_byte, ENCRYPTED_S_PER_BYTE),
            _value(network.encrypted_receive_s_per_byte, ENCRYPTED_S_PER_BYTE),
        )
    return (
        _value(network.send_s_per_byte, _SEND_S_PER_BYTE),
        _value(network.receive_s_per_byte, _RECEIVE_S_PER_BYTE),
    )


def configurations(
    unit: UnitProfile, *, is_for_throughput: bool = False
) -> tuple[Configuration, ...]:
    """What is planned with on a unit: every layout, with its thread counts; for the throughput
    also one-thread runs on all cores at once."""
    if unit.cores is None:
        return tuple(Configuration(unit=unit.id, layout=x, threads=0) for x in unit.layouts)
    cores = int(unit.cores.value)
    one_by_one = [(threads, 1) for threads in unit.threads]
    at_once = [(1, cores)] if is_for_throughput and cores > 1 else []
    return tuple(
        Configuration(unit=unit.id, layout=layout, threads=threads, instances=instances)
        for layout in unit.layouts
        for threads, instances in (*one_by_one, *at_once)
    )


def estimated_times(
    unit: UnitProfile, configuration: Configuration, segments: Sequence[Segment]
) -> SegmentTimes:
    """Estimated times of segments on a unit; see the module.

    Raises:
        ValueError: the work of a segment was not counted by class.
    """
    refused = tuple(s.index for s in segments if not is_taken(unit, s))
    rates = _Rates.of(unit, configuration)
    return SegmentTimes(
        configuration=configuration,
        segment_s=tuple(
            0.0 if s.index in refused else sum(map(rates.work_s, s.work)) for s in segments
        ),
        overhead_s=unit.launch_s.value,
        border_s_per_byte=border_s_per_byte(unit, configuration.layout),
        error_fraction=ERROR_FRACTION,
        refused=refused,
    )


def is_taken(unit: UnitProfile, segment: Segment) -> bool:
    """Whether a unit runs a segment, as far as its profile tells.

    Raises:
        ValueError: the work of the segment was not counted by class.
    """
    if segment.operators and not segment.work:
        raise ValueError(
            f"segment {segment.index}: got no work by class; summarise the model again"
        )
    if any(name in unit.refuses for name, _ in segment.operators):
        return False
    takes = taken_arithmetics(unit)
    return all(work.arithmetic in takes for work in segment.work)


def taken_arithmetics(unit: UnitProfile) -> tuple[Arithmetic, ...]:
    """What a unit computes in: what its profile says, else all if it has a peak for float32, else
    what it has a peak for."""
    if unit.takes:
        return unit.takes
    peaks = tuple(arithmetic for arithmetic, _ in unit.operations_per_s)
    return tuple(Arithmetic) if Arithmetic.FLOAT32 in peaks else peaks


def border_s_per_byte(unit: UnitProfile, layout: Layout) -> float:
    """What each byte costs at a border of a subgraph: on its way to the unit, or to be turned from
    NCHW, once read and once written."""
    if unit.border_s_per_byte is not None:
        return unit.border_s_per_byte.value
    if unit.memory_bytes is not None:
        return _OWN_MEMORY_S_PER_BYTE
    if unit.kind is UnitKind.CPU and layout is Layout.NCHW:
        return 0.0
    return 2.0 / _core_bandwidth(unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What a unit reaches in one configuration."""

    unit: UnitProfile
    operations_per_s: Mapping[Arithmetic, float]
    serial_operations_per_s: Mapping[Arithmetic, float]
    bytes_per_s: float
    serial_bytes_per_s: float
    activation_share: float
    efficiencies: Mapping[OperatorClass, float]

    @classmethod
    def of(cls, unit: UnitProfile, configuration: Configuration) -> _Rates:
        all_cores = {a: _peak(unit.operations_per_s, a) for a in Arithmetic}
        bandwidth = unit.bandwidth_bytes_per_s.value
        efficiencies = dict(_EFFICIENCIES[unit.kind])
        if unit.kind is UnitKind.CPU and configuration.layout is not Layout.BLOCKED:
            efficiencies |= {k: efficiencies[k] * share for k, share in _BLOCKED_ONLY.items()}
        efficiencies |= {kind: share.value for kind, share in unit.efficiencies}
        one_core, core_bandwidth, threads = all_cores, bandwidth, 1
        if unit.cores is not None:
            threads, cores = configuration.threads, unit.cores.value
            known = dict(unit.core_operations_per_s)
            one_core = {
                a: _sustained(known[a]) if a in known else rate / cores
                for a, rate in all_cores.items()
            }
            core_bandwidth = _core_bandwidth(unit)
            # Runs at once share what the memory and all cores give: a core alone is often clocked
            # higher than all of them can be.
            bandwidth /= configuration.instances
            all_cores = {a: rate / configuration.instances for a, rate in all_cores.items()}
            one_core = {a: min(all_cores[a], rate) for a, rate in one_core.items()}
        return cls(
            unit=unit,
            operations_per_s={a: min(all_cores[a], threads * one_core[a]) for a in Arithmetic},
            serial_operations_per_s=one_core,
            bytes_per_s=min(bandwidth, threads * core_bandwidth),
            serial_bytes_per_s=min(bandwidth, core_bandwidth),
            activation_share=_CACHED_SHARE if unit.kind is UnitKind.CPU else 1.0,
            efficiencies=efficiencies,
        )

    def work_s(self, work: OperatorWork) -> float:
        """Seconds of the operators of one class."""
        share = work.parallel_operations / work.operations if work.operations else 0.0
        moved = self.activation_share * work.activation_bytes + work.weight_bytes
        efficiency = self.efficiencies[work.kind]

        def roofline_s(operations_per_s: float, bytes_per_s: float) -> float:
            return max(work.operations / (operations_per_s * efficiency), moved / bytes_per_s)

        parallel_s = roofline_s(self.operations_per_s[work.arithmetic], self.bytes_per_s)
        serial_s = roofline_s(
            self.serial_operations_per_s[work.arithmetic], self.serial_bytes_per_s
        )
        return (
            share * parallel_s + (1.0 - share) * serial_s + self.unit.operator_s.value * work.nodes
        )


def _peak(peaks: tuple[tuple[Arithmetic, Sourced], ...], arithmetic: Arithmetic) -> float:
    known = dict(peaks)
    return _sustained(next(known[a] for a in _INSTEAD[arithmetic] if a in known))


def _sustained(peak: Sourced) -> float:
    return peak.value * (1.0 if peak.source.kind in _IS_SUSTAINED else _SUSTAINED)


def _core_bandwidth(unit: UnitProfile) -> float:
    bandwidth = unit.bandwidth_bytes_per_s.value
    if unit.core_bandwidth_bytes_per_s is not None:
        return unit.core_bandwidth_bytes_per_s.value
    if unit.cores is None:
        return bandwidth
    return bandwidth * min(1.0, _CORE_BANDWIDTH_CORES / unit.cores.value)


def planned_unit(profile: DeviceProfile, unit: UnitProfile) -> PlannedUnit:
    """A unit of a profile as planning sees it; its powers are 0 where not all are known."""
    idle_w = unit.idle_w or profile.idle_w
    has_power = idle_w is not None and unit.busy_w is not None
    return PlannedUnit(
        id=unit.id,
        idle_w=_value(idle_w, 0.0) if has_power else 0.0,
        busy_w=_value(unit.busy_w, 0.0) if has_power else 0.0,
        memory_bytes=None if unit.memory_bytes is None else int(unit.memory_bytes.value),
    )


def _available_bytes(profile: DeviceProfile) -> int:
    return int(_value(profile.available_bytes, _AVAILABLE * profile.memory_bytes.value))


def _value(sourced: Sourced | None, default: float) -> float:
    return default if sourced is None else sourced.value
