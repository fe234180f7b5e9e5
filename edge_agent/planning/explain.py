"""Why a plan is what it is: each subgraph's runner-up, and the text of `plan --explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from edge_agent.devices import DeviceState
from edge_agent.planning.cost import (
    assemble,
    border_bytes,
    can_share,
    is_divisible,
    node_range,
)
from edge_agent.planning.placed import TEXT_WIDTH, placement_lines, wrapped
from edge_agent.planning.score import ProcessorRates, score
from edge_agent.planning.short import ms_text, run_text
from edge_agent.plans import (
    CandidatePlan,
    ChosenSubgraph,
    ExecutionPlan,
    ExplainedSegment,
    ExplainedSubgraph,
    Target,
)
from edge_agent.profiles import (
    Configuration,
    LatencyProfile,
    RatioInterval,
    Rejection,
    SegmentTimes,
)
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary

_LEAST_OPERATORS_WIDTH = 8


def plain_candidate(
    summary: ModelSummary, configuration: Configuration, plain_s: float
) -> CandidatePlan:
    """The plan that runs the whole model as plain ONNX Runtime does, in `plain_s` seconds."""
    whole = SegmentRange(start=0, stop=len(summary.segments))
    return CandidatePlan(
        subgraphs=(
            ChosenSubgraph(
                segments=whole,
                nodes=node_range(summary, whole),
                configuration=configuration,
                predicted_s=plain_s,
            ),
        ),
        predicted_s=plain_s,
        predicted_per_s=configuration.instances / plain_s if plain_s else float("inf"),
        instances=configuration.instances,
    )


def explain(
    summary: ModelSummary,
    profile: LatencyProfile,
    plan: CandidatePlan,
    *,
    target: Target,
    is_plain: bool,
    reason: str,
    state: DeviceState,
    processor: ProcessorRates,
    measured_s: float | None = None,
    measured_parts_s: Sequence[float] = (),
    plain_s: float | None = None,
    plain_over_plan: RatioInterval | None = None,
    control: RatioInterval | None = None,
    rejections: Iterable[Rejection] = (),
) -> ExecutionPlan:
    """The execution plan that runs `plan`, with the reasons for all that it is and is not.

    `measured_parts_s` holds the measured seconds of each subgraph, or nothing. `rejections` are
    those of verification; those of the profile come before them, unless they name the same
    candidate.

    Raises:
        ValueError: `measured_parts_s` has another length than the plan has subgraphs.
    """
    if measured_parts_s and len(measured_parts_s) != len(plan.subgraphs):
        raise ValueError(
            f"got {len(measured_parts_s)} measured subgraphs, want {len(plan.subgraphs)}"
        )
    return ExecutionPlan(
        model=summary.model,
        target=target,
        shapes=summary.shapes,
        subgraphs=tuple(
            _explained(
                summary,
                profile,
                plan,
                index,
                target=target,
                state=state,
                processor=processor,
                measured_s=measured_parts_s[index] if measured_parts_s else None,
            )
            for index in range(len(plan.subgraphs))
        ),
        is_plain=is_plain,
        reason=reason,
        predicted_s=plan.predicted_s,
        measured_s=measured_s,
        plain_s=plain_s,
        profiled_plain_s=profile.plain_s,
        plain_over_plan=plain_over_plan,
        rejections=tuple({r.candidate: r for r in (*profile.rejections, *rejections)}.values()),
        undivided_because=summary.undivided_because,
        profiling_s=profile.profiling_s,
        disturbed_fraction=profile.disturbed_fraction,
        instances=plan.instances,
        placements=profile.placements,
        control=control,
        segments=tuple(
            _explained_segment(summary, profile, index, state=state, processor=processor)
            for index in range(len(summary.segments))
        ),
    )


def runner_up(
    summary: ModelSummary,
    profile: LatencyProfile,
    plan: CandidatePlan,
    index: int,
    target: Target,
) -> tuple[Configuration, float] | None:
    """The best other configuration for subgraph `index`, and how many seconds the plan would lose.

    The other subgraphs stay as they are; one that equals a neighbour is priced as one with it.
    None where nothing else was measured that runs it and may share the plan. The loss is negative
    where the plan was preferred on measurement although its prediction is worse. For the
    throughput, it is the loss of a round of as many requests as `plan` has under way.
    """
    times = {t.configuration: t for t in profile.times}
    own = plan.subgraphs[index].configuration
    losses = sorted(
        (replaced_s - plan.predicted_s, other)
        for other in times
        if other != own
        and (replaced_s := _replaced_s(summary, times, plan, index, other, target)) is not None
    )
    return (losses[0][1], losses[0][0]) if losses else None


def main_operators(summary: ModelSummary, segments: SegmentRange) -> tuple[tuple[str, int], ...]:
    """(operator, how often) in a run of segments, most frequent first, ties by name."""
    counts: dict[str, int] = {}
    for segment in summary.segments[segments.start : segments.stop]:
        for name, often in segment.operators:
            counts[name] = counts.get(name, 0) + often
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _explained(
    summary: ModelSummary,
    profile: LatencyProfile,
    plan: CandidatePlan,
    index: int,
    *,
    target: Target,
    state: DeviceState,
    processor: ProcessorRates,
    measured_s: float | None,
) -> ExplainedSubgraph:
    subgraph = plan.subgraphs[index]
    inside = summary.segments[subgraph.segments.start : subgraph.segments.stop]
    demand = score(inside, state, processor)
    second = runner_up(summary, profile, plan, index, target)
    return ExplainedSubgraph(
        subgraph=subgraph,
        operators=main_operators(summary, subgraph.segments),
        operations=demand.operations,
        bytes_moved=demand.bytes_moved,
        score=demand,
        measured_s=measured_s,
        runner_up=second[0] if second else None,
        runner_up_loss_s=second[1] if second else None,
    )


def _replaced_s(
    summary: ModelSummary,
    times: Mapping[Configuration, SegmentTimes],
    plan: CandidatePlan,
    index: int,
    other: Configuration,
    target: Target,
) -> float | None:
    """Seconds of as many requests as `plan` has under way, with `other` for one subgraph; None
    where that is no plan."""
    own = plan.subgraphs[index]
    start, stop = own.segments.start, own.segments.stop
    if len(plan.subgraphs) > 1 and not is_divisible(times[other]):
        return None
    if any(start <= place < stop for place in times[other].refused):
        return None
    is_alike = other.instances == own.configuration.instances
    if other.resource == own.configuration.resource and not is_alike:
        return None
    used = [s.configuration for s in plan.subgraphs]
    pieces = [
        (s.segments, other if place == index else s.configuration)
        for place, s in enumerate(plan.subgraphs)
    ]
    if not can_share([c for _, c in pieces], target):
        return None
    is_joined = all(a != b for a, b in pairwise(used))
    replaced = assemble(summary, times, pieces, target=target, is_joined=is_joined)
    if replaced.instances == plan.instances:
        return replaced.predicted_s
    return replaced.predicted_s / replaced.instances * plan.instances


def _explained_segment(
    summary: ModelSummary,
    profile: LatencyProfile,
    index: int,
    *,
    state: DeviceState,
    processor: ProcessorRates,
) -> ExplainedSegment:
    segment = summary.segments[index]
    times = ((t.segment_s[index], t.configuration) for t in profile.times if index not in t.refused)
    return ExplainedSegment(
        index=index,
        nodes=(segment.start, segment.stop),
        operators=segment.operators,
        operations=segment.operations,
        crossing_bytes=border_bytes(summary, index + 1),
        score=score([segment], state, processor),
        times=tuple((configuration, took_s) for took_s, configuration in sorted(times)),
        others=summary.cuts[index].others if index < len(summary.cuts) else (),
    )


def disturbed_lines(fraction: float) -> list[str]:
    """What is to be said where others used the processor beside that part of the runs."""
    if fraction <= _MUCH_DISTURBED:
        return []
    text = (
        f"Others used the processor beside {fraction:.0%} of the runs of the profile, so its times "
        "are longer than they are alone; `edge-agent replan` measures again."
    )
    return wrapped(text, "")


def render(plan: ExecutionPlan) -> str:
    """The text of `edge-agent plan MODEL --explain`; no line is longer than 110 columns."""
    lines = [_headline(plan), *wrapped(plan.reason, "  "), "", *_table(plan.subgraphs), ""]
    lines += _totals(plan)
    if plan.channels_last:
        names = ", ".join(f'"{name}"' for name in plan.channels_last)
        lines += wrapped(f"Crosses in NHWC, without a transpose on either side: {names}.", "")
    lines += disturbed_lines(plan.disturbed_fraction)
    if any((s.runner_up_loss_s or 0.0) < 0.0 for s in plan.subgraphs):
        lines += wrapped(_NEGATIVE_LOSS, "")
    if len(plan.segments) > 1:
        title = "Segments, with fitted times; neighbours on the same choice run as one subgraph:"
        lines += ["", title, *_segment_table(plan.segments)]
        for segment in plan.segments:
            lines += wrapped(_staying(segment), "")
    if plan.placements:
        lines += ["", "Units, each given the whole model:", *placement_lines(plan.placements)]
    if plan.rejections:
        lines += ["", "Not used:"]
        for rejection in plan.rejections:
            text = f"{rejection.candidate}: {rejection.reason}: {rejection.detail}"
            lines += wrapped(text, "  ")
        if any(rejection.reason == "undecided" for rejection in plan.rejections):
            lines += wrapped(_UNDECIDED, "")
    if plan.undivided_because is not None:
        lines += ["", *wrapped(f"Not divided: {plan.undivided_because}", "")]
    return "\n".join(lines) + "\n"


def _headline(plan: ExecutionPlan) -> str:
    what = "plain ONNX Runtime" if plan.is_plain else f"{len(plan.subgraphs)} subgraph"
    if not plan.is_plain and len(plan.subgraphs) != 1:
        what += "s"
    head = f"Model {plan.model[:12]}: {what}, for {plan.target}"
    if plan.is_specialised:
        head += ", for these shapes alone"
    shapes = ", ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in plan.shapes)
    room = TEXT_WIDTH - len(head) - 2
    if shapes and room > 12:
        head += ", " + clipped(shapes, room)
    return head


_MUCH_DISTURBED = 0.25
_NEGATIVE_LOSS = (
    "A negative loss: the runner-up was predicted to be faster, but measurements decide; why it "
    "was not used is said below."
)
_UNDECIDED = (
    "What is undecided `edge-agent replan` measures again; with more seconds for profile_s and "
    "verify_s in the config file, more of it is decided."
)
_SEGMENT_COLUMNS = (
    *("seg", "nodes", "operators", "ops", "out", "score", "fastest", "ms", "next", "ms"),
)
_SEGMENT_LEFT = frozenset({1, 2, 6, 8})
_SEGMENT_OPERATORS_WIDTH = 30


def _staying(segment: ExplainedSegment) -> str:
    """Why the cut behind a segment is none between devices; empty if it could be one."""
    if not segment.others:
        return ""
    values = ", ".join(f'"{name}" ({kind})' for name, kind in segment.others)
    return f"Behind segment {segment.index} crosses what cannot leave the device: {values}."


def _segment_table(segments: Sequence[ExplainedSegment]) -> list[str]:
    rows = [list(_SEGMENT_COLUMNS), *(_segment_row(s) for s in segments)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_SEGMENT_COLUMNS))]
    return [
        " ".join(
            cell.ljust(width) if i in _SEGMENT_LEFT else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _segment_row(segment: ExplainedSegment) -> list[str]:
    start, stop = segment.nodes
    choices = [*segment.times[:2], *(((None, None),) * (2 - len(segment.times[:2])))]
    operators = " ".join(f"{name}×{often}" for name, often in segment.operators)
    crossing = segment.crossing_bytes
    return [
        str(segment.index),
        run_text(start, stop),
        clipped(operators, _SEGMENT_OPERATORS_WIDTH),
        human(segment.operations),
        "-" if crossing is None else human(crossing) + "B",
        human(segment.score.score),
        *(
            text
            for configuration, took_s in choices
            for text in ("-" if configuration is None else str(configuration), ms_text(took_s))
        ),
    ]


_COLUMNS = (
    *("segs", "nodes", "operators", "ops", "bytes", "score", "unit", "layout", "thr", "inst"),
    *("pred ms", "meas ms", "runner-up", "loses ms"),
)
_LEFT = frozenset({"segs", "nodes", "operators", "unit", "layout", "runner-up"})
_OPERATORS = _COLUMNS.index("operators")


def _table(subgraphs: Sequence[ExplainedSubgraph]) -> list[str]:
    rows = [list(_COLUMNS), *(_row(s) for s in subgraphs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    others = sum(widths) - widths[_OPERATORS] + len(_COLUMNS) - 1
    widths[_OPERATORS] = max(min(widths[_OPERATORS], TEXT_WIDTH - others), _LEAST_OPERATORS_WIDTH)
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if title in _LEFT else text.rjust(width)
        for title, text, width in zip(
            _COLUMNS,
            (clipped(t, w) for t, w in zip(row, widths, strict=True)),
            widths,
            strict=True,
        )
    ]
    return " ".join(cells).rstrip()


def _row(explained: ExplainedSubgraph) -> list[str]:
    subgraph = explained.subgraph
    configuration = subgraph.configuration
    start, stop = subgraph.nodes
    return [
        str(subgraph.segments),
        run_text(start, stop),
        " ".join(f"{name}×{often}" for name, often in explained.operators),
        human(explained.operations),
        human(explained.bytes_moved) + "B",
        human(explained.score.score),
        configuration.unit,
        f"{configuration.layout}/fp16" if configuration.is_half else configuration.layout,
        str(configuration.threads or "-"),
        str(configuration.instances),
        ms_text(subgraph.predicted_s),
        ms_text(explained.measured_s),
        str(explained.runner_up) if explained.runner_up else "-",
        ms_text(explained.runner_up_loss_s, signed=True),
    ]


def human(amount: float) -> str:
    """`amount` with three digits and an SI prefix, as in `4.11G`."""
    value = amount
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000.0
    return f"{value:.3g}P"


def _totals(plan: ExecutionPlan) -> list[str]:
    lines = [f"Predicted {ms_text(plan.predicted_s)} ms, measured {ms_text(plan.measured_s)} ms"]
    if plan.predicted_s and plan.measured_s:
        lines[0] += f" ({plan.measured_s / plan.predicted_s - 1:+.1%} against the prediction)"
    if plan.instances > 1:
        lines[0] += f", {plan.instances} requests at once"
    if plan.plain_s is not None:
        lines.append(f"Plain ONNX Runtime {ms_text(plan.plain_s)} ms")
        if plan.profiled_plain_s is not None:
            lines[-1] += (
                f", {ms_text(plan.profiled_plain_s)} ms in the profile, as predictions assume"
            )
    if plan.plain_over_plan is not None:
        unit = " per request with all instances busy" if plan.instances > 1 else ""
        lines.append(f"Plain over plan{unit}: {interval_text(plan.plain_over_plan)}")
    over_plan = plan.general_over_plan
    if over_plan is not None and over_plan != plan.plain_over_plan:
        lines.append(f"General plan over this one: {interval_text(over_plan)}")
    if plan.control is not None:
        lines.append(f"Plain over itself, same run: {interval_text(plan.control)}")
    lines.append(f"Profiled in {plan.profiling_s:.1f} s")
    return lines


def interval_text(interval: RatioInterval) -> str:
    """An interval for people, as in `1.082 (95 % interval 1.071 to 1.094, 120 pairs)`."""
    return (
        f"{interval.median:.3f} (95 % interval {interval.low:.3f} to {interval.high:.3f}, "
        f"{interval.pairs} pairs)"
    )


def clipped(text: str, width: int) -> str:
    """`text`, or its beginning if it is longer than `width`."""
    return text if len(text) <= width else text[: width - 1] + "…"
