"""Which inner values shape inference left open, and the model that asks a runtime for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from edge_agent.model.extract import extract, write_graph
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import fixed_inputs
from edge_agent.tensors import Shape, TensorName, ValueSpecs


def open_values(graph: ModelGraph, specs: ValueSpecs) -> tuple[TensorName, ...]:
    """The computed values worth asking for: () if every one that is read has a known type, else
    those of unknown type, and with them those of unknown size."""
    read = {*graph.users, *graph.outputs}
    computed = [TensorName(n) for n, at in graph.producers.items() if at >= 0 and n in read]
    if all(name in specs for name in computed):
        return ()
    return tuple(name for name in computed if not _is_settled(name, specs))


def _is_settled(name: TensorName, specs: ValueSpecs) -> bool:
    spec = specs.tensors.get(name)
    return spec.is_static if spec is not None else name in specs.others


def write_probe(
    graph: ModelGraph,
    names: Sequence[TensorName],
    shapes: Mapping[TensorName, Shape],
    destination: Path,
) -> Path:
    """Write `graph` to `destination` with `names` as further outputs, without types.

    Inputs get the `shapes` in use. Nothing is declared of inner values, so that a runtime which
    loads the file finds out by itself. Constants of 4 KiB and more go beside it.

    Raises:
        InputMismatch: a shape is given for no input, or against what the input declares.
        StorageError: a file cannot be written.
        ModelRefused: external data cannot be read, or the graph alone is above 2 GiB.
    """
    extract(graph, 0, len(graph.nodes), destination, ValueSpecs())
    model = onnx.load(destination, load_external_data=False)
    fixed = {value.name: value for value in fixed_inputs(graph, shapes)}
    for value in model.graph.input:
        if value.name in fixed:
            value.CopyFrom(fixed[value.name])
    given = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in given)
    for value in model.graph.output:
        value.ClearField("type")
    write_graph(model, destination)
    return destination
