"""Operators that ONNX Runtime fuses only while they are neighbours, fused before layouts change.

A BatchNormalization goes into the weights of the convolution before it, and a convolution between
DequantizeLinear and QuantizeLinear becomes a QLinearConv: transposes may then come between nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_agent.model.nhwc_facts import Facts, all_names, drop_dead_nodes
from edge_agent.model.nhwc_forms import attributes
from edge_agent.model.nhwc_kernels import normalization

_QUANTISED = (TensorProto.UINT8, TensorProto.INT8)


def fold_neighbours(model: onnx.ModelProto, facts: Facts) -> frozenset[str]:
    """Fold in place what must stay together; the outputs of convolutions that became quantised."""
    makers = {name: node for node in model.graph.node for name in node.output if name}
    taken = set(all_names(model.graph))
    quantised = set()
    for node in list(model.graph.node):
        if node.op_type == "BatchNormalization":
            _fold_normalization(model.graph, node, makers, facts, taken)
        if node.op_type == "QuantizeLinear":
            _fold_max_pool(node, makers, facts)
        if node.op_type == "QuantizeLinear" and _fold_quantised(node, makers, facts):
            quantised.add(node.output[0])
    drop_dead_nodes(model.graph, list(model.graph.node))
    return frozenset(quantised)


def _sole_maker(
    name: str, op_types: tuple[str, ...], makers: Mapping[str, onnx.NodeProto], facts: Facts
) -> onnx.NodeProto | None:
    """The node that makes `name` for one user only, if it is of one of these operators."""
    node = makers.get(name)
    if node is None or node.op_type not in op_types or node.domain not in ("", "ai.onnx"):
        return None
    return node if facts.uses[name] == 1 else None


def _fold_normalization(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    makers: dict[str, onnx.NodeProto],
    facts: Facts,
    taken: set[str],
) -> None:
    conv = _sole_maker(node.input[0], ("Conv",), makers, facts)
    outputs = [name for name in node.output if name]
    if conv is None or len(outputs) > 1 or attributes(node).get("training_mode"):
        return
    constants = (*conv.input[1:], *node.input[1:5])
    if not all(name in facts.constants for name in constants):
        return
    if facts.element_type(conv.input[1]) != TensorProto.FLOAT:
        return
    factor, offset = normalization(node, facts)
    weight = facts.constants[conv.input[1]]
    bias = facts.constants[conv.input[2]] if len(conv.input) > 2 else np.zeros_like(offset)
    scaled = weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
    inputs = [
        conv.input[0],
        *(_fresh(f"{outputs[0]}.{part}", taken) for part in ("weight", "bias")),
    ]
    for array, name in zip((scaled, bias * factor + offset), inputs[1:], strict=True):
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    _turn_into(node, conv, inputs)
    conv.output[0] = _fresh(f"{outputs[0]}.unused", taken)
    makers[outputs[0]] = node


def _fresh(hint: str, taken: set[str]) -> str:
    name = hint
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _turn_into(node: onnx.NodeProto, model: onnx.NodeProto, inputs: list[str]) -> None:
    """Make `node` an operator like `model` that reads `inputs` and writes its old first output."""
    output = node.output[0]
    node.op_type = model.op_type
    del node.attribute[:], node.input[:], node.output[:]
    node.attribute.extend(model.attribute)
    node.input.extend(inputs)
    node.output.append(output)


def _fold_quantised(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], facts: Facts
) -> bool:
    """Turn `node`, a QuantizeLinear, into the QLinearConv of the convolution before it."""
    source = node.input[0]
    relu = _sole_maker(source, ("Relu", "Clip"), makers, facts)
    if relu is not None:
        if not _is_absorbed(relu, node, facts):
            return False
        source = relu.input[0]
    conv = _sole_maker(source, ("Conv",), makers, facts)
    parts = [makers.get(name) for name in conv.input] if conv is not None else []
    if conv is None or len(node.input) < 3:
        return False
    if not all(p is not None and _is_plain_dequantize(p) for p in parts):
        return False
    image, weight, *bias = (p for p in parts if p is not None)
    if not _is_quantised_conv(image, weight, bias, node, facts):
        return False
    inputs = [*image.input[:3], *weight.input[:3], *node.input[1:3], *(b.input[0] for b in bias)]
    _turn_into(node, helper.make_node("QLinearConv", [], []), inputs)
    node.attribute.extend(conv.attribute)
    return True


def _fold_max_pool(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], facts: Facts
) -> None:
    """Turn `node`, a QuantizeLinear, into a MaxPool of quantised values: rounding is monotone."""
    pool = _sole_maker(node.input[0], ("MaxPool",), makers, facts)
    image = makers.get(pool.input[0]) if pool is not None else None
    if pool is None or image is None or facts.opset < 12 or not _is_plain_dequantize(image):
        return
    names = (*image.input[1:], *node.input[1:])
    if len(image.input) < 3 or not all(name in facts.constants for name in names):
        return
    pairs = zip(image.input[1:], node.input[1:], strict=True)
    same = all(np.array_equal(facts.constants[a], facts.constants[b]) for a, b in pairs)
    if not same or facts.element_type(image.input[2]) != facts.element_type(node.input[2]):
        return
    _turn_into(node, pool, [image.input[0]])


def _is_plain_dequantize(node: onnx.NodeProto) -> bool:
    return (
        node.op_type == "DequantizeLinear"
        and node.domain in ("", "ai.onnx")
        and not attributes(node).get("block_size")
    )


def _is_quantised_conv(
    image: onnx.NodeProto,
    weight: onnx.NodeProto,
    bias: list[onnx.NodeProto],
    quantize: onnx.NodeProto,
    facts: Facts,
) -> bool:
    constants = (*image.input[1:], *weight.input, *quantize.input[1:])
    if not all(name in facts.constants for name in constants):
        return False
    if len(image.input) < 3 or len(weight.input) < 3:
        return False
    types = [facts.element_type(node.input[2]) for node in (image, weight, quantize)]
    # The kernel takes uint8 images with any weights, int8 images with int8 weights.
    if types[0] != types[2] or types[0] not in _QUANTISED or types[1] not in _QUANTISED:
        return False
    if types[0] == TensorProto.INT8 and types[1] != TensorProto.INT8:
        return False
    scalars = (*image.input[1:3], *quantize.input[1:3])
    if not all(math.prod(facts.constants.shape(name)) == 1 for name in scalars):
        return False
    per_channel = math.prod(facts.constants.shape(weight.input[1])) > 1
    if per_channel and attributes(weight).get("axis", 1) != 0:
        return False
    return all(_is_fitting_bias(b, image, weight, facts) for b in bias)


def _is_fitting_bias(
    bias: onnx.NodeProto, image: onnx.NodeProto, weight: onnx.NodeProto, facts: Facts
) -> bool:
    """Whether the bias is counted in steps of image scale times weight scale, as QLinearConv's."""
    if not all(name in facts.constants for name in bias.input):
        return False
    if facts.element_type(bias.input[0]) != TensorProto.INT32:
        return False
    if len(bias.input) > 2 and np.any(facts.constants[bias.input[2]]):
        return False
    want = facts.constants[image.input[1]] * facts.constants[weight.input[1]]
    have = facts.constants[bias.input[1]]
    return bool(np.allclose(np.broadcast_to(have, np.broadcast(have, want).shape), want, rtol=1e-4))


