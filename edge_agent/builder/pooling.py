"""How models become entries of the pool: their tensors apart, each stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_agent.errors import StorageError
from edge_agent.model.admit import AdmissionLimits, read_model
from edge_agent.model.external import ExternalPlace, StoredChunks
from edge_agent.model.weights import move_out
from edge_agent.store.foreign import SourceFolder
from edge_agent.store.manifests import Entry, EntryKind
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId

if TYPE_CHECKING:
    from onnx import ModelProto


def pooled(model: ModelId, models: ModelStore, pool: Pool) -> Entry:
    """A model of the store as an entry of the pool, where it is put if it is not there, intact.

    Raises: ModelRefused; StorageError if it is nowhere, or damaged.
    """
    try:
        found = pool.get(model)
    except StorageError:
        if model not in models.ids():
            raise
        found = None
    if found is not None:
        return found
    models.verify(model)
    path = models.path(model)
    proto = read_model(path, AdmissionLimits())
    with pool.adding(EntryKind.MODEL) as adding:
        graph = move_out(proto, path.name, partial(StoredChunks, folder=path.parent), adding)
        return adding.publish(model, graph, f"model file {model}")


def add_at_once(proto: ModelProto, source: Path, model_sha256: str, pool: Pool) -> Entry:
    """Put the model that was read from `source`, whose file has that hash, into the pool, with the
    external data beside it.

    Its id is a hash over the file and all that it refers to.

    Raises: ModelRefused if a file is not as it should be, and nothing of it is kept;
        StorageError.
    """
    with SourceFolder(source) as folder, pool.adding(EntryKind.MODEL) as adding:

        def read(place: ExternalPlace) -> Iterator[memoryview]:
            return folder.chunks(place.location, place.offset_bytes, place.length_bytes)

        graph = move_out(proto, source.name, read, adding)
        # The graph that is left names every tensor by its hash.
        hashes = (model_sha256, hashlib.sha256(graph).hexdigest())
        model = hashlib.sha256(msgspec.json.encode(hashes)).hexdigest()
        return adding.publish(model, graph, f"model file {model_sha256} and its data")
