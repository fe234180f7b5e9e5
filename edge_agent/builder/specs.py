"""Types and sizes of inner values: by ONNX shape inference, and where that gives up, by asking
ONNX Runtime, which knows its own operators."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edge_agent.engine.specs import infer_specs as ask_runtime
from edge_agent.errors import ModelRefused, RuntimeUnavailable
from edge_agent.model.admit import declared_inputs
from edge_agent.model.graph import ModelGraph
from edge_agent.model.probe import open_values, write_probe
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import Shape, TensorName, ValueSpecs

log = logging.getLogger(__name__)


def inner_specs(graph: ModelGraph, shapes: Mapping[TensorName, Shape], probe: Path) -> ValueSpecs:
    """What can be known of every value of `graph` for the input shapes in use.

    At `probe`, a graph may be written that is not needed afterwards.

    Raises:
        InputMismatch: a shape is given for no input, or against what the input declares.
        StorageError: a file cannot be written.
    """
    specs = infer_specs(graph, shapes)
    names = open_values(graph, specs)
    if not names:
        return specs
    try:
        found = ask_runtime(write_probe(graph, names, shapes, probe), names, {})
    except (ModelRefused, RuntimeUnavailable) as error:
        log.info("ONNX Runtime does not tell the types of inner values: %s", error)
        return specs
    tensors = {n: s for n, s in found.tensors.items() if n not in specs or s.is_static}
    return ValueSpecs(tensors={**specs.tensors, **tensors}, others={**found.others, **specs.others})


def general_specs(graph: ModelGraph, specs: ValueSpecs) -> ValueSpecs:
    """`specs` without the sizes that only hold for the shapes in use.

    What a worker opens must serve every shape that the model allows, and ONNX Runtime believes
    the sizes that a file declares: it would compute `Shape` once and for all. Of a model that
    takes one shape alone, all sizes hold; but a constant that a request may replace is often one.
    """
    if not graph.overridable and len(fixed_shapes(graph)) == len(graph.inputs):
        return specs
    general = infer_specs(graph, {}).tensors
    return ValueSpecs(
        tensors={
            name: general.get(name, replace(spec, dims=None))
            for name, spec in specs.tensors.items()
        },
        others=specs.others,
    )


def fixed_shapes(graph: ModelGraph) -> dict[TensorName, Shape]:
    """The shapes of the inputs that leave nothing open; ONNX Runtime does not tell which of them
    are scalars."""
    return {
        spec.name: tuple(d for d in spec.dims or () if isinstance(d, int))
        for spec in declared_inputs(graph.model)
        if spec.is_static
    }
