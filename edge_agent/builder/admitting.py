"""Takes a model file into the store, checked on the way in, and lets it be opened meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_agent.config import Settings
from edge_agent.errors import StorageError
from edge_agent.plans import Pin
from edge_agent.store.models import ModelStore, Staged
from edge_agent.store.pool import POOL_FOLDER, Pool
from edge_agent.store.samples import SampleStore
from edge_agent.subgraphs import ModelId, SampleSetId
from edge_agent.tensors import TensorSpec
from edge_agent.wire.messages import Admitted

log = logging.getLogger(__name__)

_NEVER_LARGE_BYTES = 64 << 20
"""Up to here, nothing has to be imported to know."""
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
    pins: Sequence[Pin] = (),
    samples: Path | None = None,
    on_staged: Callable[[Path], None],
    wait_until_movable: Callable[[], None],
) -> Admitted:
    """Copy the model at `path` with its external data into the store, and the real inputs in the
    folder `samples`.

    `on_staged` hears where the copy lies that others may open while it is checked, if there is
    one; `wait_until_movable` blocks until they use its path no more, and is called when the model
    is found good.

    Raises:
        ModelRefused: it cannot be accepted; the message names file, place and reason, and nothing
            is left in the store.
        UsageError: `pins` mean no node, or more than one unit for a node; a sample is wrong; as
            above.
        StorageError: the store cannot be written.
    """
    pool = Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)
    if path.parent == pool.folder:
        return _described(path, settings)
    with ModelStore(settings.state).stage(path, settings.limits.max_model_bytes) as staged:
        is_large = _is_large(staged.copied_bytes)
        if not is_large and not staged.contains(_LOCATION):
            on_staged(staged.path)
        sha256 = staged.seal()
        # Imports onnx, which takes as long as all the rest: nothing above needs it.
        from edge_agent.builder.inspecting import inspect

        found = inspect(staged.path, path, settings.limits, pins)
        sample_set = _kept_samples(samples, found.inputs, settings)
        wait_until_movable()
        if is_large or found.has_external_data:
            from edge_agent.builder.pooling import add_at_once

            entry = add_at_once(found.proto, path, sha256, pool)
            entry.release()
            model, stored = ModelId(entry.manifest.key), entry.graph
        else:
            model, stored = _committed(staged, ModelId(sha256), pool)
    return Admitted(
        model=model,
        path=str(stored),
        inputs=found.inputs,
        outputs=found.outputs,
        samples=sample_set,
    )


def _kept_samples(
    folder: Path | None, inputs: Sequence[TensorSpec], settings: Settings
) -> SampleSetId | None:
    if folder is None:
        return None
    from edge_agent.builder.given import encode_sample, read_samples

    found = read_samples(folder, inputs, settings.limits)
    return SampleStore(settings.state).put([encode_sample(sample) for sample in found])


def _is_large(model_bytes: int) -> bool:
    """Whether the tensors in the file are to be mapped from the pool from the first session on."""
    if model_bytes <= _NEVER_LARGE_BYTES:
        return False
    from edge_agent.profiling.device import is_large

    return is_large(model_bytes)


def _described(graph: Path, settings: Settings) -> Admitted:
    """A model that the pool has, for an agent that lost what it knew of it."""
    from edge_agent.builder.inspecting import inspect

    found = inspect(graph, graph, settings.limits)
    model = ModelId(graph.stem)
    return Admitted(model=model, path=str(graph), inputs=found.inputs, outputs=found.outputs)


def _committed(staged: Staged, model: ModelId, pool: Pool) -> tuple[ModelId, Path]:
    """The model in its place: the pool has it, if it was loaded before and is intact there."""
    try:
        entry = pool.get(model, thorough=True)
    except StorageError as damage:
        log.warning("%s", damage)
        entry = None
    if entry is None:
        return staged.commit()
    entry.release()
    return model, entry.graph
