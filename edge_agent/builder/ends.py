"""What a model takes in and gives back, in bytes, as far as that is known before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edge_agent.model.graph import ModelGraph
from edge_agent.tensors import Shape, TensorName, TensorSpec, ValueSpecs, size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Bytes of the inputs that are used, and of the outputs, each once."""

    inputs: Mapping[str, int | None]
    """By name; None where the size is not known."""
    outputs: Mapping[str, int | None]

    @property
    def input_bytes(self) -> int | None:
        """Of all inputs; None if that is not known."""
        return _sum(self.inputs.values())

    @property
    def output_bytes(self) -> int | None:
        """As `input_bytes`."""
        return _sum(self.outputs.values())


def ends_of(graph: ModelGraph, shapes: Mapping[TensorName, Shape], specs: ValueSpecs) -> Ends:
    """The ends of a model, for the input shapes in use and the values' specs for them."""
    used = (name for name in graph.inputs if name in graph.users)
    return Ends(
        inputs={name: _size_bytes(name, shapes, specs) for name in used},
        outputs={name: _size_bytes(name, shapes, specs) for name in graph.outputs},
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def _size_bytes(name: str, shapes: Mapping[TensorName, Shape], specs: ValueSpecs) -> int | None:
    given = shapes.get(TensorName(name))
    spec = specs.tensors.get(TensorName(name))
    shape = given if given is not None else _static(spec)
    return None if spec is None or shape is None else size_bytes(spec.element_type, shape)


def _static(spec: TensorSpec | None) -> Shape | None:
    if spec is None or not spec.is_static:
        return None
    return tuple(dim for dim in spec.dims or () if isinstance(dim, int))
