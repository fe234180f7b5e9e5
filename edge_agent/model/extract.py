"""How a run of nodes becomes a model file of its own, with its constants beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import onnx

from edge_agent.errors import ModelRefused, StorageError
from edge_agent.model.cuts import check_passed, crossing
from edge_agent.model.external import copy_external, is_external, read_external
from edge_agent.model.graph import ModelGraph
from edge_agent.model.scopes import node_tensors, reads
from edge_agent.model.values import element_type_of, tensor_bytes, type_of_text, value_info_of
from edge_agent.model.weights import OUTSIDE_BYTES
from edge_agent.tensors import TensorName, ValueSpecs

_Proto = TypeVar("_Proto", bound=onnx.NodeProto)
_PAGE_BYTES = 4096
_MIN_IR_VERSION = 4
"""The first in which an initializer need not be an input as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedSubgraph:
    """A subgraph as a model file of its own."""

    path: Path
    weights: Path | None
    """The file beside it with its larger constants, if it has any."""
    inputs: tuple[TensorName, ...]
    """Graph inputs that are read inside, then values from before it, in topological order, then
    inputs with a default."""
    outputs: tuple[TensorName, ...]


def extract(
    graph: ModelGraph,
    start: int,
    stop: int,
    destination: Path,
    specs: ValueSpecs,
    *,
    is_fixed: bool = False,
) -> ExtractedSubgraph:
    """Write nodes [start, stop) of `graph` as a model of their own to `destination`.

    Inputs and outputs of the model keep the types and dimensions that it declares; values at a cut
    and inside get those of `specs`, so give specs of fixed shapes only for a model that will run
    with these; with `is_fixed`, inputs and outputs of the model get them too. Outputs are what is
    read behind `stop` and the outputs of the model produced inside. Outputs of the model that are
    constants belong to the subgraph that starts at 0; inputs that are outputs are passed through
    only by the whole model. Constants of 4 KiB and more go to a file beside it,
    `<destination>.weights`; those that lie outside of a model in the same folder stay where they
    are.

    Raises:
        StorageError: a file cannot be written.
        ModelRefused: a value at the start or the stop cannot be passed on, or external data
            cannot be read.
    """
    if not 0 <= start <= stop <= len(graph.nodes):
        raise ValueError(f"got nodes [{start}, {stop}), want a part of [0, {len(graph.nodes)})")
    inputs = _inputs(graph, start, stop, specs)
    outputs = _outputs(graph, start, stop, specs)
    return _write(graph, range(start, stop), inputs, outputs, destination, specs, is_fixed)


def extract_branch(
    graph: ModelGraph,
    positions: Sequence[int],
    destination: Path,
    specs: ValueSpecs,
    *,
    is_fixed: bool = False,
) -> ExtractedSubgraph:
    """Write the nodes at ascending `positions`, which need not be neighbours, as `extract` does.

    They are branches of a fork: what they read was computed before the first of them, or by one
    of them. Outputs are what other nodes read and the outputs of the model among what they give.

    Raises:
        StorageError, ModelRefused: as `extract`.
    """
    inside = frozenset(positions)
    used = {name for at in positions for name in graph.reads[at]}
    wanted = set(graph.outputs)
    made = [name for at in positions for name in graph.nodes[at].output if name]
    inputs = [n for n, producer in graph.producers.items() if n in used and producer not in inside]
    outputs = [n for n in made if n in wanted or not inside.issuperset(graph.users.get(n, ()))]
    check_passed(graph, (*inputs, *outputs), specs)
    inputs += [name for name in graph.overridable if name in used]
    return _write(graph, positions, inputs, outputs, destination, specs, is_fixed)


