"""Better routes near a known one: a part of it is freed and searched, the rest stays.

Large neighbourhood search (Shaw, Using constraint programming and local search methods to solve
vehicle routing problems, CP 1998): stretches of the model, or what runs on some devices, may run
anywhere again, while the fixed rest is joined to a few blocks, so that a label search is quick and
mostly exact. A route that exceeds caps is repaired in the same way: what is made less is then what
it has too much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.planning.amounts import (
    FIRST_LOAD,
    Aim,
    Bottleneck,
    aim_row,
    aimed,
    as_weights,
    bottleneck_columns,
    demanded,
    memory_columns,
)
from edge_agent.planning.coarse import coarsen, crossings, refined
from edge_agent.planning.duals import Effort
from edge_agent.planning.label_search import Flags, Search
from edge_agent.planning.question import question
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.tables import Floats, Ints, Tables

_GOLDEN = 0.6180339887498949
_LEAST_FREE, _FIRST_FREE, _MOST_FREE = 5, 8, 14
_LABELS = 48
_LEAST_WORTH = 0.0006
_PATIENCE = 4
_CALL = 3000.0
"""Effort of asking, however little."""
_LEAST_STEP = 0.001
"""Of a greatest: the smallest share by which it is tried to be made less."""


@dataclass(slots=True, kw_only=True)
class Neighbours:
    """A search around one route; it goes on where it stopped."""

    tables: Tables
    aim: Aim
    limit: Floats
    """(columns,) of caps."""
    prices: dict[int, float]
    """Of columns, for the aim."""
    effort: Effort
    _crossing: Floats = field(init=False)
    _turn: int = 0
    _free: float = _FIRST_FREE
    _step: float = 0.05
    _failed: int = 0

    def __post_init__(self) -> None:
        self._crossing = crossings(self.tables)

    def repaired(
        self,
        pieces: Pieces,
        units: float,
        *,
        limit: Floats | None = None,
        worth: float = 1.0,
    ) -> Pieces:
        """A route with less above the caps, by at most so much effort; it may keep them.

        `worth`: what the cost counts at first, beside the shares by which caps are exceeded.
        """
        limit = self.limit if limit is None else limit
        stop = self.effort.spent + units
        amounts = demanded(self.tables, pieces)
        whole = aim_row(self.tables, self.aim)
        worth = worth / max(float(whole @ amounts), 1e-12) if whole.any() else 0.0
        patience = _PATIENCE if worth else _patience(self.tables)
        prices = {int(k): 1.0 / float(max(limit[k], 1e-9)) for k in self.prices}
        failed = 0
        while self.effort.spent < stop:
            (exceeded,) = np.nonzero(amounts > limit)
            if not len(exceeded):
                break
            row = whole * worth
            row[exceeded] += 1.0 / np.maximum(limit[exceeded], 1e-9)
            found = self._tried(
                pieces,
                as_weights(self.tables, row[None]),
                np.maximum(limit, amounts),
                prices,
                best=float(row @ amounts),
                focus=self._where(pieces, exceeded),
            )
            if found is not None:
                failed, pieces, amounts = 0, found, demanded(self.tables, found)
                continue
            failed += 1
            if failed > patience:
                # What is too much counts more, or all was tried.
                if worth <= _LEAST_WORTH / max(float(whole @ amounts), 1e-12):
                    break
                failed, worth = 0, worth / 4.0
        return pieces

    def improved(self, pieces: Pieces, units: float, bound: float) -> Pieces:
        """A route as good or better, by at most so much effort; none is better than `bound`."""
        stop = self.effort.spent + units
        if isinstance(self.aim, Bottleneck):
            return self._lowered(pieces, stop, bound, bottleneck_columns(self.tables, self.aim))
        value = aimed(self.tables, self.aim, demanded(self.tables, pieces))
        failed = 0
        while self.effort.spent < stop and failed < _patience(self.tables):
            if value <= bound * (1.0 + 1e-9):
                break
            found = self._tried(pieces, self.aim, self.limit, self.prices, best=value, bound=bound)
            if found is None:
                failed += 1
            else:
                failed, pieces = 0, found
                value = aimed(self.tables, self.aim, demanded(self.tables, found))
        return pieces

    def _lowered(self, pieces: Pieces, stop: float, bound: float, shared: Ints) -> Pieces:
        """The greatest is made less step by step: a cap a little below it is repaired."""
        while self.effort.spent < stop:
            value = aimed(self.tables, self.aim, demanded(self.tables, pieces))
            wanted = max(value * (1.0 - self._step), bound)
            if wanted >= value * (1.0 - 1e-9):
                break
            limit = self.limit.copy()
            limit[shared] = np.minimum(limit[shared], wanted)
            units = min(stop - self.effort.spent, self.effort.most / 10.0)
            found = self.repaired(pieces, units, limit=limit)
            amounts = demanded(self.tables, found)
            is_kept = bool((amounts <= self.limit).all())
            if is_kept and aimed(self.tables, self.aim, amounts) < value:
                pieces = found
            if not (amounts <= limit).all():
                if self._step <= _LEAST_STEP:
                    break
                self._step = max(self._step / 3.0, _LEAST_STEP)
        return pieces

    def _where(self, pieces: Pieces, exceeded: Ints) -> Flags:
        """(n,): segments that put something on what is exceeded."""
        tables = self.tables
        chosen = chosen_of(tables, pieces)
        columns = np.stack(
            (FIRST_LOAD + tables.resource_of, memory_columns(tables)[tables.pool_of])
        )
        found: Flags = np.asarray(np.isin(columns, exceeded).any(axis=0))[chosen]
        return found if found.any() else np.ones(tables.places, bool)

    def _tried(
        self,
        pieces: Pieces,
        aim: Aim,
        limit: Floats,
        prices: dict[int, float],
        *,
        best: float,
        bound: float = -np.inf,
        focus: Flags | None = None,
    ) -> Pieces | None:
        """A better route where some of it is freed."""
        self._turn += 1
        freed, devices = self._freed(pieces, focus)
        search, boundaries = self._searched(pieces, freed, devices, aim, limit, prices, best, bound)
        is_exact = search.dropped >= search.best
        if search.found is not None:
            return refined(boundaries, search.found)
        self._free += 0.5 if is_exact else -1.0
        self._free = min(max(self._free, _LEAST_FREE), _MOST_FREE)
        return None

    def _searched(
        self,
        pieces: Pieces,
        freed: list[range],
        devices: Ints,
        aim: Aim,
        limit: Floats,
        prices: dict[int, float],
        best: float,
        bound: float,
    ) -> tuple[Search, tuple[int, ...]]:
        tables = self.tables
        chosen = chosen_of(tables, pieces)
        is_free = np.zeros(tables.places, bool)
        kept = {start for start, _ in pieces}
        for inside in freed:
            is_free[inside.start : inside.stop] = True
            kept |= {inside.start, inside.stop} - {tables.places}
            for at in range(inside.start, inside.stop, inside.step):
                group = self._crossing[at : min(at + inside.step, inside.stop)]
                kept.add(at + int(group.argmin()))
        boundaries = tuple(sorted(kept | {0}))
        coarse = coarsen(tables, boundaries)
        is_open = is_free[list(boundaries)]
        own = np.arange(len(tables.choices)) == chosen[list(boundaries)][:, None]
        may = np.isin(tables.device_of, devices)
        refusal = np.where((is_open[:, None] & may) | own, coarse.refusal, np.inf)
        coarse = replace(coarse, refusal=refusal)
        self.effort.spend(_CALL)
        asked = question(coarse, aim, limit, prices, bound, self.effort, best, ways=(1.0,))
        search = Search(question=asked, effort=self.effort, best=best)
        search.run(_LABELS)
        return search, boundaries

    def _freed(self, pieces: Pieces, focus: Flags | None) -> tuple[list[range], Ints]:
        """Stretches of segments that may run elsewhere, their steps being how finely; and on which
        devices."""
        n, turn = self.tables.places, self._turn
        size, every = int(self._free), np.arange(len(self.tables.devices))
        if focus is not None:
            return self._around(focus, size), every
        step = 1
        if n > 3 * _MOST_FREE:
            step = (1, 2, 4, 8)[turn // 4 % 4]
            while step > 1 and step * size > n:
                step //= 2
        if turn % 4 == 0:
            a = int(self._drawn(0) * n)
            return _joined([(a - size * step // 2, size * step)], n, step), every
        starts = [start for start, _ in pieces[1:]] or [n // 2]
        if turn % 4 == 1:
            at = [starts[int(self._drawn(k) * len(starts))] for k in (0, 1)]
            length = max(size // 2, 2) * step
            return _joined([(a - length // 2, length) for a in at], n, step), every
        # What runs on some devices, from somewhere on; if on more of them, only among these.
        chosen = self.tables.device_of[chosen_of(self.tables, pieces)]
        used = np.unique(chosen)
        among = turn % 4 == 3
        order = np.argsort((np.arange(len(used)) * _GOLDEN + self._drawn(1)) % 1.0, kind="stable")
        picked = used[order[: 3 if among else 2]]
        most = (size * 3 // 2 if among else size) * step
        places = np.flatnonzero(np.isin(chosen, picked))
        if len(places) > most:
            at_first = int(self._drawn(2) * (len(places) - most + 1))
            places = places[at_first : at_first + most]
        return _joined([(int(p), 1) for p in places], n, step), picked if among else every

    def _around(self, focus: Flags, size: int) -> list[range]:
        n, half = len(focus), max(size // 2, 2)
        step = max(1, min(n // (3 * _MOST_FREE), 4)) if self._turn % 2 else 1
        places = np.flatnonzero(focus)
        a = int(places[int(self._drawn(0) * len(places))])
        b = int(self._drawn(1) * n)
        if self._turn % 3 == 0:
            return _joined([(a - size * step // 2, size * step)], n, step)
        return _joined([(k - half * step // 2, half * step) for k in (a, b)], n, step)

    def _drawn(self, k: int) -> float:
        """Numbers in 0..1 that spread evenly: multiples of irrational numbers."""
        share = (_GOLDEN, 2.0**0.5, 3.0**0.5)[k]
        return float((self._turn * share + k * 0.37) % 1.0)


def _patience(tables: Tables) -> int:
    return 24 + tables.places // 2


def _joined(parts: list[tuple[int, int]], n: int, step: int) -> list[range]:
    """(start, length) of stretches, those that meet as one."""
    is_free = np.zeros(n + 1, bool)
    for start, length in parts:
        is_free[max(start, 0) : max(min(start + length, n), 0)] = True
    edges = np.flatnonzero(np.diff(is_free.astype(int), prepend=0))
    return [range(int(a), int(b), step) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def chosen_of(tables: Tables, pieces: Pieces) -> Ints:
    """(n,): the choice of each segment."""
    starts, choices = np.array(pieces).T
    found: Ints = np.repeat(choices, np.diff(starts, append=tables.places))
    return found
