"""What messages are made of."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edge_agent.devices import ProviderUse, UnitId
from edge_agent.plans import Bound, Pin, Target
from edge_agent.profiles import HOST, HOST_UNIT, RatioInterval
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import ElementType, Shape, TensorName, TensorSpec, size_bytes

Name = Annotated[str, Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=65536)]
MAX_TOLD_CHARACTERS = 2048
"""Of a text that one agent tells another."""
Told = Annotated[str, Meta(max_length=MAX_TOLD_CHARACTERS)]
Sha256 = Annotated[str, Meta(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")]
RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
MAX_DIMENSION = 2**48
Dimension = Annotated[int, Meta(ge=0, le=MAX_DIMENSION)]
Dimensions = Annotated[tuple[Dimension, ...], Meta(max_length=64)]
Size = Annotated[int, Meta(ge=0, le=2**48)]
MAX_DEADLINE_S = 1e6
"""Over eleven days; NaN and infinity are above it too."""
MAX_TENSORS = 4096
MAX_PINS = 256
MAX_COUNTED_SHAPES = 64
"""So many sets of shapes are told apart where requests are counted."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all messages; the tag `kind` is the name of the class."""


class TensorHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name, type and shape of a tensor whose bytes follow in the payload."""

    name: Name
    element_type: ElementType
    shape: Dimensions
    own_bytes: Size = 0
    """Bytes that it takes in the payload where type and shape do not tell: text, and values that
    are no tensors."""
    is_nested: bool = False
    """Whether it is no tensor but a sequence, a map or an optional (see `wire/nested.py`)."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the packed tensor."""
        if self.is_nested or self.element_type is ElementType.STRING:
            return self.own_bytes
        return size_bytes(self.element_type, self.shape)


TensorHeads = Annotated[tuple[TensorHead, ...], Meta(max_length=MAX_TENSORS)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_TENSORS)]
Shapes = tuple[tuple[TensorName, Annotated[Shape, Meta(max_length=64)]], ...]
Pins = Annotated[tuple[Pin, ...], Meta(max_length=MAX_PINS)]
Targets = Annotated[tuple[Target, ...], Meta(max_length=len(Target))]
Bounds = Annotated[tuple[Bound, ...], Meta(max_length=len(Target))]
HalfBound = Annotated[float, Meta(gt=0, lt=1)]
"""See `LoadedModel.half_bound`."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tensors are in the memory that came with the connection or the message, instead of
    in the payload: inputs from its start, and room for the outputs."""

    inputs_bytes: Size
    outputs_at: Size
    """A multiple of 64, behind the inputs."""
    outputs_bytes: Size
    """How much room there is; outputs that need more come in the payload."""

    @property
    def end(self) -> int:
        """Bytes of memory that it takes."""
        return self.outputs_at + self.outputs_bytes


ShapeSetOnWire = Annotated[tuple[Dimensions, ...], Meta(max_length=MAX_TENSORS)]
"""A `tensors.ShapeSet`."""


class ShapeCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many recent requests had these shapes."""

    shapes: ShapeSetOnWire
    count: Annotated[int, Meta(ge=0)]


ShapeCounts = Annotated[tuple[ShapeCount, ...], Meta(max_length=MAX_COUNTED_SHAPES)]


class SubgraphFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a worker opens as one session."""

    path: str
    level: str
    """Optimisation level at which the file is opened; `none` for a compiled file."""
    threads: int | None
    """None: whatever ONNX Runtime takes by default."""
    is_plain: bool
    """Whether the session gets ONNX Runtime's default options, as a user's own would."""
    compiled_for: str | None = None
    """Processor and ONNX Runtime for which the file was compiled; None: it is no compiled file."""
    unit: UnitId = HOST_UNIT
    use: ProviderUse | None = None
    """The execution provider that it is opened on; None: that of the processor."""
    falls_back: bool = False
    """Whether nodes that the provider refuses run on the processor."""
    resource: str = HOST
    """See `Configuration`."""
    at_once: int | None = None
    """How many runs of files on this resource may go on at once; None: any number."""
    run_limit_s: float | None = None
    """A run that takes longer is taken for hung; None: it may take as long as it likes."""


class Specialised(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a worker opens beside the general subgraphs for requests of exactly these shapes."""

    shapes: ShapeSetOnWire
    subgraphs: Annotated[tuple[SubgraphFile, ...], Meta(min_length=1)]
    instances: Annotated[int, Meta(ge=1, le=1024)]
    pinned_cores: tuple[int, ...]


class Unopened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A specialisation that a worker does without."""

    shapes: ShapeSetOnWire
    reason: Text


class General(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What serves all shapes of a model at present."""

    is_plain: bool
    subgraphs: tuple[SubgraphFile, ...]
    instances: int
    pinned_cores: tuple[int, ...]


class Banned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A unit that ended or blocked a process with this model."""

    unit: UnitId
    reason: Text
    is_keeping: bool = False
    """Whether that was where its compiled form was made to be kept: it may run, but keeps none."""


class SpecialisedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A set of shapes that was often asked, and what came of planning for it alone."""

    shapes: Shapes
    share: float
    """Of the recent requests, 0 to 1."""
    is_serving: bool
    """Whether it has subgraphs of its own; if not, the general plan serves it."""
    plan: str
    reason: str
    measured_s: float | None
    general_over_plan: RatioInterval | None


class ModelState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One loaded model, as `models` and `status` show it."""

    name: str
    model: ModelId
    target: Target
    threads: int | None
    state: str
    """starting, serving, restarting or quarantined"""
    planning: str
    """waiting, working, done or failed"""
    progress_fraction: float
    progress: str
    """What the builder does now, why planning failed, or why the model is quarantined."""
    plan: str
    """The plan that serves, in a few words."""
    is_plain: bool
    epoch: int
    instances: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: Shapes
    """Input shapes that the plan was made for; () if there is none yet."""
    in_flight: int
    answered: int
    failed: int
    restarts: int
    worker_pid: int | None
    memory_bytes: int | None
    source: str
    specialised: tuple[SpecialisedState, ...] = ()
    specialising: str = ""
    """What is being planned for shapes of their own now; empty if nothing is."""
    divided: str = ""
    """The plan over several devices that serves; empty if this device serves alone."""
    dividing: str = "none"
    """none (there is no other device), waiting, working, done or failed"""
    dividing_fraction: float = 0.0
    dividing_progress: str = ""
    """What is done to divide it over devices, or why that failed."""
    is_over_asked: bool = False
    """Whether it is to be divided over some devices, whether it pays or not."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being planned for it."""
        is_planned = self.planning in ("done", "failed")
        return is_planned and self.dividing in ("none", "done", "failed")

    @property
    def unsettled(self) -> tuple[float, str]:
        """How far planning is, and what is done."""
        if self.planning not in ("done", "failed"):
            return self.progress_fraction, self.progress
        return self.dividing_fraction, self.dividing_progress
