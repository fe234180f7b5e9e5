"""Where weights go when memory is tight: from several starts, bettered part by part, begun again.

What branch and bound over everything finds first may be far from the best, and it rarely comes to
an end. So mixtures are put together route by route, the one that the relaxation has most of first,
with one or two large weights kept out of a memory, each in turn. The best of them are bettered:
parts of what was decided, a memory or two, or some segments, are taken back and decided again while
all else stays (large neighbourhood search: Shaw, Using constraint programming and local search
methods to solve vehicle routing problems, CP 1998). Then what one memory holds is put together
again without one of its weights, and bettered (iterated local search: Lourenço, Martin and Stützle,
Iterated local search, Handbook of Metaheuristics, 2003). The routes of all these make mixtures
together that none of them has. Branch and bound over everything gets a share of the effort, in
which it ends where there is little to decide, and what is left in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import numpy as np

from edge_agent.planning.amounts import CLOSE
from edge_agent.planning.assembly import NODE_EFFORT, Assembly
from edge_agent.planning.known import Flags
from edge_agent.planning.mixture import Shares

_STARTS_EFFORT, _TREE_EFFORT = 0.15, 0.1
"""Shares of what is left of the effort: to put mixtures together, for branch and bound."""
_STARTS = 2
_START_EFFORT = 0.1
"""Share of the effort to better a start."""
_PART_EFFORT = 0.03
"""Share of the effort for a part; more when none gained anything."""
_MOST_TURNS = 4
_SECOND_EFFORT, _MEMORY_EFFORT = 0.05, 0.01
"""Shares of the effort to better what was begun again, and for each memory of it."""
_HOPEFUL = 2.0
"""What is so many times worse than the best so far is not bettered."""
_LARGE = 0.1
"""Share of a memory from which on weights are large."""


def search(assembly: Assembly) -> None:
    """Look for the best mixture until the effort is spent or nothing can be better; for nothing
    where no memory has a budget."""
    if not assembly.caps.is_sized:
        return
    _start(assembly, _until(assembly, _STARTS_EFFORT))
    _decide_all(assembly, _until(assembly, _TREE_EFFORT))
    _begin_again(assembly, assembly.effort)
    _decide_all(assembly, assembly.effort)


def _decide_all(assembly: Assembly, stop: float) -> None:
    """Branch and bound over everything."""
    nothing = np.zeros_like(assembly.sizes, dtype=bool)
    assembly.bound = max(assembly.bound, assembly.decide(nothing, nothing, stop))


def _until(assembly: Assembly, share: float) -> float:
    """When a share of the effort that is left is spent."""
    return assembly.spent + max(assembly.effort - assembly.spent, 0.0) * share


def _start(assembly: Assembly, stop: float) -> None:
    """Better the best of several mixtures."""
    for value, best in _dives(assembly, stop)[:_STARTS]:
        if assembly.is_done:
            break
        with assembly.aside(value, best):
            _better(assembly, assembly.spent + assembly.effort * _START_EFFORT)
    assembly.all_together()


def _dives(assembly: Assembly, stop: float) -> list[tuple[float, Shares]]:
    """Mixtures of different values, the best first."""
    found: list[tuple[float, Shares]] = []
    nothing = np.zeros_like(assembly.sizes, dtype=bool)
    part = assembly.parts
    pools = assembly.pool_of[None, :] == np.arange(len(assembly.caps.memory))[:, None]
    parts = np.array([part[:, own].max(axis=1, initial=0.0) for own in pools])
    order = np.argsort(-parts, axis=None, kind="stable")
    large = [divmod(int(at), parts.shape[1]) for at in order if parts.flat[at] >= _LARGE]
    for cells in chain([()], combinations(large, 1), combinations(large, 2)):
        if cells and (assembly.is_done or assembly.spent >= stop):
            break
        banned = nothing.copy()
        for pool, place in cells:
            banned[place, pools[pool]] = True
        with assembly.aside():
            assembly.fill(nothing, banned)
            if assembly.best:
                found.append((assembly.value, assembly.best))
    found.sort(key=lambda one: one[0])
    return [
        one for at, one in enumerate(found) if at == 0 or one[0] > found[at - 1][0] * (1.0 + CLOSE)
    ]


def _begin_again(assembly: Assembly, stop: float) -> None:
    """Put together anew what a memory holds, without one of its weights, the largest first, and
    better that."""
    part = assembly.parts
    tried: set[tuple[bytes, int, int]] = set()
    while assembly.best and assembly.spent < stop and not assembly.is_done:
        there = assembly.content
        name = there.tobytes()
        cells = [
            (int(place), int(form))
            for place, form in np.argwhere(there)
            if (name, place, form) not in tried
        ]
        if not cells:
            return
        place, form = max(cells, key=lambda cell: part[cell])
        tried.add((name, place, form))
        own = assembly.pool_of == assembly.pool_of[form]
        banned = np.zeros_like(there)
        banned[place, own] = True
        kept = there.copy()
        kept[:, own] = False
        worst = assembly.value * _HOPEFUL
        with assembly.aside():
            assembly.fill(kept, banned)
            if assembly.value <= worst:
                most = assembly.spent + assembly.effort * _SECOND_EFFORT
                _better_memories(assembly, min(stop, most))
        assembly.all_together()


def _better_memories(assembly: Assembly, stop: float) -> None:
    """Decide again what each memory holds, as long as that gains."""
    is_better = True
    while is_better:
        before = assembly.value
        for pool in range(len(assembly.caps.memory)):
            part = _part(assembly, pools=(pool,))
            if not _decide_again(assembly, part, _MEMORY_EFFORT, stop):
                return
        is_better = assembly.value < before * (1.0 - CLOSE)


def _better(assembly: Assembly, stop: float) -> None:
    """Decide again about parts of the best so far, one after the other, with more effort for each
    when none gained anything."""
    for turn in range(1, _MOST_TURNS + 1):
        is_better = True
        while is_better:
            before = assembly.value
            for part in _parts(assembly):
                if not _decide_again(assembly, part, _PART_EFFORT * turn, stop):
                    return
            is_better = assembly.value < before * (1.0 - CLOSE)


def _decide_again(assembly: Assembly, part: Flags, share: float, stop: float) -> bool:
    """Decide again about a part of the best so far, with a share of the effort; whether there was
    any left."""
    if assembly.is_done or assembly.spent >= stop or not assembly.best:
        return False
    there = assembly.content
    banned = ~there & ~part & (assembly.sizes > 0.0)
    assembly.decide(there & ~part, banned, min(assembly.spent + assembly.effort * share, stop))
    assembly.spent += NODE_EFFORT
    return True


def _parts(assembly: Assembly) -> Iterator[Flags]:
    """(n, forms): what is decided again: a memory, two memories, some segments."""
    pools, n = len(assembly.caps.memory), assembly.tables.places
    for pool in range(pools):
        yield _part(assembly, pools=(pool,))
    for pair in combinations(range(pools), 2):
        yield _part(assembly, pools=pair)
    for size in dict.fromkeys((max(2, n // 4), max(2, n // 2))):
        for start in range(0, n - size + 1, max(1, size // 2)):
            yield _part(assembly, start=start, stop=start + size)


def _part(assembly: Assembly, *, pools: Sequence[int] = (), start: int = 0, stop: int = 0) -> Flags:
    part: Flags = np.zeros_like(assembly.sizes, dtype=bool)
    part[:, np.isin(assembly.pool_of, pools)] = True
    part[start:stop] = True
    return part
