"""Runner-ups by hand, and the text of `plan --explain`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import Layout, UnitId
from edge_agent.planning.cost import assemble
from edge_agent.planning.explain import (
    explain,
    human,
    plain_candidate,
    render,
    runner_up,
)
from edge_agent.plans import CandidatePlan, ExecutionPlan, Target
from edge_agent.profiles import (
    LatencyProfile,
    Placement,
    RatioInterval,
    RefusedNode,
    Rejection,
)
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary
from edge_agent.tensors import TensorName
from tests.planning.made_models import (
    IDLE,
    PROCESSOR,
    accelerator,
    chain,
    configuration,
    latency_profile,
    segment,
    summary,
    times,
)

NCHW, BLOCKED, NHWC = (
    configuration(layout) for layout in (Layout.NCHW, Layout.BLOCKED, Layout.NHWC)
)


def divided() -> tuple[ModelSummary, LatencyProfile, CandidatePlan]:
    model = chain(2)
    profile = latency_profile(
        model,
        [
            times(NCHW, [1e-3, 9e-3], overhead_s=1e-3),
            times(BLOCKED, [9e-3, 1e-3], overhead_s=1e-3),
            times(NHWC, [3e-3, 4e-3], overhead_s=1e-3),
        ],
    )
    known = {t.configuration: t for t in profile.times}
    pieces = [
        (SegmentRange(start=0, stop=1), NCHW),
        (SegmentRange(start=1, stop=2), BLOCKED),
    ]
    return model, profile, assemble(model, known, pieces, target=Target.LATENCY)


def explained(**changes: object) -> ExecutionPlan:
    model, profile, plan = divided()
    made = explain(
        model,
        profile,
        plan,
        target=Target.LATENCY,
        is_plain=False,
        reason="measured faster than plain ONNX Runtime",
        state=IDLE,
        processor=PROCESSOR,
        measured_s=4.2e-3,
        measured_parts_s=(2.1e-3, 2.05e-3),
        plain_s=5e-3,
        plain_over_plan=RatioInterval(median=1.19, low=1.17, high=1.21, pairs=64),
        control=RatioInterval(median=1.0, low=0.99, high=1.01, pairs=64),
        rejections=[Rejection(candidate="[0-1] cpu/NHWC/1t", reason="slower", detail="0.9")],
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_runner_up_is_the_best_other_configuration_with_the_neighbours_fixed() -> None:
    model, profile, plan = divided()
    assert runner_up(model, profile, plan, 0, Target.LATENCY) == (NHWC, pytest.approx(2e-3))


def test_a_runner_up_equal_to_a_neighbour_is_priced_as_one_subgraph_with_it() -> None:
    model, profile, plan = divided()
    without_nhwc = replace(profile, times=profile.times[:2])
    assert runner_up(model, without_nhwc, plan, 0, Target.LATENCY) == (BLOCKED, pytest.approx(7e-3))


def test_without_another_configuration_there_is_no_runner_up() -> None:
    model = chain(2)
    profile = latency_profile(model, [times(NCHW, [1.0, 1.0])])
    plan = plain_candidate(model, NCHW, 2.0)
    assert runner_up(model, profile, plan, 0, Target.LATENCY) is None


def test_a_plan_is_explained_subgraph_by_subgraph() -> None:
    first, second = explained().subgraphs
    assert (first.runner_up, second.runner_up) == (NHWC, NHWC)
    assert first.runner_up_loss_s == pytest.approx(2e-3)
    assert second.runner_up_loss_s == pytest.approx(3e-3)
    assert first.operators == (("Conv", 3),)
    assert first.operations == 10_000_000
    assert first.bytes_moved == 2000
    assert first.score.score == pytest.approx(10.0)
    assert first.measured_s == 2.1e-3


def test_rejections_of_the_profile_come_first_unless_verification_knows_more() -> None:
    model, profile, plan = divided()
    early = Rejection(candidate="a", reason="refused", detail="no")
    replaced = Rejection(candidate="b", reason="slower", detail="on the whole model")
    late = Rejection(candidate="b", reason="slower", detail="so")
    made = explain(
        model,
        replace(profile, rejections=(early, replaced)),
        plan,
        target=Target.LATENCY,
        is_plain=False,
        reason="",
        state=IDLE,
        processor=PROCESSOR,
        rejections=[late],
    )
    assert made.rejections == (early, late)


def test_measured_subgraphs_must_be_as_many_as_the_plan_has() -> None:
    model, profile, plan = divided()
    with pytest.raises(ValueError, match="got 1 measured subgraphs, want 2"):
        explain(
            model,
            profile,
            plan,
            target=Target.LATENCY,
            is_plain=False,
            reason="",
            state=IDLE,
            processor=PROCESSOR,
            measured_parts_s=(1.0,),
        )


def test_the_text_says_what_runs_why_and_what_it_was_compared_with() -> None:
    assert render(explained()).splitlines() == [
        "Model 3f3f3f3f3f3f: 2 subgraphs, for latency, image[1,3,224,224]",
        "  measured faster than plain ONNX Runtime",
        "",
        "segs nodes operators ops bytes score unit layout  thr inst pred ms meas ms runner-up"
        "   loses ms",
        "0    0-2   Conv×3    10M   2kB    10 cpu  NCHW      1    1    2.00    2.10 cpu/NHWC/1t"
        "    +2.00",
        "1    3-5   Conv×3    10M   2kB    10 cpu  blocked   1    1    2.00    2.05 cpu/NHWC/1t"
        "    +3.00",
        "",
        "Predicted 4.00 ms, measured 4.20 ms (+5.0% against the prediction)",
        "Plain ONNX Runtime 5.00 ms, 60.00 ms in the profile, as predictions assume",
        "Plain over plan: 1.190 (95 % interval 1.170 to 1.210, 64 pairs)",
        "Plain over itself, same run: 1.000 (95 % interval 0.990 to 1.010, 64 pairs)",
        "Profiled in 11.5 s",
        "",
        "Segments, with fitted times; neighbours on the same choice run as one subgraph:",
        "seg nodes operators ops out score fastest          ms next          ms",
        "  0 0-2   Conv×3    10M 1kB    10 cpu/NCHW/1t    1.00 cpu/NHWC/1t 3.00",
        "  1 3-5   Conv×3    10M  0B    10 cpu/blocked/1t 1.00 cpu/NHWC/1t 4.00",
        "",
        "Not used:",
        "  [0-1] cpu/NHWC/1t: slower: 0.9",
    ]


def test_a_runner_up_that_was_predicted_to_be_faster_is_accounted_for() -> None:
    plan = explained()
    first = replace(plan.subgraphs[0], runner_up_loss_s=-0.001)
    text = render(replace(plan, subgraphs=(first, *plan.subgraphs[1:])))
    assert "    -1.00\n" in text
    assert "A negative loss: the runner-up was predicted to be faster, but measurements" in text
    assert "A negative loss" not in render(plan)


def test_a_profile_that_was_made_beside_other_work_is_told() -> None:
    plan = explained()
    text = " ".join(render(replace(plan, disturbed_fraction=0.8)).split())
    assert "Others used the processor beside 80% of the runs of the profile" in text
    assert "Others used" not in render(replace(plan, disturbed_fraction=0.2))


def test_how_to_decide_what_is_undecided_is_told_once() -> None:
    plan = explained()
    undecided = [Rejection(candidate=c, reason="undecided", detail="no time") for c in "ab"]
    text = render(replace(plan, rejections=tuple(undecided)))
    assert text.count("What is undecided `edge-agent replan` measures again") == 1
    assert "What is undecided" not in render(plan)


def test_what_crosses_channels_last_is_told() -> None:
    plan = replace(explained(), channels_last=(TensorName("a"), TensorName("b")))
    assert 'Crosses in NHWC, without a transpose on either side: "a", "b".' in render(plan)
    assert "Crosses in NHWC" not in render(explained())


def test_a_cut_that_is_none_between_devices_is_told() -> None:
    model, profile, _ = divided()
    held = (TensorName("s"), "seq(tensor(float))")
    local = replace(model, cuts=(replace(model.cuts[0], others=(held,), crossing_bytes=None),))
    known = {t.configuration: t for t in profile.times}
    made = explain(
        local,
        profile,
        assemble(local, known, [(SegmentRange(start=0, stop=2), NCHW)], target=Target.LATENCY),
        target=Target.LATENCY,
        is_plain=False,
        reason="measured faster than plain ONNX Runtime",
        state=IDLE,
        processor=PROCESSOR,
    )
    assert [s.others for s in made.segments] == [(held,), ()]
    says = 'Behind segment 0 crosses what cannot leave the device: "s" (seq(tensor(float))).'
    assert says in render(made)
    assert "cannot leave" not in render(explained())


def test_an_undivided_plain_plan_says_so() -> None:
    model = replace(chain(1), undivided_because="every cut would break a fusion")
    plan = plain_candidate(model, configuration(Layout.BLOCKED, threads=2), 5e-3)
    made = explain(
        model,
        latency_profile(model, []),
        plan,
        target=Target.LATENCY,
        is_plain=True,
        reason="no candidate was faster",
        state=IDLE,
        processor=PROCESSOR,
    )
    text = render(made)
    assert text.startswith("Model 3f3f3f3f3f3f: plain ONNX Runtime, for latency")
    assert text.endswith("Not divided: every cut would break a fusion\n")


def test_what_a_unit_took_and_refused_is_told_in_a_few_lines() -> None:
    why = "Resize in mode cubic is not supported by the unit, which takes linear and nearest only"
    nodes = [
        RefusedNode(
            position=p,
            label=f"resize{p} (Resize)",
            ran_on="cpu",
            reason=why if p != 20 else "int64",
        )
        for p in (*range(3, 18), 20, *range(22, 447))
    ]
    npu = Placement(
        unit=UnitId("npu0"), taken=2, refused=tuple(nodes), removed=3, evidence="session record"
    )
    gpu = Placement(unit=UnitId("gpu0"), taken=1, refused=(), removed=0, evidence="one run")
    lines = render(explained(placements=(npu, gpu))).splitlines()
    at = lines.index("Units, each given the whole model:")
    assert lines[at - 1 : at + 7] == [
        "",
        "Units, each given the whole model:",
        "  npu0: took 2 nodes, refused 441; 3 more are gone or part of others since loading "
        "(session record)",
        "    440 nodes at 3-17, 22-446: resize3 (Resize), resize4 (Resize), resize5 (Resize), … "
        "ran on cpu: Resize in",
        "      mode cubic is not supported by the unit, which takes linear and nearest only",
        "    1 node at 20: resize20 (Resize) ran on cpu: int64",
        "  gpu0: took 1 node, refused none (one run)",
        "",
    ]
    assert max(map(len, lines)) <= 110
    assert "Units" not in render(explained())


def test_an_accelerator_has_no_number_of_threads() -> None:
    model = chain(1)
    known = {accelerator(): times(accelerator(), [1e-3])}
    made = explain(
        model,
        latency_profile(model, list(known.values())),
        assemble(
            model,
            known,
            [(SegmentRange(start=0, stop=1), accelerator())],
            target=Target.LATENCY,
        ),
        target=Target.LATENCY,
        is_plain=False,
        reason="measured",
        state=IDLE,
        processor=PROCESSOR,
    )
    row = render(made).splitlines()[4].split()
    assert row[6:10] == ["gpu0", "native", "-", "1"]


def test_a_segment_has_no_time_where_it_is_refused() -> None:
    model = chain(2)
    profile = latency_profile(
        model, [times(NCHW, [1e-3, 1e-3]), times(accelerator(), [1e-4, 1e-4], refused=[1])]
    )
    made = explain(
        model,
        profile,
        plain_candidate(model, NCHW, 2e-3),
        target=Target.LATENCY,
        is_plain=True,
        reason="",
        state=IDLE,
        processor=PROCESSOR,
    )
    assert [[c for c, _ in s.times] for s in made.segments] == [[accelerator(), NCHW], [NCHW]]


def test_no_line_is_longer_than_110_columns() -> None:
    operators = ("ConvTransposeWithAVeryLongName", "Relu")
    wide = summary([segment(i, operator=operators[i % 2], nodes=1111) for i in range(30)])
    twice = [configuration(layout, threads=16, instances=12) for layout in Layout]
    profile = latency_profile(wide, [times(c, [123.456] * 30) for c in twice])
    plan = assemble(
        wide,
        {t.configuration: t for t in profile.times},
        [
            (SegmentRange(start=0, stop=11), twice[0]),
            (SegmentRange(start=11, stop=30), twice[2]),
        ],
        target=Target.THROUGHPUT,
    )
    made = explain(
        wide,
        profile,
        plan,
        target=Target.THROUGHPUT,
        is_plain=False,
        reason="long " * 60,
        state=IDLE,
        processor=PROCESSOR,
        measured_s=3777.0,
        measured_parts_s=(1888.0, 1889.0),
        rejections=[Rejection(candidate="x" * 60, reason="slower", detail="y " * 90)],
    )
    lines = render(made).splitlines()
    assert max(map(len, lines)) <= 110
    assert any("ConvTra" in line and "…" in line for line in lines)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (999, "999"), (1000, "1k"), (8_180_000_000, "8.18G"), (999_900, "1M")],
)
def test_numbers_are_short(amount: int, text: str) -> None:
    assert human(amount) == text
