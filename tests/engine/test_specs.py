from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from edge_agent.engine.specs import infer_specs
from edge_agent.errors import InputMismatch
from edge_agent.tensors import ElementType
from tests.engine.graphs import WriteModel

FLOAT = TensorProto.FLOAT


@pytest.fixture
def untyped(write_model: WriteModel) -> Path:
    """Inner values listed as outputs by name alone."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Concat", ["a", "a"], ["b"], axis=1),
        helper.make_node("NonZero", ["a"], ["c"]),
        helper.make_node("SequenceConstruct", ["a"], ["s"]),
        helper.make_node("ReduceSum", ["a"], ["r"], keepdims=0),
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in "abcsr"]
    return write_model("untyped", nodes, [("x", FLOAT, ["n", 3])], outputs)


def dims_of(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, object]:
    return {
        name: spec.dims for name, spec in infer_specs(path, list("abcsr"), shapes).tensors.items()
    }


def test_types_and_dimensions_of_inner_values_are_found(untyped: Path) -> None:
    specs = infer_specs(untyped, ["a", "c"], {}).tensors
    assert specs.keys() == {"a", "c"}
    assert specs["a"].element_type is ElementType.FLOAT32
    assert specs["c"].element_type is ElementType.INT64


def test_symbolic_sizes_stay_and_made_up_ones_go(untyped: Path) -> None:
    found = dims_of(untyped, {})
    assert found == {"a": ("n", 3), "b": ("n", 6), "c": (2, None), "r": None}


def test_what_is_no_tensor_has_its_type(untyped: Path) -> None:
    assert infer_specs(untyped, list("abcsr"), {}).others == {"s": "seq(tensor(float))"}


def test_given_shapes_are_carried_through(untyped: Path) -> None:
    found = dims_of(untyped, {"x": (5, 3)})
    assert found == {"a": (5, 3), "b": (5, 6), "c": (2, None), "r": None}


@pytest.mark.parametrize("shape", [(5,), (5, 4)])
def test_a_shape_that_contradicts_the_declaration_is_told(
    untyped: Path, shape: tuple[int, ...]
) -> None:
    with pytest.raises(InputMismatch, match=r'input "x": got shape .*, want float32\[n,3\]'):
        infer_specs(untyped, ["a"], {"x": shape})


def test_two_sizes_for_one_symbol_are_told(write_model: WriteModel) -> None:
    path = write_model(
        "sum",
        [helper.make_node("Add", ["x", "z"], ["y"])],
        [("x", FLOAT, ["n"]), ("z", FLOAT, ["n"])],
        [("y", FLOAT, None)],
    )
    with pytest.raises(InputMismatch, match='input "z": got 3 for "n", which is 2 elsewhere'):
        infer_specs(path, ["y"], {"x": (2,), "z": (3,)})
