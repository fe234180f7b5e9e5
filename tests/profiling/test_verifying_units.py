"""Verdicts on plans over several units, and what takes the place of a unit that computes wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from edge_agent.devices import Layout
from edge_agent.planning.cost import assemble
from edge_agent.plans import CandidatePlan, Target
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.profiling.verify import Verification, shortlist, verify
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_models import accelerator, chain, configuration, times
from tests.profiling.simulated_bench import SimulatedBench

MODEL = chain(4)
PLAIN_S = 0.020
CPU, BLOCKED = (configuration(layout, 2) for layout in (Layout.NCHW, Layout.BLOCKED))
TWICE = configuration(instances=2)
GPU, GPU_NHWC, NPU = accelerator(), accelerator(layout=Layout.NHWC), accelerator("npu0")
NPU_WHOLE = accelerator("npu0", falls_back=True)


def truth_of(whole_s: Mapping[Configuration, float]) -> dict[Configuration, SegmentTimes]:
    return {c: times(c, [s / 4] * 4) for c, s in whole_s.items()}


def plan_of(
    *used: Configuration, predicted_s: float = PLAIN_S, target: Target = Target.LATENCY
) -> CandidatePlan:
    """Equal parts, each in its configuration."""
    size = 4 // len(used)
    pieces = [(SegmentRange(start=i * size, stop=(i + 1) * size), c) for i, c in enumerate(used)]
    known = truth_of(dict.fromkeys(used, predicted_s))
    return assemble(MODEL, known, pieces, target=target)


def bench(whole_s: Mapping[Configuration, float], **changes: object) -> SimulatedBench:
    return SimulatedBench(  # type: ignore[arg-type]
        model=MODEL, truth=truth_of(whole_s), plain_s=PLAIN_S, **changes
    )


def verified(
    device: SimulatedBench, candidates: Sequence[CandidatePlan], budget_s: float = 20.0
) -> Verification:
    return verify(
        candidates, device, budget_s=budget_s, rng=random.Random(3), clock_s=device.clock_s
    )


def test_a_pipeline_is_judged_by_its_time_per_request() -> None:
    plan = plan_of(TWICE, GPU, predicted_s=0.030, target=Target.THROUGHPUT)
    assert plan.instances == 3
    # The simulated round of three requests takes as long as both parts together.
    got = verified(bench({TWICE: 0.048, GPU: 0.042}), [plan])
    assert got.chosen == plan
    assert got.measured_s == pytest.approx(0.045, rel=0.03)
    assert got.ratio is not None
    assert got.ratio.median == pytest.approx(PLAIN_S / 0.015, rel=0.03)
    assert got.parts_s == pytest.approx((0.024, 0.021), rel=0.03)


def test_the_best_undivided_plan_of_another_unit_is_measured_if_it_may_be_as_good() -> None:
    divided = [
        plan_of(a, b, predicted_s=0.010)
        for a in (CPU, BLOCKED, GPU, NPU)
        for b in (CPU, BLOCKED, GPU, NPU)
        if a != b
    ]
    near, far = plan_of(GPU, predicted_s=0.0129), plan_of(GPU, predicted_s=0.0131)
    cpu, npu = plan_of(CPU, predicted_s=0.011), plan_of(NPU, predicted_s=0.01295)
    kept, rejections = shortlist([*divided, cpu, near, npu], 5)
    assert kept == [*divided[:3], cpu, near]
    assert len(rejections) == len(divided) - 3 + 1
    kept, _ = shortlist([*divided, cpu, far], 5)
    assert kept == [*divided[:4], cpu]
    # Where half of the profile was made beside other work, predictions are off by more.
    kept, _ = shortlist([*divided, cpu, far], 5, disturbed_fraction=0.5)
    assert kept == [*divided[:3], cpu, far]
    assert shortlist([*divided, cpu, near], 1)[0] == [cpu]


def test_one_that_falls_back_counts_as_undivided() -> None:
    whole, divided = plan_of(NPU_WHOLE, predicted_s=0.010), plan_of(CPU, NPU, predicted_s=0.00995)
    kept, rejections = shortlist([divided, whole, plan_of(CPU, predicted_s=0.012)], 5)
    assert kept == [whole, plan_of(CPU, predicted_s=0.012)]
    assert [r.reason for r in rejections] == ["not worth measuring"]


def test_when_all_of_a_unit_is_wrong_the_others_get_their_turn() -> None:
    wrong = dict.fromkeys((GPU, GPU_NHWC), "output y is off by 0.3")
    device = bench(
        {CPU: 0.9 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S, GPU: 1e-3, GPU_NHWC: 1e-3}, wrong=wrong
    )
    on_gpu = [
        plan_of(GPU, predicted_s=1e-3),
        plan_of(GPU_NHWC, predicted_s=1e-3),
        *(plan_of(a, b, predicted_s=1e-3) for a in (GPU, GPU_NHWC) for b in (CPU, BLOCKED)),
        *(plan_of(b, a, predicted_s=1e-3) for a in (GPU, GPU_NHWC) for b in (CPU, BLOCKED)),
    ]
    on_host = [plan_of(BLOCKED, predicted_s=0.016), plan_of(CPU, predicted_s=0.018)]
    got = verified(device, [*on_gpu, *on_host])
    assert got.chosen == on_host[0]
    reasons = {r.candidate: r.reason for r in got.rejections}
    assert reasons[str(on_gpu[0])] == reasons[str(on_gpu[1])] == "inaccurate"
    assert set(reasons) == {str(p) for p in (*on_gpu, on_host[1])}
    assert not any("gpu0" in what for what in device.ran)


def test_wrong_candidates_are_replaced_only_while_there_is_time() -> None:
    used = [configuration(Layout.NCHW, threads) for threads in range(1, 9)]
    device = bench(
        dict.fromkeys(used, 0.5 * PLAIN_S), wrong=dict.fromkeys(used, "off"), checking_s=2.0
    )
    got = verified(device, [plan_of(c) for c in used], budget_s=20.0)
    assert got.chosen is None
    assert [r.reason for r in got.rejections] == ["inaccurate"] * 5 + ["undecided"] * 3
    assert device.now_s - 100.0 == pytest.approx(10.0, abs=0.01)


def test_a_unit_that_is_right_in_one_plan_is_not_passed_over() -> None:
    device = bench(
        {CPU: PLAIN_S, BLOCKED: PLAIN_S, GPU: 0.5 * PLAIN_S}, wrong={BLOCKED: "off by 0.3"}
    )
    candidates = [plan_of(GPU, BLOCKED), plan_of(GPU), plan_of(CPU, predicted_s=1.1 * PLAIN_S)]
    assert verified(device, candidates).chosen == plan_of(GPU)
