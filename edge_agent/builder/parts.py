"""How a model becomes a folder of part files, and the manifest that says how they fit together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_agent import __version__
from edge_agent.builder.source import external_files, ranked
from edge_agent.errors import ModelRefused
from edge_agent.model.admit import external_locations
from edge_agent.model.cuts import crossing_names
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.model.interface import (
    DeclaredInterface,
    DeclaredValue,
    declared_interface,
    read_interface,
)
from edge_agent.model.values import spec_bytes
from edge_agent.store.output import (
    MANIFEST_FILE,
    FileDigest,
    digest,
    stamp,
    write_text,
    written_folder,
)
from edge_agent.tensors import TensorName, ValueSpecs

FORM = 1
_HASHING_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value at a border, and where it comes from."""

    name: str
    type: str
    dims: tuple[int | str | None, ...] | None
    """A number, a name or null (not known) for each dimension; null if the rank is not known."""
    from_part: int | None
    """The number of the part that computes it, from 1; null for an input of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingTensor(Value):
    """A value that crosses a cut."""

    bytes: int | None
    """For the shapes in use; null where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """An input of the whole model."""

    name: str
    type: str
    dims: tuple[int | str | None, ...] | None
    has_default: bool
    read_by: tuple[int, ...]
    """Numbers of the parts that take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part, as a model file of its own."""

    file: str
    bytes: int
    sha256: str
    weights: FileDigest | None
    """The file beside it with its larger constants, if it has any."""
    nodes: tuple[int, int]
    """Nodes [start, stop) of the topological order."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Between part i and part i + 1, in order."""

    position: int
    crossing: tuple[CrossingTensor, ...]
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The model that was divided."""

    file: str
    bytes: int
    sha256: str
    external_data: tuple[FileDigest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What manifest.json holds; the README shows how to run the parts with it."""

    form: int
    made_by: str
    source: Source
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[ModelInput, ...]
    outputs: tuple[Value, ...]
    """In the order of the model, one that is listed twice there twice."""
    parts: tuple[Part, ...]
    """In the order in which they run."""
    cuts: tuple[Cut, ...]

    @property
    def rankless(self) -> tuple[str, ...]:
        """Tensors between parts, inputs and outputs of unknown rank: ONNX allows them, but
        onnx.checker does not."""
        values = (v for part in self.parts for v in (*part.inputs, *part.outputs))
        return tuple(dict.fromkeys(v.name for v in values if v.dims is None and "(" not in v.type))


def write_parts(
    graph: ModelGraph,
    cuts: Sequence[int],
    general: ValueSpecs,
    sizes: ValueSpecs,
    target: Path,
    *,
    is_replaced: bool = False,
) -> Manifest:
    """Write the parts between `cuts` and their manifest to the folder `target`, all or nothing.

    `general` are the specs for all shapes, `sizes` those for the shapes in use. `is_replaced` says
    that `target` may be there.

    Raises:
        StorageError: a file cannot be written.
        UsageError: `target` came to be there meanwhile.
        ModelRefused: the model changes meanwhile, or cannot be divided there.
    """
    before = stamp(graph.path)
    at = set(cuts)
    crossing = [names for cut, names in enumerate(crossing_names(graph), 1) if cut in at]
    general = ranked(graph, general, itertools.chain(*crossing, graph.outputs))
    locations = external_files(external_locations(graph.model, graph.path), graph.path)
    with (
        written_folder(target, is_replaced=is_replaced) as folder,
        ThreadPoolExecutor(_HASHING_THREADS) as hashing,
    ):
        source = _Hashed(graph.path, graph.path.name, hashing)
        external = [_Hashed(graph.path.parent / place, place, hashing) for place in locations]
        parts = [
            _WrittenPart(graph, bounds, general, folder / f"part-{number}.onnx", hashing)
            for number, bounds in enumerate(itertools.pairwise((0, *cuts, len(graph.nodes))), 1)
        ]
        file = source.result()
        divided = Source(
            file=file.file,
            bytes=file.bytes,
            sha256=file.sha256,
            external_data=tuple(hashed.result() for hashed in external),
        )
        manifest = _Assembling(graph, sizes, parts).manifest(
            divided, zip(cuts, crossing, strict=True)
        )
        if stamp(graph.path) != before:
            raise ModelRefused(f"{graph.path}: was changed while it was divided; try again")
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
        write_text(folder / MANIFEST_FILE, text + "\n")
    return manifest


