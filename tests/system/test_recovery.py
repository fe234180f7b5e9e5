"""Processes that die at the worst moment: what was asked is answered, and nothing is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_agent.client import Client
from edge_agent.errors import EdgeAgentError, ModelQuarantined
from edge_agent.tensors import Arrays
from tests.system.conftest import StartAgent
from tests.system.made_models import convolving, count, counting, image, x
from tests.system.running import Place, RunningAgent, stopped, wait_until, worker_pid

CLIENTS = 4
REQUESTS_EACH = 50
ROWS = [pytest.param(1, marks=pytest.mark.long), 20_000]
"""Of an input of 12 bytes a row: through the socket, and through shared memory."""


@contextmanager
def requests_in_flight(
    agent: RunningAgent, model: str, clients: int, each: int, rows: int
) -> Iterator[list[tuple[float, Future[Arrays]]]]:
    """(first number of the input, answer to come) of requests to a worker that does not move."""
    with ExitStack() as stack:
        asking = [stack.enter_context(agent.client()) for _ in range(clients)]
        pool = stack.enter_context(ThreadPoolExecutor(clients * each))
        with stopped(worker_pid(asking[0], model)):
            answers = [
                (float(i), pool.submit(asking[i % clients].infer, model, x(i, rows)))
                for i in range(clients * each)
            ]
            wait_until(lambda: asking[0].status().in_flight == clients * each, "all are in flight")
            yield answers


def check_answers(answers: list[tuple[float, Future[Arrays]]], addend: float, rows: int) -> None:
    """Every request has its own right answer."""
    for first, answer in answers:
        assert np.array_equal(answer.result(30)["y"], x(first, rows)["x"] + addend)


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("rows", ROWS)
def test_a_killed_worker_costs_none_of_200_requests_from_four_clients(
    start: StartAgent, rows: int
) -> None:
    agent = start()
    with agent.client() as client:
        with requests_in_flight(agent, "add", CLIENTS, REQUESTS_EACH, rows) as answers:
            psutil.Process(worker_pid(client, "add")).kill()
            check_answers(answers, 1.0, rows)
        state = client.model("add")
        assert (state.restarts, state.failed) == (1, 0)
        assert state.answered == CLIENTS * REQUESTS_EACH
        assert client.status().counters["workers lost"] == 1


@pytest.mark.long
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("rows", ROWS)
def test_workers_killed_while_clients_talk_to_them_directly_cost_no_answer(
    start: StartAgent, rows: int
) -> None:
    kills, ended = 5, threading.Event()
    agent = start()
    with agent.client() as client, ThreadPoolExecutor(CLIENTS) as pool:

        def ask(caller: int) -> int:
            asked = 0
            with agent.client() as own:
                while not ended.is_set():
                    first = float(1000 * caller + asked)
                    answer = own.infer("add", x(first, rows))
                    assert np.array_equal(answer["y"], x(first, rows)["x"] + 1.0)
                    asked += 1
            return asked

        callers = [pool.submit(ask, caller) for caller in range(CLIENTS)]
        try:
            for _ in range(kills):
                before = client.model("add").answered
                wait_until(lambda: client.status().lent == CLIENTS, "all connections are lent")
                wait_until(
                    lambda before=before: client.model("add").answered > before + 100, "they serve"
                )
                psutil.Process(worker_pid(client, "add")).kill()
        finally:
            ended.set()
        asked = sum(caller.result(30) for caller in callers)
        wait_until(lambda: client.model("add").restarts == kills, "the last one is replaced")
        state = client.model("add")
        assert (state.failed, state.state) == (0, "serving")
        # What a worker answered may have been lost with it, and was answered again.
        assert asked <= state.answered <= asked + kills * CLIENTS
        wait_until(lambda: client.status().lent == 0, "what the clients left is given back")
        assert client.status().in_flight == 0


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("rows", ROWS)
def test_a_killed_agent_answers_after_its_restart_what_was_in_flight(
    start: StartAgent, rows: int
) -> None:
    agent = start()
    with agent.client() as client:
        with requests_in_flight(agent, "add", 2, 4, rows) as answers:
            agent.kill()
            start()
            check_answers(answers, 1.0, rows)
        # A connection that led to the dead agent is not used again.
        assert client.model("add").failed == 0


def test_after_a_kill_models_plans_and_profiles_are_back_without_profiling(
    start: StartAgent, planned: Place
) -> None:
    profiles = _written(planned)
    assert profiles
    agent = start()
    with agent.client() as client:
        plans = {name: client.plan(name) for name in ("net", "add")}
        answer = client.infer("net", image())["y"]
    agent.kill()
    again = start()
    assert again.ready_s < 5.0
    with again.client() as client:
        states = {state.name: state.planning for state in client.models()}
        assert states == {"net": "done", "add": "done"}
        assert {name: client.plan(name) for name in plans} == plans
        assert np.array_equal(client.infer("net", image())["y"], answer)
        assert not any(state.restarts for state in client.models())
    assert _written(planned) == profiles


def _written(place: Place) -> dict[str, int]:
    profiles = (place.state / "cache" / "profiles").rglob("*.json")
    return {str(path): path.stat().st_mtime_ns for path in profiles}


@pytest.mark.long
def test_a_model_loaded_again_is_not_measured_again(start: StartAgent, planned: Place) -> None:
    profiles = _written(planned)
    with start().client() as client:
        client.unload("net")
        client.load(planned.folder / "net.onnx", "second", wait=True)
        assert _written(planned) == profiles
        assert client.plan("second").model == client.model("second").model
        assert client.infer("second", image())["y"].shape == (1, 32, 28, 28)


@pytest.mark.long
def test_a_model_that_kills_its_worker_three_times_is_quarantined_and_others_go_on(
    start: StartAgent, planned: Place
) -> None:
    agent = start()
    bad = counting(planned.folder / "bad.onnx")
    with agent.client() as client, ThreadPoolExecutor(1) as pool:
        client.load(bad)
        asked = pool.submit(client.infer, "bad", count(0, 10**12))
        wait_until(lambda: client.model("bad").in_flight, "the request is in flight")
        pid = 0
        for _ in range(3):
            pid = wait_until(lambda pid=pid: _pid_after(client, "bad", pid), "it is served again")
            psutil.Process(pid).kill()
        with pytest.raises(ModelQuarantined, match='"bad" killed its worker 3 times in a row'):
            asked.result(10)
        with pytest.raises(ModelQuarantined):
            client.infer("bad", count(0, 1))
        assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        assert client.model("add").restarts == 0

        entry = planned.state / "registry" / "bad.json"
        wait_until(lambda: "killed its worker" in entry.read_text(), "it is on record")
        agent.kill()
        start()
        state = client.model("bad")
        assert (state.state, state.worker_pid) == ("quarantined", None)
        client.unload("bad")
        client.load(bad)
        assert client.infer("bad", count(4, 5))["total"] == 9


def _pid_after(client: Client, model: str, before: int) -> int | None:
    """The process that serves a model, once it is another one."""
    pid = worker_pid(client, model)
    return pid if pid != before else None


@pytest.mark.long
@pytest.mark.usefixtures("planned")
def test_an_answer_between_deaths_keeps_a_model_from_quarantine(
    start: StartAgent,
) -> None:
    with start().client() as client:
        for i in range(4):
            psutil.Process(worker_pid(client, "add")).kill()
            assert client.infer("add", x(i))["y"][0, 0] == i + 1
        assert client.model("add").state == "serving"


def _kill_builder_of(agent: RunningAgent, is_time: Callable[[], bool]) -> None:
    wait_until(is_time, "it is being measured")
    for builder in agent.children("edge_agent.builder"):
        builder.kill()


@pytest.mark.long
def test_a_builder_that_is_killed_costs_the_plan_and_not_the_model(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    agent = start(config="[planning]\nprofile_s = 0.5\nverify_s = 0.2\n")
    with agent.client() as client:
        client.devices()
        client.load(convolving(tmp_path / "net.onnx"))
        answer = client.infer("net", image())["y"]
        _kill_builder_of(agent, lambda: client.model("net").progress_fraction > 0.1)
        state = client.wait("net", 10)
        assert (state.planning, state.state) == ("failed", "serving")
        assert state.progress == (
            "the builder died (signal 9); `edge-agent replan net` tries again"
        )
        with pytest.raises(EdgeAgentError, match=r"has no plan: the builder died \(signal 9\)"):
            client.plan("net")
        assert np.array_equal(client.infer("net", image())["y"], answer)
        assert not [name for name in place.stored() if "staging" in name]
        assert client.replan("net", wait=True).planning == "done"
        assert np.allclose(client.infer("net", image())["y"], answer, rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_a_worker_does_not_outlive_an_agent_that_is_killed_during_a_run(
    start: StartAgent, tmp_path: Path
) -> None:
    agent = start()
    with agent.client() as client, ThreadPoolExecutor(1) as pool:
        client.load(counting(tmp_path / "count.onnx"), wait=True)
        asked = pool.submit(client.infer, "count", count(0, 10**12), deadline_s=2.0)
        wait_until(lambda: client.model("count").in_flight, "the request is in flight")
        agent.kill()
        assert asked.exception(10) is not None
