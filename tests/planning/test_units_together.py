"""Plans over several units against brute force: refusals, borders, and pipelines in the device."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.devices import Layout
from edge_agent.planning.cost import assemble, can_share, subgraph_s
from edge_agent.planning.explain import runner_up
from edge_agent.planning.partition import choose, divide_into
from edge_agent.plans import SERVED_TARGETS, CandidatePlan, Target
from edge_agent.profiles import Configuration, LatencyProfile, SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary
from tests.planning.made_models import accelerator, chain, configuration, latency_profile, times

CPU, CPU2, TWICE = configuration(), configuration(threads=2), configuration(instances=2)
BLOCKED = configuration(Layout.BLOCKED)
GPU, GPU_NHWC, NPU = accelerator(), accelerator(layout=Layout.NHWC), accelerator("npu0")
ALL_ON_GPU = accelerator(falls_back=True)
Plan = tuple[Fraction, Fraction, int, tuple[Configuration, ...], tuple[int, ...]]


def priced(
    model: ModelSummary,
    known: Mapping[Configuration, SegmentTimes],
    used: Sequence[Configuration],
    starts: Sequence[int],
    target: Target,
) -> tuple[Fraction, Fraction] | None:
    """Picoseconds per request, of the busiest resource (for the latency: of all) and of all
    together, from first principles; None where that is no plan."""
    loads: dict[str, Fraction] = {}
    size = len(model.segments)
    for at, (start, stop) in enumerate(pairwise((*starts, size))):
        fitted, which = known[used[at]], used[at]
        if set(range(start, stop)) & set(fitted.refused):
            return None
        if len(used) > 1 and (which.falls_back or not fitted.is_divisible):
            return None
        took = picoseconds(fitted.overhead_s)
        took += sum(picoseconds(s) for s in fitted.segment_s[start:stop])
        for boundary, other in ((start, at - 1), (stop, at + 1)):
            if boundary in (0, size):
                continue
            crossing = model.cuts[boundary - 1].crossing_bytes
            if crossing is None:
                return None
            if which.threads or used[other].threads or used[other].unit != which.unit:
                took += picoseconds(fitted.border_s_per_byte * crossing)
        resource = "host" if which.threads else which.unit
        loads[resource] = loads.get(resource, Fraction(0)) + Fraction(took, which.instances)
    hosts = {(c.instances, c.threads) for c in used if c.threads}
    total = sum(loads.values(), Fraction(0))
    if target is Target.LATENCY:
        return (total, total) if {c.instances for c in used} == {1} else None
    if len({k for k, _ in hosts}) > 1 or (len(loads) > 1 and len(hosts) > 1):
        return None
    return max(loads.values()), total


def picoseconds(duration_s: float) -> int:
    return round(duration_s * 1e12)


def every_plan(model: ModelSummary, profile: LatencyProfile, target: Target) -> Iterator[Plan]:
    known = {t.configuration: t for t in profile.times}
    for assigned in product(known, repeat=len(model.segments)):
        starts = (0, *(i for i, (a, b) in enumerate(pairwise(assigned), 1) if a != b))
        used = tuple(assigned[i] for i in starts)
        cost = priced(model, known, used, starts, target)
        if cost is not None:
            yield *cost, len(used), used, starts


def as_plan(
    model: ModelSummary, profile: LatencyProfile, candidate: CandidatePlan, target: Target
) -> Plan:
    known = {t.configuration: t for t in profile.times}
    used = tuple(s.configuration for s in candidate.subgraphs)
    starts = tuple(s.segments.start for s in candidate.subgraphs)
    cost = priced(model, known, used, starts, target)
    assert cost is not None
    assert candidate.predicted_s / candidate.instances == pytest.approx(float(cost[0]) / 1e12)
    return *cost, len(used), used, starts


durations = st.sampled_from([0.0, 1e-3, 2e-3, 3e-3]) | st.floats(1e-6, 5e-3)


@st.composite
def problems(draw: st.DrawFn) -> tuple[ModelSummary, LatencyProfile]:
    count = draw(st.integers(1, 5))
    crossing = draw(
        st.lists(st.sampled_from([0, 1000, 10**6, None]), min_size=count - 1, max_size=count - 1)
    )
    possible = [CPU, BLOCKED, CPU2, TWICE, GPU, GPU_NHWC, NPU, ALL_ON_GPU]
    used = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=4, unique=True))
    fitted = [
        times(
            c,
            draw(st.lists(durations, min_size=count, max_size=count)),
            draw(st.sampled_from([0.0, 1e-4])),
            draw(st.sampled_from([0.0, 1e-9])),
            draw(st.sets(st.integers(0, count - 1), max_size=2)) if draw(st.booleans()) else (),
        )
        for c in used
    ]
    model = chain(count, crossing)
    return model, latency_profile(model, fitted)


@given(problems(), st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_the_plans_of_least_latency_are_those_of_brute_force(
    problem: tuple[ModelSummary, LatencyProfile], count: int
) -> None:
    model, profile = problem
    everything = sorted(every_plan(model, profile, Target.LATENCY))
    want = sorted({*everything[:count], *(p for p in everything if p[2] == 1)})
    got = choose(model, profile, Target.LATENCY, count)
    assert [as_plan(model, profile, c, Target.LATENCY) for c in got] == want
    assert {c.instances for c in got} <= {1}


@pytest.mark.long
@given(problems(), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_the_plan_of_greatest_throughput_is_that_of_brute_force(
    problem: tuple[ModelSummary, LatencyProfile], count: int
) -> None:
    model, profile = problem
    everything = sorted(every_plan(model, profile, Target.THROUGHPUT))
    got = choose(model, profile, Target.THROUGHPUT, count)
    found = [as_plan(model, profile, c, Target.THROUGHPUT) for c in got]
    assert found[:1] == everything[:1]
    assert found == sorted(set(found))
    assert {p for p in everything if p[2] == 1} <= set(found) <= set(everything)


def slowest_parts(
    model: ModelSummary, profile: LatencyProfile, target: Target, count: int
) -> Iterator[float]:
    """Seconds per request of the slowest subgraph, of every division into `count` subgraphs."""
    known = {t.configuration: t for t in profile.times if not t.configuration.falls_back}
    most = max((c.instances for c in known if c.threads), default=1)
    if target is Target.LATENCY:
        most = 1
    usable = [c for c in known if not c.threads or c.instances == most]
    size = len(model.segments)
    for inner in combinations(range(1, size), count - 1):
        ranges = [SegmentRange(start=a, stop=b) for a, b in pairwise((0, *inner, size))]
        for used in product(usable, repeat=count):
            if not can_share(used, target):
                continue
            pieces = list(zip(ranges, used, strict=True))
            with suppress(ValueError):
                plan = assemble(model, known, pieces, target=target, is_joined=False)
                yield max(s.predicted_s / s.configuration.instances for s in plan.subgraphs)


@given(problems(), st.sampled_from(SERVED_TARGETS), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_a_division_into_a_given_number_has_the_fastest_slowest_part(
    problem: tuple[ModelSummary, LatencyProfile], target: Target, count: int
) -> None:
    model, profile = problem
    want = min(slowest_parts(model, profile, target, count), default=None)
    plan = divide_into(model, profile, target, count)
    if plan is None or want is None:
        assert plan is want is None
        return
    assert len(plan.subgraphs) == count
    got = max(s.predicted_s / s.configuration.instances for s in plan.subgraphs)
    assert got == pytest.approx(want, abs=2e-12)


def test_a_model_is_cut_where_a_unit_refuses_it() -> None:
    model = chain(5)
    profile = latency_profile(
        model,
        [
            times(CPU, [10e-3] * 5, 1e-4, 1e-8),
            times(NPU, [1e-3] * 5, 1e-4, 1e-8, refused=[2]),
        ],
    )
    best, *others = choose(model, profile, Target.LATENCY, 2)
    assert str(best) == "[0-1] npu0/native + [2] cpu/NCHW/1t + [3-4] npu0/native"
    assert best.predicted_s == pytest.approx(14e-3 + 3e-4 + 4 * 1e-5)
    assert "[0-4] cpu/NCHW/1t" in {str(p) for p in others}
    assert "[0-4] npu0/native" not in {str(p) for p in others}


def test_what_falls_back_to_the_processor_runs_the_whole_model_only() -> None:
    model = chain(2)
    profile = latency_profile(
        model, [times(CPU, [5e-3, 5e-3]), times(ALL_ON_GPU, [1e-3, 9e-3 - 1e-6])]
    )
    for target in SERVED_TARGETS:
        best, *others = choose(model, profile, target, 5)
        assert str(best) == "[0-1] gpu0+cpu/native"
        assert [str(p) for p in others] == ["[0-1] cpu/NCHW/1t"]
        divided = divide_into(model, profile, target, 2)
        assert divided is not None
        assert str(divided) == "[0] cpu/NCHW/1t + [1] cpu/NCHW/1t"


def test_where_nothing_runs_a_segment_there_is_no_plan() -> None:
    model = chain(3)
    refusing = [times(c, [1e-3] * 3, refused=[1]) for c in (CPU, GPU, NPU)]
    for target in SERVED_TARGETS:
        assert choose(model, latency_profile(model, refusing), target, 3) == ()
        assert divide_into(model, latency_profile(model, refusing), target, 2) is None


def test_between_layouts_of_one_accelerator_no_border_is_paid() -> None:
    model = chain(2)
    both = [
        times(GPU, [1e-3, 5e-3], 1e-4, 1e-6),
        times(GPU_NHWC, [5e-3, 1e-3], 1e-4, 1e-6),
    ]
    best = choose(model, latency_profile(model, both), Target.LATENCY, 1)[0]
    assert str(best) == "[0] gpu0/native + [1] gpu0/NHWC"
    assert best.predicted_s == pytest.approx(2.2e-3)
    assert [s.predicted_s for s in best.subgraphs] == pytest.approx([1.1e-3, 1.1e-3])
    divided = divide_into(model, latency_profile(model, both), Target.LATENCY, 2)
    assert divided == best


def test_between_different_resources_both_sides_pay_the_border() -> None:
    model = chain(2)
    both = [times(GPU, [1e-3, 9e-3], 0.0, 1e-7), times(NPU, [9e-3, 1e-3], 0.0, 3e-7)]
    best = choose(model, latency_profile(model, both), Target.LATENCY, 1)[0]
    assert best.predicted_s == pytest.approx(2e-3 + 1000 * 4e-7)


def test_two_requests_keep_two_units_busy() -> None:
    model = chain(4, [0, 0, 0])
    profile = latency_profile(
        model, [times(TWICE, [4e-3] * 4), times(CPU, [3e-3] * 4), times(GPU, [2e-3] * 4)]
    )
    best = choose(model, profile, Target.THROUGHPUT, 1)[0]
    assert str(best) == "[0-1] cpu/NCHW/1t ×2 + [2-3] gpu0/native"
    assert best.instances == 3
    assert best.predicted_per_s == pytest.approx(1 / 4e-3)
    assert best.predicted_s == pytest.approx(3 * 4e-3)
    latency = choose(model, profile, Target.LATENCY, 1)[0]
    assert str(latency) == "[0-3] gpu0/native"
    assert (latency.instances, latency.predicted_s) == (1, pytest.approx(8e-3))


def test_what_holds_up_no_other_work_still_runs_where_it_is_fastest() -> None:
    """Only the NPU takes the first segment; the processor would do the second one in time."""
    model = chain(2, [0])
    profile = latency_profile(
        model,
        [
            times(CPU, [9e-3, 4e-3], refused=[0]),
            times(GPU, [9e-3, 1e-3], refused=[0]),
            times(NPU, [5e-3, 9e-3]),
        ],
    )
    plan = choose(model, profile, Target.THROUGHPUT, 1)[0]
    assert str(plan) == "[0] npu0/native + [1] gpu0/native"
    assert plan.predicted_per_s == pytest.approx(1 / 5e-3)


def test_what_is_slow_in_all_resources_is_not_chosen_though_the_busiest_is_equal() -> None:
    """Layouts of equal load on the busiest resource: the one that spares the other one wins."""
    model = chain(3, [0, 0])
    profile = latency_profile(
        model,
        [
            times(CPU, [3e-3, 2e-3, 9e-3], refused=[2]),
            times(BLOCKED, [1e-3, 2e-3, 9e-3], refused=[2]),
            times(NPU, [9e-3, 9e-3, 7e-3], refused=[0, 1]),
        ],
    )
    plan = choose(model, profile, Target.THROUGHPUT, 1)[0]
    assert str(plan) == "[0-1] cpu/blocked/1t + [2] npu0/native"


def test_threads_beside_an_accelerator_are_those_of_one_kind() -> None:
    model = chain(3, [0, 0])
    profile = latency_profile(
        model,
        [
            times(CPU, [1e-3, 9e-3, 9e-3]),
            times(CPU2, [9e-3, 9e-3, 1e-3]),
            times(NPU, [9e-3, 1e-3, 9e-3]),
        ],
    )
    for plan in choose(model, profile, Target.THROUGHPUT, 20):
        used = [s.configuration for s in plan.subgraphs]
        if NPU in used:
            assert len({c.threads for c in used} - {0}) <= 1
    pieces = [(SegmentRange(start=i, stop=i + 1), c) for i, c in enumerate((CPU, NPU, CPU2))]
    known = {t.configuration: t for t in profile.times}
    with pytest.raises(ValueError, match="cannot share a plan for throughput"):
        assemble(model, known, pieces, target=Target.THROUGHPUT)
    assert assemble(model, known, pieces, target=Target.LATENCY).predicted_s == pytest.approx(3e-3)


def test_a_refused_segment_has_no_price() -> None:
    model = chain(3)
    with pytest.raises(ValueError, match=r"npu0/native refuses segments \[1\] of \[0-2\]"):
        subgraph_s(model, times(NPU, [1.0] * 3, refused=[1]), SegmentRange(start=0, stop=3))


def test_a_runner_up_can_run_the_subgraph_and_share_the_plan() -> None:
    model = chain(2, [0])
    profile = latency_profile(
        model,
        [
            times(TWICE, [4e-3, 4e-3]),
            times(CPU2, [1e-4, 1e-4]),
            times(GPU, [2e-3, 2e-3]),
            times(GPU_NHWC, [1e-3, 1e-3], refused=[1]),
            times(NPU, [3e-3, 3e-3]),
            times(ALL_ON_GPU, [1e-4, 1e-4]),
        ],
    )
    known = {t.configuration: t for t in profile.times}
    pieces = [(SegmentRange(start=i, stop=i + 1), c) for i, c in enumerate((TWICE, GPU))]
    plan = assemble(model, known, pieces, target=Target.THROUGHPUT)
    assert (plan.predicted_s, plan.instances) == (pytest.approx(6e-3), 3)
    # On the NPU: 3 ms per request instead of 2, for three requests.
    second = runner_up(model, profile, plan, 1, Target.THROUGHPUT)
    assert second == (NPU, pytest.approx(3e-3))
    # Both on the GPU, as one subgraph or in another layout: 4 ms, or 3 ms.
    first = runner_up(model, profile, plan, 0, Target.THROUGHPUT)
    assert first == (GPU_NHWC, pytest.approx(3e-3))


@pytest.mark.parametrize("seed", range(3))
def test_sixty_four_segments_on_three_resources_are_planned(seed: int) -> None:
    model = chain(64)
    profile = latency_profile(model, large(seed, 64))
    best, *others = choose(model, profile, Target.THROUGHPUT, 5)
    assert len(others) >= 4
    assert best.predicted_per_s >= max(p.predicted_per_s for p in others)
    assert len({s.configuration.resource for s in best.subgraphs}) > 1


def large(seed: int, count: int) -> list[SegmentTimes]:
    rng = random.Random(seed)
    units = [accelerator(u, layout) for u in ("gpu0", "npu0") for layout in Layout]
    hosts = [configuration(layout, 2, 2, unit=u) for u in ("cpu", "openvino") for layout in Layout]
    return [
        times(c, [rng.uniform(1e-3, 3.5e-3) for _ in range(count)], 1e-4, 3e-8)
        for c in [*units, *hosts]
    ]


def test_a_configuration_that_is_not_divisible_is_no_part_of_a_pipeline() -> None:
    model = chain(2, [0])
    whole = replace(times(GPU, [1e-3, 1e-3]), is_divisible=False)
    profile = latency_profile(model, [whole, times(CPU, [2e-3, 2e-3])])
    plans = choose(model, profile, Target.THROUGHPUT, 5)
    assert [str(p) for p in plans] == ["[0-1] gpu0/native", "[0-1] cpu/NCHW/1t"]
