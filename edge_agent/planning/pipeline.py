"""Pipelines inside a device: plans whose resources each work on a request of their own.

The time per request is the load of the busiest resource, so that partial plans are compared by
their loads on all resources: a label-setting search (Martins, On a multicriteria shortest path
problem, EJOR 16(2), 1984) over (boundary, configuration). Partial plans that cannot become better
than a known plan are dropped: any weighted sum of the loads, with weights of sum 1, is at most the
greatest load, and the least weighted sum of what is missing is a shortest path (Lagrangian bound;
Handler and Zang, Networks 10(4), 1980).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.planning.prices import Prices
from edge_agent.profiles import Configuration

_Floats = npt.NDArray[np.float64]

MOST_LABELS = 32
"""Partial plans kept per (boundary, configuration); beyond it the search is no longer exact."""
_WEIGHTINGS = 24
_BOUNDS = 3
# Bounds are sums of floats: what lies above the best plan by less than this is kept.
_ROUNDING = 1e-9
_LEAST_WEIGHT = 1e-6
_SHARES = 12


class Label(NamedTuple):
    """A plan of the segments up to some boundary, or of all."""

    loads: tuple[int, ...]
    """Picoseconds per resource and round."""
    parts: int
    used: tuple[int, ...]
    """Configuration of each subgraph."""
    starts: tuple[int, ...]
    """First segment of each subgraph."""

    @property
    def rank(self) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        """What decides between equal times, the load of all resources together first; adding the
        same tail to two labels keeps its order."""
        return sum(self.loads), self.parts, self.used, self.starts


def pipelines(
    prices: Prices, used: Sequence[Configuration], best: Fraction | None
) -> tuple[int, list[Label]]:
    """Good plans over the resources of `used` configurations, the best one among them.

    `prices` are those of `used`, of which all on the host have equal instances k, and the others
    one. Loads are those of a round of k requests: (k, plans), in no order. `best` is the time per
    request of a plan that is known already, in picoseconds; slower ones are not looked for.
    The best one is exact, ties by `Label.rank`, as long as no more than `MOST_LABELS` partial plans
    are worth keeping at a place.
    """
    search = _Search(prices=prices, used=used)
    if best is not None:
        search.least = float(best * search.round)
    search.weighted()
    if search.found:
        search.all()
    return search.round, search.found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finish:
    """How to finish a partial plan so that the weighted sum of the loads is least."""

    weights: _Floats
    """Per resource, of sum 1."""
    tails: _Floats
    """Least weighted load of segments p.. after a configuration: (p, configuration)."""
    tail_loads: _Floats
    """Loads of that finish: (p, configuration, resource)."""
    entries: _Floats
    """Least weighted load of segments p.. where a subgraph begins there, no border paid: (p,)."""


@dataclass(slots=True, kw_only=True)
class _Search:
    prices: Prices
    used: Sequence[Configuration]
    round: int = field(init=False)
    resource: list[int] = field(init=False)
    scale: list[int] = field(init=False)
    places: int = field(init=False)
    segment: _Floats = field(init=False)
    border: _Floats = field(init=False)
    overhead: _Floats = field(init=False)
    on: npt.NDArray[np.bool_] = field(init=False)
    stays: npt.NDArray[np.bool_] = field(init=False)
    least: float = field(init=False)
    """Greatest load of the best plan that is known."""
    found: list[Label] = field(default_factory=list)
    finishes: list[_Finish] = field(default_factory=list)
    bounding: list[_Finish] = field(default_factory=list)
    _tail_loads: _Floats = field(init=False)

    def __post_init__(self) -> None:
        self.least = np.inf
        names = sorted({c.resource for c in self.used})
        self.round = max((c.instances for c in self.used if c.threads), default=1)
        self.resource = [names.index(c.resource) for c in self.used]
        self.scale = [1 if c.threads else self.round for c in self.used]
        self.places = len(self.prices.segment[0])
        self.segment = self._table(self.prices.segment)
        self.border = self._table(self.prices.border)
        self.overhead = np.array(self.prices.overhead, np.float64) * self.scale
        self.on = np.array([[r == own for r in range(len(names))] for own in self.resource])
        self.stays = np.array(
            [[i in mates for i in range(len(self.used))] for mates in self.prices.mates]
        )

    def _table(self, prices: Sequence[Sequence[int | None]]) -> _Floats:
        rows = [
            [np.inf if price is None else float(price * scale) for price in row]
            for row, scale in zip(prices, self.scale, strict=True)
        ]
        return np.array(rows, np.float64)

    def weighted(self) -> None:
        """Find plans of least weighted load for weights that approach the greatest bound."""
        resources = self.on.shape[1]
        weights = np.full(resources, 1.0 / resources)
        for step in range(_WEIGHTINGS):
            finish = self._finish(weights)
            if not np.isfinite(finish.entries[0]):
                return
            self.finishes.append(finish)
            first = self._weigh(self.segment, weights)[:, 0] + finish.tails[1]
            here = int((first + self.overhead * weights[self.resource]).argmin())
            label = self._followed(finish, self._begun(here), 1)
            loads = np.array(label.loads, np.float64)
            steeper = weights * np.exp((loads / max(loads.max(), 1.0) - 0.5) * 2.0 / (1 + step / 3))
            weights = np.maximum(steeper / steeper.sum(), _LEAST_WEIGHT)
            weights = weights / weights.sum()
        best = sorted(self.finishes, key=lambda finish: -finish.entries[0])[:_BOUNDS]
        self.bounding = [*best, *(self._finish(corner) for corner in np.eye(resources))]
        self._tail_loads = np.array([finish.tail_loads for finish in self.finishes])

    def _weigh(self, table: _Floats, weights: _Floats) -> _Floats:
        own = weights[self.resource]
        weighed: _Floats = np.where(
            np.isfinite(table), np.where(np.isfinite(table), table, 0.0) * own[:, None], np.inf
        )
        return weighed

    def _finish(self, weights: _Floats) -> _Finish:
        count = len(self.used)
        segment, border = self._weigh(self.segment, weights), self._weigh(self.border, weights)
        overhead = self.overhead * weights[self.resource]
        tails = np.zeros((self.places + 1, count))
        tail_loads = np.zeros((self.places + 1, *self.on.shape))
        entries = np.zeros(self.places)
        for place in range(self.places - 1, -1, -1):
            going_on = segment[:, place] + tails[place + 1]
            begun = overhead + going_on
            entries[place] = begun.min()
            going_on_loads = self._on(self.segment[:, place]) + tail_loads[place + 1]
            if place:
                steps = self._steps(border[:, place]) + begun[None, :]
                following = steps.argmin(axis=1)
                is_over = going_on > steps.min(axis=1)
                tails[place] = np.minimum(going_on, steps.min(axis=1))
                paid = ~self.stays[np.arange(count), following]
                crossed = self._on(self.overhead)[following] + going_on_loads[following]
                both = self._on(self.border[:, place])
                crossed = crossed + np.where(paid[:, None], both + both[following], 0.0)
                tail_loads[place] = np.where(is_over[:, None], crossed, going_on_loads)
        return _Finish(
            weights=weights,
            tails=tails,
            tail_loads=tail_loads,
            entries=entries,
        )

    def _on(self, picoseconds: _Floats) -> _Floats:
        """One number per configuration, put on its resource."""
        placed: _Floats = np.where(self.on, picoseconds[:, None], 0.0)
        return placed

    def _steps(self, border: _Floats) -> _Floats:
        """What the border before a place costs from each configuration into each other one."""
        known = np.isfinite(border).all()
        steps = border[:, None] + border[None, :]
        if known:
            steps = np.where(self.stays, 0.0, steps)
        np.fill_diagonal(steps, np.inf)
        return steps

    def _followed(self, finish: _Finish, label: Label, start: int) -> Label:
        """`label`, which ends before `start`, finished as `finish` says; known from then on."""
        weights, tails = finish.weights, finish.tails
        segment, border = self._weigh(self.segment, weights), self._weigh(self.border, weights)
        overhead = self.overhead * weights[self.resource]
        here = label.used[-1]
        for place in range(start, self.places):
            going_on = segment[:, place] + tails[place + 1]
            steps = self._steps(border[:, place])[here] + overhead + going_on
            following = int(steps.argmin())
            if going_on[here] <= steps[following]:
                label = self._loaded(label, here, _known(self.prices.segment[here][place]))
                continue
            price = self.prices.overhead[following] + _known(self.prices.segment[following][place])
            if here not in self.prices.mates[following]:
                label = self._loaded(label, here, _known(self.prices.border[here][place]))
                price += _known(self.prices.border[following][place])
            label = self._entered(label, following, place, price)
            here = following
        self.found.append(label)
        self.least = min(self.least, max(label.loads))
        return label

    def all(self) -> None:
        """Find every plan worth keeping that may be as good as the best one known."""
        configurations = range(len(self.used))
        reached: list[list[Label]] = [
            [] if self.prices.segment[c][0] is None else [self._begun(c)] for c in configurations
        ]
        for place in range(1, self.places):
            leaving, staying = self._exits(reached, place)
            reached = [
                self._extended(reached[c], leaving, staying.get(c, []), c, place)
                for c in configurations
            ]
        self.found += [label for labels in reached for label in labels]

    def _exits(
        self, reached: Sequence[Sequence[Label]], place: int
    ) -> tuple[list[Label], dict[int, list[Label]]]:
        """What may leave its resource at `place`, the border paid, and what stays on that of each
        configuration."""
        out: list[Label] = []
        for c, labels in enumerate(reached):
            price = self.prices.border[c][place]
            if price is None:
                return [], {}
            out += [self._loaded(label, c, price) for label in labels]
        staying = {
            c: self._kept_entering([label for m in mates - {c} for label in reached[m]], place)
            for c, mates in enumerate(self.prices.mates)
            if len(mates) > 1
        }
        return self._kept_entering(out, place), staying

    def _kept_entering(self, labels: Sequence[Label], place: int) -> list[Label]:
        bounds = [(finish.weights, finish.entries[place]) for finish in self.bounding]
        return _undominated(self._promising(labels, bounds))

    def _extended(
        self,
        own: Sequence[Label],
        leaving: Sequence[Label],
        staying: Sequence[Label],
        c: int,
        place: int,
    ) -> list[Label]:
        price = self.prices.segment[c][place]
        if price is None:
            return []
        labels = [self._loaded(label, c, price) for label in own]
        price += self.prices.overhead[c]
        labels += [self._entered(label, c, place, price) for label in staying]
        border = self.prices.border[c][place]
        if border is not None:
            labels += [
                self._entered(label, c, place, price + border)
                for label in leaving
                if label.used[-1] not in self.prices.mates[c]
            ]
        bounds = [(finish.weights, finish.tails[place + 1, c]) for finish in self.bounding]
        promising = self._promising(labels, bounds)
        if promising:
            self._try_finishes([label for _, label in promising], c, place)
        return _undominated(promising)

    def _try_finishes(self, labels: Sequence[Label], c: int, place: int) -> None:
        """Finish one of `labels`, all after segment `place` in `c`, if that beats what is known."""
        loads = np.array([label.loads for label in labels], np.float64)
        ends = (loads[:, None, :] + self._tail_loads[None, :, place + 1, c]).max(axis=2)
        which, how = divmod(int(ends.argmin()), len(self.finishes))
        if ends[which, how] < self.least:
            self._followed(self.finishes[how], labels[which], place + 1)

    def _promising(
        self, labels: Sequence[Label], bounds: Sequence[tuple[_Floats, float]]
    ) -> list[tuple[float, Label]]:
        """Those that may yet be as good as the best plan known, each with the least it may end at.

        `bounds` holds weights and the least weighted load that is still to come.
        """
        if not labels:
            return []
        loads = np.array([label.loads for label in labels], np.float64)
        ends = np.max([loads @ weights + tail for weights, tail in bounds], axis=0).tolist()
        limit = self.least * (1.0 + _ROUNDING) + 1.0
        return [item for item in zip(ends, labels, strict=True) if item[0] <= limit]

    def _begun(self, c: int) -> Label:
        empty = Label(loads=(0,) * self.on.shape[1], parts=1, used=(c,), starts=(0,))
        return self._loaded(empty, c, self.prices.overhead[c] + _known(self.prices.segment[c][0]))

    def _entered(self, label: Label, c: int, place: int, price: int) -> Label:
        longer = Label(label.loads, label.parts + 1, (*label.used, c), (*label.starts, place))
        return self._loaded(longer, c, price)

    def _loaded(self, label: Label, c: int, price: int) -> Label:
        at = self.resource[c]
        loads = label.loads
        more = (*loads[:at], loads[at] + price * self.scale[c], *loads[at + 1 :])
        return Label(more, label.parts, label.used, label.starts)


def _known(price: int | None) -> int:
    assert price is not None
    return price


def _undominated(bounded: Sequence[tuple[float, Label]]) -> list[Label]:
    """Those that no other one equals or beats in every load and in rank; of more than
    `MOST_LABELS`, the most promising with all sorts of shares of the loads."""
    if not bounded:
        return []
    ordered = sorted(bounded, key=lambda item: item[1].rank)
    loads = np.array([label.loads for _, label in ordered], np.int64)
    as_good = (loads[:, None, :] <= loads[None, :, :]).all(axis=2)
    is_beaten = np.asarray(np.triu(as_good, k=1).any(axis=0)).tolist()
    kept = [item for item, beaten in zip(ordered, is_beaten, strict=True) if not beaten]
    if len(kept) > MOST_LABELS:
        kept = _spread(kept)
    return [label for _, label in kept]


def _spread(bounded: Sequence[tuple[float, Label]]) -> list[tuple[float, Label]]:
    # The most promising ones alone would nearly all have the same loads, and what is missing may
    # not balance just those: measured, plans are 1 to 2 % nearer to the bound this way.
    seen: Counter[tuple[int, ...]] = Counter()
    turns = []
    for end, label in sorted(bounded, key=lambda item: (item[0], item[1].rank)):
        total = max(sum(label.loads), 1)
        shares = tuple(_SHARES * load // total for load in label.loads)
        seen[shares] += 1
        turns.append((seen[shares], end, label.rank, label))
    turns.sort(key=lambda turn: turn[:3])
    return [(end, label) for _, end, _, label in turns[:MOST_LABELS]]
