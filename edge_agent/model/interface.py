"""What a model file takes and gives, whatever the types: tensors, sequences, maps, optionals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from edge_agent.model.values import element_type_of, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredValue:
    """An input or output as a model file declares it."""

    name: str
    type: str
    """Element type of a tensor, or a text such as `sequence(float32[?,3])`."""
    dims: tuple[int | str | None, ...] | None
    """As in TensorSpec; None for what is no tensor, too."""
    has_default: bool = False
    """Whether it is an input that may be left out."""

    def __str__(self) -> str:
        if self.dims is None:
            return self.type if "(" in self.type else f"{self.type}[any rank]"
        return f"{self.type}[{','.join('?' if d is None else str(d) for d in self.dims)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredInterface:
    """All inputs and outputs of a model file, in its order; an output may come twice."""

    inputs: tuple[DeclaredValue, ...]
    outputs: tuple[DeclaredValue, ...]


def declared_interface(model: onnx.ModelProto) -> DeclaredInterface:
    """What `model` takes and gives.

    Inputs with an initializer have a default, but for those of IR version 3 and older: ONNX
    Runtime takes them for constants, and they are left out here.
    """
    held = {tensor.name for tensor in model.graph.initializer}
    held |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return DeclaredInterface(
        inputs=tuple(
            _declared(value, has_default=value.name in held)
            for value in model.graph.input
            if value.name not in held or model.ir_version >= 4
        ),
        outputs=tuple(_declared(value) for value in model.graph.output),
    )


def read_interface(path: Path) -> DeclaredInterface:
    """What a model file takes and gives that `extract` has just written to `path`."""
    return declared_interface(onnx.load(path, load_external_data=False))


def _declared(value: onnx.ValueInfoProto, *, has_default: bool = False) -> DeclaredValue:
    spec = spec_of(value)
    if spec is None:
        return DeclaredValue(
            name=value.name, type=described_type(value.type), dims=None, has_default=has_default
        )
    return DeclaredValue(
        name=spec.name,
        type=str(spec.element_type),
        dims=spec.dims and tuple(map(_dimension, spec.dims)),
        has_default=has_default,
    )


def _dimension(declared: int | str | None) -> int | str | None:
    # Shape inference makes up `unk__3` for a size that it cannot name: no name that anyone knows.
    return None if isinstance(declared, str) and declared.startswith("unk__") else declared


def described_type(declared: onnx.TypeProto) -> str:
    """A type for people, such as `sequence(float32[?,3])`; `unknown` where none is declared."""
    match declared.WhichOneof("value"):
        case "tensor_type":
            return str(spec_of(onnx.ValueInfoProto(type=declared)) or "unknown")
        case "sequence_type":
            return f"sequence({described_type(declared.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({described_type(declared.optional_type.elem_type)})"
        case "map_type":
            key = element_type_of(declared.map_type.key_type)
            return f"map({key or 'unknown'}, {described_type(declared.map_type.value_type)})"
        case None:
            return "unknown"
        case other:
            return str(other).removesuffix("_type").replace("_", " ")
