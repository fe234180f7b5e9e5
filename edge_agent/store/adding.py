"""How an entry gets into the pool whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path
from typing import Self

from edge_agent.store.blobs import Blobs, Region, digest_of
from edge_agent.store.folder import make_folder, write_file
from edge_agent.store.leases import take_lease
from edge_agent.store.manifests import (
    Entry,
    EntryKind,
    Manifest,
    Manifests,
    graph_sha256,
    is_disowned,
)


class Adding:
    """One entry on its way into the pool, made by `Pool.adding`, which holds the lock meanwhile.

    What it wrote is removed again unless it is published.
    """

    def __init__(self, blobs: Blobs, manifests: Manifests, kind: EntryKind, made: Path) -> None:
        """In `made`, each model has a folder. Raises: StorageError."""
        self._blobs = blobs
        self._manifests = manifests
        self._kind = kind
        self._made = made
        known, _ = manifests.all()
        self._used = _by_blob(known.values())
        """What other entries map, by blob."""
        self._offered = _by_blob(m for path, m in known.items() if not is_disowned(path))
        """What this one may map too: disowned entries may map a file that has been replaced, or
        were disowned because they are damaged."""
        self._regions: dict[Region, None] = {}
        self._published: Path | None = None
        """Where the manifest is being written."""
        self._before_bytes: dict[str, int] = {}
        """How long the files have to be again, unless this is published."""
        self._written: dict[str, bool] = {}
        """The files that were written to, and whether all that is in them is known to be good."""

    def tensor(self, chunks: Iterable[bytes | memoryview]) -> str:
        """Store the bytes of a tensor; returns their location from the pool's folder on, which
        ends with their SHA-256.

        Raises: StorageError; what `chunks` raises.
        """
        # Who loads a model again may do so because its tensors are damaged.
        doubt = self._kind is EntryKind.MODEL
        region, is_new = self._blobs.put(chunks, doubt=doubt)
        if is_new:
            self._written[region.blob] = True
            if region.blob in self._used:
                self._drop_forms(region.blob)
            else:
                self._before_bytes.setdefault(region.blob, 0)
        return self._mapped(region)

    def share(self, blob: str, length_bytes: int) -> str | None:
        """Use the tensor with that hash as it is here, so that it need not be read; its location,
        or None if it is not here or not good. Raises: StorageError.
        """
        region = self._blobs.share(blob, length_bytes)
        return None if region is None else self._mapped(region)

    def adopt(self, source: Path, blob: str, length_bytes: int) -> str:
        """Move the file at `source`, which was compared with that hash, here as a tensor; its
        location.

        It stays, until the pool is tidied, if the entry is not published: it took long to come.
        Raises: StorageError.
        """
        region = self._blobs.adopt(source, blob, length_bytes)
        if blob in self._used:
            self._drop_forms(blob)
        return self._mapped(region)

    def _mapped(self, region: Region) -> str:
        self._regions[region] = None
        return f"{self._blobs.folder.name}/{region.blob}"

    def _drop_forms(self, blob: str) -> None:
        """The file of a damaged tensor was replaced: the forms behind it are gone."""
        self._drop_users({r for r in self._used[blob] if r.offset_bytes})

    def form(self, location: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Store a form of the tensor at `location`; returns its offset in bytes there.

        One that is there already is used, if `chunks` can be gone through twice.
        Raises: StorageError; what `chunks` raises.
        """
        blob = location.rpartition("/")[2]
        own = {r for r in self._regions if r.blob == blob}
        known = digest_of(chunks)
        for region in own | self._offered.get(blob, set()):
            if (region.length_bytes, region.sha256) == known:
                if self._blobs.is_intact(region):
                    self._regions[region] = None
                    return region.offset_bytes
                self._drop_users({region})
        used_bytes = max(region.stop_bytes for region in own | self._used.get(blob, set()))
        self._before_bytes.setdefault(blob, used_bytes)
        self._written.setdefault(blob, self._blobs.is_sealed(blob))
        made = self._blobs.append(blob, chunks, used_bytes)
        self._regions[made] = None
        return made.offset_bytes

    def _drop_users(self, lost: Set[Region]) -> None:
        """Let nobody begin to use what maps these regions any more."""
        known, _ = self._manifests.all()
        for path, manifest in known.items():
            if not is_disowned(path) and not lost.isdisjoint(manifest.regions):
                self._manifests.drop(path)
        for regions in self._offered.values():
            regions -= lost

    def publish(self, key: str, graph: bytes, description: str) -> Entry:
        """Force all of it to disk, then give it its key, in place of what had it; returns it in
        use.

        Raises: StorageError.
        """
        if self._kind is EntryKind.MODEL:
            make_folder(self._made / key)
        for blob, is_good in self._written.items():
            self._blobs.seal(blob, is_good=is_good)
        self._blobs.sync_names()
        manifest_path = self._published = self._manifests.path(key)
        self._manifests.drop(manifest_path)
        path = self._manifests.graph(key)
        write_file(path, graph)
        size_bytes, sha256 = graph_sha256(path)
        manifest = Manifest(
            kind=self._kind,
            key=key,
            description=description,
            graph_bytes=size_bytes,
            graph_sha256=sha256,
            regions=tuple(self._regions),
        )
        self._manifests.write(manifest)
        self._before_bytes.clear()
        lease = take_lease(manifest_path)
        assert lease is not None, "only who has the pool's lock removes entries"
        return Entry(graph=path, manifest=manifest, lease=lease)

    def _undo(self) -> None:
        if self._before_bytes and self._published is not None:
            self._manifests.drop(self._published)
        for blob, size_bytes in self._before_bytes.items():
            self._blobs.cut(blob, size_bytes)
            if size_bytes and self._written.get(blob):
                self._blobs.seal(blob)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo()


def _by_blob(manifests: Iterable[Manifest]) -> dict[str, set[Region]]:
    found: dict[str, set[Region]] = {}
    for manifest in manifests:
        for region in manifest.regions:
            found.setdefault(region.blob, set()).add(region)
    return found
