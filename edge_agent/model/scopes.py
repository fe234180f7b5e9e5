"""Which names a node reads and defines once the bodies of If, Loop and Scan are counted in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

_ATTRIBUTE = onnx.AttributeProto
_SHOWN_CHARACTERS = 200
"""Of the name of a node: messages about bodies name every node around."""


def bodies(node: onnx.NodeProto) -> tuple[onnx.GraphProto, ...]:
    """The graphs among the attributes of `node`."""
    found = []
    for attribute in node.attribute:
        if attribute.type == _ATTRIBUTE.GRAPH:
            found.append(attribute.g)
        elif attribute.type == _ATTRIBUTE.GRAPHS:
            found.extend(attribute.graphs)
    return tuple(found)


def defined_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name that `graph` itself defines: these hide equal names outside of it."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from filter(None, node.output)


def free_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """The names that a body takes from around it, each once, in order of first use."""
    own = set(defined_names(graph))
    used: dict[str, None] = {}
    for node in graph.node:
        used.update(dict.fromkeys(reads(node)))
    used.update((value.name, None) for value in graph.output)
    return tuple(name for name in used if name not in own)


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """The names that `node` needs, each once: its inputs, then what its bodies capture."""
    names = dict.fromkeys(filter(None, node.input))
    for body in bodies(node):
        names.update(dict.fromkeys(free_names(body)))
    return tuple(names)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of `graph` and of all bodies inside of them."""
    return deep_nodes(graph.node)


def deep_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """`nodes`, and those of all bodies inside of them."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from deep_nodes(body.node)


def model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of `model`, those of its own functions and of all bodies included."""
    yield from all_nodes(model.graph)
    for function in model.functions:
        yield from deep_nodes(function.node)


def node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """The tensors among the attributes of `node`, sparse ones and those of its bodies included."""
    for attribute in node.attribute:
        match attribute.type:
            case _ATTRIBUTE.TENSOR:
                yield attribute.t
            case _ATTRIBUTE.TENSORS:
                yield from attribute.tensors
            case _ATTRIBUTE.SPARSE_TENSOR:
                yield from _parts(attribute.sparse_tensor)
            case _ATTRIBUTE.SPARSE_TENSORS:
                for sparse in attribute.sparse_tensors:
                    yield from _parts(sparse)
            case _:
                pass
    for body in bodies(node):
        yield from graph_tensors(body)


def called_tensors(model: onnx.ModelProto, node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """The tensors in those functions of `model` that `node`, its bodies and they themselves call,
    of each function once."""
    functions = {(plain_domain(f.domain), f.name): f for f in model.functions}
    left, seen = [node], set()
    while left:
        for one in deep_nodes([left.pop()]):
            key = (plain_domain(one.domain), one.op_type)
            if key in functions and key not in seen:
                seen.add(key)
                left += functions[key].node
                for inner in functions[key].node:
                    yield from node_tensors(inner)


def graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in `graph`: initializers, sparse ones, attributes, bodies."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from _parts(sparse)
    for node in graph.node:
        yield from node_tensors(node)


def model_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in `model`, those in the bodies of its own functions included."""
    yield from graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from node_tensors(node)


def sparse_tensors(
    graphs: Iterable[onnx.GraphProto], nodes: Iterable[onnx.NodeProto]
) -> Iterator[onnx.SparseTensorProto]:
    """The sparse tensors that `graphs` hold as initializers, and `nodes` in their attributes."""
    for graph in graphs:
        yield from graph.sparse_initializer
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == _ATTRIBUTE.SPARSE_TENSOR:
                yield attribute.sparse_tensor
            elif attribute.type == _ATTRIBUTE.SPARSE_TENSORS:
                yield from attribute.sparse_tensors


def _parts(sparse: onnx.SparseTensorProto) -> Iterator[onnx.TensorProto]:
    yield sparse.values
    yield sparse.indices


def node_label(index: int, node: onnx.NodeProto) -> str:
    """How messages name a node: its index in the file, its name if it has one, its operator."""
    name = f' "{_shortened(node.name)}"' if node.name else ""
    return f"node {index}{name} ({_shortened(node.op_type)})"


def _shortened(name: str) -> str:
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."


def plain_domain(domain: str) -> str:
    """The domain under the one of its two names that schemas use: ai.onnx is the empty string."""
    return "" if domain == "ai.onnx" else domain
