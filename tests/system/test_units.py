"""An agent whose config file names libraries that crash, hang or bring nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.made_library import Loading, make_library
from tests.marks import marked_long
from tests.system.conftest import StartAgent
from tests.system.made_models import convolving
from tests.system.running import QUICK_PLANS, Place, RunningAgent, has_ended, wait_until

INPUT = np.random.default_rng(5).standard_normal((1, 32, 28, 28), np.float32)
BROKEN = {
    "crashing": Loading.ILLEGAL,
    "hanging": Loading.WAITS,
    "empty": Loading.RETURNS,
}
REASONS = {
    "crashing": "its probe was ended by SIGILL",
    "hanging": "its probe did not end within 4 s",
    "empty": "its library cannot be loaded: Failed to get symbol CreateEpFactories",
}


def config(folder: Path) -> str:
    tables = [
        f"[units.{name}]\nprovider = '{name.title()}'\nkind = 'NPU'\n"
        f"library = '{make_library(folder / f'{name}.so', loading)}'\n"
        for name, loading in BROKEN.items()
    ]
    budgets = QUICK_PLANS.replace("[planning]\n", "[planning]\nprobe_s = 4\n")
    return "".join([budgets, *tables, "[units.cpu]\nthreads = 1\n", "[units.webgpu]\noff = true\n"])


def by_unit(refused: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {found["unit"]: found for found in refused if found["unit"]}


@pytest.mark.long
def test_a_model_serves_while_broken_libraries_are_refused_by_name(
    start: StartAgent, place: Place
) -> None:
    agent = start(config=config(place.folder))
    file = place.folder / "config.toml"
    with agent.client() as client:
        client.load(convolving(place.folder / "net.onnx"))
        first = client.infer("net", {"x": INPUT})
        done = threading.Event()
        answers: list[dict[str, Any]] = []

        def ask() -> None:
            while not done.is_set():
                answers.append(client.infer("net", {"x": INPUT}))
                # Builders run when there is a pause.
                done.wait(0.2)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            devices = agent.command("devices", "--json")
            text = agent.command("devices").out
            state = client.wait("net", 60)
        finally:
            done.set()
            asking.join()
        assert state.planning == "done"
        assert client.model("net").failed == 0
    assert answers
    for answer in answers:
        for name, value in first.items():
            np.testing.assert_allclose(answer[name], value, rtol=1e-3, atol=1e-4)

    assert devices.code == 0
    assert [(u["id"], u["cores"]) for u in devices.json["units"]] == [("cpu", 1)]
    refused = by_unit(devices.json["refused"])
    assert set(refused) == {*BROKEN, "webgpu"}
    for unit, reason in REASONS.items():
        assert refused[unit]["reason"].startswith(reason)
        assert refused[unit]["provider"] == unit.title()
        assert f"set [units.{unit}] off in {file} to true" in refused[unit]["remedy"]
        assert f"refused {unit}, {unit.title()}: {reason}" in text
    assert refused["webgpu"]["reason"] == "switched off in the configuration"

    told = agent.command("doctor", "--json", "--config", str(file))
    assert told.code == 1
    checks = {check["what"]: check for check in told.json["checks"]}
    assert checks["agent"]["text"].startswith("version ")
    assert checks["unit cpu"]["verdict"] == "ok"
    assert {checks[f"unit {unit}"]["verdict"] for unit in BROKEN} == {"problem"}
    assert checks["unit webgpu"]["verdict"] == "refused"
    assert checks["state folder"]["text"].startswith(str(place.state))


@pytest.mark.long
@pytest.mark.parametrize("end", [RunningAgent.kill, *marked_long([RunningAgent.stop])])
def test_a_probe_that_hangs_does_not_outlive_its_agent(
    start: StartAgent, place: Place, end: Callable[[RunningAgent], object]
) -> None:
    agent = start(config=config(place.folder).replace("probe_s = 4", "probe_s = 60"))
    with agent.client() as client:
        client.load(convolving(place.folder / "net.onnx"))
    (hanging,) = wait_until(
        lambda: [
            child
            for child in agent.children("edge_agent.engine.probe")
            if "--skip" in child.cmdline()
        ],
        "the probe that follows the one that crashed",
    )
    end(agent)
    wait_until(lambda: has_ended(hanging), "the end of the probe")
