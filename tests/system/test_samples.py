"""Real inputs of the user, from the folder to the plan, over restarts and damage."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.client import Client
from edge_agent.errors import UsageError
from edge_agent.wire.parts import ModelState
from tests.system.conftest import StartAgent
from tests.system.made_models import adding, model, saved, value, x
from tests.system.running import Place, RunningAgent


@pytest.fixture
def agent(start: StartAgent) -> RunningAgent:
    return start()


@pytest.fixture
def client(agent: RunningAgent) -> Iterator[Client]:
    with agent.client() as client:
        yield client


def gathering(path: Path) -> Path:
    """y[N,3] = w[i], of eight rows; it fails where an index is below 6, as made-up ones are."""
    weights = np.arange(24, dtype=np.float32).reshape(8, 3)
    nodes = [
        helper.make_node("Sub", ["i", "six"], ["at"]),
        helper.make_node("Clip", ["at", "least"], ["low"]),
        helper.make_node("Gather", ["w", "i"], ["row"]),
        # 0, or what is missing to 6: before the only row.
        helper.make_node("Sub", ["at", "low"], ["below"]),
        helper.make_node("Gather", ["one", "below"], ["checked"]),
        helper.make_node("Add", ["row", "checked"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.zeros((1, 3), np.float32), "one"),
        numpy_helper.from_array(np.array(6, np.int64), "six"),
        numpy_helper.from_array(np.array(0, np.int64), "least"),
    ]
    graph = helper.make_graph(
        nodes,
        "gathering",
        [value("i", ["N"], TensorProto.INT64)],
        [value("y", ["N", 3])],
        constants,
    )
    return saved(model(graph), path)


def samples(folder: Path, *arrays: dict[str, object], name: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    for number, found in enumerate(arrays):
        np.savez(folder / f"{name}{number}.npz", **found)  # type: ignore[arg-type]
    return folder


def kept_samples(place: Place) -> list[str]:
    return [p.name for p in (place.state / "samples").iterdir() if p.name != "staging"]


def shapes(state: ModelState) -> dict[str, tuple[int, ...]]:
    return {str(name): shape for name, shape in state.shapes}


@pytest.mark.long
def test_the_plan_is_made_for_the_shapes_of_the_first_sample(
    client: Client, tmp_path: Path
) -> None:
    folder = samples(tmp_path / "s", x(rows=5), x(rows=2), x(rows=5))
    state = client.load(adding(tmp_path / "m.onnx"), samples=folder, wait=True)
    assert state.planning == "done", state.progress
    assert shapes(state) == {"x": (5, 3)}
    assert client.plan("m").plain_s is not None


@pytest.mark.long
def test_shapes_that_are_given_go_before_those_of_samples(client: Client, tmp_path: Path) -> None:
    folder = samples(tmp_path / "s", x(rows=5))
    path = adding(tmp_path / "m.onnx")
    state = client.load(path, samples=folder, shapes={"x": (7, 3)}, wait=True)
    assert shapes(state) == {"x": (7, 3)}


@pytest.mark.long
def test_a_model_that_runs_on_nothing_made_up_is_planned_with_real_inputs(
    client: Client, tmp_path: Path
) -> None:
    path = gathering(tmp_path / "m.onnx")
    assert client.load(path, wait=True).planning == "done"
    assert "it does not run on made-up inputs" in client.plan("m").reason
    assert "--samples DIR" in client.plan("m").reason
    folder = samples(tmp_path / "s", {"i": np.array([6, 7])})
    state = client.load(path, samples=folder, wait=True)
    assert state.planning == "done", state.progress
    assert client.plan("m").plain_s is not None
    assert client.infer("m", {"i": np.array([7])})["y"].tolist() == [[21.0, 22.0, 23.0]]


@pytest.mark.long
def test_a_sample_that_does_not_run_fails_the_plan_by_name_and_the_model_serves(
    client: Client, tmp_path: Path
) -> None:
    folder = samples(tmp_path / "s", {"i": np.array([6, 7])}, {"i": np.array([6, 1])})
    state = client.load(gathering(tmp_path / "m.onnx"), samples=folder, wait=True)
    assert state.planning == "failed"
    assert "it does not run on the sample 1.npz" in state.progress
    assert client.infer("m", {"i": np.array([6])})["y"].tolist() == [[18.0, 19.0, 20.0]]


@pytest.mark.long
def test_test_data_of_onnx_are_taken(client: Client, tmp_path: Path) -> None:
    inside = tmp_path / "s" / "test_data_set_0"
    inside.mkdir(parents=True)
    tensor = numpy_helper.from_array(np.array([7, 6, 6]))
    (inside / "input_0.pb").write_bytes(tensor.SerializeToString())
    state = client.load(gathering(tmp_path / "m.onnx"), samples=tmp_path / "s", wait=True)
    assert shapes(state) == {"i": (3,)}
    assert client.plan("m").plain_s is not None


def test_a_wrong_sample_refuses_the_load_and_nothing_is_kept(
    agent: RunningAgent, client: Client, tmp_path: Path
) -> None:
    folder = samples(tmp_path / "s", x(), {"x": np.ones((1, 4), np.float32)})
    with pytest.raises(
        UsageError, match=r's/1\.npz: array "x": got float32\[1,4\], want float32\[N,3\]'
    ):
        client.load(adding(tmp_path / "m.onnx"), samples=folder)
    assert client.models() == ()
    assert agent.place.stored() == []
    assert kept_samples(agent.place) == []


@pytest.mark.long
def test_a_sample_beyond_the_limit_of_requests_is_refused(
    start: StartAgent, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    np.savez_compressed(folder / "bomb.npz", x=np.zeros((1 << 20, 3), np.float32))
    assert (folder / "bomb.npz").stat().st_size < 100_000
    limited = "[limits]\nmax_request_bytes = 1000000\n"
    with (
        start(config=limited).client() as client,
        pytest.raises(UsageError, match=r"bomb\.npz: array \"x\": got 12582912 bytes, want at mos"),
    ):
        client.load(adding(tmp_path / "m.onnx"), samples=folder)


@pytest.mark.long
def test_the_command_takes_the_folder_and_says_what_is_wrong_with_it(
    agent: RunningAgent, tmp_path: Path
) -> None:
    path = str(adding(tmp_path / "m.onnx"))
    ended = agent.command("load", path, "--samples", str(tmp_path / "nowhere"))
    assert ended.code == UsageError.exit_code
    assert f"samples {tmp_path / 'nowhere'}: cannot be read: No such file" in ended.err
    folder = samples(tmp_path / "s", x(rows=4))
    ended = agent.command("load", path, "--samples", str(folder), "--wait", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["shapes"] == [["x", [4, 3]]]


@pytest.mark.long
def test_the_samples_are_kept_while_the_model_is_and_needed_from_the_folder_no_more(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    path = gathering(tmp_path / "m.onnx")
    folder = samples(tmp_path / "s", {"i": np.array([6, 7, 6])})
    agent = start()
    with agent.client() as client:
        client.load(path, samples=folder, allow=["fp16=0.25"], wait=True)
    shutil.rmtree(folder)
    agent.stop()
    (sample_set,) = kept_samples(place)
    record = (place.state / "registry" / "m.json").read_bytes().split(b"\n", 1)[1]
    assert json.loads(record)["samples"] == sample_set
    assert json.loads(record)["half_bound"] == 0.25
    agent = start()
    with agent.client() as client:
        state = client.replan("m", wait=True)
        assert state.planning == "done", state.progress
        assert shapes(state) == {"i": (3,)}
        client.load(path, "other")
        client.unload("m")
        assert kept_samples(place) == []


@pytest.mark.long
def test_a_model_that_is_loaded_again_without_samples_lets_them_go(
    agent: RunningAgent, client: Client, tmp_path: Path
) -> None:
    path = adding(tmp_path / "m.onnx")
    client.load(path, samples=samples(tmp_path / "s", x(rows=2)), wait=True)
    assert len(kept_samples(agent.place)) == 1
    client.load(path, wait=True)
    assert kept_samples(agent.place) == []


@pytest.mark.long
def test_damaged_samples_are_told_and_the_plan_is_made_without(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    folder = samples(tmp_path / "s", x(rows=6))
    agent = start()
    with agent.client() as client:
        client.load(adding(tmp_path / "m.onnx"), samples=folder, wait=True)
        (stored,) = (place.state / "samples" / kept_samples(place)[0]).iterdir()
        os.truncate(stored, stored.stat().st_size - 4)
        state = client.replan("m", wait=True)
        assert state.planning == "done", state.progress
        assert shapes(state) != {"x": (6, 3)}
        assert "the plan is made without the samples: load the model again" in place.log_text()
        state = client.load(adding(tmp_path / "m.onnx"), samples=folder, wait=True)
        assert shapes(state) == {"x": (6, 3)}


@pytest.mark.long
def test_what_is_measured_with_other_samples_is_measured_anew(
    client: Client, agent: RunningAgent, tmp_path: Path
) -> None:
    path = adding(tmp_path / "m.onnx")
    profiles = agent.place.state / "cache" / "profiles"

    def measured() -> int:
        return len(list(profiles.rglob("*.json")))

    client.load(path, samples=samples(tmp_path / "a", x(rows=3)), wait=True)
    once = measured()
    client.load(path, samples=samples(tmp_path / "a"), wait=True)
    assert measured() == once
    client.load(path, samples=samples(tmp_path / "b", x(1.0, rows=3)), wait=True)
    assert measured() > once


@pytest.mark.long
def test_a_model_given_an_input_with_a_default_is_measured_with_it(
    client: Client, tmp_path: Path
) -> None:
    made = onnx.load(adding(tmp_path / "m.onnx"))
    made.graph.input.append(value("w", [3]))
    path = saved(made, tmp_path / "m.onnx")
    given = {**x(rows=2), "w": np.float32([5, 6, 7])}
    state = client.load(path, samples=samples(tmp_path / "s", given), wait=True)
    assert state.planning == "done", state.progress
    assert shapes(state)["x"] == (2, 3)
    assert client.plan("m").plain_s is not None


@pytest.mark.long
def test_a_plan_for_other_shapes_uses_the_samples_that_have_them(
    client: Client, tmp_path: Path
) -> None:
    folder = samples(tmp_path / "s", {"i": np.array([6, 7])}, {"i": np.array([6, 7, 7, 6])})
    client.load(gathering(tmp_path / "m.onnx"), samples=folder, wait=True)
    four = client.plan("m", {"i": (4,)})
    assert four.plain_s is not None
    three = client.plan("m", {"i": (3,)})
    assert three.plain_s is None
    assert "does not run on made-up inputs" in three.reason
