"""Routes made up at random for a problem, with bounds that lie around what they give."""

from __future__ import annotations

import random
from dataclasses import replace

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedArm, PlacedFork, PlacedSubgraph, Route, Step
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.profiles import Configuration
from edge_agent.subgraphs import SegmentRange
from tests.planning.oracle.legality import faults
from tests.planning.oracle.prices import price, run_resource

TRIES = 8


def random_route(rng: random.Random, problem: Problem) -> Route | None:
    """A route that keeps to everything but the bounds; None where none was found quickly."""
    for _ in range(TRIES):
        route = any_route(rng, problem)
        if route is not None and not faults(
            replace(problem, bounds=()), Target.THROUGHPUT, [route]
        ):
            return route
    return None


def any_route(rng: random.Random, problem: Problem) -> Route | None:
    """A route that runs all segments once, whether allowed or not; None if nothing runs any."""
    places = [(d.id, t.configuration) for d in problem.devices for t in d.times]
    if not places:
        return None
    forks = {fork.segments.start: i for i, fork in enumerate(problem.summary.forks)}
    steps: list[Step] = []
    at, count = 0, len(problem.summary.segments)
    last = rng.choice(places)
    while at < count:
        if at in forks and problem.with_branches and rng.random() < 0.7:
            step = _any_fork(rng, problem, forks[at], places)
            if step is not None:
                steps.append(step)
                at = step.segments.stop
                continue
        if rng.random() < 0.4:
            last = rng.choice(places)
        one = PlacedSubgraph(
            segments=SegmentRange(start=at, stop=at + 1), device=last[0], configuration=last[1]
        )
        steps.append(one)
        at += 1
    return Route(steps=joined(steps))


def joined(steps: list[Step]) -> tuple[Step, ...]:
    """Neighbours on one device in one configuration as one subgraph."""
    found: list[Step] = []
    for step in steps:
        before = found[-1] if found else None
        if (
            isinstance(before, PlacedSubgraph)
            and isinstance(step, PlacedSubgraph)
            and (before.device, before.configuration) == (step.device, step.configuration)
        ):
            whole = SegmentRange(start=before.segments.start, stop=step.segments.stop)
            found[-1] = replace(before, segments=whole)
        else:
            found.append(step)
    return tuple(found)


def route_bound(rng: random.Random, problem: Problem, route: Route, target: Target) -> float:
    """A limit around what a route gives: never just what it gives where sums are rounded."""
    value = price(problem, [route]).value(target)
    if target is Target.THROUGHPUT:
        return value * rng.choice((0.3, 0.7, 0.9999, 1.3, 1.9)) if value < 1e300 else 1.0
    return value * rng.choice((0.3, 0.7, 1.0001, 1.5, 3.0))


def _any_fork(
    rng: random.Random,
    problem: Problem,
    fork: int,
    places: list[tuple[DeviceId, Configuration]],
) -> PlacedFork | None:
    found = problem.summary.forks[fork]
    home = rng.choice(problem.devices).id
    branches = list(range(len(found.branches)))
    for _ in range(TRIES):
        parts: dict[int, list[int]] = {}
        for branch in branches:
            parts.setdefault(rng.randrange(len(branches)), []).append(branch)
        chosen = [rng.choice(places) for _ in parts]
        away = [device for device, _ in chosen if device != home]
        resources = {run_resource(*place) for place in chosen}
        if len(parts) > 1 and len(resources) == len(chosen) and len(set(away)) == len(away):
            return PlacedFork(
                fork=fork,
                segments=found.segments,
                home=home,
                arms=tuple(
                    PlacedArm(branches=tuple(part), device=device, configuration=which)
                    for part, (device, which) in zip(parts.values(), chosen, strict=True)
                ),
            )
    return None
