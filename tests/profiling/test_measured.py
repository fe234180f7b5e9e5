from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from edge_agent.devices import ComputeUnit, Device, Layout, UnitId, UnitKind
from edge_agent.hardware import DeviceProfile, Source, SourceKind
from edge_agent.plans import ExecutionPlan, ExplainedSegment
from edge_agent.profile_files.reading import decode
from edge_agent.profile_files.writing import encode
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.profiling.measured import (
    MeasuredUnit,
    UnitRates,
    best_of,
    device_profile,
    measured_times,
    unit_profile,
)
from edge_agent.subgraphs import ComplexityScore, ModelId
from edge_agent.summaries import Arithmetic
from tests import made_plans

_HERE = Source(
    key="measured", text="here", kind=SourceKind.MEASURED, date=datetime.date(2026, 11, 29)
)
_METER = replace(_HERE, key="meter")
_CPU = ComputeUnit(
    id=UnitId("cpu"),
    kind=UnitKind.CPU,
    provider="CPUExecutionProvider",
    provider_version="1.32.0",
    layouts=(Layout.NCHW, Layout.BLOCKED),
    cores=4,
)
_NPU = replace(
    _CPU,
    id=UnitId("npu"),
    kind=UnitKind.NPU,
    layouts=(Layout.NATIVE,),
    cores=0,
    takes_floats=False,
    memory_bytes=64 << 20,
)
_DEVICE = Device(
    hostname="My Board.local",
    processor="A76",
    cores=(0, 1, 2, 3),
    memory_bytes=8 << 30,
    runtime_version="1.32.0",
    runtime_build="onnxruntime",
    units=(_CPU, _NPU),
)


def _rates(threads: int, rate: float, bytes_per_s: float = 1e10) -> UnitRates:
    return UnitRates(
        threads=threads,
        operations_per_s=((Arithmetic.FLOAT32, rate), (Arithmetic.INT8, 2 * rate)),
        bytes_per_s=bytes_per_s,
        launch_s=2e-5,
        operator_s=1e-6,
    )


def _exported(busy_w: float | None = 8.0, idle_w: float | None = 3.0) -> DeviceProfile:
    npu = replace(_rates(0, 1e12), operations_per_s=((Arithmetic.INT8, 6e12),))
    return device_profile(
        _DEVICE,
        (
            MeasuredUnit(unit=_CPU, rates=(_rates(1, 1e10), _rates(4, 3e10)), busy_w=busy_w),
            MeasuredUnit(unit=_NPU, rates=(npu,), busy_w=busy_w),
        ),
        source=_HERE,
        meter=None if idle_w is None else _METER,
        idle_w=idle_w,
        free_memory_bytes=6 << 30,
    )


def test_what_is_exported_reads_back_as_the_equal_profile() -> None:
    profile = _exported()
    assert decode(encode(profile), "board.toml") == profile
    assert profile.id == "my-board-local"


def test_one_core_and_all_cores_are_told_apart() -> None:
    found = unit_profile(_CPU, (_rates(1, 1e10, 5e9), _rates(4, 3e10, 8e9)), _HERE)
    assert {a: rate.value for a, rate in found.operations_per_s} == {
        Arithmetic.FLOAT32: 3e10,
        Arithmetic.INT8: 6e10,
    }
    assert dict(found.core_operations_per_s)[Arithmetic.FLOAT32].value == 1e10
    assert found.bandwidth_bytes_per_s.value == 8e9
    assert found.core_bandwidth_bytes_per_s is not None
    assert found.core_bandwidth_bytes_per_s.value == 5e9
    assert found.threads == (1, 4)


def test_all_cores_are_never_written_down_as_slower_than_one() -> None:
    found = unit_profile(_CPU, (_rates(1, 2e10, 9e9), _rates(4, 1e10, 8e9)), _HERE)
    assert dict(found.operations_per_s)[Arithmetic.FLOAT32].value == 2e10
    assert found.bandwidth_bytes_per_s.value == 9e9


def test_an_accelerator_has_its_memory_and_what_it_takes_and_no_cores() -> None:
    npu = _exported().units[1]
    assert (npu.cores, npu.threads, npu.takes) == (None, (), (Arithmetic.INT8,))
    assert npu.memory_bytes is not None
    assert npu.memory_bytes.value == 64 << 20


def test_power_is_left_out_where_no_meter_was_read() -> None:
    profile = _exported(busy_w=None, idle_w=None)
    assert profile.idle_w is None
    assert [unit.busy_w for unit in profile.units] == [None, None]
    assert profile.sources == (_HERE,)


def test_a_busy_unit_draws_no_less_than_an_idle_device() -> None:
    cpu = _exported(busy_w=2.9).units[0]
    assert cpu.busy_w is not None
    assert (cpu.busy_w.value, cpu.busy_w.source) == (3.0, _METER)


def test_a_meter_that_shows_nothing_while_a_unit_works_says_nothing_of_it() -> None:
    profile = _exported(busy_w=0.0, idle_w=0.0)
    assert [unit.busy_w for unit in profile.units] == [None, None]


def test_the_best_of_several_measurements_counts() -> None:
    slow = replace(_rates(1, 1e10), launch_s=1e-5)
    (found,) = best_of([(slow,), (_rates(1, 2e10, 1e9),)])
    assert dict(found.operations_per_s)[Arithmetic.FLOAT32] == 2e10
    assert (found.bytes_per_s, found.launch_s) == (1e10, 1e-5)


_ONE = Configuration(unit=UnitId("cpu"), layout=Layout.NCHW, threads=1)
_PROFILE = LatencyProfile(
    model=ModelId("ab" * 32),
    device_key="here",
    shapes=(),
    times=(
        SegmentTimes(
            configuration=_ONE,
            segment_s=(0.1, 0.2),
            overhead_s=1e-5,
            border_s_per_byte=0.0,
            error_fraction=0.02,
        ),
    ),
    windows=(),
    plain_s=0.3,
    profiling_s=1.0,
)


_NO_SCORE = ComplexityScore(
    operations=0,
    bytes_moved=0,
    operations_per_byte=0.0,
    parallel_fraction=0.0,
    estimated_s=0.0,
    score=0.0,
)


def _plan(*times_s: float) -> ExecutionPlan:
    nodes = [(0, 5), (5, 9)]
    segments = tuple(
        ExplainedSegment(
            index=at,
            nodes=nodes[at],
            operators=(),
            operations=0,
            crossing_bytes=0,
            score=_NO_SCORE,
            times=((_ONE, time_s),),
        )
        for at, time_s in enumerate(times_s)
    )
    return replace(made_plans.PLAN, model=_PROFILE.model, shapes=(), segments=segments)


def test_the_profile_that_a_plan_was_made_with_is_exported_with_its_division() -> None:
    other = replace(_PROFILE, times=(replace(_PROFILE.times[0], segment_s=(0.3, 0.4)),))
    (found,) = measured_times(_plan(0.1, 0.2), [other, _PROFILE], _HERE)
    assert (found.model, found.starts, found.times) == (_PROFILE.model, (0, 5), _PROFILE.times[0])


@pytest.mark.parametrize("times_s", [(0.1, 0.21), (0.1,)])
def test_times_of_another_division_are_not_exported(times_s: tuple[float, ...]) -> None:
    assert measured_times(_plan(*times_s), [_PROFILE], _HERE) == ()
