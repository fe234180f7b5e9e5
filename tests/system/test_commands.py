"""The commands from the outside: what they print, where, and with which code they end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_agent.cli.main import main
from edge_agent.errors import BadRequest, InputMismatch, UnknownModel, UsageError
from tests.system.conftest import StartAgent
from tests.system.made_models import convolving, pair, pairing, x
from tests.system.running import Outcome, Place, RunningAgent


@pytest.fixture(scope="module")
def agent(shared_place: Place) -> Iterator[RunningAgent]:
    """Serves `convolving` as "net" and `pairing` as "pair", loaded by command."""
    running = RunningAgent(shared_place, (), "[planning]\nprofile_s = 0.2\nverify_s = 0.2\n")
    try:
        loaded = running.command(
            "load", str(convolving(shared_place.folder / "net.onnx")), "--wait"
        )
        assert loaded.code == 0, loaded.err
        assert loaded.out.startswith('model "net" serving: ')
        assert "comparing the best plans" in loaded.err
        state = running.command(
            "load", str(pairing(shared_place.folder / "p.onnx")), "--name", "pair", "--json"
        ).json
        assert (state["name"], state["state"], state["target"]) == ("pair", "serving", "latency")
        with running.client() as client:
            client.wait("pair", 60)
        yield running
    finally:
        running.end()


def succeeded(ended: Outcome) -> Outcome:
    """It, if it ended well and had nothing to say on standard error but progress."""
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    return ended


def test_models_lists_names_states_and_interfaces(agent: RunningAgent) -> None:
    text = succeeded(agent.command("models")).out
    for part in ("net", "pair", "serving", "input x: float32[1,32,28,28]", "float64[2]"):
        assert part in text
    states = succeeded(agent.command("models", "--json")).json
    assert [(s["name"], s["planning"]) for s in states] == [("net", "done"), ("pair", "done")]


def test_status_tells_of_the_agent_and_its_models(agent: RunningAgent) -> None:
    text = succeeded(agent.command("status")).out
    assert f"pid {agent.pid}" in text
    assert str(agent.place.socket) in text
    status = succeeded(agent.command("status", "--json")).json
    assert status["pid"] == agent.pid
    assert status["in_flight"] == 0
    assert 0 < status["memory_bytes"] < 200 * 2**20
    assert {s["name"]: s["worker_pid"] > 0 for s in status["models"]} == {"net": True, "pair": True}


def test_devices_names_the_units_with_providers_and_versions(agent: RunningAgent) -> None:
    text = succeeded(agent.command("devices")).out
    assert "CPUExecutionProvider" in text
    device = succeeded(agent.command("devices", "--json")).json
    assert device["units"][0]["id"] == "cpu"
    assert device["units"][0]["provider_version"] == device["runtime_version"]
    assert set(device["units"][0]["layouts"]) == {"NCHW", "blocked", "NHWC"}
    for refused in device["refused"]:
        assert refused["reason"]
        assert refused["remedy"]


def test_a_plan_is_explained_subgraph_by_subgraph(agent: RunningAgent) -> None:
    short = succeeded(agent.command("plan", "net")).out
    assert short.startswith('model "net": ')
    plan = succeeded(agent.command("plan", "net", "--json")).json
    text = succeeded(agent.command("plan", "net", "--explain")).out
    assert plan["reason"]
    assert plan["plain_s"] > 0
    assert plan["subgraphs"]
    for explained in plan["subgraphs"]:
        chosen = explained["subgraph"]["configuration"]
        assert (chosen["unit"], chosen["threads"] >= 1) == ("cpu", True)
        assert explained["operations"] > 0
        assert explained["bytes_moved"] > 0
        assert explained["score"]["score"] > 0
        assert chosen["layout"] in text
    assert plan["subgraphs"][0]["subgraph"]["nodes"][0] == 0
    assert plan["subgraphs"][-1]["subgraph"]["nodes"][1] == 8
    assert "Conv" in text
    for rejected in plan["rejections"]:
        assert rejected["reason"] in text
    assert "plain ONNX Runtime" in text


def test_infer_reads_arrays_and_writes_all_outputs(agent: RunningAgent, tmp_path: Path) -> None:
    options = []
    for name, array in pair().items():
        np.save(tmp_path / f"{name}.npy", array)
        options += ["--input", f"{name}={tmp_path / name}.npy"]
    written = tmp_path / "out.npz"
    ended = succeeded(agent.command("infer", "pair", *options, "--output", str(written)))
    assert "s: float32[2, 3]" in ended.out
    with np.load(written) as outputs:
        assert sorted(outputs) == ["d", "p", "s"]
        assert (outputs["s"] == 5).all()
        assert outputs["d"].tolist() == [2.0, 4.0]
    only = succeeded(agent.command("infer", "pair", *options, "--outputs", "p", "--json")).json
    assert only["outputs"] == {"p": {"dtype": "float32", "shape": [2, 3], "first": [4.0] * 6}}


def test_infer_makes_up_inputs_and_repeats(agent: RunningAgent) -> None:
    shapes = ("--shape", "a=4x3", "--shape", "b=4x3")
    ended = succeeded(
        agent.command("infer", "pair", "--random", *shapes, "--repeat", "3", "--json")
    )
    assert ended.json["runs"] == 3
    assert ended.json["median_s"] > 0
    assert ended.json["outputs"]["s"]["shape"] == [4, 3]
    again = agent.command("infer", "net", "--random", "--json").json
    assert again["outputs"] == agent.command("infer", "net", "--random", "--json").json["outputs"]


@pytest.mark.long
@pytest.mark.usefixtures("planned")
def test_a_model_is_replanned_and_unloaded_by_command(start: StartAgent) -> None:
    agent = start()
    replanned = succeeded(agent.command("replan", "add", "--json")).json
    assert (replanned["name"], replanned["state"]) == ("add", "serving")
    unloaded = succeeded(agent.command("unload", "net"))
    assert unloaded.out == 'model "net" is unloaded\n'
    assert [s["name"] for s in agent.command("models", "--json").json] == ["add"]
    assert agent.command("unload", "add", "--json").json == {"unloaded": "add"}
    assert "no model is loaded" in agent.command("models").out


MISTAKES: dict[str, tuple[tuple[str, ...], type[BadRequest], str]] = {
    "an unknown model": (("infer", "nobody", "--random"), UnknownModel, '"nobody" is not loaded'),
    "no input": (("infer", "pair"), InputMismatch, 'input "a" is missing: want float32[N,3]'),
    "an input file that is not there": (
        ("infer", "pair", "--input", "a=/nowhere/a.npy"),
        UsageError,
        "cannot read /nowhere/a.npy: No such file or directory",
    ),
    "an input file that is no array": (
        ("infer", "pair", "--input", f"a={__file__}"),
        UsageError,
        "is no array in .npy format",
    ),
    "a shape that is no shape": (
        ("infer", "pair", "--random", "--shape", "a=wide"),
        UsageError,
        "want INPUT=SIZExSIZE",
    ),
    "no threads": (("load", "m.onnx", "--threads", "0"), UsageError, "--threads: got 0"),
    "the plan of an unknown model": (("plan", "nobody"), UnknownModel, '"nobody" is not loaded'),
    "a replan of an unknown model": (("replan", "nobody"), UnknownModel, "loaded: net, pair"),
    "a config file that is not there": (
        ("models", "--config", "/nowhere/config.toml"),
        UsageError,
        "/nowhere/config.toml: no such config file",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_gives_one_line_and_the_code_of_its_error(
    case: str, agent: RunningAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, error, message = MISTAKES[case]
    assert main([*arguments, "--socket", str(agent.place.socket)]) == error.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"edge-agent {arguments[0]}: ")
    assert message in err


def test_a_wrong_option_is_told_with_the_usage(agent: RunningAgent) -> None:
    ended = agent.command("load")
    assert ended.code == 2
    assert "usage: edge-agent load" in ended.err


def test_the_client_answers_what_the_command_printed(agent: RunningAgent) -> None:
    with agent.client() as client:
        assert client.infer("pair", pair())["p"].tolist() == [[4.0] * 3] * 2
        with pytest.raises(InputMismatch):
            client.infer("pair", x())
