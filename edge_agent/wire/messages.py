"""Every message: between client and agent, agent and worker, builder or planner.

Decoding is strict: unknown kinds, unknown fields and values outside the bounds are errors.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from edge_agent.devices import Device, UnitId
from edge_agent.errors import BadRequest, ProtocolError
from edge_agent.peers import MAX_PEERS
from edge_agent.plans import (
    SERVED_TARGETS,
    AllowedWire,
    DividedPlan,
    Epoch,
    ExecutionPlan,
    Target,
)
from edge_agent.profiles import SegmentTimes
from edge_agent.stages import StageModel
from edge_agent.subgraphs import ModelId, SampleSetId
from edge_agent.tensors import TensorSpec
from edge_agent.wire.about_peers import (
    AddPeer,
    AskPeers,
    Invite,
    Invited,
    JoinDevice,
    KeyRotated,
    PeerChanged,
    Peers,
    RemovePeer,
    RenamePeer,
    RotateKey,
)
from edge_agent.wire.cutting import AdmitStage, CutStages, StageAdmitted, StagesCut
from edge_agent.wire.hosting import (
    Abandon,
    Closed,
    Compare,
    Compared,
    Dial,
    DividedPart,
    GiveUpRoute,
    HostStages,
    Linked,
    Listen,
    Listening,
    Unlinked,
)
from edge_agent.wire.lending import Forget, GiveBack, Lend, Recall, Tally
from edge_agent.wire.opening import OpenAhead, OpenedAhead, Staged
from edge_agent.wire.parts import MAX_DEADLINE_S as MAX_DEADLINE_S
from edge_agent.wire.parts import (
    Banned,
    Bounds,
    General,
    HalfBound,
    ModelState,
    Name,
    Names,
    Pins,
    Place,
    RequestId,
    ShapeCounts,
    Shapes,
    Specialised,
    SubgraphFile,
    Targets,
    TensorHeads,
    Text,
    Unopened,
)
from edge_agent.wire.parts import Message as Message

MAX_THREADS = 4096
MAX_SUBGRAPHS = 4096
MAX_ERROR_CHARACTERS = 60_000


# Client → agent


class Infer(Message, frozen=True, tag="infer"):
    """Run a model; the input tensors follow in the payload, unless they have a place."""

    request: RequestId
    model: Name
    tensors: TensorHeads
    outputs: Names | None
    deadline_s: Annotated[float, Meta(le=MAX_DEADLINE_S)] | None
    """Seconds from now until the answer is no longer wanted; None: however long it takes."""
    place: Place | None = None


class Load(Message, frozen=True, tag="load"):
    """Put the model at an absolute path into the store and serve it."""

    path: Name
    name: Name | None
    target: Target
    threads: Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None
    shapes: Shapes
    subgraphs: Annotated[int, Meta(ge=1, le=MAX_SUBGRAPHS)] | None = None
    """Divide into so many, whether it pays or not; None: as it pays."""
    pins: Pins = ()
    samples: Name | None = None
    """An absolute path of a folder with real inputs."""
    half_bound: HalfBound | None = None
    over: Annotated[tuple[Name, ...], Meta(max_length=MAX_PEERS)] | None = None
    """As in `LoadedModel`."""
    wire: AllowedWire | None = None

    def __post_init__(self) -> None:
        if self.target not in SERVED_TARGETS:
            wanted = ", ".join(SERVED_TARGETS)
            raise ValueError(f"target: got {self.target}, want one of {wanted}")


class Unload(Message, frozen=True, tag="unload"):
    """Stop serving a model and remove it from the store."""

    model: Name


class Replan(Message, frozen=True, tag="replan"):
    """Profile and plan a model again."""

    model: Name


class AskPlan(Message, frozen=True, tag="plan"):
    """What is the plan of this model?"""

    model: Name
    shapes: Shapes | None = None
    """For these shapes: one that is not known is made, but does not serve; None: the general one.
    Shapes that follow from others need not be given."""


class AskDistributions(Message, frozen=True, tag="distributions"):
    """What are the best distributions of this loaded model, over this device and its peers?"""

    model: Name
    targets: Targets = ()
    """An answer for each; (): every target whose metric is known."""
    bounds: Bounds = ()
    is_pareto: bool = False
    """Whether the Pareto set over the targets is wanted too."""


class AskModels(Message, frozen=True, tag="models"):
    """Which models are loaded?"""


class AskStatus(Message, frozen=True, tag="status"):
    """How is the agent?"""


class AskDevices(Message, frozen=True, tag="devices"):
    """Which compute units are there?"""


ClientMessage = (
    Infer
    | Load
    | Unload
    | Replan
    | AskPlan
    | AskDistributions
    | AskModels
    | AskStatus
    | AskDevices
    | Invite
    | JoinDevice
    | AskPeers
    | AddPeer
    | RemovePeer
    | RenamePeer
    | RotateKey
)


# Agent → client


class Result(Message, frozen=True, tag="result"):
    """The outputs of a run; their bytes follow in the payload, or are in the request's place."""

    request: RequestId
    tensors: TensorHeads
    is_placed: bool = False


