"""What a user may call a cut: its number, or the name of the value or node that it lies behind."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from edge_agent.errors import UsageError
from edge_agent.model.graph import ModelGraph

_KINDS = ("position", "value", "node")


def cut_position(graph: ModelGraph, text: str) -> int:
    """The position that `text` means: nodes [0, position) lie before the cut.

    `text` is a position as a number, the name of a value, or the name of a node. A value or node
    lies before the cut, directly. `position:`, `value:` and `node:` before it say which is meant.

    Raises:
        UsageError: nothing is called so, more than one thing is, or nothing lies before or behind.
    """
    prefix, colon, rest = text.partition(":")
    is_told = bool(colon) and prefix in _KINDS
    kinds, name = ((prefix,), rest) if is_told else (_KINDS, text)
    found = [(kind, at) for kind in kinds for at in _positions(graph, kind, name)]
    if not found:
        raise _unknown(graph, name, text)
    if len({at for _, at in found}) > 1:
        options = ", ".join(
            dict.fromkeys(f"{kind}:{name}" if kind != "node" else f"position:{at}"
                          for kind, at in found)
        )  # fmt: skip
        raise UsageError(f"--at {text}: {len(found)} places are called so; say which: {options}")
    position = found[0][1]
    if not 0 < position < len(graph.nodes):
        side = "before" if position <= 0 else "behind"
        raise UsageError(
            f"--at {text}: no node lies {side} it; want a place between two of the "
            f"{len(graph.nodes)} nodes (see --list)"
        )
    return position


def _positions(graph: ModelGraph, kind: str, name: str) -> Iterator[int]:
    if kind == "position" and name.isascii() and name.isdigit():
        # So many digits that it is no number of nodes are no number at all.
        yield int(name[:12])
    elif kind == "value" and name in graph.producers:
        yield graph.producers[name] + 1
    elif kind == "node" and name:
        yield from (i + 1 for i, node in enumerate(graph.nodes) if node.name == name)


def _unknown(graph: ModelGraph, name: str, text: str) -> UsageError:
    start = f"--at {text}:"
    if graph.is_constant(name):
        return UsageError(f'{start} "{name}" is a constant, which every part has that needs it')
    names = {*graph.producers, *(node.name for node in graph.nodes if node.name)}
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; see --list"
    return UsageError(f"{start} no value or node of the main graph is called so{hint}")
