"""Verdicts on simulated devices: right answers only, beyond the noise only, plain when in doubt."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from edge_agent.devices import Layout
from edge_agent.errors import ModelRefused, RunFailed, RuntimeUnavailable
from edge_agent.planning.cost import assemble
from edge_agent.planning.explain import render
from edge_agent.planning.partition import choose
from edge_agent.plans import CandidatePlan, Target
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.profiling.verify import Verification, explained, verify
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_models import (
    IDLE,
    PROCESSOR,
    chain,
    configuration,
    latency_profile,
    times,
)
from tests.profiling.simulated_bench import SimulatedBench

MODEL = chain(4)
PLAIN_S = 0.020
NCHW, BLOCKED, NHWC = (
    configuration(layout, threads=2) for layout in (Layout.NCHW, Layout.BLOCKED, Layout.NHWC)
)


def truth_of(whole_s: Mapping[Configuration, float]) -> dict[Configuration, SegmentTimes]:
    return {c: times(c, [s / 4] * 4) for c, s in whole_s.items()}


def whole(which: Configuration, predicted_s: float = PLAIN_S) -> CandidatePlan:
    known = truth_of({which: predicted_s})
    whole_model = [(SegmentRange(start=0, stop=4), which)]
    return assemble(MODEL, known, whole_model, target=Target.THROUGHPUT)


def halves(first: Configuration, second: Configuration) -> CandidatePlan:
    known = truth_of({first: PLAIN_S, second: PLAIN_S})
    pieces = [(SegmentRange(start=0, stop=2), first), (SegmentRange(start=2, stop=4), second)]
    return assemble(MODEL, known, pieces, target=Target.LATENCY)


def bench(whole_s: Mapping[Configuration, float], **changes: object) -> SimulatedBench:
    return SimulatedBench(  # type: ignore[arg-type]
        model=MODEL, truth=truth_of(whole_s), plain_s=PLAIN_S, **changes
    )


def verified(
    device: SimulatedBench, candidates: list[CandidatePlan], budget_s: float = 20.0
) -> Verification:
    return verify(
        candidates,
        device,
        budget_s=budget_s,
        rng=random.Random(device.seed + 1),
        clock_s=device.clock_s,
    )


def test_a_candidate_that_is_three_percent_faster_is_found() -> None:
    found = 0
    for seed in range(20):
        device = bench({BLOCKED: 0.97 * PLAIN_S}, seed=seed)
        found += verified(device, [whole(BLOCKED)]).chosen is not None
    assert found >= 18


def test_an_equal_candidate_is_never_called_faster() -> None:
    for seed in range(50):
        device = bench({BLOCKED: PLAIN_S, NCHW: PLAIN_S, NHWC: PLAIN_S}, seed=seed, noise=0.05)
        got = verified(device, [whole(BLOCKED), whole(NCHW), whole(NHWC)], budget_s=10.0)
        assert got.chosen is None
        last = got.rejections[-1]
        assert last.reason in ("undecided", "slower")
        assert "95 % interval" in last.detail


def test_a_slower_candidate_is_rejected_with_its_interval() -> None:
    got = verified(bench({BLOCKED: 1.2 * PLAIN_S}), [whole(BLOCKED)])
    assert got.chosen is None
    assert got.reason == "the best candidate was measured slower than plain ONNX Runtime"
    assert got.ratio is not None
    assert got.ratio.median == pytest.approx(1 / 1.2, rel=0.02)
    (rejection,) = got.rejections
    assert (rejection.candidate, rejection.reason) == ("[0-3] cpu/blocked/2t", "slower")
    assert rejection.detail.startswith("plain over plan 0.8")
    assert "plain over itself" in rejection.detail


def test_the_fastest_of_several_is_chosen_whatever_was_predicted() -> None:
    device = bench({NCHW: 0.95 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S, NHWC: 1.1 * PLAIN_S})
    candidates = [whole(NHWC, 0.010), whole(NCHW, 0.011), whole(BLOCKED, 0.012)]
    got = verified(device, candidates)
    assert got.chosen == candidates[2]
    assert got.measured_s == pytest.approx(0.8 * PLAIN_S, rel=0.03)
    assert got.plain_s == pytest.approx(PLAIN_S, rel=0.03)
    assert got.control is not None
    assert got.control.low <= 1.0 <= got.control.high
    assert {(r.candidate, r.reason) for r in got.rejections} == {
        ("[0-3] cpu/NHWC/2t", "slower"),
        ("[0-3] cpu/NCHW/2t", "slower"),
    }


def test_the_faster_of_two_is_found_although_single_runs_differ_by_more() -> None:
    found = 0
    for seed in range(30):
        device = bench({NHWC: 0.60 * PLAIN_S, BLOCKED: 0.56 * PLAIN_S}, seed=seed, noise=0.15)
        found += verified(device, [whole(NHWC), whole(BLOCKED)]).chosen == whole(BLOCKED)
    assert found >= 27


SLOW = whole(NCHW, 1.1 * PLAIN_S)
"""Predicted slower than divisions, so that these are measured."""


def test_a_division_that_is_no_faster_than_undivided_gives_way_to_it() -> None:
    simple = 0
    for seed in range(20):
        device = bench({NCHW: 0.8 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S}, seed=seed, noise=0.1)
        candidates = [halves(NCHW, BLOCKED), halves(BLOCKED, NCHW), SLOW]
        got = verified(device, candidates, budget_s=8.0)
        assert got.chosen is not None
        simple += got.chosen == SLOW
        assert str(got.chosen) not in {r.candidate for r in got.rejections}
        assert len(got.rejections) == 2
    assert simple >= 18


def test_a_division_that_is_faster_than_undivided_is_chosen() -> None:
    divided = 0
    for seed in range(20):
        device = bench({NCHW: 0.8 * PLAIN_S, BLOCKED: 0.7 * PLAIN_S}, seed=seed, noise=0.05)
        candidates = [halves(BLOCKED, NCHW), SLOW]
        divided += verified(device, candidates).chosen == candidates[0]
    assert divided >= 18


def test_why_a_division_gave_way_is_told() -> None:
    told = set()
    for seed in range(10):
        device = bench({NCHW: 0.8 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S}, noise=0.1, seed=seed)
        got = verified(device, [halves(NCHW, BLOCKED), SLOW], budget_s=8.0)
        told |= {r.detail.partition(" over ")[0] for r in got.rejections}
    assert "not faster than undivided: [0-3] cpu/NCHW/2t" in told


def test_each_subgraph_of_the_chosen_plan_has_its_measured_time() -> None:
    device = bench({NCHW: 0.8 * PLAIN_S, BLOCKED: 0.6 * PLAIN_S})
    got = verified(device, [halves(NCHW, BLOCKED)])
    assert got.parts_s == pytest.approx((0.4 * PLAIN_S, 0.3 * PLAIN_S), rel=0.03)


def test_an_inaccurate_candidate_is_never_measured() -> None:
    device = bench({NCHW: 0.9 * PLAIN_S, BLOCKED: 0.5 * PLAIN_S}, wrong={BLOCKED: "off by 0.3"})
    got = verified(device, [whole(BLOCKED), whole(NCHW)])
    assert got.chosen == whole(NCHW)
    assert [(r.reason, r.detail) for r in got.rejections] == [("inaccurate", "off by 0.3")]
    assert not any("blocked" in what for what in device.ran)


@pytest.mark.parametrize("error", [RuntimeUnavailable("no"), ModelRefused("no")])
def test_a_refused_candidate_is_left_out(error: RuntimeUnavailable | ModelRefused) -> None:
    device = bench({NCHW: 0.9 * PLAIN_S, BLOCKED: 0.5 * PLAIN_S}, refuses={BLOCKED: error})
    got = verified(device, [whole(BLOCKED), whole(NCHW)])
    assert got.chosen == whole(NCHW)
    assert [(r.reason, r.detail) for r in got.rejections] == [("refused", "no")]


@pytest.mark.parametrize("others", [[], [whole(NCHW)]])
def test_a_candidate_that_fails_while_measured_is_left_out(others: list[CandidatePlan]) -> None:
    device = bench(
        {NCHW: 0.9 * PLAIN_S, BLOCKED: 0.5 * PLAIN_S},
        fails_while_running={BLOCKED: RunFailed("out of range")},
    )
    got = verified(device, [whole(BLOCKED), *others])
    assert got.chosen == (others[0] if others else None)
    assert [(r.reason, r.detail) for r in got.rejections] == [("failed", "out of range")]
    assert device.open_now == 0


def test_without_candidates_plain_is_used_and_nothing_is_run() -> None:
    device = bench({})
    got = verified(device, [])
    assert got.chosen is None
    assert got.ratio is None
    assert device.ran == []


def test_the_budget_is_kept() -> None:
    whole_s = {NCHW: 0.9 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S, NHWC: 0.85 * PLAIN_S}
    device = bench(whole_s, noise=0.02)
    got = verified(device, [whole(c) for c in whole_s], budget_s=8.0)
    assert got.chosen is not None
    assert device.now_s - 100.0 <= 8.5


def test_what_seems_better_and_drowns_in_the_noise_is_measured_longer() -> None:
    device = bench({NCHW: 0.85 * PLAIN_S}, noise=0.6, seed=5)
    got = verified(device, [whole(NCHW)], budget_s=2.0)
    took_s = device.now_s - 100.0
    assert 2.5 < took_s <= 8.5
    assert got.ratio is not None
    # All that is told is of the longer measurement.
    assert got.ratio.pairs > 15


def test_what_could_not_be_checked_in_time_is_undecided() -> None:
    whole_s = {NCHW: 0.9 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S, NHWC: 0.85 * PLAIN_S}
    device = bench(whole_s, checking_s=5.0)
    got = verified(device, [whole(c) for c in whole_s], budget_s=10.0)
    assert got.chosen == whole(NCHW)
    assert [r.reason for r in got.rejections] == ["undecided", "undecided"]


def test_a_budget_too_small_for_an_interval_leaves_plain() -> None:
    device = bench({BLOCKED: 0.5 * PLAIN_S})
    got = verified(device, [whole(BLOCKED)], budget_s=0.1)
    assert got.chosen is None
    assert got.ratio is not None
    assert got.ratio.pairs < 6
    assert got.rejections[0].reason == "undecided"


def test_runs_beside_other_load_do_not_decide() -> None:
    device = bench({BLOCKED: 0.9 * PLAIN_S}, load_chance=0.1)
    got = verified(device, [whole(BLOCKED)])
    assert got.chosen == whole(BLOCKED)
    assert got.ratio is not None
    assert got.ratio.median == pytest.approx(1 / 0.9, rel=0.03)


def test_only_the_best_predicted_and_the_best_undivided_are_measured() -> None:
    layouts = (NCHW, BLOCKED, NHWC)
    divided = [halves(a, b) for a in layouts for b in layouts if a != b]
    undivided = [whole(NCHW, 1.1 * PLAIN_S), whole(BLOCKED, 1.2 * PLAIN_S)]
    device = bench({NCHW: 0.5 * PLAIN_S, BLOCKED: PLAIN_S, NHWC: PLAIN_S})
    got = verified(device, [*divided, *undivided])
    assert got.chosen == undivided[0]
    unmeasured = [r for r in got.rejections if "only the 5 best" in r.detail]
    assert [r.candidate for r in unmeasured] == [
        str(divided[4]),
        str(divided[5]),
        str(undivided[1]),
    ]


def test_a_division_that_gains_less_than_can_be_measured_is_not_measured() -> None:
    device = bench({NCHW: 0.8 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S})
    got = verified(device, [halves(NCHW, BLOCKED), whole(NCHW, 1.005 * PLAIN_S)])
    assert got.chosen == whole(NCHW, 1.005 * PLAIN_S)
    assert [(r.reason, r.detail) for r in got.rejections] == [
        (
            "not worth measuring",
            "predicted 20 ms per request, [0-3] cpu/NCHW/2t 20.1 ms",
        )
    ]


def test_a_candidate_predicted_clearly_slower_is_not_measured() -> None:
    device = bench({NCHW: 0.8 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S})
    got = verified(device, [whole(NCHW), whole(BLOCKED, 1.4 * PLAIN_S)])
    assert [r.detail for r in got.rejections] == [
        "predicted 28 ms per request, [0-3] cpu/NCHW/2t 20 ms"
    ]
    assert not any("blocked" in what for what in device.ran)


def test_the_best_undivided_candidate_is_measured_however_slow_it_is_predicted() -> None:
    device = bench({NCHW: 0.9 * PLAIN_S, BLOCKED: 0.9 * PLAIN_S})
    verified(device, [halves(NCHW, BLOCKED), whole(NCHW, 2 * PLAIN_S)])
    assert "[0-3] cpu/NCHW/2t" in device.ran


def test_with_several_instances_the_time_per_request_is_compared() -> None:
    pair = configuration(Layout.BLOCKED, threads=1, instances=2)
    device = bench({pair: 1.6 * PLAIN_S})
    got = verified(device, [whole(pair)])
    assert got.chosen == whole(pair)
    assert got.ratio is not None
    assert got.ratio.median == pytest.approx(1 / 0.8, rel=0.03)
    assert got.measured_s == pytest.approx(1.6 * PLAIN_S, rel=0.03)


def test_a_chosen_plan_is_explained_with_what_was_measured() -> None:
    whole_s = {NCHW: 0.9 * PLAIN_S, BLOCKED: 0.8 * PLAIN_S}
    profile = latency_profile(MODEL, tuple(truth_of(whole_s).values()), plain_s=PLAIN_S)
    got = verified(bench(whole_s), list(choose(MODEL, profile, Target.LATENCY, 3)))
    plan = explained(
        got,
        MODEL,
        profile,
        target=Target.LATENCY,
        plain=BLOCKED,
        state=IDLE,
        processor=PROCESSOR,
    )
    assert not plan.is_plain
    assert plan.plain_over_plan == got.ratio
    assert plan.subgraphs[0].measured_s == got.measured_s
    assert plan.subgraphs[0].runner_up == NCHW
    assert plan.reason.startswith("measured faster than plain ONNX Runtime: plain over plan 1.2")
    assert "Not used:" in render(plan)


def test_plain_is_explained_with_the_configuration_that_it_has() -> None:
    profile = latency_profile(MODEL, [], plain_s=PLAIN_S)
    plan = explained(
        verified(bench({}), []),
        MODEL,
        profile,
        target=Target.LATENCY,
        plain=BLOCKED,
        state=IDLE,
        processor=PROCESSOR,
    )
    assert plan.is_plain
    assert plan.measured_s == plan.plain_s == PLAIN_S
    assert plan.subgraphs[0].subgraph.configuration == BLOCKED
    assert plan.plain_over_plan is None
