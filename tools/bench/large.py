"""Knows a model that is larger than protobuf allows, made on the fly, and how dividing it alone is
measured: `python -m bench.large MODEL` divides the model file and says so on standard output."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from edge_agent.builder.specs import inner_specs
from edge_agent.model.divide import summarise
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName

LAYER_BYTES = 64 << 20


def write_stack(path: Path, weight_bytes: int) -> Path:
    """x[n,side] through matrix products and Relu in turn, the weights in a file beside it."""
    side = int((min(LAYER_BYTES, weight_bytes // 4) // 4) ** 0.5)
    layers = max(2, weight_bytes // (side * side * 4))
    block = np.random.default_rng(0).standard_normal((side, side)).astype(np.float32)
    block *= np.float32(1.4 / side**0.5)
    nodes, weights = [], []
    with path.with_name("weights.bin").open("wb") as file:
        for i in range(layers):
            block[0, 0] = i  # no two layers are equal
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", "weights.bin"),
                ("offset", str(file.tell())),
                ("length", str(block.nbytes)),
            ):
                tensor.external_data.add(key=key, value=value)
            weights.append(tensor)
            block.tofile(file)
            nodes.append(helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("Relu", [f"p{i}"], [f"v{i + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", side])
        for name in ("v0", f"v{layers}")
    ]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def main(path: Path) -> None:
    """Divide the model at `path` into halves that lie beside it."""
    graph = ModelGraph.load(path)
    (side,) = {t.dims[0] for t in graph.constants.values()}
    shapes = {TensorName("v0"): (1, int(side))}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        specs = inner_specs(graph, shapes, Path(folder) / "probe.onnx")
    summary = summarise(graph, ModelId("stack"), shapes, specs)
    middle = summary.cuts[len(summary.cuts) // 2].position
    for start, stop in ((0, middle), (middle, len(graph.nodes))):
        part = path.with_name(f"part-{start}.onnx")
        extract(graph, start, stop, part, specs)
        part.unlink()
    print(f"divided into {len(summary.segments)} segments", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
