"""What the agent asks its builder about stages: to cut them out of a model that is loaded here, and
to take one in that another device's model is divided into."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from edge_agent.stages import StageModel
from edge_agent.subgraphs import ModelId, SampleSetId, SegmentRange
from edge_agent.wire.parts import Message, Shapes

MAX_SEGMENTS = 4096
MAX_STAGES = 256


class CutStages(Message, frozen=True, tag="cut-stages", kw_only=True):
    """Make models of their own of runs of segments of a model that is loaded here."""

    model: ModelId
    shapes: Shapes
    """As in `Build`: those of the inputs in use, or some of them."""
    samples: SampleSetId | None = None
    """As in `Build`."""
    ranges: Annotated[tuple[SegmentRange, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    starts: Annotated[tuple[int, ...], Meta(min_length=1, max_length=MAX_SEGMENTS)]
    """The first node of every segment of the model, as it was planned."""


class StagesCut(Message, frozen=True, tag="stages-cut"):
    """They are entries of the pool; one for each of the ranges."""

    stages: tuple[StageModel, ...]


class AdmitStage(Message, frozen=True, tag="admit-stage"):
    """Take in a stage whose blobs have been received, or are here already; it is checked."""

    stage: StageModel


class StageAdmitted(Message, frozen=True, tag="stage-admitted"):
    """It is an entry of the pool."""

    model: ModelId
    """The stage's id."""
    is_new: bool
    """Whether it was not one before."""
