"""Messages between the agent and its planner."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edge_agent.problems import NOTHING_AROUND, Problem, SegmentPin, Surroundings
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import Distributions, Failure, Message, Progress
from edge_agent.wire.parts import MAX_PINS, Bounds, Name, Targets

MAX_EFFORT = 1e9
"""A quarter of an hour; NaN and infinity are above it too."""

Effort = Annotated[float, Meta(gt=0, le=MAX_EFFORT)]
"""As `planning.planner.plan` takes it."""
SegmentPins = Annotated[tuple[SegmentPin, ...], Meta(max_length=MAX_PINS)]


class PlanProblem(Message, frozen=True, tag="plan-problem"):
    """Plan this; answered with `Distributions`."""

    problem: Problem
    targets: Targets = ()
    is_pareto: bool = False
    effort: Effort | None = None
    """None: as the planner has it by default."""


class PlanLoaded(Message, frozen=True, tag="plan-loaded", kw_only=True):
    """Plan what the store keeps of the model loaded under this name, over this device, which is
    `devices.THIS_DEVICE`, and what surrounds it; answered with `Distributions`, appraised."""

    name: Name
    model: ModelId
    around: Surroundings = NOTHING_AROUND
    targets: Targets = ()
    bounds: Bounds = ()
    pins: SegmentPins = ()
    is_pareto: bool = False
    effort: Effort | None = None
    most_routes: Annotated[int, Meta(ge=1)] | None = None
    """None: any number."""
    is_divided: bool = False
    """Whether two devices at least have to compute, whether it pays or not."""
    is_compared: bool = False
    """Whether it is to be told what the best with each device would give that takes no part; that
    takes as long again."""


PlannerRequest = PlanProblem | PlanLoaded
PlannerMessage = Distributions | Progress | Failure

TO_PLANNER = msgspec.msgpack.Decoder(PlannerRequest)
FROM_PLANNER = msgspec.msgpack.Decoder(PlannerMessage)
