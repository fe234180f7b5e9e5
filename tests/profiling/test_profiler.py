"""Profiles of simulated devices whose truth is known."""

from __future__ import annotations

import random

import pytest

from edge_agent.devices import Layout
from edge_agent.errors import EdgeAgentError, RunFailed, RuntimeUnavailable
from edge_agent.planning.cost import subgraph_s
from edge_agent.planning.partition import choose
from edge_agent.plans import Target
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.profiling.profiler import profile
from edge_agent.profiling.windows import window_levels
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_models import (
    IDLE,
    PROCESSOR,
    chain,
    configuration,
    segment,
    summary,
    times,
)
from tests.profiling.simulated_bench import SimulatedBench

NCHW1, NCHW2 = configuration(threads=1), configuration(threads=2)
BLOCKED1 = configuration(Layout.BLOCKED, threads=1)
BLOCKED2 = configuration(Layout.BLOCKED, threads=2)
NHWC2 = configuration(Layout.NHWC, threads=2)
PAIR = configuration(Layout.BLOCKED, threads=1, instances=2)
MODEL = chain(16)
WHOLE = SegmentRange(start=0, stop=16)


def evenly(which: Configuration, whole_s: float, first_half: float = 0.5) -> SegmentTimes:
    """The first half of the model takes that share of the whole."""
    shares = [first_half / 8] * 8 + [(1 - first_half) / 8] * 8
    return times(which, [0.99 * whole_s * s for s in shares], 0.01 * whole_s, 1e-9)


RESNET = {
    t.configuration: t
    for t in (
        evenly(NCHW1, 0.125),
        evenly(NCHW2, 0.068),
        evenly(BLOCKED1, 0.110),
        evenly(BLOCKED2, 0.060),
        evenly(NHWC2, 0.075),
        evenly(PAIR, 0.118),
    )
}


def bench(**changes: object) -> SimulatedBench:
    return SimulatedBench(model=MODEL, truth=RESNET, plain_s=0.060, **changes)  # type: ignore[arg-type]


def profiled(device: SimulatedBench, budget_s: float = 12.0) -> LatencyProfile:
    return profile(
        device.model,
        tuple(device.truth),
        device,
        target=Target.LATENCY,
        budget_s=budget_s,
        rng=random.Random(device.seed),
        device_key="made",
        state=IDLE,
        processor=PROCESSOR,
        clock_s=device.clock_s,
    )


def whole_windows(got: LatencyProfile) -> dict[Configuration, float]:
    return {w.configuration: w.timing.median_s for w in got.windows if w.segments == WHOLE}


def test_a_model_of_sixty_milliseconds_is_profiled_within_twelve_seconds() -> None:
    device = bench()
    got = profiled(device)
    assert got.profiling_s == pytest.approx(device.now_s - 100.0)
    assert got.profiling_s <= 12.0 + 0.13
    assert whole_windows(got).keys() == RESNET.keys()
    assert {len(w.segments) for w in got.windows} >= {16, 8, 4}
    assert device.open_now == 0
    assert device.most_open <= 7


@pytest.mark.parametrize("seed", range(5))
def test_whole_models_are_predicted_as_they_were_measured(seed: int) -> None:
    got = profiled(bench(seed=seed))
    measured = whole_windows(got)
    for fitted in got.times:
        predicted_s = subgraph_s(MODEL, fitted, WHOLE)
        assert predicted_s == pytest.approx(measured[fitted.configuration], rel=1e-6)
        exact_s = subgraph_s(MODEL, RESNET[fitted.configuration], WHOLE)
        assert predicted_s == pytest.approx(exact_s, rel=0.06)
    assert got.plain_s == pytest.approx(0.060, rel=0.05)


def test_clear_losers_keep_their_whole_window_and_have_no_others() -> None:
    got = profiled(bench())
    slow = [w for w in got.windows if w.configuration in (NCHW1, BLOCKED1)]
    assert [w.segments for w in slow] == [WHOLE, WHOLE]
    assert all(w.timing.samples <= 4 for w in slow)
    reasons = {r.candidate: r.reason for r in got.rejections}
    assert reasons == {"[0-15] cpu/NCHW/1t": "slower", "[0-15] cpu/blocked/1t": "slower"}


def test_a_loser_has_the_proportions_of_the_fastest_so_it_is_not_mixed_in() -> None:
    truth = {
        NCHW1: evenly(NCHW1, 0.110, first_half=0.9),
        BLOCKED2: evenly(BLOCKED2, 0.060, first_half=0.9),
    }
    device = SimulatedBench(model=MODEL, truth=truth, plain_s=0.06)
    got = profiled(device)
    loser = next(t for t in got.times if t.configuration == NCHW1)
    assert sum(loser.segment_s[:8]) / sum(loser.segment_s) == pytest.approx(0.9, abs=0.03)
    assert [len(c.subgraphs) for c in choose(MODEL, got, Target.LATENCY, 1)] == [1, 1]


