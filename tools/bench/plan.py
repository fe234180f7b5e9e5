"""Knows how a benchmark runs the plan that the agent chose for a model."""

from __future__ import annotations

from collections.abc import Callable

import edge_agent
from models.inputs import Arrays

RUNS_IN_THIS_PROCESS = False
"""Whether `plan_runner` runs the plan in the calling process: such a side can be stopped."""


def plan_runner(socket: str, model: str, inputs: Arrays) -> Callable[[], object]:
    """One request on the chosen plan of `model`, through the agent at `socket`."""
    client = edge_agent.Client(socket)
    return lambda: client.infer(model, inputs)
