"""What a division costs: fitted segment times turned into the predicted time of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_agent.devices import Layout
from edge_agent.plans import CandidatePlan, ChosenSubgraph, Target
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary


def border_bytes(summary: ModelSummary, boundary: int) -> int | None:
    """Bytes that cross before segment `boundary`; 0 at both ends of the model, None if unknown."""
    if boundary in (0, len(summary.segments)):
        return 0
    return summary.cuts[boundary - 1].crossing_bytes


def is_divisible(times: SegmentTimes) -> bool:
    """Whether parts of the model may run so."""
    return times.is_divisible and not times.configuration.falls_back


def keeps_tensors(before: Configuration, after: Configuration) -> bool:
    """Whether tensors between two subgraphs stay on one accelerator, so that none is copied."""
    return before.threads == after.threads == 0 and before.unit == after.unit


def inner_border_s_per_byte(times: SegmentTimes, other: Configuration) -> float:
    """What a side pays at a border to `other` on the same device, for each byte."""
    own = times.configuration
    if keeps_tensors(own, other):
        return 0.0
    if own.threads and other.threads and own.layout == other.layout == Layout.NHWC:
        return times.border_s_per_byte - times.turn_s_per_byte
    return times.border_s_per_byte


def subgraph_s(
    summary: ModelSummary,
    times: SegmentTimes,
    segments: SegmentRange,
    *,
    before: Configuration | None = None,
    after: Configuration | None = None,
) -> float:
    """Predicted seconds of a subgraph, by the formula that `SegmentTimes` documents.

    `before` and `after`: its neighbours on the same device, to which less may be paid; None where
    there is none, or where it is on another device.

    Raises:
        ValueError: the bytes at one of its borders are not known, one of its segments is refused,
            or `times` belong to a model with another number of segments.
    """
    check_times(summary, times)
    refused = [place for place in times.refused if segments.start <= place < segments.stop]
    if refused:
        raise ValueError(f"{times.configuration} refuses segments {refused} of [{segments}]")
    total_s = times.overhead_s + sum(times.segment_s[segments.start : segments.stop])
    for boundary, neighbour in ((segments.start, before), (segments.stop, after)):
        crossing = border_bytes(summary, boundary)
        if crossing is None:
            raise ValueError(
                f"the bytes that cross before segment {boundary} are not known: "
                f"a division there has no predicted time"
            )
        per_byte = times.border_s_per_byte
        if neighbour is not None:
            per_byte = inner_border_s_per_byte(times, neighbour)
        total_s += per_byte * crossing
    return total_s


def check_times(summary: ModelSummary, times: SegmentTimes) -> None:
    """Raises: ValueError if `times` belong to a model with another number of segments."""
    if len(times.segment_s) != len(summary.segments):
        raise ValueError(
            f"times of {times.configuration}: got {len(times.segment_s)} segments, "
            f"want {len(summary.segments)}"
        )


def joined(
    pieces: Sequence[tuple[SegmentRange, Configuration]],
) -> tuple[tuple[SegmentRange, Configuration], ...]:
    """`pieces` with neighbours of equal configuration made one: they would be one session."""
    merged: list[tuple[SegmentRange, Configuration]] = []
    for segments, configuration in pieces:
        if merged and merged[-1][1] == configuration:
            start = merged.pop()[0].start
            merged.append((SegmentRange(start=start, stop=segments.stop), configuration))
        else:
            merged.append((segments, configuration))
    return tuple(merged)


def assemble(
    summary: ModelSummary,
    times: Mapping[Configuration, SegmentTimes],
    pieces: Sequence[tuple[SegmentRange, Configuration]],
    *,
    target: Target,
    is_joined: bool = True,
) -> CandidatePlan:
    """The plan that runs `pieces` in turn, with its predicted time; equal neighbours are joined
    unless `is_joined` is False.

    For the latency, one request passes through all of them. For the throughput, each resource
    works on requests of its own, as many at once as its configurations have instances: the time
    per request is that of the busiest resource, and all of them together have `instances` requests
    under way.

    Raises:
        ValueError: as `subgraph_s`, or the pieces cannot be in one plan (`can_share`).
    """
    pieces = joined(pieces) if is_joined else tuple(pieces)
    if not can_share([c for _, c in pieces], target):
        raise ValueError(
            f"{', '.join(str(c) for _, c in pieces)} cannot share a plan for {target}: want equal "
            f"instances on a resource (latency: 1), and equal threads beside another one"
        )
    used: list[Configuration | None] = [None, *(c for _, c in pieces), None]
    priced = [
        subgraph_s(summary, times[c], segments, before=used[at], after=used[at + 2])
        for at, (segments, c) in enumerate(pieces)
    ]
    at_once, per_request_s = 1, sum(priced)
    if target is Target.THROUGHPUT:
        instances = {c.resource: c.instances for _, c in pieces}
        loads = dict.fromkeys(instances, 0.0)
        for (_, c), took_s in zip(pieces, priced, strict=True):
            loads[c.resource] += took_s
        at_once = sum(instances.values())
        per_request_s = max(load / instances[r] for r, load in loads.items())
    total_s = per_request_s * at_once
    return CandidatePlan(
        subgraphs=tuple(
            ChosenSubgraph(
                segments=segments,
                nodes=node_range(summary, segments),
                configuration=configuration,
                predicted_s=took_s,
            )
            for (segments, configuration), took_s in zip(pieces, priced, strict=True)
        ),
        predicted_s=total_s,
        predicted_per_s=at_once / total_s if total_s else float("inf"),
        instances=at_once,
    )


def can_share(used: Sequence[Configuration], target: Target) -> bool:
    """Whether subgraphs in `used` configurations may be in one plan.

    For the latency, each runs once at a time. For the throughput, those of one resource have
    equal instances, and beside another resource those on the host's cores have equal threads: else
    two requests at once would be bound to the same cores.
    """
    if target is Target.LATENCY:
        return all(c.instances == 1 for c in used)
    resources = {c.resource for c in used}
    threads = {c.threads for c in used if c.threads}
    is_even = len({(c.resource, c.instances) for c in used}) == len(resources)
    return is_even and (len(resources) == 1 or len(threads) <= 1)


def node_range(summary: ModelSummary, segments: SegmentRange) -> tuple[int, int]:
    """Nodes [start, stop) of a run of segments."""
    return summary.segments[segments.start].start, summary.segments[segments.stop - 1].stop
