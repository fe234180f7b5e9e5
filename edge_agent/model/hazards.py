"""What makes a model hard to divide, kind by kind, and what is done about each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx

from edge_agent.model.admit import external_locations, overridable
from edge_agent.model.graph import ModelGraph, random_operator
from edge_agent.model.interface import described_type
from edge_agent.model.scopes import (
    all_nodes,
    bodies,
    defined_names,
    free_names,
    node_label,
    plain_domain,
    reads,
)
from edge_agent.model.values import spec_of
from edge_agent.tensors import ElementType, TensorName, TensorSpec, ValueSpecs

_NO_TENSORS = frozenset(
    {
        "CastMap",
        "ConcatFromSequence",
        "DictVectorizer",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
        "SplitToSequence",
        "ZipMap",
    }
)
"""Operators that take or give sequences, maps or optionals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """One kind of difficulty in one model."""

    kind: str
    where: tuple[str, ...]
    """Every occurrence."""
    handling: str
    """What is done about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A model with what is known of its values for all shapes that it takes."""

    graph: ModelGraph
    specs: ValueSpecs

    @property
    def file(self) -> onnx.GraphProto:
        return self.graph.model.graph

    @property
    def computed(self) -> Iterator[str]:
        """Values that nodes compute and that are used, in order, but for constants."""
        used = {*self.graph.users, *self.graph.outputs}
        return (name for name, at in self.graph.producers.items() if at >= 0 and name in used)


_Finder = Callable[[_Subject], Iterator[str]]


def find_hazards(graph: ModelGraph, specs: ValueSpecs) -> tuple[Hazard, ...]:
    """The hazards of a model, without the kinds that it does not have.

    `specs` are those of the values for all shapes that the model takes.
    """
    subject = _Subject(graph=graph, specs=specs)
    found = ((kind, tuple(find(subject)), handling) for kind, find, handling in _FINDERS)
    return tuple(
        Hazard(kind=kind, where=where, handling=handling)
        for kind, where, handling in found
        if where
    )


def _nodes(of: _Subject) -> Iterator[tuple[str, onnx.NodeProto]]:
    """The nodes of the main graph as the file has them, with their labels."""
    for index, node in enumerate(of.file.node):
        yield node_label(index, node), node


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _captured_values(of: _Subject) -> Iterator[str]:
    for label, node in _nodes(of):
        captured = tuple(dict.fromkeys(n for body in bodies(node) for n in free_names(body)))
        if captured:
            yield f"{label}: {_quoted(captured)}"


def _shadowed_names(of: _Subject) -> Iterator[str]:
    outer = {*defined_names(of.file)}
    for label, node in _nodes(of):
        hidden = sorted(n for body in bodies(node) for n in _hidden(body, outer))
        if hidden:
            yield f"{label}: {_quoted(tuple(dict.fromkeys(hidden)))}"


def _hidden(body: onnx.GraphProto, outer: set[str]) -> Iterator[str]:
    own = set(defined_names(body))
    yield from own & outer
    for node in body.node:
        for inner in bodies(node):
            yield from _hidden(inner, outer | own)


def _overridable_initializers(of: _Subject) -> Iterator[str]:
    yield from map(str, overridable(of.graph.model))


def _listed_constants(of: _Subject) -> Iterator[str]:
    if of.graph.model.ir_version < 4:
        yield from (v.name for v in of.file.input if v.name in of.graph.constants)


def _inputs_as_outputs(of: _Subject) -> Iterator[str]:
    yield from (name for name in of.graph.outputs if of.graph.producers.get(name) == -1)


def _constants_as_outputs(of: _Subject) -> Iterator[str]:
    yield from filter(of.graph.is_constant, of.graph.outputs)


def _outputs_read_inside(of: _Subject) -> Iterator[str]:
    graph = of.graph
    yield from (n for n in graph.outputs if graph.producers.get(n, -1) >= 0 and n in graph.users)


def _repeated_outputs(of: _Subject) -> Iterator[str]:
    counts = Counter(value.name for value in of.file.output)
    yield from (f'"{name}" {often} times' for name, often in counts.items() if often > 1)


def _unnamed_nodes(of: _Subject) -> Iterator[str]:
    yield from (label for label, node in _nodes(of) if not node.name)


