"""How a divided model is drawn: a graph in the DOT language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from edge_agent.builder.showing import Passage, ShownModel, ShownSegment
from edge_agent.planning.explain import human

_OPERATORS = 4
"""The most frequent ones are named."""


def render_dot(shown: ShownModel) -> str:
    """The segments of a model as boxes, with what goes between them on the edges.

    The language is described at https://graphviz.org/doc/info/lang.html.
    """
    return "\n".join(("digraph model {", *(f"  {line}" for line in _lines(shown)), "}"))


def _lines(shown: ShownModel) -> Iterator[str]:
    yield f"label={_text(shown.file)};"
    yield "node [shape=box];"
    for segment in shown.segments:
        yield f"s{segment.segment.index} [label={_text(*_segment_lines(segment))}];"
    inputs = {value.name: f"i{i}" for i, value in enumerate(shown.inputs)}
    outputs = {value.name: f"o{i}" for i, value in enumerate(shown.outputs)}
    for name, place in (*inputs.items(), *outputs.items()):
        yield f"{place} [shape=ellipse, label={_text(name)}];"
    for passage in shown.passages:
        source = _end(passage.from_segment, passage, inputs)
        target = _end(passage.to_segment, passage, outputs)
        yield f"{source} -> {target} [label={_text(passage.name, passage.type)}];"


def _end(segment: int | None, passage: Passage, ends: dict[str, str]) -> str:
    return ends[passage.name] if segment is None else f"s{segment}"


def _segment_lines(shown: ShownSegment) -> tuple[str, ...]:
    segment = shown.segment
    named = [f"{name}×{often}" for name, often in segment.operators[:_OPERATORS]]
    if len(segment.operators) > _OPERATORS:
        named.append("…")
    last = f"-{segment.stop - 1}" if segment.stop - segment.start > 1 else ""
    nodes = "no nodes" if segment.stop == segment.start else f"nodes {segment.start}{last}"
    return (
        f"segment {segment.index}: {nodes}",
        " ".join(named),
        f"{human(segment.operations)} operations, score {human(shown.score.score)}",
    )


def _text(*lines: str) -> str:
    """A quoted string of so many lines."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    plain = (line.replace("\n", " ").replace("\r", " ").replace("\0", "") for line in escaped)
    return '"' + "\\n".join(plain) + '"'