def test_the_division_that_the_truth_favours_is_proposed() -> None:
    truth = {
        NCHW2: evenly(NCHW2, 0.060, first_half=0.3),
        BLOCKED2: evenly(BLOCKED2, 0.060, first_half=0.7),
    }
    device = SimulatedBench(model=MODEL, truth=truth, plain_s=0.06)
    best = choose(MODEL, profiled(device), Target.LATENCY, 1)[0]
    assert [s.configuration for s in best.subgraphs] == [NCHW2, BLOCKED2]
    assert best.subgraphs[1].segments.start in (7, 8, 9)
    assert best.predicted_s == pytest.approx(0.0372, rel=0.1)


def test_several_instances_are_windowed_where_they_keep_up_per_request() -> None:
    got = profiled(bench(), budget_s=60.0)
    assert any(w.configuration == PAIR and w.segments != WHOLE for w in got.windows)
    best = choose(MODEL, got, Target.THROUGHPUT, 1)[0]
    assert best.predicted_per_s == pytest.approx(2 / 0.118, rel=0.05)


def test_a_refused_configuration_has_a_rejection_and_no_times() -> None:
    error = RuntimeUnavailable("no kernel for Conv")
    got = profiled(bench(refuses={NHWC2: error}))
    assert NHWC2 not in {t.configuration for t in got.times}
    refused = next(r for r in got.rejections if r.candidate == "[0-15] cpu/NHWC/2t")
    assert (refused.reason, refused.detail) == ("refused", "no kernel for Conv")


def test_a_configuration_that_fails_while_it_runs_has_a_rejection_and_no_times() -> None:
    got = profiled(bench(fails_while_running={NHWC2: RunFailed("out of range")}))
    assert NHWC2 not in {t.configuration for t in got.times}
    failed = [r for r in got.rejections if r.candidate == "[0-15] cpu/NHWC/2t"]
    assert [(r.reason, r.detail) for r in failed] == [("failed", "out of range")]


def test_when_everything_is_refused_plain_is_still_timed() -> None:
    error: EdgeAgentError = RuntimeUnavailable("no")
    got = profiled(bench(refuses=dict.fromkeys(RESNET, error)))
    assert got.times == ()
    assert got.plain_s == pytest.approx(0.06, rel=0.05)
    assert len(got.rejections) == len(RESNET)


def test_what_the_budget_does_not_reach_is_undecided() -> None:
    device = bench(opening_s=1.0)
    got = profiled(device, budget_s=3.0)
    assert got.profiling_s < 5.0
    undecided = [r for r in got.rejections if r.reason == "undecided"]
    assert len(undecided) + len(got.times) == len(RESNET)
    assert undecided[0].detail == "the 3 s for profiling were used up before it was measured"


def test_samples_beside_other_load_are_thrown_away() -> None:
    disturbed = profiled(bench(load_chance=0.4))
    assert whole_windows(disturbed)[BLOCKED2] == pytest.approx(0.060, rel=0.05)
    assert 0.2 < disturbed.disturbed_fraction < 0.6
    for window in disturbed.windows:
        exact_s = subgraph_s(MODEL, RESNET[window.configuration], window.segments)
        assert window.timing.median_s == pytest.approx(exact_s, rel=0.15)


def test_a_device_that_is_never_quiet_is_profiled_all_the_same() -> None:
    device = bench(load_chance=1.0)
    got = profiled(device)
    assert got.profiling_s <= 14.0
    assert got.plain_s == pytest.approx(0.180, rel=0.1)
    assert got.disturbed_fraction == 1.0
    assert profiled(bench()).disturbed_fraction == 0.0


def test_a_model_of_one_segment_has_whole_windows_only() -> None:
    model = summary([segment(0)])
    truth = {c: times(c, [whole_s]) for c, whole_s in ((NCHW2, 0.010), (BLOCKED2, 0.009))}
    got = profiled(SimulatedBench(model=model, truth=truth, plain_s=0.01))
    assert {len(w.segments) for w in got.windows} == {1}
    assert len(got.times) == 2


def test_configurations_not_worth_measuring_are_not_run() -> None:
    model = summary([segment(i, operator="MatMul") for i in range(4)])
    truth = {c: times(c, [1e-3] * 4) for c in (NCHW1, BLOCKED1)}
    device = SimulatedBench(model=model, truth=truth, plain_s=4e-3)
    got = profiled(device)
    assert not any("blocked" in what for what in device.ran)
    assert [r.reason for r in got.rejections] == ["not worth measuring"]


def test_every_sample_is_granted_and_progress_is_reported() -> None:
    device = bench()
    profiled(device)
    assert device.grants >= len(device.ran)
    shares = [done for done, _ in device.reports]
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] <= shares[-1] <= 1.0


def test_the_same_seed_measures_in_the_same_order() -> None:
    first, second = bench(), bench()
    assert profiled(first) == profiled(second)
    assert first.ran == second.ran


def test_windows_are_balanced_by_cost_and_never_repeated() -> None:
    levels = window_levels(chain(8), [4, 1, 1, 2, 2, 2, 2, 2])
    assert [[str(part) for part in level] for level in levels] == [
        ["0-3", "4-7", "1-5"],
        ["0", "1-3", "4-5", "6-7"],
        ["1-2", "3", "4", "5", "6", "7"],
    ]


def test_windows_never_end_at_a_cut_of_unknown_size() -> None:
    levels = window_levels(chain(4, [0, None, 0]), [1, 1, 1, 1])
    assert [[str(part) for part in level] for level in levels] == [["1-2"], ["0", "3"]]
