"""Which models compute with quantised operators."""

from __future__ import annotations

from edge_agent.model.graph import ModelGraph

_QUANTISED_OPERATORS = frozenset(
    {
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "MatMulInteger",
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "QAttention",
    }
)


def is_quantised(graph: ModelGraph) -> bool:
    """Whether the model computes with quantised operators anywhere."""
    return any(node.op_type in _QUANTISED_OPERATORS for node in graph.nodes)