def _equally_named_nodes(of: _Subject) -> Iterator[str]:
    counts = Counter(node.name for node in of.file.node if node.name)
    yield from (f'"{name}" {often} times' for name, often in counts.items() if often > 1)


def _nodes_out_of_order(of: _Subject) -> Iterator[str]:
    defined_at = {n: i for i, node in enumerate(of.file.node) for n in node.output if n}
    for index, (label, node) in enumerate(_nodes(of)):
        if any(defined_at.get(name, -1) > index for name in reads(node)):
            yield label


def _dead_nodes(of: _Subject) -> Iterator[str]:
    needed = set(of.graph.outputs)
    dead = []
    for position in reversed(range(len(of.graph.nodes))):
        if needed.isdisjoint(of.graph.nodes[position].output):
            dead.append(position)
        else:
            needed.update(of.graph.reads[position])
    yield from (of.graph.label(position) for position in reversed(dead))


def _unused_inputs(of: _Subject) -> Iterator[str]:
    graph = of.graph
    yield from (n for n in graph.inputs if n not in graph.users and n not in graph.outputs)


def _functions(of: _Subject) -> Iterator[str]:
    for function in of.graph.model.functions:
        yield f"{function.domain or 'ai.onnx'}::{function.name}"


def _values_of_unknown_type(of: _Subject) -> Iterator[str]:
    yield from (name for name in of.computed if name not in of.specs)


def _values_of_unknown_rank(of: _Subject) -> Iterator[str]:
    found = (of.specs.tensors.get(TensorName(name)) for name in (*of.graph.inputs, *of.computed))
    yield from (spec.name for spec in found if spec is not None and spec.dims is None)


def _wrong_declarations(of: _Subject) -> Iterator[str]:
    for value in (*of.file.value_info, *of.file.output):
        declared, found = spec_of(value), of.specs.tensors.get(TensorName(value.name))
        if declared is not None and found is not None and _contradict(declared, found):
            yield f'"{value.name}" is declared {declared}, but is {found}'


def _contradict(declared: TensorSpec, found: TensorSpec) -> bool:
    if declared.element_type != found.element_type:
        return True
    if declared.dims is None or found.dims is None:
        return False
    return len(declared.dims) != len(found.dims) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(declared.dims, found.dims, strict=True)
    )


def _typed(of: _Subject) -> Iterator[TensorSpec]:
    """What is known of inputs, computed values and stored constants."""
    names = (*of.graph.inputs, *of.computed, *of.graph.constants)
    found = (of.specs.tensors.get(TensorName(name)) for name in names)
    return (spec for spec in found if spec is not None)


def _empty_tensors(of: _Subject) -> Iterator[str]:
    yield from (f'"{s.name}" is {s}' for s in _typed(of) if s.dims is not None and 0 in s.dims)


def _strings(of: _Subject) -> Iterator[str]:
    yield from (s.name for s in _typed(of) if s.element_type is ElementType.STRING)


def _no_tensors(of: _Subject) -> Iterator[str]:
    for value in (*of.file.input, *of.file.output):
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            yield f'"{value.name}" is {described_type(value.type)}'
    yield from (label for label, node in _nodes(of) if node.op_type in _NO_TENSORS)


def _types_without_dtype(of: _Subject) -> Iterator[str]:
    for spec in _typed(of):
        if not spec.element_type.is_native and spec.element_type is not ElementType.STRING:
            yield f'"{spec.name}" is {spec.element_type}'


def _sparse_initializers(of: _Subject) -> Iterator[str]:
    yield from of.graph.sparse_constants


def _random_operators(of: _Subject) -> Iterator[str]:
    for position, node in enumerate(of.graph.nodes):
        operator = random_operator(of.graph, node)
        if operator is not None:
            inside = "" if operator == node.op_type else f": {operator}"
            yield of.graph.label(position) + inside


def _other_domains(of: _Subject) -> Iterator[str]:
    functions = {(plain_domain(f.domain), f.name) for f in of.graph.model.functions}
    inside = itertools.chain(*(function.node for function in of.graph.model.functions))
    counts = Counter(
        (plain_domain(node.domain), str(node.op_type))
        for node in (*all_nodes(of.file), *inside)
        if plain_domain(node.domain)
    )
    for (domain, operator), often in sorted(counts.items()):
        if (domain, operator) not in functions:
            yield f"{domain}::{operator} ×{often}"


