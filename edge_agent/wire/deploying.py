"""What the owner of a model and the devices that host stages of it say to each other."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edge_agent.devices import DeviceId
from edge_agent.errors import EdgeAgentError
from edge_agent.peers import MAX_PEERS
from edge_agent.plans import Epoch, Target
from edge_agent.profiles import SegmentTimes
from edge_agent.stages import Blob, Crossing
from edge_agent.subgraphs import ModelId
from edge_agent.wire.hosting import (
    MAX_CANDIDATES,
    MAX_NEIGHBOURS,
    MAX_STAGES,
    Key,
    Neighbour,
    Port,
    Threads,
)
from edge_agent.wire.messages import error_text
from edge_agent.wire.parts import MAX_TOLD_CHARACTERS, Message, Sha256, Told

MAX_STAGE_MODEL_BYTES: Final = 4 << 20
"""Of a `StageModel` as it is sent."""
MAX_TIMES: Final = 64
"""Configurations of which the times of a stage are told."""

HostedNumber = Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


# Owner → host


class PrepareStage(Message, frozen=True, tag="prepare-stage", kw_only=True):
    """Get what this stage needs, compile and measure it; say how far that is, and what came of
    it."""

    epoch: Epoch
    stage: HostedNumber
    model: Blob
    """A `StageModel` as MessagePack: offered as all that it names is."""
    target: Target
    threads: Threads | None
    """Most processor threads; None: as many as there are."""
    half_bound: float | None
    """As `LoadedModel.half_bound`."""
    is_fresh: bool
    """Whether to measure again what was measured before."""
    sources: Annotated[tuple[DeviceId, ...], Meta(max_length=MAX_PEERS)]
    """Other devices that were told to offer what they have of the model."""


class OfferStages(Message, frozen=True, tag="offer-stages", kw_only=True):
    """As long as this epoch is not dropped, let that device have the content of these stages, which
    you host for me."""

    epoch: Epoch
    device: DeviceId
    stages: Annotated[tuple[Sha256, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    """As `StageModel.id`."""


class HostedStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stage that was prepared."""

    number: HostedNumber
    model: Sha256
    """`StageModel.id`."""
    target: Target
    threads: Threads | None
    half_bound: float | None

    @property
    def id(self) -> ModelId:
        """What the stage is called in the store of its host."""
        return ModelId(self.model)


class OpenStages(Message, frozen=True, tag="open-stages", kw_only=True):
    """Open these in a worker, and say its key."""

    epoch: Epoch
    crossings: Annotated[tuple[Crossing, ...], Meta(min_length=1, max_length=4 * MAX_STAGES)]
    stages: Annotated[tuple[HostedStage, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    neighbours: Annotated[tuple[Neighbour, ...], Meta(min_length=1, max_length=MAX_NEIGHBOURS)]
    is_encrypted: bool


class ListenFor(Message, frozen=True, tag="listen-for", kw_only=True):
    """Have the worker let that of this device connect; say at which port."""

    epoch: Epoch
    device: DeviceId
    key: Key | None


class DialTo(Message, frozen=True, tag="dial-to", kw_only=True):
    """Have the worker connect to that of this device, at this port of one of the addresses at
    which the device is known there, or else of these."""

    epoch: Epoch
    device: DeviceId
    key: Key | None
    port: Port
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=MAX_CANDIDATES)
    ]


class DropEpoch(Message, frozen=True, tag="drop-epoch"):
    """It is not needed any more: end what is done for it."""

    epoch: Epoch


# Host → owner


class StageProgress(Message, frozen=True, tag="stage-progress", kw_only=True):
    """How far the preparing of a stage is, 0 to 1."""

    epoch: Epoch
    stage: HostedNumber
    fraction: Fraction
    what: Told


class StagePrepared(Message, frozen=True, tag="stage-prepared", kw_only=True):
    """A stage can be opened."""

    epoch: Epoch
    stage: HostedNumber
    device_key: Told
    times: Annotated[tuple[SegmentTimes, ...], Meta(max_length=MAX_TIMES)]
    """Of the segments of the stage, as they were measured there."""
    plan: Told
    """What it runs as, for people."""
    measured_s: Seconds | None
    """Of one run of the whole stage."""
    received_bytes: Annotated[int, Meta(ge=0)]
    """What had to be sent for it."""


class EpochOpened(Message, frozen=True, tag="epoch-opened", kw_only=True):
    """The worker has opened its stages."""

    epoch: Epoch
    key: Key | None
    """Of the worker, for this epoch alone; None: nothing is encrypted."""


class ListeningFor(Message, frozen=True, tag="listening-for", kw_only=True):
    """The worker of that device may connect here."""

    epoch: Epoch
    device: DeviceId
    port: Port


class EpochLinked(Message, frozen=True, tag="epoch-linked"):
    """All connections of the worker are there."""

    epoch: Epoch


class EpochFailed(Message, frozen=True, tag="epoch-failed", kw_only=True):
    """What was asked cannot be done, or the worker is gone: the epoch is over here. `code` is that
    of an error class."""

    epoch: Epoch
    code: Annotated[str, Meta(max_length=64)]
    message: Told


def failure(epoch: Epoch, error: EdgeAgentError) -> EpochFailed:
    """The answer that tells an error."""
    text = error_text(error)[:MAX_TOLD_CHARACTERS]
    return EpochFailed(epoch=epoch, code=error.code, message=text)


class EpochUnlinked(Message, frozen=True, tag="epoch-unlinked", kw_only=True):
    """The connection of the worker to that of this device is over, or cannot be made."""

    epoch: Epoch
    device: DeviceId
    why: Told


FromOwner = PrepareStage | OfferStages | OpenStages | ListenFor | DialTo | DropEpoch
FromHost = (
    StageProgress
    | StagePrepared
    | EpochOpened
    | ListeningFor
    | EpochLinked
    | EpochFailed
    | EpochUnlinked
)
Deploying = FromOwner | FromHost
