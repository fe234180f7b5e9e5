"""Signed quantised images made unsigned: the same numbers, for kernels that are much faster.

On x86-64 without VNNI, ONNX Runtime's int8-by-int8 convolutions take 2 to 5 times as long as
those of uint8 images (1.32, EPYC 7003). Adding 128 to values and zero points changes nothing else
(QLinearMul and QLinearAveragePool of ONNX Runtime may round to the neighbouring step). There uint8
images by int8 weights are quickest, but sums of two products saturate at 16 bits, so weights that
are large enough for it become uint8 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edge_agent.model.nhwc_facts import Facts, all_names, captured_names
from edge_agent.model.nhwc_forms import MICROSOFT

# Per operator: positions of quantised tensors and of zero points among the inputs. Scales and
# other inputs are left alone.
_LAYOUTS: dict[tuple[str, str], tuple[tuple[int, ...], tuple[int, ...]]] = {
    ("", "QLinearConv"): ((0, 3), (2, 5, 7)),
    ("", "QLinearMatMul"): ((0, 3), (2, 5, 7)),
    (MICROSOFT, "QLinearAdd"): ((0, 3), (2, 5, 7)),
    (MICROSOFT, "QLinearMul"): ((0, 3), (2, 5, 7)),
    (MICROSOFT, "QGemm"): ((0, 3), (2, 5, 8)),
    (MICROSOFT, "QLinearAveragePool"): ((0,), (2, 4)),
    (MICROSOFT, "QLinearGlobalAveragePool"): ((0,), (2, 4)),
    (MICROSOFT, "QLinearLeakyRelu"): ((0,), (2, 4)),
    (MICROSOFT, "QLinearSigmoid"): ((0,), (2, 4)),
    (MICROSOFT, "QLinearSoftmax"): ((0,), (2, 4)),
}
_WEIGHT_INPUTS = (3, 5)
"""Weights and their zero point among the inputs of QLinearConv."""
_NO_SATURATION = 64
"""The largest weight w for which 255 * w + 255 * w fits into 16 bits with a sign."""
_PASSING = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Split", "Squeeze", "Transpose"}
    | {"Unsqueeze"}
)
"""Operators that hand on their first input's elements and keep its type."""


def make_unsigned(
    model: onnx.ModelProto, facts: Facts, may_saturate: frozenset[str]
) -> frozenset[str]:
    """Turn int8 values around quantised convolutions into uint8 in place; the values changed.

    The convolutions whose outputs are in `may_saturate` keep int8 weights.
    A group of values whose types are tied stays as it is when it reaches a graph input or output,
    a body, a constant that is not known, or an operator that is not known here.
    """
    nodes = list(model.graph.node)
    blocked = {v.name for v in (*model.graph.input, *model.graph.output)}
    blocked.update(name for node in nodes for name in captured_names(node))
    groups = _Groups()
    gaining: set[str] = set()
    for node in nodes:
        tied, known = _tied(node, facts)
        groups.tie(tied)
        if not known:
            blocked.update(tied)
        elif (
            node.op_type == "QLinearConv" and facts.element_type(node.input[2]) == TensorProto.INT8
        ):
            gaining.update(tied)
    stuck = {groups.root(name) for name in blocked}
    chosen = {groups.root(name) for name in gaining} - stuck
    changed = frozenset(name for name in groups.names() if groups.root(name) in chosen)
    if changed:
        shift = _Shift(model.graph, facts)
        for node in nodes:
            keeps_weight = _keeps_weight(node, facts, may_saturate)
            _retype(node, changed, shift.constant, facts, keeps_weight)
        kept = [v for v in model.graph.value_info if v.name not in changed]
        del model.graph.value_info[:]
        model.graph.value_info.extend(kept)
    return changed


class _Groups:
    """Values whose element types must agree."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, name: str) -> str:
        while (parent := self._parents.get(name, name)) != name:
            name = parent
        return name

    def tie(self, names: Iterable[str]) -> None:
        first, *others = [self.root(name) for name in names] or [""]
        if first:
            self._parents.setdefault(first, first)
        for other in others:
            self._parents[other] = first

    def names(self) -> Iterator[str]:
        return iter(self._parents)


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _tied(node: onnx.NodeProto, facts: Facts) -> tuple[list[str], bool]:
    """The computed values of `node` that are int8 or may be, and whether it takes uint8 as well."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        zero_known = len(node.input) > 2 and node.input[2] in facts.constants
        value = (node.output if node.op_type == "QuantizeLinear" else node.input)[0]
        return ([value] if _may_be_signed(value, facts) else []), zero_known
    tied = [name for name in (*node.input, *node.output) if _may_be_signed(name, facts)]
    if _key(node) == ("", node.op_type) and node.op_type in _PASSING:
        return tied, True
    _, zeros = _positions(node)
    given = [node.input[i] for i in zeros if i < len(node.input) and node.input[i]]
    return tied, bool(zeros) and all(name in facts.constants for name in given)


def _may_be_signed(name: str, facts: Facts) -> bool:
    if not name or name in facts.constants:
        return False
    return facts.element_type(name) in (TensorProto.INT8, TensorProto.UNDEFINED)


def _positions(node: onnx.NodeProto) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where among the inputs of `node` quantised tensors and zero points stand."""
    key = _key(node)
    if key == (MICROSOFT, "QLinearConcat"):
        count = len(node.input)
        return tuple(range(2, count, 3)), (1, *range(4, count, 3))
    if key in (("", "QuantizeLinear"), ("", "DequantizeLinear")):
        return (), (2,)
    return _LAYOUTS.get(key, ((), ()))


def _keeps_weight(node: onnx.NodeProto, facts: Facts, may_saturate: frozenset[str]) -> bool:
    """Whether int8 weights may meet uint8 images without changing what the user gets."""
    if node.op_type != "QLinearConv" or node.input[3] not in facts.constants:
        return False
    weight = facts.constants[node.input[3]]
    return node.output[0] in may_saturate or bool(
        np.abs(weight.astype(np.int16)).max() <= _NO_SATURATION
    )


def _retype(
    node: onnx.NodeProto,
    changed: frozenset[str],
    shift: Callable[[str], str],
    facts: Facts,
    keeps_weight: bool,
) -> None:
    if changed.isdisjoint((*node.input, *node.output)):
        return
    tensors, zeros = _positions(node)
    kept = _WEIGHT_INPUTS if keeps_weight else ()
    for index in {*tensors, *zeros}.difference(kept):
        name = node.input[index] if index < len(node.input) else ""
        if name in facts.constants and facts.element_type(name) == TensorProto.INT8:
            node.input[index] = shift(name)


class _Shift:
    """Unsigned versions of constants, made once each."""

    def __init__(self, graph: onnx.GraphProto, facts: Facts) -> None:
        self._graph, self._facts = graph, facts
        self._taken = set(all_names(graph))
        self._made: dict[str, str] = {}

    def constant(self, name: str) -> str:
        """The name of a uint8 initializer that holds constant `name` plus 128."""
        if name not in self._made:
            new = f"{name}.unsigned"
            while new in self._taken:
                new += "_"
            self._taken.add(new)
            shifted = (self._facts.constants[name].astype(np.int16) + 128).astype(np.uint8)
            self._graph.initializer.append(numpy_helper.from_array(shifted, new))
            self._made[name] = new
        return self._made[name]
