"""Constants leave a graph and come back; graphs with equal fingerprints compute the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.errors import ModelRefused
from edge_agent.model.external import ExternalPlace, StoredChunks, is_external
from edge_agent.model.scopes import model_tensors
from edge_agent.model.values import data_type_of, raw_bytes, tensor_bytes
from edge_agent.model.weights import OUTSIDE_BYTES, adopt_compiled, fingerprint, move_out
from edge_agent.tensors import ElementType
from tests.model.made_models import body, held, model, node, run, value

WEIGHT = np.arange(2000, dtype=np.float32)


class FolderPlace:
    """Blobs in a folder, with every form behind its tensor at the next multiple of 4096."""

    def __init__(self, folder: Path) -> None:
        self.blobs = folder / "blobs"
        self.blobs.mkdir(parents=True)
        self.asked = 0

    def tensor(self, chunks: Iterable[bytes | memoryview]) -> str:
        self.asked += 1
        content = b"".join(chunks)
        name = hashlib.sha256(content).hexdigest()
        if not (self.blobs / name).exists():
            (self.blobs / name).write_bytes(content)
        return f"blobs/{name}"

    def form(self, location: str, chunks: Iterable[bytes | memoryview]) -> int:
        path = self.blobs.parent / location
        content = path.read_bytes()
        content += bytes(-len(content) % 4096)
        path.write_bytes(content + b"".join(chunks))
        return len(content)


@pytest.fixture
def place(tmp_path: Path) -> FolderPlace:
    return FolderPlace(tmp_path / "pool")


def nowhere(place: ExternalPlace) -> Iterable[bytes]:
    raise AssertionError(place)


def moved(made: onnx.ModelProto, place: FolderPlace) -> Path:
    """The model with its constants in `place`, checked to hold none itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(made)
    move_out(copy, "m.onnx", nowhere, place)
    path = place.blobs.parent / "moved.onnx"
    path.write_bytes(copy.SerializeToString())
    return path


def summed(count: int = 2000) -> onnx.ModelProto:
    return model(
        [node("Add", ["x", "w"], ["y"], name="add")],
        [value("x", [count])],
        [value("y", [count])],
        [held("w", WEIGHT[:count])],
    )


def test_large_constants_leave_and_small_ones_stay(place: FolderPlace) -> None:
    made = model(
        [
            node("Constant", [], ["k"], value=held("k", WEIGHT)),
            node("Add", ["x", "w"], ["a"]),
            node("Mul", ["a", "k"], ["b"]),
            node("Add", ["b", "one"], ["y"]),
        ],
        [value("x", [2000])],
        [value("y", [2000])],
        [held("w", WEIGHT * 2), held("one", [1.0])],
    )
    path = moved(made, place)
    assert path.stat().st_size < 1000
    assert len(list(place.blobs.iterdir())) == 2
    tensors = {t.name: t for t in model_tensors(onnx.load(path, load_external_data=False))}
    assert {name: is_external(t) for name, t in tensors.items()} == {
        "w": True,
        "one": False,
        "k": True,
    }
    np.testing.assert_array_equal(run(path, {"x": WEIGHT})["y"], (WEIGHT + WEIGHT * 2) * WEIGHT + 1)


