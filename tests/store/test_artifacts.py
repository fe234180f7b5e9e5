import os
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.devices import Layout, UnitId
from edge_agent.store.artifacts import ArtifactKey, ArtifactStore
from edge_agent.store.folder import StagingFolder
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName

KEY = ArtifactKey(
    model=ModelId("a" * 64),
    nodes=(3, 7),
    unit=UnitId("cpu"),
    layout=Layout.BLOCKED,
    level="all",
    runtime_version="1.32.0",
    runtime_build="onnxruntime",
    processor="x86 avx2",
    shapes=((TensorName("x"), (1, 3)),),
)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def compiled_into(workspace: StagingFolder) -> Path:
    (workspace.path / "graph.onnx").write_bytes(b"graph")
    (workspace.path / "weights.bin").write_bytes(b"weights")
    return workspace.path


def put(store: ArtifactStore, key: ArtifactKey = KEY) -> Path:
    with store.workspace() as workspace:
        return store.put(key, compiled_into(workspace))


def change_in_place(path: Path) -> None:
    """Another content of the same size and time, as a failing disk would give."""
    found = path.stat()
    path.write_bytes(b"?" * found.st_size)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_what_was_put_is_found_by_another_process(store: ArtifactStore, tmp_path: Path) -> None:
    folder = put(store)
    assert folder == tmp_path / "compiled" / KEY.digest()
    assert ArtifactStore(tmp_path).get(KEY) == folder
    assert store.get(KEY, thorough=True) == folder
    assert (folder / "graph.onnx").read_bytes() == b"graph"
    assert list((tmp_path / "staging").iterdir()) == []


def test_every_part_of_the_key_counts(store: ArtifactStore) -> None:
    put(store)
    for other in (
        replace(KEY, model=ModelId("b" * 64)),
        replace(KEY, nodes=(3, 8)),
        replace(KEY, unit=UnitId("npu0")),
        replace(KEY, layout=Layout.NCHW),
        replace(KEY, level="extended"),
        replace(KEY, runtime_version="1.31.0"),
        replace(KEY, runtime_build="onnxruntime-gpu"),
        replace(KEY, processor="x86 avx512"),
        replace(KEY, shapes=()),
    ):
        assert store.get(other) is None
    assert store.get(KEY) is not None


def test_a_second_one_under_the_same_key_is_not_needed(
    store: ArtifactStore, tmp_path: Path
) -> None:
    folder = put(store)
    inode = folder.stat().st_ino
    assert put(store) == folder
    assert folder.stat().st_ino == inode
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_damaged_one_is_replaced_by_a_second_one(store: ArtifactStore) -> None:
    change_in_place(put(store) / "graph.onnx")
    folder = put(store)
    assert store.get(KEY) == folder
    assert (folder / "graph.onnx").read_bytes() == b"graph"


@pytest.mark.parametrize("name", ["graph.onnx", "weights.bin", "key.json"])
@pytest.mark.parametrize("damage", ["cut", "removed", "rewritten"])
def test_damage_is_removed_and_logged(
    store: ArtifactStore, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    folder = put(store)
    path = folder / name
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + (b"?" if damage == "rewritten" else b""))
    assert store.get(KEY) is None
    assert not folder.exists()
    assert "removed, it will be compiled again" in caplog.text


def test_weights_changed_behind_size_and_time_are_found_when_asked_for(
    store: ArtifactStore,
) -> None:
    folder = put(store)
    change_in_place(folder / "weights.bin")
    assert store.get(KEY) == folder
    assert store.get(KEY, thorough=True) is None


def test_a_copy_with_other_times_is_good(store: ArtifactStore) -> None:
    folder = put(store)
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    assert store.get(KEY) == folder


def test_the_artefact_of_another_key_is_not_taken(
    store: ArtifactStore, caplog: pytest.LogCaptureFixture
) -> None:
    folder = put(store, replace(KEY, nodes=(0, 3)))
    folder.rename(folder.with_name(KEY.digest()))
    assert store.get(KEY) is None
    assert "was compiled from something else" in caplog.text


def test_the_store_holds_intact_graphs_of_its_own_only(
    store: ArtifactStore, tmp_path: Path
) -> None:
    graph = put(store) / "graph.onnx"
    assert store.holds(graph)
    assert not store.holds(graph.with_name("weights.bin"))
    assert not store.holds(tmp_path / "compiled" / "0" / "graph.onnx")
    assert not store.holds(tmp_path / "graph.onnx")
    change_in_place(graph)
    assert not store.holds(graph)
    assert not graph.exists()


def test_an_artefact_without_weights_is_good(store: ArtifactStore) -> None:
    with store.workspace() as workspace:
        (workspace.path / "graph.onnx").write_bytes(b"graph")
        folder = store.put(KEY, workspace.path)
    assert store.get(KEY) == folder


def test_artefacts_of_models_that_are_gone_and_damaged_ones_are_collected(
    store: ArtifactStore, tmp_path: Path
) -> None:
    kept = put(store, replace(KEY, model=ModelId("b" * 64)))
    gone = put(store)
    (tmp_path / "compiled" / "0").mkdir()
    assert store.collect({ModelId("b" * 64)}) == tuple(sorted((gone, tmp_path / "compiled" / "0")))
    assert list((tmp_path / "compiled").iterdir()) == [kept]


def test_a_workspace_that_was_not_put_leaves_nothing(store: ArtifactStore, tmp_path: Path) -> None:
    with store.workspace() as workspace:
        compiled_into(workspace)
        assert store.sweep() == ()
    (tmp_path / "staging" / "left").mkdir()
    assert store.sweep() == (tmp_path / "staging" / "left",)
    assert list((tmp_path / "staging").iterdir()) == []
