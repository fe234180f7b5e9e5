"""A model in normal form: nodes in order, constants apart, and who reads which value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import onnx

from edge_agent.model.admit import AdmissionLimits, overridable, read_model
from edge_agent.model.external import is_external
from edge_agent.model.order import order_nodes
from edge_agent.model.scopes import (
    all_nodes,
    bodies,
    called_tensors,
    node_label,
    node_tensors,
    plain_domain,
    reads,
)
from edge_agent.model.values import tensor_bytes

_RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
_MAX_ROOTS = 256
"""Of one constant value. A chain that adds a constant at each of its nodes would else take memory
and time with the square of its length."""
_OWN = "\0"
"""Before the position of a node: no value is named so."""
_FOLDED_DOMAINS = frozenset({"", "ai.onnx.ml"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A loaded model in normal form. Protos inside belong to it and must not be changed.

    `Constant` nodes have become `constants`. Nodes that read constants alone, and always give
    the same, are `constant_nodes`: like constants they go along to every subgraph that uses them,
    and ONNX Runtime folds them away. All other nodes, dead ones included, are `nodes`, in an order
    in which every prefix may be cut off.
    """

    path: Path
    model: onnx.ModelProto
    nodes: tuple[onnx.NodeProto, ...]
    file_indices: tuple[int, ...]
    """Index of each of `nodes` in the model file, for messages."""
    reads: tuple[tuple[str, ...], ...]
    """What each of `nodes` reads, each name once, constants and captured names included."""
    inputs: tuple[str, ...]
    """Graph inputs without those that have an initializer."""
    overridable: tuple[str, ...]
    """Constants that are inputs too, so that a request may give another value: nothing computed
    from them is constant, and every part that reads one takes it as an input with a default."""
    outputs: tuple[str, ...]
    """Graph outputs, each once."""
    constants: Mapping[str, onnx.TensorProto]
    sparse_constants: Mapping[str, onnx.SparseTensorProto]
    constant_nodes: tuple[onnx.NodeProto, ...]
    producers: Mapping[str, int]
    """Position of the node that defines a value; -1 for graph inputs; no constants."""
    users: Mapping[str, tuple[int, ...]]
    """Positions of the nodes that read a value, ascending; no constants, no unread values."""
    _roots: Mapping[str, tuple[str, ...]] = field(repr=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the model file at `path`; external data stay where they are.

        Raises:
            ModelRefused: the file is no ONNX model, or its nodes form a cycle.
        """
        return cls.from_model(read_model(path, AdmissionLimits()), path)

    @classmethod
    def from_model(cls, model: onnx.ModelProto, path: Path) -> Self:
        """Take over `model`, which was read from `path`.

        Raises:
            ModelRefused: the nodes form a cycle.
        """
        graph = model.graph
        constants = {tensor.name: tensor for tensor in graph.initializer}
        sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        working: list[tuple[int, onnx.NodeProto]] = []
        for index, node in enumerate(graph.node):
            if not _take_constant(node, constants, sparse):
                working.append((index, node))
        node_reads = [reads(node) for _, node in working]
        order = order_nodes([node for _, node in working], node_reads, path.name)
        roots: dict[str, tuple[str, ...]] = {name: (name,) for name in (*constants, *sparse)}
        changeable = overridable(model)
        changing = frozenset(changeable)
        folds = _folding(model)
        constant_nodes, kept = [], []
        for i in order:
            names = node_reads[i]
            found: dict[str, None] = {}
            is_constant = names and all(n in roots and n not in changing for n in names)
            if is_constant and folds(working[i][1]):
                found = dict.fromkeys(itertools.chain(*(roots[name] for name in names)))
            if 0 < len(found) <= _MAX_ROOTS:
                roots.update((name, tuple(found)) for name in working[i][1].output if name)
                constant_nodes.append(working[i][1])
            else:
                kept.append(i)
        inputs = tuple(v.name for v in graph.input if v.name not in roots)
        producers = dict.fromkeys(inputs, -1)
        users: dict[str, list[int]] = {}
        for position, i in enumerate(kept):
            producers.update((name, position) for name in working[i][1].output if name)
            for name in node_reads[i]:
                if name not in roots:
                    users.setdefault(name, []).append(position)
        return cls(
            path=path,
            model=model,
            nodes=tuple(working[i][1] for i in kept),
            file_indices=tuple(working[i][0] for i in kept),
            reads=tuple(node_reads[i] for i in kept),
            inputs=inputs,
            overridable=changeable,
            outputs=tuple(dict.fromkeys(v.name for v in graph.output)),
            constants=constants,
            sparse_constants=sparse,
            constant_nodes=tuple(constant_nodes),
            producers=producers,
            users={name: tuple(positions) for name, positions in users.items()},
            _roots=roots,
        )

    def is_constant(self, name: str) -> bool:
        """Whether `name` is a constant or computed from constants alone."""
        return name in self._roots

    def constant_roots(self, name: str) -> tuple[str, ...]:
        """The stored constants behind a constant value; () for other values."""
        return self._roots.get(name, ())

    def own_root(self, position: int) -> str:
        """What the constants in the bodies and attributes of a node are called together; "" if it
        has none."""
        return f"{_OWN}{position}" if any(True for _ in self._own_tensors(position)) else ""

    def _own_tensors(self, position: int) -> Iterator[onnx.TensorProto]:
        node = self.nodes[position]
        yield from node_tensors(node)
        if self.model.functions:
            yield from called_tensors(self.model, node)

    def root_bytes(self, root: str) -> int:
        """Bytes of a stored constant, or of those of a node (see `own_root`)."""
        if root.startswith(_OWN):
            own = self._own_tensors(int(root.removeprefix(_OWN)))
            return sum(tensor_bytes(tensor) for tensor in own)
        tensor = self.constants.get(root)
        if tensor is not None:
            return tensor_bytes(tensor)
        sparse = self.sparse_constants[root]
        return tensor_bytes(sparse.values) + tensor_bytes(sparse.indices)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all stored constants that a node uses, in its bodies too, or the graph gives
        out."""
        used = {
            root for names in self.reads for name in names for root in self._roots.get(name, ())
        }
        used.update(root for name in self.outputs for root in self._roots.get(name, ()))
        used.update(root for at in range(len(self.nodes)) if (root := self.own_root(at)))
        return sum(self.root_bytes(root) for root in used)

    def label(self, position: int) -> str:
        """How messages name the node at `position`."""
        return node_label(self.file_indices[position], self.nodes[position])


def _take_constant(
    node: onnx.NodeProto,
    constants: dict[str, onnx.TensorProto],
    sparse: dict[str, onnx.SparseTensorProto],
) -> bool:
    """Move what a Constant node holds into the constants; False if `node` is something else."""
    if node.op_type != "Constant" or plain_domain(node.domain) or len(node.attribute) != 1:
        return False
    name, attribute = node.output[0], node.attribute[0]
    make = onnx.helper.make_tensor
    kinds = onnx.TensorProto
    match attribute.name:
        case "value":
            tensor = attribute.t
        case "sparse_value":
            attribute.sparse_tensor.values.name = name
            sparse[name] = attribute.sparse_tensor
            return True
        case "value_float":
            tensor = make(name, kinds.FLOAT, [], [attribute.f])
        case "value_floats":
            tensor = make(name, kinds.FLOAT, [len(attribute.floats)], attribute.floats)
        case "value_int":
            tensor = make(name, kinds.INT64, [], [attribute.i])
        case "value_ints":
            tensor = make(name, kinds.INT64, [len(attribute.ints)], attribute.ints)
        case "value_string":
            tensor = make(name, kinds.STRING, [], [attribute.s])
        case "value_strings":
            tensor = make(name, kinds.STRING, [len(attribute.strings)], attribute.strings)
        case _:
            return False
    tensor.name = name
    constants[name] = tensor
    return True


def random_operator(graph: ModelGraph, node: onnx.NodeProto) -> str | None:
    """The operator in `node`, its bodies or its function that draws numbers without a seed."""
    functions = {(plain_domain(f.domain), f.name, f.overload): f for f in graph.model.functions}
    pending, seen = [node], set()
    while pending:
        current = pending.pop()
        if _is_random(current, graph.constants):
            return str(current.op_type)
        for body in bodies(current):
            pending.extend(all_nodes(body))
        key = (plain_domain(current.domain), current.op_type, current.overload)
        if key in functions and key not in seen:
            seen.add(key)
            pending.extend(functions[key].node)
    return None


def _is_random(node: onnx.NodeProto, fixed: Mapping[str, onnx.TensorProto]) -> bool:
    if plain_domain(node.domain):
        return False
    if node.op_type in _RANDOM:
        return all(attribute.name != "seed" for attribute in node.attribute)
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        training = fixed.get(node.input[2])
        if training is None or is_external(training):
            return True
        return bool(onnx.numpy_helper.to_array(training).any())
    return False


def _folding(model: onnx.ModelProto) -> Callable[[onnx.NodeProto], bool]:
    """Tells whether a node that reads constants alone is itself a constant."""
    functions = {(plain_domain(f.domain), f.name) for f in model.functions}

    def folds(node: onnx.NodeProto) -> bool:
        domain = plain_domain(node.domain)
        if (domain, node.op_type) in functions:
            return False
        if domain not in _FOLDED_DOMAINS and node.op_type != "DequantizeLinear":
            return False
        nodes = [node, *(n for body in bodies(node) for n in all_nodes(body))]
        return not any(n.op_type in _RANDOM or n.op_type == "Dropout" for n in nodes)

    return folds
