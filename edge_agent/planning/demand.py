"""What a route demands, read from the tables that it was found in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edge_agent.planning.tables import Floats, Sends, Tables

Pieces = tuple[tuple[int, int], ...]
"""(first segment, choice) of each subgraph of a route, in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Amounts:
    """What a route demands of everything, per request."""

    seconds: float
    joules: float
    size_bytes: float
    loads: Floats
    """(resources,): seconds that each is busy."""
    memory: Floats
    """(pools,): bytes of weights and activations."""


def amounts(tables: Tables, pieces: Sequence[tuple[int, int]]) -> Amounts:
    """What a route of subgraphs demands; the formulas are those of metrics.py."""
    tally = _Tally(tables)
    starts = [start for start, _ in pieces]
    for at, ((start, stop), (_, c)) in enumerate(
        zip(pairwise((*starts, tables.places)), pieces, strict=True)
    ):
        before = pieces[at - 1][1] if at else None
        after = pieces[at + 1][1] if at + 1 < len(pieces) else None
        device = int(tables.device_of[c])
        if before is None:
            sends, index = tables.first_sends, (device,)
            link = tables.in_link_of[device]
            tally.send(sends, index, tables.owner_host, tables.host_of[device], link)
        elif (source := int(tables.device_of[before])) != device:
            tally.send(
                tables.sends,
                (start, source, device),
                tables.host_of[source],
                tables.host_of[device],
                tables.link_of[source, device],
            )
        busy_s = tables.overhead[c] + tables.seconds[start:stop, c].sum()
        if before is not None:
            busy_s += _border_s(tables, start, c, before)
        if after is not None:
            busy_s += _border_s(tables, stop, c, after)
        tally.run(c, busy_s)
        pool = tables.pool_of[c]
        tally.memory[pool] += tables.weights[start:stop, c].sum()
        tally.memory[pool] += tables.arenas[start:stop, c].max()
    device = int(tables.device_of[pieces[-1][1]])
    link = tables.out_link_of[device]
    tally.send(tables.last_sends, (device,), tables.host_of[device], tables.owner_host, link)
    return Amounts(
        seconds=tally.seconds,
        joules=tally.joules,
        size_bytes=tally.size_bytes,
        loads=tally.loads,
        memory=tally.memory,
    )


def _border_s(tables: Tables, place: int, c: int, other: int) -> float:
    is_inner = tables.group_number(c) is not None
    is_inner = is_inner and tables.group_number(c) == tables.group_number(other)
    return float((tables.inner if is_inner else tables.border)[place, c])


class _Tally:
    """Sums on the way along a route."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.seconds = self.joules = self.size_bytes = 0.0
        self.loads: Floats = np.zeros(len(tables.resources))
        self.memory: Floats = np.zeros(len(tables.pools))

    def run(self, c: int, busy_s: float) -> None:
        tables = self._tables
        self.seconds += busy_s
        self.joules += busy_s * tables.joules_per_s[c]
        self.loads[tables.resource_of[c]] += busy_s * tables.per_round[c]

    def send(
        self, sends: Sends, index: tuple[int, ...], source: int, target: int, link: int
    ) -> None:
        self.seconds += sends.seconds[index]
        self.joules += sends.joules[index]
        self.size_bytes += sends.size_bytes[index]
        self.loads[link] += sends.link_seconds[index]
        self.loads[source] += sends.source_seconds[index]
        self.loads[target] += sends.target_seconds[index]
