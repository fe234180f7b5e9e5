"""The best mixture of routes under caps: bounded by its relaxation, put together from what fits.

Long models are searched coarsely first. Where every route of the relaxation keeps to the caps, and
all together to the budgets, it is the answer, and exact. Where there are few routes, all of them
are looked at, and the answer is exact too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_agent.planning.amounts import Caps
from edge_agent.planning.assembly import Assembly
from edge_agent.planning.caps import fits_together
from edge_agent.planning.coarse import coarsen, kept_boundaries, refined
from edge_agent.planning.every import every_route
from edge_agent.planning.iterated import search
from edge_agent.planning.known import Known
from edge_agent.planning.mixture import (
    Column,
    Relaxation,
    Shares,
    Wish,
    alone,
    columns_of,
    fair_prices,
    seeds,
    sweep_effort,
)
from edge_agent.planning.pipelines import best_pipeline
from edge_agent.planning.tables import Floats, Tables
from edge_agent.planning.together import together
from edge_agent.plans import Target

_BLOCKS = 40
"""To how many blocks a long model is joined for a first search."""
_COARSE_EFFORT = 0.6
"""Share of the effort of the first search."""
_COARSE_ENOUGH = 0.01
"""From this gap on a first search is over."""
_FEWEST_SWEEPS = 10
"""Of a first search, whatever the effort."""
_TABLES_EFFORT = 0.3
"""Of every segment in every choice, whatever is searched."""
_PRICED_EFFORT = 500.0
"""Of every segment, for the metrics of what is found; mixtures of long models have no more routes
and subgraphs than those of shorter ones."""
_RELAXED_EFFORT = 0.5
"""Share of the effort of the relaxation, where its routes do not keep to the caps."""
_FIRST_EFFORT = 0.3
"""Share of what is left of the effort for a mixture that reaches the rate."""
_LEAST_LEFT = 0.35
"""Share of the effort for the mixture, whatever went before."""
_MOST_ROUTES = 3000
"""Of so many routes all are looked at, where something binds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixed:
    """Routes with shares, and how good they can be."""

    shares: Shares
    """The greatest first; none where nothing was found."""
    value: float
    """Seconds per request, or the cost of one; infinity where nothing was found."""
    bound: float
    """No mixture is better."""
    others: tuple[Column, ...] | None = None
    """Routes that were looked at and may have shares too; None: there may be no other routes."""


def mix(
    tables: Tables,
    wish: Wish,
    caps: Caps,
    effort: float,
    most_routes: int | None = None,
    *,
    enough: float = 0.0,
) -> Mixed:
    """The best mixture that is found with about that much effort; `enough`: a value of which
    nothing better is needed."""
    if wish.least_per_s or most_routes is not None or _binds(caps):
        columns = every_column(tables, caps)
        if columns is not None:
            return among(tables, wish, caps, columns, effort, most_routes)
    is_free = not _binds(caps)
    relaxation = relaxed(tables, wish, caps, effort * (1.0 if is_free else _RELAXED_EFFORT))
    value, shares = relaxation.value(), relaxation.shares()
    if np.isinf(relaxation.bound):
        return Mixed(shares=(), value=np.inf, bound=np.inf)
    is_few = most_routes is None or len(shares) <= most_routes
    if np.isfinite(value) and is_few and is_allowed(tables, caps, shares):
        others = tuple(c for c in relaxation.columns if caps.allows(c.amounts))
        return Mixed(
            shares=shares,
            value=value,
            bound=relaxation.bound,
            others=others if most_routes is None else None,
        )
    left = effort - relaxation.spent
    columns = [*relaxation.columns, *relaxation.idle]
    pipeline: Column | None = None
    if wish.target is Target.THROUGHPUT and caps.is_sized and not enough:
        one = best_pipeline(tables, caps, effort)
        left = max(left - one.spent, _LEAST_LEFT * effort)
        if one.pieces is not None:
            (pipeline,) = columns_of(tables, [one.pieces])
            shares, columns = (*shares, (pipeline, 1.0)), [*columns, pipeline]
    if wish.least_per_s:
        # Whatever it costs, so that at least something is found.
        rate, limit_s = Wish(target=Target.THROUGHPUT), 1.0 / wish.least_per_s
        first = mix(tables, rate, caps, left * _FIRST_EFFORT, most_routes, enough=limit_s)
        shares = (*first.shares, *shares)
        columns += [column for column, _ in first.shares]
        left *= 1.0 - _FIRST_EFFORT
    coarse, known = tables, Known(tables=tables)
    if tables.places > _BLOCKS:
        used = {start for column, _ in shares for start, _ in column.pieces}
        blocks = kept_boundaries(tables, used, max(_BLOCKS, len(used)))
        coarse, columns = coarsen(tables, blocks), _joined(blocks, columns)
        known = Known(tables=tables, blocks=blocks)
    assembly = Assembly(
        tables=coarse,
        known=known,
        wish=wish,
        caps=caps,
        most_routes=most_routes,
        effort=left,
        enough=enough,
        bound=relaxation.bound,
    )
    assembly.build(columns, has_best_alone=pipeline is not None)
    search(assembly)
    # Of routes that change only between blocks something else is the best.
    bound = assembly.bound if coarse is tables else relaxation.bound
    if pipeline is not None and one.value < assembly.value:
        return Mixed(shares=((pipeline, 1.0),), value=one.value, bound=bound)
    return Mixed(shares=assembly.shares, value=assembly.value, bound=bound)


