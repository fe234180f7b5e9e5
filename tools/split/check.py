"""Knows how a division is compared with the whole model."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge_agent.builder.quantised import is_quantised
from edge_agent.builder.specs import inner_specs
from edge_agent.engine.chain import Chain
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import EdgeAgentError
from edge_agent.model.cuts import places
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.profiling.tolerance import disagreement
from edge_agent.tensors import Arrays, TensorName, ValueSpecs
from split.subjects import Subject, Unfit


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of one model."""

    subject: Subject
    unfit: str = ""
    """Why it was not divided at all: the runtime does not run it whole, or see `Unfit`."""
    cuts: int = 0
    """How many were tried."""
    wrong: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Places where it may not be divided, by reason."""


def check(subject: Subject, most_cuts: int, scratch: str | None = None) -> Outcome:
    """Divide a model in two at up to `most_cuts` of its places, and compare with the whole.

    Files go to a folder in `scratch`, where a process that is killed leaves them.
    """
    outcome = Outcome(subject=subject)
    with tempfile.TemporaryDirectory(prefix="edge-split-", dir=scratch) as name:
        folder = Path(name)
        try:
            path, feeds = subject.open(folder)
            whole = Session.open(path, threads=1, level=OptimisationLevel.NONE)
            wanted = whole.run(feeds, whole.output_names)
        except Unfit as error:
            outcome.unfit = str(error)
            return outcome
        except EdgeAgentError as error:
            outcome.unfit = f"not run whole: {type(error).__name__}"
            return outcome
        graph = ModelGraph.load(path)
        feeds = {n: a for n, a in feeds.items() if n in (*graph.inputs, *graph.overridable)}
        shapes = {
            TensorName(n): a.shape
            for n, a in feeds.items()
            if n in graph.inputs and isinstance(a, np.ndarray)
        }
        specs = inner_specs(graph, shapes, folder / "probe.onnx")
        legal = []
        for place in places(graph, specs):
            why = place.blocked_because
            if why is None:
                legal.append(place.position)
            else:
                # By kind: without the name of the value.
                outcome.refused[why.split('"')[-1].strip()] += 1
        chosen = random.Random(0).sample(legal, min(most_cuts, len(legal)))
        for cut in sorted(chosen):
            outcome.cuts += 1
            wrong = _wrong(graph, cut, specs, feeds, wanted, folder)
            if wrong is not None:
                outcome.wrong.append(f"before {graph.label(cut)}: {wrong}")
    return outcome


def _wrong(
    graph: ModelGraph, cut: int, specs: ValueSpecs, feeds: Arrays,
    wanted: Arrays, folder: Path,
) -> str | None:  # fmt: skip
    """What is wrong with the two parts, run one after the other; None if nothing is."""
    sessions = []
    try:
        for start, stop in ((0, cut), (cut, len(graph.nodes))):
            path = folder / f"{start}-{stop}.onnx"
            extract(graph, start, stop, path, specs)
            sessions.append(Session.open(path, threads=1, level=OptimisationLevel.NONE))
        chain = Chain(sessions, graph.inputs, tuple(wanted))
        got = chain.run(feeds)
    except (EdgeAgentError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return disagreement(got, wanted, is_quantised=is_quantised(graph))
