"""Small models whose right answers are plain to see, and files that are no good models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_agent.tensors import Arrays

ITERATIONS_PER_S = 400_000
"""About what `counting` does, so that tests can ask for runs of some length."""


def value(name: str, dims: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A tensor as a graph declares it."""
    return helper.make_tensor_value_info(name, kind, dims)


def model(graph: onnx.GraphProto, opset: int = 17, domain: str = "") -> onnx.ModelProto:
    """A graph as a model of an opset."""
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def saved(made: onnx.ModelProto, path: Path) -> Path:
    """Where it lies now."""
    onnx.save(made, path)
    return path


def adding(path: Path, addend: float = 1.0, operator: str = "Add", domain: str = "") -> Path:
    """y = x + addend, float32[N,3]."""
    node = helper.make_node(operator, ["x", "w"], ["y"], domain=domain, name="the_node")
    weights = numpy_helper.from_array(np.full(3, addend, np.float32), "w")
    graph = helper.make_graph(
        [node], "adding", [value("x", ["N", 3])], [value("y", ["N", 3])], [weights]
    )
    return saved(model(graph, domain=domain), path)


def x(first: float = 0.0, rows: int = 1) -> Arrays:
    """An input of `adding`."""
    return {"x": np.arange(first, first + 3 * rows, dtype=np.float32).reshape(rows, 3)}


def doubling(path: Path, side: str) -> Path:
    """y = 2 · relu(x), float32[N,1,?,?]: both open sides are called `side`."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "r"], ["y"])]
    dims: list[int | str] = ["N", 1, side, side]
    graph = helper.make_graph(nodes, "doubling", [value("x", dims)], [value("y", dims)])
    return saved(model(graph), path)


def pairing(path: Path) -> Path:
    """s = a + b and p = a · b, float32[N,3] both, and k is float64[2] for which d = 2 · k."""
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["a", "b"], ["s"]),
            helper.make_node("Mul", ["a", "b"], ["p"]),
            helper.make_node("Add", ["k", "k"], ["d"]),
        ],
        "pairing",
        [value("a", ["N", 3]), value("b", ["N", 3]), value("k", [2], TensorProto.DOUBLE)],
        [value("s", ["N", 3]), value("p", ["N", 3]), value("d", [2], TensorProto.DOUBLE)],
    )
    return saved(model(graph), path)


def pair() -> Arrays:
    """An input of `pairing`."""
    return {
        "a": np.ones((2, 3), np.float32),
        "b": np.full((2, 3), 4, np.float32),
        "k": np.array([1.0, 2.0]),
    }


def speaking(path: Path) -> Path:
    """Text, types that numpy lacks and an input with a default: u = t + "!" (t is text), h = x · w
    as bfloat16, and i = x as int4; w is float32[3], by default 1, 2, 3."""
    graph = helper.make_graph(
        [
            helper.make_node("StringConcat", ["t", "mark"], ["u"]),
            helper.make_node("Mul", ["x", "w"], ["p"]),
            helper.make_node("Cast", ["p"], ["h"], to=TensorProto.BFLOAT16),
            helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT4),
        ],
        "speaking",
        [value("t", ["N"], TensorProto.STRING), value("x", [3]), value("w", [3])],
        [
            value("u", ["N"], TensorProto.STRING),
            value("h", [3], TensorProto.BFLOAT16),
            value("i", [3], TensorProto.INT4),
        ],
        [
            numpy_helper.from_array(np.float32([1, 2, 3]), "w"),
            helper.make_tensor("mark", TensorProto.STRING, [1], ["!"]),
        ],
    )
    return saved(model(graph, opset=21), path)


def classifying(path: Path) -> Path:
    """As scikit-learn's converter writes classifiers: scores float32[N,2] of x, as a sequence of
    maps by class ("no", "yes"); joined is the sequence s and x, one below the other."""
    sequence = onnx.TypeProto()
    sequence.sequence_type.elem_type.map_type.key_type = TensorProto.STRING
    inner = sequence.sequence_type.elem_type.map_type.value_type
    inner.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["scores"]),
            helper.make_node(
                "ZipMap",
                ["scores"],
                ["by_class"],
                domain="ai.onnx.ml",
                classlabels_strings=["no", "yes"],
            ),
            helper.make_node("SequenceInsert", ["s", "x"], ["longer"]),
            helper.make_node("ConcatFromSequence", ["longer"], ["joined"], axis=0),
        ],
        "classifying",
        [
            value("x", ["N", 2]),
            helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["M", 2]),
        ],
        [
            helper.make_value_info("by_class", sequence),
            helper.make_tensor_sequence_value_info("longer", TensorProto.FLOAT, None),
            value("joined", ["K", 2]),
        ],
    )
    return saved(model(graph, domain="ai.onnx.ml"), path)


def counting(path: Path) -> Path:
    """total = start + n, by adding 1 for n times: n sets how long a run takes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["sum", "one"], ["next"]),
        ],
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("go", [], TensorProto.BOOL),
            value("sum", [], TensorProto.INT64),
        ],
        [value("go_on", [], TensorProto.BOOL), value("next", [], TensorProto.INT64)],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "start"], ["total"], body=body)],
        "counting",
        [value("start", [], TensorProto.INT64), value("n", [], TensorProto.INT64)],
        [value("total", [], TensorProto.INT64)],
        [numpy_helper.from_array(np.array(1, np.int64), "one")],
    )
    return saved(model(graph), path)