def _external_data(of: _Subject) -> Iterator[str]:
    path = of.graph.path
    yield from (n for n in external_locations(of.graph.model, path) if n != path.name)


def _open_dimensions(of: _Subject) -> Iterator[str]:
    for name in of.graph.inputs:
        spec = of.specs.tensors.get(TensorName(name))
        if spec is not None and not spec.is_static:
            yield f'"{name}" is {spec}'


def _shared_constants(of: _Subject) -> Iterator[str]:
    readers: Counter[str] = Counter(
        root
        for names in of.graph.reads
        for root in {root for name in names for root in of.graph.constant_roots(name)}
    )
    yield from (f'"{name}" by {often} nodes' for name, often in readers.items() if often > 1)


def _optional_operands(of: _Subject) -> Iterator[str]:
    for label, node in _nodes(of):
        if not all(node.input) or not all(node.output):
            yield label


_FINDERS: tuple[tuple[str, _Finder, str], ...] = (
    (
        "bodies that capture outer values",
        _captured_values,
        "what is captured crosses a cut like any input of the node",
    ),
    (
        "names in bodies that hide outer names",
        _shadowed_names,
        "a hidden name is not captured and does not cross",
    ),
    (
        "initializers that a request may override",
        _overridable_initializers,
        "every part that reads one has its default",
    ),
    (
        "initializers listed as inputs (IR version 3)",
        _listed_constants,
        "ONNX Runtime takes them for constants, and so do the parts",
    ),
    (
        "outputs that are inputs",
        _inputs_as_outputs,
        "no part computes them: they are handed on from the input",
    ),
    ("outputs that are constants", _constants_as_outputs, "the first part gives them"),
    (
        "outputs that are read inside",
        _outputs_read_inside,
        "they leave from the part that computes them, and cross to those that read them",
    ),
    ("outputs listed more than once", _repeated_outputs, "the parts give each once"),
    ("nodes without a name", _unnamed_nodes, "they are called by their index in the file"),
    (
        "nodes with equal names",
        _equally_named_nodes,
        "they are told apart by their index in the file",
    ),
    ("nodes out of order", _nodes_out_of_order, "they are put in an order in which they can run"),
    (
        "nodes that no output needs",
        _dead_nodes,
        "they stay where they are; no part is made of them alone",
    ),
    ("inputs that nothing reads", _unused_inputs, "no part takes them"),
    ("functions inside the model", _functions, "every part has them"),
    (
        "values of unknown type",
        _values_of_unknown_type,
        "the model is not divided where one crosses",
    ),
    ("values of unknown rank", _values_of_unknown_rank, "they cross with an open shape"),
    (
        "wrong declarations of values",
        _wrong_declarations,
        "what the file declares of inner values is not used",
    ),
    ("tensors without elements", _empty_tensors, "they cross like any other"),
    ("strings", _strings, "their bytes are not known before the run"),
    (
        "sequences, maps and optionals",
        _no_tensors,
        "they cross within a device only, and their bytes are not known before the run",
    ),
    (
        "types that numpy lacks",
        _types_without_dtype,
        "they cross as values of ONNX Runtime, but not in a model where optionals cross too",
    ),
    ("sparse initializers", _sparse_initializers, "they are copied as they are"),
    (
        "operators that draw random numbers without a seed",
        _random_operators,
        "the parts cannot be compared with the whole, so no plan divides the model",
    ),
    (
        "operators of other domains than ai.onnx",
        _other_domains,
        "ONNX Runtime is asked for the types that ONNX shape inference does not know",
    ),
    (
        "external data",
        _external_data,
        "each part gets the tensors that it reads in a file of its own",
    ),
    (
        "open dimensions of inputs",
        _open_dimensions,
        "bytes and work are counted for one set of shapes; the parts take all",
    ),
    ("constants that several nodes read", _shared_constants, "every part that reads one has it"),
    (
        "operands left out",
        _optional_operands,
        "an empty name is no value: it does not cross",
    ),
)

KINDS = tuple(kind for kind, _, _ in _FINDERS)
"""Every kind of hazard that is looked for."""
