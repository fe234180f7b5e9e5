"""What nodes demand by operator class and arithmetic, as they run: see `OperatorWork`.

A node that ONNX Runtime makes part of the one before it counts as nothing: the normalisation,
activation or bias behind a convolution or a product, if nothing else reads what lies between, and
the quantisation around an operator that then computes in integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edge_agent.model.cost import Operands, OperatorCost
from edge_agent.model.cuts import bounded
from edge_agent.model.graph import ModelGraph
from edge_agent.model.refusable import is_float, is_quantised, operator_of
from edge_agent.summaries import Arithmetic, OperatorClass, OperatorWork
from edge_agent.tensors import ElementType, TensorName, TensorSpec, ValueSpecs

_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "FusedConv": 1, "QLinearConv": 3}
"""Which input has the weights."""
_PRODUCTS = frozenset(
    {
        *("Attention", "DynamicQuantizeMatMul", "Einsum", "FusedGemm", "FusedMatMul", "Gemm"),
        *("GroupQueryAttention", "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"),
        *("MultiHeadAttention", "QGemm", "QLinearMatMul"),
    }
)
_RECURRENT = frozenset({"DynamicQuantizeLSTM", "GRU", "LSTM", "RNN"})
_MOVEMENTS = frozenset(
    {
        *("Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "Pad", "Reshape", "ScatterElements", "ScatterND", "Shape"),
        *("Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
        "QLinearConcat",
    }
)
_NORMALISING = ("Normalization", "LRN", "Softmax", "Reduce", "ArgMax", "ArgMin", "CumSum", "TopK")
_TAKES_FOLLOWERS = frozenset({*_CONVOLUTIONS, *_PRODUCTS}) - {"Attention", "Einsum"}
_TAKEN = frozenset(
    {
        *("Add", "BatchNormalization", "Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul"),
        *("Relu", "Sigmoid", "Sub", "Tanh"),
    }
)
_HALVES = frozenset({ElementType.FLOAT16, ElementType.BFLOAT16})
_BYTES = frozenset({ElementType.INT8, ElementType.UINT8})
_ARITHMETIC_CLASSES = frozenset(
    {
        *(OperatorClass.CONVOLUTION, OperatorClass.GROUPED, OperatorClass.DEPTHWISE),
        *(OperatorClass.PRODUCT, OperatorClass.RECURRENT),
    }
)


class WorkCounter:
    """Sums up what nodes of a graph demand."""

    def __init__(self, graph: ModelGraph, specs: ValueSpecs, costs: Sequence[OperatorCost]) -> None:
        self._costs = costs
        self._classes = [
            operator_class(graph, specs.tensors, at, costs[at].operations)
            for at in range(len(graph.nodes))
        ]
        self._arithmetics = [
            _arithmetic(graph, specs, at, kind) for at, kind in enumerate(self._classes)
        ]
        self._along = _taken_along(graph, specs)

    def between(self, start: int, stop: int) -> tuple[OperatorWork, ...]:
        """The work of nodes [start, stop), in the order of the classes and arithmetics."""
        return tuple(
            work
            for kind in OperatorClass
            for arithmetic in Arithmetic
            if (work := self._of(kind, arithmetic, start, stop)) is not None
        )

    def _of(
        self, kind: OperatorClass, arithmetic: Arithmetic, start: int, stop: int
    ) -> OperatorWork | None:
        found = [
            self._costs[at]
            for at in range(start, stop)
            if (self._classes[at], self._arithmetics[at]) == (kind, arithmetic)
            and not start <= self._along[at] < stop
        ]
        if not found:
            return None
        return OperatorWork(
            kind=kind,
            arithmetic=arithmetic,
            nodes=len(found),
            operations=bounded(sum(cost.operations for cost in found)),
            parallel_operations=bounded(sum(c.operations for c in found if c.is_parallel)),
            activation_bytes=bounded(sum(cost.activation_bytes for cost in found)),
            weight_bytes=bounded(sum(cost.weight_bytes for cost in found)),
        )


def operator_class(
    graph: ModelGraph, specs: Mapping[TensorName, TensorSpec], position: int, operations: int
) -> OperatorClass:
    """What sort of operator the node at `position` is; `operations` is what it demands."""
    node = graph.nodes[position]
    name = str(node.op_type)
    if name in _CONVOLUTIONS:
        operands = Operands(node, specs)
        if operands.integer("group", 1) <= 1:
            return OperatorClass.CONVOLUTION
        per_group = operands.shape_in(_CONVOLUTIONS[name])[1:2]
        return OperatorClass.DEPTHWISE if per_group == (1,) else OperatorClass.GROUPED
    if name in _PRODUCTS:
        return OperatorClass.PRODUCT
    if name in _RECURRENT:
        return OperatorClass.RECURRENT
    if name in _MOVEMENTS:
        return OperatorClass.MOVEMENT
    if name.endswith("Pool"):
        return OperatorClass.POOL
    if any(part in name for part in _NORMALISING):
        return OperatorClass.NORMALISATION
    return OperatorClass.ELEMENTWISE if operations else OperatorClass.OTHER


def _arithmetic(
    graph: ModelGraph, specs: ValueSpecs, position: int, kind: OperatorClass
) -> Arithmetic:
    node = graph.nodes[position]
    names = (*graph.reads[position], *filter(None, node.output))
    kinds = {spec.element_type for n in names if (spec := specs.tensors.get(TensorName(n)))}
    if is_quantised(graph, specs, position):
        return Arithmetic.INT8
    if kind in _ARITHMETIC_CLASSES and kinds & _BYTES and node.op_type != "MatMulNBits":
        return Arithmetic.INT8
    if not any(is_float(specs, name) for name in names):
        return Arithmetic.INT8
    if kinds & _HALVES and ElementType.FLOAT32 not in kinds:
        return Arithmetic.FLOAT16
    return Arithmetic.FLOAT32


def _taken_along(graph: ModelGraph, specs: ValueSpecs) -> list[int]:
    """For each position, that of the node of which the one there runs as a part if both are in one
    subgraph; -1: it runs by itself."""
    along: list[int] = []
    anchors: list[int] = []
    for position in range(len(graph.nodes)):
        operator = operator_of(graph, position)
        before = list(_only_producers(graph, position))
        is_behind_one = operator in _TAKEN and len(before) == 1 and before[0] >= 0
        anchor = anchors[before[0]] if is_behind_one else -1
        is_anchor = str(graph.nodes[position].op_type) in _TAKES_FOLLOWERS
        anchors.append(position if anchor < 0 and is_anchor else anchor)
        along.append(anchor if anchor >= 0 else _taken_by_integers(graph, specs, position))
    return along


def _only_producers(graph: ModelGraph, position: int) -> Iterator[int]:
    """Of each activation that a node reads, the node that gives it to this one alone; -1: it has
    other readers, or is given to the model."""
    for name in graph.reads[position]:
        if not graph.is_constant(name):
            is_only = len(graph.users.get(name, ())) == 1 and name not in graph.outputs
            yield graph.producers.get(name, -1) if is_only else -1


def _taken_by_integers(graph: ModelGraph, specs: ValueSpecs, position: int) -> int:
    node, operator = graph.nodes[position], operator_of(graph, position)
    if operator == "DequantizeLinear":
        readers = graph.users.get(node.output[0], ())
        if readers and all(_computes_quantised(graph, specs, at) for at in readers):
            return readers[-1]
    if operator == "QuantizeLinear":
        producer = graph.producers.get(node.input[0], -1)
        if producer >= 0 and _computes_quantised(graph, specs, producer):
            return producer
    return -1


def _computes_quantised(graph: ModelGraph, specs: ValueSpecs, position: int) -> bool:
    is_border = operator_of(graph, position) in ("QuantizeLinear", "DequantizeLinear")
    return not is_border and is_quantised(graph, specs, position)
