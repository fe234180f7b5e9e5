"""Processes killed at any moment of a load: the store is whole, and what serves gives right
answers."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import onnx
import psutil
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from edge_agent import clock
from edge_agent.client import Client
from edge_agent.config import Limits
from edge_agent.errors import EdgeAgentError
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import POOL_FOLDER, Pool
from tests.system.conftest import StartAgent
from tests.system.made_models import weighty, x
from tests.system.running import Place, RunningAgent, wait_until

MIB = 1 << 20
SIZE_BYTES = 24 * MIB
ADDEND = 3.0
ANSWER = [[3.0, 4.0, 5.0]]
VICTIMS = ("all", "all", "agent", "builder", "worker")
AFTER_S = 0.5
"""Kills come until so long after the plan was made."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One in a single file, one with external data; both give x + 3."""
    folder = tmp_path_factory.mktemp("models")
    whole = weighty(folder / "whole.onnx", SIZE_BYTES, ADDEND)
    divided = onnx.load(whole)
    convert_model_to_external_data(divided, location="divided.bin", size_threshold=1024)
    onnx.save(divided, folder / "divided.onnx")
    return whole, folder / "divided.onnx"


def check_store(place: Place) -> None:
    """Everything that lies under a final name is whole. No agent may run."""
    store = ModelStore(place.state)
    for model in store.ids():
        store.verify(model)
    pool = Pool(place.state / POOL_FOLDER, Limits().max_compiled_bytes)
    for manifest in pool.folder.glob("*.json"):
        entry = pool.get(manifest.stem, thorough=True)
        assert entry is not None, f"{manifest} is damaged"
        entry.release()


def check_serving(client: Client) -> None:
    """Every model that is loaded gives right answers."""
    for model in client.models():
        assert client.infer(model.name, x(0.0), deadline_s=30.0)["y"].tolist() == ANSWER


def kill(agent: RunningAgent, victim: str) -> None:
    """SIGKILL for one kind of process, or for all at once."""
    modules = {"all": "edge_agent.", "builder": "edge_agent.builder", "worker": "edge_agent.worker"}
    doomed = agent.children(modules[victim]) if victim in modules else []
    if victim in ("all", "agent"):
        doomed.insert(0, psutil.Process(agent.pid))
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def load(agent: RunningAgent, path: Path) -> None:
    """Load and plan, or be told why not."""
    with agent.client() as client, suppress(EdgeAgentError):
        client.load(path, "m", wait=True, timeout_s=30.0)


def die_once(start: StartAgent, path: Path, after_s: float, victim: str) -> str:
    """Kill `victim` so long after a load began; returns what was there at the next start."""
    agent = start()
    place = agent.place
    with ThreadPoolExecutor(1) as pool:
        loading: Future[None] = pool.submit(load, agent, path)
        wait([loading], after_s)
        kill(agent, victim)
        if victim in ("builder", "worker"):
            loading.result(60.0)
            with agent.client() as client:
                check_serving(client)
        agent.kill()
        loading.result(60.0)
    check_store(place)
    agent = start()
    assert not any("staging/" in name for name in place.stored())
    with agent.client() as client:
        found = "nothing" if not client.models() else "the model"
        check_serving(client)
        client.load(path, "m")
        check_serving(client)
        client.unload("m")
        assert client.models() == ()
    # The build that was stopped may have to end first.
    wait_until(lambda: place.stored() == [], "nothing is left of the model")
    agent.stop()
    check_store(place)
    for sign in ("damaged", "cannot be served", "Traceback"):
        assert sign not in place.log_text()
    return found


def load_s(start: StartAgent, path: Path) -> float:
    """How long a load takes until the plan is made."""
    agent = start()
    with agent.client() as client:
        started_s = clock.monotonic_s()
        client.load(path, "m", wait=True)
        took_s = clock.monotonic_s() - started_s
        client.unload("m")
    agent.stop()
    return took_s


@pytest.mark.long
def test_a_kill_at_a_few_moments_of_a_load_costs_the_load_at_most(
    start: StartAgent, models: tuple[Path, Path]
) -> None:
    for path, after_s in zip(models, (0.4, 0.9), strict=True):
        die_once(start, path, after_s, "all")


@pytest.mark.many
def test_a_kill_at_fifty_random_moments_of_a_load_costs_the_load_at_most(
    start: StartAgent, models: tuple[Path, Path]
) -> None:
    rng = random.Random(0)
    span_s = load_s(start, models[1]) + AFTER_S
    found = []
    for i in range(50):
        after_s, victim = rng.uniform(0.0, span_s), rng.choice(VICTIMS)
        print(f"{i}: {victim} after {after_s:.3f} of {span_s:.3f} s")
        found.append(die_once(start, models[i % 2], after_s, victim))
    assert {"nothing", "the model"} == set(found)
