"""In which dimension orders each value of a graph exists while the graph is being rewritten.

A value may exist in several orders at once: a *form* of it is `Transpose(value, perm)`, and the
identity order is the form that other programs know by the value's name. Transpose nodes of the
source make no tensor here, only a second name for a form; a transpose is written when a form is
asked for that nobody has computed yet, and then once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge_agent.tensors import Array

Perm = tuple[int, ...]

RANK = 4
IDENTITY: Perm = (0, 1, 2, 3)
TO_LAST: Perm = (0, 2, 3, 1)
"""Batch, channels, height, width to batch, height, width, channels."""
MICROSOFT = "com.microsoft"


def identity(rank: int) -> Perm:
    """The permutation of `rank` axes that changes nothing."""
    return tuple(range(rank))


def compose(first: Perm, second: Perm) -> Perm:
    """The permutation p with Transpose(x, p) = Transpose(Transpose(x, first), second)."""
    return tuple(first[i] for i in second)


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes `perm`."""
    return tuple(perm.index(i) for i in range(len(perm)))


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of `node` by name, strings as bytes."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def transpose_perm(node: onnx.NodeProto) -> Perm | None:
    """The permutation of a Transpose node over four axes, or None for any other node."""
    if node.op_type != "Transpose" or node.domain not in ("", "ai.onnx"):
        return None
    perm = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), ())
    return perm if len(perm) == RANK else None


@dataclass(slots=True)
class Forms:
    """The graph that is being written, and the forms of its values that exist so far."""

    constants: Mapping[str, Array]
    """Values that never change, by name."""
    taken: set[str]
    """All names that a new value may not have."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    remake: dict[str, Callable[[Perm], None]] = field(default_factory=dict)
    """How to write a form of a value other than by a transpose: a DequantizeLinear is repeated, so
    that ONNX Runtime finds it beside the operator it belongs to."""
    _roots: dict[str, tuple[str, Perm]] = field(default_factory=dict)
    _tensors: dict[str, dict[Perm, str]] = field(default_factory=dict)
    _constant_names: dict[tuple[object, ...], str] = field(default_factory=dict)

    def fresh(self, hint: str) -> str:
        """A name that no value has yet, beginning with `hint`."""
        name, count = hint, 1
        while name in self.taken:
            count += 1
            name = f"{hint}_{count}"
        self.taken.add(name)
        return name

    def add(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        **attrs: object,
    ) -> None:
        """Write one node; attributes that are None are left out."""
        kept = {k: v for k, v in attrs.items() if v is not None}
        self.nodes.append(helper.make_node(op_type, inputs, outputs, domain=domain, **kept))

    def constant(self, array: Array, hint: str) -> str:
        """The name of an initializer that holds `array`, shared between equal small arrays."""
        key: tuple[object, ...] = (array.dtype.str, array.shape, array.tobytes())
        if array.nbytes <= 4096 and key in self._constant_names:
            return self._constant_names[key]
        name = self.fresh(hint)
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        if array.nbytes <= 4096:
            self._constant_names[key] = name
        return name

    def alias(self, name: str, source: str, perm: Perm) -> None:
        """Let `name` stand for Transpose(source, perm) without computing it."""
        root, first = self._root(source, len(perm))
        self._roots[name] = (root, compose(first, perm))

    def put(self, name: str, perm: Perm) -> str:
        """The tensor into which a node shall write Transpose(name, perm)."""
        own = perm == identity(len(perm))
        tensor = name if own else self.fresh(self._hint(name, perm))
        self._tensors.setdefault(name, {})[perm] = tensor
        return tensor

    def get(self, name: str, perm: Perm) -> str:
        """The tensor that holds Transpose(name, perm), written now if it does not exist."""
        if name in self.constants and name not in self._roots:
            if perm == identity(len(perm)):
                return name
            return self.constant(self.constants[name].transpose(perm), self._hint(name, perm))
        root, first = self._root(name, len(perm))
        wanted = compose(first, perm)
        forms = self._tensors.setdefault(root, {identity(len(perm)): root})
        if wanted not in forms:
            self._write_form(root, wanted)
        return forms[wanted]

    def plain(self, name: str) -> str:
        """The tensor that holds `name` in its own order."""
        if name in self._roots:
            return self.get(name, identity(len(self._roots[name][1])))
        if name in self._tensors:
            return self.get(name, identity(len(next(iter(self._tensors[name])))))
        return name

    def ensure_named(self, names: Iterable[str]) -> None:
        """Make tensors of exactly these names, for graph outputs and for bodies."""
        for name in names:
            tensor = self.plain(name)
            if tensor != name:
                self.add("Identity", [tensor], [name])
                self._roots.pop(name)

    def _root(self, name: str, rank: int) -> tuple[str, Perm]:
        return self._roots.get(name, (name, identity(rank)))

    def _write_form(self, root: str, wanted: Perm) -> None:
        if root in self.remake:
            self.remake[root](wanted)
            return
        have, tensor = min(self._tensors[root].items())
        perm = tuple(have.index(axis) for axis in wanted)
        self.add("Transpose", [tensor], [self.put(root, wanted)], perm=perm)

    @staticmethod
    def _hint(name: str, perm: Perm) -> str:
        return f"{name}.{''.join(map(str, perm))}"
