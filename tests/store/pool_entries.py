"""Entries for tests of the pool: made-up graphs with made-up tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_agent.store.manifests import EntryKind
from edge_agent.store.pool import Entry, Pool
from edge_agent.subgraphs import ModelId

BUDGET_BYTES = 1 << 30


def open_pool(folder: Path, budget_bytes: int = BUDGET_BYTES) -> Pool:
    return Pool(folder / "pool", budget_bytes)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def add(
    pool: Pool,
    key: str,
    tensors: Mapping[bytes, Sequence[bytes]],
    *,
    kind: EntryKind = EntryKind.COMPILED,
    model: str = "m",
    graph: bytes = b"graph",
) -> list[int]:
    """Add an entry of tensors with their forms; returns the offsets of the forms, in order."""
    if kind is EntryKind.COMPILED:
        pool.note(ModelId(model), key)
    offsets = []
    with pool.adding(kind) as adding:
        for content, forms in tensors.items():
            blob = adding.tensor([content])
            offsets += [adding.form(blob, [form]) for form in forms]
        adding.publish(key, graph, f"entry {key}").release()
    return offsets


def intact(pool: Pool, key: str, *, thorough: bool = True) -> bool:
    found = pool.get(key, thorough=thorough)
    if found is not None:
        found.release()
    return found is not None


def taken(pool: Pool, key: str) -> Entry:
    found = pool.get(key)
    assert found is not None
    return found


def blob_path(pool: Pool, content: bytes) -> Path:
    return pool.folder / "blobs" / digest(content)


def stored(pool: Pool) -> list[str]:
    """All files of the pool but its lock, relative to it."""
    paths = (p for p in pool.folder.rglob("*") if p.is_file())
    return sorted(str(p.relative_to(pool.folder)) for p in paths if p.name != "lock")
