"""Knows how the light models of the onnx package get weights, so that they can be timed.

Their weights are ConstantOfShape nodes, which run on every request and hold one value: times of
such a model say nothing about the real one. Only here and in
models.quantised, beside edge_agent.model, is onnx imported.
"""

from __future__ import annotations

import math
import os
from importlib import util
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

SEED = 0
IR_VERSION = 8


def densify(name: str, destination: Path) -> None:
    """Write the light model `name` to `destination` with seeded random weights.

    Weights of two and more dimensions are scaled as He et al. 2015 (arXiv:1502.01852, equation
    10) propose, so that values neither vanish nor explode; those of one dimension, biases and
    variances among them, lie in [0.5, 1). Initializers are no graph inputs any more.
    """
    model = onnx.load(_source(name))
    graph = model.graph
    rng = np.random.default_rng(SEED)
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    kept, weights, used = [], [], set()
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = tuple(int(size) for size in shapes[node.input[0]])
            weights.append(numpy_helper.from_array(_weight(rng, shape), node.output[0]))
            used.add(node.input[0])
        else:
            kept.append(node)
    weights += [i for i in graph.initializer if i.name not in used]
    inputs = [i for i in graph.input if i.name not in shapes]
    for field, values in ((graph.node, kept), (graph.initializer, weights), (graph.input, inputs)):
        del field[:]
        field.extend(values)
    model.ir_version = max(model.ir_version, IR_VERSION)
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}")
    onnx.save(model, partial)
    partial.replace(destination)


def _source(name: str) -> Path:
    spec = util.find_spec("onnx.backend.test")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / "light" / f"light_{name}.onnx"


def _weight(rng: np.random.Generator, shape: tuple[int, ...]) -> np.typing.NDArray[np.float32]:
    if len(shape) < 2:
        return rng.uniform(0.5, 1.0, shape).astype(np.float32)
    scale = math.sqrt(2 / max(1, math.prod(shape[1:])))
    return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)
