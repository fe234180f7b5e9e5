from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.devices import Layout, UnitId, UnitKind
from edge_agent.hardware import (
    DeviceProfile,
    MeasuredTimes,
    NetworkProfile,
    Source,
    Sourced,
    SourceKind,
    UnitProfile,
)
from edge_agent.planning.estimate import (
    ERROR_FRACTION,
    border_s_per_byte,
    configurations,
    estimated_times,
    is_taken,
    planned_device,
)
from edge_agent.profile_files.reading import load
from edge_agent.profile_files.shipped import shipped
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.summaries import Arithmetic, ModelSummary, OperatorClass, OperatorWork, Segment
from tests.planning.made_models import segment, summary

_HERE = Source(
    key="here", text="made up", kind=SourceKind.MEASURED, date=datetime.date(2026, 11, 29)
)


def _sourced(value: float, source: Source = _HERE) -> Sourced:
    return Sourced(value=value, source=source)


_CPU = UnitProfile(
    id=UnitId("cpu"),
    kind=UnitKind.CPU,
    cores=_sourced(4),
    operations_per_s=((Arithmetic.FLOAT32, _sourced(40e9)), (Arithmetic.INT8, _sourced(80e9))),
    bandwidth_bytes_per_s=_sourced(8e9),
    core_bandwidth_bytes_per_s=_sourced(4e9),
    launch_s=_sourced(20e-6),
    operator_s=_sourced(2e-6),
    busy_w=_sourced(8.0),
    layouts=(Layout.NCHW, Layout.BLOCKED),
    threads=(1, 4),
    efficiencies=((OperatorClass.CONVOLUTION, _sourced(0.5)),),
)
_NPU = UnitProfile(
    id=UnitId("npu"),
    kind=UnitKind.NPU,
    operations_per_s=((Arithmetic.INT8, _sourced(6e12)),),
    bandwidth_bytes_per_s=_sourced(8e9),
    launch_s=_sourced(200e-6),
    operator_s=_sourced(0.0),
    busy_w=_sourced(5.0),
    idle_w=_sourced(0.5),
    memory_bytes=_sourced(64e6),
    layouts=(Layout.NATIVE,),
    refuses=("Resize",),
)
_BOARD = DeviceProfile(
    id="board",
    name="A board",
    sources=(_HERE,),
    memory_bytes=_sourced(8e9),
    idle_w=_sourced(2.0),
    units=(_CPU, _NPU),
)
_ONE = Configuration(unit=UnitId("cpu"), layout=Layout.BLOCKED, threads=1)


def _work(
    kind: OperatorClass = OperatorClass.CONVOLUTION,
    arithmetic: Arithmetic = Arithmetic.FLOAT32,
    *,
    nodes: int = 3,
    operations: int = 10_000_000,
    parallel: float = 1.0,
    activation_bytes: int = 0,
    weight_bytes: int = 0,
) -> OperatorWork:
    return OperatorWork(
        kind=kind,
        arithmetic=arithmetic,
        nodes=nodes,
        operations=operations,
        parallel_operations=round(operations * parallel),
        activation_bytes=activation_bytes,
        weight_bytes=weight_bytes,
    )


def _segment(*work: OperatorWork, index: int = 0, operator: str = "Conv") -> Segment:
    return replace(segment(index, operator=operator), work=work)


def _one_s(work: OperatorWork, configuration: Configuration = _ONE) -> float:
    unit = _NPU if configuration.unit == _NPU.id else _CPU
    (found,) = estimated_times(unit, configuration, [_segment(work)]).segment_s
    return found


def test_a_convolution_takes_its_operations_over_the_share_of_the_peak_that_it_reaches() -> None:
    # 10 million operations at half of the 10 GFLOP/s of one core, and 2 µs for each of 3 nodes.
    assert _one_s(_work()) == pytest.approx(10e6 / 5e9 + 3 * 2e-6)


