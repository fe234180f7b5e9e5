"""What the pool takes on disk, what goes when that is too much, and what nothing refers to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_agent.store.blobs import PAGE_BYTES, Blobs, Region
from edge_agent.store.folder import free_bytes, storage_errors
from edge_agent.store.manifests import EntryKind, Manifest, Manifests, is_disowned


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """What the pool takes on disk, in bytes."""

    model_bytes: int
    """The models: their graphs and tensors."""
    compiled_bytes: int
    """All that can be compiled again, as far as no model maps it too."""
    budget_bytes: int
    """How much of the latter is kept."""


def sizes(known: Mapping[Path, Manifest], folder: Path, max_compiled_bytes: int) -> PoolSizes:
    """The present sizes, counted by page and each region once.

    Compiled entries may take `max_compiled_bytes`, but at most half of what the disk would have
    free without them. Raises: StorageError.
    """
    models = {r for m in known.values() if m.kind is EntryKind.MODEL for r in m.regions}
    regions = {r for m in known.values() for r in m.regions}
    graphs = Counter[EntryKind]()
    for manifest in known.values():
        graphs[manifest.kind] += _on_disk(manifest.graph_bytes)
    compiled_bytes = graphs[EntryKind.COMPILED] + _sum(regions - models)
    share_bytes = (free_bytes(folder) + compiled_bytes) // 2
    return PoolSizes(
        model_bytes=graphs[EntryKind.MODEL] + _sum(models),
        compiled_bytes=compiled_bytes,
        budget_bytes=min(max_compiled_bytes, share_bytes),
    )


def evict_surplus(manifests: Manifests, max_compiled_bytes: int, folder: Path) -> tuple[Path, ...]:
    """Remove compiled entries, the one used longest ago first, until what is left is within the
    budget; never one that is in use. Raises: StorageError.
    """
    known, _ = manifests.all()
    found = sizes(known, folder, max_compiled_bytes)
    surplus_bytes = found.compiled_bytes - found.budget_bytes
    users = Counter(r for m in known.values() for r in m.regions)
    removed: list[Path] = []
    for path in sorted(_evictable(known), key=_used_at):
        if surplus_bytes <= 0:
            break
        if manifests.remove_unused(path):
            removed.append(path)
            users.subtract(known[path].regions)
            surplus_bytes -= _on_disk(known[path].graph_bytes)
            surplus_bytes -= _sum({r for r in known[path].regions if not users[r]})
    return tuple(removed)


def _evictable(known: Mapping[Path, Manifest]) -> list[Path]:
    return [p for p, m in known.items() if m.kind is EntryKind.COMPILED and not is_disowned(p)]


def _used_at(path: Path) -> tuple[int, str]:
    with storage_errors(path, "read"):
        return path.stat().st_mtime_ns, path.name


def reclaim(known: Mapping[Path, Manifest], blobs: Blobs) -> None:
    """Give back the space of all regions that no entry maps. Raises: StorageError."""
    regions: dict[str, list[Region]] = {}
    for manifest in known.values():
        for region in manifest.regions:
            regions.setdefault(region.blob, []).append(region)
    for blob in blobs.names():
        blobs.keep_only(blob, regions.get(blob, ()))


def _sum(regions: set[Region]) -> int:
    return sum(_on_disk(region.length_bytes) for region in regions)


def _on_disk(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
