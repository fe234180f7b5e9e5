"""What the ONNX standard says of the use of each operator: inputs, outputs, attributes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx

_TYPE_NAMES = {number: name.lower() for name, number in onnx.AttributeProto.AttributeType.items()}
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
_INTERNAL = "__"
"""Attributes whose names begin so are notes that runtimes and checkers pass over."""
_MAX_AXIS = 2**31
"""Of LayerNormalization, shape inference takes a larger one for negative, and writes there."""
_EQUATION = re.compile(rb"[A-Za-z ,.]*(->[A-Za-z .]*)?")
"""Of Einsum. Of others, shape inference (onnx 1.23.2, ONNX Runtime 1.32) never comes to an end."""
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRules:
    """How one operator of one opset may be used."""

    inputs: tuple[int, int]
    """The fewest and the most that it has."""
    outputs: tuple[int, int]
    required_inputs: frozenset[int]
    """Which of the inputs may not be left out by an empty name."""
    required_outputs: frozenset[int]
    has_listed_outputs: bool
    """Whether the last output stands for any number of them."""
    attributes: Mapping[str, int]
    """Number of the type of each attribute."""

    def broken_by(self, node: onnx.NodeProto) -> str | None:
        """The first rule that `node` breaks; None if it breaks none."""
        for what, names, (low, high), required in (
            ("input", node.input, self.inputs, self.required_inputs),
            ("output", node.output, self.outputs, self.required_outputs),
        ):
            if not low <= len(names) <= high:
                want = f"{low}" if low == high else f"{low} to {high}"
                return f"got {len(names)} {what}s, want {want}"
            for index, name in enumerate(names):
                if not name and index in required:
                    return f"{what} {index} has no name, but the operator needs it"
        # ONNX Runtime 1.32 refuses it of If and Scan, and crashes of Split and Loop.
        if self.has_listed_outputs and not all(node.output):
            return f"output {list(node.output).index('')} has no name, but the operator needs it"
        broken = self._attribute_broken_by(node.attribute)
        if broken is None and node.op_type in _VALUES:
            return _VALUES[node.op_type](node)
        return broken

    def _attribute_broken_by(self, attributes: Sequence[onnx.AttributeProto]) -> str | None:
        seen = set()
        for attribute in attributes:
            if attribute.name in seen:
                return f'attribute "{attribute.name}" is given twice'
            seen.add(attribute.name)
            want = self.attributes.get(attribute.name)
            if want is None and not attribute.name.startswith(_INTERNAL):
                return f'attribute "{attribute.name}" is unknown'
            if want is not None and attribute.type != want:
                got = _TYPE_NAMES.get(attribute.type, f"type number {attribute.type}")
                return f'attribute "{attribute.name}": got {got}, want {_TYPE_NAMES[want]}'
            if attribute.name == "axis" and abs(attribute.i) >= _MAX_AXIS:
                return f'attribute "axis": got {attribute.i}, want an axis of an array'
        return None


def _equation_broken_by(node: onnx.NodeProto) -> str | None:
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            return f'attribute "{attribute.name}" is that of a function, want it in the node'
        if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
            return (
                f'attribute "equation": got {attribute.s[:80]!r}, want letters, spaces, commas and '
                "dots, at most one arrow"
            )
    return None


def _parts_broken_by(node: onnx.NodeProto) -> str | None:
    for attribute in node.attribute:
        got = attribute.i if attribute.name == "num_outputs" else len(node.output)
        if got != len(node.output) and not attribute.ref_attr_name:
            return f'attribute "num_outputs": got {got}, want {len(node.output)} as it has outputs'
    return None


_VALUES: Mapping[str, Callable[[onnx.NodeProto], str | None]] = {
    "Einsum": _equation_broken_by,
    "Split": _parts_broken_by,
}
"""Operators of whose attributes shape inference dies or hangs."""


def operator_rules(op_type: str, version: int, domain: str) -> OperatorRules | None:
    """The rules of an operator at an opset of its domain; None if there is no such operator."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    return OperatorRules(
        inputs=(schema.min_input, schema.max_input),
        outputs=(schema.min_output, schema.max_output),
        required_inputs=_required(schema.inputs),
        required_outputs=_required(schema.outputs),
        has_listed_outputs=bool(schema.outputs) and schema.outputs[-1].option == _VARIADIC,
        attributes={name: int(a.type.value) for name, a in schema.attributes.items()},
    )


def _required(parameters: Sequence[onnx.defs.OpSchema.FormalParameter]) -> frozenset[int]:
    return frozenset(i for i, parameter in enumerate(parameters) if parameter.option == _SINGLE)
