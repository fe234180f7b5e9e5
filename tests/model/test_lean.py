"""A model read without its weights is the same model, and damage is left for the parser to see."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from edge_agent.errors import ModelRefused
from edge_agent.model.admit import AdmissionLimits, check, read_model
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.model.lean import without_weights
from edge_agent.model.specs import infer_specs
from tests.model.made_models import held, model, node, run, value

LARGE = np.arange(2048, dtype=np.float32)
LIMITS = AdmissionLimits()


def weighty(**rest: Any) -> Any:
    """y = (x + large) · a Constant node's value + small."""
    constant = onnx.helper.make_node("Constant", [], ["c"], value=held("", LARGE / 2048))
    nodes = [
        constant,
        node("Add", ["x", "large"], ["a"]),
        node("Mul", ["a", "c"], ["b"]),
        node("Add", ["b", "small"], ["y"]),
    ]
    weights = [held("large", LARGE), held("small", np.float32([3]))]
    return model(nodes, [value("x", [2048])], [value("y", [2048])], weights, **rest)


def read_lean(path: Path) -> Any:
    return read_model(path, LIMITS, is_lean=True)


def test_large_tensors_stay_in_the_file_and_small_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(weighty(), path)
    lean = read_lean(path)
    assert lean.ByteSize() < 1000
    large, small = lean.graph.initializer
    assert large.data_location == lean.graph.node[0].attribute[0].t.data_location == 1
    assert small.raw_data
    check(lean, path, tmp_path, LIMITS, None)
    onnx.load_external_data_for_model(lean, str(tmp_path))
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(lean.graph.initializer[0]), LARGE)


def test_parts_of_a_model_read_lean_are_those_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(weighty(), path)
    for name, graph in {
        "whole": ModelGraph.load(path),
        "lean": ModelGraph.from_model(read_lean(path), path),
    }.items():
        (tmp_path / name).mkdir()
        extract(graph, 0, 2, tmp_path / name / "p.onnx", infer_specs(graph, {}))
    for file in ("p.onnx", "p.onnx.weights"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "lean" / file).read_bytes()
    onnx.checker.check_model(str(tmp_path / "lean" / "p.onnx"), full_check=True)
    x = np.ones(2048, np.float32)
    np.testing.assert_array_equal(
        run(tmp_path / "lean" / "p.onnx", {"x": x})["b"], (1 + LARGE) * (LARGE / 2048)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"raw_data": LARGE.tobytes()[:-4]},
        {"data_type": TensorProto.STRING},
        {"dims": [-2048]},
        {"float_data": [1.0]},
    ],
)
def test_a_tensor_that_is_not_plain_is_left_as_it_is(
    change: dict[str, Any], tmp_path: Path
) -> None:
    made = weighty()
    tensor = made.graph.initializer[0]
    for field, content in change.items():
        if isinstance(content, list):
            del getattr(tensor, field)[:]
            getattr(tensor, field).extend(content)
        else:
            setattr(tensor, field, content)
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    assert read_lean(path).graph.initializer[0] == tensor


@pytest.mark.parametrize("name", ["a*b.onnx", "C:m.onnx", "back\\slash.onnx"])
def test_a_file_that_no_reference_may_name_is_read_whole(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(weighty().SerializeToString())
    assert read_lean(tmp_path / name) == weighty()


def test_where_the_kernel_copies_nothing_the_bytes_are_copied_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EXDEV, "two file systems")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    path = tmp_path / "m.onnx"
    onnx.save(weighty(), path)
    graph = ModelGraph.from_model(read_lean(path), path)
    (tmp_path / "parts").mkdir()
    extract(graph, 0, 1, tmp_path / "parts" / "p.onnx", infer_specs(graph, {}))
    assert (tmp_path / "parts" / "p.onnx.weights").read_bytes() == LARGE.tobytes()


def test_a_file_that_shrinks_after_it_was_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(weighty(), path)
    graph = ModelGraph.from_model(read_lean(path), path)
    path.write_bytes(path.read_bytes()[:500])
    (tmp_path / "parts").mkdir()
    with pytest.raises(ModelRefused, match=r'"large".*"m.onnx" has 500 bytes'):
        extract(graph, 0, 3, tmp_path / "parts" / "p.onnx", infer_specs(graph, {}))


@given(st.binary(max_size=400))
def test_any_bytes_are_left_as_they_are(content: bytes) -> None:
    assert without_weights(memoryview(content), "m.onnx") == content


@given(st.data())
def test_a_damaged_model_is_refused_by_the_parser_or_read(data: st.DataObject) -> None:
    content = bytearray(weighty().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        heads = len(content) if data.draw(st.booleans()) else 300
        content[data.draw(st.integers(0, heads - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    rewritten = without_weights(memoryview(bytes(content)), "m.onnx")
    kept = onnx.ModelProto()
    try:
        kept.ParseFromString(content)
    except DecodeError:
        return
    found = onnx.ModelProto()
    found.ParseFromString(bytes(rewritten))
    assert [n.op_type for n in found.graph.node] == [n.op_type for n in kept.graph.node]
    assert [t.name for t in found.graph.initializer] == [t.name for t in kept.graph.initializer]
