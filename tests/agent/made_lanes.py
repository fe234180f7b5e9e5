"""Lanes, requests and workers in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_agent.agent.lanes import Lane, Outcome, Request, Station, Success
from edge_agent.plans import Epoch
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import ElementType, TensorName, TensorSpec


def epoch(number: int = 1) -> Epoch:
    return Epoch(owner="local", incarnation=1, model=ModelId("m" * 64), number=number)


def spec(
    name: str, *dims: int | str | None, element_type: ElementType = ElementType.FLOAT32
) -> TensorSpec:
    return TensorSpec(name=TensorName(name), element_type=element_type, dims=dims)


def lane(name: str = "m") -> Lane:
    """A lane of a model with input x and output y, float32[N,2]."""
    return Lane(name, (spec("x", "N", 2),), (spec("y", "N", 2),))


@dataclass(eq=False)
class FakeWorker:
    """Takes whatever the lane sends, and remembers the order."""

    station: Station = field(init=False)
    window: int = 2
    taken: list[int] = field(default_factory=list)
    recalls: int = 0
    abandoned: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.station = Station(epoch=epoch(), sender=self, window=self.window)

    def hand_over(self, request: Request) -> None:
        assert len(self.station.has) <= self.window
        self.taken.append(request.sequence)

    def abandon(self, sequence: int) -> None:
        self.abandoned.append(sequence)

    def recall(self) -> None:
        self.recalls += 1


@dataclass
class Answers:
    """What was answered to whom."""

    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    def request(self, lane: Lane, sequence: int, until_s: float | None = None) -> Request:
        self.outcomes[sequence] = []
        return Request(
            lane=lane,
            sequence=sequence,
            id=f"r{sequence}",
            heads=(),
            outputs=(),
            until_s=until_s,
            size_bytes=1,
            answer=self._answer,
        )

    def _answer(self, request: Request, outcome: Outcome) -> None:
        self.outcomes[request.sequence].append(outcome)
        self.order.append(request.sequence)

    def kinds(self) -> dict[int, list[type]]:
        """The class of every outcome."""
        return {n: [type(o) for o in outcomes] for n, outcomes in self.outcomes.items()}


DONE = Success((), b"")