def test_constants_of_bodies_and_functions_leave_too(place: FolderPlace) -> None:
    held_inside = body([node("Add", ["x", "w"], ["t"])], [value("t", [2000])])
    held_inside.initializer.append(held("w", WEIGHT))
    branch = body(
        [node("Constant", [], ["k"], value=held("k", -WEIGHT)), node("Mul", ["x", "k"], ["e"])],
        [value("e", [2000])],
    )
    function = helper.make_function(
        "own",
        "Scaled",
        ["a"],
        ["b"],
        [
            node("Constant", [], ["f"], value=held("f", WEIGHT * 3)),
            node("Mul", ["a", "f"], ["b"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    made = model(
        [
            node("If", ["c"], ["i"], then_branch=held_inside, else_branch=branch),
            node("Scaled", ["i"], ["y"], domain="own"),
        ],
        [value("x", [2000]), value("c", [], TensorProto.BOOL)],
        [value("y", [2000])],
        functions=[function],
        domains=["own"],
    )
    path = moved(made, place)
    assert path.stat().st_size < 1500
    feeds = {"x": np.ones(2000, np.float32)}
    for chosen, want in ((True, (1 + WEIGHT) * WEIGHT * 3), (False, -WEIGHT * WEIGHT * 3)):
        got = run(path, feeds | {"c": np.array(chosen)})["y"]
        np.testing.assert_array_equal(got, want)


def test_tensors_in_attributes_of_other_operators_stay(place: FolderPlace) -> None:
    made = model(
        [node("Any", ["x"], ["y"], domain="own", table=held("t", WEIGHT))],
        [value("x", [3])],
        [value("y", [3])],
        domains=["own"],
    )
    moved(made, place)
    assert place.asked == 0


@pytest.mark.parametrize(
    "kind", [data_type_of(t) for t in ElementType if t is not ElementType.STRING]
)
@pytest.mark.parametrize("is_raw", [True, False])
def test_every_element_type_keeps_its_bytes(place: FolderPlace, kind: int, is_raw: bool) -> None:
    count = 40_000
    values = np.arange(count) % 2
    made = helper.make_tensor("w", kind, [count], values)
    assert not made.HasField("raw_data")
    raw = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(made), "w")
    assert raw.HasField("raw_data")
    assert raw_bytes(made) == raw.raw_data
    holder = model([], [], [], [raw if is_raw else made])
    move_out(holder, "m.onnx", nowhere, place)
    (tensor,) = holder.graph.initializer
    assert is_external(tensor)
    location = next(e.value for e in tensor.external_data if e.key == "location")
    assert (place.blobs.parent / location).read_bytes() == raw.raw_data
    assert (tensor.data_type, list(tensor.dims), tensor.name) == (kind, [count], "w")


def test_negative_values_in_typed_fields_keep_their_bytes() -> None:
    for kind, numbers in (
        (TensorProto.INT8, [-128, 127, -1]),
        (TensorProto.INT16, [-32768, 32767, -1]),
        (TensorProto.INT32, [-(2**31), 2**31 - 1, -1]),
        (TensorProto.UINT64, [2**64 - 1, 0, 1]),
        (TensorProto.UINT16, [65535, 0, 1]),
    ):
        made = helper.make_tensor("w", kind, [3], numbers)
        want = onnx.numpy_helper.to_array(made).tobytes()
        assert raw_bytes(made) == want


def test_strings_stay(place: FolderPlace) -> None:
    made = model([], [], [], [helper.make_tensor("w", TensorProto.STRING, [900], [b"text"] * 900)])
    before = made.SerializeToString()
    move_out(made, "m.onnx", nowhere, place)
    assert made.SerializeToString() == before


def external(made: onnx.ModelProto, folder: Path, size_threshold: int = 1024) -> Path:
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(
        made, path, save_as_external_data=True, location="all.bin", size_threshold=size_threshold
    )
    return path


def test_external_tensors_are_read_once_each_and_small_ones_come_inside(
    place: FolderPlace, tmp_path: Path
) -> None:
    made = summed()
    made.graph.initializer.append(held("small", [4.0, 5.0]))
    path = external(made, tmp_path / "source", 0)
    loaded = onnx.load(path, load_external_data=False)
    twin = loaded.graph.initializer.add()
    twin.CopyFrom(loaded.graph.initializer[0])
    twin.name = "twin"
    move_out(loaded, "m.onnx", partial(StoredChunks, folder=path.parent), place)
    assert place.asked == 1
    stored = {t.name: t for t in loaded.graph.initializer}
    assert stored["twin"].external_data == stored["w"].external_data
    assert raw_bytes(stored["small"]) == np.float32([4, 5]).tobytes()


def test_a_data_file_that_is_too_short_is_told(place: FolderPlace, tmp_path: Path) -> None:
    path = external(summed(), tmp_path / "source")
    with (path.parent / "all.bin").open("r+b") as file:
        file.truncate(100)
    loaded = onnx.load(path, load_external_data=False)
    with pytest.raises(ModelRefused, match=r"all\.bin: got 100 bytes, want 8000 or more"):
        move_out(loaded, "m.onnx", partial(StoredChunks, folder=path.parent), place)


def as_compiled(folder: Path, value: str) -> Path:
    """A graph as ONNX Runtime saves it: a tensor at 64 with a form at 16384 in weights.bin."""
    folder.mkdir()
    made = summed()
    (tensor,) = made.graph.initializer
    content = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (
        ("location", "weights.bin"),
        ("offset", "64"),
        ("length", "8000"),
        ("prepacked_0", value),
    ):
        tensor.external_data.add(key=key, value=text)
    (folder / "weights.bin").write_bytes(
        bytes(64) + content + bytes(16384 - 8064) + b"form" * 250 + b"second" * 100
    )
    path = folder / "graph.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_the_forms_of_a_compiled_graph_move_behind_their_tensors(
    place: FolderPlace, tmp_path: Path
) -> None:
    value = "MatMul+77|16384;1000;0|17384;600;1"
    adopted = onnx.load_from_string(adopt_compiled(as_compiled(tmp_path / "c", value), place))
    (tensor,) = adopted.graph.initializer
    entries = {e.key: e.value for e in tensor.external_data}
    (blob,) = place.blobs.iterdir()
    assert entries == {
        "location": f"blobs/{blob.name}",
        "length": "8000",
        "prepacked_0": "MatMul+77|8192;1000;0|12288;600;1",
    }
    content = blob.read_bytes()
    assert content[:8000] == WEIGHT.tobytes()
    assert content[8192:9192] == b"form" * 250
    assert content[12288:] == b"second" * 100


@pytest.mark.parametrize("value", ["MatMul+77|16384", "MatMul+77|-1;1000;0", "MatMul+77|a;b;c"])
def test_forms_that_are_not_understood_are_refused(
    place: FolderPlace, tmp_path: Path, value: str
) -> None:
    with pytest.raises(ModelRefused, match="saved a prepacked form as"):
        adopt_compiled(as_compiled(tmp_path / "c", value), place)


def described(made: onnx.ModelProto) -> None:
    made.producer_name, made.doc_string, made.graph.name = "other", "text", "other"
    made.graph.node[0].doc_string = "text"
    made.graph.input[0].doc_string = "text"
    made.graph.initializer[0].doc_string = "text"
    made.metadata_props.add(key="author", value="me")


def another_weight(made: onnx.ModelProto) -> None:
    made.graph.initializer[0].raw_data = (WEIGHT + 1).tobytes()


def another_node(made: onnx.ModelProto) -> None:
    made.graph.node[0].op_type = "Sub"


def another_opset(made: onnx.ModelProto) -> None:
    made.opset_import[0].version = 18


def another_input(made: onnx.ModelProto) -> None:
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"


@pytest.mark.parametrize(
    ("change", "is_equal"),
    [
        (described, True),
        (another_weight, False),
        (another_node, False),
        (another_opset, False),
        (another_input, False),
    ],
)
def test_the_fingerprint_is_that_of_graph_and_weights(
    place: FolderPlace, change: Callable[[onnx.ModelProto], None], is_equal: bool
) -> None:
    before = fingerprint(moved(summed(), place))
    made = summed()
    change(made)
    assert (fingerprint(moved(made, place)) == before) is is_equal


def test_where_weights_lie_does_not_change_the_fingerprint(
    place: FolderPlace, tmp_path: Path
) -> None:
    outside = fingerprint(external(summed(), tmp_path / "source"))
    assert outside == fingerprint(moved(summed(), place))
    assert len(outside) == 64
    assert tensor_bytes(summed().graph.initializer[0]) >= OUTSIDE_BYTES
