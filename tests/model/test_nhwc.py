"""Channels-last rewrites give the values of the original, and leave no transpose that cancels."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.model.nhwc import NhwcRewrite, rewrite_nhwc
from edge_agent.tensors import ElementType, TensorName, TensorSpec
from tests.model.nhwc_graphs import (
    MICROSOFT,
    TO_FIRST,
    TO_LAST,
    assert_equal_outputs,
    between_transposes,
    feeds_for,
    node,
    operators,
    pointwise,
    rewritten,
    run,
    value,
    write,
)

AXIS_CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], int]] = {
    "relu": ([node("Relu", "a", "b")], {}, 17),
    "clip with bounds": (
        [node("Clip", "a low -", "b")],
        {"low": np.float32(-0.1)},
        17,
    ),
    "channel bias": (
        [node("Add", "a k", "b")],
        {"k": np.arange(6, dtype=np.float32).reshape(6, 1, 1)},
        17,
    ),
    "full constant first": (
        [node("Sub", "k a", "b")],
        {"k": np.arange(210, dtype=np.float32).reshape(1, 6, 5, 7)},
        17,
    ),
    "row constant": ([node("Mul", "a k", "b")], {"k": np.arange(7, dtype=np.float32)}, 17),
    "prelu": (
        [node("PRelu", "a k", "b")],
        {"k": np.linspace(0, 1, 6, dtype=np.float32).reshape(6, 1, 1)},
        17,
    ),
    "concat on channels": ([node("Concat", "a a", "b", axis=1)], {}, 17),
    "concat on a negative axis": ([node("Concat", "a a", "b", axis=-2)], {}, 17),
    "concat with a constant": (
        [node("Concat", "a k", "b", axis=1)],
        {"k": np.ones((2, 3, 5, 7), np.float32)},
        17,
    ),
    "split and add": (
        [node("Split", "a", "p q", axis=-3), node("Add", "p q", "b")],
        {},
        17,
    ),
    "pad": (
        [node("Pad", "a k", "b")],
        {"k": np.array([0, 1, 2, 3, 0, 4, 5, 6])},
        17,
    ),
    "pad with axes": (
        [node("Pad", "a k - axes", "b")],
        {"k": np.array([1, 2, 3, 4]), "axes": np.array([-1, 1])},
        18,
    ),
    "slice on negative axes": (
        [node("Slice", "a s e axes steps", "b")],
        {
            "s": np.array([1, -1], np.int32),
            "e": np.array([6, -8], np.int32),
            "axes": np.array([-1, -3], np.int32),
            "steps": np.array([2, -1], np.int32),
        },
        17,
    ),
    "slice without axes": (
        [node("Slice", "a s e", "b")],
        {"s": np.array([0, 1]), "e": np.array([2, 4])},
        17,
    ),
    "gather": ([node("Gather", "a k", "b", axis=-3)], {"k": np.array([3, 0])}, 17),
    "mean over a negative axis, attribute": (
        [node("ReduceMean", "a", "b", axes=[-1, 1])],
        {},
        17,
    ),
    "mean over an axis, input": (
        [node("ReduceMean", "a k", "b")],
        {"k": np.array([-3])},
        18,
    ),
    "sum over an axis, input": ([node("ReduceSum", "a k", "b")], {"k": np.array([2, -1])}, 13),
    "largest index": (
        [node("ArgMax", "a", "i", axis=1), node("Cast", "i", "b", to=TensorProto.FLOAT)],
        {},
        17,
    ),
    "softmax over channels": ([node("Softmax", "a", "b", axis=1)], {}, 17),
    "softmax over the last axis": ([node("Softmax", "a", "b")], {}, 17),
    "resize by scales": (
        [node("Resize", "a - k", "b", mode="nearest")],
        {"k": np.array([1, 1, 2, 3], np.float32)},
        17,
    ),
    "resize to sizes, linear": (
        [node("Resize", "a - - k", "b", mode="linear")],
        {"k": np.array([2, 6, 9, 14])},
        17,
    ),
    "global average": (
        [node("GlobalAveragePool", "a", "g"), node("Mul", "a g", "b")],
        {},
        17,
    ),
    "global maximum at opset 18": (
        [node("GlobalMaxPool", "a", "g"), node("Mul", "a g", "b")],
        {},
        18,
    ),
    "lone batch normalization": (
        [node("Relu", "a", "r"), node("BatchNormalization", "r s o m v", "b", epsilon=0.01)],
        {
            "s": np.linspace(1, 2, 6, dtype=np.float32),
            "o": np.linspace(-1, 1, 6, dtype=np.float32),
            "m": np.linspace(0, 1, 6, dtype=np.float32),
            "v": np.linspace(0.5, 3, 6, dtype=np.float32),
        },
        17,
    ),
    "batch normalization behind a convolution": (
        [node("BatchNormalization", "a s o m v", "b")],
        {
            "s": np.linspace(1, 2, 6, dtype=np.float32),
            "o": np.linspace(-1, 1, 6, dtype=np.float32),
            "m": np.linspace(0, 1, 6, dtype=np.float32),
            "v": np.linspace(0.5, 3, 6, dtype=np.float32),
        },
        17,
    ),
    "strided convolution": (
        [node("Conv", "a w2", "b", strides=[2, 3])],
        {"w2": pointwise(5, 6)},
        17,
    ),
}


@pytest.mark.parametrize("case", AXIS_CASES)
def test_axes_are_mapped_and_all_transposes_cancel(case: str, tmp_path: Path) -> None:
    middle, constants, opset = AXIS_CASES[case]
    source = between_transposes(tmp_path, middle, constants, opset=opset)
    result, destination = rewritten(source)
    assert result.changed
    assert result.transposes == 0
    assert operators(destination)["Transpose"] == 0
    assert operators(destination)["Conv"] == 0
    assert_equal_outputs(source, destination)


def test_a_shape_is_asked_of_the_form_that_exists(tmp_path: Path) -> None:
    middle = [
        node("Relu", "a", "b"),
        node("Shape", "a", "shape"),
        node("Shape", "b", "part", start=-2),
    ]
    nodes = [
        node("Transpose", "x", "t", perm=TO_FIRST),
        node("Conv", "t w", "a"),
        *middle,
        node("Transpose", "b", "y", perm=TO_LAST),
    ]
    outputs = [value("y", None), value("shape", [4], 7), value("part", [2], 7)]
    weights = {"w": pointwise(6, 4)}
    source = write(tmp_path / "a.onnx", nodes, [value("x", [2, 5, 7, 4])], outputs, weights)
    result, destination = rewritten(source)
    assert result.transposes == 0
    assert_equal_outputs(source, destination)
    assert run(destination, feeds_for(source))[1].tolist() == [2, 6, 5, 7]


def test_a_reduction_that_drops_axes_keeps_the_order_of_the_others(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "t", perm=TO_FIRST),
        node("Conv", "t w", "a"),
        node("ReduceMax", "a", "y", axes=[-1], keepdims=0),
        node("ReduceMean", "a", "z", axes=[2, 3], keepdims=0),
    ]
    outputs = [value("y", [2, 6, 5]), value("z", [2, 6])]
    weights = {"w": pointwise(6, 4)}
    source = write(tmp_path / "a.onnx", nodes, [value("x", [2, 5, 7, 4])], outputs, weights)
    result, destination = rewritten(source)
    assert result.transposes == 0
    assert_equal_outputs(source, destination)


def test_a_kernel_that_exists_channels_first_only_stays_between_two_transposes(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    kernel = generator.standard_normal((6, 1, 3, 3)).astype(np.float32)
    middle = [
        node("Relu", "a", "r"),
        node("Conv", "r k", "d", group=6, pads=[1, 1, 1, 1]),
        node("MaxPool", "d", "m", kernel_shape=[2, 2]),
        node("Relu", "m", "b"),
    ]
    source = between_transposes(tmp_path, middle, {"k": kernel})
    result, destination = rewritten(source)
    if result.changed:
        assert_equal_outputs(source, destination)
    assert result.transposes <= 2


def test_transposes_around_every_convolution_become_two_at_the_borders(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    nodes, constants, last = [], {}, "x"
    for i in range(4):
        constants[f"w{i}"] = generator.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
        constants[f"b{i}"] = generator.standard_normal(8).astype(np.float32)
        nodes += [
            node("Transpose", last, f"f{i}", perm=TO_FIRST),
            node("Conv", f"f{i} w{i}", f"c{i}", pads=[1, 1, 1, 1]),
            node("Transpose", f"c{i}", f"l{i}", perm=TO_LAST),
            node("Add", f"l{i} b{i}", f"s{i}"),
            node("HardSwish", f"s{i}", f"h{i}"),
            node("Pad", f"h{i} pads{i}", f"p{i}"),
        ]
        constants[f"pads{i}"] = np.array([0, 1, 0, 0, 0, 0, 1, 0])
        last = f"p{i}"
    outputs = [value(last, [1, 13, 13, 8])]
    source = write(tmp_path / "a.onnx", nodes, [value("x", [1, 9, 9, 8])], outputs, constants)
    result, destination = rewritten(source)
    assert result.transposes == 2
    assert "8 transposes became 2" in result.detail
    assert_equal_outputs(source, destination)


def test_wide_pointwise_convolutions_become_matrix_products(tmp_path: Path) -> None:
    nodes, constants, last = [], {}, "x"
    for i in range(5):
        constants |= {f"w{i}": pointwise(256, 256, i), f"b{i}": np.ones(256, np.float32)}
        nodes += [node("Conv", f"{last} w{i} b{i}", f"c{i}"), node("Relu", f"c{i}", f"r{i}")]
        last = f"r{i}"
    outputs = [value(last, [1, 256, 14, 14])]
    source = write(tmp_path / "a.onnx", nodes, [value("x", [1, 256, 14, 14])], outputs, constants)
    result, destination = rewritten(source)
    assert result.converted == (("Conv", 5),)
    assert operators(destination) == Counter(MatMul=5, Add=5, Relu=5, Transpose=2)
    assert_equal_outputs(source, destination)


def random_graph(seed: int, path: Path) -> Path:
    """A random graph over four axes in which transposes of every kind stand everywhere."""
    draw = random.Random(seed)
    nodes, constants, shapes = [], {}, {"x": (2, 4, 6, 5)}
    for i in range(draw.randint(4, 12)):
        last = draw.choice(list(shapes)[-3:])
        shape, name, axis = list(shapes[last]), f"v{i}", draw.randrange(-4, 4)
        kind = draw.choice(
            ["Transpose", "Transpose", "Conv", "Relu", "Add", "Concat", "ReduceMean"]
        )
        if kind == "Transpose":
            perm = draw.choice([TO_LAST, TO_FIRST, TO_LAST, TO_FIRST, [0, 1, 3, 2], [1, 0, 2, 3]])
            nodes.append(node(kind, last, name, perm=perm))
            shape = [shape[axis] for axis in perm]
        elif kind == "Conv":
            constants[f"w{i}"] = pointwise(draw.choice([3, 4, 300]), shape[1], seed)
            nodes.append(node(kind, f"{last} w{i}", name))
            shape[1] = len(constants[f"w{i}"])
        elif kind == "Add":
            equal = [v for v, s in shapes.items() if list(s) == shape]
            nodes.append(node(kind, f"{last} {draw.choice(equal)}", name))
        elif kind == "Concat":
            nodes.append(node(kind, f"{last} {last}", name, axis=axis))
            shape[axis] *= 2
        elif kind == "ReduceMean":
            nodes.append(node(kind, last, name, axes=[axis]))
            shape[axis] = 1
        else:
            nodes.append(node(kind, last, name))
        shapes[name] = tuple(shape)
    made = list(shapes)[1:]
    outputs = sorted({made[-1], draw.choice(made)})
    inputs = [value("x", shapes["x"])]
    return write(path / "first.onnx", nodes, inputs, [value(o, None) for o in outputs], constants)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_their_values(seed: int, tmp_path: Path) -> None:
    source = random_graph(seed, tmp_path)
    result, destination = rewritten(source)
    if result.changed:
        assert_equal_outputs(source, destination)


def test_a_graph_without_images_is_left_alone(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Relu", "m", "y")]
    weights = {"w": np.ones((4, 4), np.float32)}
    source = write(tmp_path / "a.onnx", nodes, [value("x", [2, 4])], [value("y", [2, 4])], weights)
    result, _ = rewritten(source)
    assert result == NhwcRewrite(
        changed=False,
        transposes=0,
        converted=(),
        detail="no operator gains and no transpose cancels (0 in the graph)",
    )


def test_a_convolution_over_one_dimension_is_left_alone(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Conv", "t w", "y")]
    weights = {"w": np.ones((4, 4, 1), np.float32)}
    inputs, outputs = [value("x", [1, 9, 4])], [value("y", [1, 4, 9])]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, weights)
    assert not rewritten(source)[0].changed


def test_a_value_captured_by_a_body_keeps_its_name_and_order(tmp_path: Path) -> None:
    body = [node("Add", "b one", "inner")]
    branch = helper.make_graph(body, "branch", [], [value("inner", None)])
    other = helper.make_graph([node("Sub", "b one", "less")], "other", [], [value("less", None)])
    nodes = [
        node("Transpose", "x", "t", perm=TO_FIRST),
        node("Conv", "t w", "a"),
        node("Relu", "a", "b"),
        node("Transpose", "b", "y", perm=TO_LAST),
        node("If", "cond", "z", then_branch=branch, else_branch=other),
    ]
    inputs = [value("x", [2, 5, 7, 4]), value("cond", [], TensorProto.BOOL)]
    outputs = [value("y", None), value("z", None)]
    constants = {"w": pointwise(6, 4), "one": np.float32(1)}
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    result, destination = rewritten(source)
    if result.changed:
        assert_equal_outputs(source, destination)


def test_inner_values_that_are_outputs_too_keep_their_names(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "t", perm=TO_FIRST),
        node("Conv", "t w", "a"),
        node("Relu", "a", "b"),
        node("Transpose", "b", "y", perm=TO_LAST),
        node("Sigmoid", "y", "s"),
    ]
    outputs = [value(name, None) for name in ("t", "y", "s", "b")]
    weights = {"w": pointwise(6, 4)}
    source = write(tmp_path / "a.onnx", nodes, [value("x", [2, 5, 7, 4])], outputs, weights)
    result, destination = rewritten(source)
    if result.changed:
        assert_equal_outputs(source, destination)


def test_a_weight_that_the_caller_may_override_is_no_constant(tmp_path: Path) -> None:
    middle = [node("Relu", "a", "b")]
    source = between_transposes(tmp_path, middle, {})
    model = onnx.load(source)
    model.graph.input.append(value("w", [6, 4, 1, 1]))
    onnx.save(model, source)
    result, _ = rewritten(source)
    assert result.converted == ()


def test_types_from_the_caller_reach_past_operators_that_inference_does_not_know(
    tmp_path: Path,
) -> None:
    middle = [
        node("FusedMatMul", "a eye", "u", domain=MICROSOFT),
        node("Relu", "u", "b"),
    ]
    source = between_transposes(tmp_path, middle, {"eye": np.eye(7, dtype=np.float32)})
    name = TensorName("u")
    spec = TensorSpec(name=name, element_type=ElementType.FLOAT32, dims=(2, 6, 5, 7))
    result, destination = rewritten(source, specs={name: spec})
    if result.changed:
        assert_equal_outputs(source, destination)


def test_external_weights_are_found_from_another_folder(tmp_path: Path) -> None:
    constants = {"w": pointwise(64, 64), "k": np.ones((64, 1, 1), np.float32)}
    nodes = [
        node("Transpose", "x", "t", perm=TO_FIRST),
        node("Conv", "t w", "a"),
        node("Mul", "a k", "b"),
        node("Transpose", "b", "y", perm=TO_LAST),
    ]
    inputs, outputs = [value("x", [1, 5, 7, 64])], [value("y", None)]
    source = write(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
    model = onnx.load(source)
    onnx.save(model, source, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "elsewhere").mkdir()
    destination = tmp_path / "elsewhere" / "b.onnx"
    assert rewrite_nhwc(source, destination).transposes == 0
    assert_equal_outputs(source, destination)
