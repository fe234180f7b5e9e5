"""How the parts of a divided model hand tensors to each other: stages, and what crosses between
them; and what the device that hosts a stage is given of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Shape, TensorName, TensorSpec, WireType

OWNER: Final = -1
"""Stands for the owner where a stage has a number: it sends the inputs and takes the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Tensors that one stage hands to another one, in one message for each run."""

    source: int
    """Number of a stage, or `OWNER`."""
    target: int
    tensors: tuple[TensorName, ...]
    wire: WireType | None = None
    """As what it is sent to another device; None: as it is."""

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError(f"stage {self.source} hands tensors to itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One or more routes of an epoch, as stages whose numbers are its own.

    Stages that are joined by crossings, the owner left out, are of one route. Every route takes
    from the owner and gives to it, and no stage waits for itself.
    """

    crossings: tuple[Crossing, ...]

    def __post_init__(self) -> None:
        for stage in self.stages:
            if not self.takes(stage) or not self.gives(stage):
                raise ValueError(f"stage {stage} takes nothing or gives nothing")
        pairs = [(c.source, c.target) for c in self.crossings]
        if len(set(pairs)) < len(pairs):
            raise ValueError("two crossings between the same stages")
        self._check_order()

    def _check_order(self) -> None:
        done = {OWNER}
        rest = list(self.stages)
        while rest:
            ready = [s for s in rest if all(c.source in done for c in self.takes(s))]
            if not ready:
                raise ValueError(f"stages {rest} wait for each other")
            done.update(ready)
            rest = [s for s in rest if s not in done]

    @property
    def stages(self) -> tuple[int, ...]:
        """All numbers, ascending."""
        ends = {c.source for c in self.crossings} | {c.target for c in self.crossings}
        return tuple(sorted(ends - {OWNER}))

    def takes(self, stage: int) -> tuple[Crossing, ...]:
        """What comes to a stage."""
        return tuple(c for c in self.crossings if c.target == stage)

    def gives(self, stage: int) -> tuple[Crossing, ...]:
        """What leaves a stage."""
        return tuple(c for c in self.crossings if c.source == stage)

    def routes(self) -> tuple[frozenset[int], ...]:
        """The stages of each route, in the order of their lowest numbers."""
        routes: list[set[int]] = []
        for stage in self.stages:
            joined = {stage}
            for crossing in self.crossings:
                ends = {crossing.source, crossing.target}
                if stage in ends:
                    joined |= ends - {OWNER}
            apart = [route for route in routes if not route & joined]
            for route in routes:
                if route & joined:
                    joined |= route
            routes = [*apart, joined]
        return tuple(frozenset(route) for route in sorted(routes, key=min))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes that are known by their hash."""

    sha256: str
    """In hexadecimal."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """A run of segments as a model of its own, as the device that hosts the stage gets it."""

    model: ModelId
    """What it is a part of."""
    segments: SegmentRange
    """Of that model."""
    starts: tuple[int, ...]
    """Where each of these segments begins, in nodes of the stage: ascending from 0."""
    nodes: int
    """How many nodes the stage has; constants are none."""
    graph: Blob
    """The ONNX model; its larger tensors are external data at `blobs/SHA256`."""
    tensors: tuple[Blob, ...]
    """All that the graph refers to, each once."""
    samples: tuple[Blob, ...]
    """Values that come into the stage, for its builder to measure and compare with; each packs a
    value for every input that must be given."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: tuple[tuple[TensorName, Shape], ...]
    """Of the inputs, as in the samples."""

    def __post_init__(self) -> None:
        count = self.segments.stop - self.segments.start
        if len(self.starts) != count or self.starts[:1] != (0,):
            raise ValueError(f"got starts {self.starts} of {count} segments, want them from 0 on")
        if list(self.starts) != sorted(set(self.starts)) or self.starts[-1] >= self.nodes:
            raise ValueError(f"got starts {self.starts} among {self.nodes} nodes, want ascending")

    @property
    def id(self) -> ModelId:
        """What it is called in the store of its host: the graph names its tensors by content."""
        return ModelId(self.graph.sha256)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All that its host needs."""
        return (self.graph, *self.tensors, *self.samples)
