"""Divisions in blocks that fit tight memories: whatever fits so is found."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench.made_problem import made_problem
from edge_agent.distributions import Distribution, Infeasible
from edge_agent.planning.amounts import amounts, demanded, memory_columns
from edge_agent.planning.blocks import in_blocks
from edge_agent.planning.duals import Effort
from edge_agent.planning.legality import objections
from edge_agent.planning.missing import obstacle
from edge_agent.planning.planner import EFFORT, attempt, plan
from edge_agent.planning.shortest import Pieces, as_route
from edge_agent.planning.tables import Tables, tabulate
from edge_agent.plans import Target
from edge_agent.problems import Problem
from tests.marks import marked_long
from tests.planning.made_pairs import HOST, both_ways, with_device
from tests.planning.oracle.problems_made import NAMES, plain_problem
from tests.simulation.made_problems import A, B, C, device, model, problem, times


def found_in(made: Problem) -> Pieces | None:
    tables = tabulate(made, Target.LATENCY)
    assert tables is not None
    found = in_blocks(tables, tables.budgets, Effort(most=EFFORT))
    if found is not None:
        assert objections(made, (as_route(tables, found),)) == ()
    return found


def three(*memories: int, links: Sequence[tuple[str, str]] | None = None) -> Problem:
    """Segments of 1000, 2000 and 3000 bytes, with a tenth of it for activations."""
    devices = [
        replace(device(name, times(HOST, [1.0] * 3)), memory_bytes=memory)
        for name, memory in zip((A, B, C), memories, strict=True)
    ]
    pairs = itertools.combinations((A, B, C), 2)
    both = [k for pair in pairs for k in both_ways(*pair)]
    kept = [k for k in both if links is None or (k.source, k.target) in links]
    return problem(model(3, 10), devices, kept)


@pytest.mark.parametrize(
    ("memories", "want"),
    [
        # All in one; the first two and the last; in another order than that of the devices.
        ((0, 6300, 0), [(0, B)]),
        ((0, 3200, 3300), [(0, B), (2, C)]),
        ((3300, 1100, 2200), [(0, B), (1, C), (2, A)]),
        ((3299, 1100, 2200), None),
        ((3300, 1100, 2199), None),
    ],
)
def test_blocks_fill_memories_in_whatever_order_fits(
    memories: tuple[int, ...], want: list[tuple[int, str]] | None
) -> None:
    made = three(*memories)
    found = found_in(made)
    tables = tabulate(made, Target.LATENCY)
    assert tables is not None
    got = found and [(start, tables.choices[choice].device) for start, choice in found]
    assert got == want


def test_blocks_go_only_where_links_lead() -> None:
    memories = (3300, 1100, 2200)
    ring = [(A, B), (B, C), (C, A)]
    assert found_in(three(*memories, links=ring)) is not None
    for missing in ring:
        assert found_in(three(*memories, links=[k for k in ring if k != missing])) is None


def test_a_block_ends_before_what_cannot_be_sent_or_is_refused() -> None:
    # Nothing may be sent before the last segment: the last two stay together.
    made = three(1100, 5300, 0)
    cuts = made.summary.cuts
    closed = replace(
        made, summary=replace(made.summary, cuts=(cuts[0], replace(cuts[1], crossing_bytes=None)))
    )
    found = found_in(closed)
    assert found is not None
    assert [start for start, _ in found] == [0, 1]
    assert found_in(replace(closed, devices=three(3200, 3300, 0).devices)) is None
    own = with_device(made, B, times=(replace(times(HOST, [1.0] * 3), refused=(1,)),))
    assert found_in(made) is not None
    assert found_in(own) is None


def first_fit(made: Problem) -> int:
    """How many devices are needed, one block on each, in their order."""
    start, count = 0, 0
    segments = made.summary.segments
    for one in made.devices:
        held, most, stop = 0, 0, start
        for s in segments[start:]:
            most = max(most, s.working_bytes)
            if held + s.constant_bytes + most > one.memory_bytes:
                break
            held, stop = held + s.constant_bytes, stop + 1
        start, count = stop, count + 1
        if start == len(segments):
            return count
    return count + 1


def least_budget(made: Problem) -> Problem:
    """With the least memory, alike on all devices, in which the first fit divides it."""
    low, high = (
        0,
        2 * made.summary.weight_bytes + max(s.working_bytes for s in made.summary.segments),
    )
    while high - low > 1:
        middle = (low + high) // 2
        given = tuple(replace(d, memory_bytes=middle) for d in made.devices)
        if first_fit(replace(made, devices=given)) <= len(made.devices):
            high = middle
        else:
            low = middle
    return replace(made, devices=tuple(replace(d, memory_bytes=high) for d in made.devices))


@pytest.mark.parametrize(("devices", "seed"), [(8, 0), (8, 1), (5, 3)])
def test_what_fits_by_first_fit_is_planned(devices: int, seed: int) -> None:
    tight = least_budget(made_problem(64, devices, seed))
    found = attempt(tight, Target.LATENCY, EFFORT / 20.0)
    assert found is not None
    assert objections(tight, found.routes) == ()


def test_what_fits_by_first_fit_is_planned_for_the_throughput() -> None:
    tight = least_budget(made_problem(64, 5, 3))
    found = plan(tight, Target.THROUGHPUT, EFFORT / 20.0)
    assert isinstance(found, Distribution)
    assert objections(tight, found.routes) == ()


def best_order(tables: Tables, memories: np.ndarray) -> bool:
    """Whether some order of some devices takes one block each, by trying all."""
    n = tables.places
    for count in range(1, len(tables.devices) + 1):
        for order in itertools.permutations(range(len(tables.devices)), count):
            for inner in itertools.combinations(range(1, n), count - 1):
                pieces = tuple(
                    (start, int(tables.first_of[d]))
                    for start, d in zip((0, *inner), order, strict=True)
                )
                if (demanded(tables, pieces)[memory_columns(tables)] <= memories).all():
                    return True
    return False


@pytest.mark.parametrize("seed", [*range(9), *marked_long(range(9, 25))])
def test_blocks_are_found_where_trying_all_finds_some(seed: int) -> None:
    rng = random.Random(seed)
    made = plain_problem(rng, segments=7, devices=4, configurations=1)
    size = sum(s.weight_bytes for s in made.summary.segments) / 4
    devices = tuple(
        replace(d, memory_bytes=round(size * rng.uniform(0.5, 2.0))) for d in made.devices
    )
    tight = replace(made, devices=devices)
    tables = tabulate(tight, Target.LATENCY)
    assert tables is not None
    found = found_in(tight)
    assert (found is not None) == best_order(tables, tables.budgets)
    if found is not None:
        assert (amounts(tables, found).memory <= tables.budgets).all()


def test_a_mixture_is_out_of_the_question_where_no_route_fits() -> None:
    made = three(1000, 1000, 1000)
    for target in (Target.LATENCY, Target.THROUGHPUT):
        answer = plan(made, target)
        assert isinstance(answer, Infeasible)
        assert answer.is_certain
        assert "it needs" in answer.reason


def test_what_is_missing_is_found_within_the_effort() -> None:
    made = plain_problem(random.Random(3), segments=56, devices=len(NAMES))
    total = sum(s.weight_bytes for s in made.summary.segments)
    tight = replace(
        made,
        devices=tuple(replace(d, memory_bytes=total // 2 // len(NAMES)) for d in made.devices),
    )
    told = obstacle(tight, Target.LATENCY, 1000.0)
    assert told.fitting is None
    assert "it fits nowhere" in told.text
    assert told.is_certain
