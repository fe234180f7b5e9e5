"""Workers of several devices in this process, with real streams, that run one divided model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from edge_agent.endpoints import Endpoint
from edge_agent.engine.cancel import Cancellation
from edge_agent.plans import Epoch
from edge_agent.stages import OWNER, Crossing, Division
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays, TensorName, TensorSpec
from edge_agent.transport.curve import make_keys
from edge_agent.worker.divided import DividedRunner, RouteState
from edge_agent.worker.runners import Runner
from edge_agent.worker.stages import StageRunner, Stages
from edge_agent.worker.streams import Stream, Streams

EPOCH = Epoch(owner="made", incarnation=1, model=ModelId("m" * 64), number=1)
LOOPBACK = Endpoint(host="127.0.0.1", port=0)
WINDOW_BYTES = 32 << 20
HOME = "home"
"""Where the owner is."""

Compute = Callable[[Arrays], Arrays]


class Computing:
    """A stage that is a function."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute

    def run(self, feeds: Arrays, outputs: Sequence[str], cancel: Cancellation) -> Arrays:
        """See `stages.StageRunner`."""
        cancel.check()
        found = self.compute(feeds)
        return {name: found[name] for name in outputs}


class Whole:
    """A whole model that is a function."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.runs = 0

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """See `runners.Runner`."""
        self.runs += 1
        found = self.compute(feeds)
        return {name: found[name] for name in outputs}

    def pin_caller(self) -> None:
        """See `runners.Runner`."""


def crossings(*texts: str) -> Division:
    """Written as "0>1 a b": stage 0 hands a and b to stage 1; the owner is o."""
    made = []
    for text in texts:
        ends, *tensors = text.split()
        source, target = (OWNER if end == "o" else int(end) for end in ends.split(">"))
        names = tuple(map(TensorName, tensors))
        made.append(Crossing(source=source, target=target, tensors=names))
    return Division(crossings=tuple(made))


@dataclass(slots=True)
class Place:
    """One worker."""

    streams: Streams
    stages: Stages
    here: tuple[int, ...]
    broken: list[str] = field(default_factory=list)
    neighbours: dict[str, Stream] = field(default_factory=dict)
    """Its ends, by the other place."""


@dataclass(slots=True)
class Divided:
    """All workers of one divided model."""

    places: dict[str, Place]
    runner: DividedRunner
    routes: tuple[RouteState, ...]

    def cut(self, place: str) -> None:
        """The worker of that place is gone, as if it had been killed."""
        self.places[place].streams.stop()


@contextmanager
def divided(
    division: Division,
    where: Mapping[int, str],
    runners: Mapping[int, StageRunner],
    fallback: Runner | None,
    *,
    most: int = 4,
    shares: Sequence[float] = (),
    instances: int = 1,
    window_bytes: int = WINDOW_BYTES,
    epochs: Mapping[str, Epoch] | None = None,
    specs: Mapping[int, Sequence[TensorSpec]] | None = None,
) -> Iterator[Divided]:
    """The model, ready to run. `epochs` are of places that believe in another one; `specs` as
    `Stages` takes them."""
    count = len(division.routes())
    routes = tuple(
        RouteState(number=number, share=share, most=most)
        for number, share in enumerate(shares or [1.0] * count)
    )
    runner = DividedRunner(routes, fallback)
    places: dict[str, Place] = {}
    for name in dict.fromkeys((HOME, *where.values())):
        here = tuple(stage for stage, place in where.items() if place == name)
        broken: list[str] = []
        stages = Stages(
            (epochs or {}).get(name, EPOCH),
            division,
            {stage: runners[stage] for stage in here},
            instances=instances if here else 0,
            origin=runner if name == HOME else None,
            on_broken=partial(_say, broken),
            specs=specs or {},
        )
        places[name] = Place(Streams(), stages, here, broken)
    runner.attach(places[HOME].stages)
    for one, other in _pairs(division, where):
        _connect(places, one, other, window_bytes)
    try:
        yield Divided(places, runner, routes)
    finally:
        for place in places.values():
            place.streams.stop()
            place.stages.close()


def _say(said: list[str], _stream: Stream, why: str) -> None:
    said.append(why)


def _pairs(division: Division, where: Mapping[int, str]) -> list[tuple[str, str]]:
    places = {OWNER: HOME, **where}
    ends = [(places[c.source], places[c.target]) for c in division.crossings]
    return sorted({(min(pair), max(pair)) for pair in ends if pair[0] != pair[1]})


def _connect(places: dict[str, Place], one: str, other: str, window_bytes: int) -> None:
    mine, theirs = places[one], places[other]
    keys, their_keys = make_keys(), make_keys()
    listening = mine.streams.listen(LOOPBACK, keys, their_keys.public, mine.stages, window_bytes)
    dialled = theirs.streams.dial(
        listening.endpoint, their_keys, keys.public, theirs.stages, window_bytes
    )
    mine.stages.connect(listening, _ends(other, theirs))
    theirs.stages.connect(dialled, _ends(one, mine))
    mine.neighbours[other], theirs.neighbours[one] = listening, dialled


def _ends(name: str, place: Place) -> tuple[int, ...]:
    return (OWNER, *place.here) if name == HOME else place.here
