"""What an agent and a worker say to each other of a divided epoch: which stages run there, how its
connections to the workers of other devices are made, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.plans import Epoch
from edge_agent.profiles import RatioInterval
from edge_agent.stages import Crossing
from edge_agent.tensors import TensorSpec
from edge_agent.wire.parts import Message, Name, Shapes, SubgraphFile, Text

MAX_STAGES: Final = 256
"""Of one epoch."""
MAX_NEIGHBOURS: Final = 64
MAX_CANDIDATES: Final = 16
"""Endpoints at which a worker may be looked for."""
MAX_UNDER_WAY: Final = 64
"""Runs of one route at once."""

StageNumber = Annotated[int, Meta(ge=-1, lt=MAX_STAGES)]
"""−1 stands for the owner."""
Key = Annotated[str, Meta(pattern="^(?!a{52})[a-z2-7]{51}[aq]$", max_length=52)]
"""`peers.PublicKey`: 256 bits in base32, of which the last character has one; not zeros alone."""


def key_problem(key: str | None, *, is_encrypted: bool) -> str:
    """What is wrong about a key that was told of an epoch that is encrypted, or is not; "" if
    nothing is."""
    if (key is not None) == is_encrypted:
        return ""
    return "no key, want one" if is_encrypted else "a key, want none"


Port = Annotated[int, Meta(ge=1, le=65535)]
Bytes = Annotated[int, Meta(ge=1, le=2**40)]
Threads = Annotated[int, Meta(ge=1, le=1024)]


class StageHere(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stage that runs in this worker."""

    number: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    subgraphs: Annotated[tuple[SubgraphFile, ...], Meta(min_length=1)]
    pinned_cores: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: Threads
    """How many runs of it may go on at once."""


class RouteShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the owner's worker needs to know of a route."""

    number: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    share: Annotated[float, Meta(gt=0, le=1)]
    """Of the traffic."""
    most: Annotated[int, Meta(ge=1, le=MAX_UNDER_WAY)]
    """Runs that may be under way at once."""


class Neighbour(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A worker of another device with which this one exchanges tensors."""

    device: DeviceId
    stages: Annotated[tuple[StageNumber, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    """What it has."""
    window_bytes: Bytes
    """How much it may send before it is told that there is room again."""


class DividedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one worker has of a divided epoch."""

    crossings: Annotated[tuple[Crossing, ...], Meta(min_length=1, max_length=4 * MAX_STAGES)]
    """All of the epoch."""
    stages: Annotated[tuple[StageHere, ...], Meta(max_length=MAX_STAGES)]
    neighbours: Annotated[tuple[Neighbour, ...], Meta(max_length=MAX_NEIGHBOURS)]
    routes: Annotated[tuple[RouteShare, ...], Meta(max_length=MAX_STAGES)] = ()
    """All of the epoch if the worker is the owner's; else ()."""
    shapes: Shapes = ()
    """Of the inputs, if the worker is the owner's: what has others, or larger ones, runs there
    alone."""
    is_encrypted: bool = True

    @property
    def threads(self) -> int:
        """How many runs of stages may go on at once."""
        return max((stage.threads for stage in self.stages), default=0)

    @property
    def under_way(self) -> int:
        """How many requests may be under way at once, if the worker is the owner's."""
        return sum(route.most for route in self.routes)


# Agent → worker


class HostStages(Message, frozen=True, tag="host-stages", kw_only=True):
    """To a worker of a device that is not the owner's: all that it needs for one epoch."""

    epoch: Epoch
    part: DividedPart


class Listen(Message, frozen=True, tag="listen", kw_only=True):
    """The worker of that device, which has the key, will connect: say at which port."""

    epoch: Epoch
    device: DeviceId
    key: Key | None
    """None: nothing is encrypted."""
    at: Endpoint


class Dial(Message, frozen=True, tag="dial", kw_only=True):
    """Connect to the worker of that device, which has the key, at one of these endpoints."""

    epoch: Epoch
    device: DeviceId
    key: Key | None
    to: Annotated[tuple[Endpoint, ...], Meta(min_length=1, max_length=MAX_CANDIDATES)]


class GiveUpRoute(Message, frozen=True, tag="give-up-route", kw_only=True):
    """To the owner's worker: a device of this route is lost; run what is there again here."""

    epoch: Epoch
    route: int
    why: Text


class Abandon(Message, frozen=True, tag="abandon"):
    """To the owner's worker: nobody waits for the answer to this request any more."""

    sequence: int


class Compare(Message, frozen=True, tag="compare", kw_only=True):
    """To the owner's worker: run what is divided and the plan of this device alone side by side,
    for about so many seconds, and say what all such rounds showed."""

    epoch: Epoch
    samples: tuple[Name, ...]
    """Paths of packed inputs."""
    budget_s: float
    callers: Threads
    """Threads that ask at once for the divided plan, and `alone_callers` for the other one."""
    alone_callers: Threads
    is_quantised: bool
    """Whether the model has quantised operators."""
    float_bound: float | None
    """As `LoadedModel.half_bound`."""


# Worker → agent


class Listening(Message, frozen=True, tag="listening", kw_only=True):
    """The worker of that device may connect to this port."""

    epoch: Epoch
    device: DeviceId
    port: Port


class Linked(Message, frozen=True, tag="linked"):
    """All connections of the epoch are there."""

    epoch: Epoch


class Unlinked(Message, frozen=True, tag="unlinked", kw_only=True):
    """The connection to the worker of that device could not be made, or is over."""

    epoch: Epoch
    device: DeviceId
    why: Text
    is_offence: bool = False
    """Whether that one broke the rules."""


class Compared(Message, frozen=True, tag="compared", kw_only=True):
    """What all rounds so far showed."""

    epoch: Epoch
    alone_over_divided: RatioInterval | None
    """Time per request: above 1, the divided plan is faster. None: there was no round."""
    control: RatioInterval | None
    """The plan of this device alone against itself in the same rounds."""
    divided_s: float | None
    """Median seconds per request, with all callers busy."""
    latency_s: float | None
    """Median seconds of one request of the divided plan, among the others."""
    alone_s: float | None
    wrong: Text
    """What is wrong with the answers of the divided plan; "" if nothing is."""
    is_faster: bool
    """Whether the divided plan is right, and faster beyond the noise."""
    evidence: Text
    """For people: the intervals."""
    is_decided: bool
    """Whether more rounds would not tell more."""


class Closed(Message, frozen=True, tag="closed"):
    """Another epoch has taken over, and all requests of this one are answered."""

    epoch: Epoch
