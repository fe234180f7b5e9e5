"""What a label search is asked: columns that matter, bounds on what is to come, ways to finish."""

from __future__ import annotations

import numpy as np

from edge_agent.planning.amounts import (
    Aim,
    Bottleneck,
    aim_row,
    as_weights,
    bottleneck_columns,
    memory_columns,
)
from edge_agent.planning.arenas import leveled, leveled_units, levels
from edge_agent.planning.duals import Effort, most_levels, priced_columns
from edge_agent.planning.finishes import Finishes, Steps, finishes, steps
from edge_agent.planning.label_search import Flags, Question, Rows
from edge_agent.planning.rests import LeveledRest, Rest, StayRest
from edge_agent.planning.stays import Stays, stay_paths, stay_units, stays
from edge_agent.planning.tables import Floats, Ints, Tables

_SCALES = (0.0, 0.4, 0.75, 1.0, 1.4, 2.5)
"""Multiples of the best prices that bound labels: those that have much left of a cap, or little."""


def question(
    tables: Tables,
    aim: Aim,
    limit: Floats,
    prices: dict[int, float],
    bound: float,
    effort: Effort,
    best: float = np.inf,
    *,
    ways: tuple[float, ...] = _SCALES,
) -> Question:
    """The question for a search; `bound`: none is better, `best`: worse ones are not looked for;
    `ways`: multiples of the prices with which routes are finished."""
    row = aim_row(tables, aim)
    is_shared = np.zeros(len(row), bool)
    if isinstance(aim, Bottleneck):
        is_shared[bottleneck_columns(tables, aim)] = True
    is_memory = np.zeros(len(row), bool)
    is_memory[memory_columns(tables)] = True
    (candidates,) = np.nonzero(is_shared | np.isfinite(limit) | (is_memory & (row > 0)))
    most = _most_to_come(tables, candidates, effort)
    in_all = most[0]
    matters = (row[candidates] > 0) & is_memory[candidates]
    matters |= in_all > limit[candidates]
    matters |= is_shared[candidates] & (in_all > max(bound, 0.0))
    looked_at, most = candidates[matters], most[:, matters]
    mixed = np.where(is_memory, 0.0, row)
    has_sum = bool(mixed.any())
    units = np.eye(len(row))[:, looked_at]
    mix = np.column_stack((mixed, units)) if has_sum else units
    first = int(has_sum)
    caps = np.concatenate((np.full(first, np.inf), limit[looked_at]))
    weights = np.concatenate((np.ones(first), np.where(is_memory, row, 0.0)[looked_at]))
    shared = first + np.flatnonzero(is_shared[looked_at])
    floors = np.full((tables.places + 1, len(caps)), -np.inf)
    nowhere = np.where(is_shared, max(bound, 0.0), np.inf)
    nowhere = np.minimum(nowhere, limit)[looked_at]
    nowhere[row[looked_at] * is_memory[looked_at] > 0] = -np.inf
    floors[:, first:] = nowhere - most
    known = steps(tables, mix, memory_columns(tables))
    priced = priced_columns(
        row,
        looked_at[is_shared[looked_at]],
        looked_at[~is_shared[looked_at] & np.isfinite(limit[looked_at])],
        limit,
    )
    own = priced.onto(np.array([[prices.get(int(j), 0.0) for j in priced.columns]]) * priced.units)[
        0
    ]
    within = stays(tables, np.where(is_shared, np.minimum(limit, best), limit))
    rows, ends = _bounds(
        tables, row, looked_at, is_shared, limit, prices, first, known, within, effort, ways
    )
    return Question(
        tables=tables,
        steps=known,
        caps=caps,
        weights=weights,
        shared=shared,
        floors=floors,
        rows=rows,
        finishes=ends,
        within=within,
        priced=priced,
        at=first + np.searchsorted(looked_at, priced.columns),
        prices=own,
        aim=aim,
        limit=limit,
    )


