"""Every text of a model that anything reads, and which of them no program should have to show."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

import onnx

from edge_agent.model.scopes import bodies, model_tensors

MAX_NAME_CHARACTERS = 4096
"""As many as the messages between the processes carry."""
_SHOWN = 40


def first_unfit_text(model: onnx.ModelProto) -> str | None:
    """What is wrong with the first name, operator or entry of `model` that is no UTF-8 text, has
    control characters, or is too long; None if all are fit."""
    return next((reason for text in _texts(model) if (reason := _unfit(text)) is not None), None)


def _unfit(text: str | bytes) -> str | None:
    if isinstance(text, bytes):  # protobuf hands out damaged texts so
        return f"got the name {text[:_SHOWN]!r}, which is no UTF-8 text"
    if len(text) > MAX_NAME_CHARACTERS:
        return (
            f"got a name of {len(text)} characters, want at most {MAX_NAME_CHARACTERS}: "
            f"{text[:_SHOWN]!r}..."
        )
    if not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text):
        return f"got the name {text[:_SHOWN]!r}, which has control characters"
    return None


def _texts(model: onnx.ModelProto) -> Iterator[str | bytes]:
    yield from (opset.domain for opset in model.opset_import)
    yield from _graph_texts(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
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
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
        for body in bodies(node):
            yield from _graph_texts(body)
