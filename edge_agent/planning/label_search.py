"""Label-setting search for the best route under caps, over boundaries from the first to the last.

A label is a partial route: what it demanded so far of every column that is looked at, the choice
that it is in, and the arena there (Martins, On a multicriteria shortest path problem, EJOR 16(2),
1984). Labels are rows of arrays, all of one boundary at once. Dropped are those that cannot keep a
cap or beat the best route known, whatever follows (bounds from the finishes of several weightings),
and those that another one in the same choice equals or beats in every column that can still
matter. If more are left than the effort allows, the most promising stay, and what the others might
have reached stays part of the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge_agent.planning.amounts import Aim, aimed, demanded
from edge_agent.planning.arenas import levels
from edge_agent.planning.duals import Effort, Priced, RestBundle
from edge_agent.planning.finishes import Finishes, Steps
from edge_agent.planning.rests import Rest, StayRest
from edge_agent.planning.shortest import Pieces
from edge_agent.planning.stays import Stays
from edge_agent.planning.tables import Floats, Ints, Tables

Flags = npt.NDArray[np.bool_]

_BLOCK = 256
_CALL = 150.0
"""Effort of looking at labels, however few."""
_LAST_LABELS = 32
_LOOKS = 3
_FINISHED = 24
"""How many of the best labels are finished by new prices."""
_FINISH_UNITS = 700.0
_MOST_LAYERS = 3
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Inequalities that every route worth finding keeps: `columns @ weights <= limit`."""

    weights: Floats
    """(rows, k)"""
    limits: Floats
    """(rows,): of the first `aims` rows, what is added to the value of the best route."""
    aims: int
    """How many rows bound the aim."""
    rest: Rest
    """The least that is still to come."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """What is looked for, in `k` columns."""

    tables: Tables
    steps: Steps
    caps: Floats
    """(k,)"""
    weights: Floats
    """(k,): of an additive aim; 0 where a greatest is aimed at."""
    shared: Ints
    """Columns of which the greatest is aimed at; may be none."""
    rows: Rows
    finishes: Finishes
    within: Stays | None
    priced: Priced
    """The columns that have prices, and where they are among the `k`."""
    at: Ints
    prices: Floats
    """Those to begin with."""
    aim: Aim
    limit: Floats
    """(columns,) of amounts."""
    floors: Floats
    """(n + 1, k): what a column may hold there without ever mattering; may be -infinity."""

    def values(self, columns: Floats) -> Floats:
        """Of the aim, for (..., k)."""
        if len(self.shared):
            greatest: Floats = columns[..., self.shared].max(axis=-1)
            return greatest
        summed: Floats = columns @ self.weights
        return summed


@dataclass(slots=True, kw_only=True, eq=False)
class _Labels:
    """Partial routes with segments before some boundary done."""

    columns: Floats
    """(m, k)"""
    choice: Ints
    arena: Floats
    parent: Ints
    """Row at the boundary before; -1 at the first."""
    least: Floats = field(default_factory=lambda: np.zeros(0))
    """What its value is at least, whatever follows."""

    def __len__(self) -> int:
        return len(self.choice)

    def taken(self, which: Flags | Ints) -> _Labels:
        return _Labels(
            columns=self.columns[which],
            choice=self.choice[which],
            arena=self.arena[which],
            parent=self.parent[which],
            least=self.least[which] if len(self.least) else self.least,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Search:
    """One pass over the boundaries, with at most so many labels at each as the effort allows."""

    question: Question
    effort: Effort
    best: float
    """Value of the best route known: its own, or one that the caller knows."""
    found: Pieces | None = None
    dropped: float = np.inf
    """What the labels that were left out for want of effort might have reached."""
    _history: list[tuple[Ints, Ints]] = field(default_factory=list)
    is_repriced: bool = False
    """Whether prices are made anew on the way."""
    _layers: list[tuple[int, Rows]] = field(default_factory=list)
    """More bounds, from some place on."""
    _groups: list[Ints] = field(init=False)
    _group_of: Ints = field(init=False)

    def __post_init__(self) -> None:
        tables = self.question.tables
        count = len(tables.group_starts)
        self._groups = [tables.grouped[tables.group_of == g] for g in range(count)]
        self._group_of = tables.groups

    def run(self, most: int) -> None:
        """Search with at most `most` labels at each boundary."""
        self.dropped = np.inf
        self._history = []
        tables = self.question.tables
        labels = self._kept(self._begun(self._first(), 0), 0, most)
        for place in range(1, tables.places):
            if not len(labels):
                return
            if self.effort.left <= 0:
                most = min(most, _LAST_LABELS)
            entered = [
                self._continued(labels, place),
                self._begun(self._left(labels, place), place),
            ]
            entered += self._inside(labels, place)
            labels = self._kept(_joined(entered), place, most)
            if self.is_repriced and place % _stride(tables) == 0 and self.effort.left > 0:
                self._history.pop()
                labels = self._repriced(labels, place)
                self._history.append((labels.parent, labels.choice))

    def _repriced(self, labels: _Labels, place: int) -> _Labels:
        """Better bounds from here on, and better ways to finish, by prices for the best label."""
        question, ahead = self.question, self.question.rows.rest
        at = place + 1
        if not isinstance(ahead, StayRest) or at > question.tables.places - 2 or not len(labels):
            return labels
        assert question.within is not None, "there are no such rests without stays"
        order = np.argsort(labels.least, kind="stable")
        starts = ahead.started(at, labels.choice, labels.arena, labels.columns)
        row = int(order[0])
        bundle = RestBundle(
            tables=question.tables,
            priced=question.priced,
            effort=self.effort,
            levels=levels(question.tables, 1),
            within=question.within,
            place=at,
            begun=tuple(self._pieces(labels, row, place)),
            so_far=labels.columns[row, question.at],
            aim_so_far=float(labels.columns[row] @ question.weights),
            choice=int(labels.choice[row]),
            start=int(starts[row]),
        )
        bundle.improve(question.prices, _LOOKS)
        if bundle.found is None or not np.isfinite(bundle.bound):
            return labels
        for pieces in bundle.seen:
            self._try(pieces)
        prices, paths = bundle.found
        weights = np.repeat(question.weights[None], len(prices), axis=0)
        weights[:, question.at] += prices / question.priced.units
        layer = Rows(
            weights=weights,
            limits=question.priced.taken_off(prices),
            aims=len(prices),
            rest=StayRest(paths=paths, pool=ahead.pool, loads=ahead.loads),
        )
        self._layers = [*self._layers[-_MOST_LAYERS + 1 :], (at, layer)]
        best = order[:_FINISHED]
        which = np.full(len(best), int(np.abs(prices - bundle.prices).sum(axis=1).argmin()))
        rests = paths.rests(at, which, labels.choice[best], starts[best])
        self.effort.spend(_FINISH_UNITS * len(best))
        for label, rest in zip(best.tolist(), rests, strict=True):
            self._try((*self._pieces(labels, label, place), *rest))
        self._bound(labels, layer, at)
        return labels.taken(labels.least <= self._enough())

    def _try(self, pieces: Pieces) -> None:
        question = self.question
        amounts = demanded(question.tables, pieces)
        if (amounts <= question.limit).all():
            value = aimed(question.tables, question.aim, amounts)
            if value < self._enough():
                self.best, self.found = value, pieces

    def _bound(self, labels: _Labels, rows: Rows, at: int) -> None:
        rest = rows.rest.after(at, labels.choice, labels.arena, labels.columns)
        more = (rows.weights @ labels.columns.T + rest - rows.limits[:, None]).max(axis=0)
        self.effort.spend(_CALL / 2 + len(labels) * 0.008 * rows.weights.size)
        labels.least = np.maximum(labels.least, np.where(np.isnan(more), np.inf, more))

    def _first(self) -> list[tuple[int, _Labels]]:
        steps, tables = self.question.steps, self.question.tables
        found = []
        for device in range(len(tables.devices)):
            if np.isfinite(tables.first_sends.penalty[device]):
                one = np.array([-1])
                found.append(
                    (
                        device,
                        _Labels(
                            columns=steps.first[[device]],
                            choice=one,
                            arena=np.zeros(1),
                            parent=one,
                        ),
                    )
                )
        return found

    def _continued(self, labels: _Labels, place: int) -> _Labels:
        tables, steps = self.question.tables, self.question.steps
        rows = np.flatnonzero(np.isfinite(tables.refusal[place, labels.choice]))
        choice = labels.choice[rows]
        more = np.maximum(tables.arenas[place, choice] - labels.arena[rows], 0.0)
        columns = labels.columns[rows] + steps.on(place)[choice]
        columns += more[:, None] * steps.memory[choice]
        return _Labels(columns=columns, choice=choice, arena=labels.arena[rows] + more, parent=rows)

    def _left(self, labels: _Labels, place: int) -> list[tuple[int, _Labels]]:
        """What may begin a subgraph on each device, borders of what ended paid."""
        question, tables = self.question, self.question.tables
        steps = question.steps
        rows = np.flatnonzero(np.isfinite(tables.barrier[place, labels.choice]))
        if not len(rows):
            return []
        choice = labels.choice[rows]
        border = tables.border[place, choice][:, None] * steps.run[choice]
        ended = _Labels(
            columns=labels.columns[rows] + border,
            choice=choice,
            arena=labels.arena[rows],
            parent=rows,
            least=np.zeros(len(rows)),
        )
        devices = tables.device_of[choice]
        targets = self._open(place)
        parts = [
            self._undominated(ended.taken(devices == device), place)
            for device in np.unique(devices)
        ]
        ended = _joined(parts)
        devices = tables.device_of[ended.choice]
        possible = np.isfinite(tables.sends.penalty[place][devices[:, None], targets])
        row, column = np.nonzero(possible)
        sent = ended.taken(row)
        target = targets[column]
        sent.columns += steps.send[place, devices[row], target]
        rest = question.rows.rest.arriving(place, target, sent.columns)
        is_kept = self._is_promising(sent, rest)
        sent, target = sent.taken(is_kept), target[is_kept]
        found = []
        for device in np.unique(target).tolist():
            arrived = sent.taken(target == device)
            is_many = len(parts) > 1
            found.append((device, self._undominated(arrived, place) if is_many else arrived))
        return found

    def _open(self, place: int) -> Ints:
        """Devices on which a subgraph may begin before a segment."""
        tables = self.question.tables
        may = np.isfinite(tables.refusal[place] + tables.barrier[place])
        return np.unique(tables.device_of[may])

    def _begun(self, arrived: list[tuple[int, _Labels]], place: int) -> _Labels:
        tables = self.question.tables
        border = tables.border[place]
        found = []
        for device, labels in arrived:
            (choices,) = np.nonzero(tables.device_of == device)
            found.append(self._entered(labels, choices, border, place))
        return _joined(found) if found else self._none()

    def _none(self) -> _Labels:
        no = np.zeros(0, np.int64)
        columns = np.zeros((0, len(self.question.caps)))
        return _Labels(columns=columns, choice=no, arena=np.zeros(0), parent=no)

    def _inside(self, labels: _Labels, place: int) -> list[_Labels]:
        """What begins beside its neighbour in the same group."""
        tables, steps = self.question.tables, self.question.steps
        found: list[_Labels] = []
        may = np.isfinite(tables.refusal[place] + tables.barrier[place])
        for number, mates in enumerate(self._groups):
            which = self._group_of[labels.choice] == number
            if not may[mates].any():
                continue
            rows = np.flatnonzero(which & np.isfinite(tables.barrier[place, labels.choice]))
            if not len(rows):
                continue
            choice = labels.choice[rows]
            inner = tables.inner[place, choice][:, None] * steps.run[choice]
            ended = _Labels(
                columns=labels.columns[rows] + inner,
                choice=choice,
                arena=labels.arena[rows],
                parent=rows,
                least=np.zeros(len(rows)),
            )
            ended = self._undominated(ended, place)
            found.append(self._entered(ended, mates, tables.inner[place], place))
        return found

    def _entered(self, labels: _Labels, choices: Ints, border: Floats, place: int) -> _Labels:
        """`labels`, whose subgraphs ended, each with another one begun in each of `choices`."""
        tables, steps = self.question.tables, self.question.steps
        possible = np.isfinite(tables.refusal[place, choices] + tables.barrier[place, choices])
        choices = choices[possible]
        begun_s = (tables.overhead + border)[choices]
        arena = tables.arenas[place, choices]
        more = begun_s[:, None] * steps.run[choices] + steps.on(place)[choices]
        more = more + arena[:, None] * steps.memory[choices]
        columns = (labels.columns[:, None, :] + more[None]).reshape(-1, more.shape[1])
        count = len(labels)
        choice = np.tile(choices, count)
        found = _Labels(
            columns=columns,
            choice=choice,
            arena=np.tile(arena, count),
            parent=np.repeat(labels.parent, len(choices)),
        )
        return found.taken(choice != np.repeat(labels.choice, len(choices)))

    def _promising(self, labels: _Labels, rest: Floats) -> _Labels:
        return labels.taken(self._is_promising(labels, rest))

    def _is_promising(self, labels: _Labels, rest: Floats) -> Flags:
        """Which may keep the caps and beat the best route known; `rest`: (rows, m)."""
        question, rows = self.question, self.question.rows
        size = len(labels)
        self.effort.spend(_CALL + size * (0.6 + 0.008 * rows.weights.size))
        sums = rows.weights @ labels.columns.T + rest
        aims = rows.aims
        best = self._enough()
        least = (sums[:aims] - rows.limits[:aims, None]).max(axis=0)
        if len(question.shared):
            least = np.maximum(least, labels.columns[:, question.shared].max(axis=1))
        is_kept: Flags = np.asarray((labels.columns <= question.caps).all(axis=1))
        is_kept &= (sums[aims:] <= rows.limits[aims:, None]).all(axis=0)
        is_kept &= np.isfinite(least) & (least <= best)
        labels.least = least
        return is_kept

    def _enough(self) -> float:
        return self.best - _ROUNDING * abs(self.best) if self.best < np.inf else np.inf

    def _kept(self, labels: _Labels, place: int, most: int) -> _Labels:
        """After segment `place`: what is worth going on with."""
        question = self.question
        keeps: Flags = np.asarray((labels.columns <= question.caps).all(axis=1))
        labels = labels.taken(keeps)
        rest = question.rows.rest.after(place + 1, labels.choice, labels.arena, labels.columns)
        labels = self._promising(labels, rest)
        parts = []
        for choice in np.unique(labels.choice):
            part = labels.taken(labels.choice == choice)
            parts.append(self._undominated(part, place, is_open=True))
        if not parts:
            return self._none()
        labels = _joined(parts)
        for since, layer in self._layers:
            if since <= place + 1:
                self._bound(labels, layer, place + 1)
        self._complete(labels, place)
        labels = labels.taken(labels.least <= self._enough())
        if len(labels) > most:
            labels = self._most_promising(labels, most)
        self._history.append((labels.parent, labels.choice))
        return labels

    def _most_promising(self, labels: _Labels, most: int) -> _Labels:
        order = np.lexsort((np.arange(len(labels)), labels.least))
        ranks = np.empty(len(labels), np.int64)
        # By turns of the choices, so that no choice crowds out the others.
        choices = labels.choice[order]
        for choice in np.unique(choices):
            own = order[choices == choice]
            ranks[own] = np.arange(len(own))
        half = order[: most // 2]
        rest = order[most // 2 :]
        turns = rest[np.lexsort((labels.least[rest], ranks[rest]))]
        kept = np.zeros(len(labels), bool)
        kept[half] = True
        kept[turns[: most - most // 2]] = True
        self.dropped = min(self.dropped, float(labels.least[~kept].min()))
        return labels.taken(kept)

    def _complete(self, labels: _Labels, place: int) -> None:
        """Finish all labels in all known ways; the best that keeps the caps is known from then."""
        question = self.question
        ends = question.finishes
        at = place + 1
        self.effort.spend(len(labels) * ends.tails.shape[1] * (0.3 + 0.04 * len(question.caps)))
        choice = labels.choice
        level = ends.levels.above(labels.arena, choice)
        memory = question.steps.memory[choice]
        for b in range(ends.tails.shape[1]):
            more = np.maximum(ends.arenas[at, b, choice, level] - labels.arena, 0.0)
            columns = labels.columns + ends.demands[at, b, choice, level] + more[:, None] * memory
            values = question.values(columns)
            values = np.where((columns <= question.caps).all(axis=1), values, np.inf)
            values = np.where(np.isfinite(ends.tails[at, b, choice, level]), values, np.inf)
            row = int(values.argmin())
            if values[row] < self._enough():
                self.best = float(values[row])
                begun = self._pieces(labels, row, place)
                self.found = (*begun, *ends.pieces(at, b, int(choice[row]), int(level[row])))

    def _pieces(self, labels: _Labels, row: int, place: int) -> list[tuple[int, int]]:
        chosen = [int(labels.choice[row])]
        row = int(labels.parent[row])
        for parents, choices in reversed(self._history):
            chosen.append(int(choices[row]))
            row = int(parents[row])
        chosen.reverse()
        assert len(chosen) == place + 1, "one choice for each segment"
        return [(p, c) for p, c in enumerate(chosen) if p == 0 or chosen[p - 1] != c]

    def _undominated(self, labels: _Labels, place: int, *, is_open: bool = False) -> _Labels:
        """Those that no better one equals or beats in every column that may still matter.

        `is_open`: all are in one choice and may go on, so that the arena counts. Else their
        subgraphs have ended, and `place` is where the next begin.
        """
        if len(labels) < 2:
            return labels
        question = self.question
        # Nothing of an ended subgraph has been begun yet: what is still to come is that from
        # `place` on.
        floor = question.floors[place + 1 if is_open else place]
        order = np.lexsort((labels.columns.sum(axis=1), labels.least))
        columns = labels.columns[order]
        least = np.maximum(columns, floor)
        if is_open:
            pool = int(question.steps.pool[labels.choice[0]])
            if pool >= 0:
                base = columns[:, pool] - labels.arena[order]
                columns = np.column_stack((columns, base))
                least = np.column_stack((least, np.maximum(base, floor[pool])))
        matters = columns.max(axis=0) > least.min(axis=0)
        is_kept = np.zeros(len(order), bool)
        is_kept[_undominated(columns[:, matters], least[:, matters], self.effort)] = True
        return labels.taken(np.sort(order[is_kept]))


def _stride(tables: Tables) -> int:
    """How many places are between new prices."""
    return max(2, tables.places // 8)


def _undominated(columns: Floats, least: Floats, effort: Effort) -> Ints:
    """Rows of `columns` of which no earlier row has at most what `least` has for them."""
    count, width = columns.shape
    effort.spend(100.0)
    if not width:
        return np.zeros(1, np.int64)
    kept = np.zeros(0, np.int64)
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        if len(kept):
            rows = rows[~_beaten(columns[kept], least[rows])]
        earlier = _beaten(columns[rows], least[rows], is_same=True)
        effort.spend((len(kept) * _BLOCK + len(rows) ** 2) * width / 1500.0 + 50.0)
        kept = np.concatenate((kept, rows[~earlier]))
    return kept


def _beaten(columns: Floats, least: Floats, *, is_same: bool = False) -> Flags:
    """Which of `least` some row of `columns` keeps to; `is_same`: only rows before its own."""
    as_good = np.ones((len(columns), len(least)), bool)
    if is_same:
        as_good = np.triu(as_good, k=1)
    for k in range(columns.shape[1]):
        as_good &= columns[:, k, None] <= least[None, :, k]
    return np.asarray(as_good.any(axis=0))


def _joined(parts: list[_Labels]) -> _Labels:
    if len(parts) == 1:
        return parts[0]
    is_bounded = all(len(part.least) == len(part) for part in parts)
    return _Labels(
        columns=np.concatenate([part.columns for part in parts]),
        choice=np.concatenate([part.choice for part in parts]),
        arena=np.concatenate([part.arena for part in parts]),
        parent=np.concatenate([part.parent for part in parts]),
        least=np.concatenate([part.least for part in parts]) if is_bounded else np.zeros(0),
    )
