from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from edge_agent.engine.compile import compile_graph
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused, StorageError
from tests.engine.graphs import WriteModel, constant

FLOAT = TensorProto.FLOAT
LEVELS = [OptimisationLevel.EXTENDED, OptimisationLevel.ALL]


def outputs(path: Path, level: OptimisationLevel, threads: int, seed: int = 3):
    session = Session.open(path, threads=threads, level=level)
    rng = np.random.default_rng(seed)
    feeds = {}
    for spec in session.inputs:
        shape = tuple(spec.dims or ())
        if spec.element_type == "bool":
            feeds[spec.name] = np.array(seed % 2 == 1)
        else:
            feeds[spec.name] = rng.standard_normal(shape, dtype=np.float32)
    return session.run(feeds, session.output_names)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", ["convnet", "branching", "functional"])
def test_a_compiled_graph_is_bit_equal(
    model: str,
    level: OptimisationLevel,
    threads: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    source = request.getfixturevalue(model)
    compiled = compile_graph(source, tmp_path / "compiled", level)
    for seed in (3, 4):
        want = outputs(source, level, threads, seed)
        got = outputs(compiled, OptimisationLevel.NONE, threads, seed)
        assert want.keys() == got.keys()
        assert all(np.array_equal(want[name], got[name]) for name in want)


def test_weights_lie_beside_the_graph(convnet: Path, tmp_path: Path) -> None:
    compiled = compile_graph(convnet, tmp_path / "new" / "compiled", OptimisationLevel.ALL)
    assert compiled == tmp_path / "new" / "compiled" / "graph.onnx"
    assert sorted(p.name for p in compiled.parent.iterdir()) == ["graph.onnx", "weights.bin"]
    assert (compiled.parent / "weights.bin").stat().st_size >= 32 * 16 * 9 * 4
    assert [p.name for p in compiled.parent.parent.iterdir()] == ["compiled"]


def test_a_folder_that_exists_is_left_as_it_is(convnet: Path, relu: Path, tmp_path: Path) -> None:
    first = compile_graph(convnet, tmp_path / "compiled", OptimisationLevel.ALL)
    content = first.read_bytes()
    assert compile_graph(relu, tmp_path / "compiled", OptimisationLevel.ALL) == first
    assert first.read_bytes() == content


def test_optimisers_can_be_left_out(convnet: Path, tmp_path: Path) -> None:
    fused = compile_graph(convnet, tmp_path / "fused", OptimisationLevel.EXTENDED)
    whole = compile_graph(
        convnet, tmp_path / "whole", OptimisationLevel.EXTENDED, disabled=["ConvActivationFusion"]
    )
    assert b"FusedConv" in fused.read_bytes()
    assert b"FusedConv" not in whole.read_bytes()


@pytest.mark.parametrize("ir_version", [3, 8])
def test_inputs_with_a_default_keep_it(
    ir_version: int, write_model: WriteModel, tmp_path: Path
) -> None:
    size = 1024
    source = write_model(
        "overridable",
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [("x", FLOAT, [size]), ("b", FLOAT, [size])],
        [("y", FLOAT, [size])],
        [constant("b", np.arange(size, dtype=np.float32))],
        ir_version=ir_version,
    )
    compiled = compile_graph(source, tmp_path / "compiled", OptimisationLevel.ALL)
    session = Session.open(compiled, threads=1, level=OptimisationLevel.NONE)
    assert session.input_names == ("x",)
    y = session.run({"x": np.ones(size, np.float32)}, ["y"])["y"]
    assert np.array_equal(y, np.arange(size) + 1)


def test_a_graph_that_would_lose_a_default_is_refused(
    write_model: WriteModel, tmp_path: Path
) -> None:
    value = helper.make_tensor("value", FLOAT, [1], [2])
    source = write_model(
        "folded",
        [
            helper.make_node("ConstantOfShape", ["s"], ["w"], value=value),
            helper.make_node("ConstantOfShape", ["t"], ["v"], value=value),
            helper.make_node("Sum", ["x", "w", "v"], ["y"]),
        ],
        [("x", FLOAT, [3]), ("s", TensorProto.INT64, [1]), ("t", TensorProto.INT64, [1])],
        [("y", FLOAT, [3])],
        [constant("s", np.int64([3])), constant("t", np.int64([3]))],
        ir_version=3,
    )
    with pytest.raises(ModelRefused, match=r'^cannot be compiled: .*"[st]" has lost its default'):
        compile_graph(source, tmp_path / "compiled", OptimisationLevel.ALL)
    assert list(tmp_path.iterdir()) == [source]


def test_a_refused_model_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "rubbish.onnx"
    source.write_bytes(b"\xff" * 64)
    with pytest.raises(ModelRefused, match=r"^ONNX Runtime refuses it: [Pp]rotobuf"):
        compile_graph(source, tmp_path / "compiled", OptimisationLevel.ALL)
    assert list(tmp_path.iterdir()) == [source]


def test_a_place_that_cannot_be_written_is_named(relu: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file: cannot be written"):
        compile_graph(relu, tmp_path / "file" / "compiled", OptimisationLevel.ALL)
