"""Every text of a model that anything reads: protobuf hands out damaged ones as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from edge_agent.model.scopes import bodies, model_tensors


def first_damaged_text(model: onnx.ModelProto) -> bytes | None:
    """The first name, operator or entry in `model` that is not valid UTF-8; None if all are."""
    return next((text for text in _texts(model) if isinstance(text, bytes)), None)


def _texts(model: onnx.ModelProto) -> Iterator[str | bytes]:
    yield from (opset.domain for opset in model.opset_import)
    yield from _graph_texts(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output)
        yield from (opset.domain for opset in function.opset_import)
        yield from _node_texts(function.node)
    for tensor in model_tensors(model):
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)


def _graph_texts(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from _node_texts(graph.node)


def _node_texts(nodes: Iterable[onnx.NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.op_type, node.domain, node.name, node.overload)
        yield from (*node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        for body in bodies(node):
            yield from _graph_texts(body)
