"""Makes graphs for the tests of the channels-last rewrite, runs them and compares values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edge_agent.model.nhwc import NhwcRewrite, rewrite_nhwc

MICROSOFT = "com.microsoft"
TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
Nodes = Sequence[onnx.NodeProto]


def node(op: str, inputs: str, outputs: str, domain: str = "", **attrs: Any) -> onnx.NodeProto:
    """A node whose inputs and outputs are given as words; "-" is an omitted one."""
    names = [[n if n != "-" else "" for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, domain=domain, **attrs)


def value(name: str, shape: Sequence[int | str] | None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def write(
    path: Path,
    nodes: Nodes,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: dict[str, Any],
    opset: int = 17,
) -> Path:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def run(path: Path, feeds: dict[str, Any], level: str = "ORT_DISABLE_ALL") -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, feeds)
    return results


def feeds_for(path: Path, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    kinds = {1: np.float32, 2: np.uint8, 3: np.int8, 7: np.int64, 9: np.bool_}
    feeds = {}
    for entry in onnx.load(path).graph.input:
        shape = [d.dim_value or 2 for d in entry.type.tensor_type.shape.dim]
        dtype = kinds[entry.type.tensor_type.elem_type]
        ones = generator.integers(0, 2, shape)
        data = generator.standard_normal(shape) if dtype == np.float32 else ones
        feeds[entry.name] = np.asarray(data).astype(dtype)
    return feeds


def rewritten(source: Path, **given: Any) -> tuple[NhwcRewrite, Path]:
    destination = source.with_name("last.onnx")
    result = rewrite_nhwc(source, destination, **given)
    assert destination.exists() == result.changed
    return result, destination


def assert_equal_outputs(before: Path, after: Path, allowed: float = 0.0) -> None:
    """Integers equal, floats within `allowed` or 1e-5 of the largest, at every level."""
    a, b = onnx.load(before).graph, onnx.load(after).graph
    assert list(a.input) == list(b.input)
    assert list(a.output) == list(b.output)
    feeds = feeds_for(before)
    wanted = run(before, feeds)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        for want, got in zip(wanted, run(after, feeds, level), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            if want.dtype == np.float32:
                assert np.abs(got - want).max() <= max(1e-5 * np.abs(want).max(), allowed)
            else:
                assert np.array_equal(got, want)


def operators(path: Path) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load(path).graph.node)


def pointwise(channels_out: int, channels_in: int, seed: int = 1) -> Any:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((channels_out, channels_in, 1, 1)) / 8).astype(np.float32)


def between_transposes(
    tmp_path: Path, middle: Nodes, constants: dict[str, Any], **given: Any
) -> Path:
    """A graph that is channels-last outside: transpose, `middle` from "a" to "b", transpose.

    A 1x1 convolution in front says which axis is which.
    """
    nodes = [
        node("Transpose", "x", "t", perm=TO_FIRST),
        node("Conv", "t w bias", "a"),
        *middle,
        node("Transpose", "b", "y", perm=TO_LAST),
    ]
    weights = {"w": pointwise(6, 4), "bias": np.linspace(-1, 1, 6, dtype=np.float32)}
    inputs, outputs = [value("x", [2, 5, 7, 4])], [value("y", None)]
    return write(tmp_path / "first.onnx", nodes, inputs, outputs, weights | constants, **given)