class Failure(Message, frozen=True, tag="failure"):
    """The request failed; `code` is that of an error class."""

    request: RequestId | None
    code: Name
    message: Text


class Models(Message, frozen=True, tag="models-reply"):
    """All loaded models, by name."""

    models: tuple[ModelState, ...]


class Status(Message, frozen=True, tag="status-reply"):
    """The agent's state and counters."""

    version: str
    pid: int
    uptime_s: float
    incarnation: int
    socket: str
    state_folder: str
    models: tuple[ModelState, ...]
    in_flight: int
    in_flight_bytes: int
    connections: int
    lent: int
    """How many of the connections are lent to workers."""
    counters: dict[str, int]
    memory_bytes: int
    model_disk_bytes: int
    """Graphs and tensors of all models in the pool."""
    compiled_disk_bytes: int
    """All that can be compiled again."""
    max_compiled_disk_bytes: int
    """How much of that is kept, at the present free space."""
    settings_key: str = ""
    """As `config.settings_key` tells of the settings that it runs with."""


class Devices(Message, frozen=True, tag="devices-reply"):
    """The device with its compute units."""

    device: Device


class Plan(Message, frozen=True, tag="plan-reply"):
    """The plan that a model has."""

    plan: ExecutionPlan
    divided: DividedPlan | None = None
    """The last one over several devices that was tried; None: none was."""


class Distributions(Message, frozen=True, tag="distributions-reply"):
    """What the planner answers; the agent passes it on."""

    planned: msgspec.Raw
    """A `distributions.Planned`: see `wire/routes.py`."""


class PlanInMaking(Message, frozen=True, tag="plan-in-making"):
    """The plan for the shapes that were asked for is being made: ask again."""

    fraction: float
    what: Text


class Done(Message, frozen=True, tag="done"):
    """It was done."""

    detail: Text


class Progress(Message, frozen=True, tag="progress"):
    """How far is what was asked, 0 to 1, and what comes next; the answer follows."""

    fraction: float
    what: Text


AgentMessage = (
    Result
    | Failure
    | Models
    | Status
    | Devices
    | Plan
    | Distributions
    | PlanInMaking
    | Done
    | Progress
    | Invited
    | Peers
    | PeerChanged
    | KeyRotated
)


# Agent ↔ worker


class Deployment(Message, frozen=True, tag="deployment", kw_only=True):
    """All a worker needs to serve one epoch of one model; one that serves opens it beside that."""

    epoch: Epoch
    subgraphs: Annotated[tuple[SubgraphFile, ...], Meta(min_length=1)]
    instances: Annotated[int, Meta(ge=1, le=1024)]
    pinned_cores: tuple[int, ...]
    inputs: tuple[TensorSpec, ...] | None
    """None: the worker reads them from the model and reports them."""
    outputs: tuple[TensorSpec, ...] | None
    warm_shapes: Shapes
    """Run on made-up inputs of these shapes before reporting ready; () to skip it."""
    specialised: tuple[Specialised, ...] = ()
    counted: ShapeCounts | None = None
    """Requests by shape that were counted before, for the worker to go on with; None: do not."""
    division: DividedPart | None = None
    """What runs here, and where the rest does, if the model is divided over devices; then the
    subgraphs are what takes the requests that are lost on the way."""

    @property
    def most_instances(self) -> int:
        """How many requests may run at once, whatever their shapes."""
        most = max(self.instances, *(s.instances for s in self.specialised), 1)
        return most if self.division is None else max(most, self.division.under_way)


