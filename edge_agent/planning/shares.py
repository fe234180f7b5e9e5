"""The best shares of the traffic for routes that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edge_agent.distributions import Route
from edge_agent.planning.metrics import legs, resource_loads
from edge_agent.planning.packing import Packing
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
    rows = np.array([[load.get(name, 0.0) for load in loads] for name in resources])
    scale = float(rows.max(axis=0, initial=0.0).min(initial=np.inf))
    if not resources or scale <= 0.0:
        return tuple(routes)
    packing = Packing(np.ones(len(resources)))
    packing.add(rows / scale, np.ones(len(routes)))
    packing.solve()
    shares = packing.solution / packing.solution.sum()
    shared = [replace(route, share=float(s)) for route, s in zip(routes, shares, strict=True)]
    return tuple(sorted(shared, key=lambda route: -route.share))
