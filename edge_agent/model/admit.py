"""What makes a model file unfit to be accepted, as far as it shows without running the model."""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from edge_agent.errors import ModelRefused
from edge_agent.model.external import (
    ExternalPlace,
    external_place,
    is_external,
    missing,
    size_of,
    too_short,
)
from edge_agent.model.functions import expanded_nodes
from edge_agent.model.graph_rules import GraphRules
from edge_agent.model.lean import without_weights
from edge_agent.model.scopes import (
    bodies,
    model_nodes,
    model_tensors,
    plain_domain,
    sparse_tensors,
)
from edge_agent.model.text import first_unfit_text
from edge_agent.model.values import element_type_of, interface_spec, stored_elements, tensor_bytes
from edge_agent.tensors import ElementType, TensorName, TensorSpec, size_bytes

_EXPORT_AGAIN = "export the model again"
_MAX_OPSET = 1000
"""No domain is near it."""
_MAX_ELEMENTS = 2**59
"""Of an array, with up to 16 bytes each, so that its bytes are a number below 2**63."""
_TYPED_FIELDS = tuple(
    f"{kind}_data" for kind in ("float", "int32", "string", "int64", "double", "uint64")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """How much of everything a model may have."""

    max_file_bytes: int = 2**31 - 1
    """Of the model file itself: protobuf cannot hold more; external data may be larger."""
    max_nodes: int = 200_000
    """In the graph, all bodies and all functions, these written out at each call."""
    max_initializers: int = 200_000
    """In the graph and all bodies."""
    max_values: int = 1_000_000
    """Declared inner values, attributes, and inputs and outputs of nodes, each."""
    max_bodies: int = 10_000
    """Graphs inside of nodes, for each of which shape inference copies all names around it; and
    functions."""
    max_ends: int = 4096
    """Inputs and outputs, each: as many as a request may have."""
    max_depth: int = 16
    """How deep the bodies of If, Loop and Scan may be nested, and functions call functions."""
    max_rank: int = 32
    """Of inputs, outputs and stored tensors: numpy before 2.0 has no more."""
    max_external_bytes: int = 64 << 30
    """Of all external tensors together, regions that they share counted each time."""
    max_opset: int = onnx.defs.onnx_opset_version()
    """Of ai.onnx: the newest that the installed onnx package has schemas for."""


def read_model(
    path: Path, limits: AdmissionLimits, file_name: str | None = None, *, is_lean: bool = False
) -> onnx.ModelProto:
    """Parse the model file at `path`; its size is checked first, external data are not read.

    `file_name` is for the messages, where `path` is a copy of what the user named. `is_lean`
    leaves larger tensors in the file, which is then named as their external data.

    Raises:
        ModelRefused: there is no such regular file, it is too large, or it is no ONNX model.
    """
    name = file_name or path.name
    model = onnx.ModelProto()
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelRefused(f"{name}: is no regular file; name a model file")
            if status.st_size > limits.max_file_bytes:
                raise ModelRefused(
                    f"{name}: got {status.st_size} bytes, want at most "
                    f"{limits.max_file_bytes}; save the model with external data"
                )
            if status.st_size == 0:
                raise ModelRefused(f"{name}: is empty; copy or download the file again")
            # Mapped, not read: the bytes need not be in memory beside the parsed model.
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                model.ParseFromString(without_weights(view, path.name) if is_lean else view)
    except OSError as error:
        raise ModelRefused(f"{name}: cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise too_much_to_read(name) from error
    except DecodeError as error:
        if "alloc" in str(error):
            raise too_much_to_read(name) from error
        raise ModelRefused(
            f"{name}: is no ONNX model or is cut short (no valid protobuf); copy or download "
            "the file again"
        ) from error
    if not model.HasField("graph"):
        raise ModelRefused(
            f"{name}: has no graph, so it is no ONNX model; name a model file, or download "
            "the file again"
        )
    unfit = first_unfit_text(model)
    if unfit is not None:
        raise ModelRefused(f"{name}: {unfit}; export or download the model again")
    return model


def too_much_to_read(name: str) -> ModelRefused:
    """What is said of a file that takes more memory than sound ones do; `name` is what it is."""
    return ModelRefused(
        f"{name}: reading it takes more memory than a model file of its size should; it is "
        "damaged or made to do harm"
    )


def external_locations(model: onnx.ModelProto, path: Path) -> tuple[str, ...]:
    """The files with external data of `model`, relative to its folder, sorted. Raises: as
    `external_places`."""
    return tuple(sorted({place.location for place in external_places(model, path)}))


def external_places(model: onnx.ModelProto, path: Path) -> frozenset[ExternalPlace]:
    """The places outside of the model file where tensors of `model` lie.

    Raises:
        ModelRefused: a location leaves the folder, or an offset or a length is not valid.
    """
    return frozenset(external_place(t, path.name) for t in model_tensors(model) if is_external(t))


def check(
    model: onnx.ModelProto,
    path: Path,
    folder: Path | None,
    limits: AdmissionLimits,
    runtime_opset: int | None,
) -> None:
    """Refuse `model` for anything that would make it fail and shows without running it.

    `path` is for the messages. External data are looked for in `folder`; with None they are not.
    `runtime_opset` is the newest opset of ai.onnx that the runtime implements, if known.

    Raises:
        ModelRefused: the first thing found that is wrong.
    """
    _check_versions(model, path.name, limits, runtime_opset)
    _check_depth(model, path.name, limits)
    nodes = list(model_nodes(model))
    graphs = [model.graph, *(body for node in nodes for body in bodies(node))]
    _check_counts(model, nodes, graphs, path.name, limits)
    GraphRules(model, path.name).check()
    _check_ends(model, path.name, limits)
    external_bytes = 0
    for tensor in model_tensors(model):
        _check_tensor(tensor, path.name, folder, limits)
        external_bytes += tensor_bytes(tensor) if is_external(tensor) else 0
    if external_bytes > limits.max_external_bytes:
        raise ModelRefused(
            f"{path.name}: got {external_bytes} bytes of external tensors, want at most "
            f"{limits.max_external_bytes}"
        )
    for sparse in sparse_tensors(graphs, nodes):
        _check_sparse(sparse, path.name, limits)


def _check_versions(
    model: onnx.ModelProto, file_name: str, limits: AdmissionLimits, runtime_opset: int | None
) -> None:
    if not 1 <= model.ir_version <= onnx.IR_VERSION:
        raise ModelRefused(
            f"{file_name}: got IR version {model.ir_version}, want 1 to {onnx.IR_VERSION}; export "
            "the model for an older version, or update edge-agent"
        )
    if not model.opset_import:
        raise ModelRefused(f"{file_name}: imports no operator set; {_EXPORT_AGAIN}")
    newest = limits.max_opset if runtime_opset is None else min(limits.max_opset, runtime_opset)
    imported: dict[str, int] = {}
    for opset in (*model.opset_import, *(o for f in model.functions for o in f.opset_import)):
        if plain_domain(opset.domain) == "" and not 1 <= opset.version <= newest:
            raise ModelRefused(
                f"{file_name}: got opset {opset.version} of ai.onnx, want 1 to {newest}; export "
                "the model for an older opset, or update ONNX Runtime"
            )
        if not 1 <= opset.version < _MAX_OPSET:
            raise ModelRefused(
                f'{file_name}: got opset {opset.version} of "{opset.domain}", want 1 or a little '
                f"more; {_EXPORT_AGAIN}"
            )
    for opset in model.opset_import:
        if imported.setdefault(plain_domain(opset.domain), opset.version) != opset.version:
            raise ModelRefused(
                f'{file_name}: imports two opsets of "{opset.domain or "ai.onnx"}"; {_EXPORT_AGAIN}'
            )


def _check_counts(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    graphs: Sequence[onnx.GraphProto],
    file_name: str,
    limits: AdmissionLimits,
) -> None:
    for what, got, want in (
        ("nodes", expanded_nodes(model, limits.max_depth, file_name), limits.max_nodes),
        (
            "initializers",
            sum(len(graph.initializer) + len(graph.sparse_initializer) for graph in graphs),
            limits.max_initializers,
        ),
        ("bodies", len(graphs) - 1, limits.max_bodies),
        ("functions", len(model.functions), limits.max_bodies),
        ("declared values", sum(len(g.value_info) for g in graphs), limits.max_values),
        ("attributes", sum(len(node.attribute) for node in nodes), limits.max_values),
        (
            "inputs and outputs of nodes",
            sum(len(node.input) + len(node.output) for node in nodes),
            limits.max_values,
        ),
    ):
        if got > want:
            raise ModelRefused(f"{file_name}: got {got} {what}, want at most {want}")


def _check_ends(model: onnx.ModelProto, file_name: str, limits: AdmissionLimits) -> None:
    held = _initialized(model)
    inputs = [value for value in model.graph.input if value.name not in held]
    for what, values in (("input", inputs), ("output", model.graph.output)):
        if len(values) > limits.max_ends:
            raise ModelRefused(
                f"{file_name}: got {len(values)} {what}s, want at most {limits.max_ends}"
            )
        for value in values:
            rank = len(value.type.tensor_type.shape.dim)
            if rank > limits.max_rank:
                raise ModelRefused(
                    f'{file_name}: {what} "{value.name}": got {rank} dimensions, want at most '
                    f"{limits.max_rank}"
                )


def _check_depth(model: onnx.ModelProto, file_name: str, limits: AdmissionLimits) -> None:
    layer = [model.graph]
    depth = 0
    function_nodes = [node for function in model.functions for node in function.node]
    while layer or function_nodes:
        nodes = [node for graph in layer for node in graph.node] + function_nodes
        function_nodes = []
        layer = [body for node in nodes for body in bodies(node)]
        depth += 1 if layer else 0
        if depth > limits.max_depth:
            raise ModelRefused(
                f"{file_name}: bodies of If, Loop or Scan are nested more than "
                f"{limits.max_depth} deep; simplify the model"
            )


def _check_tensor(
    tensor: onnx.TensorProto, file_name: str, folder: Path | None, limits: AdmissionLimits
) -> None:
    where = f'{file_name}: tensor "{tensor.name}"'
    element_type = element_type_of(tensor.data_type)
    if element_type is None:
        raise ModelRefused(
            f"{where}: got element type number {tensor.data_type}, which is not known; "
            f"{_EXPORT_AGAIN}"
        )
    if len(tensor.dims) > limits.max_rank:
        raise ModelRefused(
            f"{where}: got {len(tensor.dims)} dimensions, want at most {limits.max_rank}"
        )
    if any(size < 0 for size in tensor.dims):
        raise ModelRefused(f"{where}: got shape {list(tensor.dims)}, want sizes of 0 or more")
    if math.prod(max(1, size) for size in tensor.dims) > _MAX_ELEMENTS:
        # Also where an axis of size 0 leaves none of them: no array has such a shape.
        raise ModelRefused(f"{where}: got shape {list(tensor.dims)}, which no array can have")
    if tensor.HasField("segment"):
        raise ModelRefused(f"{where}: is stored in segments, which nothing reads; {_EXPORT_AGAIN}")
    if is_external(tensor):
        _check_external(tensor, file_name, folder)
        return
    if tensor.HasField("raw_data") and _has_typed_values(tensor):
        raise ModelRefused(f"{where}: its values are stored twice; {_EXPORT_AGAIN}")
    if tensor.HasField("raw_data") and element_type is not ElementType.STRING:
        got, want, unit = len(tensor.raw_data), tensor_bytes(tensor), "bytes"
    else:
        got, want = stored_elements(tensor)
        unit = "values"
    if got != want:
        raise ModelRefused(
            f"{where}: got {got} {unit}, want {want} for {element_type}{list(tensor.dims)}; the "
            f"file is damaged, {_EXPORT_AGAIN}"
        )


def _has_typed_values(tensor: onnx.TensorProto) -> bool:
    return any(len(getattr(tensor, field)) for field in _TYPED_FIELDS)


def _check_sparse(sparse: onnx.SparseTensorProto, file_name: str, limits: AdmissionLimits) -> None:
    """Runtimes make a sparse tensor dense when they load it, and trust its indices."""
    where = f'{file_name}: sparse tensor "{sparse.values.name}"'
    dims = tuple(sparse.dims)
    element_type = element_type_of(sparse.values.data_type)
    if not 0 < len(dims) <= limits.max_rank or any(size < 1 for size in dims):
        raise ModelRefused(f"{where}: got shape {list(dims)[:8]}, want sizes of 1 or more")
    if (
        element_type is None
        or element_type is ElementType.STRING
        or size_bytes(element_type, dims) > limits.max_file_bytes
    ):
        raise ModelRefused(
            f"{where}: got shape {list(dims)}, want at most {limits.max_file_bytes} bytes"
        )
    values, indices = tuple(sparse.values.dims), tuple(sparse.indices.dims)
    if len(values) != 1 or indices not in (values, (*values, len(dims))):
        raise ModelRefused(
            f"{where}: got {list(values)} values at {list(indices)} indices, want a list of "
            f"values, and an index or {len(dims)} for each; {_EXPORT_AGAIN}"
        )
    if sparse.indices.data_type != onnx.TensorProto.INT64 or is_external(sparse.indices):
        raise ModelRefused(f"{where}: want int64 indices inside the model; {_EXPORT_AGAIN}")
    found = onnx.numpy_helper.to_array(sparse.indices)
    bounds = np.array(dims if indices != values else (math.prod(dims),), np.int64)
    if ((found < 0) | (found >= bounds)).any():
        raise ModelRefused(f"{where}: an index is outside of {list(dims)}; {_EXPORT_AGAIN}")


def _check_external(tensor: onnx.TensorProto, file_name: str, folder: Path | None) -> None:
    if tensor.data_type == onnx.TensorProto.STRING:
        raise ModelRefused(
            f'{file_name}: tensor "{tensor.name}": strings cannot be external data; {_EXPORT_AGAIN}'
        )
    place = external_place(tensor, file_name)
    if folder is None:
        return
    found_bytes = size_of(folder, place.location)
    if found_bytes is None:
        raise ModelRefused(missing(tensor, place, file_name, "no such regular file"))
    if found_bytes < place.offset_bytes + place.length_bytes:
        raise ModelRefused(too_short(tensor, place, file_name, found_bytes))


def declared_inputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The inputs that a request gives or may give, first those without a default."""
    held, free = _initialized(model), set(overridable(model))
    specs = [spec for value in model.graph.input if (spec := interface_spec(value)) is not None]
    return (
        *(spec for spec in specs if spec.name not in held),
        *(replace(spec, has_default=True) for spec in specs if spec.name in free),
    )


def declared_outputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The outputs of the model of which the type is declared, each once."""
    values = {value.name: value for value in model.graph.output}
    specs = (interface_spec(value) for value in values.values())
    return tuple(spec for spec in specs if spec is not None)


def overridable(model: onnx.ModelProto) -> tuple[TensorName, ...]:
    """Graph inputs with an initializer as default, which a request may override.

    Up to IR version 3 every initializer had to be listed as an input; ONNX Runtime takes all of
    them for constants and refuses to override one (tried on 1.32), so there are none.
    """
    if model.ir_version < 4:
        return ()
    held = _initialized(model)
    return tuple(TensorName(value.name) for value in model.graph.input if value.name in held)


def _initialized(model: onnx.ModelProto) -> set[str]:
    names = {tensor.name for tensor in model.graph.initializer}
    return names | {tensor.values.name for tensor in model.graph.sparse_initializer}
