"""Which neighbouring nodes ONNX Runtime runs as one, so that a cut between them costs time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from edge_agent.model.graph import ModelGraph
from edge_agent.model.scopes import plain_domain

_MAX_SPAN = 64
"""Nodes farther apart than this do not hold together what lies between them."""
_ANCHORS = frozenset(
    {
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
    }
)
"""Operators that take what follows them into their own kernel."""
_HEADS = _ANCHORS | {"BatchNormalization"}
_POINTWISE = frozenset(
    {
        "Abs",
        "Cast",
        "Celu",
        "Clip",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "PRelu",
        "Pow",
        "Reciprocal",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Tanh",
        "ThresholdedRelu",
    }
)
_BINARY = frozenset({"Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub", "Sum"})
_FOLLOWERS = _POINTWISE | _BINARY | {"BatchNormalization", "LayerNormalization", "QuantizeLinear"}
_NARROWING = frozenset(
    {
        "BatchNormalization",
        "InstanceNormalization",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceSum",
        "ReduceSumSquare",
        "Softmax",
    }
)
_STEPS = _POINTWISE | _NARROWING
"""Operators found between the ends of a formula that exporters write out, such as GELU."""


def held_together(graph: ModelGraph, *, with_joins: bool = True) -> list[bool]:
    """For each position, whether a cut there would part nodes that run as one.

    Held together are: an operator with a kernel of its own weight (convolution, matrix product)
    and the normalisation, activation, bias and residual addition behind it; an operator and the
    quantisation around it; and formulas that start and end in one value, such as x * sigmoid(x),
    GELU, softmax and layer normalisation written out.

    Not `with_joins`: a node that joins two computed values, such as a residual addition, is not
    held to what it joins; it would run as one with the last of them alone, and what is in front of
    it may be branches that run at once.
    """
    n = len(graph.nodes)
    begin, end = [0] * (n + 1), [0] * (n + 1)
    for first, last in _spans(graph, with_joins=with_joins):
        if last - first <= _MAX_SPAN:
            begin[first + 1] += 1
            end[last + 1] += 1
    depths = itertools.accumulate(b - e for b, e in zip(begin, end, strict=True))
    return [depth > 0 for depth in depths]


def _spans(graph: ModelGraph, *, with_joins: bool) -> Iterator[tuple[int, int]]:
    """First and last position of each group."""
    for position in range(len(graph.nodes)):
        operator = _operator(graph, position)
        if operator in _ANCHORS:
            yield position, _end_of_followers(graph, position, with_joins=with_joins)
        elif operator in ("DequantizeLinear", "DynamicQuantizeLinear"):
            yield position, _last_near_reader(graph, position)
        elif operator == "QuantizeLinear":
            producer = graph.producers.get(graph.nodes[position].input[0], -1)
            yield producer if producer >= 0 else position, position
    yield from _formulas(graph)


def _operator(graph: ModelGraph, position: int) -> str:
    node = graph.nodes[position]
    return "" if plain_domain(node.domain) else str(node.op_type)


def _last_near_reader(graph: ModelGraph, position: int) -> int:
    readers = itertools.chain(*(graph.users.get(n, ()) for n in graph.nodes[position].output))
    return max((r for r in readers if r - position <= _MAX_SPAN), default=position)


def _end_of_followers(graph: ModelGraph, first: int, *, with_joins: bool) -> int:
    """Position of the last node of the chain behind `first`; not `with_joins`: no node in it has a
    second activation."""
    last = first
    while True:
        node = graph.nodes[last]
        if len(node.output) != 1 or node.output[0] in graph.outputs:
            return last
        readers = graph.users.get(node.output[0], ())
        if len(readers) != 1 or _operator(graph, readers[0]) not in _FOLLOWERS:
            return last
        if not with_joins and len(_activations(graph, readers[0])) > 1:
            return last
        last = readers[0]


def _activations(graph: ModelGraph, position: int) -> list[str]:
    return [name for name in graph.reads[position] if not graph.is_constant(name)]


def _formulas(graph: ModelGraph) -> Iterator[tuple[int, int]]:
    """Groups of pointwise and reducing nodes that start and end in one value.

    `source[v]` is the value that v is computed from by such nodes alone, one step back. A binary
    node closes a formula when the ways back from its two operands meet.
    """
    source: dict[str, str] = {}
    for position, node in enumerate(graph.nodes):
        operator = _operator(graph, position)
        if operator not in _STEPS and operator not in _BINARY:
            continue
        operands = _activations(graph, position)
        if len(operands) == 1:
            source[node.output[0]] = operands[0]
        elif len(operands) == 2 and operator in _BINARY:
            found = _meeting(source, operands[0], operands[1])
            if found is not None:
                start, passed = found
                source[node.output[0]] = start
                first = min(graph.producers[name] for name in (*passed, node.output[0]))
                if _starts_inside(graph, start, position):
                    first = graph.producers[start]
                yield first, _end_of_followers(graph, position, with_joins=False)


def _starts_inside(graph: ModelGraph, start: str, last: int) -> bool:
    """Whether the node that gives `start` belongs to the formula from there to `last`.

    It does if nothing else reads `start` (a bias before GELU, a residual before layer
    normalisation: ONNX Runtime fuses them too) or if it takes activations into its kernel.
    """
    producer = graph.producers[start]
    if producer < 0:
        return False
    is_read_later = start in graph.outputs or graph.users[start][-1] > last
    return not is_read_later or _operator(graph, producer) in _HEADS


def _meeting(source: dict[str, str], a: str, b: str) -> tuple[str, tuple[str, ...]] | None:
    """Where the ways back from `a` and `b` meet, and the values passed before that."""
    ways = _way_back(source, a), _way_back(source, b)
    start = next((name for name in ways[0] if name in ways[1]), None)
    if start is None:
        return None
    passed = tuple(name for way in ways for name in itertools.takewhile(start.__ne__, way))
    return start, passed


def _way_back(source: dict[str, str], name: str) -> list[str]:
    way = [name]
    while way[-1] in source and len(way) < _MAX_SPAN:
        way.append(source[way[-1]])
    return way
