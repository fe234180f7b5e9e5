"""Two devices whose best plans can be worked out by hand, and one change at a time to them.

Links carry a byte in a microsecond where nothing else is said, so that 1000 bytes are 1 ms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_agent.devices import DeviceId, UnitId
from edge_agent.distributions import (
    Distribution,
    Infeasible,
    PlacedArm,
    PlacedFork,
    Route,
)
from edge_agent.planning.planner import plan
from edge_agent.plans import Bound, Target
from edge_agent.problems import DeviceStatistics, Problem
from edge_agent.profiles import HOST_UNIT, Configuration
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Fork
from tests.simulation.made_problems import (
    A,
    B,
    C,
    branch,
    device,
    host,
    link,
    model,
    placed,
    problem,
    route,
    times,
)

MS = 1e-3
MB = 1_000_000
HOST = host()

ALL_ON_A = (route(placed(0, 3, A, HOST)),)
ALL_ON_B = (route(placed(0, 3, B, HOST)),)
A_THEN_B = (route(placed(0, 1, A, HOST), placed(1, 3, B, HOST)),)
B_THEN_A = (route(placed(0, 2, B, HOST), placed(2, 3, A, HOST)),)


def both_ways(first: DeviceId, second: DeviceId, **changes: Any) -> tuple[Any, ...]:
    """Two links alike, one in each direction."""
    return link(first, second, **changes), link(second, first, **changes)


def quick_neighbour() -> Problem:
    """Three segments of 10 ms each on the owner `a`, of 2 ms each on `b`; links of 1 ms latency.

    The request brings 10 kB; 4 kB cross the first cut, 1 kB the second; the answer is empty.

    All on `b` takes 1 + 10 + 6 + 1 = 18 ms; the first on `a` and the rest on `b` 10 + (1 + 4) + 4
    + 1 = 20 ms; all on `a` 30 ms.
    """
    return problem(
        model(3, [4000, 1000]),
        [device(A, times(HOST, [10 * MS] * 3)), device(B, times(HOST, [2 * MS] * 3))],
        both_ways(A, B, latency_s=MS),
        input_bytes=10_000,
    )


def one_segment(a_s: float, b_s: float, **changes: Any) -> Problem:
    """One segment that takes so long on `a` and on `b`; links without latency; 10 kB come in."""
    made = problem(
        model(1),
        [device(A, times(HOST, [a_s])), device(B, times(HOST, [b_s]))],
        both_ways(A, B),
        input_bytes=10_000,
    )
    return replace(made, **changes)


def two_branches(**changes: Any) -> Problem:
    """A segment of 10 ms, then two branches of 10 ms each at once, on `a` or `b` alike.

    One after the other that is 30 ms. With a branch on `b`, 0.5 ms there and back: 10 + 11 ms.
    """
    fork = Fork(
        segments=SegmentRange(start=1, stop=3),
        branches=(branch(1, [1.0, 0.0]), branch(2, [0.0, 1.0])),
    )
    made = problem(
        model(3, forks=[fork]),
        [device(name, times(HOST, [10 * MS] * 3)) for name in (A, B)],
        both_ways(A, B, latency_s=0.5 * MS),
    )
    return replace(made, **changes)


def forked(home: DeviceId, *arms: tuple[int, DeviceId, Configuration]) -> PlacedFork:
    """The fork of `two_branches`, each (branch, device, configuration) an arm of its own."""
    return PlacedFork(
        fork=0,
        segments=SegmentRange(start=1, stop=3),
        home=home,
        arms=tuple(
            PlacedArm(branches=(branch,), device=where, configuration=which)
            for branch, where, which in arms
        ),
    )


def branches_through_b(**changes: Any) -> Problem:
    """`two_branches`, with a third device `c` that is as `b`, and links between all of them."""
    made = two_branches()
    third = device(C, times(HOST, [10 * MS] * 3))
    links = (*both_ways(A, C, latency_s=0.5 * MS), *both_ways(B, C, latency_s=0.5 * MS))
    made = replace(made, devices=(*made.devices, third), links=(*made.links, *links))
    return replace(made, **changes)


THROUGH_B = (Route(steps=(placed(0, 1, A, HOST), forked(B, (0, A, HOST), (1, C, HOST)))),)
"""For `branches_through_b`: `b` is the home of a fork and runs none of its branches."""


def with_link(made: Problem, source: DeviceId, target: DeviceId, **changes: Any) -> Problem:
    """The problem with one link changed."""
    return replace(
        made,
        links=tuple(
            replace(k, **changes) if (k.source, k.target) == (source, target) else k
            for k in made.links
        ),
    )


def without_link(made: Problem, source: DeviceId, target: DeviceId) -> Problem:
    """The problem without one link."""
    ends = (source, target)
    return replace(made, links=tuple(k for k in made.links if (k.source, k.target) != ends))


def with_links(made: Problem, **changes: Any) -> Problem:
    """The problem with all links changed alike."""
    return replace(made, links=tuple(replace(k, **changes) for k in made.links))


def with_device(made: Problem, name: DeviceId, **changes: Any) -> Problem:
    """The problem with one device changed."""
    return replace(
        made,
        devices=tuple(replace(d, **changes) if d.id == name else d for d in made.devices),
    )


def with_unit(made: Problem, name: DeviceId, which: UnitId = HOST_UNIT, **changes: Any) -> Problem:
    """The problem with one unit of a device changed."""
    units = made.device(name).units
    changed = tuple(replace(u, **changes) if u.id == which else u for u in units)
    return with_device(made, name, units=changed)


def now(made: Problem, name: DeviceId, **state: Any) -> Problem:
    """The problem with what a device is like at present."""
    return replace(made, statistics=(DeviceStatistics(device=name, **state),))


def bounded(made: Problem, target: Target, limit: float) -> Problem:
    """The problem with one bound."""
    return replace(made, bounds=(Bound(target=target, limit=limit),))


def best(made: Problem, target: Target = Target.LATENCY) -> Distribution:
    """The plan, which is known to be the best."""
    found = plan(made, target)
    assert isinstance(found, Distribution), found
    assert found.is_optimal
    return found


def routes_of(made: Problem, target: Target = Target.LATENCY) -> tuple[Route, ...]:
    """The routes of the best plan."""
    return best(made, target).routes


def latency_ms(made: Problem) -> float:
    """Of the quickest plan."""
    return best(made).metrics.latency_s / MS


def refused(made: Problem, target: Target = Target.LATENCY) -> str:
    """Why nothing can be planned."""
    found = plan(made, target)
    assert isinstance(found, Infeasible), found
    assert found.target is target
    return found.reason
