"""Routes that were met so far, as arrays, with what each needs in the memories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from edge_agent.planning.coarse import refined
from edge_agent.planning.metrics import Held, held_bytes
from edge_agent.planning.mixture import Column, Wish
from edge_agent.planning.shortest import Pieces, as_route
from edge_agent.planning.tables import Floats, Ints, Tables

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Things:
    """What `n` routes need in the memories: weights in a form, and arenas of subgraphs."""

    uses: Flags
    """(n, things)"""
    bytes: Floats
    """(things, memories): of each in the memory that it is in."""

    def taken(self, which: Flags | Ints) -> Things:
        """Those of some of the routes."""
        uses = self.uses[which]
        kept = uses.any(axis=0)
        return Things(uses=uses[:, kept], bytes=self.bytes[kept])

    @property
    def peaks(self) -> Floats:
        """(n,): bytes in the fullest memory, of each route alone."""
        found: Floats = (self.uses @ self.bytes).max(axis=1, initial=0.0)
        return found


@dataclass(slots=True, kw_only=True, eq=False)
class Known:
    """The routes, each once, in the order in which they were met."""

    tables: Tables
    """Of the whole model."""
    blocks: Sequence[int] | None = None
    """First segments of the blocks that the routes are of; None: they are of segments."""
    columns: list[Column] = field(default_factory=list)
    _index: dict[Pieces, int] = field(default_factory=dict)
    _held: dict[Held, int] = field(default_factory=dict)
    _sizes: list[float] = field(default_factory=list)
    _pools: list[int] = field(default_factory=list)
    _needs: list[list[int]] = field(default_factory=list)
    _things: Things | None = None
    quickest_s: float = 0.0
    """The least time of a busiest resource that is more than nothing; 0 if there is none."""

    def meet(self, columns: Iterable[Column]) -> None:
        """Take note of routes."""
        for column in columns:
            if column.pieces not in self._index:
                self._index[column.pieces] = len(self.columns)
                self.columns.append(column)
                self._things = None
                busiest_s = float(column.amounts.loads.max(initial=0.0))
                if busiest_s > 0.0:
                    self.quickest_s = min(self.quickest_s or busiest_s, busiest_s)

    def _weigh(self) -> None:
        """See what those need of which that is not known yet."""
        names = {pool: at for at, pool in enumerate(self.tables.pools)}
        for column in self.columns[len(self._needs) :]:
            needs = []
            for step in as_route(self.tables, self.fine(column).pieces).steps:
                for what, (pool, size) in held_bytes(self.tables.problem, step):
                    if size == 0.0:
                        continue
                    if what not in self._held:
                        self._held[what] = len(self._held)
                        self._sizes.append(size)
                        self._pools.append(names[pool])
                    needs.append(self._held[what])
            self._needs.append(needs)

    def index(self, pieces: Pieces) -> int | None:
        """Which of them a route is; None if it was not met."""
        return self._index.get(pieces)

    def fine(self, column: Column) -> Column:
        """A route as one of segments."""
        if self.blocks is None:
            return column
        return replace(column, pieces=refined(self.blocks, column.pieces))

    @property
    def things(self) -> Things:
        """What they need in the memories."""
        if self._things is None:
            self._weigh()
            uses = np.zeros((len(self._needs), len(self._sizes)), bool)
            for at, needs in enumerate(self._needs):
                uses[at, needs] = True
            by_pool = np.zeros((len(self._sizes), len(self.tables.pools)))
            by_pool[np.arange(len(self._sizes)), self._pools] = self._sizes
            self._things = Things(uses=uses, bytes=by_pool)
        return self._things

    def things_within(self, budgets: Floats) -> Things:
        """The same; nothing where no budget binds."""
        if np.isfinite(budgets).any():
            return self.things
        nothing = np.zeros((len(self.columns), 0), bool)
        return Things(uses=nothing, bytes=np.zeros((0, len(budgets))))

    @property
    def loads(self) -> Floats:
        """(n, resources)"""
        return np.array([column.amounts.loads for column in self.columns])

    def costs(self, wish: Wish) -> Floats:
        """(n,)"""
        return np.array([wish.cost(column.amounts) for column in self.columns])
