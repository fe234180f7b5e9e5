"""Small ONNX models and what they compute, for the tests of edge_agent/model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edge_agent.model.divide import legal_cuts
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import Array, Arrays

node = helper.make_node


def value(name: str, dims: Sequence[int | str | None], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def held(name: str, content: Any) -> Any:
    """An initializer; floats become float32."""
    array = np.asarray(content)
    return numpy_helper.from_array(
        array.astype(np.float32) if array.dtype == np.float64 else array, name
    )


def body(nodes: Sequence[Any], outputs: Sequence[Any], **rest: Any) -> Any:
    return helper.make_graph(
        nodes, "body", rest.get("inputs", []), outputs, initializer=rest.get("held", [])
    )


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    held: Sequence[Any] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> Any:
    graph = helper.make_graph(nodes, "made", inputs, outputs, initializer=held)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions)
    )


def graph_of(made: Any, folder: Path) -> ModelGraph:
    path = folder / "model.onnx"
    onnx.save(made, path)
    return ModelGraph.load(path)


def run(path: Path, feeds: Arrays) -> Arrays:
    """What the reference implementation of ONNX computes."""
    evaluator = ReferenceEvaluator(str(path))
    results = evaluator.run(None, feeds)
    return dict(zip(evaluator.output_names, results, strict=True))


def run_divided(graph: ModelGraph, cuts: Sequence[int], feeds: Arrays, folder: Path) -> Arrays:
    """Run the parts one after the other; only declared inputs are fed to each."""
    specs = infer_specs(graph, {})
    bounds = [0, *cuts, len(graph.nodes)]
    values = dict(feeds)
    for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
        part = extract(graph, start, stop, folder / f"part{index}.onnx", specs)
        onnx.checker.check_model(str(part.path))
        if part.outputs:
            # Inputs with a default may be left out.
            values |= run(part.path, {n: values[n] for n in part.inputs if n in values})
    return {name: values[name] for name in graph.outputs}


def check_every_cut(made: Any, feeds: dict[str, Array], folder: Path) -> int:
    """Compare the whole with its parts at every legal cut; returns how many there are."""
    graph = graph_of(made, folder)
    whole = run(graph.path, feeds)
    cuts = legal_cuts(graph, infer_specs(graph, {}))
    for cut in ((), *((c,) for c in cuts), cuts):
        divided = run_divided(graph, cut, feeds, folder)
        for name, want in whole.items():
            np.testing.assert_array_equal(divided[name], want, err_msg=f"{name}, cut at {cut}")
    return len(cuts)
