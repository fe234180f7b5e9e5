"""How large a model gets when the functions in its file are written out, as every runtime does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from edge_agent.errors import ModelRefused
from edge_agent.model.scopes import all_nodes, deep_nodes, plain_domain

FunctionKey = tuple[str, str, str]


def function_key(proto: onnx.FunctionProto) -> FunctionKey:
    """What the calls of a function name it by."""
    return plain_domain(proto.domain), proto.name, proto.overload


def called(node: onnx.NodeProto) -> FunctionKey:
    """The function that `node` calls, if the model has one of that name."""
    return plain_domain(node.domain), node.op_type, node.overload


@dataclass(slots=True)
class _Extent:
    nodes: int
    depth: int


def expanded_nodes(model: onnx.ModelProto, max_depth: int, file_name: str) -> int:
    """How many nodes `model` has when every call is replaced by the nodes of what it calls; those
    of functions that nothing calls count too.

    Raises:
        ModelRefused: functions call each other more than `max_depth` deep, or themselves, or two
            have the same name.
    """
    if not model.functions:
        return sum(1 for _ in all_nodes(model.graph))
    return _Expansion(model, max_depth, file_name).nodes(model.graph)


class _Expansion:
    def __init__(self, model: onnx.ModelProto, max_depth: int, file_name: str) -> None:
        self._functions = {function_key(f): f for f in model.functions}
        self._max_depth = max_depth
        self._file_name = file_name
        self._extents: dict[FunctionKey, _Extent] = {}
        if len(self._functions) < len(model.functions):
            raise ModelRefused(f"{file_name}: a function is defined twice; export the model again")

    def nodes(self, graph: onnx.GraphProto) -> int:
        total = self._extent(all_nodes(graph), 0).nodes
        return total + sum(
            self._of_function(key, 1).nodes for key in self._functions if key not in self._extents
        )

    def _extent(self, nodes: Iterable[onnx.NodeProto], depth: int) -> _Extent:
        calls: dict[FunctionKey, int] = {}
        found = _Extent(0, 0)
        for node in nodes:
            found.nodes += 1
            key = called(node)
            if key in self._functions:
                calls[key] = calls.get(key, 0) + 1
        for key, times in calls.items():
            inner = self._of_function(key, depth + 1)
            found.nodes += times * (inner.nodes - 1)
            found.depth = max(found.depth, inner.depth)
        return found

    def _of_function(self, key: FunctionKey, depth: int) -> _Extent:
        known = self._extents.get(key)
        if known is None:
            self._check_depth(key, depth)
            known = self._extent(deep_nodes(self._functions[key].node), depth)
            known.depth += 1
            self._extents[key] = known
        self._check_depth(key, depth + known.depth - 1)
        return known

    def _check_depth(self, key: FunctionKey, depth: int) -> None:
        if depth > self._max_depth:
            raise ModelRefused(
                f'{self._file_name}: function "{key[1]}" is called more than {self._max_depth} '
                "functions deep, or calls itself; write the functions out, or simplify the model"
            )


def holding(
    functions: Iterable[onnx.FunctionProto], operators: frozenset[tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """(domain, operator) of `operators` and of every function that comes to use one of them."""
    inside: Mapping[tuple[str, str], set[tuple[str, str]]] = {
        (plain_domain(f.domain), f.name): {called(n)[:2] for n in deep_nodes(f.node)}
        for f in functions
    }
    found = set(operators)
    while new := {name for name, used in inside.items() if name not in found and used & found}:
        found |= new
    return frozenset(found)
