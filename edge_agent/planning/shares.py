"""The best shares of the traffic for routes that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edge_agent.distributions import Route
from edge_agent.planning.metrics import legs, resource_loads
from edge_agent.planning.served import Served
from edge_agent.plans import Target
from edge_agent.problems import Problem


def best_shares(problem: Problem, target: Target, routes: Sequence[Route]) -> tuple[Route, ...]:
    """The routes with the shares at which their throughput is highest, the greatest first; for
    other targets as they are.

    Routes of which none would be sent keep a share of 0, so that they stay deployed.
    """
    if target is not Target.THROUGHPUT or len(routes) < 2:
        return tuple(routes)
    loads = [
        resource_loads(problem, [(1.0, legs(problem, replace(route, share=1.0)))])
        for route in routes
    ]
    resources = sorted(set().union(*loads))
    busy = np.array([[load.get(name, 0.0) for name in resources] for load in loads])
    if not resources or (busy.max(axis=1) <= 0.0).any():
        return tuple(routes)
    _, shares, _ = Served(busy).solve(np.ones(len(routes), bool))
    shared = [replace(route, share=float(s)) for route, s in zip(routes, shares, strict=True)]
    return tuple(sorted(shared, key=lambda route: -route.share))
