"""What must hold between the nodes of a graph: operators known, every name produced just once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx

from edge_agent.errors import ModelRefused
from edge_agent.model.operators import OperatorRules, operator_rules
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
_EXPORT_AGAIN = "export the model again"
_Key = tuple[str, str, str]


class _Broken(Exception):
    """A rule is broken; the places around it are put in front on the way out."""


@contextmanager
def _inside(place: str) -> Iterator[None]:
    try:
        yield
    except _Broken as broken:
        raise _Broken(f"{place}{broken}") from None


class _Scope:
    """The names that nodes may read: own ones, and those around."""

    def __init__(
        self, outer: _Scope | None, names: Iterable[str], *, in_function: bool = False
    ) -> None:
        self._outer = outer
        self.in_function: bool = outer.in_function if outer is not None else in_function
        self.own: dict[str, int | None] = dict.fromkeys(names)
        """The index of the node that gives a name; None for inputs and initializers."""

    def __contains__(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.own:
                return True
            scope = scope._outer
        return False


class GraphRules:
    """The rules for one model, with what its file defines: opsets and functions."""

    def __init__(self, model: onnx.ModelProto, file_name: str) -> None:
        self._model = model
        self._file_name = file_name
        self._functions: set[_Key] = {
            (plain_domain(f.domain), f.name, f.overload) for f in model.functions
        }
        self._known: dict[tuple[str, str, int], OperatorRules | None] = {}

    def check(self) -> None:
        """Check the graph, all bodies and all functions.

        Raises:
            ModelRefused: a rule is broken; the message names the node.
        """
        try:
            self._check_model()
        except _Broken as broken:
            raise ModelRefused(f"{self._file_name}: {broken}") from None

    def _check_model(self) -> None:
        graph = self._model.graph
        if not graph.output:
            raise _Broken(
                f"the graph has no outputs, so nothing could be asked of it; {_EXPORT_AGAIN}"
            )
        opsets = _versions(self._model.opset_import)
        self._check_graph(graph, None, opsets)
        for function in self._model.functions:
            with _inside(f'function "{function.name}", '):
                self._check_function(function, opsets)

    def _check_function(self, function: onnx.FunctionProto, opsets: Mapping[str, int]) -> None:
        domain = plain_domain(function.domain)
        if self._rules(function.name, opsets.get(domain), domain) is not None:
            raise _Broken(
                f"which hides the operator of that name in {domain or 'ai.onnx'}; give the "
                "function a domain of its own"
            )
        scope = _Scope(None, function.input, in_function=True)
        self._check_nodes(function.node, scope, _versions(function.opset_import))
        _check_given(function.output, scope)

    def _check_graph(
        self, graph: onnx.GraphProto, outer: _Scope | None, opsets: Mapping[str, int]
    ) -> None:
        inputs = [value.name for value in graph.input]
        held = [tensor.name for tensor in graph.initializer]
        held += [tensor.values.name for tensor in graph.sparse_initializer]
        for names, what in ((inputs, "is declared"), (held, "is stored")):
            doubled = _first_doubled(names)
            if doubled is not None:
                kind = "input" if names is inputs else "initializer"
                raise _Broken(f'{kind} "{doubled}" {what} twice; {_EXPORT_AGAIN}')
        scope = _Scope(outer, (*inputs, *held))
        self._check_nodes(graph.node, scope, opsets)
        _check_given((value.name for value in graph.output), scope)

    def _check_nodes(
        self, nodes: Sequence[onnx.NodeProto], scope: _Scope, opsets: Mapping[str, int]
    ) -> None:
        for index, node in enumerate(nodes):
            for name in filter(None, node.output):
                if name in scope.own:
                    giver = scope.own[name]
                    already = (
                        "an input or initializer of the graph"
                        if giver is None
                        else f"the output of {node_label(giver, nodes[giver])}"
                    )
                    raise _Broken(
                        f'{node_label(index, node)}: output "{name}" is already {already}; '
                        f"{_EXPORT_AGAIN}"
                    )
                scope.own[name] = index
        for index, node in enumerate(nodes):
            self._check_node(index, node, scope, opsets)
        order_nodes(nodes, [reads(node) for node in nodes], self._file_name)

    def _check_node(
        self, index: int, node: onnx.NodeProto, scope: _Scope, opsets: Mapping[str, int]
    ) -> None:
        reason = self._reason_against(node, opsets)
        if reason is not None:
            raise _Broken(f"{node_label(index, node)}: {reason}")
        for attribute in node.attribute if not scope.in_function else ():
            if attribute.ref_attr_name:
                raise _Broken(
                    f'{node_label(index, node)}: attribute "{attribute.name}" is that of a '
                    f"function, but the node stands in none; {_EXPORT_AGAIN}"
                )
        for name in filter(None, node.input):
            if name not in scope:
                raise _Broken(
                    f'{node_label(index, node)}: input "{name}" is produced by nothing; '
                    f"{_EXPORT_AGAIN}"
                )
        for body in bodies(node):
            with _inside(f"{node_label(index, node)}, in its body: "):
                self._check_graph(body, scope, opsets)

    def _reason_against(self, node: onnx.NodeProto, opsets: Mapping[str, int]) -> str | None:
        """What is wrong with the operator of `node` and how it is used, with what to do."""
        domain = plain_domain(node.domain)
        if (domain, node.op_type, node.overload) in self._functions:
            return None
        shown = f"{domain or 'ai.onnx'}::{node.op_type}"
        refused = _REFUSED_OPERATORS.get((domain, node.op_type))
        if refused is not None:
            return f"{shown} is not accepted: {refused}"
        if domain not in _ONNX_DOMAINS and domain != _CONTRIBUTED_DOMAIN:
            return (
                f'operator domain "{domain}" is unknown, want ai.onnx, ai.onnx.ml, com.microsoft '
                "or a function inside the model; export the model with standard operators"
            )
        version = opsets.get(domain)
        if version is None:
            return f'the model imports no opset of "{domain or "ai.onnx"}"; {_EXPORT_AGAIN}'
        if domain == _CONTRIBUTED_DOMAIN:
            return None
        rules = self._rules(node.op_type, version, domain)
        if rules is None:
            return (
                f"operator {shown} is unknown at opset {version}; export the model with standard "
                "operators"
            )
        broken = rules.broken_by(node)
        return None if broken is None else f"{broken}; {_EXPORT_AGAIN}"

    def _rules(self, op_type: str, version: int | None, domain: str) -> OperatorRules | None:
        if version is None or domain not in _ONNX_DOMAINS:
            return None
        key = (domain, op_type, version)
        if key not in self._known:
            self._known[key] = operator_rules(op_type, version, domain)
        return self._known[key]


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {plain_domain(opset.domain): int(opset.version) for opset in imports}


def _check_given(outputs: Iterable[str], scope: _Scope) -> None:
    for name in outputs:
        if name not in scope:
            raise _Broken(f'output "{name}" is produced by nothing; {_EXPORT_AGAIN}')


def _first_doubled(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
