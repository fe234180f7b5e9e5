"""A model used in place is checked as one that is loaded, and its sizes are found as for a plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.builder.source import general, ranked, read_in_place, sized
from edge_agent.config import Limits
from edge_agent.errors import InputMismatch, ModelRefused
from tests.model.made_models import held, model, node, value

LIMITS = Limits()


def write(folder: Path, *, location: str | None = None) -> Path:
    """y = |x + w|, with w in the file `location` if there is one."""
    weights = held("w", np.ones(3, np.float32))
    if location is not None:
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=location)
    made = model(
        [node("Add", ["x", "w"], ["a"]), node("Abs", ["a"], ["y"])],
        [value("x", ["N", 3])],
        [value("y", ["N", 3])],
        [weights],
    )
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_a_model_is_read_where_it_lies(tmp_path: Path) -> None:
    graph = read_in_place(write(tmp_path), LIMITS)
    assert [n.op_type for n in graph.nodes] == ["Add", "Abs"]
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_external_data_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(12))
    assert read_in_place(write(tmp_path, location="w.bin"), LIMITS).weight_bytes == 12


def test_external_data_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real.bin").write_bytes(bytes(12))
    (tmp_path / "link.bin").symlink_to("real.bin")
    os.link(tmp_path / "real.bin", tmp_path / "hard.bin")
    os.mkfifo(tmp_path / "fifo.bin")
    for location, says in {
        "../w.bin": "want a relative path",
        "/etc/hostname": "want a relative path",
        "link.bin": "symbolic link",
        "hard.bin": "hard links",
        "fifo.bin": "FIFO",
        "gone.bin": "there is no gone.bin in .*, beside the model",
    }.items():
        with pytest.raises(ModelRefused, match=says):
            read_in_place(write(tmp_path, location=location), LIMITS)


def test_limits_of_the_settings_hold(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(12))
    path = write(tmp_path, location="w.bin")
    with pytest.raises(ModelRefused, match="more than 11 bytes of external data"):
        read_in_place(path, Limits(max_external_bytes=11))
    with pytest.raises(ModelRefused, match="want at most 9"):
        read_in_place(path, Limits(max_model_bytes=9))


def test_what_is_no_model_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model, but a text of some length")
    (tmp_path / "empty.onnx").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo.onnx")
    for name, says in {
        "text.onnx": "no ONNX model",
        "empty.onnx": "is empty",
        "gone.onnx": "no such file",
        "fifo.onnx": "is no regular file",
        ".": "is no regular file",
    }.items():
        with pytest.raises(ModelRefused, match=says):
            read_in_place(tmp_path / name, LIMITS)


def test_open_dimensions_are_tried_and_told(tmp_path: Path) -> None:
    found = sized(read_in_place(write(tmp_path), LIMITS), {})
    assert found.shapes == {"x": (1, 3)}
    assert found.note is not None
    assert "x=1x3" in found.note
    assert str(found.specs.tensors["a"]) == "float32[1,3]"  # type: ignore[index]


def test_given_shapes_are_used_and_nothing_is_tried(tmp_path: Path) -> None:
    graph = read_in_place(write(tmp_path), LIMITS)
    found = sized(graph, {"x": (5, 3)})
    assert (found.shapes, found.note) == ({"x": (5, 3)}, None)
    assert str(found.specs.tensors["a"]) == "float32[5,3]"  # type: ignore[index]
    with pytest.raises(InputMismatch, match=r"got \[5,4\], want float32\[N,3\]"):
        sized(graph, {"x": (5, 4)})
    with pytest.raises(InputMismatch, match='a shape for "z", want one of the inputs "x"'):
        sized(graph, {"z": (5,)})


def made_of(kind: int, dims: list[Any] | None) -> Any:
    made = model([node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["y"])], [], [])
    made.graph.input.append(helper.make_tensor_value_info("x", kind, dims))
    made.graph.output.append(helper.make_tensor_value_info("y", kind, dims))
    return made


@pytest.mark.parametrize("made", [made_of(TensorProto.FLOAT, None), made_of(8, None)])
def test_where_nothing_can_be_tried_sizes_stay_open(made: Any, tmp_path: Path) -> None:
    onnx.save(made, tmp_path / "m.onnx")
    found = sized(read_in_place(tmp_path / "m.onnx", LIMITS), {})
    assert found.shapes == {}
    assert found.note is not None
    assert found.note.startswith("sizes are not known, give the shapes with --shape")


def test_a_scalar_input_has_the_shape_of_a_scalar(tmp_path: Path) -> None:
    onnx.save(made_of(TensorProto.FLOAT, []), tmp_path / "m.onnx")
    found = sized(read_in_place(tmp_path / "m.onnx", LIMITS), {})
    assert (found.shapes, found.note) == ({"x": ()}, None)


def test_general_specs_hold_for_every_shape(tmp_path: Path) -> None:
    specs = general(read_in_place(write(tmp_path), LIMITS))
    assert str(specs.tensors["a"]) == "float32[N,3]"  # type: ignore[index]


def test_values_of_other_domains_are_asked_of_the_runtime(tmp_path: Path) -> None:
    nodes = [
        node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        node("Relu", ["g"], ["y"]),
    ]
    made = model(nodes, [value("x", [3])], [value("y", [3])], domains=["com.microsoft"])
    onnx.save(made, tmp_path / "m.onnx")
    graph = read_in_place(tmp_path / "m.onnx", LIMITS)
    assert str(general(graph).tensors["g"]) == "float32[3]"  # type: ignore[index]
    assert str(sized(graph, {}).specs.tensors["g"]) == "float32[3]"  # type: ignore[index]


def test_a_rank_that_inference_does_not_find_is_asked_of_the_runtime(tmp_path: Path) -> None:
    nodes = [
        node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        node("Relu", ["g"], ["y"]),
    ]
    made = model(nodes, [value("x", ["N", 3])], [value("y", ["N", 3])], domains=["com.microsoft"])
    onnx.save(made, tmp_path / "m.onnx")
    graph = read_in_place(tmp_path / "m.onnx", LIMITS)
    specs = general(graph)
    assert specs.tensors["g"].dims is None  # type: ignore[index]
    assert ranked(graph, specs, ["x"]) == specs
    assert ranked(graph, specs, ["x", "g"]).tensors["g"].dims == (None, None)  # type: ignore[index]
