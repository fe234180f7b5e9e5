"""Which nodes a compute unit cannot take by what is known of it, before anybody is asked."""

from __future__ import annotations

from collections.abc import Iterator

from edge_agent.devices import ComputeUnit
from edge_agent.model.graph import ModelGraph
from edge_agent.model.scopes import plain_domain
from edge_agent.tensors import ElementType, TensorName, TensorSpec, ValueSpecs

_FLOATS = frozenset(
    {ElementType.FLOAT64, ElementType.FLOAT32, ElementType.FLOAT16, ElementType.BFLOAT16}
)
_QUANTISES = "QuantizeLinear"
_DEQUANTISES = "DequantizeLinear"


def rules_against(graph: ModelGraph, specs: ValueSpecs, unit: ComputeUnit) -> tuple[str, ...]:
    """Why `unit` does not take each node, by position; "" where nothing speaks against it."""
    return tuple(
        next(_against(graph, specs, unit, position), "") for position in range(len(graph.nodes))
    )


def _against(
    graph: ModelGraph, specs: ValueSpecs, unit: ComputeUnit, position: int
) -> Iterator[str]:
    tensors = list(_tensors(graph, specs, position))
    if not unit.takes_open_dimensions:
        for spec in tensors:
            if not spec.is_static:
                yield f'"{spec.name}" is {spec}, and the unit takes fixed dimensions only'
    if not unit.takes_floats and not is_quantised(graph, specs, position):
        for spec in tensors:
            if spec.element_type in _FLOATS:
                yield f"it computes in {spec.element_type}, and the unit only in quantised integers"


def _tensors(graph: ModelGraph, specs: ValueSpecs, position: int) -> Iterator[TensorSpec]:
    for name in (*graph.reads[position], *graph.nodes[position].output):
        spec = specs.tensors.get(TensorName(name))
        if spec is not None:
            yield spec


def is_quantised(graph: ModelGraph, specs: ValueSpecs, position: int) -> bool:
    """Whether a node stands between quantised values: all that it computes in float comes from
    DequantizeLinear or is constant, and all that it gives goes to QuantizeLinear."""
    if operator_of(graph, position) in (_QUANTISES, _DEQUANTISES):
        return True

    node = graph.nodes[position]
    read = (n for n in graph.reads[position] if is_float(specs, n) and not graph.is_constant(n))
    given = [name for name in node.output if name and is_float(specs, name)]
    return (
        all(operator_of(graph, graph.producers.get(name, -1)) == _DEQUANTISES for name in read)
        and all(
            operator_of(graph, user) == _QUANTISES
            for name in given
            for user in graph.users.get(name, ())
        )
        and not set(given) & set(graph.outputs)
    )


def is_float(specs: ValueSpecs, name: str) -> bool:
    """Whether a value is of floats, or of what nobody knows."""
    spec = specs.tensors.get(TensorName(name))
    return spec is None or spec.element_type in _FLOATS


def operator_of(graph: ModelGraph, position: int) -> str:
    """The ONNX operator at `position`; empty for what is given to the model and for operators of
    other domains."""
    if position < 0:
        return ""
    node = graph.nodes[position]
    return "" if plain_domain(node.domain) else str(node.op_type)
