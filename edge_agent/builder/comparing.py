"""How the parts of a model are compared with the whole on random inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.builder.made_up import find_samples
from edge_agent.builder.quantised import is_quantised
from edge_agent.builder.specs import fixed_shapes
from edge_agent.config import Limits
from edge_agent.engine.chain import Chain
from edge_agent.engine.refusals import about
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused
from edge_agent.model.graph import ModelGraph, random_operator
from edge_agent.profiling.tolerance import disagreement, largest_difference
from edge_agent.samples import random_arrays
from edge_agent.tensors import Arrays, Shape, TensorName

LEVELS = (OptimisationLevel.NONE, OptimisationLevel.ALL)
"""Without optimisation nothing but the division can make a difference; with it, nodes are no
longer run as one where a cut parts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """One output of the parts beside that of the whole, over all rounds."""

    name: str
    type: str
    largest_difference: float
    largest_relative_difference: float
    """Relative to the largest value of the output."""
    wrong: str | None
    """What is outside of the tolerance of its element type; None if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The parts beside the whole at one optimisation level of ONNX Runtime."""

    level: OptimisationLevel
    rounds: int
    outputs: tuple[OutputComparison, ...]

    @property
    def is_right(self) -> bool:
        return all(output.wrong is None for output in self.outputs)


class WholeModel:
    """What the undivided model computes from random inputs."""

    def __init__(
        self, graph: ModelGraph, given: Mapping[str, Shape], *, rounds: int, seed: int
    ) -> None:
        """Runs it; `given` are shapes of inputs, open dimensions are tried.

        Raises:
            ModelRefused: it draws random numbers, or runs on no inputs that can be made up.
            InputMismatch: an input has a type of which no random values are known.
            RuntimeUnavailable, RunFailed: ONNX Runtime does not run it.
        """
        _refuse_random(graph)
        self._graph = graph
        shapes = fixed_shapes(graph) | {TensorName(n): shape for n, shape in given.items()}
        with about(graph.path.name):
            session = Session.open(graph.path, threads=1, level=LEVELS[0], is_silent=True)
        found = find_samples(session, shapes, Limits().max_request_bytes, seed=seed)
        if found is None:
            raise ModelRefused(
                f"{graph.path.name}: does not run on random inputs, so nothing can be compared; "
                "give its shapes with --shape INPUT=SIZES, or leave out --check"
            )
        rng = np.random.default_rng(seed)
        self.samples = [random_arrays(session.inputs, found.shapes, rng) for _ in range(rounds)]
        self._outputs = session.output_names
        self._wanted = {LEVELS[0]: self._run(session)}
        del session
        for level in LEVELS[1:]:
            self._wanted[level] = self._run(Session.open(graph.path, threads=1, level=level))

    def _run(self, session: Session) -> list[Arrays]:
        with about(self._graph.path.name):
            return [session.run(sample, self._outputs) for sample in self.samples]

    def compare(self, parts: Sequence[Path]) -> tuple[Comparison, ...]:
        """Run the parts one after the other on the same inputs.

        Raises: ModelRefused, RuntimeUnavailable, RunFailed.
        """
        return tuple(self._compared(parts, level) for level in LEVELS)

    def _compared(self, parts: Sequence[Path], level: OptimisationLevel) -> Comparison:
        sessions = []
        for path in parts:
            with about(path.name):
                sessions.append(Session.open(path, threads=1, level=level))
        chain = Chain(sessions, self._graph.inputs, self._outputs)
        with about(f"{self._graph.path.name}, divided"):
            got = [chain.run(sample) for sample in self.samples]
        wanted = self._wanted[level]
        return Comparison(
            level=level,
            rounds=len(got),
            outputs=tuple(
                self._output(name, [g[name] for g in got], [w[name] for w in wanted])
                for name in self._outputs
            ),
        )

    def _output(self, name: str, got: Sequence[Any], want: Sequence[Any]) -> OutputComparison:
        pairs = list(zip(got, want, strict=True))
        differences = [largest_difference(g, w) for g, w in pairs]
        quantised = is_quantised(self._graph)
        wrong = [disagreement({name: g}, {name: w}, is_quantised=quantised) for g, w in pairs]
        return OutputComparison(
            name=name,
            type=str(want[0].dtype) if isinstance(want[0], np.ndarray) else "no tensor",
            largest_difference=max(absolute for absolute, _ in differences),
            largest_relative_difference=max(relative for _, relative in differences),
            wrong=next((text for text in wrong if text is not None), None),
        )


def _refuse_random(graph: ModelGraph) -> None:
    for position, node in enumerate(graph.nodes):
        operator = random_operator(graph, node)
        if operator is not None:
            raise ModelRefused(
                f"{graph.path.name}: {graph.label(position)} draws random numbers without a seed "
                f"({operator}), so the parts cannot be compared with the whole; leave out --check"
            )
