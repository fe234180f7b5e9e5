"""Serving on several units: pipelines under many callers, restarts, and workers that die there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edge_agent.agent.kept import load_kept
from edge_agent.client import Client
from edge_agent.devices import ComputeUnit
from edge_agent.engine.session import OptimisationLevel
from edge_agent.store.records import PlanStore
from edge_agent.wire.parts import SubgraphFile
from tests.system.running import QUICK_PLANS, Place, RunningAgent, wait_until
from tests.units.made import mixed_net, picture
from tests.units.running import PLAN_S, close_to, reference, running, saved

Unit = Callable[[str], ComputeUnit]
PINS = {"front/*": "webgpu", "quant/*": "qnn", "tail/*": "cpu"}
CALLERS = 6
REQUESTS = 4


def files(place: Place, client: Client, name: str) -> dict[str, SubgraphFile]:
    """What the worker of a model opens, by unit."""
    kept = load_kept(PlanStore(place.state), name, client.model(name).model)
    assert kept is not None
    return {file.unit: file for file in kept.subgraphs}


def loaded(agent: RunningAgent, target: str) -> Path:
    path = saved(agent, "mixed", mixed_net())
    with agent.client() as client:
        state = client.load(path, pins=PINS, target=target, wait=True, timeout_s=PLAN_S)
        assert state.planning == "done", state.progress
    return path


@pytest.fixture
def three_units(unit: Unit) -> None:
    for name in ("cpu", "webgpu", "qnn"):
        unit(name)


@pytest.mark.usefixtures("three_units")
def test_a_pipeline_over_three_units_answers_many_callers_rightly() -> None:
    with running() as agent:
        want = reference(loaded(agent, "throughput"))

        def ask(_: int) -> list[np.ndarray]:
            with agent.client() as client:
                return [client.infer("mixed", {"x": picture()})["y"] for _ in range(REQUESTS)]

        with ThreadPoolExecutor(CALLERS) as callers:
            answers = [y for some in callers.map(ask, range(CALLERS)) for y in some]
        with agent.client() as client:
            plan, opened = client.plan("mixed"), files(agent.place, client, "mixed")
    assert len(answers) == CALLERS * REQUESTS
    for answer in answers:
        close_to(answer, want)
    # One on each accelerator at a time, and as many on the cores as were planned for them.
    assert opened["webgpu"].at_once == opened["qnn"].at_once == 1
    assert plan.instances == 2 + (opened["cpu"].at_once or 0)


@pytest.mark.usefixtures("three_units")
def test_what_units_compiled_is_kept_and_the_next_start_serves_with_it() -> None:
    with running() as agent:
        want = reference(loaded(agent, "latency"))
        with agent.client() as client:
            before = files(agent.place, client, "mixed")
            # A context of the NPU, and the optimised graph of the GPU.
            assert {u: f.level for u, f in before.items()} == dict.fromkeys(
                ("webgpu", "qnn", "cpu"), OptimisationLevel.NONE.value
            )
            assert b"EPContext" in Path(before["qnn"].path).read_bytes()
        agent.stop()
        again = RunningAgent(agent.place, (), QUICK_PLANS)
        try:
            with again.client() as client:
                close_to(client.infer("mixed", {"x": picture()})["y"], want)
                assert client.model("mixed").planning == "done"
                assert files(agent.place, client, "mixed") == before
        finally:
            again.end()


@pytest.mark.usefixtures("three_units")
def test_a_worker_that_dies_again_and_again_on_units_serves_on_the_processor() -> None:
    with running() as agent:
        want = reference(loaded(agent, "latency"))
        with agent.client() as client:
            plan = client.plan("mixed")
            for _ in range(2):
                pid = wait_until(lambda: client.model("mixed").worker_pid, "it has a worker")
                os.kill(pid, signal.SIGKILL)
                wait_until(
                    lambda dead=pid: client.model("mixed").worker_pid not in (None, dead),
                    "it has another",
                    60.0,
                )
            close_to(client.infer("mixed", {"x": picture()})["y"], want)
            state = client.wait("mixed", PLAN_S)
    assert {s.subgraph.configuration.unit for s in plan.subgraphs} == {"webgpu", "qnn", "cpu"}
    assert state.state == "serving"
    # Its pins cannot hold without them.
    assert "the worker died again and again" in state.progress
