"""Files that are damaged and disks that are full: found, told, and made good."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_agent.client import Client
from edge_agent.errors import ModelQuarantined, StorageError
from tests.disks import small_disk
from tests.system.conftest import MakePlace, StartAgent
from tests.system.made_models import adding, image, weighty, x
from tests.system.running import Place, wait_until

MIB = 2**20


def damage(path: Path) -> None:
    """Change the bytes in the middle of a file and keep its size."""
    os.chmod(path, 0o600)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(b ^ 0xFF for b in content[middle : middle + 8])
    path.write_bytes(content)


def compiled(place: Place) -> list[Path]:
    """The graphs of the compiled subgraphs."""
    return _graphs(place, b'"kind":"compiled"')


def models(place: Place) -> list[Path]:
    """The graphs of the models."""
    return _graphs(place, b'"kind":"model"')


def _graphs(place: Place, word: bytes) -> list[Path]:
    manifests = (place.state / "pool").glob("*.json")
    return sorted(p.with_suffix(".onnx") for p in manifests if word in p.read_bytes())


@pytest.mark.long
def test_a_damaged_profile_is_told_and_measured_again(start: StartAgent, planned: Place) -> None:
    for profile in (planned.state / "cache" / "profiles").rglob("*.json"):
        damage(profile)
    with start().client() as client:
        assert client.load(planned.folder / "net.onnx", "again", wait=True).planning == "done"
        assert client.infer("again", image())["y"].shape == (1, 32, 28, 28)
    assert "damaged" in planned.log_text()
    assert "will be measured again" in planned.log_text()


@pytest.mark.long
def test_a_damaged_compiled_file_is_told_and_compiled_again_at_the_next_start(
    start: StartAgent, planned: Place
) -> None:
    before = compiled(planned)
    assert before
    for graph in before:
        damage(graph)
    with start().client() as client:
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)
        assert "it will be compiled again" in planned.log_text()
        assert client.wait("net", 30).planning == "done"
        assert client.wait("add", 30).planning == "done"
    assert compiled(planned)


@pytest.mark.long
def test_a_compiled_file_damaged_while_it_serves_costs_no_answer(
    start: StartAgent, planned: Place
) -> None:
    with start().client() as client:
        before = client.infer("net", image())["y"]
        for graph in compiled(planned):
            damage(graph)
        pid = client.model("net").worker_pid
        assert pid is not None
        psutil.Process(pid).kill()
        assert np.allclose(client.infer("net", image())["y"], before, rtol=1e-3, atol=1e-5)
        assert client.wait("net", 30).planning == "done"
    assert "could not be opened" in planned.log_text()


@pytest.mark.long
def test_a_damaged_plan_is_told_and_made_again_from_the_profile(
    start: StartAgent, planned: Place
) -> None:
    damage(planned.state / "plans" / "net.json")
    with start().client() as client:
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)
        assert client.wait("net", 30).planning == "done"
        assert client.plan("net").model == client.model("net").model
    assert "will be planned again" in planned.log_text()


@pytest.mark.long
def test_a_damaged_registry_entry_costs_one_model_and_is_told(
    start: StartAgent, planned: Place
) -> None:
    damage(planned.state / "registry" / "net.json")
    with start().client() as client:
        assert [m.name for m in client.models()] == ["add"]
        assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        assert "load the model again" in planned.log_text()
        client.load(planned.folder / "net.onnx")
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)


def test_damaged_counters_never_give_a_number_twice(start: StartAgent, planned: Place) -> None:
    damage(planned.state / "counters.json")
    with start().client() as client:
        assert client.status().incarnation > 1_000_000
        assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]


def test_a_damaged_model_in_the_store_costs_that_model_at_most_and_is_told(
    start: StartAgent, planned: Place
) -> None:
    for copy in (planned.state / "models").iterdir():
        shutil.rmtree(copy)  # from which it would be mended
    for graph in models(planned):
        if b"Conv" in graph.read_bytes():
            os.truncate(graph, 100)
    with start().client() as client:
        assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        # What was compiled from it is intact and serves.
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)
        assert client.replan("net", wait=True).planning == "failed"
        assert "load the model again from its source" in client.model("net").progress
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "graph"),
    [("emptied", "removed"), ("removed", "emptied"), ("removed", "without its manifest")],
)
def test_a_model_of_which_plan_and_graph_are_damaged_is_told_and_the_others_are_served(
    start: StartAgent, planned: Place, plan: str, graph: str
) -> None:
    for copy in (planned.state / "models").iterdir():
        shutil.rmtree(copy)  # from which it would be mended
    (path,) = (p for p in models(planned) if b"Conv" in p.read_bytes())
    for name, what in ((path, graph), (planned.state / "plans" / "net.json", plan)):
        if what == "emptied":
            os.chmod(name, 0o600)
            os.truncate(name, 0)
        else:
            gone = name if what == "removed" else name.with_suffix(".json")
            gone.unlink()
    with start().client() as client:
        assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        damaged = r"what is stored of it is damaged.*load it again"
        with pytest.raises(ModelQuarantined, match=damaged):
            client.infer("net", image())
        with pytest.raises(ModelQuarantined):
            client.replan("net")
        state = client.model("net")
        assert (state.state, state.planning) == ("quarantined", "failed")
        assert "what is stored of it is damaged" in state.progress
        assert client.load(planned.folder / "net.onnx", wait=True).planning == "done"
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)
    assert "Traceback" not in planned.log_text()


@pytest.mark.long
def test_a_model_that_is_out_of_service_can_be_unloaded(start: StartAgent, planned: Place) -> None:
    for path in (*models(planned), planned.state / "plans" / "net.json"):
        os.chmod(path, 0o600)
        os.truncate(path, 0)
    for copy in (planned.state / "models").iterdir():
        shutil.rmtree(copy)
    with start().client() as client:
        client.unload("net")
        assert [m.name for m in client.models()] == ["add"]


@pytest.mark.long
def test_damaged_tensors_are_what_clients_are_told(start: StartAgent, planned: Place) -> None:
    for blob in (planned.state / "pool" / "blobs").iterdir():
        os.chmod(blob, 0o600)
        os.truncate(blob, blob.stat().st_size // 2)
    for copy in (planned.state / "models").iterdir():
        shutil.rmtree(copy)
    with start().client() as client:
        with pytest.raises(ModelQuarantined, match=r"cannot be opened.*is damaged.*load") as caught:
            client.infer("net", image())
        assert "killed" not in str(caught.value)
        client.load(planned.folder / "net.onnx")
        assert client.infer("net", image())["y"].shape == (1, 32, 28, 28)


def free_bytes(folder: Path) -> int:
    """What may still be written there."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


