"""A division as it is often written: slices of the list of nodes, and what these list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from edge_agent.tensors import Arrays


def divided_naively(path: Path, cut: int, feeds: dict[str, Any]) -> Arrays:
    """Divide the model at `path` before its node `cut`, run both parts, and return the outputs.

    Crossing values are what nodes of the first part list as outputs and nodes of the second list
    as inputs; they are sent as bytes.
    """
    model = onnx.load(path, load_external_data=False)
    declared = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    declared |= {v.name: v for v in (*model.graph.input, *model.graph.output)}
    named = {node.name or node.output[0] for node in model.graph.node[:cut]}
    first = [n for n in model.graph.node if (n.name or n.output[0]) in named]
    second = [n for n in model.graph.node if (n.name or n.output[0]) not in named]
    given = [name for node in first for name in node.output]
    crossing = [name for name in dict.fromkeys(n for v in second for n in v.input) if name in given]
    values = dict(feeds)
    taken: set[str] = set()
    for nodes, gives in ((first, crossing), (second, [v.name for v in model.graph.output])):
        inside = {name for node in nodes for name in node.output}
        reads = dict.fromkeys(name for node in nodes for name in node.input)
        held = [t for t in model.graph.initializer if t.name in reads and t.name not in taken]
        taken |= {tensor.name for tensor in held}
        known = {tensor.name for tensor in held} | inside
        takes = [n for n in reads if n not in known and (nodes is first or n in crossing)]
        part = onnx.helper.make_model(
            onnx.helper.make_graph(
                nodes, "part", [declared[n] for n in takes], [declared[n] for n in gives], held
            ),
            opset_imports=[o for o in model.opset_import if not o.domain],
            ir_version=model.ir_version,
        )
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(part.SerializeToString(), options)
        results = session.run(gives, {name: values[name] for name in takes})
        sent = [(np.asarray(r).tobytes(), np.asarray(r)) for r in results]
        arrays = [np.frombuffer(raw, a.dtype).reshape(a.shape) for raw, a in sent]
        values |= dict(zip(gives, arrays, strict=True))
    return {v.name: values[v.name] for v in model.graph.output}