def test_what_moves_many_bytes_takes_their_time() -> None:
    assert _one_s(_work(weight_bytes=40_000_000)) == pytest.approx(40e6 / 4e9 + 6e-6)


def test_activations_of_a_processor_are_partly_in_its_cache() -> None:
    slow = _one_s(_work(weight_bytes=40_000_000))
    assert _one_s(_work(activation_bytes=40_000_000)) < slow


def test_quantised_work_runs_at_its_own_peak() -> None:
    found = _one_s(_work(arithmetic=Arithmetic.INT8, nodes=0))
    assert found == pytest.approx(_one_s(_work(nodes=0)) / 2)


def test_half_precision_runs_at_the_next_peak_where_it_has_none() -> None:
    assert _one_s(_work(arithmetic=Arithmetic.FLOAT16)) == _one_s(_work())


def test_threads_shorten_what_is_parallel_only() -> None:
    four = replace(_ONE, threads=4)
    assert _one_s(_work(nodes=0), four) == pytest.approx(_one_s(_work(nodes=0)) / 4)
    assert _one_s(_work(parallel=0.0), four) == _one_s(_work(parallel=0.0))
    half = _one_s(_work(nodes=0, parallel=0.5), four)
    assert half == pytest.approx(_one_s(_work(nodes=0)) * (0.5 + 0.5 / 4))


def test_threads_get_no_more_bytes_than_the_memory_gives() -> None:
    heavy = _work(nodes=0, weight_bytes=40_000_000)
    assert _one_s(heavy, replace(_ONE, threads=4)) == pytest.approx(40e6 / 8e9)


def test_runs_at_once_share_the_memory() -> None:
    heavy = _work(nodes=0, weight_bytes=40_000_000)
    assert _one_s(heavy, replace(_ONE, instances=4)) == pytest.approx(40e6 / 2e9)


def test_the_fastest_core_counts_for_one_thread() -> None:
    uneven = replace(_CPU, core_operations_per_s=((Arithmetic.FLOAT32, _sourced(20e9)),))
    (found,) = estimated_times(uneven, _ONE, [_segment(_work(nodes=0))]).segment_s
    assert found == pytest.approx(10e6 / 10e9)


@pytest.mark.parametrize(("threads", "instances"), [(1, 4), (2, 2)])
@pytest.mark.parametrize("parallel", [1.0, 0.0])
def test_runs_at_once_share_what_all_cores_reach(
    threads: int, instances: int, parallel: float
) -> None:
    # One core is clocked to half of what all four reach: four of them get a quarter each.
    uneven = replace(_CPU, core_operations_per_s=((Arithmetic.FLOAT32, _sourced(20e9)),))
    which = replace(_ONE, threads=threads, instances=instances)
    work = _segment(_work(nodes=0, parallel=parallel))
    (found,) = estimated_times(uneven, which, [work]).segment_s
    # 10 million operations at 0.5 of the peak.
    assert found == pytest.approx(10e6 * instances / 20e9)


def test_runs_that_leave_cores_idle_are_as_quick_as_one() -> None:
    (alone,), (beside,) = (
        estimated_times(_CPU, replace(_ONE, instances=n), [_segment(_work())]).segment_s
        for n in (1, 3)
    )
    assert beside == alone


@pytest.mark.parametrize("path", list(shipped().values()), ids=lambda path: path.stem)
def test_no_shipped_profile_promises_more_than_its_peak(path: Path) -> None:
    for unit in load(path).units:
        for arithmetic, peak in unit.operations_per_s:
            for which in configurations(unit, is_for_throughput=True):
                for parallel in (1.0, 0.0):
                    big = _work(arithmetic=arithmetic, operations=10**12, parallel=parallel)
                    (took_s,) = estimated_times(unit, which, [_segment(big)]).segment_s
                    assert which.instances * 1e12 / took_s <= peak.value, (which, arithmetic)


