"""What the rewrite may rely on in one graph: types, ranks, constants, and who uses which value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_agent.model.inference import bearable_nodes, inferred
from edge_agent.model.nhwc_forms import MICROSOFT
from edge_agent.tensors import TensorName, TensorSpec, size_name

Dims = tuple[int | str | None, ...]

_DEFAULT_SIZES = (1, 64, 32, 32)
_LAUNCH_NS = 2000
_SMALL_BYTES = 4096
_TRANSPOSE_NS = 0.3
"""Per element: measured 0.1 to 0.5 for float and uint8 images on one core of an EPYC 7003."""


class Constants(Mapping[str, npt.NDArray[Any]]):
    """The values of a graph that never change, read when asked for (weights may be large)."""

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        overridable = {value.name for value in graph.input}
        self._folder = folder
        self._tensors = {t.name: t for t in graph.initializer if t.name not in overridable}
        for node in graph.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self._tensors[node.output[0]] = attribute.t

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        # A copy, because reading external data puts them into the tensor.
        tensor = TensorProto()
        tensor.CopyFrom(self._tensors[name])
        array: npt.NDArray[Any] = numpy_helper.to_array(tensor, base_dir=str(self._folder))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a constant, without reading it."""
        return tuple(self._tensors[name].dims)

    def element_type(self, name: str) -> int:
        """The onnx element type of a constant, without reading it."""
        return int(self._tensors[name].data_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a graph before it is rewritten."""

    opset: int
    constants: Constants
    types: Mapping[str, tuple[int, Dims | None]]
    """Element type (onnx number) and dimensions by value."""
    uses: Counter[str]
    """How often each value is used: by nodes, by bodies, as a graph output."""

    def dims(self, name: str) -> Dims | None:
        """The dimensions of a value, or None where not even their number is known."""
        if name in self.constants:
            return self.constants.shape(name)
        return self.types.get(name, (0, None))[1]

    def element_type(self, name: str) -> int:
        """The onnx element type of a value, 0 if unknown."""
        if name in self.constants:
            return self.constants.element_type(name)
        return self.types.get(name, (0, None))[0]

    def is_image(self, name: str) -> bool:
        """Whether the value is computed and has four dimensions."""
        dims = self.dims(name)
        return dims is not None and len(dims) == 4 and name not in self.constants

    def is_scalar(self, name: str) -> bool:
        """Whether the value certainly holds one element and broadcasts to any order of axes."""
        dims = self.dims(name)
        return dims is not None and len(dims) <= 4 and all(d == 1 for d in dims)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The elements of a constant of integers, or None if the value is no such constant."""
        if name not in self.constants or math.prod(self.constants.shape(name)) > 64:
            return None
        array = self.constants[name]
        return tuple(array.ravel().tolist()) if np.issubdtype(array.dtype, np.integer) else None

    def elements(self, name: str) -> int:
        """How many elements an image has; sizes that are not known are guessed."""
        dims = self.dims(name) or _DEFAULT_SIZES
        return math.prod(
            d if isinstance(d, int) and d > 0 else guess
            for d, guess in zip(dims, _DEFAULT_SIZES, strict=False)
        )

    def transpose_ns(self, name: str) -> int:
        """About how long transposing an image takes, in nanoseconds."""
        return round(_LAUNCH_NS + _TRANSPOSE_NS * self.elements(name))


def gather_facts(
    model: onnx.ModelProto, folder: Path, specs: Mapping[TensorName, TensorSpec] | None
) -> Facts:
    """The facts of a model whose external data lie in `folder`; `specs` go before inference."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    return Facts(
        opset=opset,
        constants=Constants(model.graph, folder),
        types=_types(model, specs or {}),
        uses=Counter(used_names(model.graph)),
    )


def updated(
    facts: Facts, model: onnx.ModelProto, folder: Path, unsigned: Iterable[str] = ()
) -> Facts:
    """The facts after nodes were fused or the values `unsigned` became uint8."""
    types = dict(facts.types)
    for name in unsigned:
        types[name] = (TensorProto.UINT8, facts.dims(name))
    uses = Counter(used_names(model.graph))
    return replace(facts, constants=Constants(model.graph, folder), types=types, uses=uses)


def used_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every value that a node, a body inside a node or the graph's outputs use, once per use."""
    for node in graph.node:
        yield from node.input
        yield from captured_names(node)
    yield from (value.name for value in graph.output)


def captured_names(node: onnx.NodeProto) -> Iterator[str]:
    """Every name that the bodies of `node` use, their own values among them."""
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            yield from used_names(body)


def all_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every value name in the graph and its bodies."""
    yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from all_names(body)


def drop_dead_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Let `graph` consist of those of `nodes` that its outputs need, in the same order."""
    needed, kept = {value.name for value in graph.output}, []
    for node in reversed(nodes):
        if any(name and name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input, captured_names(node))
    del graph.node[:]
    graph.node.extend(kept[::-1])


def _types(
    model: onnx.ModelProto, specs: Mapping[TensorName, TensorSpec]
) -> dict[str, tuple[int, Dims | None]]:
    known = dict(_declared(model.graph))
    needed = {name for node in model.graph.node for name in node.output if name}
    if not needed <= known.keys() | specs.keys():
        # Wrong declarations and models above 2 GiB: what is declared has to do.
        known |= _declared(inferred(_without_weights(model)) or model.graph)
    for name, spec in specs.items():
        number = getattr(TensorProto, _ONNX_NAMES.get(spec.element_type, ""), 0)
        known[name] = (number, spec.dims)
    return known


_ONNX_NAMES = {"float32": "FLOAT", "float64": "DOUBLE", "uint8": "UINT8", "int8": "INT8"}


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large constants are inputs: inference would serialise them twice."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(map(_standard, bearable_nodes(model.graph.node, model.functions)))
    for values in ("input", "output", "value_info"):
        getattr(graph, values).extend(getattr(model.graph, values))
    known = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _SMALL_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in known:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
    return copy


_SHAPED_LIKE = {
    "FusedConv": ("Conv", (0, 1)),
    "Gelu": ("Relu", (0,)),
    "QGemm": ("Gemm", (0, 3)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearLeakyRelu": ("Relu", (0,)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearSigmoid": ("Relu", (0,)),
    "QLinearSoftmax": ("Relu", (0,)),
    "QuickGelu": ("Relu", (0,)),
}
"""Operators of com.microsoft by the standard operator, of these inputs, with the same result."""


_SHAPE_ATTRIBUTES = (
    *("auto_pad", "axis", "ceil_mode", "count_include_pad", "dilations", "group"),
    *("kernel_shape", "pads", "strides", "transA", "transB"),
)


def _standard(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node that onnx can infer through: it knows no shapes for operators of com.microsoft."""
    if node.domain != MICROSOFT or _attribute(node, "channels_last"):
        return node
    op_type, kept = _SHAPED_LIKE.get(node.op_type, ("", ()))
    inputs = [node.input[i] for i in kept]
    if node.op_type == "QLinearConcat":
        op_type, inputs = "Concat", list(node.input[2::3])
    if not op_type:
        return node
    copy = onnx.NodeProto(op_type=op_type, input=inputs, output=node.output)
    copy.attribute.extend(a for a in node.attribute if a.name in _SHAPE_ATTRIBUTES)
    return copy


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), 0)


def _declared(graph: onnx.GraphProto) -> Iterable[tuple[str, tuple[int, Dims | None]]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            tensor = value.type.tensor_type
            dims = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
            yield value.name, (tensor.elem_type, dims)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return size_name(dim.dim_param)
