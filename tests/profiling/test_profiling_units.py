"""Profiles of simulated devices with units beside the processor: slow, picky or wrong ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from edge_agent.devices import Layout, UnitId
from edge_agent.errors import RuntimeUnavailable
from edge_agent.planning.cost import subgraph_s
from edge_agent.planning.partition import choose
from edge_agent.plans import Target
from edge_agent.profiles import Configuration, LatencyProfile, Placement, SegmentTimes
from edge_agent.profiling.losers import clear_losers
from edge_agent.profiling.profiler import Unfit, profile
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_models import (
    IDLE,
    PROCESSOR,
    accelerator,
    chain,
    configuration,
    segment,
    summary,
    times,
)
from tests.profiling.simulated_bench import SimulatedBench

CPU, BLOCKED = configuration(threads=2), configuration(Layout.BLOCKED, threads=2)
OPENVINO = configuration(Layout.NATIVE, threads=2, unit="openvino")
GPU, GPU_NHWC, NPU = accelerator(), accelerator(layout=Layout.NHWC), accelerator("npu0")
NPU_WHOLE = accelerator("npu0", falls_back=True)
MODEL = chain(16)
WHOLE = SegmentRange(start=0, stop=16)
REFUSED = {5, 6}


def even(which: Configuration, whole_s: float, refused: Sequence[int] = ()) -> SegmentTimes:
    return times(which, [0.98 * whole_s / 16] * 16, 0.02 * whole_s, 1e-9, refused)


def bench(whole_s: Mapping[Configuration, float], **changes: object) -> SimulatedBench:
    truth = {c: even(c, s, sorted(REFUSED) if c == NPU else ()) for c, s in whole_s.items()}
    return SimulatedBench(model=MODEL, truth=truth, plain_s=0.06, **changes)  # type: ignore[arg-type]


def profiled(
    device: SimulatedBench,
    budget_s: float = 20.0,
    target: Target = Target.LATENCY,
    placements: tuple[Placement, ...] = (),
) -> LatencyProfile:
    return profile(
        device.model,
        tuple(device.truth),
        device,
        target=target,
        budget_s=budget_s,
        rng=random.Random(1),
        device_key="made",
        state=IDLE,
        processor=PROCESSOR,
        refused={c: frozenset(t.refused) for c, t in device.truth.items()},
        placements=placements,
        clock_s=device.clock_s,
    )


def windows_of(got: LatencyProfile, which: Configuration) -> set[str]:
    return {str(w.segments) for w in got.windows if w.configuration == which}


def reasons(got: LatencyProfile) -> dict[str, str]:
    return {r.candidate: r.reason for r in got.rejections}


def test_a_unit_that_refuses_segments_is_measured_in_the_runs_between_them() -> None:
    got = profiled(bench({CPU: 0.06, NPU: 0.012}))
    measured = windows_of(got, NPU)
    assert {"0-4", "7-15", "8-15"} <= measured
    for window in got.windows:
        if window.configuration == NPU:
            inside = set(range(window.segments.start, window.segments.stop))
            assert not inside & REFUSED
    fitted = next(t for t in got.times if t.configuration == NPU)
    assert fitted.refused == (5, 6)
    exact = even(NPU, 0.012)
    for part in (SegmentRange(start=0, stop=5), SegmentRange(start=7, stop=16)):
        assert subgraph_s(MODEL, fitted, part) == pytest.approx(
            subgraph_s(MODEL, exact, part), rel=0.06
        )
    best = choose(MODEL, got, Target.LATENCY, 1)[0]
    assert str(best) == "[0-4] npu0/native + [5-6] cpu/NCHW/2t + [7-15] npu0/native"


def test_a_run_that_is_refused_after_all_counts_as_refused() -> None:
    error = RuntimeUnavailable("no kernel")
    got = profiled(bench({CPU: 0.06, NPU: 0.012}, refuses_parts={(NPU, "0-4"): error}))
    fitted = next(t for t in got.times if t.configuration == NPU)
    assert fitted.refused == (0, 1, 2, 3, 4, 5, 6)
    assert reasons(got)["[0-4] npu0/native"] == "refused"
    best = choose(MODEL, got, Target.LATENCY, 1)[0]
    assert str(best) == "[0-6] cpu/NCHW/2t + [7-15] npu0/native"


def test_where_every_run_is_refused_nothing_is_left_of_a_unit() -> None:
    error = RuntimeUnavailable("no kernel")
    got = profiled(bench({CPU: 0.06, NPU: 0.012}, refuses={NPU: error}))
    assert [t.configuration for t in got.times] == [CPU]
    assert set(reasons(got)) == {"[0-4] npu0/native", "[7-15] npu0/native"}


def test_a_unit_that_takes_nothing_which_could_be_divided_off_is_refused() -> None:
    model = chain(2, [None])
    truth = {CPU: times(CPU, [1e-3] * 2), NPU: times(NPU, [1e-3] * 2, refused=[0])}
    got = profiled(SimulatedBench(model=model, truth=truth, plain_s=2e-3))
    assert [t.configuration for t in got.times] == [CPU]
    assert reasons(got) == {"[0-1] npu0/native": "refused"}


def test_what_falls_back_to_the_processor_is_measured_whole_only() -> None:
    got = profiled(bench({CPU: 0.06, GPU: 0.05, NPU_WHOLE: 0.04}))
    assert windows_of(got, NPU_WHOLE) == {"0-15"}
    assert len(windows_of(got, GPU)) > 1
    assert [t.is_divisible for t in got.times if t.configuration == NPU_WHOLE] == [False]
    assert str(choose(MODEL, got, Target.LATENCY, 1)[0]) == "[0-15] npu0+cpu/native"


def test_units_are_opened_after_plain_and_the_processor() -> None:
    device = bench({GPU: 0.05, OPENVINO: 0.06, CPU: 0.06, BLOCKED: 0.055})
    profiled(device)
    first = [device.ran.index(what) for what in ("plain", f"[0-15] {CPU}", f"[0-15] {BLOCKED}")]
    openvino, gpu = (device.ran.index(f"[0-15] {c}") for c in (OPENVINO, GPU))
    assert max(first) < openvino < gpu


@pytest.mark.parametrize(("target", "factor"), [(Target.LATENCY, 10), (Target.THROUGHPUT, 80)])
def test_units_are_held_to_a_multiple_of_plains_time(target: Target, factor: float) -> None:
    device = bench({CPU: 0.06, OPENVINO: 0.06, GPU: 0.05}, noise=0.0)
    profiled(device, target=target)
    assert device.patience_s[CPU] is None
    assert device.patience_s[OPENVINO] == pytest.approx(10 * 0.06)
    assert device.patience_s[GPU] == pytest.approx(factor * 0.06)


def test_units_have_some_patience_beside_a_tiny_model() -> None:
    model = summary([segment(0)])
    truth = {c: times(c, [1e-4]) for c in (CPU, GPU)}
    device = SimulatedBench(model=model, truth=truth, plain_s=1e-4)
    profiled(device)
    assert device.patience_s[GPU] == 0.05


def test_a_unit_that_takes_far_too_long_is_run_once() -> None:
    device = bench({CPU: 0.06, GPU: 7.0})
    got = profiled(device)
    assert device.ran.count(f"[0-15] {GPU}") == 1
    assert GPU not in {t.configuration for t in got.times}
    rejection = next(r for r in got.rejections if "gpu0" in r.candidate)
    assert (rejection.candidate, rejection.reason) == ("[0-15] gpu0/native", "slower")
    assert rejection.detail.startswith("one run took ")
    assert device.open_now == 0


def test_a_unit_that_computes_something_else_is_dropped_with_all_of_its_runs() -> None:
    wrong = Unfit("inaccurate", "output y is off by 0.3")
    device = bench({CPU: 0.06, NPU: 0.012}, unfit={(NPU, 5): wrong})
    got = profiled(device)
    assert [t.configuration for t in got.times] == [CPU]
    assert windows_of(got, NPU) == set()
    assert reasons(got)["[0-4] npu0/native"] == "inaccurate"
    assert device.ran.count(f"[7-15] {NPU}") <= 3


def test_a_part_that_is_unfit_leaves_the_whole() -> None:
    wrong = Unfit("inaccurate", "output y is off by 0.3")
    got = profiled(bench({CPU: 0.06, GPU: 0.05}, unfit={(GPU, 8): wrong}))
    fitted = next(t for t in got.times if t.configuration == GPU)
    assert not fitted.is_divisible
    assert windows_of(got, GPU) == {"0-15"}


@pytest.mark.parametrize("budget_s", [4.0, 12.0])
def test_a_unit_that_opens_slowly_takes_nothing_from_the_processor(budget_s: float) -> None:
    alone = profiled(bench({CPU: 0.06, BLOCKED: 0.055}), budget_s)
    device = bench({CPU: 0.06, BLOCKED: 0.055, GPU: 0.05}, opens_in_s={GPU: 30.0})
    got = profiled(device, budget_s)

    def whole_windows(p: LatencyProfile) -> list[object]:
        return [w for w in p.windows if w.segments == WHOLE and w.configuration in (CPU, BLOCKED)]

    assert whole_windows(got) == whole_windows(alone)
    assert got.profiling_s <= 0.7 * budget_s + 30.0 + 0.2
    assert choose(MODEL, got, Target.LATENCY, 3)
    # It is measured all the same, once: else nothing would be known of it.
    (measured,) = (w for w in got.windows if w.configuration == GPU)
    assert (measured.segments, measured.timing.samples) == (WHOLE, 1)


def test_a_unit_that_runs_slowly_leaves_time_for_windows_of_the_others() -> None:
    slow = {accelerator(layout=layout): 4.0 for layout in Layout}
    device = bench({CPU: 0.06, BLOCKED: 0.055, **slow})
    got = profiled(device, budget_s=40.0, target=Target.THROUGHPUT)
    assert got.profiling_s <= 40.1
    assert sum(what.startswith("[0-15] gpu0") for what in device.ran) <= 8
    assert {len(w.segments) for w in got.windows if w.configuration == BLOCKED} >= {16, 8, 4, 2}


def test_an_accelerator_is_mixable_with_any_number_of_instances() -> None:
    twice = configuration(threads=1, instances=2)
    got = profiled(bench({twice: 0.1, GPU: 0.08}), budget_s=30.0, target=Target.THROUGHPUT)
    assert len(windows_of(got, twice)) > 2
    assert len(windows_of(got, GPU)) > 2
    best = choose(MODEL, got, Target.THROUGHPUT, 1)[0]
    assert {s.configuration for s in best.subgraphs} == {twice, GPU}
    assert best.instances == 3
    # Of 16 equal segments, 10 take 31 ms per request on two cores, and 6 take 30 ms on the GPU.
    assert best.predicted_per_s == pytest.approx(1 / 0.0315, rel=0.1)


def test_what_units_took_is_kept() -> None:
    placement = Placement(unit=UnitId("gpu0"), taken=3, refused=(), removed=0, evidence="one run")
    assert profiled(bench({CPU: 0.06}), placements=(placement,)).placements == (placement,)


def test_a_unit_is_lost_later_than_a_configuration_of_the_same_one() -> None:
    least_s = {CPU: 0.010, BLOCKED: 0.016, GPU: 0.029, NPU: 0.031, GPU_NHWC: 0.045}
    assert clear_losers(least_s, Target.LATENCY) == {BLOCKED: CPU, NPU: CPU, GPU_NHWC: GPU}
    assert clear_losers(least_s, Target.THROUGHPUT) == {BLOCKED: CPU, GPU_NHWC: GPU}
    assert clear_losers({CPU: 0.010, GPU: 0.079}, Target.THROUGHPUT) == {}
    assert clear_losers({CPU: 0.010, GPU: 0.081}, Target.THROUGHPUT) == {GPU: CPU}


def test_instances_are_compared_by_their_time_per_request() -> None:
    twice = configuration(threads=1, instances=2)
    assert clear_losers({twice: 0.010, GPU: 0.039}, Target.THROUGHPUT) == {}
    assert clear_losers({twice: 0.010, GPU: 0.041}, Target.THROUGHPUT) == {GPU: twice}
    assert clear_losers({CPU: 0.010, twice: 0.031}, Target.THROUGHPUT) == {twice: CPU}
