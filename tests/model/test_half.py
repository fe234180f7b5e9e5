"""The float16 form of a graph, as ONNX Runtime's own converter makes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.engine.half import to_half
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused
from edge_agent.model.half import write_half

X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def multiplying(path: Path, kind: int = TensorProto.FLOAT, *, outside: bool = False) -> Path:
    """y = relu(x · w), [4,64], w beside the file if it is to lie outside."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(dtype) / dtype.type(8)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Abs", ["p"], ["y"])]
    ends = [helper.make_tensor_value_info(name, kind, [4, 64]) for name in ("x", "y")]
    inits = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], inits)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path, save_as_external_data=outside, location="w.bin", size_threshold=0)
    return path


def run(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    session = Session.open(path, threads=1, level=OptimisationLevel.NONE)
    return session.run({"x": X}, ["y"])["y"]


@pytest.mark.parametrize("outside", [False, True])
def test_it_computes_about_the_same_between_borders_in_float32(
    tmp_path: Path, outside: bool
) -> None:
    source = multiplying(tmp_path / "m.onnx", outside=outside)
    half = tmp_path / "half.onnx"
    write_half(source, half, to_half)
    assert (tmp_path / "half.onnx.weights").stat().st_size == 64 * 64 * 2
    made = onnx.load(half)
    (weights,) = made.graph.initializer
    assert weights.data_type == TensorProto.FLOAT16
    ends = [*made.graph.input, *made.graph.output]
    assert [v.name for v in ends] == ["x", "y"]
    assert {v.type.tensor_type.elem_type for v in ends} == {TensorProto.FLOAT}
    got, want = run(half), run(source)
    assert got.dtype == np.dtype(np.float32)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert 1e-6 < error < 5e-3


def test_writing_it_twice_gives_the_same(tmp_path: Path) -> None:
    source = multiplying(tmp_path / "m.onnx")
    for _ in range(2):
        write_half(source, tmp_path / "half.onnx", to_half)
    assert (tmp_path / "half.onnx.weights").stat().st_size == 64 * 64 * 2
    assert np.abs(run(tmp_path / "half.onnx") - run(source)).max() < 0.05


def test_what_has_no_float32_has_no_such_form(tmp_path: Path) -> None:
    source = multiplying(tmp_path / "m.onnx", TensorProto.DOUBLE)
    with pytest.raises(ModelRefused, match="no float16 form: nothing in it is float32"):
        write_half(source, tmp_path / "half.onnx", to_half)
    assert not (tmp_path / "half.onnx").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.graph.initializer[0].ClearField("raw_data"),
        lambda made: made.graph.node[0].input.append("z"),
        lambda made: made.graph.initializer[0].dims.append(7),
    ],
)
def test_what_the_converter_does_not_understand_is_a_refusal_or_a_model_that_does_not_open(
    tmp_path: Path, spoil: Callable[[onnx.ModelProto], None]
) -> None:
    path = multiplying(tmp_path / "m.onnx")
    made = onnx.load(path)
    spoil(made)
    onnx.save(made, path)
    with pytest.raises(ModelRefused):
        write_and_open(path, tmp_path / "half.onnx")


def write_and_open(source: Path, half: Path) -> None:
    write_half(source, half, to_half)
    Session.open(half, threads=1, level=OptimisationLevel.NONE, is_silent=True)