def least_effort(tables: Tables) -> float:
    """What `mix` takes however little effort it is given."""
    if tables.places <= 2 * _BLOCKS:
        return sweep_effort(tables, 2)
    coarse = sweep_effort(tables, 2) * _BLOCKS / tables.places
    return _FEWEST_SWEEPS * coarse + sweep_effort(tables, 1) + _effort_around(tables)


def _effort_around(tables: Tables) -> float:
    """What making the tables and pricing the result takes."""
    around = _TABLES_EFFORT * tables.places * len(tables.choices)
    return around + _PRICED_EFFORT * min(tables.places, _BLOCKS)


def _joined(blocks: Sequence[int], columns: Sequence[Column]) -> list[Column]:
    """Those routes that change only between blocks, as routes of blocks."""
    index = {start: block for block, start in enumerate(blocks)}
    return [
        replace(column, pieces=tuple((index[start], c) for start, c in column.pieces))
        for column in columns
        if all(start in index for start, _ in column.pieces)
    ]


def every_column(tables: Tables, caps: Caps) -> list[Column] | None:
    """All routes that keep to the caps; None if there are too many."""
    every = every_route(tables, _MOST_ROUTES)
    if every is None:
        return None
    return [column for column in columns_of(tables, every) if caps.allows(column.amounts)]


def among(
    tables: Tables,
    wish: Wish,
    caps: Caps,
    columns: Sequence[Column],
    effort: float,
    most_routes: int | None,
) -> Mixed:
    """The best mixture of given routes, which keep to the caps one by one."""
    if not columns:
        return Mixed(shares=(), value=np.inf, bound=np.inf)
    known = Known(tables=tables)
    known.meet(columns)
    found = together(
        known,
        np.ones(len(columns), bool),
        wish,
        caps.memory,
        most_routes=most_routes,
        effort=effort,
    )
    return Mixed(
        shares=found.of(columns),
        value=found.value,
        bound=found.bound,
        others=() if most_routes is None else None,
    )


def _binds(caps: Caps) -> bool:
    singles = (caps.seconds, caps.joules, caps.size_bytes)
    return caps.is_sized or bool(np.isfinite(singles).any())


def is_allowed(tables: Tables, caps: Caps, shares: Shares) -> bool:
    """Whether each route keeps to the caps, and all together to the budgets."""
    if not all(caps.allows(column.amounts) for column, _ in shares):
        return False
    return fits_together(tables, caps, shares)


def relaxed(tables: Tables, wish: Wish, caps: Caps, effort: float) -> Relaxation:
    """The linear programme over all routes, as far as the effort goes, but priced at least once."""
    spent = _effort_around(tables)
    found: list[Column] = []
    prices: Floats | None = None
    if tables.places > 2 * _BLOCKS:
        found, first = _coarsely(tables, wish, caps, (effort - spent) * _COARSE_EFFORT)
        spent += first.spent
        prices = first.best_prices if first.is_rate else None
    if not found:
        found = seeds(tables)
        spent += sweep_effort(tables, 2)
    relaxation = _started(tables, wish, caps, found)
    relaxation.best_prices = prices
    relaxation.improve(max(effort - spent, 1.0))
    relaxation.spent += spent
    return relaxation


def _coarsely(
    tables: Tables, wish: Wish, caps: Caps, effort: float
) -> tuple[list[Column], Relaxation]:
    """Routes of a long model to begin with, the best of blocks among them, and the search for
    these."""
    found = columns_of(tables, alone(tables))
    blocks = kept_boundaries(tables, (), _BLOCKS)
    coarse = coarsen(tables, blocks)
    least = _FEWEST_SWEEPS * sweep_effort(coarse, 2)
    first = _started(coarse, wish, caps, seeds(coarse))
    first.best_prices = fair_prices(first)
    first.improve(max(effort, least), _COARSE_ENOUGH)
    found += [
        Column(pieces=refined(blocks, column.pieces), amounts=column.amounts)
        for column, _ in first.shares()
    ]
    return found, first


def _started(tables: Tables, wish: Wish, caps: Caps, found: Sequence[Column]) -> Relaxation:
    busiest = [float(column.amounts.loads.max(initial=0.0)) for column in found]
    relaxation = Relaxation(
        tables=tables,
        wish=wish,
        caps=caps,
        scale_s=min((b for b in busiest if b > 0.0), default=1.0),
    )
    relaxation.add(found)
    return relaxation