def _is_absorbed(relu: onnx.NodeProto, quantize: onnx.NodeProto, facts: Facts) -> bool:
    """Whether quantizing cuts off at least all that the activation would."""
    names = [name for name in (*relu.input[1:], *quantize.input[1:3]) if name]
    if len(quantize.input) < 3 or not all(name in facts.constants for name in names):
        return False
    scale, zero = (facts.constants[name] for name in quantize.input[1:3])
    if scale.size != 1 or zero.dtype not in (np.dtype(np.uint8), np.dtype(np.int8)):
        return False
    limits = np.iinfo(zero.dtype)
    lowest = float((int(limits.min) - zero.astype(np.int64).ravel()[0]) * scale.ravel()[0])
    highest = float((int(limits.max) - zero.astype(np.int64).ravel()[0]) * scale.ravel()[0])
    low, high = _bounds(relu, facts)
    half = float(scale.ravel()[0]) / 2
    return low <= lowest + 1e-6 * half and high >= highest - 1e-6 * half


def _bounds(activation: onnx.NodeProto, facts: Facts) -> tuple[float, float]:
    if activation.op_type == "Relu":
        return 0.0, math.inf
    given = attributes(activation)
    inputs = (*activation.input, "", "")[1:3]

    def bound(name: str, attribute: str, default: float) -> float:
        value = facts.constants[name] if name else given.get(attribute, default)
        return float(np.asarray(value).ravel()[0])

    return bound(inputs[0], "min", -math.inf), bound(inputs[1], "max", math.inf)
