"""What happens to a model in the store, step by step, from its copy to its place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.admitting import admit
from edge_agent.builder.pooling import pooled
from edge_agent.config import Limits, Settings
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused, StorageError, WorkerLost
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import Admitted


def write(path: Path, *, location: str | None = None, node_name: str = "n", count: int = 3) -> Path:
    """y = x + w, float32[count], with w in the file `location` if there is one."""
    path.parent.mkdir(exist_ok=True)
    weights = numpy_helper.from_array(np.ones(count, np.float32), "w")
    if location is not None:
        (path.parent / location).write_bytes(weights.raw_data)
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=location)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in ("x", "y")]
    node = helper.make_node("Add", ["x", "w"], ["y"], name=node_name)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


class Admission:
    """Admits models, and notes what it was told and what was in the store then."""

    def __init__(self, state: Path) -> None:
        self.settings = Settings(socket=state / "s", state=state, cache=state / "cache")
        self.store = ModelStore(state)
        self.pool = Pool(state / "pool", max_compiled_bytes=0)
        self.staged: list[bytes] = []
        self.path: Path | None = None
        self.waits = 0
        self.reason_against: WorkerLost | None = None

    def on_staged(self, path: Path) -> None:
        self.path = path
        self.staged.append(path.read_bytes())
        assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]

    def wait(self) -> None:
        self.waits += 1
        assert self.store.ids() == ()
        assert self.path is None or self.path.exists()
        if self.reason_against is not None:
            raise self.reason_against

    def admit(self, path: Path) -> Admitted:
        return admit(path, self.settings, on_staged=self.on_staged, wait_until_movable=self.wait)

    def left(self) -> list[Path]:
        """What is in the store, of any kind."""
        parts = ("models", "staging", "pool/blobs", "pool/made", "pool/staging")
        return [p for part in parts for p in (self.settings.state / part).iterdir()]


@pytest.fixture
def admission(tmp_path: Path) -> Admission:
    return Admission(tmp_path / "state")


def test_a_model_without_external_data_may_be_opened_before_it_is_checked_and_moved(
    admission: Admission, tmp_path: Path
) -> None:
    source = write(tmp_path / "m.onnx")
    admitted = admission.admit(source)
    assert admission.staged == [source.read_bytes()]
    assert admission.waits == 1
    assert admission.path is not None
    assert not admission.path.exists()
    assert Path(admitted.path) == admission.store.path(admitted.model)
    assert [spec.name for spec in (*admitted.inputs, *admitted.outputs)] == ["x", "y"]
    admission.store.verify(admitted.model)


def test_a_model_with_external_data_goes_into_the_pool_and_is_not_opened_before(
    admission: Admission, tmp_path: Path
) -> None:
    admitted = admission.admit(write(tmp_path / "m.onnx", location="w.bin", count=2000))
    assert admission.staged == []
    assert admission.store.ids() == ()
    path = Path(admitted.path)
    assert path.parent == admission.settings.state / "pool"
    assert path.stem == admitted.model
    (blob,) = (path.parent / "blobs").iterdir()
    assert blob.read_bytes() == np.ones(2000, np.float32).tobytes()
    session = Session.open(path, threads=1, level=OptimisationLevel.ALL, plain=True)
    assert session.run({"x": np.zeros(2000, np.float32)}, ["y"])["y"].sum() == 2000


def test_the_id_of_a_model_with_external_data_is_that_of_all_its_bytes(
    admission: Admission, tmp_path: Path
) -> None:
    path = write(tmp_path / "a" / "m.onnx", location="w.bin", count=2000)
    first = admission.admit(path)
    copy = write(tmp_path / "b" / "other.onnx", location="w.bin", count=2000)
    assert admission.admit(copy) == first
    (tmp_path / "b" / "w.bin").write_bytes(np.zeros(2000, np.float32).tobytes())
    assert admission.admit(copy).model != first.model


@pytest.mark.parametrize("fault", ["short", "linked", "missing"])
def test_external_data_that_are_not_as_they_should_be_leave_nothing(
    admission: Admission, tmp_path: Path, fault: str
) -> None:
    path = write(tmp_path / "m.onnx", location="w.bin", count=2000)
    weights = tmp_path / "w.bin"
    if fault == "short":
        os.truncate(weights, 7999)
    else:
        weights.rename(tmp_path / "elsewhere.bin")
    if fault == "linked":
        weights.symlink_to("elsewhere.bin")
    with pytest.raises(ModelRefused, match=r'm\.onnx: .*"w\.bin"'):
        admission.admit(path)
    assert admission.left() == []


def test_too_many_external_data_are_refused_with_both_sizes(tmp_path: Path) -> None:
    admission = Admission(tmp_path / "state")
    admission.settings = replace(admission.settings, limits=Limits(max_external_bytes=7999))
    path = write(tmp_path / "m.onnx", location="w.bin", count=2000)
    with pytest.raises(ModelRefused, match="got 8000 bytes of external tensors, want at most 7999"):
        admission.admit(path)
    assert admission.left() == []


def test_a_model_becomes_an_entry_of_the_pool_and_is_found_there_when_it_is_loaded_again(
    admission: Admission, tmp_path: Path
) -> None:
    source = write(tmp_path / "m.onnx", count=2000)
    admitted = admission.admit(source)
    with pooled(admitted.model, admission.store, admission.pool) as entry:
        assert entry.graph.stat().st_size < 500
    admission.store.collect(set())
    again = admission.admit(source)
    assert again.model == admitted.model
    assert Path(again.path) == entry.graph
    assert admission.store.ids() == ()


def test_a_model_that_is_damaged_in_the_pool_is_mended_by_loading_it_again(
    admission: Admission, tmp_path: Path
) -> None:
    source = write(tmp_path / "m.onnx", count=2000)
    model = admission.admit(source).model
    pooled(model, admission.store, admission.pool).release()
    admission.store.collect(set())
    (blob,) = (admission.pool.folder / "blobs").iterdir()
    blob.write_bytes(bytes(8000))
    with pytest.raises(StorageError, match="load the model again from its source"):
        pooled(model, admission.store, admission.pool)
    assert Path(admission.admit(source).path) == admission.store.path(model)
    with pooled(model, admission.store, admission.pool):
        assert blob.read_bytes() == np.ones(2000, np.float32).tobytes()


def test_a_model_of_the_pool_is_described_without_being_stored_again(
    admission: Admission, tmp_path: Path
) -> None:
    admitted = admission.admit(write(tmp_path / "m.onnx", location="w.bin", count=2000))
    assert admission.admit(Path(admitted.path)) == admitted


def test_a_model_that_is_nowhere_is_told(admission: Admission) -> None:
    with pytest.raises(StorageError, match="is missing; load the model again from its source"):
        pooled(ModelId("0" * 64), admission.store, admission.pool)


def test_a_model_that_only_speaks_of_a_location_is_admitted_all_the_same(
    admission: Admission, tmp_path: Path
) -> None:
    admitted = admission.admit(write(tmp_path / "m.onnx", node_name="relocations"))
    assert admission.staged == []
    admission.store.verify(admitted.model)


@pytest.mark.parametrize("location", ["../m.bin", "../../etc/hostname"])
def test_external_data_outside_reach_nobody_before_they_are_refused(
    admission: Admission, tmp_path: Path, location: str
) -> None:
    source = write(tmp_path / "inner" / "m.onnx")
    model = onnx.load(source)
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value=location)
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ModelRefused, match="want a relative path"):
        admission.admit(source)
    assert (admission.staged, admission.waits) == ([], 0)
    assert admission.left() == []


@pytest.mark.parametrize("content", [b"no model", b""])
def test_a_refused_model_is_not_waited_for_and_leaves_nothing(
    admission: Admission, tmp_path: Path, content: bytes
) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(content)
    with pytest.raises(ModelRefused, match=r"^m\.onnx: "):
        admission.admit(source)
    assert (admission.staged, admission.waits) == ([content], 0)
    assert admission.left() == []


def test_a_model_that_cannot_be_opened_does_not_get_into_the_store(
    admission: Admission, tmp_path: Path
) -> None:
    admission.reason_against = WorkerLost("it died")
    with pytest.raises(WorkerLost):
        admission.admit(write(tmp_path / "m.onnx"))
    assert admission.left() == []