def _write(
    graph: ModelGraph,
    positions: Sequence[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    destination: Path,
    specs: ValueSpecs,
    is_fixed: bool,
) -> ExtractedSubgraph:
    used = {name for at in positions for name in graph.reads[at]}
    used.update(inputs, outputs)
    nodes = [*_constant_nodes(graph, used), *(graph.nodes[at] for at in positions)]
    model = onnx.ModelProto(
        ir_version=max(graph.model.ir_version, _MIN_IR_VERSION), producer_name="edge-agent"
    )
    model.opset_import.extend(graph.model.opset_import)
    model.graph.name = graph.model.graph.name or "graph"
    known = specs.tensors if is_fixed else {}
    declared = {v.name: v for v in graph.model.graph.input if v.name not in known}
    model.graph.input.extend(_value(name, declared, specs) for name in inputs)
    # An output that later nodes read is no input with what is declared of it: that may be wrong.
    declared = {v.name: v for v in graph.model.graph.output if v.name not in known} | declared
    model.graph.output.extend(_value(name, declared, specs) for name in outputs)
    model.graph.value_info.extend(_inner_values(nodes, set(outputs), specs))
    try:
        weights = _write_weights(graph, nodes, used, model, destination)
    except OSError as error:
        raise _unwritable(destination, error) from error
    write_graph(model, destination)
    return ExtractedSubgraph(
        path=destination,
        weights=weights,
        inputs=tuple(TensorName(name) for name in inputs),
        outputs=tuple(TensorName(name) for name in outputs),
    )


def _inputs(graph: ModelGraph, start: int, stop: int, specs: ValueSpecs) -> list[str]:
    if start == 0 and stop == len(graph.nodes):
        return [value.name for value in graph.model.graph.input if _is_asked_for(graph, value.name)]
    if start > 0:
        # Refuses what cannot cross; graph inputs read only inside are not in the cut before it.
        crossing(graph, start, specs)
    used = {name for names in graph.reads[start:stop] for name in names}
    if start == 0:
        used.update(name for name in graph.outputs if graph.is_constant(name))
    fed = [n for n, producer in graph.producers.items() if producer < start and n in used]
    return [*fed, *(name for name in graph.overridable if name in used)]


def _is_asked_for(graph: ModelGraph, name: str) -> bool:
    """Whether a declared input stays one: not if ONNX Runtime takes it for a constant (IR 3)."""
    return name in graph.producers or graph.model.ir_version >= _MIN_IR_VERSION


def _outputs(graph: ModelGraph, start: int, stop: int, specs: ValueSpecs) -> list[str]:
    n = len(graph.nodes)
    if start == 0 and stop == n:
        return list(graph.outputs)
    if stop < n:
        crossing(graph, stop, specs)
    given = [name for name in graph.outputs if start == 0 and graph.is_constant(name)]
    wanted = set(graph.outputs)
    given += [
        name
        for name, producer in graph.producers.items()
        if start <= producer < stop and (name in wanted or graph.users.get(name, (-1,))[-1] >= stop)
    ]
    return given


def _constant_nodes(graph: ModelGraph, used: set[str]) -> list[onnx.NodeProto]:
    """The constant nodes behind `used`, in order; what they read is added to `used`."""
    found = []
    for node in reversed(graph.constant_nodes):
        if not used.isdisjoint(node.output):
            used.update(reads(node))
            found.append(node)
    return found[::-1]


def write_graph(model: onnx.ModelProto, destination: Path) -> None:
    """Write a model whose large constants lie outside of it.

    Raises:
        StorageError: the file cannot be written.
        ModelRefused: the graph alone is above 2 GiB.
    """
    try:
        content = model.SerializeToString()
    except ValueError as error:
        raise ModelRefused(
            f"{destination.name}: the subgraph is larger than 2 GiB without its weights"
        ) from error
    try:
        destination.write_bytes(content)
    except OSError as error:
        raise _unwritable(destination, error) from error


def _unwritable(destination: Path, error: OSError) -> StorageError:
    return StorageError(f"{destination}: cannot be written: {error.strerror}; free some space")


def _write_weights(
    graph: ModelGraph,
    nodes: Iterable[onnx.NodeProto],
    used: set[str],
    model: onnx.ModelProto,
    destination: Path,
) -> Path | None:
    """Complete `model`; returns the file beside it with its larger constants, if any."""
    weights = destination.with_name(destination.name + ".weights")
    with open(weights, "wb") as file:
        pool = _Pool(graph, file, weights.name)
        model.functions.extend(pool.settled(function) for function in graph.model.functions)
        model.graph.node.extend(pool.settled(node) for node in nodes)
        for name, tensor in graph.constants.items():
            if name in used:
                pool.store(tensor, model.graph.initializer)
        for name, sparse in graph.sparse_constants.items():
            if name in used:
                model.graph.sparse_initializer.append(pool.settled(sparse))
        is_empty = file.tell() == 0
    if is_empty:
        weights.unlink()
    return None if is_empty else weights


class _Pool:
    """Writes constants into the file beside the model, one after the other."""

    def __init__(self, graph: ModelGraph, file: BinaryIO, location: str) -> None:
        self._folder = graph.path.parent
        self._model_name = graph.path.name
        self._file = file
        self._location = location
        self._is_in_place = self._folder == Path(file.name).parent
        """What lies outside of the model lies where it may be referred to from the part too."""

    def store(self, tensor: onnx.TensorProto, into: list[onnx.TensorProto]) -> None:
        """Add a constant to the initializers `into`, large ones by reference."""
        if self._is_in_place and is_external(tensor):
            into.append(tensor)
            return
        is_copied = is_external(tensor)
        is_small = tensor_bytes(tensor) < OUTSIDE_BYTES
        content = None if is_copied or is_small else self._content(tensor)
        if is_small or not (is_copied or content):
            into.append(self.settled(tensor))
            return
        # Aligned so that the runtime can map it.
        self._file.write(b"\0" * (-self._file.tell() % _PAGE_BYTES))
        offset_bytes = self._file.tell()
        if content is not None:
            self._file.write(content)
        else:
            copy_external(tensor, self._folder, self._model_name, self._file)
        stored = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        stored.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", self._location),
            ("offset", str(offset_bytes)),
            ("length", str(self._file.tell() - offset_bytes)),
        ):
            stored.external_data.add(key=key, value=value)
        into.append(stored)

    def _content(self, tensor: onnx.TensorProto) -> bytes | None:
        """The raw bytes of a `tensor` that is stored in the model file; None if they are in a
        typed field and numpy cannot help."""
        if tensor.HasField("raw_data"):
            return bytes(tensor.raw_data)
        element_type = element_type_of(tensor.data_type)
        dtype = None if element_type is None else element_type.numpy_dtype
        if dtype is None:
            return None
        return bytes(onnx.numpy_helper.to_array(tensor).astype(dtype.newbyteorder("<")).tobytes())

    def settled(self, proto: _Proto) -> _Proto:
        """`proto`, or a copy of it with all external data taken inside: their files stay behind."""
        if self._is_in_place or not any(is_external(tensor) for tensor in _tensors(proto)):
            return proto
        copy: _Proto = type(proto)()
        copy.CopyFrom(proto)
        for tensor in _tensors(copy):
            if is_external(tensor):
                content = read_external(tensor, self._folder, self._model_name)
                del tensor.external_data[:]
                tensor.data_location = onnx.TensorProto.DEFAULT
                tensor.raw_data = content
        return copy


def _tensors(proto: _Proto) -> list[onnx.TensorProto]:
    if isinstance(proto, onnx.TensorProto):
        return [proto]
    if isinstance(proto, onnx.SparseTensorProto):
        return [proto.values, proto.indices]
    if isinstance(proto, onnx.FunctionProto):
        return [tensor for node in proto.node for tensor in node_tensors(node)]
    return list(node_tensors(proto))


def _value(
    name: str,
    declared: Mapping[str, onnx.ValueInfoProto],
    specs: ValueSpecs,
) -> onnx.ValueInfoProto:
    found, spec = declared.get(name), specs.tensors.get(TensorName(name))
    other = specs.others.get(TensorName(name))
    if found is not None and (found.HasField("type") or spec is None):
        return found
    if spec is not None:
        return value_info_of(spec)
    return onnx.ValueInfoProto(name=name, type=type_of_text(other) if other else None)


def _inner_values(
    nodes: Iterable[onnx.NodeProto], outputs: set[str], specs: ValueSpecs
) -> Iterator[onnx.ValueInfoProto]:
    names = (name for node in nodes for name in node.output if name not in outputs)
    for name in names:
        spec = specs.tensors.get(TensorName(name))
        if spec is not None:
            yield value_info_of(spec)
