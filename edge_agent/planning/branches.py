"""Independent branches of a model at once: which of them runs where, so that a fork ends soonest.

That is scheduling on unrelated machines, with what has to be sent before and after. The machines
are the units of the home device and every other device. Small forks are searched exactly, by depth
first over the branches, the heaviest first, cut off where one machine alone already takes as long
as the best schedule known; larger ones up to a number of tries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedArm, PlacedFork
from edge_agent.planning.metrics import fork_legs, latency_s, resource_of
from edge_agent.planning.shortest import ForkOption
from edge_agent.planning.tables import Tables
from edge_agent.problems import Problem
from edge_agent.subgraphs import Fork

MOST_TRIES = 4000
"""Schedules that are looked at for one fork and home."""


def fork_options(tables: Tables) -> Mapping[tuple[int, int], ForkOption]:
    """The quickest way to run each fork at once, by (first segment, home)."""
    if not tables.problem.with_branches:
        return {}
    found = {}
    for index, fork in enumerate(tables.problem.summary.forks):
        for home, device in enumerate(tables.devices):
            option = _best(tables, index, fork, device)
            if option is not None:
                found[fork.segments.start, home] = option
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Where an arm may run: a resource of the home, or another device with all its units."""

    device: DeviceId
    choices: tuple[int, ...]


def _machines(tables: Tables, fork: Fork, home: DeviceId) -> list[_Machine]:
    """Where each branch of the fork may run, the home first."""
    inside = slice(fork.segments.start, fork.segments.stop)
    able: dict[tuple[DeviceId, str], list[int]] = {}
    for c, choice in enumerate(tables.choices):
        may_part = tables.barrier[1:, c].min(initial=0.0) == 0.0
        if tables.refusal[inside, c].any() or not may_part:
            continue
        is_home = choice.device == home
        name = resource_of(choice.device, choice.configuration) if is_home else ""
        able.setdefault((choice.device, name), []).append(c)
    machines = [_Machine(device=d, choices=tuple(c)) for (d, _), c in able.items()]
    reachable = [m for m in machines if m.device == home or _can_go(tables, fork, home, m.device)]
    return sorted(reachable, key=lambda m: m.device != home)


def _can_go(tables: Tables, fork: Fork, home: DeviceId, device: DeviceId) -> bool:
    links = {(k.source, k.target) for k in tables.problem.links}
    most_in = tables.problem.device(device).most_crossing_bytes
    most_out = tables.problem.device(home).most_crossing_bytes
    total_in = sum(branch.input_bytes for branch in fork.branches)
    total_out = sum(branch.output_bytes for branch in fork.branches)
    is_linked = (home, device) in links and (device, home) in links
    fits_in = most_in is None or total_in <= most_in
    fits_out = most_out is None or total_out <= most_out
    return is_linked and fits_in and fits_out


@dataclass(slots=True, kw_only=True)
class _Schedules:
    """The search for one fork and home."""

    tables: Tables
    problem: Problem
    index: int
    fork: Fork
    home: DeviceId
    machines: Sequence[_Machine]
    order: Sequence[int]
    tries: int = 0
    best_s: float = float("inf")
    best: PlacedFork | None = None
    _runs: dict[tuple[int, tuple[int, ...]], tuple[float, int]] = field(default_factory=dict)

    def run_s(self, machine: int, branches: tuple[int, ...]) -> tuple[float, int]:
        """Seconds of an arm on a machine in its best choice, sending aside, and that choice."""
        key = (machine, branches)
        if key not in self._runs:
            self._runs[key] = min(
                (self._choice_s(c, branches), c) for c in self.machines[machine].choices
            )
        return self._runs[key]

    def _choice_s(self, c: int, branches: tuple[int, ...]) -> float:
        tables, fork = self.tables, self.fork
        own = tables.seconds[fork.segments.start : fork.segments.stop, c]
        total = float(tables.overhead[c])
        per_byte = tables.border_s_per_byte[c]
        for branch in (fork.branches[b] for b in branches):
            total += float(own @ branch.work)
            total += per_byte * (branch.input_bytes + branch.output_bytes)
        return total

    def search(self, depth: int, arms: tuple[tuple[int, ...], ...]) -> None:
        """Give the branches from `depth` on to machines; `arms` are those of each machine."""
        if self.tries >= MOST_TRIES:
            return
        if depth == len(self.order):
            self._try(arms)
            return
        branch = self.order[depth]
        further = []
        for machine, own in enumerate(arms):
            longer = tuple(sorted((*own, branch)))
            further.append((self.run_s(machine, longer)[0], machine, longer))
        for run_s, machine, longer in sorted(further):
            if run_s < self.best_s:
                self.search(depth + 1, (*arms[:machine], longer, *arms[machine + 1 :]))

    def _try(self, arms: tuple[tuple[int, ...], ...]) -> None:
        if sum(1 for own in arms if own) < 2:
            return
        self.tries += 1
        placed = tuple(self._arms(arms))
        step = PlacedFork(fork=self.index, segments=self.fork.segments, home=self.home, arms=placed)
        took_s = latency_s(fork_legs(self.problem, step, 0.0))
        if took_s < self.best_s:
            self.best_s, self.best = took_s, step

    def _arms(self, arms: tuple[tuple[int, ...], ...]) -> Iterator[PlacedArm]:
        for machine, own in enumerate(arms):
            if own:
                choice = self.tables.choices[self.run_s(machine, own)[1]]
                yield PlacedArm(
                    branches=own, device=choice.device, configuration=choice.configuration
                )


def _best(tables: Tables, index: int, fork: Fork, home: DeviceId) -> ForkOption | None:
    machines = _machines(tables, fork, home)
    if len(machines) < 2:
        return None
    search = _Schedules(
        tables=tables,
        problem=tables.problem,
        index=index,
        fork=fork,
        home=home,
        machines=machines,
        order=(),
    )
    alone_s = [
        min(search.run_s(m, (b,))[0] for m in range(len(machines)))
        for b in range(len(fork.branches))
    ]
    search.order = sorted(range(len(fork.branches)), key=lambda b: (-alone_s[b], b))
    search.search(0, ((),) * len(machines))
    if search.best is None:
        return None
    return ForkOption(step=search.best, cost=search.best_s)
