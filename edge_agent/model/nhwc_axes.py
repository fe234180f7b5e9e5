"""What becomes of an operator's axes when its images come in another order.

A rule is found per node: what the choice of orders has to know of it (a `Step`), and how to write
it in a chosen order. The operators here work in any order of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from edge_agent.model.nhwc_choice import Step
from edge_agent.model.nhwc_facts import Facts
from edge_agent.model.nhwc_forms import RANK, Forms, Perm, attributes

Write = Callable[[Forms, Perm], None]
Find = Callable[[onnx.NodeProto, Facts], "Rule | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one node takes part in the choice, and how it is written in the chosen order."""

    step: Step
    write: Write | None
    """Writes the node with its images in an order other than their own; None where `step` has
    no channels-last way."""
    kernel: str | None = None
    """What the node becomes channels-last, if that is another kernel than before."""


def write_copy(
    forms: Forms, node: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str], **new: object
) -> None:
    """Write `node` with other inputs and outputs; `new` attributes replace, None removes."""
    kept = {k: v for k, v in attributes(node).items() if k not in new}
    forms.add(node.op_type, inputs, outputs, domain=node.domain, **kept, **new)


def moved(axis: int, order: Perm) -> int:
    """Where `axis` (negative counts from the end) lies when the axes are in `order`."""
    return order.index(axis % RANK)


def images_of(node: onnx.NodeProto, facts: Facts) -> tuple[str, ...]:
    return tuple(name for name in node.input if name and facts.is_image(name))