def count(start: int, n: int) -> Arrays:
    """An input of `counting`."""
    return {"start": np.array(start, np.int64), "n": np.array(n, np.int64)}


def weighty(path: Path, size_bytes: int, addend: float = 1.0) -> Path:
    """y = x + the sum of as many zeros as fill `size_bytes` + addend, float32[N,3]."""
    zeros = numpy_helper.from_array(np.zeros(size_bytes // 4, np.float32), "zeros")
    weights = numpy_helper.from_array(np.full(3, addend, np.float32), "w")
    graph = helper.make_graph(
        [
            # Of x as well, so that the zeros are not folded into one number.
            helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
            helper.make_node("Mul", ["zeros", "largest"], ["still_zeros"]),
            helper.make_node("ReduceSum", ["still_zeros"], ["zero"], keepdims=0),
            helper.make_node("Add", ["x", "zero"], ["same"]),
            helper.make_node("Add", ["same", "w"], ["y"]),
        ],
        "weighty",
        [value("x", ["N", 3])],
        [value("y", ["N", 3])],
        [zeros, weights],
    )
    return saved(model(graph), path)


def convolving(path: Path, blocks: int = 4, channels: int = 32, size: int = 28) -> Path:
    """A small network of convolutions, 1×channels×size×size, worth dividing."""
    rng = np.random.default_rng(7)
    nodes, weights = [], []
    before = "x"
    for i in range(blocks):
        shape = (channels, channels, 3, 3)
        kernel = (rng.standard_normal(shape) / (3 * channels**0.5)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        nodes.append(helper.make_node("Conv", [before, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        before = "y" if i == blocks - 1 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"c{i}"], [before]))
    dims: list[int | str] = [1, channels, size, size]
    graph = helper.make_graph(nodes, "convolving", [value("x", dims)], [value("y", dims)], weights)
    return saved(model(graph), path)


def multiplying(path: Path, width: int = 1500, layers: int = 4) -> Path:
    """A chain of matrix products, float32[1,width], each with weights of width² numbers."""
    rng = np.random.default_rng(5)
    nodes, weights = [], []
    before = "x"
    for i in range(layers):
        matrix = (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        after = "y" if i == layers - 1 else f"t{i}"
        nodes += [
            helper.make_node("MatMul", [before, f"w{i}"], [f"m{i}"]),
            helper.make_node("Tanh", [f"m{i}"], [after]),
        ]
        before = after
    ends = ([value("x", [1, width])], [value("y", [1, width])])
    return saved(model(helper.make_graph(nodes, "multiplying", *ends, weights)), path)


def positions(path: Path, width: int = 512, layers: int = 3) -> Path:
    """y = tanh(x · w) + p, float32[N,L,8]: p is computed at length from L alone, so that it is a
    constant as soon as L is known. z is L."""
    rng = np.random.default_rng(3)
    numbers = {"first": np.array(0, np.int64), "step": np.array(1, np.int64)}
    numbers |= {"axis": np.array([1], np.int64), "which": np.array(1, np.int64)}
    numbers["rates"] = rng.uniform(0.01, 1, (1, width)).astype(np.float32)
    numbers["w"] = rng.standard_normal((8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "which"], ["z"], axis=0),
        helper.make_node("Range", ["first", "z", "step"], ["counted"]),
        helper.make_node("Cast", ["counted"], ["places"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["places", "axis"], ["column"]),
        helper.make_node("MatMul", ["column", "rates"], ["v0"]),
    ]
    for i in range(layers):
        wide = 8 if i == layers - 1 else width
        numbers[f"w{i}"] = (rng.standard_normal((width, wide)) / width**0.5).astype(np.float32)
        nodes.append(helper.make_node("Sin", [f"v{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("MatMul", [f"s{i}", f"w{i}"], [f"v{i + 1}"]))
    nodes += [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Add", ["t", f"v{layers}"], ["y"]),
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in numbers.items()]
    dims: list[int | str] = ["N", "L", 8]
    outputs = [value("y", dims), value("z", [], TensorProto.INT64)]
    graph = helper.make_graph(nodes, "positions", [value("x", dims)], outputs, weights)
    return saved(model(graph), path)


def rows(batch: int, length: int, seed: int = 0) -> Arrays:
    """An input of `positions`."""
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((batch, length, 8)).astype(np.float32)}


def image(value_of_all: float = 1.0, channels: int = 32, size: int = 28) -> Arrays:
    """An input of `convolving`."""
    return {"x": np.full((1, channels, size, size), value_of_all, np.float32)}


def with_external_data(path: Path, location: str, *, write: bool) -> Path:
    """`adding` with its weights in the file `location`, which is written there if `write`."""
    made = onnx.load(adding(path))
    tensor = made.graph.initializer[0]
    content = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    if write:
        (path.parent / location).write_bytes(content)
    return saved(made, path)
