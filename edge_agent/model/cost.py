"""What one node demands: arithmetic operations, bytes of activations and constants, threads.

Operations follow from the definitions in the ONNX operator specification
(https://onnx.ai/onnx/operators): a multiply-add counts two, and any function of one element (exp,
tanh, a comparison) counts one. A shape that is not known counts as nothing, and so do the bodies
of If, Loop and Scan, of which nobody knows how often they run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from edge_agent.model.graph import ModelGraph
from edge_agent.model.scopes import plain_domain
from edge_agent.model.values import spec_bytes
from edge_agent.tensors import Shape, TensorName, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """What one run of one node demands."""

    operations: int
    activation_bytes: int
    """Bytes of activations read and written; 0 for operators that only give a view."""
    weight_bytes: int
    """Bytes of constants read."""
    is_parallel: bool
    """Whether ONNX Runtime's CPU kernel for it spreads over threads."""

    @property
    def work(self) -> int:
        """A rough measure to compare nodes by: operations and bytes, never 0."""
        return 1 + self.operations + self.activation_bytes + self.weight_bytes


class Operands:
    """The shapes of what a node reads and writes; an unknown shape has no elements."""

    def __init__(self, node: onnx.NodeProto, specs: Mapping[TensorName, TensorSpec]) -> None:
        self.node = node
        self._specs = specs

    def shape_in(self, index: int) -> Shape:
        """Shape of an input, or (0,) if it is absent or not known."""
        return self._shape(self.node.input, index)

    def shape_out(self, index: int = 0) -> Shape:
        """Shape of an output, or (0,) if it is absent or not known."""
        return self._shape(self.node.output, index)

    def size_in(self, index: int = 0) -> int:
        """Elements of an input."""
        return math.prod(self.shape_in(index))

    def size_out(self, index: int = 0) -> int:
        """Elements of an output."""
        return math.prod(self.shape_out(index))

    def has_input(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def attribute(self, name: str) -> onnx.AttributeProto | None:
        """An attribute by its name; None if it is left out."""
        return next((a for a in self.node.attribute if a.name == name), None)

    def integer(self, name: str, default: int) -> int:
        """The value of an integer attribute."""
        found = self.attribute(name)
        return default if found is None else int(found.i)

    def _shape(self, names: list[str], index: int) -> Shape:
        spec = self._specs.get(TensorName(names[index])) if index < len(names) else None
        if spec is None or spec.dims is None:
            return (0,)
        shape = tuple(d for d in spec.dims if isinstance(d, int))
        return shape if len(shape) == len(spec.dims) else (0,)


Formula = Callable[[Operands], int]


def _convolution(weights: int, bias: int) -> Formula:
    """Y elements x (2 x C/group x kernel + 1 for the bias); weights are (M, C/group, kernel)."""

    def formula(of: Operands) -> int:
        per_output = 2 * math.prod(of.shape_in(weights)[1:])
        return of.size_out() * (per_output + of.has_input(bias))

    return formula


def _transposed_convolution(of: Operands) -> int:
    """2 x X elements x M/group x kernel + Y elements for the bias; weights (C, M/group, kernel)."""
    products = 2 * of.size_in(0) * math.prod(of.shape_in(1)[1:])
    return products + of.size_out() * of.has_input(2)


def _fused_convolution(of: Operands) -> int:
    """A convolution, its activation and, with a fourth input, the addition of that."""
    return _convolution(1, 2)(of) + of.size_out() * (1 + of.has_input(3))


def _matrix_product(a: int = 0) -> Formula:
    """2 x Y elements x K, where K is the last dimension of A."""

    def formula(of: Operands) -> int:
        shape = of.shape_in(a)
        return 2 * of.size_out() * shape[-1] if shape else 0

    return formula


def _general_product(a: int = 0, c: int = 2) -> Formula:
    """2 x M x N x K + M x N for C; A is (M, K), or (K, M) with transA."""

    def formula(of: Operands) -> int:
        shape = of.shape_in(a)
        k = shape[0 if of.integer("transA", 0) else -1] if shape else 0
        return of.size_out() * (2 * k + of.has_input(c)) if k else 0

    return formula


def _product_with_bias(bias: int) -> Formula:
    """A matrix product and the addition of a bias, where one is given."""

    def formula(of: Operands) -> int:
        product = _matrix_product()(of)
        return product + of.size_out() * of.has_input(bias) if product else 0

    return formula


def _recurrent(of: Operands) -> int:
    """2 x steps x batch x (elements of W + elements of R): the gate products, of all directions."""
    return 2 * math.prod(of.shape_in(0)[:-1]) * (of.size_in(1) + of.size_in(2))


def _pool(of: Operands) -> int:
    """Y elements x kernel."""
    kernel = of.attribute("kernel_shape")
    return of.size_out() * math.prod(kernel.ints) if kernel is not None else 0


def _per_input(operations: int) -> Formula:
    """So many operations for each element of the first input."""
    return lambda of: operations * of.size_in()


def _per_output(operations: int = 1) -> Formula:
    """So many operations for each element of the output."""
    return lambda of: operations * of.size_out()


def _of_many(of: Operands) -> int:
    """One operation fewer than there are inputs, for each element of the output."""
    return (len(of.node.input) - 1) * of.size_out()


def _local_response(of: Operands) -> int:
    """Per element: its square, the sum of `size` neighbours, scale, shift, power, division."""
    return of.size_in() * (of.integer("size", 1) + 5)


def _resize(of: Operands) -> int:
    """Per output: 0 for nearest, else a multiply-add for each of the 2^d (4^d) points around it."""
    mode = of.attribute("mode")
    points = {b"linear": 2, b"cubic": 4}.get(mode.s if mode is not None else b"nearest", 0)
    scaled = sum(a != b for a, b in zip(of.shape_in(0), of.shape_out(), strict=False))
    return 2 * of.size_out() * points**scaled if points else 0


def _einsum(of: Operands) -> int:
    """Product of all index sizes x number of operands: a multiply-add for two operands."""
    equation = of.attribute("equation")
    text = equation.s.decode().replace(" ", "") if equation is not None else ""
    terms = text.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        shape = of.shape_in(index)
        if len(shape) != len(term):
            return 0
        sizes.update(zip(term, shape, strict=True))
    return math.prod(sizes.values()) * len(terms)


def _attention(of: Operands) -> int:
    """2 x queries x keys x width for Q K^T, as much for the sum over V; 5 per score (softmax).

    Q is (batch, [heads,] queries, width); keys is the last dimension but one of K.
    """
    query, keys = of.shape_in(0), of.shape_in(1)[-2:]
    if len(query) < 3 or len(keys) < 2:
        return 0
    heads = query[1] if len(query) == 4 else of.integer("num_heads", of.integer("q_num_heads", 1))
    scores = query[0] * heads * query[-2] * keys[0]
    return 4 * math.prod(query) * keys[0] + 5 * scores


def _packed_attention(of: Operands) -> int:
    """com.microsoft Attention: X (batch, n, d) times W (d, 3h), then attention of width h."""
    x, w = of.shape_in(0), of.shape_in(1)
    if len(x) != 3 or len(w) != 2:
        return 0
    batch, length, _ = x
    scores = batch * of.integer("num_heads", 1) * length * length
    return 2 * math.prod(x) * w[1] + 4 * batch * length * length * (w[1] // 3) + 5 * scores


def _block_quantised_product(of: Operands) -> int:
    """com.microsoft MatMulNBits: 2 x A elements x N."""
    return 2 * of.size_in() * of.integer("N", 0)


_ELEMENTWISE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater "
    "GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Mish Mod Mul "
    "Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus "
    "Softsign Sqrt Sub Swish Tan Tanh ThresholdedRelu Where Xor"
)
_OVER_INPUT = (
    "ArgMax ArgMin CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool ReduceL1 ReduceL2 "
    "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare TopK"
)
_FORMULAS: dict[str, Formula] = (
    {name: _per_output() for name in _ELEMENTWISE.split()}
    | {name: _per_input(1) for name in _OVER_INPUT.split()}
    | dict.fromkeys(("Max", "Mean", "Min", "Sum"), _of_many)
    | dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool)
    | dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent)
    | {
        "Attention": _attention,
        # Scale and shift; mean and variance are constants.
        "BatchNormalization": _per_input(2),
        "Conv": _convolution(1, 2),
        "ConvInteger": _convolution(1, 4),
        "ConvTranspose": _transposed_convolution,
        # Scale and shift.
        "DequantizeLinear": _per_output(2),
        # Minimum and maximum, scale, shift, round.
        "DynamicQuantizeLinear": _per_input(5),
        "Einsum": _einsum,
        "Gemm": _general_product(),
        # Mean, difference, square, its sum, division, scale, shift.
        "GroupNormalization": _per_input(7),
        "InstanceNormalization": _per_input(7),
        "LayerNormalization": _per_input(7),
        # Maximum, difference, exponential, sum, division (or difference of the logarithm).
        "LogSoftmax": _per_input(5),
        # Square, its sum, division.
        "LpNormalization": _per_input(3),
        "LRN": _local_response,
        "MatMul": _matrix_product(),
        "MatMulInteger": _matrix_product(),
        "QLinearConv": _convolution(3, 8),
        "QLinearMatMul": _matrix_product(),
        # Scale, shift, round.
        "QuantizeLinear": _per_output(3),
        # Square, its sum, division, scale.
        "RMSNormalization": _per_input(4),
        "Resize": _resize,
        "Softmax": _per_input(5),
    }
)
_MICROSOFT_FORMULAS: dict[str, Formula] = {
    "Attention": _packed_attention,
    "BiasGelu": _per_output(2),
    "DequantizeLinear": _per_output(2),
    "DynamicQuantizeLSTM": _recurrent,
    "DynamicQuantizeMatMul": _product_with_bias(4),
    "FastGelu": _per_output(),
    "FusedConv": _fused_convolution,
    "FusedGemm": _general_product(),
    "FusedMatMul": _matrix_product(),
    "Gelu": _per_output(),
    "GroupQueryAttention": _attention,
    "MatMulIntegerToFloat": _product_with_bias(6),
    "MatMulNBits": _block_quantised_product,
    "MultiHeadAttention": _attention,
    "QGemm": _general_product(c=6),
    "QLinearAdd": _per_output(),
    "QLinearLeakyRelu": _per_output(),
    "QLinearMul": _per_output(),
    "QLinearSigmoid": _per_output(),
    "QuantizeLinear": _per_output(3),
    "QuickGelu": _per_output(2),
    "SimplifiedLayerNormalization": _per_input(4),
    "SkipLayerNormalization": _per_input(8),
    "SkipSimplifiedLayerNormalization": _per_input(5),
}
_SERIAL_NAMES = (
    "BatchNormalization Cast Cos CumSum DequantizeLinear InstanceNormalization IsInf IsNaN "
    "LpNormalization Max Mean Min Mod Round Sin Sum Tan Where"
)
_SERIAL = frozenset(_SERIAL_NAMES.split())
"""Measured on ONNX Runtime 1.32, CPU, two threads, 8 MiB: the second thread took no part in these
or the like of them, and did a third to all of its share in the 35 other operators tried."""
_VIEWS = frozenset(
    {"Dropout", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"}
)
_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
"""Operators that read only the rows of a constant that they give out."""


def operator_cost(
    graph: ModelGraph, position: int, specs: Mapping[TensorName, TensorSpec]
) -> OperatorCost:
    """The cost of one run of the node at `position`."""
    node = graph.nodes[position]
    operator, domain = str(node.op_type), plain_domain(node.domain)
    formulas = {"": _FORMULAS, "com.microsoft": _MICROSOFT_FORMULAS}.get(domain, {})
    formula = formulas.get(operator)
    operations = formula(Operands(node, specs)) if formula is not None else 0
    return OperatorCost(
        operations=operations,
        activation_bytes=_activation_bytes(graph, position, specs),
        weight_bytes=sum(weights_read(graph, position, specs).values()),
        is_parallel=operations > 0 and operator not in _SERIAL,
    )


def _activation_bytes(
    graph: ModelGraph, position: int, specs: Mapping[TensorName, TensorSpec]
) -> int:
    node = graph.nodes[position]
    if node.op_type in _VIEWS and not plain_domain(node.domain):
        return 0
    names = [name for name in graph.reads[position] if not graph.is_constant(name)]
    names += filter(None, node.output)
    return sum(spec_bytes(specs.get(TensorName(name))) or 0 for name in names)


def weights_read(
    graph: ModelGraph, position: int, specs: Mapping[TensorName, TensorSpec]
) -> dict[str, int]:
    """Bytes that the node at `position` reads of each stored constant, those of its bodies taken
    together (`ModelGraph.own_root`)."""
    found: dict[str, int] = {}
    own = graph.own_root(position)
    if own:
        found[own] = graph.root_bytes(own)
    for name in graph.reads[position]:
        for root in graph.constant_roots(name):
            found[root] = graph.root_bytes(root)
    node = graph.nodes[position]
    if node.op_type in _LOOKUPS and graph.is_constant(node.input[0]):
        given = spec_bytes(specs.get(TensorName(node.output[0])))
        for root in graph.constant_roots(node.input[0]):
            found[root] = min(found[root], found[root] if given is None else given)
    return found
