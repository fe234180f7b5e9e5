"""What a division costs: fitted segment times turned into the predicted time of a plan.

Times are summed as whole picoseconds: integers add up the same in every order, so that equal
plans cost exactly the same and ties break the same way everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from edge_agent.plans import CandidatePlan, ChosenSubgraph, Target
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.subgraphs import ModelSummary, SegmentRange

TICKS_PER_S = 10**12


def ticks(duration_s: float) -> int:
    """`duration_s` seconds in whole picoseconds."""
    return round(duration_s * TICKS_PER_S)


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


def subgraph_ticks(
    summary: ModelSummary,
    times: SegmentTimes,
    segments: SegmentRange,
    *,
    before: Configuration | None = None,
    after: Configuration | None = None,
) -> int:
    """Predicted picoseconds of a subgraph, by the formula that `SegmentTimes` documents.

    A border to a neighbour (`before`, `after`) on the same accelerator costs nothing.

    Raises:
        ValueError: the bytes at one of its borders are not known, one of its segments is refused,
            or `times` belong to a model with another number of segments.
    """
    check_times(summary, times)
    refused = [place for place in times.refused if segments.start <= place < segments.stop]
    if refused:
        raise ValueError(f"{times.configuration} refuses segments {refused} of [{segments}]")
    total = ticks(times.overhead_s) + sum(
        ticks(s) for s in times.segment_s[segments.start : segments.stop]
    )
    for boundary, neighbour in ((segments.start, before), (segments.stop, after)):
        crossing = border_bytes(summary, boundary)
        if crossing is None:
            raise ValueError(
                f"the bytes that cross before segment {boundary} are not known: "
                f"a division there has no predicted time"
            )
        if neighbour is None or not keeps_tensors(neighbour, times.configuration):
            total += ticks(times.border_s_per_byte * crossing)
    return total


def subgraph_s(summary: ModelSummary, times: SegmentTimes, segments: SegmentRange) -> float:
    """Predicted seconds of a subgraph between copies. Raises: as `subgraph_ticks`."""
    return subgraph_ticks(summary, times, segments) / TICKS_PER_S


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
        ValueError: as `subgraph_ticks`, or the pieces cannot be in one plan (`can_share`).
    """
    pieces = joined(pieces) if is_joined else tuple(pieces)
    if not can_share([c for _, c in pieces], target):
        raise ValueError(
            f"{', '.join(str(c) for _, c in pieces)} cannot share a plan for {target}: want equal "
            f"instances on a resource (latency: 1), and equal threads beside another one"
        )
    used: list[Configuration | None] = [None, *(c for _, c in pieces), None]
    priced = [
        subgraph_ticks(summary, times[c], segments, before=used[at], after=used[at + 2])
        for at, (segments, c) in enumerate(pieces)
    ]
    at_once, per_request = 1, Fraction(sum(priced))
    if target is Target.THROUGHPUT:
        instances = {c.resource: c.instances for _, c in pieces}
        loads = dict.fromkeys(instances, 0)
        for (_, c), price in zip(pieces, priced, strict=True):
            loads[c.resource] += price
        at_once = sum(instances.values())
        per_request = max(Fraction(load, instances[r]) for r, load in loads.items())
    total_s = float(per_request * at_once / TICKS_PER_S)
    return CandidatePlan(
        subgraphs=tuple(
            ChosenSubgraph(
                segments=segments,
                nodes=node_range(summary, segments),
                configuration=configuration,
                predicted_s=price / TICKS_PER_S,
            )
            for (segments, configuration), price in zip(pieces, priced, strict=True)
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
