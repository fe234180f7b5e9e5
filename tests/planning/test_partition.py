"""The planner against brute force: every plan enumerated, priced in another way, and sorted."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.devices import Layout
from edge_agent.planning.cost import subgraph_s
from edge_agent.planning.partition import choose, divide_into
from edge_agent.plans import SERVED_TARGETS, CandidatePlan, Target
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary
from tests.planning.made_models import chain, configuration, latency_profile, times

NCHW, BLOCKED, NHWC = (
    configuration(layout) for layout in (Layout.NCHW, Layout.BLOCKED, Layout.NHWC)
)
Plan = tuple[Fraction, int, tuple[Configuration, ...], tuple[int, ...]]


def every_plan(model: ModelSummary, profile: LatencyProfile, target: Target) -> list[Plan]:
    """All plans there are, by giving each segment each configuration, best first."""
    plans: list[Plan] = []
    for instances in {t.configuration.instances for t in profile.times}:
        if target is Target.LATENCY and instances != 1:
            continue
        group = [t for t in profile.times if t.configuration.instances == instances]
        for assigned in product(group, repeat=len(model.segments)):
            changes = [i for i, (a, b) in enumerate(pairwise(assigned), 1) if a is not b]
            if any(model.cuts[i - 1].crossing_bytes is None for i in changes):
                continue
            starts = (0, *changes)
            used = tuple(assigned[i].configuration for i in starts)
            plans.append((priced(model, profile, used, starts), len(starts), used, starts))
    return sorted(plans)


def priced(
    model: ModelSummary,
    profile: LatencyProfile,
    used: tuple[Configuration, ...],
    starts: tuple[int, ...],
) -> Fraction:
    """Picoseconds per request, from first principles."""
    known = {t.configuration: t for t in profile.times}
    picoseconds = 0
    for which, start, stop in zip(used, starts, (*starts[1:], len(model.segments)), strict=True):
        picoseconds += picoseconds_of(known[which].overhead_s)
        picoseconds += sum(picoseconds_of(s) for s in known[which].segment_s[start:stop])
    for before, after, start in zip(used[:-1], used[1:], starts[1:], strict=True):
        crossing = model.cuts[start - 1].crossing_bytes or 0
        picoseconds += picoseconds_of(known[before].border_s_per_byte * crossing)
        picoseconds += picoseconds_of(known[after].border_s_per_byte * crossing)
    return Fraction(picoseconds, used[0].instances)


def picoseconds_of(duration_s: float) -> int:
    return round(duration_s * 1e12)


def as_plan(model: ModelSummary, profile: LatencyProfile, candidate: CandidatePlan) -> Plan:
    used = tuple(s.configuration for s in candidate.subgraphs)
    starts = tuple(s.segments.start for s in candidate.subgraphs)
    cost = priced(model, profile, used, starts)
    assert candidate.predicted_s / candidate.instances == pytest.approx(float(cost) / 1e12)
    return cost, len(used), used, starts


# Few different durations, so that ties are common.
durations = st.sampled_from([0.0, 1e-3, 2e-3, 3e-3]) | st.floats(1e-6, 5e-3)


@st.composite
def problems(draw: st.DrawFn) -> tuple[ModelSummary, LatencyProfile]:
    count = draw(st.integers(1, 6))
    crossing = draw(
        st.lists(
            st.none() | st.sampled_from([0, 1000, 10**6]), min_size=count - 1, max_size=count - 1
        )
    )
    possible = [
        configuration(layout, instances=k) for layout in (Layout.NCHW, Layout.NHWC) for k in (1, 2)
    ]
    used = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=4, unique=True))
    if draw(st.booleans()):
        used = [configuration(threads=threads) for threads in range(1, len(used) + 1)]
    fitted = [
        times(
            c,
            draw(st.lists(durations, min_size=count, max_size=count)),
            draw(st.sampled_from([0.0, 1e-4])),
            draw(st.sampled_from([0.0, 1e-9])),
        )
        for c in used
    ]
    model = chain(count, crossing)
    return model, latency_profile(model, fitted)


@given(problems(), st.sampled_from(SERVED_TARGETS), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_the_best_plans_are_those_that_brute_force_finds(
    problem: tuple[ModelSummary, LatencyProfile], target: Target, count: int
) -> None:
    model, profile = problem
    everything = every_plan(model, profile, target)
    undivided = {plan for plan in everything if plan[1] == 1}
    want = sorted(set(everything[:count]) | undivided)
    assert [as_plan(model, profile, c) for c in choose(model, profile, target, count)] == want


def test_a_division_is_found_where_each_half_prefers_another_layout() -> None:
    model = chain(4)
    profile = latency_profile(
        model,
        [
            times(NCHW, [1e-3, 1e-3, 5e-3, 5e-3], overhead_s=1e-4, border_s_per_byte=1e-8),
            times(BLOCKED, [5e-3, 5e-3, 1e-3, 1e-3], overhead_s=2e-4, border_s_per_byte=3e-8),
        ],
    )
    best, *others = choose(model, profile, Target.LATENCY, 1)
    assert str(best) == "[0-1] cpu/NCHW/1t + [2-3] cpu/blocked/1t"
    assert best.predicted_s == pytest.approx(4e-3 + 3e-4 + 1000 * 4e-8)
    assert best.predicted_per_s == pytest.approx(1 / best.predicted_s)
    assert [s.nodes for s in best.subgraphs] == [(0, 6), (6, 12)]
    assert [s.predicted_s for s in best.subgraphs] == pytest.approx([2.11e-3, 2.23e-3])
    assert [str(c) for c in others] == ["[0-3] cpu/NCHW/1t", "[0-3] cpu/blocked/1t"]


def test_a_cut_of_unknown_size_is_never_used() -> None:
    model = chain(2, [None])
    profile = latency_profile(model, [times(NCHW, [1.0, 9.0]), times(BLOCKED, [9.0, 1.0])])
    assert all(len(c.subgraphs) == 1 for c in choose(model, profile, Target.LATENCY, 9))


def test_equal_times_prefer_fewer_subgraphs_then_the_order_of_configurations() -> None:
    model = chain(2)
    profile = latency_profile(model, [times(c, [1e-3, 1e-3]) for c in (BLOCKED, NHWC, NCHW)])
    plans = [str(c) for c in choose(model, profile, Target.LATENCY, 4)]
    assert plans == [
        "[0-1] cpu/NCHW/1t",
        "[0-1] cpu/NHWC/1t",
        "[0-1] cpu/blocked/1t",
        "[0] cpu/NCHW/1t + [1] cpu/NHWC/1t",
    ]


def test_for_the_throughput_two_slower_instances_win() -> None:
    model = chain(1)
    twice = configuration(instances=2)
    profile = latency_profile(model, [times(NCHW, [1e-3]), times(twice, [1.5e-3])])
    best, second = choose(model, profile, Target.THROUGHPUT, 1)
    assert best.subgraphs[0].configuration == twice
    assert best.predicted_s == pytest.approx(1.5e-3)
    assert best.predicted_per_s == pytest.approx(2 / 1.5e-3)
    assert second.subgraphs[0].configuration == NCHW
    assert [c.instances for c in choose(model, profile, Target.LATENCY, 5)] == [1]


def test_without_times_there_is_no_plan() -> None:
    model = chain(3)
    assert choose(model, latency_profile(model, []), Target.LATENCY, 3) == ()


def test_times_of_another_division_are_refused() -> None:
    profile = latency_profile(chain(2), [times(NCHW, [1.0, 1.0, 1.0])])
    with pytest.raises(ValueError, match="got 3 segments, want 2"):
        choose(chain(2), profile, Target.LATENCY, 1)


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="count: got 0"):
        choose(chain(1), latency_profile(chain(1), []), Target.LATENCY, 0)


@given(problems(), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_a_division_into_a_given_number_has_the_fastest_slowest_part(
    problem: tuple[ModelSummary, LatencyProfile], count: int
) -> None:
    model, profile = problem
    single = [t for t in profile.times if t.configuration.instances == 1]
    size = len(model.segments)
    known = [i for i in range(1, size) if model.cuts[i - 1].crossing_bytes is not None]
    slowest = [
        max(
            min(subgraph_s(model, t, SegmentRange(start=a, stop=b)) for t in single)
            for a, b in pairwise((0, *inner, size))
        )
        for inner in combinations(known, count - 1)
        if single
    ]
    plan = divide_into(model, profile, Target.LATENCY, count)
    if not slowest:
        assert plan is None
        return
    assert plan is not None
    assert len(plan.subgraphs) == count
    assert max(s.predicted_s for s in plan.subgraphs) == pytest.approx(min(slowest), abs=2e-12)


def test_parts_never_run_in_a_configuration_that_is_not_divisible() -> None:
    model = chain(4)
    whole = replace(times(NHWC, [0.1] * 4), is_divisible=False)
    profile = latency_profile(model, [whole, times(NCHW, [1.0] * 4)])
    best, *others = choose(model, profile, Target.LATENCY, 3)
    assert [s.configuration for s in best.subgraphs] == [NHWC]
    assert all(NHWC not in {s.configuration for s in p.subgraphs} for p in others)
    divided = divide_into(model, profile, Target.LATENCY, 2)
    assert divided is not None
    assert [s.configuration for s in divided.subgraphs] == [NCHW, NCHW]


def test_sixty_four_segments_with_sixteen_configurations_are_planned() -> None:
    model = chain(64)
    fitted: list[SegmentTimes] = [
        times(
            configuration(layout, threads),
            [1e-3 * (1 + (7 * i + 3 * threads + len(layout)) % 5) for i in range(64)],
            overhead_s=1e-5,
            border_s_per_byte=1e-9,
        )
        for layout in Layout
        for threads in (1, 2, 3, 4)
    ]
    profile = latency_profile(model, fitted)
    plans = choose(model, profile, Target.LATENCY, 5)
    assert len(plans) == 5 + 16
