"""Cheapest routes of which no stay on a device takes more than a cap leaves.

Prices on caps let a route put all on one device, as long as others put little there on average,
which makes bounds weak where memory is tight. Here each stay, the segments in a row on one device
or memory, keeps the cap by itself: a state is (boundary, choice, first segment of the stay), and
what a stay holds follows from where it began. Coming back later counts anew, so that this is a
bound, as state spaces made smaller are (Christofides, Mingozzi and Toth, State-space relaxation
procedures for the computation of bounds to routing problems, Networks 11(2), 1981).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edge_agent.planning.amounts import FIRST_LOAD, as_weights, memory_columns
from edge_agent.planning.arenas import levels
from edge_agent.planning.shortest import Pieces, Weighed, weigh
from edge_agent.planning.tables import Floats, Ints, Tables

_MOST_STARTS = 48
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stays:
    """What stays may hold: `z` zones, each of choices that fill the same memory or resource."""

    tables: Tables
    zone_of: Ints
    """(c,)"""
    order: Ints
    """(c,): the choices, zone by zone."""
    starts: Ints
    """(z,): where each zone begins in `order`."""
    device_of: Ints
    """(z,)"""
    of_device: Ints
    """(d, most zones of one): which these are, the last one again where there are fewer."""
    grid: Ints
    """(g,): first segments that are told apart, ascending; later ones count as the next, and
    behind the last one as none at all."""
    own: Ints
    """(n + 1,): which of the grid a stay that begins there has."""
    held: Floats
    """(n + 1, z): least bytes of weights of the segments before p."""
    busy_s: Floats
    """(n + 1, z): least seconds per request that all resources of a zone have of them."""
    column: Ints
    """(z,): of the memory, among the amounts; -1 if none has a cap."""
    loads: tuple[Ints, ...]
    """(z,): columns of the resources; empty where they have no caps."""
    block: Floats
    """(n, c, g): 0, or infinity where the stay is full before it has run segment p."""
    arena: Floats
    """(n, c, g): bytes that segment p adds to the arenas of the stay at least."""

    @property
    def count(self) -> int:
        """How many starts are told apart."""
        return len(self.grid)

    def started(self, place: int, zone: Ints, held: Floats, busy_s: Floats) -> Ints:
        """(m,): which start stands for a zone in which as much is held and done already."""
        latest = np.zeros(len(zone), np.int64)
        # Bytes are exact, seconds are not.
        for known, sums, slack in ((held, self.held, 0.0), (busy_s, self.busy_s, _ROUNDING)):
            if np.isinf(known).all():
                continue
            least = sums[place][zone] * (1.0 + slack) - known
            before = sums[np.minimum(self.grid, place)][:, zone] < least
            latest = np.maximum(latest, before.sum(axis=0))
        found: Ints = np.minimum(latest, self.own[place])
        return found


def stays(tables: Tables, limit: Floats) -> Stays | None:
    """Stays within (columns,) of caps; None if they leave room for everything everywhere."""
    n = tables.places
    memory = memory_columns(tables)
    caps = limit[memory][tables.pool_of]
    loads = limit[FIRST_LOAD + tables.resource_of]
    is_fork = tables.is_fork
    has_memory = bool(np.isfinite(caps[~is_fork]).any())
    has_loads = bool(np.isfinite(loads[~is_fork]).any())
    if n < 2 or not (has_memory or has_loads):
        return None
    zone_of = _zones(tables, by_pool=has_memory)
    order = np.argsort(zone_of, kind="stable")
    first = np.searchsorted(zone_of[order], np.arange(zone_of.max() + 1))
    allowed = np.isfinite(tables.refusal)

    def least(sizes: Floats) -> Floats:
        """(n + 1, z): sums of the least of each zone."""
        shown = np.where(allowed, sizes, np.inf)[:, order]
        own = np.minimum.reduceat(shown, first, axis=1)
        own = np.where(np.isfinite(own), own, 0.0)
        return np.concatenate((np.zeros((1, len(first))), np.cumsum(own, axis=0)))

    held = least(tables.weights)
    run_s = tables.seconds * tables.per_round
    busy_s = least(run_s)
    pools = [np.unique(tables.pool_of[(zone_of == z) & ~is_fork]) for z in range(len(first))]
    resources = [
        np.unique(tables.resource_of[(zone_of == z) & ~is_fork]) for z in range(len(first))
    ]
    column = np.array([memory[p[0]] if len(p) == 1 else -1 for p in pools])
    column = np.where(np.isfinite(limit[column]) & (column >= 0), column, -1)
    room = np.where(column >= 0, limit[column], np.inf)
    room_s = np.array([limit[FIRST_LOAD + r].sum() if len(r) else np.inf for r in resources])
    grid = np.arange(n) if n <= _MOST_STARTS else _spread(held, n)
    own = np.minimum(np.searchsorted(grid, np.arange(n + 1)), len(grid) - 1)
    since = np.minimum(grid, np.arange(n)[:, None])
    before = (held[:n, None] - held[since])[:, :, zone_of].swapaxes(1, 2)
    room_of = room[zone_of, None] * (1.0 + _ROUNDING)
    full = before + (tables.weights + tables.arenas)[..., None] > room_of
    if np.isfinite(room_s).any():
        before = (busy_s[:n, None] - busy_s[since])[:, :, zone_of].swapaxes(1, 2)
        full |= before + run_s[..., None] > room_s[zone_of, None] * (1.0 + _ROUNDING)
    block = np.where(full, np.inf, 0.0)
    known = levels(tables, 1)
    one = int(is_fork.argmin())
    need = tables.arenas[:, one] / known.instances[one]
    most = np.zeros((n, len(grid)))
    for p in range(1, n):
        most[p] = np.where(grid < p, np.maximum(most[p - 1], need[p - 1]), 0.0)
    more = np.maximum(need[:, None] - most, 0.0)
    arena = known.instances[:, None] * more[:, None, :]
    if np.isfinite(block).all():
        return None
    device_of = tables.device_of[order[first]]
    return Stays(
        tables=tables,
        zone_of=zone_of,
        order=order,
        starts=first,
        device_of=device_of,
        of_device=_of_devices(device_of, len(tables.devices)),
        grid=grid,
        own=own,
        held=held,
        busy_s=busy_s,
        column=column,
        loads=tuple(
            FIRST_LOAD + r if np.isfinite(s) else r[:0]
            for r, s in zip(resources, room_s, strict=True)
        ),
        block=block,
        arena=arena,
    )


def _zones(tables: Tables, *, by_pool: bool) -> Ints:
    """(c,): by memory or by resource; forks of a device by themselves. A group is in one zone."""
    part = tables.pool_of if by_pool else tables.resource_of
    names = [
        (int(d), -1 if fork else int(own))
        for d, own, fork in zip(tables.device_of, part, tables.is_fork, strict=True)
    ]
    for group in range(len(tables.group_starts)):
        mates = tables.grouped[tables.group_of == group]
        merged = {names[c] for c in mates}
        names = [min(merged) if name in merged else name for name in names]
    known = sorted(set(names))
    return np.array([known.index(name) for name in names])


def _of_devices(device_of: Ints, count: int) -> Ints:
    zones = [np.flatnonzero(device_of == d) for d in range(count)]
    most = max(map(len, zones))
    return np.array([own[np.minimum(np.arange(most), len(own) - 1)] for own in zones])


def _spread(held: Floats, n: int) -> Ints:
    """Starts spread evenly over the weights and the segments."""
    total = held.max(axis=1)
    share = total / max(float(total[-1]), 1.0) + np.arange(n + 1) / n
    wanted = np.linspace(0.0, 2.0, _MOST_STARTS, endpoint=False)
    return np.unique(np.append(np.searchsorted(share[:n], wanted), n))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StayPaths:
    """The cheapest way to finish from everywhere, for each of `b` weightings."""

    known: Stays
    costs: Weighed
    prices: Floats
    """(b, c): of each byte of an arena."""
    since: int
    """Nothing is known of places before."""
    tails: Floats
    """(n + 1, b, c, g): with segments before p done."""
    enter: Floats
    """(n, b, z, g): with a subgraph about to begin in a zone, where the stay began at g."""
    send: Floats
    """(n, b, z, z): infinity within a zone."""

    @property
    def totals(self) -> Floats:
        """(b,): cost of the cheapest route; infinity where there is none."""
        first = self.costs.first[:, self.known.device_of]
        found: Floats = (first + self.enter[0, :, :, 0]).min(axis=1)
        return found

    def _run(self, place: int) -> Floats:
        """(b, c, g): segment `place` but for its arena, and what follows."""
        found: Floats = self.tails[place + 1] + self.costs.segment[place][..., None]
        found += self.known.block[place]
        return found

    def _begun(self, place: int) -> Floats:
        """(b, c, g): the same as the first one of a subgraph, its arena paid."""
        arena = self.prices * self.known.tables.arenas[place]
        found: Floats = self._run(place) + arena[..., None]
        return found

    def routes(self) -> list[Pieces]:
        """The cheapest route for each weighting; () where there is none."""
        known, costs = self.known, self.costs
        rows = np.arange(len(costs.first))
        begun = self._begun(0)[..., 0] + costs.begin[0]
        zone = (costs.first[:, known.device_of] + self.enter[0, :, :, 0]).argmin(axis=1)
        inside = known.zone_of == zone[:, None]
        choice = np.where(inside, begun, np.inf).argmin(axis=1)
        rest = self.rests(1, rows, choice, np.zeros(len(rows), np.int64))
        totals = self.totals
        return [
            ((0, int(choice[b])), *rest[b]) if np.isfinite(totals[b]) else () for b in rows.tolist()
        ]

    def rests(self, since: int, rows: Ints, choices: Ints, starts: Ints) -> list[Pieces]:
        """What follows best from each of (m,) states with segments before `since` done."""
        known, costs, n = self.known, self.costs, self.known.tables.places
        choice, start = choices.copy(), starts.copy()
        found: list[list[tuple[int, int]]] = [[] for _ in rows]
        for place in range(since, n):
            on = self.tails[place + 1][rows, choice, start] + costs.segment[place][rows, choice]
            on = on + known.block[place][choice, start]
            on = on + self.prices[rows, choice] * known.arena[place][choice, start]
            over = np.flatnonzero(on > self.tails[place][rows, choice, start])
            if not len(over):
                continue
            begun = self._begun(place)
            for m in over.tolist():
                b = int(rows[m])
                c, g = self._next(place, b, int(choice[m]), int(start[m]), begun[b])
                choice[m], start[m] = c, g
                found[m].append((place, c))
        return [tuple(pieces) for pieces in found]

    def _next(self, place: int, b: int, choice: int, start: int, begun: Floats) -> tuple[int, int]:
        """(choice, start) that follows best after a subgraph that ended."""
        known, costs, tables = self.known, self.costs, self.known.tables
        zone = int(known.zone_of[choice])
        own = int(known.own[place])
        leave = float(costs.leave[place][b, choice])
        same = np.where(known.zone_of == zone, costs.begin[place][b] + begun[:, start], np.inf)
        best, found = leave + float(same.min()), (int(same.argmin()), start)
        out = self.send[place][b, zone] + self.enter[place][b, :, own]
        if leave + out.min() < best:
            best = leave + float(out.min())
            inside = known.zone_of == int(out.argmin())
            begin = np.where(inside, costs.begin[place][b] + begun[:, own], np.inf)
            found = (int(begin.argmin()), own)
        at = np.flatnonzero(tables.grouped == choice)
        if len(at):
            mates = np.flatnonzero(tables.group_of == tables.group_of[at[0]])
            inner = costs.inner_begin[place][b, mates] + begun[tables.grouped[mates], start]
            if costs.inner_leave[place][b, at[0]] + inner.min() < best:
                found = (int(tables.grouped[mates[inner.argmin()]]), start)
        return found


def stay_paths(known: Stays, rows: Floats, since: int = 0) -> StayPaths:
    """The cheapest routes for (b, columns) of weights of amounts, from segment `since` on."""
    tables = known.tables
    n, batch = tables.places, len(rows)
    weights = as_weights(tables, rows)
    costs = weigh(replace(tables, arenas=np.zeros_like(tables.arenas)), weights)
    prices = weights.memory[:, tables.pool_of]
    is_priced = bool(prices.any())
    devices, zones = known.device_of, len(known.starts)
    send = costs.send[:, :, devices[:, None], devices[None, :]].copy()
    send[:, :, np.arange(zones), np.arange(zones)] = np.inf
    tails = np.empty((n + 1, batch, len(known.zone_of), known.count))
    enter = np.empty((n, batch, zones, known.count))
    found = StayPaths(
        known=known, costs=costs, prices=prices, since=since, tails=tails, enter=enter, send=send
    )
    tails[n] = costs.last[:, tables.device_of, None]
    is_sorted = bool((known.order == np.arange(len(known.order))).all())
    grouped = tables.grouped
    for place in range(n - 1, since - 1, -1):
        own = int(known.own[place])
        met = slice(0, own + 1)
        run = tails[place + 1][..., met] + costs.segment[place][..., None]
        run += known.block[place][:, met]
        begun = run + (prices * tables.arenas[place])[..., None] if is_priced else run
        first = costs.begin[place][..., None] + begun
        shown = first if is_sorted else first[:, known.order]
        entered = np.minimum.reduceat(shown, known.starts, axis=1)
        enter[place][..., met] = entered
        enter[place][..., own + 1 :] = entered[..., own:]
        out = (send[place] + entered[:, None, :, own]).min(axis=2)
        over = np.minimum(entered, out[..., None])[:, known.zone_of]
        over += costs.leave[place][..., None]
        if len(grouped):
            inside = costs.inner_begin[place][..., None] + begun[:, grouped]
            inside = np.minimum.reduceat(inside, tables.group_starts, axis=1)
            inside = inside[:, tables.group_of] + costs.inner_leave[place][..., None]
            over[:, grouped] = np.minimum(over[:, grouped], inside)
        if is_priced:
            run += prices[..., None] * known.arena[place][:, met]
        tails[place][..., met] = np.minimum(run, over)
        tails[place][..., own + 1 :] = tails[place][..., own : own + 1]
    return found


def stay_units(known: Stays, batch: int) -> float:
    """What `stay_paths` costs, about in microseconds of a desktop processor."""
    size = batch * len(known.zone_of)
    return known.tables.places * (120.0 + size * (0.03 + 0.005 * known.count))
