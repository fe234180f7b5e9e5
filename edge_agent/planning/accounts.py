"""What there is to say of a distribution beside its metrics: steps, loads, memory, what was not
used."""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.devices import DeviceId
from edge_agent.distributions import Distribution, LeftOut, MemoryUse, Route
from edge_agent.planning.metrics import (
    Leg,
    latency_s,
    legs,
    memory_bytes,
    resource_loads,
    times_of,
    unit_of,
)
from edge_agent.planning.present import pool_bytes, slowdown
from edge_agent.plans import Target
from edge_agent.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAccount:
    """What happens to a request on a route if it finds everything idle."""

    share: float
    latency_s: float
    legs: tuple[Leg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """How busy a resource is at the rate that the plan reaches."""

    name: str
    """A device (its cores), device/unit, a link or a medium."""
    busy_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the times of a device in a plan rest on."""

    device: DeviceId
    is_estimated: bool
    estimated_because: str
    """Why, although there are measured times of the model; "" if there are none, or they fit."""
    error_fraction: float
    """The largest of the configurations that are used."""
    has_power: bool
    """Whether the power of all units that are used is known; else their energy counts as 0."""
    slowdown: float = 1.0
    """How many times longer its runs take at present than its profile says: the largest of the
    units that are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A distribution, told in full."""

    distribution: Distribution
    gap: float
    routes: tuple[RouteAccount, ...]
    resources: tuple[ResourceUse, ...]
    """The busiest first: it is the bottleneck."""
    memory: tuple[MemoryUse, ...]
    predictions: tuple[Prediction, ...]
    left_out: tuple[LeftOut, ...] = ()
    """Each device that takes no part, and why."""
    runner_up: Distribution | None = None
    """As of `alternatives.Compared`."""
    alone: Distribution | None = None
    """As of `alternatives.Compared`."""


def account(
    problem: Problem,
    plan: Distribution,
    *,
    left_out: tuple[LeftOut, ...] = (),
    runner_up: Distribution | None = None,
    alone: Distribution | None = None,
) -> Account:
    """All that there is to say of `plan`."""
    walked = [(route.share, legs(problem, route)) for route in plan.routes]
    loads = resource_loads(problem, walked)
    busiest = max(loads.values(), default=0.0)
    uses = [
        ResourceUse(name=name, busy_fraction=load / busiest if busiest else 0.0)
        for name, load in loads.items()
        if load > 0.0
    ]
    return Account(
        distribution=plan,
        gap=plan.gap,
        routes=tuple(
            RouteAccount(share=share, latency_s=latency_s(found), legs=found)
            for share, found in walked
        ),
        resources=tuple(sorted(uses, key=lambda use: (-use.busy_fraction, use.name))),
        memory=memory_uses(problem, plan.routes),
        predictions=_predictions(problem, plan.routes),
        left_out=left_out,
        runner_up=runner_up,
        alone=alone,
    )


def memory_uses(problem: Problem, routes: tuple[Route, ...]) -> tuple[MemoryUse, ...]:
    """Every memory that the routes use, with what they may use of it."""
    bound = problem.bound(Target.MEMORY)
    most = float("inf") if bound is None else bound
    return tuple(
        MemoryUse(
            name=name,
            used_bytes=used,
            budget_bytes=int(min(pool_bytes(problem, name), most)),
        )
        for name, used in sorted(memory_bytes(problem, routes).items())
    )


def _predictions(problem: Problem, routes: tuple[Route, ...]) -> tuple[Prediction, ...]:
    used = [(part.device, part.configuration) for route in routes for part in route.parts()]
    found = []
    for device in problem.devices:
        chosen = {which for where, which in used if where == device.id}
        if not chosen:
            continue
        errors = [times_of(problem, device.id, which).error_fraction for which in chosen]
        found.append(
            Prediction(
                device=device.id,
                is_estimated=device.is_estimated,
                estimated_because=device.estimated_because,
                error_fraction=max(errors),
                has_power=all(unit_of(device, which).busy_w > 0.0 for which in chosen),
                slowdown=max(slowdown(problem, device.id, which.unit) for which in chosen),
            )
        )
    return tuple(found)
