"""Plans of models that are made up, for tests of what is done with plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from edge_agent.builder.workshop import Workshop
from edge_agent.plans import CandidatePlan, ChosenSubgraph, ExecutionPlan, Target
from edge_agent.profiles import Configuration
from edge_agent.subgraphs import ModelId, SegmentRange

PLAN = ExecutionPlan(
    model=ModelId("m"),
    target=Target.LATENCY,
    shapes=(),
    subgraphs=(),
    is_plain=False,
    reason="it is faster",
    predicted_s=None,
    measured_s=None,
    plain_s=None,
    plain_over_plan=None,
    rejections=(),
    undivided_because=None,
    profiling_s=0.0,
)
"""That of which nothing is known."""


def chosen_plan(
    workshop: Workshop,
    cuts: Sequence[int],
    configurations: Sequence[Configuration],
    instances: int = 1,
) -> CandidatePlan:
    """The model divided before the segments `cuts`, each part in its configuration."""
    bounds = [0, *cuts, len(workshop.summary.segments)]
    ranges = [SegmentRange(start=a, stop=b) for a, b in pairwise(bounds)]
    return CandidatePlan(
        subgraphs=tuple(
            ChosenSubgraph(
                segments=segments,
                nodes=workshop.nodes(segments),
                configuration=configuration,
                predicted_s=0.001,
            )
            for segments, configuration in zip(ranges, configurations, strict=True)
        ),
        predicted_s=0.001,
        predicted_per_s=1000.0,
        instances=instances,
    )
