"""Where weights lie once: which graphs share them, who uses them, and what goes first.

    pool/
    ├── lock               held by who adds or removes, not by who reads
    ├── KEY.onnx           a graph; its larger tensors are references into blobs/
    ├── KEY.json           what it maps, with hashes; the entry exists once this file does
    ├── blobs/SHA256       a tensor, and behind it the prepacked forms that were made of it
    ├── made/MODEL/KEY     empty: the compiled entry KEY was made, or used, for that model
    └── .part-…            parts of models that are being compiled

Whatever is written is forced to disk before the manifest gets its name, so that a crash leaves
files that nothing refers to and no more; `collect` removes them. Who uses an entry holds a lease on
it: its regions are neither given back nor written over until the lease ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from edge_agent.errors import StorageError
from edge_agent.store.adding import Adding
from edge_agent.store.blobs import Blobs, Region
from edge_agent.store.drafts import Drafts, sweep_drafts
from edge_agent.store.folder import (
    StagingFolder,
    entries,
    make_folder,
    remove_file,
    remove_tree,
    storage_errors,
    sweep_staging,
    sweep_temporaries,
)
from edge_agent.store.leases import take_lease
from edge_agent.store.lock import exclusively, exclusively_now
from edge_agent.store.manifests import (
    GRAPH_SUFFIX,
    Entry,
    EntryKind,
    Manifest,
    Manifests,
    graph_sha256,
    is_disowned,
)
from edge_agent.store.upkeep import PoolSizes, evict_surplus, reclaim, sizes
from edge_agent.subgraphs import ModelId

_log = logging.getLogger(__name__)

POOL_FOLDER = "pool"
"""Where the pool lies in the state folder."""
BLOBS_FOLDER = "blobs"
"""Where the tensors lie in the pool: graphs name them from there on."""
_LOAD_AGAIN = "load the model again from its source"


class Pool:
    """The pool at `folder`; several processes may use it at once."""

    def __init__(self, folder: Path, max_compiled_bytes: int) -> None:
        """`max_compiled_bytes` bounds what is kept of what can be compiled again.

        Raises: StorageError.
        """
        self.folder = folder
        self._max_compiled_bytes = max_compiled_bytes
        self._blobs = Blobs(folder / BLOBS_FOLDER)
        self._made = folder / "made"
        self._staging = folder / "staging"
        for part in (self._made, self._staging):
            make_folder(part)
        self._lock = folder / "lock"
        self._manifests = Manifests(folder)

    # ---- using

    def get(self, key: str, *, thorough: bool = False) -> Entry | None:
        """Begin to use the entry of that key; None if there is none.

        Its graph is compared with its hash. So are the regions of files that were written to
        since they were found good, and all of them if `thorough` (about 0.7 s/GB). An entry that
        can be compiled again is removed if it is damaged, which is logged.
        Raises: StorageError if a model is damaged, or damage cannot be removed.
        """
        path = self._manifests.path(key)
        lease = take_lease(path)
        if lease is None:
            return None
        try:
            manifest = self._checked(path, thorough=thorough)
        except StorageError as damage:
            lease.release()
            self._refuse(path, damage)
            return None
        except BaseException:
            lease.release()
            raise
        return Entry(graph=self._manifests.graph(key), manifest=manifest, lease=lease)

    def _checked(self, path: Path, *, thorough: bool) -> Manifest:
        manifest = self._manifests.read(path)
        assert manifest is not None, "its lease is ours"
        graph = self._manifests.graph(manifest.key)
        if graph_sha256(graph) != (manifest.graph_bytes, manifest.graph_sha256):
            raise StorageError(f"{graph}: is damaged: its SHA-256 differs")
        files = {blob: self._blobs.state(blob) for blob in {r.blob for r in manifest.regions}}
        for region in manifest.regions:
            got_bytes, is_sealed = files[region.blob]
            self._check(region, got_bytes, reads=thorough or not is_sealed)
        touched = {blob for blob, (_, is_sealed) in files.items() if not is_sealed}
        if touched:
            self._seal_if_good(touched)
        return manifest

    def _check(self, region: Region, got_bytes: int, *, reads: bool) -> None:
        path = self._blobs.path(region.blob)
        if got_bytes < region.stop_bytes:
            raise StorageError(
                f"{path}: is damaged: got {got_bytes} bytes, want {region.stop_bytes} or more"
            )
        if reads and not self._blobs.is_intact(region):
            raise StorageError(
                f"{path}: is damaged: the SHA-256 of bytes {region.offset_bytes} to "
                f"{region.stop_bytes} differs"
            )

    def _seal_if_good(self, blobs: Set[str]) -> None:
        """Spare the next user the reading of files of which all regions are good, unless somebody
        is writing to one just now."""
        with exclusively_now(self._lock) as is_ours:
            if not is_ours:
                return
            known, _ = self._manifests.all()
            for blob in blobs:
                regions = {r for m in known.values() for r in m.regions if r.blob == blob}
                if all(self._blobs.is_intact(r) for r in regions):
                    self._blobs.seal(blob)

    def _refuse(self, path: Path, damage: StorageError) -> None:
        """Remove a damaged entry. Raises: `damage` if it is a model, which cannot be made again."""
        if self._is_model(_key(path)):
            raise StorageError(f"{damage}; {_LOAD_AGAIN}") from damage
        _log.warning("%s; removed, it will be compiled again", damage)
        with exclusively(self._lock):
            self._manifests.drop(path)

    def _is_model(self, key: str) -> bool:
        return (self._made / key).is_dir()

    def holds(self, graph: Path) -> bool:
        """Whether `graph` belongs to an entry that `get` would return now. Raises: StorageError."""
        if graph.parent != self.folder or graph.suffix != GRAPH_SUFFIX:
            return False
        found = self.get(_key(graph))
        if found is not None:
            found.release()
        return found is not None

    def graph(self, key: str) -> Path:
        """Where the graph of an entry lies. Raises: StorageError if there is no such entry."""
        graph = self._manifests.graph(key)
        for path in (self._manifests.path(key), graph):
            if not path.is_file():
                raise StorageError(f"{path}: is missing; {_LOAD_AGAIN}")
        return graph

    def manifest(self, key: str) -> Manifest | None:
        """What an entry is made of, whether it is intact or not; None if there is none.

        Raises: StorageError if that is damaged.
        """
        return self._manifests.read(self._manifests.path(key))

    def tensor(self, sha256: str) -> Path:
        """Where the tensor with that hash lies, at the beginning of a file, or would."""
        return self._blobs.path(sha256)

    def has_tensor(self, sha256: str, size_bytes: int) -> bool:
        """Whether that tensor is here and as it was left; reads nothing of it.

        Raises: StorageError.
        """
        got_bytes, is_sealed = self._blobs.state(sha256)
        return is_sealed and got_bytes >= size_bytes

    def models(self) -> tuple[ModelId, ...]:
        """The models that are here, intact or not, sorted. Raises: StorageError."""
        return tuple(
            ModelId(p.name) for p in entries(self._made) if self._manifests.path(p.name).exists()
        )

    def drafts(self) -> Drafts:
        """Names for graphs that may refer to the blobs here; to be used as a context manager.

        Raises: StorageError.
        """
        return Drafts(self.folder)

    def workspace(self) -> StagingFolder:
        """A folder for what is made on the way into the pool; to be used as a context manager.

        Raises: StorageError.
        """
        return StagingFolder(self._staging)

    # ---- adding and removing

    @contextmanager
    def adding(self, kind: EntryKind) -> Iterator[Adding]:
        """Add an entry, while other processes wait that add or remove: nothing else of this pool
        may be called meanwhile.

        Raises: StorageError; then nothing of it is left.
        """
        with (
            exclusively(self._lock),
            Adding(self._blobs, self._manifests, kind, self._made) as adding,
        ):
            yield adding

    def note(self, model: ModelId, key: str) -> None:
        """Say, before it is asked for, that the compiled entry `key` is for `model`: it stays as
        long as one of its models does. Raises: StorageError.
        """
        folder = self._made / model
        make_folder(folder)
        with storage_errors(folder, "write"):
            (folder / key).touch(mode=0o600)

    def forget(self, key: str) -> None:
        """Remove an entry, intact or not, if it is there; its tensors go when the pool is tidied.

        Raises: StorageError.
        """
        with exclusively(self._lock):
            self._manifests.drop(self._manifests.path(key))

    def collect(self, keep: Set[ModelId]) -> None:
        """Remove what is not needed: models that are not in `keep`, what was compiled for none of
        those in it, what is above the budget, and what a crash left.

        What somebody uses stays until the next time; so does everything while another process
        adds, which may take long. Raises: StorageError.
        """
        with exclusively_now(self._lock) as is_ours:
            if is_ours:
                self._collect(keep)

    def _collect(self, keep: Set[ModelId]) -> None:
        for folder in entries(self._made):
            if folder.name not in keep:
                remove_tree(folder, self._staging)
        wanted = keep | {p.name for folder in entries(self._made) for p in entries(folder)}
        known, damages = self._manifests.all()
        unreadable = {path for path in damages if not self._is_model(_key(path))}
        for path in (*known, *damages):
            if is_disowned(path) or _key(path) not in wanted or path in unreadable:
                self._manifests.remove_unused(path)
        evict_surplus(self._manifests, self._max_compiled_bytes, self.folder)
        self._reclaim()

    def evict(self) -> None:
        """Remove what is above the budget and not in use. Raises: StorageError."""
        with exclusively(self._lock):
            if evict_surplus(self._manifests, self._max_compiled_bytes, self.folder):
                self._reclaim()

    def _reclaim(self) -> None:
        known, damages = self._manifests.all()
        for path in entries(self.folder):
            is_graph = path.suffix == GRAPH_SUFFIX and not path.name.startswith(".")
            if is_graph and not self._manifests.path(_key(path)).exists():
                remove_file(path)
        if damages:
            # What they map is not known, and somebody may have mapped it.
            _log.warning("the pool is not tidied: %s", next(iter(damages.values())))
            return
        reclaim(known, self._blobs)

    def sizes(self) -> PoolSizes:
        """What it takes on disk. Raises: StorageError."""
        known, _ = self._manifests.all()
        return sizes(known, self.folder, self._max_compiled_bytes)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what dead processes left half-done; returns what was removed.

        Raises: StorageError.
        """
        return (
            *self._blobs.sweep(),
            *sweep_temporaries(self.folder),
            *sweep_drafts(self.folder),
            *sweep_staging(self._staging),
        )


def _key(path: Path) -> str:
    return path.name.split(".")[0]


def entry_of(graph: Path) -> Entry | None:
    """The use of the entry of the pool that `graph` belongs to; None if it lies in no pool.

    Raises: StorageError if it is gone or damaged.
    """
    if not (graph.parent / BLOBS_FOLDER).is_dir():
        return None
    found = Pool(graph.parent, max_compiled_bytes=0).get(_key(graph))
    if found is None:
        raise StorageError(f"{graph}: is gone or damaged: it has to be compiled again")
    return found
