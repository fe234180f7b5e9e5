"""How a copy of a model is written in which the name of each node tells its position."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from edge_agent.model.extract import extract, write_graph
from edge_agent.model.functions import FunctionKey, called, function_key
from edge_agent.model.graph import ModelGraph
from edge_agent.model.scopes import bodies, model_nodes
from edge_agent.tensors import ValueSpecs

_NUMBERED = re.compile(r"(n+)[0-9]")


def write_named(
    graph: ModelGraph, destination: Path, specs: ValueSpecs, *, is_fixed: bool = False
) -> tuple[str, ...]:
    """Write the whole `graph` to `destination` so that no two nodes have one name.

    Returns the names of its nodes by position: `n0`, `n1`, ... (or `nn0`, ... if values are called
    so: ONNX Runtime names nodes that it inserts after values). Nodes in the bodies of node 17, or
    in the function that it calls, are `n17.0`, `n17.1`, ...: each call gets a function of its own,
    else it could not be told which call a node comes from once functions are written out. Nodes
    that are constants are `c0`, `c1`, ... Files, `specs` and `is_fixed` are as for `extract`: what
    lies outside of a model in the same folder stays there.

    Raises:
        StorageError: a file cannot be written.
        ModelRefused: external data cannot be read, or the graph alone is above 2 GiB.
    """
    extract(graph, 0, len(graph.nodes), destination, specs, is_fixed=is_fixed)
    model = onnx.load(destination, load_external_data=False)
    constants = len(model.graph.node) - len(graph.nodes)
    prefix = _unused_prefix(model)
    names = tuple(f"{prefix}{position}" for position in range(len(graph.nodes)))
    naming = _Naming(model)
    for name, node in zip(
        [*(f"c{i}" for i in range(constants)), *names], model.graph.node, strict=True
    ):
        naming.name(node, name)
    del model.functions[:]
    model.functions.extend(naming.functions)
    write_graph(model, destination)
    return names


def _unused_prefix(model: onnx.ModelProto) -> str:
    values = (name for node in model_nodes(model) for name in (*node.input, *node.output))
    taken = {found for name in values for found in _NUMBERED.findall(name)}
    prefix = "n"
    while prefix in taken:
        prefix += "n"
    return prefix


class _Naming:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._known: Mapping[FunctionKey, onnx.FunctionProto] = {
            function_key(function): function for function in model.functions
        }
        self.functions: list[onnx.FunctionProto] = []
        """One for each call that was named."""

    def name(self, node: onnx.NodeProto, name: str) -> None:
        node.name = name
        function = self._known.get(called(node))
        if function is None:
            self._name_all((inner for body in bodies(node) for inner in body.node), name)
            return
        own = onnx.FunctionProto()
        own.CopyFrom(function)
        own.name = node.op_type = name
        own.overload = node.overload = ""
        self._name_all(own.node, name)
        self.functions.append(own)

    def _name_all(self, nodes: Iterable[onnx.NodeProto], outer: str) -> None:
        for i, node in enumerate(nodes):
            self.name(node, f"{outer}.{i}")