class _Hashed:
    """A file that is being hashed beside the other work."""

    def __init__(self, path: Path, name: str, hashing: ThreadPoolExecutor) -> None:
        self._digest: Future[FileDigest] = hashing.submit(digest, path, name)

    def result(self) -> FileDigest:
        return self._digest.result()


class _WrittenPart:
    """A part as soon as its files are written."""

    def __init__(
        self,
        graph: ModelGraph,
        nodes: tuple[int, int],
        specs: ValueSpecs,
        path: Path,
        hashing: ThreadPoolExecutor,
    ) -> None:
        made = extract(graph, *nodes, path, specs)
        self.nodes = nodes
        self.interface = read_interface(path)
        self.file = _Hashed(path, path.name, hashing)
        self.weights = made.weights and _Hashed(made.weights, made.weights.name, hashing)


class _Assembling:
    """The manifest while it is put together from what the written files declare."""

    def __init__(
        self,
        graph: ModelGraph,
        sizes: ValueSpecs,
        parts: Sequence[_WrittenPart],
    ) -> None:
        self._graph = graph
        self._sizes = sizes
        self._parts = parts
        self._whole: DeclaredInterface = declared_interface(graph.model)
        self._declared: dict[str, DeclaredValue] = {v.name: v for v in self._whole.inputs}
        self._made_by: dict[str, int] = {}
        for number, part in enumerate(parts, 1):
            for value in part.interface.outputs:
                self._declared[value.name] = value
                self._made_by[value.name] = number

    def manifest(self, source: Source, cuts: Iterable[tuple[int, Sequence[str]]]) -> Manifest:
        model = self._graph.model
        return Manifest(
            form=FORM,
            made_by=f"edge-agent {__version__}",
            source=source,
            ir_version=int(model.ir_version),
            opsets={o.domain or "ai.onnx": int(o.version) for o in model.opset_import},
            inputs=tuple(self._input(value) for value in self._whole.inputs),
            outputs=tuple(self._value(value) for value in self._whole.outputs),
            parts=tuple(self._part(part) for part in self._parts),
            cuts=tuple(self._cut(position, names) for position, names in cuts),
        )

    def _value(self, value: DeclaredValue) -> Value:
        return Value(
            name=value.name,
            type=value.type,
            dims=value.dims,
            from_part=self._made_by.get(value.name),
        )

    def _input(self, value: DeclaredValue) -> ModelInput:
        return ModelInput(
            name=value.name,
            type=value.type,
            dims=value.dims,
            has_default=value.has_default,
            read_by=tuple(
                number
                for number, part in enumerate(self._parts, 1)
                if any(taken.name == value.name for taken in part.interface.inputs)
            ),
        )

    def _part(self, part: _WrittenPart) -> Part:
        file = part.file.result()
        return Part(
            file=file.file,
            bytes=file.bytes,
            sha256=file.sha256,
            weights=part.weights.result() if part.weights else None,
            nodes=part.nodes,
            inputs=tuple(self._value(value) for value in part.interface.inputs),
            outputs=tuple(self._value(value) for value in part.interface.outputs),
        )

    def _cut(self, position: int, names: Sequence[str]) -> Cut:
        crossing = tuple(self._crossing(name) for name in names)
        known = [value.bytes for value in crossing if value.bytes is not None]
        return Cut(
            position=position,
            crossing=crossing,
            bytes=sum(known) if len(known) == len(crossing) else None,
        )

    def _crossing(self, name: str) -> CrossingTensor:
        value = self._declared[name]
        return CrossingTensor(
            name=name,
            type=value.type,
            dims=value.dims,
            from_part=self._made_by.get(name),
            bytes=spec_bytes(self._sizes.tensors.get(TensorName(name))),
        )
