"""Which small values are known before a model runs, once the shapes of its inputs are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx

from edge_agent.model.external import is_external
from edge_agent.model.graph import ModelGraph
from edge_agent.model.scopes import plain_domain
from edge_agent.model.values import tensor_bytes
from edge_agent.tensors import Array, TensorName, TensorSpec

SMALL_BYTES = 1024
"""Constants up to this size may be shapes, axes or bounds; larger ones are weights."""
_FOLDED = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand",
        "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
        "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd",
        "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose",
        "Unsqueeze", "Where",
    }
)  # fmt: skip
_FAILURES = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""What the reference evaluator raises on input that does not fit."""


def small_constants(graph: ModelGraph) -> dict[str, Array]:
    """The stored constants that may take part in computing a shape."""
    changing = frozenset(graph.overridable)
    return {
        name: onnx.numpy_helper.to_array(tensor)
        for name, tensor in graph.constants.items()
        if _is_small(tensor) and not is_external(tensor) and name not in changing
    }


def _is_small(tensor: onnx.TensorProto) -> bool:
    # Strings count no bytes.
    return bool(math.prod(tensor.dims) <= SMALL_BYTES and tensor_bytes(tensor) <= SMALL_BYTES)


def fold(
    graph: ModelGraph, specs: Mapping[TensorName, TensorSpec], known: dict[str, Array]
) -> bool:
    """Add to `known` the small values that follow from it and from the fixed shapes in `specs`.

    Returns whether any were found. Exporters of dynamic models compute shapes by chains such as
    Shape, Gather, Mul, Concat, Reshape; ONNX shape inference follows them only in part.
    """
    before = len(known)
    opsets = {plain_domain(o.domain): int(o.version) for o in graph.model.opset_import}
    for node in (*graph.constant_nodes, *graph.nodes):
        if node.output[0] in known or plain_domain(node.domain):
            continue
        if node.op_type == "Shape":
            found = _shape(node, specs.get(TensorName(node.input[0])))
        elif node.op_type in _FOLDED and all(n in known for n in node.input if n):
            found = _evaluate(node, opsets, known)
        else:
            continue
        known.update(found)
    return len(known) > before


def _shape(node: onnx.NodeProto, spec: TensorSpec | None) -> dict[str, Array]:
    if spec is None or spec.dims is None or not spec.is_static:
        return {}
    bounds = {attribute.name: int(attribute.i) for attribute in node.attribute}
    dims = spec.dims[bounds.get("start", 0) : bounds.get("end")]
    return {node.output[0]: np.array(dims, np.int64)}


def _evaluate(
    node: onnx.NodeProto, opsets: dict[str, int], known: Mapping[str, Array]
) -> dict[str, Array]:
    feeds = {name: known[name] for name in node.input if name}
    operands = [feeds.get(name, np.zeros(0)) for name in node.input]
    # Few models have anything to fold, and all would wait for this import when they are loaded.
    from onnx.reference import ReferenceEvaluator

    try:
        if not _result_elements(node.op_type, operands) * 8 <= SMALL_BYTES:
            return {}
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(node, opsets=opsets).run(None, feeds)
    except _FAILURES:
        return {}
    arrays = [np.asarray(result) for result in results]
    if sum(array.nbytes for array in arrays) > SMALL_BYTES:  # small operands can be broadcast
        return {}
    return {name: array for name, array in zip(node.output, arrays, strict=False) if name}


def _result_elements(operator: str, operands: list[Array]) -> float:
    """About how many elements the result has, so that nothing huge is made: no more than the
    square of this, where operands are broadcast or gathered from."""
    if operator in ("ConstantOfShape", "Expand"):
        return float(np.prod(operands[-1].astype(np.float64)))
    if operator == "Range":
        start, limit, delta = (float(o.astype(np.float64)) for o in operands)
        return (limit - start) / delta if delta else np.inf
    return float(sum(o.size for o in operands))