class Switch(Message, frozen=True, tag="switch"):
    """Serve this epoch, which was deployed beside the one that serves and is ready, from now on."""

    epoch: Epoch


class Discard(Message, frozen=True, tag="discard"):
    """This epoch, which was deployed beside the one that serves, will not serve."""

    epoch: Epoch


class Ready(Message, frozen=True, tag="ready"):
    """The worker can take requests."""

    epoch: Epoch
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opened_s: float
    takes_connections: bool = False
    """Whether connections of clients may be lent to it."""
    unopened: tuple[Unopened, ...] = ()
    key: str = ""
    """By which workers of other devices know this one; "" if there are none."""


class Run(Message, frozen=True, tag="run"):
    """Run once; the inputs follow in the payload, or have a place in memory."""

    epoch: Epoch
    sequence: int
    tensors: TensorHeads
    outputs: Names
    place: Place | None = None
    memory: int = 0
    """The number of the memory where the place is. Its descriptor comes with the message if no
    message before had this number and a place that ends as far behind."""
    left_s: Annotated[float, Meta(ge=0, le=MAX_DEADLINE_S)] | None = None
    """Seconds until the answer is no longer wanted; None: however long it takes."""


class Ran(Message, frozen=True, tag="ran"):
    """The outputs of a run; they follow in the payload, or are in the request's place."""

    epoch: Epoch
    sequence: int
    tensors: TensorHeads
    run_s: float
    is_placed: bool = False


class RunError(Message, frozen=True, tag="run-error"):
    """A run failed, or (sequence −1) the worker could not open this epoch."""

    epoch: Epoch
    sequence: int
    code: Name
    message: Text


class Counted(Message, frozen=True, tag="counted"):
    """Recent requests by the shapes of their inputs, as far as they are told apart."""

    counts: ShapeCounts


AgentToWorker = (
    Deployment
    | Switch
    | Discard
    | Run
    | Abandon
    | Forget
    | Tally
    | Lend
    | Recall
    | Listen
    | Dial
    | GiveUpRoute
    | Compare
)
WorkerMessage = (
    Ready | Ran | RunError | GiveBack | Counted | Listening | Linked | Unlinked | Compared | Closed
)
AgentToHost = Listen | Dial
"""To a worker that hosts stages of another device's model, after `HostStages`."""


# Agent ↔ builder


class Admit(Message, frozen=True, tag="admit"):
    """Copy the model at this path into the store, checked."""

    path: Name
    pins: Pins = ()
    """Whose patterns must match something."""
    samples: Name | None = None
    """As in `Load`."""


WorkerStart = OpenAhead | Deployment | HostStages
"""What a new worker is told, in this order; the first may be left out, and of the others there is
one."""


class Admitted(Message, frozen=True, tag="admitted"):
    """The model is in the store."""

    model: ModelId
    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    samples: SampleSetId | None = None
    """The real inputs that are kept for it."""


class Build(Message, frozen=True, tag="build", kw_only=True):
    """Divide, compile, profile, plan and verify a model of the store."""

    model: ModelId
    target: Target
    threads: int | None
    shapes: Shapes
    is_fresh: bool
    """Whether to measure again although a profile is on disk."""
    subgraphs: int | None = None
    """As in `Load`."""
    general: General | None = None
    """Make a plan for `shapes` alone, and compare it with this; None: for all shapes."""
    pins: Pins = ()
    banned: tuple[Banned, ...] = ()
    """Units that are not to be tried."""
    device: Device | None = None
    """This device as it was found before; None: find out."""
    samples: SampleSetId | None = None
    """Real inputs to compare and time with, beside made-up ones."""
    half_bound: float | None = None
    """As in `LoadedModel`."""
    name: Name | None = None
    """Under which what is found out of the model is kept for planning; None: it is not."""
    stage: StageModel | None = None
    """What the model is if it is a part of one: it is divided as that was, and measured on its
    samples."""

    @property
    def is_forced(self) -> bool:
        """Whether the user wants a division or units, whether they pay or not."""
        return self.subgraphs is not None or bool(self.pins)


