"""Problems without forks, their routes, and the truth about their mixtures by HiGHS."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.planning.amounts import Caps
from edge_agent.planning.known import Flags
from edge_agent.planning.mixture import Column
from edge_agent.planning.planner import caps_of, tables_of
from edge_agent.planning.tables import Floats, Tables
from edge_agent.plans import Target
from edge_agent.problems import Link, PlannedDevice, Problem
from tests.planning.made_models import configuration, times
from tests.planning.made_routes import device, made_summary
from tests.planning.oracle.mixtures import Residency
from tests.planning.oracle.problems_made import small_problem


def forkless(seed: int, count: int) -> list[Problem]:
    """Small problems of a seed, whose branches never run at once, and in which some device may do
    something."""
    rng = random.Random(seed)
    made = [replace(small_problem(rng), with_branches=False) for _ in range(count)]
    return [problem for problem in made if tables_of(problem, Target.THROUGHPUT) is not None]


def tabled(problem: Problem, target: Target = Target.THROUGHPUT) -> tuple[Tables, Caps]:
    """The arrays and caps of a problem with a device that may do something."""
    tables = tables_of(problem, target)
    assert tables is not None
    return tables, caps_of(tables)


def pair(
    first: Sequence[float],
    second: Sequence[float],
    *,
    memory_bytes: int = 2**40,
    weight_bytes: int = 100,
    overhead_s: float = 0.0,
) -> Problem:
    """Two devices with one core and one configuration each, and links that cost nothing; every
    segment has weights and needs no memory for activations."""
    n = len(first)
    summary = made_summary((weight_bytes,) * n, (0,) * n, (0,) * (n - 1))
    which = configuration()
    devices: tuple[PlannedDevice, ...] = tuple(
        device(name, (times(which, seconds, overhead_s),), memory_bytes=memory_bytes, cores=1)
        for name, seconds in (("a", first), ("b", second))
    )
    a, b = DeviceId("a"), DeviceId("b")
    links = tuple(
        Link(source=x, target=y, latency_s=0.0, goodput_bytes_per_s=1e9)
        for x, y in ((a, b), (b, a))
    )
    return Problem(summary=summary, devices=devices, owner=a, links=links)


def loads_of(columns: Sequence[Column]) -> Floats:
    """(n, resources)"""
    return np.array([column.amounts.loads for column in columns])


def residency(uses: Flags, sizes: Floats, budgets: Floats) -> Residency:
    """As the oracle has it; `sizes`: (things, memories)."""
    return Residency(
        uses=uses, sizes=sizes.sum(axis=1), pools=sizes.argmax(axis=1), budgets=budgets
    )
