"""Values that pass from one subgraph to the next channels-last, so that no transpose stands between
two subgraphs that both compute so.

Such a value crosses under a name of its own, with its axes in the other order: the subgraph that
computes it ends with a transpose, those that read it begin with the inverse one, and both cancel
with the transposes that the channels-last layout puts there (ours on the processor, ONNX Runtime's
elsewhere).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from edge_agent.errors import StorageError
from edge_agent.model.graph import ModelGraph
from edge_agent.tensors import ElementType, TensorName, ValueSpecs

_SUFFIX = ":channels-last"
_TO_LAST = (0, 2, 3, 1)
_TO_FIRST = (0, 3, 1, 2)
_FLOATS = frozenset({ElementType.FLOAT32, ElementType.FLOAT16})
_BYTES = frozenset({ElementType.INT8, ElementType.UINT8})


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A subgraph of a division, as its borders see it."""

    start: int
    stop: int
    """Its nodes are [start, stop)."""
    is_last: bool
    """Whether it computes channels-last."""
    moves_bytes: bool
    """Whether it can transpose 8-bit integers."""


def last_between(
    graph: ModelGraph, neighbours: Sequence[Neighbour], specs: ValueSpecs
) -> frozenset[TensorName]:
    """Values of four axes that cross only between `neighbours` that compute channels-last.

    `neighbours` hold all nodes of `graph`, in order. Inputs and outputs of the model stay as they
    are, because users give and get them.
    """
    owners = {at: n for n in neighbours for at in range(n.start, n.stop)}
    found = set()
    for name, producer in graph.producers.items():
        if producer not in owners or name in graph.outputs or name + _SUFFIX in graph.producers:
            continue
        computing = owners[producer]
        reading = {owners[at] for at in graph.users.get(name, ())} - {computing}
        spec = specs.tensors.get(TensorName(name))
        if not reading or spec is None or spec.dims is None or len(spec.dims) != len(_TO_LAST):
            continue
        touching = (computing, *reading)
        kinds = _FLOATS | (_BYTES if all(n.moves_bytes for n in touching) else frozenset())
        if spec.element_type in kinds and all(n.is_last for n in touching):
            found.add(TensorName(name))
    return frozenset(found)


def write_last(source: Path, destination: Path, names: Iterable[TensorName]) -> None:
    """Write the subgraph at `source` to `destination`, in the same folder, so that those of its
    inputs and outputs that are in `names` cross channels-last.

    Raises: StorageError: a file cannot be read or written.
    """
    wanted = set(names)
    try:
        model = onnx.load(source, load_external_data=False)
        graph = model.graph
        given = [value for value in graph.input if value.name in wanted]
        told = [value for value in graph.output if value.name in wanted]
        first = [_transpose(v.name + _SUFFIX, v.name, _TO_FIRST) for v in given]
        behind = [_transpose(v.name, v.name + _SUFFIX, _TO_LAST) for v in told]
        nodes = [*first, *graph.node, *behind]
        del graph.node[:]
        graph.node.extend(nodes)
        known = {value.name for value in graph.value_info}
        for value in (*given, *told):
            if value.name not in known:
                graph.value_info.append(value)
            _reorder(value)
        onnx.save(model, destination)
    except OSError as error:
        raise StorageError(f"{destination}: cannot be written: {error.strerror}") from error


def count_transposes(path: Path) -> int:
    """How many transposes of four axes the graph at `path` has."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    orders = (a.ints for n in nodes if n.op_type == "Transpose" for a in n.attribute)
    return sum(len(order) == len(_TO_LAST) for order in orders)


def crossing_value(values: Mapping[str, Any], name: str) -> Any:
    """The value that crosses under `name`, of `values` as the model knows them.

    Raises: KeyError if there is none.
    """
    if name in values or not name.endswith(_SUFFIX):
        return values[name]
    return np.ascontiguousarray(np.transpose(values[name.removesuffix(_SUFFIX)], _TO_LAST))


def is_crossing(values: Mapping[str, Any], name: str) -> bool:
    """Whether `crossing_value` knows `name`."""
    return name in values or (name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX) in values)


def _transpose(before: str, after: str, order: Sequence[int]) -> onnx.NodeProto:
    name = f"{before} to {after}"
    return helper.make_node("Transpose", [before], [after], name=name, perm=list(order))


def _reorder(value: onnx.ValueInfoProto) -> None:
    value.name += _SUFFIX
    if not value.type.tensor_type.HasField("shape"):
        return
    dims = value.type.tensor_type.shape.dim
    ordered = [onnx.TensorShapeProto.Dimension() for _ in _TO_LAST]
    for dim, axis in zip(ordered, _TO_LAST, strict=True):
        dim.CopyFrom(dims[axis])
    del dims[:]
    dims.extend(ordered)
