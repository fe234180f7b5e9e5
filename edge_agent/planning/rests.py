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

    def arriving(self, place: int, device: int, columns: Floats) -> Floats:
        """(rows, m) or (rows, 1): with a subgraph about to begin on a device."""
        del columns
        found: Floats = self.heads[place][:, [device]]
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
        zone = self.paths.known.zone_of[choice]
        start = self._start(place, zone, arena, columns)
        found: Floats = self.paths.tails[place][:, choice, start]
        return found

    def arriving(self, place: int, device: int, columns: Floats) -> Floats:
        """(rows, m): with a subgraph about to begin on a device."""
        best = np.full((self.paths.enter.shape[1], len(columns)), np.inf)
        nothing = np.zeros(len(columns))
        for z in np.flatnonzero(self.paths.known.device_of == device):
            zone = np.full(len(columns), z)
            start = self._start(place, zone, nothing, columns)
            np.minimum(best, self.paths.enter[place][:, z, start], out=best)
        return best

    def _start(self, place: int, zone: Ints, arena: Floats, columns: Floats) -> Ints:
        # The arena may grow into what it has already, so that it is no part of what is held.
        held, busy_s = np.full((2, len(zone)), np.inf)
        for z in np.unique(zone):
            which = zone == z
            if self.pool[z] >= 0:
                held[which] = columns[which, self.pool[z]] - arena[which]
            if len(self.loads[z]):
                busy_s[which] = columns[which][:, self.loads[z]].sum(axis=1)
        return self.paths.known.started(place, zone, held, busy_s)


Rest = LeveledRest | StayRest
