"""Where not all ways to run forks are among the choices: no bound is beyond what they all give."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.devices import DeviceId, UnitId
from edge_agent.distributions import Distribution, Infeasible
from edge_agent.planning import branches, planner, schedules
from edge_agent.planning.amounts import CLOSE, Caps
from edge_agent.planning.branches import with_forks
from edge_agent.planning.planner import plan, tables_of
from edge_agent.planning.shortest import Weights, cheapest
from edge_agent.planning.tables import Floats, Tables, tabulate
from edge_agent.planning.unlisted import AnyWay, least_cost
from edge_agent.plans import Bound, Target
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Branch, Fork
from tests.marks import marked_long, marked_many
from tests.planning.made_models import configuration, segment, summary
from tests.planning.oracle.problems_made import plain_problem, small_problem


def _forked(count: int) -> Iterator[tuple[int, Problem]]:
    """The first random problems whose forks can run at once."""
    seed = -1
    while count:
        seed += 1
        problem = small_problem(random.Random(seed))
        if not problem.summary.forks or not problem.with_branches:
            continue
        tables = tabulate(problem, Target.THROUGHPUT)
        if tables is None:
            continue
        if with_forks(tables, Target.THROUGHPUT, is_quickest=False).forks.steps:
            count -= 1
            yield seed, problem


@pytest.mark.long
def test_no_way_to_run_a_fork_costs_less_than_what_stands_for_all() -> None:
    rng = np.random.default_rng(0)
    near = 0
    for seed, problem in _forked(40):
        tables = tabulate(problem, Target.THROUGHPUT)
        assert tables is not None
        every = with_forks(tables, Target.THROUGHPUT, is_quickest=False)
        any_way = AnyWay.of(tables, Target.THROUGHPUT)
        named = any_way.tables.resources, any_way.tables.pools
        assert set(every.resources) <= set(named[0])
        assert set(every.pools) <= set(named[1])
        for _ in range(8):
            of_name = {name: rng.random() for name in (*named[0], *named[1])}
            scalars = rng.random(1) * rng.integers(2), rng.random(1) * rng.integers(2)

            def weights(
                known: Tables,
                of_name: dict[str, float] = of_name,
                scalars: tuple[Floats, Floats] = scalars,
            ) -> Weights:
                return Weights(
                    seconds=scalars[0],
                    joules=scalars[1],
                    size_bytes=np.full(1, 1e-7),
                    loads=np.array([[of_name[name] for name in known.resources]]),
                    memory=np.array([[of_name[name] * 1e-6 for name in known.pools]]),
                )

            costs = float(cheapest(every, weights(every)).totals[0])
            least = any_way.least(weights)
            assert least <= costs * (1.0 + CLOSE), seed
            near += least > 0.9 * costs
    assert near > 100


def _best_of_all(target: Target, count: int) -> list[tuple[int, Problem, Distribution]]:
    """The first random problems with forks that have a plan, with what is best of all ways."""
    found = ((seed, problem, plan(problem, target)) for seed, problem in _forked(count))
    return [(s, problem, best) for s, problem, best in found if isinstance(best, Distribution)]


def _is_beyond(found: Distribution, best: Distribution) -> bool:
    """Whether the bound of one is better than what another one reaches."""
    value = best.metrics.value(found.target)
    if found.target is Target.THROUGHPUT:
        return found.bound < value * (1.0 - CLOSE)
    return found.bound > value * (1.0 + CLOSE)


def test_what_stands_for_all_ways_starts_two_arms() -> None:
    """A runs the ends, B the first branch and C the second in 1 s each; every start takes 0.25."""
    middle = SegmentRange(start=1, stop=3)
    whole = summary([segment(i) for i in range(4)], [0, 0, 0])
    # Nothing can be handed over within the fork.
    cuts = (whole.cuts[0], replace(whole.cuts[1], crossing_bytes=None), whole.cuts[2])
    arms = tuple(
        Branch(
            nodes=(), input_bytes=0, output_bytes=0, work=work, weight_bytes=10, working_bytes=10
        )
        for work in ((1.0, 0.0), (0.0, 1.0))
    )
    seconds = {
        "a": (1.0, 100.0, 100.0, 1.0),
        "b": (100.0, 1.0, 100.0, 100.0),
        "c": (100.0, 100.0, 1.0, 100.0),
    }
    devices = tuple(
        PlannedDevice(
            id=DeviceId(name),
            units=(PlannedUnit(id=UnitId("cpu")),),
            times=(
                SegmentTimes(
                    configuration=configuration(threads=1),
                    segment_s=segment_s,
                    overhead_s=0.25,
                    border_s_per_byte=0.0,
                    error_fraction=0.0,
                ),
            ),
            memory_bytes=10**9,
        )
        for name, segment_s in seconds.items()
    )
    problem = Problem(
        summary=replace(whole, cuts=cuts, forks=(Fork(segments=middle, branches=arms),)),
        devices=devices,
        owner=devices[0].id,
        links=tuple(
            Link(source=a.id, target=b.id, latency_s=0.0, goodput_bytes_per_s=1e6)
            for a in devices
            for b in devices
            if a is not b
        ),
    )
    tables = tables_of(problem, Target.THROUGHPUT)
    assert tables is not None

    def loads(known: Tables) -> Weights:
        none = Weights.none(known)
        return replace(none, loads=none.loads + 1.0)

    assert float(cheapest(tables, loads(tables)).totals[0]) == pytest.approx(5.0)
    assert AnyWay.of(tables, Target.THROUGHPUT).least(loads) == pytest.approx(5.0)


@pytest.mark.parametrize("target", [Target.LATENCY, Target.THROUGHPUT])
def test_where_ways_are_left_out_no_bound_is_beyond_the_best_of_all(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimal = _optimal_of_few(_best_of_all(target, 12), target, monkeypatch)
    # Where another way cannot be better, that is seen.
    assert optimal >= 2


@pytest.mark.parametrize(
    "target",
    [
        *marked_long([Target.LATENCY, Target.THROUGHPUT]),
        *marked_many([Target.ENERGY, Target.MEMORY, Target.BYTES]),
    ],
)
def test_where_ways_are_left_out_no_bound_is_beyond_the_best_of_all_of_many(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _optimal_of_few(_best_of_all(target, 120), target, monkeypatch) >= 20


def _optimal_of_few(
    made: Sequence[tuple[int, Problem, Distribution]],
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """How many plans are called optimal where few ways are among the choices."""
    monkeypatch.setattr(branches, "_MOST_LOOKED_AT", 0)
    optimal = as_good = 0
    for seed, problem, best in made:
        found = plan(problem, target)
        if isinstance(found, Infeasible):
            assert not found.is_certain, seed
            continue
        assert not _is_beyond(found, best), seed
        optimal += found.is_optimal
        as_good += found.metrics.cost(target) <= best.metrics.cost(target) * (1.0 + CLOSE)
    # The ways that need little of what is short are there.
    assert as_good >= (0.95 if target is Target.MEMORY else 0.75) * len(made)
    return optimal


@pytest.mark.parametrize("count", [15, *marked_long([40])])
def test_what_was_found_without_forks_has_a_bound_that_holds_with_them(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _best_of_all(Target.THROUGHPUT, count)
    searched = planner._Search.run

    def run(search: planner._Search) -> object:
        """As if a search with forks among the choices found nothing."""
        if search.tables.forks.steps:
            return planner._Nothing(is_certain=False)
        return searched(search)

    monkeypatch.setattr(planner._Search, "run", run)
    worse = 0
    for seed, problem, best in made:
        found = plan(problem, Target.THROUGHPUT)
        assert isinstance(found, Distribution), seed
        assert not _is_beyond(found, best), seed
        worse += found.metrics.throughput_per_s < best.metrics.throughput_per_s * (1.0 - CLOSE)
    assert worse > 0


@pytest.mark.parametrize("count", [20, *marked_long([40])])
def test_a_schedule_that_was_not_searched_to_its_end_is_not_called_the_quickest(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _best_of_all(Target.LATENCY, count)
    monkeypatch.setattr(schedules, "_MOST_TRIES", 0)
    monkeypatch.setattr(schedules, "_LEAST_TRIES", 0)
    monkeypatch.setattr(branches, "_MOST_LOOKED_AT", 0)
    slower = 0
    for seed, problem, best in made:
        found = plan(problem, Target.LATENCY)
        assert isinstance(found, Distribution), seed
        assert not _is_beyond(found, best), seed
        if found.metrics.latency_s > best.metrics.latency_s * (1.0 + CLOSE):
            slower += 1
            assert not found.is_optimal, seed
    assert slower > 0


@pytest.mark.long
def test_a_bound_on_the_rate_that_is_out_of_reach_is_told_with_what_all_ways_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed, problem, best = next(
        one
        for one in _best_of_all(Target.THROUGHPUT, 5)
        if 1.0 < one[2].metrics.throughput_per_s < 1e6
    )
    monkeypatch.setattr(branches, "_MOST_LOOKED_AT", 0)
    limit = best.metrics.throughput_per_s * 1e3
    bounded = replace(problem, bounds=(Bound(target=Target.THROUGHPUT, limit=limit),))
    found = plan(bounded, Target.THROUGHPUT)
    assert isinstance(found, Infeasible), seed
    assert found.is_certain
    (most,) = re.findall(r"no more than ([0-9.,]+)", found.reason)
    assert float(most.replace(",", "")) >= best.metrics.throughput_per_s * 0.99


def test_the_bound_on_the_rate_is_near_where_branches_may_go_anywhere() -> None:
    gaps = []
    for seed in range(20):
        rng = random.Random(seed)
        problem = plain_problem(rng, segments=8, devices=2, configurations=1, forks=1)
        tables = tabulate(problem, Target.THROUGHPUT)
        assert tables is not None
        least_s = least_cost(tables, Target.THROUGHPUT, Caps.none(tables), 1e6)
        best = plan(problem, Target.THROUGHPUT)
        assert isinstance(best, Distribution)
        reached_s = 1.0 / best.metrics.throughput_per_s
        assert least_s <= reached_s * (1.0 + CLOSE)
        gaps.append(reached_s / least_s - 1.0)
    assert float(np.median(gaps)) < 0.05
