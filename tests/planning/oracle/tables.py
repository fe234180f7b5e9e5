"""What each choice for a segment costs, as arrays: for enumerating and for exact programs.

A vector of costs holds seconds of latency, joules, bytes sent, then the busy seconds of every
resource. Costs of a route are sums of such vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import numpy.typing as npt

from edge_agent.devices import DeviceId, Layout
from edge_agent.distributions import PlacedArm, PlacedFork
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.profiles import SegmentTimes
from tests.planning.oracle.legality import (
    budgets,
    is_idle,
    is_only_whole,
    is_shut,
    may_run,
    may_run_arm,
    may_send,
    may_use,
)
from tests.planning.oracle.prices import (
    Cost,
    brought_bytes,
    bytes_at,
    fork_cost,
    items_of,
    link_between,
    link_resource,
    pool_of,
    run_resource,
    run_watts,
    transfer_cost,
    unit_slowdown,
)

Floats = npt.NDArray[np.float64]
LATENCY, JOULES, BYTES, BUSY = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration on a device, with what a second of it costs."""

    device: DeviceId
    times: SegmentTimes
    per_s: Floats
    pool: int
    may_run: tuple[bool, ...]


class Tables:
    """All that a problem allows for a target."""

    def __init__(self, problem: Problem, target: Target) -> None:
        self.problem = problem
        self.count = len(problem.summary.segments)
        self.devices = [
            d.id
            for d in problem.devices
            if not is_idle(problem, d.id) and not is_shut(problem, d.id)
        ]
        names = {d.id for d in problem.devices} | {link_resource(k) for k in problem.links}
        names |= {run_resource(d.id, t.configuration) for d in problem.devices for t in d.times}
        self.resources = sorted(names)
        self.at = {name: BUSY + i for i, name in enumerate(self.resources)}
        self.width = BUSY + len(names)
        limits = budgets(problem)
        self.pools = sorted(limits)
        self.budgets = np.array([limits[pool] for pool in self.pools], dtype=float)
        usable = [
            self._choice(d.id, t)
            for d in problem.devices
            for t in d.times
            if may_use(problem, target, d, t)
        ]
        self.choices = [c for c in usable if not is_only_whole(c.times)]
        self.wholes = [c for c in usable if is_only_whole(c.times) and all(c.may_run)]

    def _choice(self, device: DeviceId, times: SegmentTimes) -> Choice:
        which = times.configuration
        slowdown = unit_slowdown(self.problem, device, which.unit)
        per_s = np.zeros(self.width)
        per_s[LATENCY] = slowdown
        per_s[JOULES] = run_watts(self.problem, device, which)
        per_s[self.at[run_resource(device, which)]] = slowdown / which.instances
        return Choice(
            device=device,
            times=times,
            per_s=per_s,
            pool=self.pools.index(pool_of(self.problem, device, which.unit)),
            may_run=tuple(may_run(self.problem, device, times, i) for i in range(self.count)),
        )

    def never(self) -> Floats:
        """The costs of what cannot be."""
        return np.full(self.width, np.inf)

    def segment(self, choice: Choice, segment: int) -> Floats:
        """Of running a segment, beside overhead and borders."""
        if not choice.may_run[segment]:
            return self.never()
        return choice.times.segment_s[segment] * choice.per_s

    def overhead(self, choice: Choice) -> Floats:
        """Of beginning a subgraph."""
        return choice.times.overhead_s * choice.per_s

    def border(self, choice: Choice, boundary: int, other: Choice | None = None) -> Floats:
        """Of one side of a border; `other` is the other side where that is on the same device."""
        if boundary in (0, self.count):
            return np.zeros(self.width)
        size = self.problem.summary.cuts[boundary - 1].crossing_bytes
        if size is None:
            return self.never()
        per_byte = choice.times.border_s_per_byte
        match self.group(choice), None if other is None else self.group(other):
            case (_, "cores NHWC") as mine, theirs if mine == theirs:
                per_byte -= choice.times.turn_s_per_byte
            case mine, theirs if mine is not None and mine == theirs:
                per_byte = 0.0
        return size * per_byte * choice.per_s

    def group(self, choice: Choice) -> tuple[DeviceId, str] | None:
        """Between which choices a border costs less."""
        which = choice.times.configuration
        if not which.threads:
            return choice.device, which.unit
        return (choice.device, "cores NHWC") if which.layout is Layout.NHWC else None

    def move(self, boundary: int, source: DeviceId, target: DeviceId) -> Floats:
        """Of sending what crosses there from one device to another."""
        if source == target:
            return np.zeros(self.width)
        size = bytes_at(self.problem, boundary)
        if not may_send(self.problem, source, target, size):
            return self.never()
        assert size is not None
        link = link_between(self.problem, source, target)
        assert link is not None
        return self.vector(transfer_cost(self.problem, link, size))

    def weight_bytes(self, choice: Choice, segment: int) -> float:
        """Of a segment, in the memory of the choice."""
        size = self.problem.summary.segments[segment].constant_bytes
        return size / 2 if choice.times.configuration.is_half else float(size)

    def working_bytes(self, choice: Choice, segment: int) -> float:
        """What a segment needs of the arena of its subgraph."""
        size = self.problem.summary.segments[segment].working_bytes
        return float(size * choice.times.configuration.instances)

    def vector(self, cost: Cost) -> Floats:
        """A cost as one of these vectors."""
        found = np.zeros(self.width)
        found[:BUSY] = cost.latency_s, cost.joules, cost.wire_bytes
        for resource, busy_s in cost.busy_s.items():
            found[self.at[resource]] = busy_s
        return found

    def placed_forks(self, fork: int) -> list[tuple[PlacedFork, Floats, Floats]]:
        """Every way to run the branches of a fork at once: (how, costs, bytes per memory)."""
        found = []
        for home in self.devices:
            for arms in self._arms(fork, home):
                step = PlacedFork(
                    fork=fork,
                    segments=self.problem.summary.forks[fork].segments,
                    home=home,
                    arms=arms,
                )
                used = np.zeros(len(self.pools))
                for item, size in items_of(self.problem, step).items():
                    used[self.pools.index(str(item[0]))] += size
                found.append((step, self.vector(fork_cost(self.problem, step)), used))
        return found

    def _arms(self, fork: int, home: DeviceId) -> list[tuple[PlacedArm, ...]]:
        branches = self.problem.summary.forks[fork].branches
        found: list[tuple[PlacedArm, ...]] = []
        for parts in _partitions(list(range(len(branches)))):
            for chosen in product(self.choices, repeat=len(parts)):
                away = [c.device for c in chosen if c.device != home]
                resources = {run_resource(c.device, c.times.configuration) for c in chosen}
                if len(resources) < len(chosen) or len(set(away)) < len(away):
                    continue
                arms = [
                    PlacedArm(
                        branches=tuple(part), device=c.device, configuration=c.times.configuration
                    )
                    for part, c in zip(parts, chosen, strict=True)
                ]
                if all(
                    self._may_be(fork, home, arm, c.times)
                    for arm, c in zip(arms, chosen, strict=True)
                ):
                    found += self._ordered(home, arms)
        return found

    def _may_be(self, fork: int, home: DeviceId, arm: PlacedArm, times: SegmentTimes) -> bool:
        problem = self.problem
        whole = problem.summary.forks[fork]
        if not may_run_arm(problem, arm.device, times, fork):
            return False
        if arm.device == home:
            return True
        there = brought_bytes(whole, arm)
        back = sum(whole.branches[b].output_bytes for b in arm.branches)
        return may_send(problem, home, arm.device, there) and may_send(
            problem, arm.device, home, back
        )

    def _ordered(self, home: DeviceId, arms: list[PlacedArm]) -> list[tuple[PlacedArm, ...]]:
        """In every order in which arms may be served that wait for one another's bytes."""
        away = [arm for arm in arms if arm.device != home]
        here = [arm for arm in arms if arm.device == home]
        ends = [(home, arm.device) for arm in away] + [(arm.device, home) for arm in away]
        links = [link_between(self.problem, *pair) for pair in ends]
        used = [link_resource(link) for link in links if link is not None]
        if len(set(used)) == len(used):
            return [tuple(arms)]
        return [(*order, *here) for order in permutations(away)]


def _partitions(things: list[int]) -> list[list[list[int]]]:
    """Every way to make two or more parts."""
    found: list[list[list[int]]] = [[]]
    for thing in things:
        found = [
            [*parts[:i], [*parts[i], thing], *parts[i + 1 :]]
            for parts in found
            for i in range(len(parts))
        ] + [[*parts, [thing]] for parts in found]
    return [parts for parts in found if len(parts) > 1]
