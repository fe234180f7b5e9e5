"""Checks a staged model, and reads what it takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.config import Limits
from edge_agent.engine.memory import bounded_memory, enough_for
from edge_agent.model.admit import (
    AdmissionLimits,
    check,
    declared_inputs,
    declared_outputs,
    external_places,
    read_model,
    too_much_to_read,
)
from edge_agent.model.graph import ModelGraph
from edge_agent.model.pins import pinned_units
from edge_agent.plans import Pin
from edge_agent.tensors import TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """A model that may be accepted."""

    proto: ModelProto
    has_external_data: bool
    inputs: tuple[TensorSpec, ...]
    """What a request gives."""
    outputs: tuple[TensorSpec, ...]


def inspect(staged: Path, path: Path, limits: Limits, pins: Sequence[Pin] = ()) -> Inspected:
    """Check the model of which `staged` is a copy.

    `path` is what the user named: external data lie beside it, and messages name it.

    Raises:
        ModelRefused: it cannot be accepted; the message names file, place and reason.
        UsageError: `pins` mean no node, or more than one unit for a node.
    """
    try:
        with bounded_memory(enough_for(staged.stat().st_size)):
            found = _inspect(staged, path, limits)
            if pins:
                pinned_units(ModelGraph.from_model(deepcopy(found.proto), path), pins)
            return found
    except MemoryError as error:
        raise too_much_to_read(path.name) from error


def _inspect(staged: Path, path: Path, limits: Limits) -> Inspected:
    admission = AdmissionLimits(
        max_file_bytes=limits.max_model_bytes, max_external_bytes=limits.max_external_bytes
    )
    model = read_model(staged, admission, path.name)
    check(model, path, path.parent, admission, runtime_opset=None)
    return Inspected(
        proto=model,
        has_external_data=bool(external_places(model, path)),
        inputs=declared_inputs(model),
        outputs=declared_outputs(model),
    )