@pytest.mark.long
def test_a_model_larger_than_the_disk_is_refused_and_leaves_nothing(
    start: StartAgent, elsewhere: MakePlace, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 8 * MIB) as disk:
        agent = start(at=elsewhere(disk))
        with agent.client() as client:
            client.load(adding(tmp_path / "small.onnx"), wait=True)
            wait_until(lambda: not any((disk / "models").iterdir()), "only the pool has it")
            before = _files(disk)
            free = free_bytes(disk)
            with pytest.raises(StorageError, match=r"want \d+; free some space there"):
                client.load(weighty(tmp_path / "large.onnx", 16 * MIB))
            assert _files(disk) == before
            assert free_bytes(disk) == free
            assert client.infer("small", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        agent.stop()


@pytest.mark.long
def test_a_disk_that_fills_up_at_any_step_of_a_load_is_told_and_recovered(
    start: StartAgent, elsewhere: MakePlace, tmp_path: Path
) -> None:
    path = weighty(tmp_path / "new.onnx", MIB, addend=3.0)
    with small_disk(tmp_path / "disk", 8 * MIB) as disk:
        agent = start(at=elsewhere(disk))
        with agent.client() as client:
            client.load(adding(tmp_path / "small.onnx"), wait=True)
            wait_until(lambda: not any((disk / "models").iterdir()), "only the pool has it")
            outcomes = {pages: _load_with_room(client, disk, path, pages) for pages in range(10)}
            assert "refused" in outcomes.values()
            assert "served" in outcomes.values()
            client.load(path, "new", wait=True)
            assert client.infer("new", x(0.0))["y"].tolist() == [[3.0, 4.0, 5.0]]
            client.unload("new")
            assert client.infer("small", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        agent.stop()


def _load_with_room(client: Client, disk: Path, path: Path, pages: int) -> str:
    """Load with room for the file itself and a few pages more; then make all room again."""
    before = _files(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(free_bytes(disk) - path.stat().st_size - (pages + 1) * 4096))
    refusal = _refusal_of_load(client, path)
    if refusal is None:
        state = client.wait("new", 30)
        assert client.infer("new", x(0.0))["y"].tolist() == [[3.0, 4.0, 5.0]]
        # Its plan may have found no room, and then says so.
        assert state.planning == "done" or "free some space" in state.progress
        client.unload("new")
    else:
        assert "free some space" in refusal
        assert [m.name for m in client.models()] == ["small"]
    filler.unlink()
    # A full disk keeps fewer compiled subgraphs, and a builder takes a moment to end.
    wait_until(lambda: set(_files(disk)) <= set(before), "nothing of it is left")
    return "refused" if refusal else "served"


def _refusal_of_load(client: Client, path: Path) -> str | None:
    try:
        client.load(path, "new")
    except StorageError as error:
        return str(error)
    return None


def _files(disk: Path) -> list[Path]:
    """All files but profiles, which stay when their model goes."""
    return sorted(p for p in disk.rglob("*") if p.is_file() and "profiles" not in p.parts)
