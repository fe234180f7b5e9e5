"""All that can be said of a model without running it on a device: what `inspect` shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from edge_agent.builder.dividing import NOMINAL, ListedCut, list_cuts
from edge_agent.builder.source import Sizes, external_files, general
from edge_agent.devices import DeviceState
from edge_agent.model.admit import external_locations
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.hazards import Hazard, find_hazards
from edge_agent.model.interface import DeclaredValue, declared_interface
from edge_agent.planning.score import score
from edge_agent.subgraphs import ComplexityScore, ModelId
from edge_agent.summaries import ModelSummary, Segment
from edge_agent.tensors import Shape, TensorName, ValueSpecs

_ROOMY = DeviceState(free_memory_bytes=1 << 60, load_fraction=0.0)
"""Scores are told for a device with memory enough and nothing else to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSegment:
    """A segment with its score at the rates of `dividing.NOMINAL`."""

    segment: Segment
    score: ComplexityScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A value on its way from a segment, or an input, to a segment, or an output."""

    name: str
    type: str
    from_segment: int | None
    """None: it is an input of the model."""
    to_segment: int | None
    """None: it is an output of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownModel:
    """What `inspect` shows of a model."""

    file: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[DeclaredValue, ...]
    outputs: tuple[DeclaredValue, ...]
    shapes: dict[TensorName, Shape]
    """The input shapes for which bytes and operations are counted."""
    note: str | None
    """Where the shapes come from if they were not given."""
    file_nodes: int
    """Nodes of the main graph in the file."""
    nodes: int
    """Those of them that compute more than constants: what positions count."""
    functions: int
    weight_bytes: int
    external_files: tuple[str, ...]
    operators: tuple[tuple[str, int], ...]
    """(operator, how often) in the main graph, most frequent first; other domains as
    `domain::operator`."""
    segments: tuple[ShownSegment, ...]
    cuts: tuple[ListedCut, ...]
    """The cut points worth planning with."""
    passages: tuple[Passage, ...]
    undivided_because: str | None
    hazards: tuple[Hazard, ...]


def show(graph: ModelGraph, sizes: Sizes) -> ShownModel:
    """Everything about a model for one set of input shapes.

    Raises:
        StorageError: a temporary file cannot be written.
    """
    summary = summarise(graph, ModelId(""), sizes.shapes, sizes.specs)
    model = graph.model
    interface = declared_interface(model)
    planned = {cut.position for cut in summary.cuts}
    return ShownModel(
        file=str(graph.path),
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        ir_version=int(model.ir_version),
        opsets={o.domain or "ai.onnx": int(o.version) for o in model.opset_import},
        inputs=interface.inputs,
        outputs=interface.outputs,
        shapes=sizes.shapes,
        note=sizes.note,
        file_nodes=len(model.graph.node),
        nodes=len(graph.nodes),
        functions=len(model.functions),
        weight_bytes=graph.weight_bytes,
        external_files=external_files(external_locations(model, graph.path), graph.path),
        operators=_operators(graph),
        segments=tuple(
            ShownSegment(segment=segment, score=score([segment], _ROOMY, NOMINAL))
            for segment in summary.segments
        ),
        cuts=list_cuts(graph, sizes.specs, planned, is_all=False),
        passages=_passages(graph, summary, sizes.specs),
        undivided_because=summary.undivided_because,
        hazards=find_hazards(graph, general(graph)),
    )


def _operators(graph: ModelGraph) -> tuple[tuple[str, int], ...]:
    counted = Counter(
        f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for node in graph.model.graph.node
    )
    return tuple(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def _passages(graph: ModelGraph, summary: ModelSummary, specs: ValueSpecs) -> tuple[Passage, ...]:
    """Every value that goes from one segment to another, from an input or to an output."""
    segment_of = [s.index for s in summary.segments for _ in range(s.start, s.stop)]
    found = []
    for name, producer in graph.producers.items():
        source = None if producer < 0 else segment_of[producer]
        targets: list[int | None] = [
            t
            for t in dict.fromkeys(segment_of[p] for p in graph.users.get(name, ()))
            if t != source
        ]
        if name in graph.outputs:
            targets.append(None)
        text = specs.described(name)
        found += [
            Passage(name=name, type=text, from_segment=source, to_segment=target)
            for target in targets
        ]
    return tuple(found)
