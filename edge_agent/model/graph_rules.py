"""What must hold between the nodes of a graph: operators known, every name produced just once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import onnx

from edge_agent.errors import ModelRefused
from edge_agent.model.order import order_nodes
from edge_agent.model.scopes import bodies, node_label, plain_domain, reads

_ONNX_DOMAINS = frozenset({"", "ai.onnx.ml"})
_CONTRIBUTED_DOMAIN = "com.microsoft"
_REFUSED_OPERATORS: Mapping[tuple[str, str], str] = {
    (_CONTRIBUTED_DOMAIN, "EPContext"): (
        "it holds a compiled program for one device, which is never taken from a model file; "
        "load the model it was compiled from"
    ),
}
_Key = tuple[str, str, str]


class GraphRules:
    """The rules for one model, with what its file defines: opsets and functions."""

    def __init__(self, model: onnx.ModelProto, file_name: str) -> None:
        self._model = model
        self._file_name = file_name
        self._functions: dict[_Key, onnx.FunctionProto] = {
            (plain_domain(f.domain), f.name, f.overload): f for f in model.functions
        }
        self._opsets = _versions(model.opset_import)
        self._schemas: dict[tuple[str, str, int], onnx.defs.OpSchema | None] = {}

    def check(self) -> None:
        """Check the graph, all bodies and all functions.

        Raises:
            ModelRefused: a rule is broken; the message names the node.
        """
        graph = self._model.graph
        if not graph.output:
            self._refuse("the graph has no outputs, so nothing could be asked of it")
        self._check_graph(graph, frozenset(), self._opsets, "")
        for function in self._model.functions:
            place = f'function "{function.name}", '
            opsets = _versions(function.opset_import)
            self._check_nodes(function.node, function.input, frozenset(), opsets, place)

    def _refuse(self, message: str) -> NoReturn:
        raise ModelRefused(f"{self._file_name}: {message}; export the model again")

    def _check_graph(
        self,
        graph: onnx.GraphProto,
        outer: frozenset[str],
        opsets: Mapping[str, int],
        place: str,
    ) -> None:
        inputs = [value.name for value in graph.input]
        doubled = _first_doubled(inputs)
        if doubled is not None:
            self._refuse(f'{place}input "{doubled}" is declared twice')
        held = [tensor.name for tensor in graph.initializer]
        held += [tensor.values.name for tensor in graph.sparse_initializer]
        doubled = _first_doubled(held)
        if doubled is not None:
            self._refuse(f'{place}initializer "{doubled}" is stored twice')
        known = self._check_nodes(graph.node, [*inputs, *held], outer, opsets, place)
        for value in graph.output:
            if value.name not in known:
                self._refuse(f'{place}output "{value.name}" is produced by nothing')

    def _check_nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        given: Iterable[str],
        outer: frozenset[str],
        opsets: Mapping[str, int],
        place: str,
    ) -> frozenset[str]:
        """Check the nodes of one scope; returns every name known inside of it."""
        producer: dict[str, str] = dict.fromkeys(given, "an input or initializer of the graph")
        for index, node in enumerate(nodes):
            label = place + node_label(index, node)
            for name in filter(None, node.output):
                if name in producer:
                    self._refuse(f'{label}: output "{name}" is already {producer[name]}')
                producer[name] = f"the output of {label}"
        known = outer.union(producer)
        node_reads = [reads(node) for node in nodes]
        for index, node in enumerate(nodes):
            label = place + node_label(index, node)
            self._check_operator(node, opsets, label)
            for name in filter(None, node.input):
                if name not in known:
                    self._refuse(f'{label}: input "{name}" is produced by nothing')
            for body in bodies(node):
                self._check_graph(body, known, opsets, f"{label}, in its body: ")
        order_nodes(nodes, node_reads, self._file_name)
        return known

    def _check_operator(self, node: onnx.NodeProto, opsets: Mapping[str, int], label: str) -> None:
        domain = plain_domain(node.domain)
        if (domain, node.op_type, node.overload) in self._functions:
            return
        shown = f"{domain or 'ai.onnx'}::{node.op_type}"
        reason = _REFUSED_OPERATORS.get((domain, node.op_type))
        if reason is not None:
            raise ModelRefused(f"{self._file_name}: {label}: {shown} is not accepted: {reason}")
        if domain not in _ONNX_DOMAINS and domain != _CONTRIBUTED_DOMAIN:
            raise ModelRefused(
                f'{self._file_name}: {label}: operator domain "{domain}" is unknown, want ai.onnx, '
                "ai.onnx.ml, com.microsoft or a function inside the model; export the model with "
                "standard operators"
            )
        version = opsets.get(domain)
        if version is None:
            self._refuse(f'{label}: the model imports no opset of "{domain or "ai.onnx"}"')
        if domain == _CONTRIBUTED_DOMAIN:
            return
        schema = self._schema(node.op_type, version, domain)
        if schema is None:
            raise ModelRefused(
                f"{self._file_name}: {label}: operator {shown} is unknown at opset {version}; "
                "export the model with standard operators"
            )
        self._check_arity(node, schema, label)

    def _schema(self, op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
        key = (domain, op_type, version)
        if key not in self._schemas:
            try:
                self._schemas[key] = onnx.defs.get_schema(op_type, version, domain)
            except onnx.defs.SchemaError:
                self._schemas[key] = None
        return self._schemas[key]

    def _check_arity(self, node: onnx.NodeProto, schema: onnx.defs.OpSchema, label: str) -> None:
        for what, got, low, high in (
            ("inputs", len(node.input), schema.min_input, schema.max_input),
            ("outputs", len(node.output), schema.min_output, schema.max_output),
        ):
            if not low <= got <= high:
                want = f"{low}" if low == high else f"{low} to {high}"
                self._refuse(f"{label}: got {got} {what}, want {want}")


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {plain_domain(opset.domain): int(opset.version) for opset in imports}


def _first_doubled(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
