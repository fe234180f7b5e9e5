"""A model as planning sees it: segments between cut points, and branches that may run at once."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Shape, TensorName, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoint:
    """A place in the topological order where the model may be divided."""

    position: int
    """Nodes [0, position) lie before the cut, nodes [position, n) after it."""
    crossing: tuple[TensorSpec, ...]
    """Tensors produced (or fed) before and used after, each once, in topological order."""
    crossing_bytes: int | None
    """The sum of all that crosses for the shapes in use; None where a size is not known.

    One number for every layout: NCHW and NHWC order the same elements, and a blocked subgraph takes
    and gives its values in NCHW, so that the padding of its blocks never crosses. The time to turn
    values is in `profiles.SegmentTimes.border_s_per_byte`, `turn_s_per_byte` being the part of it
    that two NHWC subgraphs side by side do without."""
    others: tuple[tuple[TensorName, str], ...] = ()
    """What else crosses, with its type: sequences, maps and optionals as `seq(tensor(float))`.
    They cannot leave the device, so the cut is none between devices."""


class Arithmetic(StrEnum):
    """What arithmetic is done in; the rates of a compute unit differ by it."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    """All that is quantised to eight bits, signed or not."""


class OperatorClass(StrEnum):
    """Operators that reach a similar share of a compute unit's peak."""

    CONVOLUTION = "convolution"
    GROUPED = "grouped"
    """Convolutions with groups of several channels."""
    DEPTHWISE = "depthwise"
    """Convolutions with a group for each channel."""
    PRODUCT = "product"
    """Matrix products, attention and Einsum among them."""
    RECURRENT = "recurrent"
    """Products that wait for each other, step by step: LSTM, GRU, RNN."""
    POOL = "pool"
    ELEMENTWISE = "elementwise"
    NORMALISATION = "normalisation"
    """What reduces: normalisations, softmax, sums."""
    MOVEMENT = "movement"
    """What only moves bytes: Transpose, Concat, Slice, Gather."""
    OTHER = "other"
    """All whose operations nobody has a formula for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """What the operators of one class and arithmetic demand, taken together."""

    kind: OperatorClass
    arithmetic: Arithmetic
    nodes: int
    """How many operators; those that run as part of the one before count as none."""
    operations: int
    parallel_operations: int
    """As `Segment.parallel_operations`."""
    activation_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The nodes between two neighbouring cut points: the atom of planning."""

    index: int
    start: int
    stop: int
    """Nodes [start, stop) of the topological order."""
    operators: tuple[tuple[str, int], ...]
    """(operator, how often), most frequent first, ties by name."""
    operations: int
    """Arithmetic operations for the shapes in use; a multiply-add counts two."""
    activation_bytes: int
    """Bytes of activations read and written, for the shapes in use."""
    weight_bytes: int
    """Bytes of constants read."""
    parallel_operations: int
    """The part of `operations` in operators that ONNX Runtime spreads over threads."""
    working_bytes: int = 0
    """Most bytes of activations that are alive at once while its nodes run one by one, inputs and
    outputs of the segment among them."""
    unread_bytes: int = 0
    """Of its constants, what has to be in memory but is not read: the other rows of tables in which
    it looks some up."""
    work: tuple[OperatorWork, ...] = ()
    """What all this consists of, in the order of the classes and arithmetics; () if it was not
    counted."""

    @property
    def constant_bytes(self) -> int:
        """Of all its constants, read or not."""
        return self.weight_bytes + self.unread_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A part of a fork that reads nothing of the other parts."""

    nodes: tuple[int, ...]
    """Positions in the topological order, ascending."""
    input_bytes: int
    """What it reads of what crosses the cut before the fork."""
    output_bytes: int
    """What it produces of what crosses the cut behind the fork, or as an output of the model."""
    work: tuple[float, ...]
    """Its share of the work of each segment of the fork; over all branches they add up to 1."""
    weight_bytes: int
    working_bytes: int
    """As `Segment.working_bytes`."""
    unread_bytes: int = 0
    """As `Segment.unread_bytes`."""

    @property
    def constant_bytes(self) -> int:
        """Of all its constants, read or not."""
        return self.weight_bytes + self.unread_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInput:
    """What several branches of a fork all read."""

    size_bytes: int
    branches: tuple[int, ...]
    """Two or more, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A run of segments that consists of branches which may run at once."""

    segments: SegmentRange
    branches: tuple[Branch, ...]
    """Two or more, in the order of their first nodes."""
    shared: tuple[SharedInput, ...] = ()
    """At most one for each set of branches."""

    def input_bytes(self, branches: Collection[int]) -> int:
        """What some of the branches read together: each value once, however many of them do."""
        total = sum(self.branches[b].input_bytes for b in branches)
        for one in self.shared:
            readers = sum(b in branches for b in one.branches)
            total -= one.size_bytes * max(readers - 1, 0)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """What planning needs to know of a model; frozen, small, without weights."""

    model: ModelId
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: tuple[tuple[TensorName, Shape], ...]
    """Concrete shape of every input for which operations and bytes were counted; () if unknown."""
    nodes: int
    segments: tuple[Segment, ...]
    """Cover all nodes in order without gap or overlap; exactly one if the model is not divided."""
    cuts: tuple[CutPoint, ...]
    """The len(segments) - 1 inner cut points: cuts[i] lies between segments i and i + 1."""
    weight_bytes: int
    undivided_because: str | None = None
    """Why the model has only one segment, for people; None if it was divided."""
    forks: tuple[Fork, ...] = ()
    """In order; no two of them overlap."""

    def __post_init__(self) -> None:
        if len(self.cuts) != len(self.segments) - 1:
            raise ValueError(f"got {len(self.cuts)} cuts for {len(self.segments)} segments")

    @property
    def division(self) -> str:
        """Tells divisions apart: what was measured of segments is of use for the model that begins
        them at the same nodes, for the same input shapes."""
        starts = [segment.start for segment in self.segments]
        described = (str(self.model), self.nodes, starts, sorted(self.shapes))
        return hashlib.sha256(repr(described).encode()).hexdigest()