def test_bytes_go_into_memory_of_its_own_at_the_rate_of_the_bus() -> None:
    # Nothing is said of borders: 12 GB/s, as PCIe 3.0 x16 gives.
    card = replace(_NPU, kind=UnitKind.GPU)
    assert border_s_per_byte(card, Layout.NATIVE) == pytest.approx(1 / 12e9)
    found = estimated_times(card, configurations(card)[0], [_segment(_work(nodes=0))])
    assert found.border_s_per_byte == pytest.approx(1 / 12e9)


def test_convolutions_on_a_processor_are_quickest_in_blocked() -> None:
    plain = replace(_CPU, efficiencies=())
    by_layout = {
        layout: estimated_times(plain, replace(_ONE, layout=layout), [_segment(work)]).segment_s
        for layout in (Layout.BLOCKED, Layout.NCHW)
        for work in [_work(OperatorClass.DEPTHWISE)]
    }
    assert by_layout[Layout.BLOCKED] < by_layout[Layout.NCHW]


@pytest.mark.parametrize(
    "kind",
    [SourceKind.DATA_SHEET, SourceKind.THIRD_PARTY, SourceKind.COMPUTED, SourceKind.ESTIMATE],
)
def test_a_peak_that_nobody_measured_is_not_reached(kind: SourceKind) -> None:
    source = replace(_HERE, key="told", kind=kind)
    told = replace(_CPU, operations_per_s=((Arithmetic.FLOAT32, _sourced(40e9, source)),))
    (found,) = estimated_times(told, _ONE, [_segment(_work(nodes=0))]).segment_s
    assert found > _one_s(_work(nodes=0))


def test_an_estimate_says_how_far_it_may_be_off_and_costs_a_launch() -> None:
    found = estimated_times(_CPU, _ONE, [_segment(_work())])
    assert (found.overhead_s, found.error_fraction) == (20e-6, ERROR_FRACTION)


def test_a_unit_refuses_what_it_does_not_compute_in_and_its_own_refusals() -> None:
    quantised = _work(arithmetic=Arithmetic.INT8)
    assert is_taken(_NPU, _segment(quantised))
    assert not is_taken(_NPU, _segment(quantised, _work()))
    assert not is_taken(_NPU, _segment(quantised, operator="Resize"))
    assert is_taken(_CPU, _segment(quantised, _work(arithmetic=Arithmetic.FLOAT16)))


def test_a_segment_whose_work_was_not_counted_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="segment 0: got no work by class"):
        estimated_times(_CPU, _ONE, [segment(0)])


def test_throughput_also_plans_with_one_thread_runs_on_all_cores() -> None:
    latency = {(c.threads, c.instances) for c in configurations(_CPU)}
    throughput = {(c.threads, c.instances) for c in configurations(_CPU, is_for_throughput=True)}
    assert latency == {(1, 1), (4, 1)}
    assert throughput == {(1, 1), (4, 1), (1, 4)}
    assert [c.threads for c in configurations(_NPU)] == [0]


def _model() -> ModelSummary:
    return summary(
        [
            _segment(_work(arithmetic=Arithmetic.INT8)),
            _segment(_work(), index=1),
        ]
    )


def test_a_profile_becomes_a_device_with_units_times_and_memory() -> None:
    found = planned_device(_BOARD, _model())
    assert (found.id, found.cores, found.is_estimated) == ("board", 4, True)
    assert found.memory_bytes == pytest.approx(6e9)
    assert [(u.id, u.idle_w, u.busy_w, u.memory_bytes) for u in found.units] == [
        ("cpu", 2.0, 8.0, None),
        ("npu", 0.5, 5.0, 64_000_000),
    ]
    refused = {times.configuration.unit: times.refused for times in found.times}
    assert refused == {"cpu": (), "npu": (1,)}


def test_what_the_system_leaves_of_the_memory_is_what_may_be_used() -> None:
    told = replace(_BOARD, available_bytes=_sourced(7e9))
    assert planned_device(told, _model()).memory_bytes == 7_000_000_000


