"""Subnetwork distributions on the wire: steps of a route, and answers, are told apart by a tag."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edge_agent.devices import DeviceId
from edge_agent.distributions import (
    Appraisal,
    Distribution,
    Infeasible,
    Metrics,
    PlacedFork,
    PlacedSubgraph,
    Planned,
    Route,
    Step,
)
from edge_agent.peers import MAX_PEERS
from edge_agent.plans import Target
from edge_agent.wire.messages import decode, encoded

MAX_ROUTES = 4096
MAX_STEPS = 8192
MAX_FRONT = 4096
"""Distributions of a Pareto set."""
MAX_NOTES = 4 * MAX_PEERS


class _Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of what stands where one of several is possible."""


class SubgraphStep(_Tagged, frozen=True, tag="subgraph"):
    """A subgraph of a route."""

    placed: PlacedSubgraph


class ForkStep(_Tagged, frozen=True, tag="fork"):
    """A fork of a route."""

    placed: PlacedFork


class RouteOnWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `distributions.Route`."""

    steps: Annotated[tuple[SubgraphStep | ForkStep, ...], Meta(max_length=MAX_STEPS)]
    share: float


class Found(_Tagged, frozen=True, tag="found"):
    """A `distributions.Distribution`."""

    target: Target
    routes: Annotated[tuple[RouteOnWire, ...], Meta(max_length=MAX_ROUTES)]
    metrics: Metrics
    bound: float


class NotFound(_Tagged, frozen=True, tag="not-found"):
    """That there is none."""

    infeasible: Infeasible


class PlannedOnWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `distributions.Planned`."""

    best: Annotated[tuple[Found | NotFound, ...], Meta(max_length=len(Target))]
    front: Annotated[tuple[Found, ...], Meta(max_length=MAX_FRONT)]
    knows_energy: bool
    disturbed_fraction: Annotated[float, Meta(ge=0.0, le=1.0)]
    appraisals: Annotated[tuple[Appraisal, ...], Meta(max_length=len(Target))]
    notes: Annotated[tuple[str, ...], Meta(max_length=MAX_NOTES)]
    names: Annotated[tuple[tuple[DeviceId, str], ...], Meta(max_length=MAX_PEERS)]
    division: str
    narrowed: Annotated[
        tuple[tuple[DeviceId, DeviceId], ...], Meta(max_length=(MAX_PEERS + 1) ** 2)
    ] = ()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PlannedOnWire)


def pack(planned: Planned) -> msgspec.Raw:
    """What the planner answers, as a part of a message. Raises: BadRequest: as `encoded`."""
    on_wire = PlannedOnWire(
        best=tuple(
            NotFound(answer) if isinstance(answer, Infeasible) else _pack(answer)
            for answer in planned.best
        ),
        front=tuple(_pack(distribution) for distribution in planned.front),
        knows_energy=planned.knows_energy,
        disturbed_fraction=planned.disturbed_fraction,
        appraisals=planned.appraisals,
        notes=planned.notes,
        names=planned.names,
        division=planned.division,
        narrowed=planned.narrowed,
    )
    return msgspec.Raw(encoded(_ENCODER, on_wire))


def unpack(packed: msgspec.Raw) -> Planned:
    """What was packed. Raises: ProtocolError: it is no such thing."""
    found = decode(_DECODER, packed)
    return Planned(
        best=tuple(
            answer.infeasible if isinstance(answer, NotFound) else _unpack(answer)
            for answer in found.best
        ),
        front=tuple(_unpack(one) for one in found.front),
        knows_energy=found.knows_energy,
        disturbed_fraction=found.disturbed_fraction,
        appraisals=found.appraisals,
        notes=found.notes,
        names=found.names,
        division=found.division,
        narrowed=found.narrowed,
    )


def _pack(distribution: Distribution) -> Found:
    return Found(
        target=distribution.target,
        routes=tuple(
            RouteOnWire(tuple(_pack_step(step) for step in route.steps), route.share)
            for route in distribution.routes
        ),
        metrics=distribution.metrics,
        bound=distribution.bound,
    )


def _pack_step(step: Step) -> SubgraphStep | ForkStep:
    return ForkStep(step) if isinstance(step, PlacedFork) else SubgraphStep(step)


def _unpack(found: Found) -> Distribution:
    return Distribution(
        target=found.target,
        routes=tuple(
            Route(steps=tuple(step.placed for step in route.steps), share=route.share)
            for route in found.routes
        ),
        metrics=found.metrics,
        bound=found.bound,
    )
