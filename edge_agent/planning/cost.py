"""What a division costs: fitted segment times turned into the predicted time of a plan.

Times are summed as whole picoseconds: integers add up the same in every order, so that equal
plans cost exactly the same and ties break the same way everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_agent.plans import CandidatePlan, ChosenSubgraph
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


def subgraph_ticks(summary: ModelSummary, times: SegmentTimes, segments: SegmentRange) -> int:
    """Predicted picoseconds of a subgraph, by the formula that `SegmentTimes` documents.

    Raises:
        ValueError: the bytes at one of its borders are not known, or `times` belong to a model
            with another number of segments.
    """
    check_times(summary, times)
    total = ticks(times.overhead_s) + sum(
        ticks(s) for s in times.segment_s[segments.start : segments.stop]
    )
    for boundary in (segments.start, segments.stop):
        crossing = border_bytes(summary, boundary)
        if crossing is None:
            raise ValueError(
                f"the bytes that cross before segment {boundary} are not known: "
                f"a division there has no predicted time"
            )
        total += ticks(times.border_s_per_byte * crossing)
    return total


def subgraph_s(summary: ModelSummary, times: SegmentTimes, segments: SegmentRange) -> float:
    """Predicted seconds of a subgraph. Raises: as `subgraph_ticks`."""
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
    is_joined: bool = True,
) -> CandidatePlan:
    """The plan that runs `pieces` in turn, with its predicted time; equal neighbours are joined
    unless `is_joined` is False.

    With k instances, the predicted time is that of k requests at once and the rate is k over it.

    Raises:
        ValueError: as `subgraph_ticks`, or the pieces differ in their instances.
    """
    pieces = joined(pieces) if is_joined else tuple(pieces)
    instances = {configuration.instances for _, configuration in pieces}
    if len(instances) != 1:
        raise ValueError(f"got subgraphs with {sorted(instances)} instances, want one number")
    priced = [subgraph_ticks(summary, times[c], segments) for segments, c in pieces]
    total_s = sum(priced) / TICKS_PER_S
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
        predicted_per_s=instances.pop() / total_s if total_s else float("inf"),
    )


def node_range(summary: ModelSummary, segments: SegmentRange) -> tuple[int, int]:
    """Nodes [start, stop) of a run of segments."""
    return summary.segments[segments.start].start, summary.segments[segments.stop - 1].stop
