"""Knows a model of any length: real ones, one behind the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edge_agent.builder.summarising import SummarisedModel, summarise_file
from edge_agent.config import Limits
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.summaries import Branch, CutPoint, Fork, ModelSummary, Segment
from models.inputs import standard_inputs


def summarised(name: str, path: Path) -> SummarisedModel:
    """A model of the zoo as `plan --devices` reads it, for its standard input."""
    shapes = {value: array.shape for value, array in standard_inputs(name).items()}
    return summarise_file(path, Limits(), shapes, ())


def chained(
    models: Sequence[SummarisedModel], count: int, rng: random.Random, *, with_forks: bool = False
) -> SummarisedModel:
    """The first `count` segments of the models one behind the other, in any order, again and again.

    Where one ends, what the next one takes in crosses. Segments keep their work and their bytes;
    `with_forks` keeps the branches that may run at once.
    """
    segments: list[Segment] = []
    cuts: list[CutPoint] = []
    forks: list[Fork] = []
    first, last = None, None
    for model in _in_any_order(models, rng):
        if len(segments) >= count:
            break
        summary, at = model.summary, len(segments)
        node = segments[-1].stop if segments else 0
        if segments:
            cuts.append(CutPoint(position=node, crossing=(), crossing_bytes=model.input_bytes))
        segments += (
            replace(s, index=s.index + at, start=s.start + node, stop=s.stop + node)
            for s in summary.segments
        )
        cuts += (replace(cut, position=cut.position + node) for cut in summary.cuts)
        forks += (_moved(fork, at, node) for fork in summary.forks)
        first, last = first or model, model
    assert first is not None, "there is a model"
    assert last is not None, "there is a model"
    end = cuts[count - 1].crossing_bytes if len(segments) > count else last.output_bytes
    if end is None:
        raise ValueError(f"what crosses before segment {count} of the chain has no known size")
    kept = segments[:count]
    return SummarisedModel(
        summary=ModelSummary(
            model=ModelId("chained"),
            inputs=first.summary.inputs,
            outputs=last.summary.outputs,
            shapes=(),
            nodes=kept[-1].stop,
            segments=tuple(kept),
            cuts=tuple(cuts[: count - 1]),
            weight_bytes=sum(segment.weight_bytes for segment in kept),
            forks=tuple(f for f in forks if f.segments.stop <= count) if with_forks else (),
        ),
        input_bytes=first.input_bytes,
        output_bytes=end,
        pinned=(None,) * count,
        notes=(),
    )


def _in_any_order(
    models: Sequence[SummarisedModel], rng: random.Random
) -> Iterator[SummarisedModel]:
    while models:
        yield from rng.sample(models, len(models))


def _moved(fork: Fork, at: int, node: int) -> Fork:
    def branch(one: Branch) -> Branch:
        return replace(one, nodes=tuple(n + node for n in one.nodes))

    inside = SegmentRange(start=fork.segments.start + at, stop=fork.segments.stop + at)
    return replace(fork, segments=inside, branches=tuple(map(branch, fork.branches)))
