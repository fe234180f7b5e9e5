"""Takes a model file into the store, checked on the way in."""

from __future__ import annotations

from pathlib import Path

from edge_agent.config import Settings
from edge_agent.errors import ModelRefused
from edge_agent.model.admit import (
    AdmissionLimits,
    check,
    declared_inputs,
    declared_outputs,
    external_locations,
    read_model,
    unordinary_values,
)
from edge_agent.store.models import ModelStore
from edge_agent.wire.messages import Admitted


def admit(path: Path, settings: Settings) -> Admitted:
    """Copy the model at `path` with its external data into the store.

    Raises:
        ModelRefused: it cannot be accepted; the message names file, place and reason, and nothing
            is left in the store.
        StorageError: the store cannot be written.
    """
    limits = settings.limits
    admission = AdmissionLimits(max_file_bytes=limits.max_model_bytes)
    store = ModelStore(settings.state)
    with store.stage(path, limits.max_model_bytes) as staged:
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
        model_id, stored = staged.commit()
    return Admitted(
        model=model_id,
        path=str(stored),
        inputs=declared_inputs(model),
        outputs=declared_outputs(model),
    )