class Trying(Message, frozen=True, tag="trying"):
    """The providers of these units are at work, until the next such message: if the builder ends
    or falls silent now, it was one of them."""

    units: tuple[UnitId, ...]
    is_keeping: bool = False
    """Whether they make something to be kept, which they can do without."""


class AskGrant(Message, frozen=True, tag="ask-grant"):
    """May the builder use the device for a slice?"""


class Grant(Message, frozen=True, tag="grant"):
    """It may, now."""


class Built(Message, frozen=True, tag="built", kw_only=True):
    """The plan and what a worker opens for it."""

    plan: ExecutionPlan
    device: Device
    """What the plan was made for."""
    subgraphs: tuple[SubgraphFile, ...]
    """Empty if the plan was made for shapes that the general one serves as well."""
    instances: int
    pinned_cores: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opens_aside: bool = False
    """Whether a worker can open it while it serves (see `ComputeUnit`)."""
    is_large: bool = False
    """Whether the model was served without packed weights until now, to save memory."""
    times: tuple[SegmentTimes, ...] = ()
    """Of a stage: what its segments take here, in each configuration that was measured; there may
    be none, and then it runs as plain ONNX Runtime does."""
    device_key: str = ""
    """As of `LatencyProfile`."""


class AskDevice(Message, frozen=True, tag="ask-device"):
    """Probe the compute units of this device."""


class Probed(Message, frozen=True, tag="probed"):
    """The device with the units that passed the probe."""

    device: Device


BuilderRequest = Admit | Build | Grant | AskDevice | CutStages | AdmitStage
BuilderMessage = (
    Staged
    | Admitted
    | Built
    | Progress
    | Trying
    | AskGrant
    | Probed
    | StagesCut
    | StageAdmitted
    | Failure
)

T = TypeVar("T")


class Codec:
    """Encodes any message and decodes the messages of one direction."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self.from_client = msgspec.msgpack.Decoder(ClientMessage)
        self.from_agent = msgspec.msgpack.Decoder(AgentMessage)
        self.to_new_worker = msgspec.msgpack.Decoder(WorkerStart)
        self.from_new_worker = msgspec.msgpack.Decoder(OpenedAhead)
        self.to_worker = msgspec.msgpack.Decoder(AgentToWorker)
        self.to_host = msgspec.msgpack.Decoder(AgentToHost)
        self.from_worker = msgspec.msgpack.Decoder(WorkerMessage)
        self.to_builder = msgspec.msgpack.Decoder(BuilderRequest)
        self.from_builder = msgspec.msgpack.Decoder(BuilderMessage)

    def encode(self, message: Message) -> bytes:
        """The message as MessagePack. Raises: BadRequest: as `encoded`."""
        return encoded(self._encoder, message)


def encoded(encoder: msgspec.msgpack.Encoder, value: msgspec.Struct) -> bytes:
    """The value as MessagePack.

    Raises:
        BadRequest: a text in it is no Unicode, as some file names are.
    """
    try:
        return encoder.encode(value)
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{error.object!r} cannot be sent: {error.reason}; use names that are valid UTF-8"
        ) from error


def error_text(error: Exception) -> str:
    """The text of an error as it fits into a message."""
    return str(error).encode(errors="replace").decode()[:MAX_ERROR_CHARACTERS]


def decode(decoder: msgspec.msgpack.Decoder[T], message: bytes | bytearray | memoryview) -> T:
    """The message, checked against the types of its direction.

    Raises:
        ProtocolError: it is not such a message.
    """
    try:
        return decoder.decode(message)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"message not understood: {error}") from error
