"""Knows how a benchmark runs the plan that the agent chose for a model, in its own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import edge_agent
from edge_agent.agent.kept import load_kept
from edge_agent.errors import UsageError
from edge_agent.plans import Epoch
from edge_agent.store.records import PlanStore
from edge_agent.wire.messages import Deployment
from edge_agent.worker.opening import open_deployment
from models.inputs import Arrays

RUNS_IN_THIS_PROCESS = True
"""Whether `plan_runner` runs the plan in the calling process: such a side can be stopped."""


def plan_runner(socket: str, model: str, inputs: Arrays) -> Callable[[], object]:
    """One request on the chosen plan of `model`, with what a worker of the agent at `socket`
    would open, without the agent in between."""
    with edge_agent.Client(socket) as client:
        state_folder = Path(client.status().state_folder)
        model_id = client.model(model).model
    kept = load_kept(PlanStore(state_folder), model, model_id)
    if kept is None or not kept.subgraphs:
        raise UsageError(f"{model} has no plan: load it with wait=True first")
    deployment = Deployment(
        epoch=Epoch(owner="bench", incarnation=0, model=model_id, number=0),
        subgraphs=kept.subgraphs,
        instances=kept.instances,
        pinned_cores=kept.pinned_cores,
        inputs=kept.inputs,
        outputs=kept.outputs,
        warm_shapes=(),
    )
    runner = open_deployment(deployment, is_background=False).runner
    runner.pin_caller()
    outputs = [spec.name for spec in kept.outputs]
    return lambda: runner.run(inputs, outputs)
