"""Where the best choice for one set of input shapes is another one than for the general plan's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edge_agent.plans import ExecutionPlan, ExplainedSegment
from edge_agent.profiles import Configuration

_OPERATORS_WIDTH = 24
_COLUMNS = (
    *("nodes", "operators", "general's best", "general ms", "here ms"),
    *("best here", "general ms", "here ms"),
)
_LEFT = frozenset({0, 1, 2, 5})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A run of nodes whose fastest configuration differs; its fitted times, in seconds."""

    nodes: tuple[int, int]
    """Nodes [start, stop) of the topological order."""
    operators: tuple[tuple[str, int], ...]
    """(operator, how often), most frequent first, ties by name."""
    general_best: Configuration
    """The fastest for the shapes of the general plan."""
    best: Configuration
    """The fastest for the shapes asked about."""
    general_best_s: tuple[float | None, float | None]
    """What the first takes for the general shapes, and for those asked about; None if it was not
    measured for them."""
    best_s: tuple[float | None, float | None]
    """As much of the second."""


def flips(general: ExecutionPlan, plan: ExecutionPlan) -> tuple[Flip, ...]:
    """The runs of nodes whose fastest configuration differs between the two plans of one model.

    Which cuts a model has depends on the shapes, so that stretches between cuts of both are
    compared; neighbours that flip alike are one.
    """
    common = sorted(_bounds(general.segments) & _bounds(plan.segments))
    found: list[Flip] = []
    for start, stop in pairwise(common):
        there, here = (
            [s for s in p.segments if start <= s.nodes[0] and s.nodes[1] <= stop]
            for p in (general, plan)
        )
        flip = _flip((start, stop), there, here)
        if flip is None:
            continue
        if found and found[-1].nodes[1] == start and _pair(found[-1]) == _pair(flip):
            found[-1] = _joined(found[-1], flip)
        else:
            found.append(flip)
    return tuple(found)


def _bounds(segments: Sequence[ExplainedSegment]) -> set[int]:
    return {bound for segment in segments for bound in segment.nodes}


def _pair(flip: Flip) -> tuple[Configuration, Configuration]:
    return flip.general_best, flip.best


def _flip(
    nodes: tuple[int, int], there: Sequence[ExplainedSegment], here: Sequence[ExplainedSegment]
) -> Flip | None:
    there_s, here_s = _summed(there), _summed(here)
    if not there_s or not here_s:
        return None
    first, second = (min(t, key=lambda c: (t[c], c)) for t in (there_s, here_s))
    if first == second:
        return None
    return Flip(
        nodes=nodes,
        operators=_counted([o for segment in there for o in segment.operators]),
        general_best=first,
        best=second,
        general_best_s=(there_s.get(first), here_s.get(first)),
        best_s=(there_s.get(second), here_s.get(second)),
    )


def _summed(segments: Sequence[ExplainedSegment]) -> Mapping[Configuration, float]:
    """Seconds in each configuration that was measured for all of them."""
    times = [dict(segment.times) for segment in segments]
    everywhere = set.intersection(*(set(t) for t in times)) if times else set()
    return {c: sum(t[c] for t in times) for c in everywhere}


def _counted(operators: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for name, often in operators:
        counts[name] = counts.get(name, 0) + often
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _joined(first: Flip, second: Flip) -> Flip:
    return Flip(
        nodes=(first.nodes[0], second.nodes[1]),
        operators=_counted([*first.operators, *second.operators]),
        general_best=first.general_best,
        best=first.best,
        general_best_s=_added(first.general_best_s, second.general_best_s),
        best_s=_added(first.best_s, second.best_s),
    )


def _added(
    first: tuple[float | None, float | None], second: tuple[float | None, float | None]
) -> tuple[float | None, float | None]:
    one, two = (
        None if a is None or b is None else a + b for a, b in zip(first, second, strict=True)
    )
    return one, two


def render_flips(general: ExecutionPlan, plan: ExecutionPlan) -> str:
    """The text below `edge-agent plan MODEL --explain --shape …`; lines of about 110 columns."""
    if not general.segments or not plan.segments:
        return "Where the choice differs from the general plan is not known: it was not profiled.\n"
    found = flips(general, plan)
    if not found:
        return "Everywhere, what is fastest for these shapes is fastest for the general plan's.\n"
    rows = [_COLUMNS, *(_row(flip) for flip in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "Where the fastest differs between the general plan's shapes and these (fitted times):"
    ]
    for row in rows:
        cells = (
            cell.ljust(width) if i in _LEFT else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _row(flip: Flip) -> tuple[str, ...]:
    start, stop = flip.nodes
    operators = " ".join(f"{name}×{often}" for name, often in flip.operators)
    if len(operators) > _OPERATORS_WIDTH:
        operators = operators[: _OPERATORS_WIDTH - 1] + "…"
    return (
        f"{start}-{stop - 1}" if stop - start > 1 else str(start),
        operators,
        str(flip.general_best),
        *map(_ms, flip.general_best_s),
        str(flip.best),
        *map(_ms, flip.best_s),
    )


def _ms(duration_s: float | None) -> str:
    return "-" if duration_s is None else f"{duration_s * 1e3:.3g}"
