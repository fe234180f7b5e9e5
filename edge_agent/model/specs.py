"""Types and shapes of inner values, by ONNX shape inference for the input shapes in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx

from edge_agent.errors import InputMismatch
from edge_agent.model.folding import fold, small_constants
from edge_agent.model.graph import ModelGraph
from edge_agent.model.inference import bearable_nodes, inferred
from edge_agent.model.values import spec_of, spec_of_tensor, type_text, value_info_of
from edge_agent.tensors import Array, Shape, TensorName, TensorSpec, ValueSpecs

_MAX_ROUNDS = 8
"""Inference and folding feed each other; real models settle after two or three rounds."""
_MOST_SIZE = 2**63 - 1
"""Of a dimension."""


def infer_specs(graph: ModelGraph, shapes: Mapping[TensorName, Shape]) -> ValueSpecs:
    """What ONNX shape inference finds of every value of `graph`, constants included.

    `shapes` fixes graph inputs; a symbolic size that they settle is settled everywhere. With no
    shapes, symbolic sizes stay symbolic. Values of unknown type are left out: what operators of
    com.microsoft give and what depends on them.

    Raises:
        InputMismatch: a shape is given for no input, or against what the input declares.
    """
    inputs = fixed_inputs(graph, shapes)
    known = small_constants(graph)
    for _ in range(_MAX_ROUNDS):
        specs = _specs(graph, inputs, known)
        if not fold(graph, specs.tensors, known):
            break
    return specs


def _specs(
    graph: ModelGraph, inputs: Sequence[onnx.ValueInfoProto], known: Mapping[str, Array]
) -> ValueSpecs:
    specs: dict[TensorName, TensorSpec] = {}
    others: dict[TensorName, str] = {}
    for tensor in graph.constants.values():
        spec = spec_of_tensor(tensor)
        if spec is not None:
            specs[spec.name] = spec
    # What the file declares of inner values is not used: it may be wrong, or for other shapes.
    for value in graph.model.graph.output:
        spec = spec_of(value)
        if spec is not None:
            specs[spec.name] = replace(spec, dims=None) if spec.name in graph.users else spec
        elif (text := _other_type(value)) is not None:
            others[TensorName(value.name)] = text
    for value in (*inputs, *_inferred(graph, inputs, known)):
        spec = spec_of(value)
        if spec is not None:
            specs[spec.name] = spec
        elif (text := _other_type(value)) is not None:
            others[TensorName(value.name)] = text
    return ValueSpecs(tensors=specs, others=others)


def _other_type(value: onnx.ValueInfoProto) -> str | None:
    """The type of what is no tensor; None for tensors and where it is not known."""
    return None if value.type.WhichOneof("value") == "tensor_type" else type_text(value.type)


def fixed_inputs(
    graph: ModelGraph, shapes: Mapping[TensorName, Shape]
) -> list[onnx.ValueInfoProto]:
    """The declarations of the inputs, with `shapes` and the symbolic sizes that they settle.

    Raises:
        InputMismatch: a shape is given for no input, or against what the input declares.
    """
    free = {*graph.inputs, *graph.overridable}
    declared = {v.name: v for v in graph.model.graph.input if v.name in free}
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        spec = spec_of(declared[name]) if name in declared else None
        if spec is None:
            raise InputMismatch(
                f'got a shape for "{name}", want one of the tensor inputs: {", ".join(declared)}'
            )
        if any(size > _MOST_SIZE for size in shape):
            got = ",".join(map(str, shape))
            raise InputMismatch(f'input "{name}": got shape [{got}], want sizes below 2^63')
        dims = spec.dims if spec.dims is not None else (None,) * len(shape)
        fits = len(dims) == len(shape) and all(
            size == dim or (size >= 0 and not isinstance(dim, int))
            for dim, size in zip(dims, shape, strict=True)
        )
        if not fits:
            got = ",".join(map(str, shape))
            raise InputMismatch(f'input "{name}": got shape [{got}], want {spec}')
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return [_fixed(value, shapes, sizes) for value in declared.values()]


def _fixed(
    value: onnx.ValueInfoProto, shapes: Mapping[TensorName, Shape], sizes: Mapping[str, int]
) -> onnx.ValueInfoProto:
    spec = spec_of(value)
    if spec is None:
        return value
    dims: tuple[int | str | None, ...] | None = shapes.get(spec.name)
    if dims is None and spec.dims is not None:
        dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in spec.dims)
    return value_info_of(
        TensorSpec(name=spec.name, element_type=spec.element_type, dims=dims),
    )


def _inferred(
    graph: ModelGraph, inputs: Sequence[onnx.ValueInfoProto], known: Mapping[str, Array]
) -> tuple[onnx.ValueInfoProto, ...]:
    lean = onnx.ModelProto(ir_version=max(graph.model.ir_version, 4))
    lean.opset_import.extend(graph.model.opset_import)
    lean.functions.extend(graph.model.functions)
    lean.graph.name = "specs"
    lean.graph.input.extend(inputs)
    # Inference needs the values of shapes and axes; weights only need a type and a shape.
    changing = frozenset(graph.overridable)
    for name, tensor in graph.constants.items():
        if name in known or name in changing:
            continue
        if (spec := spec_of_tensor(tensor)) is not None:
            lean.graph.input.append(value_info_of(spec))
    lean.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in known.items()
    )
    lean.graph.sparse_initializer.extend(graph.sparse_constants.values())
    every = (*graph.constant_nodes, *graph.nodes)
    for node in bearable_nodes(every, graph.model.functions):
        if known.keys().isdisjoint(node.output):
            lean.graph.node.append(node)
    lean.graph.output.extend(onnx.ValueInfoProto(name=name) for name in graph.outputs)
    found = inferred(lean)
    if found is None:
        return ()
    folded = tuple(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in lean.graph.initializer
    )
    return (*found.value_info, *found.output, *folded)
