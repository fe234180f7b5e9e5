"""What makes a model file unfit to be accepted, as far as it shows without running the model."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

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
from edge_agent.model.graph_rules import GraphRules
from edge_agent.model.scopes import all_nodes, bodies, model_tensors
from edge_agent.model.text import first_damaged_text
from edge_agent.model.values import element_type_of, spec_of, stored_elements, tensor_bytes
from edge_agent.tensors import ElementType, TensorName, TensorSpec

_EXPORT_AGAIN = "export the model again"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """How much of everything a model may have."""

    max_file_bytes: int = 2**31 - 1
    """Of the model file itself: protobuf cannot hold more; external data may be larger."""
    max_nodes: int = 200_000
    max_initializers: int = 200_000
    max_depth: int = 16
    """How deep the bodies of If, Loop and Scan may be nested."""
    max_opset: int = onnx.defs.onnx_opset_version()
    """Of ai.onnx: the newest that the installed onnx package has schemas for."""


def read_model(
    path: Path, limits: AdmissionLimits, file_name: str | None = None
) -> onnx.ModelProto:
    """Parse the model file at `path`; its size is checked first, external data are not read.

    `file_name` is for the messages, where `path` is a copy of what the user named.

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
                model.ParseFromString(view)
    except OSError as error:
        raise ModelRefused(f"{name}: cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ModelRefused(
            f"{name}: is no ONNX model or is cut short (no valid protobuf); copy or download "
            "the file again"
        ) from error
    if not model.HasField("graph"):
        raise ModelRefused(
            f"{name}: has no graph, so it is no ONNX model; name a model file, or download "
            "the file again"
        )
    damaged = first_damaged_text(model)
    if damaged is not None:
        raise ModelRefused(
            f"{name}: got the name {damaged[:40]!r}, which is no UTF-8 text; copy or download "
            "the file again"
        )
    return model


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
    _check_counts(model, path.name, limits)
    rules = GraphRules(model, path.name)
    rules.check()
    for tensor in model_tensors(model):
        _check_tensor(tensor, path.name, folder)


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
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and not 1 <= opset.version <= newest:
            raise ModelRefused(
                f"{file_name}: got opset {opset.version} of ai.onnx, want 1 to {newest}; export "
                "the model for an older opset, or update ONNX Runtime"
            )


def _check_counts(model: onnx.ModelProto, file_name: str, limits: AdmissionLimits) -> None:
    _check_depth(model, file_name, limits)
    nodes = sum(1 for _ in all_nodes(model.graph)) + sum(len(f.node) for f in model.functions)
    initializers = len(model.graph.initializer) + len(model.graph.sparse_initializer)
    for what, got, want in (
        ("nodes", nodes, limits.max_nodes),
        ("initializers", initializers, limits.max_initializers),
    ):
        if got > want:
            raise ModelRefused(f"{file_name}: got {got} {what}, want at most {want}")


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


def _check_tensor(tensor: onnx.TensorProto, file_name: str, folder: Path | None) -> None:
    where = f'{file_name}: tensor "{tensor.name}"'
    element_type = element_type_of(tensor.data_type)
    if element_type is None:
        raise ModelRefused(
            f"{where}: got element type number {tensor.data_type}, which is not known; "
            f"{_EXPORT_AGAIN}"
        )
    if any(size < 0 for size in tensor.dims):
        raise ModelRefused(f"{where}: got shape {list(tensor.dims)}, want sizes of 0 or more")
    if tensor.HasField("segment"):
        raise ModelRefused(f"{where}: is stored in segments, which nothing reads; {_EXPORT_AGAIN}")
    if is_external(tensor):
        _check_external(tensor, file_name, folder)
        return
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
    """The inputs that a request gives: graph inputs without an initializer, tensors only."""
    held = _initialized(model)
    specs = (spec_of(value) for value in model.graph.input if value.name not in held)
    return tuple(spec for spec in specs if spec is not None)


def declared_outputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The outputs of the model that are declared as tensors, each once."""
    values = {value.name: value for value in model.graph.output}
    specs = (spec_of(value) for value in values.values())
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


def unordinary_values(model: onnx.ModelProto) -> tuple[str, ...]:
    """Inputs and outputs that no array can carry, each with what it is, for messages."""
    held = _initialized(model)
    values = [("input", v) for v in model.graph.input if v.name not in held]
    values += [("output", v) for v in model.graph.output]
    return tuple(
        f'{role} "{value.name}" is a {kind.removesuffix("_type").replace("_", " ")}'
        for role, value in values
        if (kind := value.type.WhichOneof("value")) not in (None, "tensor_type")
    )


def _initialized(model: onnx.ModelProto) -> set[str]:
    names = {tensor.name for tensor in model.graph.initializer}
    return names | {tensor.values.name for tensor in model.graph.sparse_initializer}
