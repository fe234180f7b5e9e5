"""Takes a stage of another device's model into the pool, from what was received of it: checked as
if that device meant harm."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from edge_agent.builder.stage_graph import check_graph
from edge_agent.builder.stage_samples import MAX_SAMPLES, check_samples
from edge_agent.config import Limits, Settings
from edge_agent.errors import ModelRefused, ProtocolError, StorageError
from edge_agent.model.admit import AdmissionLimits
from edge_agent.stages import Blob, StageModel
from edge_agent.store.folder import storage_errors
from edge_agent.store.manifests import EntryKind
from edge_agent.store.partial import Partial, PartialStore
from edge_agent.store.pool import POOL_FOLDER, Pool
from edge_agent.store.stage_content import description_of, is_entry_of, read_blob
from edge_agent.wire.cutting import MAX_SEGMENTS, StageAdmitted

log = logging.getLogger(__name__)

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_BESIDE_BYTES: Final = 1 << 20
"""What a packed sample has beside its values."""


def admit_stage(stage: StageModel, settings: Settings) -> StageAdmitted:
    """Make the stage an entry of the pool, of what is in the folder of partial content or in the
    pool already, and remove it from the former. A stage that is an entry, intact, stays one.

    Raises:
        ModelRefused: it is not as it should be, or not as its owner says; ProtocolError: what was
            received is something else. Then nothing of it is kept.
        StorageError: something of it is not here any more: ask again what is missing; or it
            cannot be stored.
    """
    _check_listed(stage, settings.limits)
    return _Admission(stage, settings).admit()


class _Admission:
    def __init__(self, stage: StageModel, settings: Settings) -> None:
        self._stage = stage
        self._limits = settings.limits
        self._pool = Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)
        self._partials = PartialStore(settings.state)
        self._description = description_of(stage)

    def admit(self) -> StageAdmitted:
        has_graph, is_new = self._found()
        if is_new:
            try:
                self._check(has_graph)
            except (ModelRefused, ProtocolError):
                self._discard()
                raise
            self._publish(has_graph)
        self._discard()
        return StageAdmitted(self._stage.id, is_new)

    def _discard(self) -> None:
        self._partials.discard([blob.sha256 for blob in self._stage.blobs])

    def _found(self) -> tuple[bool, bool]:
        """Whether the pool has the graph, and whether it lacks an entry that was checked to be
        exactly this stage."""
        try:
            entry = self._pool.get(self._stage.id)
        except StorageError as damage:
            log.warning("%s; the stage is received again", damage)
            self._pool.forget(self._stage.id)
            return False, True
        if entry is None:
            return False, True
        with entry:
            is_checked = entry.manifest.description == self._description
            return True, not (is_checked and is_entry_of(self._stage, entry.manifest))

    def _check(self, has_graph: bool) -> None:
        """Check all of it before anything is put into the pool."""
        stage = self._stage
        name = f"stage {stage.id[:12]}"
        if has_graph:
            check_graph(stage, self._pool.graph(stage.id), name, self._limits)
        else:
            with self._received(stage.graph) as graph:
                check_graph(stage, graph.path, name, self._limits)
        for blob in (*stage.tensors, *stage.samples):
            if not self._pool.has_tensor(blob.sha256, blob.size_bytes):
                with self._received(blob):
                    pass
        check_samples(stage, [self._content(blob) for blob in stage.samples])

    def _content(self, blob: Blob) -> bytes:
        if self._pool.has_tensor(blob.sha256, blob.size_bytes):
            return read_blob(blob, self._pool)
        with self._opened(blob) as partial:
            return b"".join(map(bytes, partial))  # pieces are valid until the next one

    def _publish(self, has_graph: bool) -> None:
        stage = self._stage
        graph = _read(self._pool.graph(stage.id)) if has_graph else self._content(stage.graph)
        with self._pool.adding(EntryKind.MODEL) as adding:
            for blob in (*stage.tensors, *stage.samples):
                if adding.share(blob.sha256, blob.size_bytes) is None:
                    with self._opened(blob) as partial:
                        adding.adopt(partial.path, blob.sha256, blob.size_bytes)
            adding.publish(stage.id, graph, self._description).release()

    @contextmanager
    def _received(self, blob: Blob) -> Iterator[Partial]:
        """What came, compared with its hash."""
        with self._opened(blob) as partial:
            partial.check()
            yield partial

    @contextmanager
    def _opened(self, blob: Blob) -> Iterator[Partial]:
        """What came of a blob, if that is all of it. Raises: StorageError if it is not."""
        got_bytes = self._partials.received_bytes(blob.sha256)
        if got_bytes != blob.size_bytes:
            raise StorageError(
                f"stage {self._stage.id[:12]}: got {got_bytes} bytes of tensor "
                f"{blob.sha256[:12]}…, want {blob.size_bytes}: ask again what is missing, and "
                "receive that"
            )
        with self._partials.open(blob.sha256, blob.size_bytes) as partial:
            yield partial


def _read(path: Path) -> bytes:
    with storage_errors(path, "read"):
        return path.read_bytes()


def _check_listed(stage: StageModel, limits: Limits) -> None:
    """Check what a stage says of itself before any of it is used as the name of a file or believed
    to be a size.

    Raises: ModelRefused.
    """
    for blob in stage.blobs:
        if not _HASH.fullmatch(blob.sha256) or blob.size_bytes < 1:
            raise ModelRefused(
                f"got a tensor {blob.sha256[:80]!r} of {blob.size_bytes} bytes, want a SHA-256 in "
                "hexadecimal and a size above 0"
            )
    name = f"stage {stage.id[:12]}"
    twice = [
        sha256 for sha256, count in Counter(b.sha256 for b in stage.blobs).items() if count > 1
    ]
    if twice:
        raise ModelRefused(f"{name}: lists {twice[0][:12]}… more than once, want each once")
    if not 1 <= len(stage.samples) <= MAX_SAMPLES:
        raise ModelRefused(f"{name}: got {len(stage.samples)} samples, want 1 to {MAX_SAMPLES}")
    most = AdmissionLimits()
    largest_bytes = max(blob.size_bytes for blob in stage.samples)
    for what, got, want, cure in (
        ("nodes", stage.nodes, most.max_nodes, "divide it further"),
        ("segments", len(stage.starts), MAX_SEGMENTS, "divide it further"),
        ("tensors", len(stage.tensors), most.max_initializers, "divide it further"),
        (
            "bytes of graph",
            stage.graph.size_bytes,
            limits.max_model_bytes,
            "raise max_model_bytes in the settings of its host",
        ),
        (
            "bytes of tensors",
            sum(blob.size_bytes for blob in stage.tensors),
            limits.max_external_bytes,
            "raise max_external_bytes in the settings of its host",
        ),
        (
            "bytes of a sample",
            largest_bytes,
            limits.max_request_bytes + _BESIDE_BYTES,
            "raise max_request_bytes in the settings of its host",
        ),
    ):
        if got > want:
            raise ModelRefused(f"{name}: got {got} {what}, want at most {want}; {cure}")
