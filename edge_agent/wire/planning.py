"""Messages between the agent and its planner."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edge_agent.problems import Problem
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import Distributions, Failure, Message, Progress
from edge_agent.wire.parts import Bounds, Name, Targets

MAX_EFFORT = 1e9
"""A quarter of an hour; NaN and infinity are above it too."""

Effort = Annotated[float, Meta(gt=0, le=MAX_EFFORT)]
"""As `planning.planner.plan` takes it."""


class PlanProblem(Message, frozen=True, tag="plan-problem"):
    """Plan this; answered with `Distributions`."""

    problem: Problem
    targets: Targets = ()
    is_pareto: bool = False
    effort: Effort | None = None
    """None: as the planner has it by default."""


class PlanLoaded(Message, frozen=True, tag="plan-loaded"):
    """Plan what the store keeps of the model loaded under this name, over this device."""

    name: Name
    model: ModelId
    targets: Targets = ()
    bounds: Bounds = ()
    is_pareto: bool = False
    effort: Effort | None = None


PlannerRequest = PlanProblem | PlanLoaded
PlannerMessage = Distributions | Progress | Failure

TO_PLANNER = msgspec.msgpack.Decoder(PlannerRequest)
FROM_PLANNER = msgspec.msgpack.Decoder(PlannerMessage)
