"""Which nodes a user's pins mean, and where a model must be divided so that they can hold."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from edge_agent.devices import UnitId
from edge_agent.errors import UsageError
from edge_agent.model.graph import ModelGraph
from edge_agent.plans import Pin

_MOST_HINTS = 3


def pinned_units(graph: ModelGraph, pins: Sequence[Pin]) -> tuple[UnitId | None, ...]:
    """The unit that each of the nodes is pinned to.

    Raises:
        UsageError: a pattern matches no node, or a node is pinned to two units.
    """
    names = [_name(graph, position) for position in range(len(graph.nodes))]
    pinned: list[UnitId | None] = [None] * len(names)
    for pin in pins:
        positions = [at for at, name in enumerate(names) if _is_meant(name, pin.pattern)]
        if not positions:
            close = difflib.get_close_matches(pin.pattern, names, n=_MOST_HINTS, cutoff=0.4)
            hint = f"; nodes are called {', '.join(close or names[:_MOST_HINTS])}" if names else ""
            raise UsageError(f'pin "{pin}": no node has a name like "{pin.pattern}"{hint}')
        for at in positions:
            other = pinned[at]
            if other is not None and other != pin.unit:
                raise UsageError(
                    f'pin "{pin}": {graph.label(at)} is pinned to {other} too; want one unit for '
                    "each node"
                )
            pinned[at] = pin.unit
    return tuple(pinned)


def parted(pinned: Sequence[UnitId | None]) -> tuple[int, ...]:
    """The positions between nodes that are pinned differently."""
    return tuple(at for at, (a, b) in enumerate(pairwise(pinned), 1) if a != b)


def _is_meant(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)  # names may hold brackets


def _name(graph: ModelGraph, position: int) -> str:
    node = graph.nodes[position]
    return node.name or next((name for name in node.output if name), "")
