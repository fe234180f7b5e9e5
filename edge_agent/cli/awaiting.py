"""How commands wait for the plan of a loaded model, and tell how far it is."""

from __future__ import annotations

from edge_agent import clock
from edge_agent.cli.output import ProgressLine
from edge_agent.client import POLL_S, Client
from edge_agent.errors import BadRequest, ModelQuarantined, UnknownModel
from edge_agent.plans import ExecutionPlan
from edge_agent.wire.parts import ModelState


def await_plan(client: Client, name: str) -> ModelState:
    """The state of the model once its plan is made, or failed to be.

    Raises:
        UnknownModel: it is not loaded, or was unloaded meanwhile.
        ModelQuarantined: it is not run any more.
    """
    line = ProgressLine()
    is_there = False
    try:
        while True:
            try:
                state = client.model(name)
            except UnknownModel as error:
                if not is_there:
                    raise
                raise UnknownModel(f'model "{name}" was unloaded while it was planned') from error
            is_there = True
            if state.state == "quarantined":
                raise ModelQuarantined(state.progress)
            if state.is_settled:
                return state
            line.show(*state.unsettled)
            clock.sleep_s(POLL_S)
    finally:
        line.end()


def awaited_plan(client: Client, name: str) -> ExecutionPlan:
    """The plan of the model, waited for while it is made.

    Raises:
        UnknownModel, ModelQuarantined: as `await_plan`.
        EdgeAgentError: it could not be made.
    """
    try:
        return client.plan(name)
    except BadRequest:
        await_plan(client, name)
        return client.plan(name)
