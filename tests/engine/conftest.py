"""Small graphs with known answers, written as model files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.engine.session import OptimisationLevel, Session
from tests.engine.graphs import Declaration, OpenModel, WriteModel, constant, declared


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    """Writes a model of `nodes` to a file named `name`."""

    def write(
        name: str,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[Declaration | onnx.ValueInfoProto],
        outputs: Sequence[Declaration | onnx.ValueInfoProto],
        initializers: Sequence[onnx.TensorProto] = (),
        *,
        opset: int = 17,
        ir_version: int = 8,
        functions: Sequence[onnx.FunctionProto] = (),
        domains: Sequence[str] = (),
    ) -> Path:
        graph = helper.make_graph(
            list(nodes),
            "graph",
            [declared(d) if isinstance(d, tuple) else d for d in inputs],
            [declared(d) if isinstance(d, tuple) else d for d in outputs],
            list(initializers),
        )
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions)
        )
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


@pytest.fixture
def relu(write_model: WriteModel) -> Path:
    """y = max(x, 0) for x of float32[2,n]."""
    node = helper.make_node("Relu", ["x"], ["y"])
    floats = TensorProto.FLOAT
    return write_model("relu", [node], [("x", floats, [2, "n"])], [("y", floats, [2, "n"])])


@pytest.fixture
def convnet(write_model: WriteModel) -> Path:
    """x of float32[1,3,32,32] to y of float32[1,10]: two convolutions and a product."""
    rng = np.random.default_rng(7)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return constant(name, rng.standard_normal(shape, dtype=np.float32) / 8)

    def positive(name: str, size: int) -> onnx.TensorProto:
        return constant(name, rng.random(size, dtype=np.float32) + 0.5)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c0", "s", "b", "m", "v"], ["n0"]),
        helper.make_node("Relu", ["n0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("GlobalAveragePool", ["r1"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w2"], ["y"]),
    ]
    initializers = [weights("w0", 16, 3, 3, 3), positive("s", 16), weights("b", 16)]
    initializers += [weights("m", 16), positive("v", 16)]
    initializers += [weights("w1", 32, 16, 3, 3), weights("w2", 32, 10)]
    floats = TensorProto.FLOAT
    return write_model(
        "convnet",
        nodes,
        [("x", floats, [1, 3, 32, 32])],
        [("y", floats, [1, 10])],
        initializers,
    )


@pytest.fixture
def branching(write_model: WriteModel) -> Path:
    """y = x @ w if flag, else x @ v (captured weights), for x of float32[4,64]."""
    rng = np.random.default_rng(8)
    w, v = (rng.standard_normal((64, 64), dtype=np.float32) for _ in "wv")
    floats = TensorProto.FLOAT

    def branch(weight: str) -> onnx.GraphProto:
        node = helper.make_node("MatMul", ["x", weight], [f"by_{weight}"])
        return helper.make_graph([node], weight, [], [declared((f"by_{weight}", floats, None))])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("w"), else_branch=branch("v"))
    return write_model(
        "branching",
        [node],
        [("x", floats, [4, 64]), ("flag", TensorProto.BOOL, [])],
        [("y", floats, None)],
        [constant("w", w), constant("v", v)],
    )


@pytest.fixture
def functional(write_model: WriteModel) -> Path:
    """y = (x + x) * 3, with the sum in a model-local function."""
    double = helper.make_function(
        "local",
        "Double",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        helper.make_node("Double", ["x"], ["d"], domain="local"),
        helper.make_node("Mul", ["d", "three"], ["y"]),
    ]
    floats = TensorProto.FLOAT
    return write_model(
        "functional",
        nodes,
        [("x", floats, [2])],
        [("y", floats, [2])],
        [constant("three", np.float32([3.0]))],
        functions=[double],
        domains=["local"],
    )


@pytest.fixture
def open_model() -> OpenModel:
    """Opens a file on one thread, fully optimised."""

    def opened(path: Path) -> Session:
        return Session.open(path, threads=1, level=OptimisationLevel.ALL)

    return opened
