"""Types and sizes of inner values: by ONNX shape inference, and where that gives up, by asking
ONNX Runtime, which knows its own operators."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from edge_agent.engine.specs import infer_specs as ask_runtime
from edge_agent.errors import ModelRefused, RuntimeUnavailable
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
