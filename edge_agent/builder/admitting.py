"""Takes a model file into the store, checked on the way in, and lets it be opened meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge_agent.config import Settings
from edge_agent.store.models import ModelStore
from edge_agent.wire.messages import Admitted

_LOCATION = b"location"
"""Without these bytes, a model file makes ONNX Runtime open no other file.

External data are found by an entry of a tensor whose key is this word. Protobuf stores a text as
it is, in one piece and uncompressed, so that the word stands in every file that has such an entry,
however hostile; and ONNX Runtime refuses external data without one. A file that has the word for
another reason (as part of a name) only has to wait until it is checked."""


def admit(
    path: Path,
    settings: Settings,
    *,
    on_staged: Callable[[Path], None],
    wait_until_movable: Callable[[], None],
) -> Admitted:
    """Copy the model at `path` with its external data into the store.

    `on_staged` hears where the copy lies that others may open while it is checked, if there is
    one; `wait_until_movable` blocks until they use its path no more, and is called when the model
    is found good.

    Raises:
        ModelRefused: it cannot be accepted; the message names file, place and reason, and nothing
            is left in the store.
        StorageError: the store cannot be written.
    """
    with ModelStore(settings.state).stage(path, settings.limits.max_model_bytes) as staged:
        if not staged.contains(_LOCATION):
            on_staged(staged.path)
        staged.seal()
        # Imports onnx, which takes as long as all the rest: nothing above needs it.
        from edge_agent.builder.inspecting import inspect

        interface = inspect(staged, path, settings.limits)
        wait_until_movable()
        model, stored = staged.commit()
    return Admitted(
        model=model, path=str(stored), inputs=interface.inputs, outputs=interface.outputs
    )
