"""Where the arms of a fork may run: on which machines, with what sent to them, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedArm
from edge_agent.planning.cost import is_divisible
from edge_agent.planning.known import Flags
from edge_agent.planning.metrics import times_of
from edge_agent.planning.tables import Tables
from edge_agent.summaries import Fork

MOST_ORDERED = 4
"""Arms on other devices whose order of sending is tried, where they share a link."""

Branches = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where an arm may run: a resource of the home, or another device with all its units."""

    device: DeviceId
    choices: tuple[int, ...]


def able_in(tables: Tables, fork: Fork, is_parted: Flags) -> list[int]:
    """The choices in which branches of a fork may run."""
    inside = slice(fork.segments.start, fork.segments.stop)
    is_allowed = ~tables.refusal[inside].any(axis=0)
    return np.flatnonzero(is_allowed & is_parted).tolist()


def parted(tables: Tables) -> Flags:
    """(c,): the choices in which parts of the model may run."""
    found = []
    for choice in tables.choices:
        assert choice.configuration is not None, "there are no choices of forks yet"
        times = times_of(tables.problem, choice.device, choice.configuration)
        found.append(is_divisible(times))
    return np.array(found, bool)


def machines_of(tables: Tables, able: Sequence[int], home: DeviceId) -> list[Machine]:
    """Where branches may run, the home first; `able`: in which choices."""
    grouped: dict[tuple[DeviceId, str], list[int]] = {}
    for c in able:
        choice = tables.choices[c]
        resource = tables.resources[tables.resource_of[c]] if choice.device == home else ""
        grouped.setdefault((choice.device, resource), []).append(c)
    machines = [Machine(device=d, choices=tuple(c)) for (d, _), c in grouped.items()]
    linked = {(k.source, k.target) for k in tables.problem.links}
    reached = [
        m for m in machines if m.device == home or {(home, m.device), (m.device, home)} <= linked
    ]
    return sorted(reached, key=lambda m: m.device != home)


def may_go(tables: Tables, fork: Fork, home: DeviceId, machine: Machine, own: Branches) -> bool:
    """Whether what these branches read and give may be sent."""
    if machine.device == home:
        return True
    problem = tables.problem
    brought = fork.input_bytes(own)
    returned = sum(fork.branches[b].output_bytes for b in own)
    most_in = problem.device(machine.device).most_crossing_bytes
    most_out = problem.device(home).most_crossing_bytes
    return (most_in is None or brought <= most_in) and (most_out is None or returned <= most_out)


def is_way(
    tables: Tables,
    fork: Fork,
    home: DeviceId,
    machines: Sequence[Machine],
    arms: Mapping[int, Branches],
) -> bool:
    """Whether arms on these machines are a way to run a fork at once."""
    return len(arms) > 1 and all(
        may_go(tables, fork, home, machines[m], own) for m, own in arms.items()
    )


def arm_of(tables: Tables, branches: Branches, choice: int) -> PlacedArm:
    """These branches in a choice."""
    where = tables.choices[choice]
    assert where.configuration is not None, "an arm computes"
    return PlacedArm(branches=branches, device=where.device, configuration=where.configuration)


def orders_of(
    tables: Tables, home: DeviceId, arms: Sequence[PlacedArm]
) -> Iterator[list[PlacedArm]]:
    """The arms in every order that makes a difference: of those that wait for a link; in one, if
    there are too many."""
    away = [arm for arm in arms if arm.device != home]
    here = [arm for arm in arms if arm.device == home]
    if len(away) > MOST_ORDERED or not _have_to_wait(tables, home, away):
        yield [*here, *away]
        return
    for order in permutations(away):
        yield [*here, *order]


def is_order_open(tables: Tables, home: DeviceId, arms: Sequence[PlacedArm]) -> bool:
    """Whether another order than those of `orders_of` might make a difference."""
    away = [arm for arm in arms if arm.device != home]
    return len(away) > MOST_ORDERED and _have_to_wait(tables, home, away)


def _have_to_wait(tables: Tables, home: DeviceId, away: Sequence[PlacedArm]) -> bool:
    """Whether two of these arms share a link."""
    ends = [(home, arm.device) for arm in away] + [(arm.device, home) for arm in away]
    links = [tables.problem.link(*pair) for pair in ends]
    used = [link.resource for link in links if link is not None]
    return len(set(used)) < len(used)
