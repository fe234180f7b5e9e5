"""Plans that take over in the process that serves: what is asked meanwhile is answered, whatever
dies."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_agent.client import Client
from edge_agent.tensors import Array
from edge_agent.wire.parts import ModelState
from tests.system.conftest import StartAgent
from tests.system.made_models import convolving, image
from tests.system.running import Place, RunningAgent, stopped, wait_until, worker_pid

CLIENTS = 4
PLANS = "[planning]\nprofile_s = 1.5\nverify_s = 0.2\n"
"""Time enough to measure parts, also beside other work: else it cannot be divided."""
MOVING = "moving traffic to the plan"


@pytest.fixture(scope="module")
def prepared() -> Iterator[Place]:
    """A place whose state "kept" has `convolving` in two subgraphs, so that every plan is another
    epoch."""
    with tempfile.TemporaryDirectory(prefix="edge-agent-") as name:
        folder = Path(name)
        made = Place(folder=folder, state=folder / "state", socket=folder / "run" / "a.sock")
        begun = RunningAgent(made, (), PLANS)
        try:
            with begun.client() as client:
                client.load(convolving(folder / "net.onnx"), subgraphs=2, wait=True)
                assert not client.model("net").is_plain
                device = client.devices()
                (cpu,) = (unit for unit in device.units if unit.id == "cpu")
            begun.stop()
        finally:
            begun.end()
        if not cpu.opens_aside:
            # Not where it is known to leave them running: there it is a fault that must show.
            assert tuple(map(int, device.runtime_version.split(".")[:2])) < (1, 32)
            pytest.skip("this ONNX Runtime stops other threads while it creates a session")
        made.state.rename(folder / "kept")
        yield made


@pytest.fixture
def agent(prepared: Place, start: StartAgent) -> Iterator[RunningAgent]:
    """An agent with that state."""
    # Where it was made, because what is kept names files by their whole path.
    shutil.copytree(prepared.folder / "kept", prepared.state)
    prepared.log.write_text("")
    begun = start(at=prepared, config=PLANS)
    yield begun
    begun.end()  # else it would write into what is removed here
    print(prepared.log_text())
    shutil.rmtree(prepared.state)


@contextmanager
def asking(agent: RunningAgent) -> Iterator[list[Array]]:
    """Four clients that ask without a pause; all their answers."""
    is_over = threading.Event()
    answers: list[Array] = []

    def ask() -> None:
        with agent.client() as client:
            while not is_over.is_set():
                answers.append(client.infer("net", image())["y"])

    with ThreadPoolExecutor(CLIENTS) as pool:
        asked = [pool.submit(ask) for _ in range(CLIENTS)]
        try:
            wait_until(lambda: len(answers) > CLIENTS, "they are answered")
            yield answers
        finally:
            is_over.set()
        for future in asked:
            future.result(30.0)


def replanned(client: Client) -> ModelState:
    """The model with a plan that was made anew."""
    state = client.replan("net", wait=True)
    assert state.planning == "done", state.progress
    assert not state.is_plain
    return state


def check(answer: Array, right: Array) -> None:
    np.testing.assert_allclose(answer, right, rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_a_replan_under_load_from_four_clients_changes_the_epoch_and_not_the_process(
    agent: RunningAgent,
) -> None:
    with agent.client() as client, ThreadPoolExecutor(1) as pool:
        right = client.infer("net", image())["y"]
        before = client.model("net")
        replanning = pool.submit(replanned, client)
        # Planning beside clients that leave no pause takes minutes, and is not what this is about.
        wait_until(lambda: client.model("net").progress_fraction >= 0.6, "it is compared", 60.0)
        with asking(agent) as answers:
            after = replanning.result(120.0)
            seen = len(answers)
            wait_until(lambda: len(answers) > seen + CLIENTS, "the new epoch answers")
        assert after.epoch > before.epoch
        assert after.worker_pid == before.worker_pid
        assert (after.restarts, after.failed) == (before.restarts, 0)
        for answer in answers:
            check(answer, right)
        assert len(agent.children("edge_agent.worker")) == 1
        assert not client.status().counters.get("internal errors")


@pytest.mark.long
def test_a_worker_killed_while_it_opens_a_plan_costs_no_answer(agent: RunningAgent) -> None:
    with agent.client() as client, ThreadPoolExecutor(2) as pool:
        right = client.infer("net", image())["y"]
        before = client.model("net")
        pid = worker_pid(client, "net")
        replanning = pool.submit(replanned, client)
        wait_until(lambda: client.model("net").progress_fraction >= 0.6, "it is compared", 60.0)
        with stopped(pid) as worker:
            answer = pool.submit(client.infer, "net", image())
            wait_until(lambda: client.model("net").progress == MOVING, "it is to open it", 60.0)
            worker.kill()
        assert replanning.result(60.0).epoch > before.epoch
        check(answer.result(30.0)["y"], right)
        state = client.model("net")
        assert (state.restarts, state.failed) == (before.restarts + 1, 0)
        assert state.worker_pid != pid


@pytest.mark.long
def test_the_epoch_that_took_over_comes_back_with_its_worker_and_with_the_agent(
    agent: RunningAgent, start: StartAgent
) -> None:
    with agent.client() as client:
        right = client.infer("net", image())["y"]
        before = replanned(client)
        psutil.Process(worker_pid(client, "net")).kill()
        check(client.infer("net", image())["y"], right)
        wait_until(lambda: client.model("net").restarts == 1, "it was restarted")
        after = client.model("net")
        assert (after.epoch, after.plan) == (before.epoch, before.plan)
    agent.kill()
    with start(at=agent.place, config=PLANS).client() as client:
        check(client.infer("net", image())["y"], right)
        assert client.model("net").plan == before.plan
