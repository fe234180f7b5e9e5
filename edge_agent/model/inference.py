"""ONNX shape inference, and which models it may not be asked about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

from edge_agent.model.functions import holding
from edge_agent.model.scopes import deep_nodes, plain_domain

_CRASHING = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "DictVectorizer"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)
"""Where inference of onnx 1.23.2 reads the type of an input that has none, and dies of it. These
are all: every operator of every opset was tried on inputs without a type, 80 times each."""
_FAILURES = (onnx.shape_inference.InferenceError, LookupError, RuntimeError, ValueError)
"""What inference raises for models that contradict themselves or are above 2 GiB."""


def bearable_nodes(
    nodes: Iterable[onnx.NodeProto], functions: Sequence[onnx.FunctionProto]
) -> Iterator[onnx.NodeProto]:
    """Those of `nodes` that inference survives whatever their inputs are; `functions` are those of
    the model. The values of the others stay unknown."""
    crashing = holding(functions, _CRASHING)
    for node in nodes:
        if crashing.isdisjoint((plain_domain(n.domain), n.op_type) for n in deep_nodes([node])):
            yield node


def inferred(model: onnx.ModelProto) -> onnx.GraphProto | None:
    """The graph of `model` with the types and shapes that are found; None if it has none.

    Without data propagation, which on 1.23 makes every element of a ConstantOfShape or a Range,
    however huge.
    """
    try:
        return onnx.shape_inference.infer_shapes(model).graph
    except _FAILURES:
        return None