def results_of(node: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(name for name in node.output if name)


def put_all(forms: Forms, node: onnx.NodeProto, order: Perm) -> list[str]:
    return [forms.put(name, order) if name else "" for name in node.output]


def _operand(forms: Forms, facts: Facts, name: str, order: Perm) -> str:
    """One broadcasting operand in `order`; see `_broadcasts`."""
    if name and facts.is_image(name):
        return forms.get(name, order)
    if not name or facts.is_scalar(name):
        return forms.plain(name)
    array = facts.constants[name]
    full = array.reshape((1,) * (RANK - array.ndim) + array.shape)
    return forms.constant(full.transpose(order), f"{name}.{''.join(map(str, order))}")


def _broadcasts(name: str, facts: Facts) -> bool:
    """Whether an operand can be brought into another order together with the images."""
    if not name or facts.is_image(name) or facts.is_scalar(name):
        return True
    return name in facts.constants and len(facts.constants.shape(name)) <= RANK


def elementwise(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    if not all(_broadcasts(name, facts) for name in node.input):
        return None

    def write(forms: Forms, order: Perm) -> None:
        inputs = [_operand(forms, facts, name, order) for name in node.input]
        write_copy(forms, node, inputs, put_all(forms, node, order))

    step = Step(images=images_of(node, facts), results=results_of(node), plain=())
    return Rule(step=step, write=write)


def along_axis(default: int) -> Find:
    """Operators with one `axis` over which they work, all inputs in one order."""

    def find(node: onnx.NodeProto, facts: Facts) -> Rule | None:
        axis = attributes(node).get("axis", default)
        images = images_of(node, facts)

        def write(forms: Forms, order: Perm) -> None:
            inputs = [
                forms.get(name, order) if _is_four(name, facts) else forms.plain(name)
                for name in node.input
            ]
            outputs = put_all(forms, node, order)
            write_copy(forms, node, inputs, outputs, axis=moved(axis, order))

        plain = tuple(name for name in node.input if name not in images)
        step = Step(images=images, results=results_of(node), plain=plain)
        return Rule(step=step, write=write)

    return find


def _is_four(name: str, facts: Facts) -> bool:
    dims = facts.dims(name)
    return dims is not None and len(dims) == RANK


def dropout(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    # A training mode may come as an input; then the mask depends on the order.
    return elementwise(node, facts) if len(node.input) < 3 else None


def concat(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    return along_axis(1)(node, facts) if all(_is_four(n, facts) for n in node.input) else None


def qlinear_concat(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    tensors = node.input[2::3]
    return along_axis(1)(node, facts) if all(_is_four(n, facts) for n in tensors) else None


def softmax(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    # Before opset 13 softmax flattens everything after its axis.
    return along_axis(-1)(node, facts) if facts.opset >= 13 else None


def gather(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    dims = facts.dims(node.input[1])
    first_is_data = facts.is_image(node.input[0])
    return along_axis(0)(node, facts) if first_is_data and dims and len(dims) == 1 else None


def quantise(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    scale = facts.dims(node.input[1])
    if scale is None or len(scale) > 1 or not facts.is_image(node.input[0]):
        return None
    per_axis = len(scale) == 1 and scale[0] != 1
    axis = attributes(node).get("axis", 1)
    source, result = node.input[0], node.output[0]

    def write(forms: Forms, order: Perm) -> None:
        inputs = [forms.get(source, order), *map(forms.plain, node.input[1:])]
        new = {"axis": moved(axis, order)} if per_axis else {}
        write_copy(forms, node, inputs, [forms.put(result, order)], **new)

    step = Step(images=(source,), results=(result,), plain=tuple(node.input[1:]))
    return Rule(step=step, write=write)


def slice_(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    if facts.opset < 10:
        return None
    _, starts, _, axes, steps = (*node.input, "", "")[:5]
    where = facts.integers(axes) if axes else _first_axes(starts, facts)
    if where is None:
        return None
    # Starts, ends, axes and steps must be of one type.
    dtype = np.int32 if facts.element_type(starts) == TensorProto.INT32 else np.int64

    def write(forms: Forms, order: Perm) -> None:
        to = forms.constant(np.array([moved(a, order) for a in where], dtype), "axes")
        bounds = [forms.plain(node.input[1]), forms.plain(node.input[2]), to]
        inputs = [
            forms.get(node.input[0], order),
            *bounds,
            *([forms.plain(steps)] if steps else []),
        ]
        write_copy(forms, node, inputs, put_all(forms, node, order))

    return _single(node, write)


def _first_axes(starts: str, facts: Facts) -> tuple[int, ...] | None:
    dims = facts.dims(starts)
    return tuple(range(dims[0])) if dims and isinstance(dims[0], int) else None


def pad(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    if facts.opset < 11:
        return None
    axes = node.input[3] if len(node.input) > 3 else ""
    where = facts.integers(axes) if axes else tuple(range(RANK))
    pads = facts.integers(node.input[1])
    if where is None or pads is None or len(pads) != 2 * len(where):
        return None
    begin = {axis % RANK: pads[i] for i, axis in enumerate(where)}
    end = {axis % RANK: pads[i + len(where)] for i, axis in enumerate(where)}

    def write(forms: Forms, order: Perm) -> None:
        full = [side.get(axis, 0) for side in (begin, end) for axis in order]
        inputs = [forms.get(node.input[0], order), forms.constant(np.array(full), "pads")]
        if len(node.input) > 2:
            inputs.append(forms.plain(node.input[2]))
        write_copy(forms, node, inputs, put_all(forms, node, order))

    return _single(node, write)


def _single(node: onnx.NodeProto, write: Write) -> Rule:
    step = Step(images=(node.input[0],), results=results_of(node), plain=tuple(node.input[1:]))
    return Rule(step=step, write=write)


def reduce_(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    given = attributes(node)
    axes = given.get("axes")
    if len(node.input) > 1 and node.input[1]:
        axes = facts.integers(node.input[1])
        if axes is None:
            return None
    if not axes or not facts.is_image(node.input[0]):
        return None
    where = frozenset(axis % RANK for axis in axes)
    keeps = bool(given.get("keepdims", 1))

    def write(forms: Forms, order: Perm) -> None:
        to = sorted(moved(axis, order) for axis in where)
        _write_reduce(forms, node, forms.get(node.input[0], order), to, _reduced(forms, order))

    def _reduced(forms: Forms, order: Perm) -> str:
        if keeps:
            return forms.put(node.output[0], order)
        left = [axis for axis in order if axis not in where]
        return forms.put(node.output[0], tuple(sorted(left).index(axis) for axis in left))

    results = results_of(node) if keeps else ()
    plain = (*node.input[1:], *(() if keeps else node.output))
    return Rule(step=Step(images=(node.input[0],), results=results, plain=plain), write=write)


def _write_reduce(
    forms: Forms, node: onnx.NodeProto, source: str, axes: list[int], result: str
) -> None:
    if len(node.input) > 1:
        axes_input = forms.constant(np.array(axes), "axes")
        write_copy(forms, node, [source, axes_input], [result])
    else:
        write_copy(forms, node, [source], [result], axes=axes)


def arg_reduce(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    return along_axis(0)(node, facts) if attributes(node).get("keepdims", 1) else None


def shape(node: onnx.NodeProto, facts: Facts) -> Rule | None:
    """Asks a form that exists for its shape, rather than making the plain one for it."""
    given = attributes(node)
    start, end = given.get("start", 0), given.get("end", RANK)
    wanted = range(RANK)[start:end]
    if not wanted or not facts.is_image(node.input[0]):
        return None

    def write(forms: Forms, order: Perm) -> None:
        whole = forms.fresh(f"{node.output[0]}.{''.join(map(str, order))}")
        forms.add("Shape", [forms.get(node.input[0], order)], [whole])
        indices = forms.constant(np.array([moved(axis, order) for axis in wanted]), "order")
        forms.add("Gather", [whole, indices], list(node.output))

    return Rule(
        step=Step(images=(node.input[0],), results=(), plain=tuple(node.output)), write=write
    )
