"""What each unit took of a model and what it refused, in lines that people can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from edge_agent.profiles import Placement, RefusedNode

TEXT_WIDTH = 110
_LABELS = 3
"""So many nodes of a group are named; the others have their positions."""


def wrapped(text: str, indent: str) -> list[str]:
    """`text` in lines of at most `TEXT_WIDTH` columns, the first one indented by `indent`."""
    return wrap(
        text,
        TEXT_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=True,
    )


def placement_lines(placements: Sequence[Placement]) -> list[str]:
    """A few lines for each unit: how many nodes it took, and which it refused and why.

    Refused nodes that ran on the same unit for the same reason are told together, in the order of
    the first of each group, every one by its position.
    """
    return [line for placement in placements for line in _unit_lines(placement)]


def _unit_lines(placement: Placement) -> Iterator[str]:
    refused = len(placement.refused)
    head = f"{placement.unit}: took {_nodes(placement.taken)}, refused {refused or 'none'}"
    if placement.removed:
        head += f"; {placement.removed} more are gone or part of others since loading"
    yield from wrapped(f"{head} ({placement.evidence})", "  ")
    groups: dict[tuple[str, str], list[RefusedNode]] = {}
    for node in sorted(placement.refused, key=lambda node: node.position):
        groups.setdefault((node.ran_on, node.reason), []).append(node)
    for (ran_on, reason), nodes in groups.items():
        yield from wrapped(f"{_named(nodes)} ran on {ran_on}: {reason}", "    ")


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _named(nodes: Sequence[RefusedNode]) -> str:
    """As in `15 nodes at 3-17: conv1 (Conv), relu1 (Relu), …`, with places in the order of the
    division, as its tables have them; labels may have the numbers of the file."""
    if len(nodes) == 1:
        return f"1 node at {nodes[0].position}: {nodes[0].label}"
    labels = [node.label for node in nodes[:_LABELS]]
    if len(nodes) > _LABELS:
        labels.append("…")
    places = _ranges([n.position for n in nodes])
    return f"{len(nodes)} nodes at {places}: {', '.join(labels)}"


def _ranges(positions: Sequence[int]) -> str:
    """Ascending positions as in `3-17, 20`."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and runs[-1][1] + 1 == position:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in runs)
