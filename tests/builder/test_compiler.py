"""What is compiled once, for whom, and what of it is on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.compiler import Compiler
from edge_agent.devices import Layout, UnitId
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.model.weights import move_out
from edge_agent.store.manifests import EntryKind
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays

CPU = UnitId("cpu")
M, N = ModelId("m"), ModelId("n")
SIDE = 96
WEIGHT_BYTES = SIDE * SIDE * 4
WEIGHT = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((2, SIDE)).astype(np.float32)


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path / "pool", max_compiled_bytes=1 << 30)


def multiplying(operator: str = "Relu") -> onnx.ModelProto:
    """x[n,96] times a weight, then an operator of one input."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node(operator, ["product"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIDE]) for name in ("x", "y")
    ]
    held = [numpy_helper.from_array(WEIGHT, "w")]
    graph = helper.make_graph(nodes, "multiplying", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def add_model(pool: Pool, model: ModelId, made: onnx.ModelProto) -> Path:
    """Store a model as the pool does; returns its graph."""
    with pool.adding(EntryKind.MODEL) as adding:
        move_out(made, "m.onnx", lambda _: [], adding)
        entry = adding.publish(model, made.SerializeToString(), "")
    entry.release()
    return entry.graph


def blob_bytes(pool: Pool) -> int:
    return sum(p.stat().st_size for p in (pool.folder / "blobs").iterdir())


def compiled(
    pool: Pool,
    source: Path,
    model: ModelId = M,
    layout: Layout = Layout.BLOCKED,
    device_key: str = "this device",
) -> Path:
    level = OptimisationLevel.ALL if layout is Layout.BLOCKED else OptimisationLevel.EXTENDED
    with Compiler(pool, model, device_key) as compiler:
        return compiler.compiled(source, CPU, layout, level)


def outputs(path: Path, level: OptimisationLevel = OptimisationLevel.NONE) -> Arrays:
    session = Session.open(path, threads=1, level=level)
    return session.run({"x": X}, session.output_names)


def entries(pool: Pool) -> int:
    return len(list(pool.folder.glob("*.json")))


def test_a_compiled_graph_in_the_pool_computes_bit_by_bit_what_its_source_does(
    pool: Pool,
) -> None:
    source = add_model(pool, M, multiplying())
    path = compiled(pool, source)
    assert path.parent == pool.folder
    assert path.stat().st_size < 2000
    want = outputs(source, OptimisationLevel.ALL)["y"]
    np.testing.assert_array_equal(outputs(path)["y"], want)
    np.testing.assert_allclose(want, np.maximum(X @ WEIGHT, 0), rtol=1e-4, atol=1e-4)


def test_model_and_layouts_share_the_weights_and_their_packed_form(pool: Pool) -> None:
    source = add_model(pool, M, multiplying())
    assert blob_bytes(pool) == WEIGHT_BYTES
    compiled(pool, source)
    once_bytes = blob_bytes(pool)
    assert WEIGHT_BYTES < once_bytes < 2 * WEIGHT_BYTES + 3 * 4096
    compiled(pool, source, layout=Layout.NCHW)
    assert blob_bytes(pool) == once_bytes
    assert entries(pool) == 3


def test_another_graph_with_the_same_weights_adds_no_weights(pool: Pool) -> None:
    compiled(pool, add_model(pool, M, multiplying("Relu")))
    before_bytes = blob_bytes(pool)
    path = compiled(pool, add_model(pool, N, multiplying("Neg")), N)
    assert blob_bytes(pool) == before_bytes
    assert entries(pool) == 4
    np.testing.assert_allclose(outputs(path)["y"], -(X @ WEIGHT), rtol=1e-4, atol=1e-4)


def test_an_equal_part_of_another_model_is_not_compiled_again(pool: Pool) -> None:
    first = compiled(pool, add_model(pool, M, multiplying()))
    twin = multiplying()
    twin.graph.name, twin.doc_string = "another", "text"
    second = compiled(pool, add_model(pool, N, twin), N)
    assert first == second
    pool.collect({N})
    assert first.exists()
    pool.collect(set())
    assert not first.exists()
    assert blob_bytes(pool) == 0


def test_another_device_compiles_for_itself(pool: Pool) -> None:
    source = add_model(pool, M, multiplying())
    assert compiled(pool, source) != compiled(pool, source, device_key="another device")


def test_what_is_damaged_is_compiled_again(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    source = add_model(pool, M, multiplying())
    path = compiled(pool, source)
    want = outputs(path)["y"]
    (blob,) = (pool.folder / "blobs").iterdir()
    with blob.open("r+b") as file:
        file.seek(-WEIGHT_BYTES // 2, 2)
        file.write(b"damage")
    again = compiled(pool, source)
    assert "it will be compiled again" in caplog.text
    np.testing.assert_array_equal(outputs(again)["y"], want)


def test_what_a_compiler_returned_stays_until_it_is_closed(pool: Pool) -> None:
    source = add_model(pool, M, multiplying())
    with Compiler(pool, M, "this device") as compiler:
        path = compiler.compiled(source, CPU, Layout.BLOCKED, OptimisationLevel.ALL)
        pool.collect(set())
        assert outputs(path)["y"].shape == (2, SIDE)
    pool.collect(set())
    assert not path.exists()


def test_drafts_go_with_the_compiler(pool: Pool) -> None:
    with Compiler(pool, M, "this device") as compiler:
        compiler.draft("part.onnx").write_bytes(b"part")
        assert compiler.draft("part.onnx").parent == pool.folder
    assert not list(pool.folder.glob(".part*"))
