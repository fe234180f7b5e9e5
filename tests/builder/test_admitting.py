"""What happens to a model in the store, step by step, from its copy to its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.admitting import admit
from edge_agent.config import Settings
from edge_agent.errors import ModelRefused, WorkerLost
from edge_agent.store.models import ModelStore
from edge_agent.wire.messages import Admitted


def write(path: Path, *, location: str | None = None, node_name: str = "n") -> Path:
    """y = x + w, float32[3], with w in the file `location` if there is one."""
    weights = numpy_helper.from_array(np.ones(3, np.float32), "w")
    if location is not None:
        (path.parent / location).write_bytes(weights.raw_data)
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=location)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    node = helper.make_node("Add", ["x", "w"], ["y"], name=node_name)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(made.SerializeToString())
    return path


class Admission:
    """Admits models, and notes what it was told and what was in the store then."""

    def __init__(self, state: Path) -> None:
        self.settings = Settings(socket=state / "s", state=state, cache=state / "cache")
        self.store = ModelStore(state)
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
        return [p for part in ("models", "staging") for p in (self.settings.state / part).iterdir()]


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


def test_a_model_with_external_data_may_not_be_opened_before_it_is_in_the_store(
    admission: Admission, tmp_path: Path
) -> None:
    admitted = admission.admit(write(tmp_path / "m.onnx", location="w.bin"))
    assert admission.staged == []
    assert (Path(admitted.path).parent / "w.bin").stat().st_size == 12


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
