"""Runs of segments of a loaded model as models of their own, for the devices that host them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from edge_agent.builder.compiler import Compiler
from edge_agent.builder.made_up import Samples
from edge_agent.builder.pooling import pooled
from edge_agent.builder.sampling import Sampling
from edge_agent.builder.specs import fixed_shapes, general_specs, inner_specs
from edge_agent.builder.stage_graph import check_same_nodes, tensor_ends
from edge_agent.builder.stage_samples import MAX_SAMPLES, pack, shapes_of
from edge_agent.builder.workshop import Values, Workshop, fed
from edge_agent.config import Settings
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused, StorageError
from edge_agent.model.admit import AdmissionLimits, external_places, read_model
from edge_agent.model.divide import summarise
from edge_agent.model.external import StoredChunks
from edge_agent.model.graph import ModelGraph
from edge_agent.model.weights import Chunks, move_out
from edge_agent.profiling.device import device_key, is_large
from edge_agent.stages import Blob, StageModel
from edge_agent.store.adding import Adding
from edge_agent.store.cuts import CutStore, key_of
from edge_agent.store.manifests import EntryKind
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import BLOBS_FOLDER, POOL_FOLDER, Pool
from edge_agent.store.stage_content import description_of, is_entry_of
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Arrays, required
from edge_agent.wire.cutting import CutStages

if TYPE_CHECKING:
    from onnx import ModelProto

log = logging.getLogger(__name__)


def cut_stages(
    asked: CutStages, settings: Settings, grant: Callable[[], None] = lambda: None
) -> tuple[StageModel, ...]:
    """The stages that are asked for, as entries of the pool: found there, or cut out and put there.

    `grant` is called before something is run, and may block until that is welcome.

    Raises:
        ModelRefused: the model has no such segments, cannot be divided there for devices, or runs
            on no sample.
        StorageError: it is not in the store, or a stage cannot be stored.
    """
    with ExitStack() as in_use:
        cutting = _Cutting(asked, settings, grant, in_use)
        found = {part: stage for part in asked.ranges if (stage := cutting.kept(part)) is not None}
        if wanted := sorted({*asked.ranges} - found.keys(), key=lambda p: (p.start, p.stop)):
            found |= cutting.made(wanted)
        return tuple(found[part] for part in asked.ranges)


class _Cutting:
    """One request; the entries that it found or made are held by `in_use`."""

    def __init__(
        self, asked: CutStages, settings: Settings, grant: Callable[[], None], in_use: ExitStack
    ) -> None:
        self._asked = asked
        self._settings = settings
        self._grant = grant
        self._in_use = in_use
        self._pool = Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)
        self._cuts = CutStore(settings.state)

    def kept(self, part: SegmentRange) -> StageModel | None:
        """The stage if it was cut before and all of it is still there."""
        stage = self._cuts.get(key_of(self._asked, part))
        if stage is None:
            return None
        try:
            entry = self._pool.get(stage.id)
        except StorageError as damage:
            log.warning("%s; the stage is cut again", damage)
            return None
        if entry is None:
            return None
        self._in_use.enter_context(entry)
        return stage if is_entry_of(stage, entry.manifest) else None

    def made(self, parts: Sequence[SegmentRange]) -> dict[SegmentRange, StageModel]:
        """Stages of these, ascending."""
        asked = self._asked
        for part in parts:
            if part.stop > len(asked.starts):
                raise ModelRefused(
                    f"model {asked.model[:12]}…: got segments {part}, want a range within its "
                    f"{len(asked.starts)} segments"
                )
        with pooled(asked.model, ModelStore(self._settings.state), self._pool) as entry:
            graph = ModelGraph.load(entry.graph)
            large = is_large(entry.manifest.weight_bytes)
            samples = self._samples(graph, large)
            with Compiler(self._pool, asked.model, device_key()) as compiler:
                specs = inner_specs(graph, samples.shapes, compiler.draft("probe.onnx"))
                summary = summarise(graph, asked.model, samples.shapes, specs, starts=asked.starts)
                workshop = Workshop(
                    graph, summary, general_specs(graph, specs), compiler, is_large=large
                )
                return self._cut(parts, workshop, samples.arrays)

    def _samples(self, graph: ModelGraph, large: bool) -> Samples:
        session = Session.open(
            graph.path, threads=None, level=OptimisationLevel.ALL, plain=True, lean=large
        )
        asked = self._asked
        sampling = Sampling(settings=self._settings, shapes=asked.shapes, samples=asked.samples)
        found, given = sampling.find(session, fixed_shapes(graph), self._grant)
        if found is None:
            raise ModelRefused(
                f"model {asked.model[:12]}…: does not run on made-up inputs, so no other device "
                "could measure a part of it; load it with --samples DIR"
            )
        # Of several that a user gave the first stands for all; what is made up differs from it.
        chosen = (*found.arrays[: min(given, 1)], *found.arrays[given:])
        return Samples(arrays=chosen[:MAX_SAMPLES], shapes=found.shapes)

    def _cut(
        self, parts: Sequence[SegmentRange], workshop: Workshop, samples: Sequence[Arrays]
    ) -> dict[SegmentRange, StageModel]:
        # What cannot be a stage is refused before anything is run for it.
        pieces = [_Piece(part, workshop, self._asked.model) for part in parts]
        values: list[Values] = [dict(arrays) for arrays in samples]
        known = 0
        stages: dict[SegmentRange, StageModel] = {}
        for piece in pieces:
            start = piece.segments.start
            if known < start:
                between = workshop.plain(SegmentRange(start=known, stop=start))
                values = [self._passed(sample, between) for sample in values]
                known = start
            stages[piece.segments] = self._stored(piece, values)
        return stages

    def _passed(self, values: Values, session: Session) -> Values:
        """All values that are known behind a part of the model."""
        self._grant()
        return values | session.run_inside(fed(session, values), session.output_names)

    def _stored(self, piece: _Piece, values: Sequence[Values]) -> StageModel:
        """The stage as an entry of the pool."""
        samples = piece.samples(values)
        packed = pack(samples)
        proto = read_model(piece.source, AdmissionLimits())
        read = partial(StoredChunks, folder=self._pool.folder)
        with self._pool.adding(EntryKind.MODEL) as adding:
            graph = move_out(proto, piece.source.name, read, _Place(adding))
            for sample in packed:
                adding.tensor([sample])
            stage = piece.described(graph, proto, packed, samples)
            # Before the entry: one that no record tells of goes when the pool is tidied.
            self._cuts.put(key_of(self._asked, piece.segments), stage)
            entry = adding.publish(stage.id, graph, description_of(stage))
        self._in_use.enter_context(entry)
        return stage


class _Piece:
    """A run of segments, cut out."""

    def __init__(self, segments: SegmentRange, workshop: Workshop, model: ModelId) -> None:
        """Raises: ModelRefused: it cannot be cut out, or cannot be a stage."""
        self.segments = segments
        self.name = f"segments {segments} of model {model[:12]}…"
        self.source = workshop.source(segments)
        self._model = model
        start, stop = workshop.nodes(segments)
        check_same_nodes(ModelGraph.load(self.source), workshop.graph, start, stop)
        if start == stop:
            raise ModelRefused(f"{self.name}: have no nodes, so there is nothing to run elsewhere")
        self._nodes = stop - start
        parts = workshop.summary.segments[segments.start : segments.stop]
        self._starts = tuple(part.start - start for part in parts)
        proto = read_model(self.source, AdmissionLimits())
        self._inputs, self._outputs = tensor_ends(proto, self.name)

    def samples(self, values: Sequence[Values]) -> list[Arrays]:
        """What comes in, of all that is known before it; the first, and others of its shapes."""
        wanted = required(self._inputs)
        optional = [spec.name for spec in self._inputs if spec.has_default]
        found: list[Arrays] = [
            {name: known[name] for name in (*wanted, *(o for o in optional if o in known))}
            for known in values
        ]
        shapes = shapes_of(found[0], self._inputs)
        return [arrays for arrays in found if shapes_of(arrays, self._inputs) == shapes]

    def described(
        self,
        graph: bytes,
        proto: ModelProto,
        packed: Sequence[bytes],
        samples: Sequence[Arrays],
    ) -> StageModel:
        """What its host is told of the graph, which is `proto`, and of what belongs to it."""
        places = external_places(proto, self.source)
        tensors = {(place.location.rpartition("/")[2], place.length_bytes) for place in places}
        return StageModel(
            model=self._model,
            segments=self.segments,
            starts=self._starts,
            nodes=self._nodes,
            graph=_blob(graph),
            tensors=tuple(Blob(sha256=name, size_bytes=size) for name, size in sorted(tensors)),
            samples=tuple(map(_blob, packed)),
            inputs=self._inputs,
            outputs=self._outputs,
            shapes=shapes_of(samples[0], self._inputs),
        )


class _Place:
    """Where the tensors of a stage are kept: the pool has most of them, and need not read them."""

    def __init__(self, adding: Adding) -> None:
        self._adding = adding

    def tensor(self, chunks: Chunks) -> str:
        """See `model.weights.TensorPlace`."""
        if isinstance(chunks, StoredChunks):
            place = chunks.place
            folder, _, blob = place.location.rpartition("/")
            if folder == BLOBS_FOLDER and place.offset_bytes == 0:
                location = self._adding.share(blob, place.length_bytes)
                if location is not None:
                    return location
        return self._adding.tensor(chunks)


def _blob(content: bytes) -> Blob:
    return Blob(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