def _bounds(
    tables: Tables,
    row: Floats,
    looked_at: Ints,
    is_shared: Flags,
    limit: Floats,
    prices: dict[int, float],
    first: int,
    known: Steps,
    within: Stays | None,
    effort: Effort,
    ways: tuple[float, ...],
) -> tuple[Rows, Finishes]:
    own = np.array([prices.get(int(j), 0.0) for j in looked_at])
    among = is_shared[looked_at]
    # What is no longer looked at keeps no price.
    if among.any():
        total = own[among].sum()
        own[among] = own[among] / total if total > 0 else 1.0 / among.sum()
    has_cap = np.isfinite(limit[looked_at])
    is_fixed = bool(among.all() or not own.any())
    aims, ended = (
        np.stack([np.where(among, own, own * scale) for scale in ((1.0,) if is_fixed else scales)])
        for scales in (_SCALES, ways)
    )
    # A capped load of which the greatest is aimed at has one price, for the aim.
    off = np.where(has_cap & ~among, aims, 0.0) @ np.where(has_cap, limit[looked_at], 0.0)
    full = np.repeat(row[None], len(aims), axis=0)
    full[:, looked_at] += aims
    is_sized = bool((known.pool >= 0).any())
    grid = levels(tables, most_levels(tables) if is_sized else 1)
    ending = np.repeat(row[None], len(ended), axis=0)
    ending[:, looked_at] += ended
    paths = leveled(tables, as_weights(tables, ending), grid)
    effort.spend(leveled_units(tables, len(ended), grid) * 4)
    alone = looked_at[has_cap]
    single = np.zeros((len(alone), len(row)))
    single[np.arange(len(alone)), alone] = 1.0
    weights = np.zeros((len(aims), first + len(looked_at)))
    weights[:, :first] = 1.0
    weights[:, first:] = aims + row[looked_at] * np.isin(looked_at, memory_columns(tables))
    limits_ = off
    if len(alone):
        ones = np.zeros((len(alone), weights.shape[1]))
        ones[np.arange(len(alone)), first + np.flatnonzero(has_cap)] = 1.0
        weights = np.vstack((weights, ones))
        limits_ = np.concatenate((off, limit[alone]))
    every = np.vstack((full, single))
    if within is None:
        rest = leveled(tables, as_weights(tables, every), grid)
        effort.spend(leveled_units(tables, len(every), grid))
        ahead: Rest = LeveledRest(levels=grid, tails=rest.tails, heads=rest.heads)
    else:
        effort.spend(stay_units(within, len(every)))
        ahead = _stay_rest(within, every, first, looked_at)
    rows = Rows(weights=weights, limits=limits_, aims=len(aims), rest=ahead)
    return rows, finishes(paths, known)


def _stay_rest(within: Stays, every: Floats, first: int, looked_at: Ints) -> StayRest:
    at = {int(j): first + k for k, j in enumerate(looked_at)}
    loads = tuple(
        # Of what can never be full, nothing is known.
        np.array([at[j] for j in own.tolist()], np.int64)
        if all(j in at for j in own.tolist())
        else own[:0]
        for own in within.loads
    )
    pool = np.array([at.get(int(j), -1) for j in within.column])
    return StayRest(paths=stay_paths(within, every), pool=pool, loads=loads)


def _most_to_come(tables: Tables, columns: Ints, effort: Effort) -> Floats:
    """(n + 1, columns): most that a route may still demand, with segments before p done."""
    n = tables.places
    most = np.zeros((n + 1, len(columns)))
    memory = memory_columns(tables)
    is_memory = np.isin(columns, memory)
    for at in np.flatnonzero(is_memory):
        inside = tables.pool_of == columns[at] - memory[0]
        needs = (tables.weights + tables.arenas)[:, inside].max(axis=1, initial=0.0)
        np.maximum.at(needs, tables.forks.places, tables.forks.demands[:, columns[at]])
        most[:n, at] = np.cumsum(needs[::-1])[::-1]
    others = np.flatnonzero(~is_memory)
    if len(others):
        longest = np.zeros((len(others), len(tables.resources) + len(tables.pools) + 3))
        longest[np.arange(len(others)), columns[others]] = -1.0
        flat = levels(tables, 1)
        paths = leveled(tables, as_weights(tables, longest), flat)
        effort.spend(leveled_units(tables, len(others), flat))
        for part in (paths.tails[..., 0], paths.exits, paths.heads):
            worst = np.where(np.isfinite(part), -part, 0.0).max(axis=2)
            at_place = most[: len(worst)]
            at_place[:, others] = np.maximum(at_place[:, others], worst)
        sent = tables.first_sends
        whole = np.where(np.isfinite(paths.costs.first), -paths.costs.first, 0.0).max(axis=1)
        most[0, others] += np.where(np.isfinite(sent.penalty).any(), whole, 0.0)
    return most
