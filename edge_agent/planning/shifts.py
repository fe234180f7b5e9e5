"""Small changes to a route on one device whose busiest resource has to have less to do.

A search that changes choices only at some boundaries of a long model leaves loads uneven by about a
segment. Giving a few neighbouring segments to another choice evens them out: all such changes are
priced at once, and the best one is made, as long as one is better (steepest descent).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Floats, Ints, Tables

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""How many segments are given away together."""


def evened(tables: Tables, pieces: Pieces, most_changes: int) -> Pieces:
    """A route that is at least as good as `pieces`, after at most so many changes.

    Better is what leaves less to the busiest resource, then what loads all together less.
    """
    assert len(tables.devices) == 1, "nothing is sent"
    device = _Device.of(tables)
    starts = np.array([start for start, _ in pieces])
    chosen = np.repeat([choice for _, choice in pieces], np.diff(starts, append=tables.places))
    for _ in range(most_changes):
        changed = device.changed(chosen)
        if changed is None:
            break
        chosen = changed
    starts = np.flatnonzero(np.diff(chosen, prepend=-1))
    return tuple(zip(starts.tolist(), chosen[starts].tolist(), strict=True))


class _Change(NamedTuple):
    """Some segments in another choice, by what it is ordered by: both loads in seconds."""

    busiest: float
    in_all: float
    first: int
    stop: int
    choice: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Device:
    """What segments and borders load the resources with."""

    tables: Tables
    on: Floats
    """(c, resources): for each second."""
    refused: Ints
    """(n + 1, c): how many segments before each boundary are refused."""
    before: Floats
    """(n + 1, c): seconds of the segments before each boundary."""
    border: Floats
    inner: Floats
    """(n + 1, c): seconds at a border before a segment, and at one within a group."""
    is_barred: npt.NDArray[np.bool_]
    """(n + 1, c): whether there can be none."""
    group: Ints
    """(c,): -1 where it is in none."""

    @classmethod
    def of(cls, tables: Tables) -> _Device:
        count = len(tables.choices)
        on = np.zeros((count, len(tables.resources)))
        on[np.arange(count), tables.resource_of] = tables.per_round
        group = np.full(count, -1)
        group[tables.grouped] = tables.group_of
        end = np.zeros((1, count))
        return cls(
            tables=tables,
            on=on,
            refused=np.vstack((end, np.isinf(tables.refusal))).cumsum(axis=0).astype(np.int64),
            before=np.vstack((end, tables.seconds)).cumsum(axis=0),
            border=np.vstack((tables.border, end)),
            inner=np.vstack((tables.inner, end)),
            is_barred=np.vstack((np.isinf(tables.barrier), end > 0.0)),
            group=group,
        )

    def changed(self, chosen: Ints) -> Ints | None:
        """The choice of each segment after the best change; None if none is better."""
        n = self.tables.places
        ended, begun, _ = self._crossed(np.arange(1, n), chosen[:-1], chosen[1:])
        borders = np.zeros((n + 1, self.on.shape[1]))
        borders[0] = self.tables.overhead[chosen[0]] * self.on[chosen[0]]
        borders[1:n] = ended[:, None] * self.on[chosen[:-1]] + begun[:, None] * self.on[chosen[1:]]
        runs = self.tables.seconds[np.arange(n), chosen][:, None] * self.on[chosen]
        loads = runs.sum(axis=0) + borders.sum(axis=0)
        nothing = np.zeros((1, len(loads)))
        run = np.vstack((nothing, runs.cumsum(axis=0)))
        crossed = np.vstack((nothing, borders.cumsum(axis=0)))
        best = _Change(float(loads.max()), float(loads.sum()), 0, 0, -1)
        for length in _LENGTHS:
            if length > n:
                break
            first = np.arange(n - length + 1)
            stop = first + length
            left = loads - (run[stop] - run[first]) - (crossed[stop + 1] - crossed[first])
            best = self._best(chosen, first, stop, left, best)
        if best.choice < 0:
            return None
        changed = chosen.copy()
        changed[best.first : best.stop] = best.choice
        return changed

    def _best(self, chosen: Ints, first: Ints, stop: Ints, left: Floats, least: _Change) -> _Change:
        """The best of giving each [first, stop) to each choice, if it is not worse than `least`;
        `left`: (m, resources) loads of all others."""
        tables, n = self.tables, self.tables.places
        new = np.broadcast_to(np.arange(len(self.on)), (len(first), len(self.on)))
        # At the ends of the model there is no border: as if the same went on.
        before = np.where(first[:, None] > 0, chosen[np.maximum(first - 1, 0)][:, None], new)
        after = np.where(stop[:, None] < n, chosen[np.minimum(stop, n - 1)][:, None], new)
        ended, begun, is_barred = self._crossed(first[:, None], before, new)
        left_s, entered, is_barred_behind = self._crossed(stop[:, None], new, after)
        own = self.before[stop] - self.before[first] + begun + left_s
        own = own + np.where(first[:, None] > 0, 0.0, tables.overhead)
        loads = left[:, None, :] + own[:, :, None] * self.on
        loads += ended[:, :, None] * self.on[before] + entered[:, :, None] * self.on[after]
        is_possible = self.refused[stop] == self.refused[first]
        is_possible &= ~(is_barred | is_barred_behind)
        busiest = np.where(is_possible, loads.max(axis=2), np.inf)
        lowest = float(busiest.min())
        if lowest > least.busiest:
            return least
        in_all = np.where(busiest == lowest, loads.sum(axis=2), np.inf)
        row, choice = divmod(int(in_all.argmin()), len(self.on))
        found = _Change(lowest, float(in_all[row, choice]), int(first[row]), int(stop[row]), choice)
        return found if found[:2] < least[:2] else least

    def _crossed(
        self, place: Ints, before: Ints, after: Ints
    ) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        """Seconds of ending one choice and of beginning another before a segment, and whether that
        cannot be; nothing where both are the same."""
        is_same = before == after
        is_inner = (self.group[before] == self.group[after]) & (self.group[before] >= 0)
        ended = np.where(is_inner, self.inner[place, before], self.border[place, before])
        begun = np.where(is_inner, self.inner[place, after], self.border[place, after])
        begun = begun + self.tables.overhead[after]
        is_barred = self.is_barred[place, before] | self.is_barred[place, after]
        return np.where(is_same, 0.0, ended), np.where(is_same, 0.0, begun), is_barred & ~is_same
