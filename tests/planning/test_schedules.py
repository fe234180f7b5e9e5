"""The schedule of a fork that ends soonest, against all ways to run it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from edge_agent.devices import DeviceId, UnitId
from edge_agent.distributions import Distribution, Infeasible, PlacedFork
from edge_agent.planning import branches
from edge_agent.planning.arms import parted
from edge_agent.planning.branches import at_homes
from edge_agent.planning.metrics import fork_legs, latency_s
from edge_agent.planning.planner import plan
from edge_agent.planning.schedules import Schedule, schedules
from edge_agent.planning.tables import Tables, tabulate
from edge_agent.plans import Bound, Target
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Branch, Fork
from tests.planning.made_models import configuration, segment, summary
from tests.planning.oracle.problems_made import small_problem

ONE, TWO = configuration(threads=1), configuration(threads=2)
NAMES = [DeviceId(name) for name in "abcdef"]
A, B, C = NAMES[:3]


def _times(which: Configuration, *segment_s: float, refused: tuple[int, ...] = ()) -> SegmentTimes:
    return SegmentTimes(
        configuration=which,
        segment_s=segment_s,
        overhead_s=0.0,
        border_s_per_byte=0.0,
        error_fraction=0.0,
        refused=refused,
    )


def _device(
    name: DeviceId, *times: SegmentTimes, most_crossing_bytes: int | None = None
) -> PlannedDevice:
    return PlannedDevice(
        id=name,
        units=(PlannedUnit(id=UnitId("cpu")),),
        times=times,
        memory_bytes=10**9,
        cores=2,
        most_crossing_bytes=most_crossing_bytes,
    )


def _branch(*work: float, reads: int = 0, gives: int = 0) -> Branch:
    return Branch(
        nodes=(),
        input_bytes=reads,
        output_bytes=gives,
        work=work,
        weight_bytes=10,
        working_bytes=10,
    )


def _link(source: DeviceId, target: DeviceId, latency_s: float, medium: str = "") -> Link:
    return Link(
        source=source,
        target=target,
        latency_s=latency_s,
        goodput_bytes_per_s=1000.0,
        medium=medium,
    )


def _all_ways(tables: Tables, index: int, home: DeviceId, most: int) -> list[PlacedFork] | None:
    """All ways to run a fork from a home; None: there are more than `most`."""
    fork = tables.problem.summary.forks[index]
    found = []
    for step in branches._ways(tables, index, fork, home, parted(tables)):
        if step is not None:
            found.append(step)
        if len(found) > most:
            return None
    return found


def _offered(seeds: range) -> Iterator[tuple[int, Tables, Schedule]]:
    """The schedules of small random problems."""
    for seed in seeds:
        problem = small_problem(random.Random(seed))
        tables = tabulate(problem, Target.LATENCY)
        if tables is not None and problem.with_branches and problem.summary.forks:
            known, offered = at_homes(tables, Target.LATENCY, lambda known: list(schedules(known)))
            for schedule in offered:
                yield seed, known, schedule


@pytest.mark.parametrize(
    "seeds", [range(300), pytest.param(range(300, 3000), marks=pytest.mark.long)]
)
def test_no_way_ends_sooner_than_a_schedule_that_is_certain(seeds: range) -> None:
    compared = waits = 0
    for seed, tables, schedule in _offered(seeds):
        problem = tables.problem
        ways = _all_ways(tables, schedule.index, tables.devices[schedule.home], 2000)
        if not ways:
            continue
        least_s = min(latency_s(fork_legs(problem, way, 0.0)) for way in ways)
        assert schedule.least_s <= least_s * (1.0 + 1e-9), seed
        ending = schedule.soonest()
        if ending.step is None or not ending.is_certain:
            continue
        compared += 1
        waits += any(link.medium for link in problem.links)
        took_s = latency_s(fork_legs(problem, ending.step, 0.0))
        assert took_s <= least_s * (1.0 + 1e-9), seed
    assert compared > len(seeds) / 6
    assert waits > 0


def test_a_slower_choice_may_let_another_result_go_first() -> None:
    """B's quickest choice is ready in 9.8 s, C in 9.9, and both send over one medium: B's 4 s of
    sending keep C waiting, whose link takes another 50. In 10 s, C goes first."""
    whole = summary([segment(i) for i in range(4)], [1000, 1000, 1000])
    fork = Fork(
        segments=SegmentRange(start=1, stop=3),
        branches=(_branch(1.0, 0.0, gives=4000), _branch(0.0, 1.0, gives=1000)),
    )
    problem = Problem(
        summary=replace(whole, forks=(fork,)),
        devices=(
            _device(A, _times(ONE, 1.0, 0.0, 0.0, 1.0, refused=(1, 2))),
            _device(B, _times(ONE, 900.0, 9.8, 1e3, 900.0), _times(TWO, 900.0, 10.0, 1e3, 900.0)),
            _device(C, _times(ONE, 900.0, 1e3, 9.9, 900.0)),
        ),
        owner=A,
        links=(
            _link(A, B, 0.0),
            _link(A, C, 0.0),
            _link(B, A, 0.0, "air"),
            _link(C, A, 50.0, "air"),
        ),
    )
    for bounds in ((), (Bound(target=Target.LATENCY, limit=100.0),)):
        found = plan(replace(problem, bounds=bounds), Target.LATENCY)
        assert isinstance(found, Distribution)
        # 1 + 9.9 + 1 to send + 50 + 1.
        assert found.metrics.latency_s == pytest.approx(62.9)
        assert found.bound <= 62.9 * (1.0 + 1e-9)


def _five_over_one_medium() -> Problem:
    """A runs the ends, the five others one branch each, the later the slower."""
    whole = summary([segment(i) for i in range(3)], [5000, 0])
    branch = _branch(0.2, reads=1000)
    fork = Fork(segments=SegmentRange(start=1, stop=2), branches=(branch,) * 5)
    first, *others = NAMES
    return Problem(
        summary=replace(whole, forks=(fork,)),
        devices=(
            _device(first, _times(ONE, 0.0, 0.0, 0.0, refused=(1,)), most_crossing_bytes=1500),
            *(
                _device(
                    name,
                    _times(ONE, 0.0, 5.0 * at, 0.0, refused=(0, 2)),
                    most_crossing_bytes=1500,
                )
                for at, name in enumerate(others, start=1)
            ),
        ),
        owner=first,
        links=tuple(
            link
            for name in others
            for link in (_link(first, name, 0.0, "air"), _link(name, first, 0.0, "air"))
        ),
    )


def test_where_orders_are_left_out_nothing_is_called_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = _five_over_one_medium()
    # Sent last to first, all end after 6 s; of five, only one order is tried.
    found = plan(problem, Target.LATENCY)
    assert isinstance(found, Distribution)
    assert found.bound <= 6.0
    bounded = replace(problem, bounds=(Bound(target=Target.LATENCY, limit=7.0),))
    for most in (4000, 0):
        monkeypatch.setattr(branches, "_MOST_LOOKED_AT", most)
        refused = plan(bounded, Target.LATENCY)
        assert isinstance(refused, Infeasible)
        assert not refused.is_certain


def _equal(count: int, devices: int, most_crossing_bytes: int | None = None) -> Problem:
    """Equal branches over equal devices."""
    whole = summary([segment(i) for i in range(3)], [1000, 1000])
    branch = _branch(1.0 / count, reads=10, gives=10)
    fork = Fork(segments=SegmentRange(start=1, stop=2), branches=(branch,) * count)
    names = NAMES[:devices]
    return Problem(
        summary=replace(whole, forks=(fork,)),
        devices=tuple(
            _device(name, _times(ONE, 0.01, 1.0, 0.01), most_crossing_bytes=most_crossing_bytes)
            for name in names
        ),
        owner=names[0],
        links=tuple(_link(a, b, 1e-4) for a in names for b in names if a != b),
    )


def test_a_schedule_of_many_equal_branches_is_given_up_in_time() -> None:
    tables = tabulate(_equal(13, 4), Target.LATENCY)
    assert tables is not None
    first = next(schedules(tables))
    ending = first.soonest()
    assert not ending.is_certain
    assert ending.step is not None
    # Four of them on one device, three on each of the others, and what is sent.
    took_s = latency_s(fork_legs(tables.problem, ending.step, 0.0))
    assert took_s == pytest.approx(4.0 / 13.0, rel=0.3)
    # On average each device has a quarter of the work.
    assert first.least_s == pytest.approx(0.25)


def test_placements_that_are_none_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _equal(6, 2, most_crossing_bytes=5)
    tables = tabulate(problem, Target.LATENCY)
    assert tables is not None
    # Nothing can be sent, whatever is where: 64 placements from each home.
    assert branches._all_options(tables) == []
    monkeypatch.setattr(branches, "_MOST_LOOKED_AT", 127)
    assert branches._all_options(tables) is None
    monkeypatch.setattr(branches, "_MOST_LOOKED_AT", 128)
    assert branches._all_options(tables) == []
