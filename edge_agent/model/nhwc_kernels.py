"""Operators that know which axis holds the channels, and what replaces them channels-last.

They say what is channels-first in a graph, and most exist in that order only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from edge_agent.model.nhwc_axes import (
    Find,
    Rule,
    Write,
    images_of,
    put_all,
    results_of,
    write_copy,
)
from edge_agent.model.nhwc_choice import Step
from edge_agent.model.nhwc_facts import Facts
from edge_agent.model.nhwc_forms import MICROSOFT, RANK, Forms, Perm, attributes

Floats = npt.NDArray[np.floating[Any]]


def channels_first(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    """Operators that exist channels-first only; they say which axis holds the channels."""
    if not facts.is_image(node.input[0]):
        return None
    images = images_of(node, facts)
    plain = tuple(name for name in node.input if name not in images)
    step = Step(images=images, results=results_of(node), plain=plain, anchored=True, last_ns=None)
    return Rule(step=step, write=None)


def resize(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    given = attributes(node)
    mode = given.get("mode", b"nearest")
    crop = given.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    if facts.opset < 11 or crop or "axes" in given or given.get("antialias") or mode == b"cubic":
        return channels_first(node, facts)
    sizes = facts.dims(node.input[-1])
    if not sizes or sizes[0] != RANK:
        return channels_first(node, facts)

    def write(forms: Forms, order: Perm) -> None:
        inputs = [forms.get(node.input[0], order), *map(forms.plain, node.input[1:])]
        indices = forms.constant(np.array(order), "order")
        inputs[-1] = forms.fresh(f"{node.input[-1]}.ordered")
        forms.add("Gather", [forms.plain(node.input[-1]), indices], [inputs[-1]])
        write_copy(forms, node, inputs, put_all(forms, node, order))

    step = Step(
        images=(node.input[0],),
        results=results_of(node),
        plain=tuple(node.input[1:]),
        anchored=True,
        last_ns=round(0.5 * facts.elements(node.output[0])),
    )
    return Rule(step=step, write=write)


def _anchored(
    node: onnx.NodeProto,
    write: Write,
    *,
    first_ns: int = 0,
    last_ns: int = 0,
    kernel: str | None = None,
) -> Rule:
    step = Step(
        images=(node.input[0],),
        results=results_of(node),
        plain=tuple(node.input[1:]),
        anchored=True,
        first_ns=first_ns,
        last_ns=last_ns,
    )
    return Rule(step=step, write=write, kernel=kernel)


def conv(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    if not _is_pointwise(node, facts):
        return channels_first(node, facts)
    strides = attributes(node).get("strides", [1, 1])

    def write(forms: Forms, order: Perm) -> None:
        source = forms.get(node.input[0], order)
        if strides != [1, 1]:
            source = _write_strided(forms, source, strides, node.output[0])
        weight = facts.constants[node.input[1]][:, :, 0, 0].T
        matrix = forms.constant(weight, f"{node.input[1]}.matrix")
        result = forms.put(node.output[0], order)
        if len(node.input) < 3 or not node.input[2]:
            forms.add("MatMul", [source, matrix], [result])
            return
        product = forms.fresh(f"{node.output[0]}.product")
        forms.add("MatMul", [source, matrix], [product])
        forms.add("Add", [product, forms.plain(node.input[2])], [result])

    return _anchored(node, write, kernel="Conv", first_ns=_pointwise_gain_ns(node, facts))


def _pointwise_gain_ns(node: onnx.NodeProto, facts: Facts) -> int:
    """What a matrix product saves over a 1x1 Conv, in nanoseconds.

    Measured on one core of an EPYC 7003, images of 7 to 56 pixels a side: 0.0015 ns per operation
    (a tenth) from 250 channels on, nothing below.
    """
    out_channels, in_channels = facts.constants.shape(node.input[1])[:2]
    if out_channels * in_channels < 40_000:
        return 1
    return 1 + round(0.0015 * 2 * facts.elements(node.output[0]) * in_channels)


def _is_pointwise(node: onnx.NodeProto, facts: Facts) -> bool:
    given = attributes(node)
    weight = node.input[1]
    strides = given.get("strides", [1, 1])
    return (
        weight in facts.constants
        and facts.element_type(weight) == TensorProto.FLOAT
        and facts.constants.shape(weight)[2:] == (1, 1)
        and given.get("group", 1) == 1
        and not any(given.get("pads", []))
        and (strides == [1, 1] or facts.opset >= 10)
    )


def _write_strided(forms: Forms, source: str, strides: list[int], hint: str) -> str:
    result = forms.fresh(f"{hint}.strided")
    zero = forms.constant(np.array([0, 0]), "starts")
    end = forms.constant(np.array([2**62, 2**62]), "ends")
    axes = forms.constant(np.array([1, 2]), "axes")
    steps = forms.constant(np.array(strides), "steps")
    forms.add("Slice", [source, zero, end, axes, steps], [result])
    return result


def batch_normalization(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    given = attributes(node)
    constant = all(name in facts.constants for name in node.input[1:5])
    if not constant or given.get("training_mode") or len(results_of(node)) > 1:
        return channels_first(node, facts)

    def write(forms: Forms, order: Perm) -> None:
        factor, offset = normalization(node, facts)
        scaled = forms.fresh(f"{node.output[0]}.scaled")
        scale = forms.constant(factor, f"{node.input[1]}.factor")
        shift = forms.constant(offset, f"{node.input[2]}.offset")
        forms.add("Mul", [forms.get(node.input[0], order), scale], [scaled])
        forms.add("Add", [scaled, shift], [forms.put(node.output[0], order)])

    return _anchored(node, write)


def normalization(node: onnx.NodeProto, facts: Facts) -> tuple[Floats, Floats]:
    """Factor and offset per channel of a BatchNormalization (ONNX operator specification)."""
    scale, bias, mean, variance = (facts.constants[name] for name in node.input[1:5])
    epsilon = attributes(node).get("epsilon", 1e-5)
    wide = (np.asarray(a, np.float64) for a in (scale, bias, mean, variance))
    scale64, bias64, mean64, variance64 = wide
    factor = scale64 / np.sqrt(variance64 + epsilon)
    return factor.astype(scale.dtype), (bias64 - mean64 * factor).astype(scale.dtype)


def global_pool(reduction: str) -> Find:
    def find(node: onnx.NodeProto, facts: Facts) -> Rule | None:
        def write(forms: Forms, order: Perm) -> None:
            inputs = [forms.get(node.input[0], order)]
            by_input = facts.opset >= 18
            if by_input:
                inputs.append(forms.constant(np.array([1, 2]), "axes"))
            axes = None if by_input else [1, 2]
            forms.add(reduction, inputs, [forms.put(node.output[0], order)], axes=axes, keepdims=1)

        return _anchored(node, write)

    return find


def max_pool(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    quantised = facts.element_type(node.input[0]) in (TensorProto.UINT8, TensorProto.INT8)
    if not quantised or len(results_of(node)) > 1:
        return channels_first(node, facts)
    return channels_last_kernel("NhwcMaxPool", storage_order=None)(node, facts)


def _channels(node: onnx.NodeProto, facts: Facts) -> int:
    dims = facts.dims(node.input[0])
    return dims[1] if dims and isinstance(dims[1], int) else 0


def channels_last_kernel(op_type: str, **new: object) -> Find:
    """Quantised operators for which com.microsoft has a channels-last kernel."""

    def find(node: onnx.NodeProto, facts: Facts) -> Rule | None:
        given = attributes(node)
        if not facts.is_image(node.input[0]) or given.get("channels_last"):
            return None

        def write(forms: Forms, order: Perm) -> None:
            inputs = [forms.get(node.input[0], order), *map(forms.plain, node.input[1:])]
            kept = {k: v for k, v in given.items() if k not in new}
            outputs = put_all(forms, node, order)
            forms.add(op_type, inputs, outputs, domain=MICROSOFT, **kept, **new)

        if 1 < given.get("group", 1) < _channels(node, facts):
            return channels_first(node, facts)
        # The channels-first kernels transpose inside, on the way in and on the way out, which is a
        # little quicker than nodes of their own.
        both = facts.transpose_ns(node.input[0]) + facts.transpose_ns(node.output[0])
        return _anchored(node, write, kernel=node.op_type, first_ns=round(0.9 * both))

    return find
