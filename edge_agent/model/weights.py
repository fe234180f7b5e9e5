"""How constants leave a graph for a place that names them by content, and what a graph is then
called: graphs that compute the same from the same weights have one fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import onnx

from edge_agent.errors import ModelRefused
from edge_agent.model.external import ExternalPlace, StoredChunks, external_place, is_external
from edge_agent.model.scopes import bodies, model_tensors, plain_domain
from edge_agent.model.values import raw_bytes, tensor_bytes

Chunks = Iterable[bytes | memoryview]
ReadExternal = Callable[[ExternalPlace], Chunks]
"""Gives the bytes that lie outside of a model file."""

OUTSIDE_BYTES = 4096
"""Constants of this size and more lie outside of the graph. Smaller ones may be shapes and axes,
which inference and optimisers want to see, and would take a whole page of the disk each."""
_LARGEST_GRAPH_BYTES = 2**31 - 1
_VALUE_FIELDS = (
    *("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data"),
    *("uint64_data", "external_data", "data_location"),
)
_FORM = re.compile(r"prepacked_\d+")
_BY_CONTENT = re.compile(r"(?:.*/)?([0-9a-f]{64})")


class TensorPlace(Protocol):
    """Where tensors are kept, each once."""

    def tensor(self, chunks: Chunks) -> str:
        """Keep the bytes of a tensor; returns their location as external data name it.

        The last part of the location is their SHA-256.
        Raises: StorageError; what `chunks` raises.
        """
        ...


class FormPlace(TensorPlace, Protocol):
    """Where forms made of tensors are kept too, beside them."""

    def form(self, location: str, chunks: Chunks) -> int:
        """Keep a form of the tensor at `location`; returns its offset in bytes there.

        Raises: StorageError; what `chunks` raises.
        """
        ...


def move_out(
    model: onnx.ModelProto, file_name: str, read_external: ReadExternal, place: TensorPlace
) -> bytes:
    """Move the constants of `model`, which is changed, to `place`, one after the other; returns
    the graph that is left, serialised.

    What ONNX Runtime does not take from outside is taken inside: attributes of other operators
    than Constant, and small tensors. `file_name` is for messages.

    Raises:
        ModelRefused: the place of an external tensor is refused, or what is taken inside is above
            2 GiB; what `read_external` raises.
        StorageError: a tensor cannot be kept.
    """
    moved: dict[ExternalPlace, str] = {}
    left_bytes = _LARGEST_GRAPH_BYTES
    movable = list(_movable(model))  # kept, so that each is one object as long as this runs
    places = {id(tensor) for tensor in movable}
    for tensor in model_tensors(model):
        is_moved = id(tensor) in places and tensor_bytes(tensor) >= OUTSIDE_BYTES
        if not is_external(tensor):
            if is_moved:
                _refer(tensor, place.tensor([raw_bytes(tensor)]))
            continue
        found = external_place(tensor, file_name)
        if not is_moved:
            left_bytes -= found.length_bytes
            if left_bytes < 0:
                raise ModelRefused(
                    f'{file_name}: tensor "{tensor.name}": more than 2 GiB of external data belong '
                    "to sparse tensors and attributes; make them dense initializers"
                )
            _take_inside(tensor, read_external(found))
            continue
        if found not in moved:
            moved[found] = place.tensor(read_external(found))
        _refer(tensor, moved[found])
    return _serialised(model, file_name)


def adopt_compiled(graph: Path, place: FormPlace) -> bytes:
    """The graph that ONNX Runtime saved, with its tensors and their prepacked forms in `place`.

    Raises:
        ModelRefused: what it saved is not understood, or cut short.
        StorageError: a tensor cannot be kept.
    """
    model = onnx.load(graph, load_external_data=False)
    for tensor in model_tensors(model):
        if not is_external(tensor):
            continue
        forms = [e for e in tensor.external_data if _FORM.fullmatch(e.key)]
        kept = [(e.key, e.value) for e in forms]
        for entry in forms:
            tensor.external_data.remove(entry)
        found = external_place(tensor, graph.name)
        if not forms and tensor_bytes(tensor) < OUTSIDE_BYTES:
            _take_inside(tensor, StoredChunks(found, graph.parent))
            continue
        location = place.tensor(StoredChunks(found, graph.parent))
        _refer(tensor, location)
        for key, value in kept:
            moved = _moved_forms(value, found.location, location, graph.parent, place)
            tensor.external_data.add(key=key, value=moved)
    return _serialised(model, graph.name)


def _moved_forms(value: str, source: str, location: str, folder: Path, place: FormPlace) -> str:
    """`KERNEL+HASH|offset;length;flag|…` with the offsets that the forms have in their new place.

    That they lie in the file of their tensor is implied. (As ONNX Runtime 1.24 to 1.32 write it.)
    """
    kernel, *forms = value.split("|")
    moved = [kernel]
    for form in forms:
        match form.split(";"):
            case [offset, length, *rest] if offset.isdigit() and length.isdigit():
                found = ExternalPlace(
                    location=source, offset_bytes=int(offset), length_bytes=int(length)
                )
            case _:
                raise ModelRefused(f"ONNX Runtime saved a prepacked form as {value[:80]!r}")
        if found.length_bytes:
            offset = str(place.form(location, StoredChunks(found, folder)))
        moved.append(";".join((offset, length, *rest)))
    return "|".join(moved)


def fingerprint(path: Path) -> str:
    """SHA-256, in hexadecimal, of what the model at `path` computes: its graph and its weights,
    without doc strings, the names of model and graph, and the places of external data.

    Raises:
        ModelRefused: external data cannot be read.
    """
    model = onnx.load(path, load_external_data=False)
    for tensor in model_tensors(model):
        if is_external(tensor):
            found = external_place(tensor, path.name)
            del tensor.external_data[:]
            tensor.external_data.add(key="sha256", value=_content_hash(found, path.parent))
    bare = onnx.ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.CopyFrom(model.graph)
    bare.graph.ClearField("name")
    _undocument(bare)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def _content_hash(found: ExternalPlace, folder: Path) -> str:
    named = _BY_CONTENT.fullmatch(found.location)
    if named is not None and found.offset_bytes == 0:
        return named[1]
    digest = hashlib.sha256()
    for chunk in StoredChunks(found, folder):
        digest.update(chunk)
    return digest.hexdigest()


def _undocument(model: onnx.ModelProto) -> None:
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    for function in model.functions:
        _clear(function, "doc_string", "metadata_props")
        _clear_all(function.value_info)
    while graphs or nodes:
        for graph in graphs:
            _clear(graph, "doc_string", "metadata_props")
            for values in (graph.input, graph.output, graph.value_info, graph.initializer):
                _clear_all(values)
            nodes.extend(graph.node)
        _clear_all(nodes)
        graphs, nodes = [body for node in nodes for body in bodies(node)], []


def _clear_all(protos: Sequence[onnx.ValueInfoProto]) -> None:
    for proto in protos:
        _clear(proto, "doc_string", "metadata_props")


def _clear(proto: onnx.ValueInfoProto, *fields: str) -> None:
    for name in fields:
        if name in proto.DESCRIPTOR.fields_by_name:
            proto.ClearField(name)


def _movable(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors that ONNX Runtime, since 1.24 at the latest, takes from outside wherever they
    are: initializers and Constant nodes of the graph, of bodies and of functions."""
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        for graph in graphs:
            yield from graph.initializer
            nodes.extend(graph.node)
        for node in nodes:
            if node.op_type == "Constant" and not plain_domain(node.domain):
                yield from (a.t for a in node.attribute if a.name == "value")
        graphs, nodes = [body for node in nodes for body in bodies(node)], []


def _refer(tensor: onnx.TensorProto, location: str) -> None:
    """Let the values of `tensor` be those at the beginning of a file."""
    _forget_values(tensor)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", str(tensor_bytes(tensor)))):
        tensor.external_data.add(key=key, value=value)


def _take_inside(tensor: onnx.TensorProto, chunks: Chunks) -> None:
    content = b"".join(chunks)
    _forget_values(tensor)
    tensor.raw_data = content


def _forget_values(tensor: onnx.TensorProto) -> None:
    for name in _VALUE_FIELDS:
        tensor.ClearField(name)


def _serialised(model: onnx.ModelProto, file_name: str) -> bytes:
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except ValueError as error:
        raise ModelRefused(f"{file_name}: is larger than 2 GiB without its weights") from error
