"""What is still to come after a partial route, at least: for several weightings at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_agent.planning.arenas import Levels
from edge_agent.planning.stays import StayPaths
from edge_agent.planning.tables import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeveledRest:
    """By the level of the arena, as `LeveledPaths`."""

    levels: Levels
    tails: Floats
    """(n + 1, rows, c, levels)"""
    heads: Floats
    """(n, rows, d)"""

    def after(self, place: int, choice: Ints, arena: Floats, columns: Floats) -> Floats:
        """(rows, m): with segments before `place` done, in a choice with an arena."""
        del columns
        found: Floats = self.tails[place][:, choice, self.levels.above(arena, choice)]
        return found

    def arriving(self, place: int, device: Ints, columns: Floats) -> Floats:
        """(rows, m): with a subgraph about to begin on a device, for each of (m,)."""
        del columns
        found: Floats = self.heads[place][:, device]
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StayRest:
    """By how much is held where a partial route is now, as `StayPaths`."""

    paths: StayPaths
    pool: Ints
    """(z,): which label column is the memory of a zone; -1 if none."""
    loads: tuple[Ints, ...]
    """(z,): which are its resources."""

    def after(self, place: int, choice: Ints, arena: Floats, columns: Floats) -> Floats:
        """(rows, m): with segments before `place` done, in a choice with an arena."""
        start = self.started(place, choice, arena, columns)
        found: Floats = self.paths.tails[place][:, choice, start]
        return found

    def started(self, place: int, choice: Ints, arena: Floats, columns: Floats) -> Ints:
        """(m,): which start of stays stands for each."""
        return self._start(place, self.paths.known.zone_of[choice], arena, columns)

    def arriving(self, place: int, device: Ints, columns: Floats) -> Floats:
        """(rows, m): with a subgraph about to begin on a device, for each of (m,)."""
        enter = self.paths.enter[place]
        best = np.full((len(enter), len(columns)), np.inf)
        nothing = np.zeros(len(columns))
        for zones in self.paths.known.of_device.T:
            zone = zones[device]
            start = self._start(place, zone, nothing, columns)
            np.minimum(best, enter[:, zone, start], out=best)
        return best

    def _start(self, place: int, zone: Ints, arena: Floats, columns: Floats) -> Ints:
        rows = np.arange(len(zone))
        pool = self.pool[zone]
        # The arena may grow into what it has already, so that it is no part of what is held.
        held = np.where(pool >= 0, columns[rows, pool] - arena, np.inf)
        busy_s = np.full(len(zone), np.inf)
        for z, own in enumerate(self.loads):
            if len(own):
                which = zone == z
                busy_s[which] = columns[which][:, own].sum(axis=1)
        return self.paths.known.started(place, zone, held, busy_s)


Rest = LeveledRest | StayRest
