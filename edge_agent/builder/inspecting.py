"""Checks a staged model, fetches its external data, and reads what it takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_agent.config import Limits
from edge_agent.engine.memory import bounded_memory, enough_for
from edge_agent.errors import ModelRefused
from edge_agent.model.admit import (
    AdmissionLimits,
    check,
    declared_inputs,
    declared_outputs,
    external_locations,
    read_model,
    too_much_to_read,
    unordinary_values,
)
from edge_agent.store.models import Staged
from edge_agent.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What a request gives to a model and gets from it."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def inspect(staged: Staged, path: Path, limits: Limits) -> Interface:
    """Check the model of which `staged` holds a copy; its external data are copied too.

    `path` is what the user named: external data lie beside it, and messages name it.

    Raises:
        ModelRefused: it cannot be accepted; the message names file, place and reason.
        StorageError: its external data cannot be stored.
    """
    try:
        with bounded_memory(enough_for(staged.copied_bytes)):
            return _inspect(staged, path, limits)
    except MemoryError as error:
        raise too_much_to_read(path.name) from error


def _inspect(staged: Staged, path: Path, limits: Limits) -> Interface:
    admission = AdmissionLimits(
        max_file_bytes=limits.max_model_bytes, max_external_bytes=limits.max_external_bytes
    )
    model = read_model(staged.path, admission, path.name)
    left_bytes = limits.max_external_bytes
    for location in external_locations(model, path):
        before_bytes = staged.copied_bytes
        staged.add_external(location, path.parent, left_bytes)
        left_bytes -= staged.copied_bytes - before_bytes
    check(model, path, staged.path.parent, admission, runtime_opset=None)
    unordinary = unordinary_values(model)
    if unordinary:
        raise ModelRefused(
            f'{path.name}: "{unordinary[0]}" is an input or output that is no tensor (a '
            "sequence, map or optional); such models cannot be served yet"
        )
    return Interface(inputs=declared_inputs(model), outputs=declared_outputs(model))
