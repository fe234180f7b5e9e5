"""Weights on the disk of a running agent: once, as long as somebody needs them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from edge_agent.client import Client
from tests.system.conftest import StartAgent
from tests.system.made_models import convolving, image, with_external_data, x
from tests.system.running import Place, wait_until


def blobs(place: Place) -> dict[str, int]:
    """The stored tensors and their sizes, without what is being written."""
    folder = place.state / "pool" / "blobs"
    return {p.name: p.stat().st_size for p in folder.iterdir() if not p.name.startswith(".")}


def graphs(place: Place) -> set[str]:
    """The entries of the pool."""
    return {p.stem for p in (place.state / "pool").glob("*.json")}


def settled(place: Place) -> None:
    """Wait until the copy that was admitted has gone from beside the pool."""
    wait_until(lambda: not any((place.state / "models").iterdir()), "only the pool has it")


def renamed(path: Path, target: Path) -> Path:
    """The same model with another doc string, which makes it another file."""
    model = onnx.load(path)
    model.doc_string = "another"
    onnx.save(model, target)
    return target


def planned(client: Client, path: Path, name: str) -> None:
    assert client.load(path, name, wait=True).planning == "done"


@pytest.mark.long
def test_a_model_with_the_same_weights_adds_no_weights_and_nothing_compiled(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    path = convolving(tmp_path / "net.onnx")
    with start().client() as client:
        planned(client, path, "net")
        settled(place)
        before, entries = blobs(place), graphs(place)
        assert sum(before.values()) > 0
        planned(client, renamed(path, tmp_path / "twin.onnx"), "twin")
        settled(place)
        assert blobs(place) == before
        model = client.model("twin").model
        assert graphs(place) == entries | {model}
        client.unload("net")
        assert client.infer("twin", image())["y"].shape == (1, 32, 28, 28)
        assert blobs(place) == before
        client.unload("twin")
        wait_until(lambda: place.stored() == [], "all is gone")
        assert client.status().model_disk_bytes == 0


@pytest.mark.long
def test_planning_again_and_another_division_compile_only_what_is_new(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    path = convolving(tmp_path / "net.onnx")
    # Long enough that parts are measured too, also on a busy machine.
    with start(config="[planning]\nprofile_s = 3.0\nverify_s = 0.1\n").client() as client:
        planned(client, path, "net")
        entries, before = graphs(place), blobs(place)
        assert client.replan("net", wait=True).planning == "done"
        assert graphs(place) >= entries
        client.load(path, "net", subgraphs=2, wait=True)
        assert client.plan("net").subgraphs[0].subgraph.segments.start == 0
        assert set(blobs(place)) >= set(before)
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)
        client.unload("net")
        wait_until(lambda: place.stored() == [], "all is gone")


@pytest.mark.long
def test_a_restarted_agent_serves_from_the_pool(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    agent = start()
    with agent.client() as client:
        planned(client, convolving(tmp_path / "net.onnx"), "net")
        want = client.infer("net", image())["y"]
        settled(place)
    agent.stop()
    entries = graphs(place)
    with start().client() as client:
        np.testing.assert_allclose(client.infer("net", image())["y"], want, rtol=1e-3, atol=1e-5)
        assert graphs(place) == entries
        pid = client.model("net").worker_pid
        assert pid is not None
        mapped = {Path(m.path).name for m in psutil.Process(pid).memory_maps()}
        assert mapped & set(blobs(place))
        assert client.status().model_disk_bytes > 0


@pytest.mark.long
def test_an_agent_that_lost_its_plans_serves_the_model_of_the_pool(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    agent = start()
    with agent.client() as client:
        client.load(with_external_data(tmp_path / "m.onnx", "w.bin", write=True), wait=True)
    agent.stop()
    shutil.rmtree(place.state / "plans")
    with start().client() as client:
        assert client.infer("m", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        assert client.wait("m", 30).planning == "done"
        client.unload("m")
        wait_until(lambda: place.stored() == [], "all is gone")


@pytest.mark.long
def test_a_budget_of_nothing_keeps_what_serves_and_no_more(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    config = "[limits]\nmax_compiled_bytes = 1\n[planning]\nprofile_s = 0.1\nverify_s = 0.1\n"
    with start(config=config).client() as client:
        planned(client, convolving(tmp_path / "net.onnx"), "net")
        model = client.model("net").model
        wait_until(lambda: len(graphs(place)) <= 2, "what lost is evicted")
        assert model in graphs(place)
        pid = client.model("net").worker_pid
        assert pid is not None
        psutil.Process(pid).kill()
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)
        assert client.status().max_compiled_disk_bytes == 1
