"""Which operators may run on images in another order of axes, and by which rule."""

from __future__ import annotations

import onnx

from edge_agent.model.nhwc_axes import (
    Find,
    Rule,
    along_axis,
    arg_reduce,
    concat,
    dropout,
    elementwise,
    gather,
    pad,
    qlinear_concat,
    quantise,
    reduce_,
    shape,
    slice_,
    softmax,
)
from edge_agent.model.nhwc_facts import Facts
from edge_agent.model.nhwc_forms import MICROSOFT
from edge_agent.model.nhwc_kernels import (
    batch_normalization,
    channels_first,
    channels_last_kernel,
    conv,
    global_pool,
    max_pool,
    resize,
)

# fmt: off
_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos",
    "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual",
    "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual",
    "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow",
    "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
    "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
)
_MICROSOFT_ELEMENTWISE = (
    "Gelu", "QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QuickGelu",
)
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)
_CHANNELS_FIRST = (
    "AveragePool", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalLpPool",
    "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "SpaceToDepth",
)
# fmt: on
_SYMMETRIC: dict[tuple[str, str], Find] = (
    {("", name): elementwise for name in _ELEMENTWISE}
    | {(MICROSOFT, name): elementwise for name in _MICROSOFT_ELEMENTWISE}
    | {("", "Concat"): concat, (MICROSOFT, "QLinearConcat"): qlinear_concat}
)
"""Operators whose image may be any of the inputs."""
_RULES: dict[tuple[str, str], Find] = (
    {("", name): reduce_ for name in _REDUCTIONS}
    | {("", name): channels_first for name in _CHANNELS_FIRST}
    | {
        ("", "ArgMax"): arg_reduce,
        ("", "ArgMin"): arg_reduce,
        ("", "BatchNormalization"): batch_normalization,
        ("", "Conv"): conv,
        ("", "DequantizeLinear"): quantise,
        ("", "Dropout"): dropout,
        ("", "Gather"): gather,
        ("", "GlobalAveragePool"): global_pool("ReduceMean"),
        ("", "GlobalMaxPool"): global_pool("ReduceMax"),
        ("", "LogSoftmax"): softmax,
        ("", "LpNormalization"): along_axis(-1),
        ("", "MaxPool"): max_pool,
        ("", "Pad"): pad,
        ("", "QLinearConv"): channels_last_kernel("QLinearConv", channels_last=1),
        ("", "QuantizeLinear"): quantise,
        ("", "Resize"): resize,
        ("", "Shape"): shape,
        ("", "Slice"): slice_,
        ("", "Softmax"): softmax,
        ("", "Split"): along_axis(0),
        (MICROSOFT, "FusedConv"): channels_first,
        (MICROSOFT, "QLinearAveragePool"): channels_last_kernel(
            "QLinearAveragePool", channels_last=1
        ),
        (MICROSOFT, "QLinearGlobalAveragePool"): channels_last_kernel(
            "QLinearGlobalAveragePool", channels_last=1
        ),
    }
)
"""Operators whose image is the first input."""


def rule_for(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    """The rule for `node`, or None if its values must stay in their own order."""
    key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
    if key in _SYMMETRIC:
        return _SYMMETRIC[key](node, facts) if any(map(facts.is_image, node.input)) else None
    find = _RULES.get(key)
    return find(node, facts) if find and node.input and facts.is_image(node.input[0]) else None