def test_a_unit_that_takes_no_segment_has_no_times() -> None:
    found = planned_device(_BOARD, summary([_segment(_work())]))
    assert {times.configuration.unit for times in found.times} == {"cpu"}


def test_bytes_cost_more_encrypted_and_as_the_profile_says() -> None:
    told = replace(
        _BOARD,
        network=NetworkProfile(
            send_s_per_byte=_sourced(1e-9), encrypted_send_s_per_byte=_sourced(3e-9)
        ),
    )
    assert planned_device(told, _model()).send_s_per_byte == 3e-9
    plain = planned_device(told, _model(), is_encrypted=False)
    assert plain.send_s_per_byte == 1e-9
    assert 0 < plain.receive_s_per_byte < planned_device(told, _model()).receive_s_per_byte


def test_measured_times_of_the_same_model_beat_estimates() -> None:
    model = _model()
    times = SegmentTimes(
        configuration=_ONE,
        segment_s=(0.25, 0.5),
        overhead_s=0.0,
        border_s_per_byte=0.0,
        error_fraction=0.01,
    )
    measured = MeasuredTimes(
        model=model.model,
        starts=tuple(s.start for s in model.segments),
        shapes=model.shapes,
        times=times,
        source=_HERE,
    )
    cpu_alone = replace(_BOARD, units=(_CPU,), latency=(measured,))
    found = planned_device(cpu_alone, model)
    assert (found.times, found.is_estimated) == ((times,), False)
    beside = planned_device(replace(cpu_alone, units=(_CPU, _NPU)), model)
    assert [t.configuration.unit for t in beside.times] == ["cpu", "npu"]
    assert beside.is_estimated
    assert beside.estimated_because == ""
    for other, because in (
        (replace(measured, starts=(0, 1)), "not used: they are of 2 segments that begin at"),
        (replace(measured, shapes=(("other", (1,)),)), "not used: they are for other[1], and"),
        (replace(measured, model="ff" * 32), None),
    ):
        device = planned_device(replace(cpu_alone, latency=(other,)), model)
        assert device.is_estimated
        assert (because or "") in device.estimated_because
        assert bool(because) is bool(device.estimated_because)
        # Times that fit are used, whatever else there is for the same unit.
        both = planned_device(replace(cpu_alone, latency=(other, measured)), model)
        assert (both.is_estimated, both.estimated_because) == (False, "")


def test_without_known_power_a_unit_draws_none() -> None:
    dark = replace(_BOARD, units=(replace(_CPU, busy_w=None),))
    (unit,) = planned_device(dark, _model()).units
    assert (unit.idle_w, unit.busy_w) == (0.0, 0.0)
    assert not dark.has_power(dark.units[0])
    assert _BOARD.has_power(_CPU)


@given(
    kind=st.sampled_from(list(OperatorClass)),
    arithmetic=st.sampled_from(list(Arithmetic)),
    operations=st.integers(0, 10**12),
    moved=st.integers(0, 10**10),
    threads=st.integers(1, 4),
    factor=st.floats(1.0, 100.0),
)
def test_a_faster_unit_is_never_slower(
    kind: OperatorClass,
    arithmetic: Arithmetic,
    operations: int,
    moved: int,
    threads: int,
    factor: float,
) -> None:
    work = _work(kind, arithmetic, operations=operations, weight_bytes=moved)
    which = replace(_ONE, threads=threads)
    slow = _one_s(work, which)
    faster = replace(
        _CPU,
        operations_per_s=tuple(
            (a, _sourced(rate.value * factor)) for a, rate in _CPU.operations_per_s
        ),
        bandwidth_bytes_per_s=_sourced(8e9 * factor),
        core_bandwidth_bytes_per_s=_sourced(4e9 * factor),
    )
    (fast,) = estimated_times(faster, which, [_segment(work)]).segment_s
    assert fast <= slow * (1 + 1e-12)
