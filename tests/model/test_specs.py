from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from edge_agent.errors import InputMismatch
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import ElementType
from tests.model.made_models import graph_of, held, model, node, value


def _chain(**changes: Any) -> Any:
    return model(
        [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])],
        changes.get("inputs", [value("x", ["batch", 300])]),
        [value("y", None)],
        [held("w", np.ones((300, 7), np.float32))],
    )


def test_symbolic_sizes_stay_where_no_shape_is_given(tmp_path: Path) -> None:
    specs = infer_specs(graph_of(_chain(), tmp_path), {})
    assert str(specs.tensors["y"]) == "float32[batch,7]"
    assert str(specs.tensors["w"]) == "float32[300,7]"


def test_given_shapes_settle_all_values(tmp_path: Path) -> None:
    specs = infer_specs(graph_of(_chain(), tmp_path), {"x": (5, 300)})
    assert specs.tensors["a"].dims == (5, 7)
    assert specs.tensors["y"].dims == (5, 7)


def test_a_size_settled_by_one_input_is_settled_for_the_others(tmp_path: Path) -> None:
    made = model(
        [node("Add", ["x", "z"], ["y"])],
        [value("x", ["n", 2]), value("z", ["n", 1])],
        [value("y", None)],
    )
    specs = infer_specs(graph_of(made, tmp_path), {"x": (4, 2)})
    assert specs.tensors["z"].dims == (4, 1)
    assert specs.tensors["y"].dims == (4, 2)


def test_wrong_declarations_of_inner_values_and_outputs_do_not_count(tmp_path: Path) -> None:
    made = _chain()
    made.graph.value_info.append(value("a", [99, 99], TensorProto.INT8))
    made.graph.output[0].CopyFrom(value("y", [99, 99]))
    specs = infer_specs(graph_of(made, tmp_path), {"x": (5, 300)})
    assert (specs.tensors["a"].element_type, specs.tensors["a"].dims) == (
        ElementType.FLOAT32,
        (5, 7),
    )
    assert specs.tensors["y"].dims == (5, 7)


def test_declarations_of_outputs_fill_gaps_and_those_of_inner_values_do_not(tmp_path: Path) -> None:
    made = model(
        [node("Odd", ["x"], ["a"], domain="com.microsoft"), node("Abs", ["a"], ["y"])],
        [value("x", [3])],
        [value("y", [4])],
        domains=["com.microsoft"],
    )
    specs = infer_specs(graph_of(made, tmp_path), {})
    assert "a" not in specs
    assert specs.tensors["y"].dims == (4,)
    made.graph.value_info.append(value("a", [4]))
    assert "a" not in infer_specs(graph_of(made, tmp_path), {})


def test_shapes_computed_inside_the_model_are_followed(tmp_path: Path) -> None:
    made = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["length"]),
            node("Range", ["zero", "length", "step"], ["places"]),
            node("Div", ["length", "two"], ["half"]),
            node("Unsqueeze", ["half", "axis"], ["half_list"]),
            node("Concat", ["minus", "half_list"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["a"]),
            node("Shape", ["a"], ["s2"]),
            node("Expand", ["scalar", "s2"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [value("x", ["n", "length"])],
        [value("y", None), value("places", None)],
        [
            held("zero", np.array(0, np.int64)),
            held("one", np.array(1, np.int64)),
            held("two", np.array(2, np.int64)),
            held("step", np.array(1, np.int64)),
            held("axis", np.array([0], np.int64)),
            held("minus", np.array([-1], np.int64)),
            held("scalar", np.float32(1)),
        ],
    )
    specs = infer_specs(graph_of(made, tmp_path), {"x": (3, 8)})
    assert specs.tensors["places"].dims == (8,)
    assert specs.tensors["a"].dims == (6, 4)
    assert specs.tensors["y"].dims == (6, 4)


def test_a_huge_value_is_never_computed_for_its_shape(tmp_path: Path) -> None:
    made = model(
        [
            node("ConstantOfShape", ["size"], ["a"]),
            node("Add", ["x", "a"], ["y"]),
        ],
        [value("x", [1])],
        [value("y", None)],
        [held("size", np.array([1 << 50], np.int64))],
    )
    specs = infer_specs(graph_of(made, tmp_path), {})
    assert specs.tensors["a"].dims == (1 << 50,)


def test_numbers_that_cannot_be_computed_are_left_unknown(tmp_path: Path) -> None:
    made = model(
        [
            node("Div", ["one", "zero"], ["q"]),
            node("Gather", ["one", "far"], ["g"]),
            node("Add", ["x", "q"], ["y"]),
        ],
        [value("x", [1])],
        [value("y", None), value("g", None)],
        [
            held("one", np.array([1], np.int64)),
            held("zero", np.array([0], np.int64)),
            held("far", np.array([9], np.int64)),
        ],
    )
    assert infer_specs(graph_of(made, tmp_path), {}).tensors["y"].dims == (1,)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1,)}, 'got a shape for "z", want one of the tensor inputs: x'),
        ({"x": (2**63, 4)}, r"got shape \[9223372036854775808,4\], want sizes below 2\^63"),
        ({"x": (5, 299)}, r'input "x": got shape \[5,299\], want float32\[batch,300\]'),
        ({"x": (5,)}, r'input "x": got shape \[5\]'),
        ({"x": (-5, 300)}, r'input "x": got shape \[-5,300\]'),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    shapes: dict[Any, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputMismatch, match=message):
        infer_specs(graph_of(_chain(), tmp_path), shapes)


def test_an_input_of_any_rank_takes_any_shape(tmp_path: Path) -> None:
    graph = graph_of(_chain(inputs=[value("x", None)]), tmp_path)
    assert infer_specs(graph, {"x": (2, 5, 300)}).tensors["y"].dims == (2, 5, 7)
