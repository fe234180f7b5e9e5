"""Which content a stage consists of here: what is missing of it, and where the rest lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from edge_agent.errors import StorageError
from edge_agent.stages import Blob, StageModel
from edge_agent.store.folder import storage_errors
from edge_agent.store.manifests import Manifest
from edge_agent.store.pool import Pool


def missing(stage: StageModel, pool: Pool) -> tuple[Blob, ...]:
    """What has to be received before the stage can be taken into the pool.

    It reads no tensor, only how large it is and whether it is as it was left. What is here without
    an entry goes when the pool is tidied: then it is missing the next time. If something is, so is
    the graph, which is small: an entry that lost a tensor is removed before it is made again.
    Raises: StorageError.
    """
    tensors = [
        blob
        for blob in (*stage.tensors, *stage.samples)
        if not pool.has_tensor(blob.sha256, blob.size_bytes)
    ]
    return () if not tensors and _has_graph(stage, pool) else (stage.graph, *tensors)


def _has_graph(stage: StageModel, pool: Pool) -> bool:
    try:
        manifest = pool.manifest(stage.id)
        return (
            manifest is not None
            and manifest.graph_sha256 == stage.graph.sha256
            and pool.graph(stage.id).stat().st_size == stage.graph.size_bytes
        )
    except (StorageError, OSError):
        return False  # damaged, or going just now: it is received again


def places(stage: StageModel, pool: Pool) -> dict[str, Path]:
    """Where all of it lies, by hash, each at the beginning of a file.

    Raises: StorageError if it is no entry of the pool.
    """
    tensors = {b.sha256: pool.tensor(b.sha256) for b in (*stage.tensors, *stage.samples)}
    return {stage.graph.sha256: pool.graph(stage.id), **tensors}


def description_of(stage: StageModel) -> str:
    """What an entry that was checked to be this stage is described by: all that its owner says of
    it, so that it need not be checked again."""
    said = hashlib.sha256(msgspec.json.encode(stage)).hexdigest()
    return f"segments {stage.segments} of model {stage.model}, as stated in {said}"


def is_entry_of(stage: StageModel, manifest: Manifest) -> bool:
    """Whether an entry has exactly the content of the stage, samples among it."""
    wanted = {(b.sha256, b.size_bytes) for b in (*stage.tensors, *stage.samples)}
    found = {(r.blob, r.length_bytes) for r in manifest.regions}
    return manifest.graph_sha256 == stage.graph.sha256 and found == wanted


def read_blob(blob: Blob, pool: Pool) -> bytes:
    """The content of a small tensor of the pool, a sample. Raises: StorageError."""
    path = pool.tensor(blob.sha256)
    with storage_errors(path, "read"), path.open("rb") as file:
        return file.read(blob.size_bytes)
