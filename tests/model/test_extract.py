from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edge_agent.errors import ModelRefused, StorageError
from edge_agent.model.cuts import crossing
from edge_agent.model.divide import legal_cuts
from edge_agent.model.extract import extract
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import Array, ElementType, TensorName, TensorSpec, ValueSpecs
from tests.model.made_models import (
    body,
    check_every_cut,
    graph_of,
    held,
    model,
    node,
    run,
    value,
)

X = np.float32([1, -2, 3])
YES = np.array(True)


def test_a_cut_through_a_captured_value_carries_it(tmp_path: Path) -> None:
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Abs", ["x"], ["b"]),
            node(
                "If",
                ["c"],
                ["y"],
                then_branch=body([node("Add", ["a", "w"], ["t"])], [value("t", [3])]),
                else_branch=body([node("Mul", ["b", "w"], ["e"])], [value("e", [3])]),
            ),
        ],
        [value("x", [3]), value("c", [], TensorProto.BOOL)],
        [value("y", [3])],
        [held("w", [10.0, 20.0, 30.0])],
    )
    assert check_every_cut(made, {"x": X, "c": YES}, tmp_path) == 2
    graph = graph_of(made, tmp_path)
    cut = crossing(graph, 2, infer_specs(graph, {}))
    assert [spec.name for spec in cut.crossing] == ["c", "a", "b"]
    assert cut.crossing_bytes == 1 + 12 + 12


def test_a_value_captured_two_levels_down_crosses_the_cut(tmp_path: Path) -> None:
    inner = node(
        "If",
        ["c"],
        ["u"],
        then_branch=body([node("Add", ["a", "m"], ["t2"])], [value("t2", [3])]),
        else_branch=body([node("Identity", ["m"], ["e2"])], [value("e2", [3])]),
    )
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Sqrt", ["a"], ["unused"]),
            node(
                "If",
                ["c"],
                ["y"],
                then_branch=body([node("Abs", ["x"], ["m"]), inner], [value("u", [3])]),
                else_branch=body([node("Identity", ["w"], ["e"])], [value("e", [3])]),
            ),
        ],
        [value("x", [3]), value("c", [], TensorProto.BOOL)],
        [value("y", [3])],
        [held("w", [1.0, 2.0, 3.0])],
    )
    with np.errstate(invalid="ignore"):
        assert check_every_cut(made, {"x": X, "c": YES}, tmp_path) == 2
        assert check_every_cut(made, {"x": X, "c": np.array(False)}, tmp_path) == 2
    graph = graph_of(made, tmp_path)
    cut = crossing(graph, 2, infer_specs(graph, {}))
    assert [spec.name for spec in cut.crossing] == ["x", "c", "a"]


def test_a_name_hidden_by_a_body_does_not_cross(tmp_path: Path) -> None:
    loop = body(
        [node("Add", ["a", "a"], ["doubled"]), node("Identity", ["keep"], ["keep_on"])],
        [value("keep_on", [], TensorProto.BOOL), value("doubled", [3])],
        inputs=[
            value("i", [], TensorProto.INT64),
            value("keep", [], TensorProto.BOOL),
            value("a", [3]),
        ],
    )
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Abs", ["a"], ["b"]),
            node("Loop", ["times", "go", "b"], ["y"], body=loop),
        ],
        [value("x", [3])],
        [value("y", [3])],
        [held("times", np.array(2, np.int64)), held("go", YES)],
    )
    graph = graph_of(made, tmp_path)
    cut = crossing(graph, 2, infer_specs(graph, {}))
    assert [spec.name for spec in cut.crossing] == ["b"]
    part = extract(graph, 2, 3, tmp_path / "part.onnx", infer_specs(graph, {}))
    assert part.inputs == ("b",)
    np.testing.assert_array_equal(run(part.path, {"b": np.abs(X)})["y"], 4 * np.abs(X))


def test_nodes_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    made = model(
        [
            node("Add", ["b", "a"], ["y"]),
            node("Abs", ["a"], ["b"]),
            node("Neg", ["x"], ["a"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
    )
    graph = graph_of(made, tmp_path)
    assert [n.op_type for n in graph.nodes] == ["Neg", "Abs", "Add"]
    assert graph.label(0) == "node 2 (Neg)"
    specs = infer_specs(graph, {})
    values: dict[str, Array] = {"x": X}
    for start, stop in ((0, 1), (1, 3)):
        part = extract(graph, start, stop, tmp_path / f"{start}.onnx", specs)
        values |= run(part.path, {name: values[name] for name in part.inputs})
    np.testing.assert_array_equal(values["y"], np.abs(X) - X)


def test_dead_nodes_stay_and_their_values_do_not_cross(tmp_path: Path) -> None:
    made = model(
        [node("Neg", ["x"], ["dead"]), node("Abs", ["x"], ["a"]), node("Neg", ["a"], ["y"])],
        [value("x", [3])],
        [value("y", [3])],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 2
    graph = graph_of(made, tmp_path)
    assert len(graph.nodes) == 3
    first = extract(graph, 0, 1, tmp_path / "part.onnx", infer_specs(graph, {}))
    assert first.outputs == ()


def test_a_graph_input_used_on_both_sides_crosses_once(tmp_path: Path) -> None:
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Add", ["x", "a"], ["b"]),
            node("Mul", ["x", "b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 2
    graph = graph_of(made, tmp_path)
    assert crossing(graph, 2, infer_specs(graph, {})).crossing_bytes == 24


def test_an_output_that_is_used_later_both_leaves_and_crosses(tmp_path: Path) -> None:
    made = model(
        [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])],
        [value("x", [3])],
        [value("a", [3]), value("y", [3])],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 2
    graph = graph_of(made, tmp_path)
    first = extract(graph, 0, 2, tmp_path / "part.onnx", infer_specs(graph, {}))
    assert first.outputs == ("a", "b")


def test_an_output_listed_twice_is_given_once(tmp_path: Path) -> None:
    made = model(
        [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])],
        [value("x", [3])],
        [value("y", [3]), value("y", [3])],
    )
    graph = graph_of(made, tmp_path)
    part = extract(graph, 0, 2, tmp_path / "part.onnx", infer_specs(graph, {}))
    assert part.outputs == ("y",)


def test_inputs_and_constants_that_are_outputs_do_not_break_a_cut(tmp_path: Path) -> None:
    made = model(
        [node("Add", ["x", "w"], ["a"]), node("Abs", ["a"], ["y"])],
        [value("x", [3])],
        [value("y", [3]), value("x", [3]), value("w", [3])],
        [held("w", [1.0, 1.0, 1.0])],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 1
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    assert extract(graph, 0, 1, tmp_path / "first.onnx", specs).outputs == ("w", "a")
    assert extract(graph, 1, 2, tmp_path / "last.onnx", specs).outputs == ("y",)


def test_a_constant_used_on_both_sides_goes_to_both(tmp_path: Path) -> None:
    weight = np.arange(1200, dtype=np.float32).reshape(4, 300) % 7
    made = model(
        [
            node("Mul", ["x", "w"], ["a"]),
            node("Abs", ["a"], ["b"]),
            node("Add", ["b", "w"], ["y"]),
        ],
        [value("x", [4, 300])],
        [value("y", [4, 300])],
        [held("w", weight)],
    )
    assert check_every_cut(made, {"x": -weight}, tmp_path) == 2
    graph = graph_of(made, tmp_path)
    last = extract(graph, 2, 3, tmp_path / "part.onnx", infer_specs(graph, {}))
    assert last.inputs == ("b",)
    assert last.weights == tmp_path / "part.onnx.weights"
    assert last.weights.stat().st_size == weight.nbytes


def test_small_constants_stay_inside_the_model_file(tmp_path: Path) -> None:
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", [3])],
        [value("y", [3])],
        [held("w", [1.0, 1.0, 1.0])],
    )
    graph = graph_of(made, tmp_path)
    part = extract(graph, 0, 1, tmp_path / "part.onnx", infer_specs(graph, {}))
    assert part.weights is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "part.onnx"]


def test_unnamed_and_equally_named_nodes_are_kept_apart(tmp_path: Path) -> None:
    made = model(
        [
            node("Neg", ["x"], ["a"], name="same"),
            node("Abs", ["a"], ["b"], name="same"),
            node("Exp", ["b"], ["c"]),
            node("Neg", ["c"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 3


def test_absent_optional_inputs_and_outputs_are_no_values(tmp_path: Path) -> None:
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Clip", ["a", "", "top"], ["b"]),
            node("Clip", ["b", "", "top"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
        [held("top", np.float32(1.5))],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 2
    made.graph.node.insert(2, node("Dropout", ["a"], ["", "mask"]))
    graph = graph_of(made, tmp_path)
    cut = crossing(graph, 3, infer_specs(graph, {}))
    assert [spec.name for spec in cut.crossing] == ["b"]


def test_constant_nodes_travel_to_the_subgraphs_that_use_them(tmp_path: Path) -> None:
    made = model(
        [
            node("Constant", [], ["k"], value=held("", [2.0, 2.0, 2.0])),
            node("Constant", [], ["one"], value_float=1.0),
            node("Constant", [], ["axes"], value_ints=[0]),
            node("Neg", ["k"], ["minus_k"]),
            node("Mul", ["x", "minus_k"], ["a"]),
            node("Unsqueeze", ["a", "axes"], ["b"]),
            node("Add", ["b", "minus_k"], ["c"]),
            node("Add", ["c", "one"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [1, 3])],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 3
    graph = graph_of(made, tmp_path)
    assert [n.op_type for n in graph.nodes] == ["Mul", "Unsqueeze", "Add", "Add"]
    cut = crossing(graph, 2, infer_specs(graph, {}))
    assert [spec.name for spec in cut.crossing] == ["b"]


def test_a_constant_captured_by_a_body_is_copied(tmp_path: Path) -> None:
    made = model(
        [
            node("Constant", [], ["k"], value=held("", [2.0, 2.0, 2.0])),
            node("Exp", ["k"], ["big"]),
            node("Neg", ["x"], ["a"]),
            node(
                "If",
                ["c"],
                ["y"],
                then_branch=body([node("Add", ["a", "big"], ["t"])], [value("t", [3])]),
                else_branch=body([node("Add", ["a", "k"], ["e"])], [value("e", [3])]),
            ),
        ],
        [value("x", [3]), value("c", [], TensorProto.BOOL)],
        [value("y", [3])],
    )
    assert check_every_cut(made, {"x": X, "c": YES}, tmp_path) == 1


def test_functions_of_the_model_go_along(tmp_path: Path) -> None:
    twice = helper.make_function(
        "own",
        "Twice",
        ["p"],
        ["q"],
        [node("Add", ["p", "p"], ["q"])],
        [helper.make_opsetid("", 17)],
    )
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Twice", ["a"], ["b"], domain="own"),
            node("Abs", ["b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
        functions=[twice],
        domains=["own"],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 2


def test_initializers_listed_as_inputs_become_constants_up_to_ir_version_3(
    tmp_path: Path,
) -> None:
    made = model(
        [node("Add", ["x", "w"], ["a"]), node("Abs", ["a"], ["y"])],
        [value("x", [3]), value("w", [3])],
        [value("y", [3])],
        [held("w", [1.0, 1.0, 1.0])],
        opset=8,
        ir_version=3,
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 1
    graph = graph_of(made, tmp_path)
    whole = extract(graph, 0, 2, tmp_path / "whole.onnx", infer_specs(graph, {}))
    assert whole.inputs == ("x",)
    assert onnx.load(whole.path).ir_version == 4


def test_the_whole_model_keeps_defaults_that_may_be_overridden(tmp_path: Path) -> None:
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", [3]), value("w", [3]), value("unused", [3])],
        [value("y", [3])],
        [held("w", [1.0, 1.0, 1.0]), held("unused", [0.0, 0.0, 0.0])],
    )
    graph = graph_of(made, tmp_path)
    whole = extract(graph, 0, 1, tmp_path / "whole.onnx", infer_specs(graph, {}))
    assert whole.inputs == ("x", "w", "unused")
    np.testing.assert_array_equal(run(whole.path, {"x": X})["y"], X + 1)


def test_external_data_are_copied_out_of_the_files_of_the_model(tmp_path: Path) -> None:
    weight = np.arange(400, dtype=np.float32)
    small = np.float32([5, 6])
    made = model(
        [
            node("Constant", [], ["k"], value=held("k", small)),
            node("Add", ["x", "w"], ["a"]),
            node("Gather", ["a", "at"], ["b"]),
            node("Mul", ["b", "k"], ["y"]),
        ],
        [value("x", [400])],
        [value("y", [2])],
        [held("w", weight), held("at", np.array([1, 3], np.int64))],
    )
    onnx.external_data_helper.convert_model_to_external_data(
        made, location="data/all.bin", size_threshold=0, convert_attribute=True
    )
    (tmp_path / "data").mkdir()
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    other = tmp_path / "other"
    other.mkdir()
    first = extract(graph, 0, 1, other / "first.onnx", specs)
    last = extract(graph, 1, 3, other / "last.onnx", specs)
    (tmp_path / "data" / "all.bin").unlink()
    values = run(first.path, {"x": weight})
    np.testing.assert_array_equal(run(last.path, values)["y"], [10, 36])


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", [400])],
        [value("y", [400])],
        [held("w", np.zeros(400, np.float32))],
    )
    onnx.external_data_helper.convert_model_to_external_data(made, location="all.bin")
    graph = graph_of(made, tmp_path)
    (tmp_path / "all.bin").unlink()
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelRefused, match=r'tensor "w": external data file "all\.bin"'):
        extract(graph, 0, 1, tmp_path / "other" / "part.onnx", infer_specs(graph, {}))


def test_what_lies_outside_in_the_same_folder_is_referred_to_and_not_copied(
    tmp_path: Path,
) -> None:
    weight = np.arange(2000, dtype=np.float32)
    made = model(
        [
            node("Constant", [], ["k"], value=held("k", weight)),
            node("Add", ["x", "w"], ["a"]),
            node("Mul", ["a", "k"], ["y"]),
        ],
        [value("x", [2000])],
        [value("y", [2000])],
        [held("w", weight)],
    )
    onnx.external_data_helper.convert_model_to_external_data(
        made, location="data/all.bin", convert_attribute=True
    )
    (tmp_path / "data").mkdir()
    graph = graph_of(made, tmp_path)
    part = extract(graph, 0, 1, tmp_path / "part.onnx", infer_specs(graph, {}))
    last = extract(graph, 1, 2, tmp_path / "last.onnx", infer_specs(graph, {}))
    assert part.weights is None
    assert last.weights is None
    assert part.path.stat().st_size < 400
    values = run(part.path, {"x": -weight / 2})
    np.testing.assert_array_equal(run(last.path, values)["y"], weight * weight / 2)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    made = model([node("Abs", ["x"], ["y"])], [value("x", [3])], [value("y", [3])])
    graph = graph_of(made, tmp_path)
    with pytest.raises(StorageError, match="cannot be written"):
        extract(graph, 0, 1, tmp_path / "absent" / "part.onnx", infer_specs(graph, {}))


def test_a_value_without_a_numpy_type_crosses_with_its_type(tmp_path: Path) -> None:
    made = model(
        [
            node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
            node("Cast", ["a"], ["b"], to=TensorProto.FLOAT),
            node("Neg", ["b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
    )
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    assert legal_cuts(graph, specs) == (1, 2)
    extract(graph, 0, 1, tmp_path / "part.onnx", specs)
    (given,) = onnx.load(tmp_path / "part.onnx").graph.output
    assert given.type.tensor_type.elem_type == TensorProto.BFLOAT16


def test_beside_an_optional_a_value_without_a_numpy_type_is_no_place_to_cut(
    tmp_path: Path,
) -> None:
    made = model(
        [
            node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
            node("Cast", ["a"], ["b"], to=TensorProto.FLOAT),
            node("Optional", ["b"], ["o"]),
            node("OptionalGetElement", ["o"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
        opset=18,
    )
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    assert legal_cuts(graph, specs) == (2, 3)
    why = r'node 1 \(Cast\): value "a" is a bfloat16, .* beside the optional\(.* "o"'
    with pytest.raises(ModelRefused, match=why):
        crossing(graph, 1, specs)
    with pytest.raises(ModelRefused, match=why):
        extract(graph, 0, 1, tmp_path / "part.onnx", specs)


def test_a_sequence_crosses(tmp_path: Path) -> None:
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("SplitToSequence", ["a"], ["s"], axis=0),
            node("ConcatFromSequence", ["s"], ["b"], axis=0),
            node("Abs", ["b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 3


def test_types_found_elsewhere_fill_what_onnx_cannot_infer(tmp_path: Path) -> None:
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Gelu", ["a"], ["b"], domain="com.microsoft"),
            node("Abs", ["b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
        domains=["com.microsoft"],
    )
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    assert legal_cuts(graph, specs) == (1,)
    b = dataclasses.replace(specs.tensors["a"], name="b")
    specs = ValueSpecs(tensors={**specs.tensors, "b": b})
    assert legal_cuts(graph, specs) == (1, 2)
    part = extract(graph, 2, 3, tmp_path / "part.onnx", specs)
    found = onnx.load(part.path).graph.input[0].type.tensor_type
    assert (found.elem_type, [d.dim_value for d in found.shape.dim]) == (TensorProto.FLOAT, [3])


def test_inner_values_are_typed_and_declared_dimensions_are_kept(tmp_path: Path) -> None:
    made = model(
        [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Neg", ["b"], ["y"])],
        [value("x", ["batch", 3])],
        [value("y", ["batch", 3])],
    )
    graph = graph_of(made, tmp_path)
    part = extract(graph, 0, 2, tmp_path / "part.onnx", infer_specs(graph, {"x": (4, 3)}))
    written = onnx.load(part.path).graph
    assert written.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [v.name for v in written.value_info] == ["a"]
    assert written.output[0].type.tensor_type.shape.dim[0].dim_value == 4


def test_scalars_and_empty_tensors_cross(tmp_path: Path) -> None:
    made = model(
        [
            node("ReduceSum", ["x"], ["total"], keepdims=0),
            node("Slice", ["x", "zero", "zero"], ["nothing"]),
            node("Concat", ["x", "nothing"], ["joined"], axis=0),
            node("Add", ["joined", "total"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [3])],
        [held("zero", np.array([0], np.int64))],
    )
    assert check_every_cut(made, {"x": X}, tmp_path) == 3
    graph = graph_of(made, tmp_path)
    assert crossing(graph, 2, infer_specs(graph, {})).crossing == (
        TensorSpec(name="x", element_type=ElementType.FLOAT32, dims=(3,)),
        TensorSpec(name="total", element_type=ElementType.FLOAT32, dims=()),
        TensorSpec(name="nothing", element_type=ElementType.FLOAT32, dims=(0,)),
    )


@st.composite
def _models(draw: st.DrawFn) -> object:
    """Random graphs: shared values, dead nodes, constants, bodies that capture, any file order."""
    names = ["x", "w"]
    nodes = []
    for index in range(draw(st.integers(2, 7))):
        made = f"v{index}"
        first, second = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        kind = draw(st.sampled_from(["Neg", "Add", "Mul", "Constant", "If"]))
        if kind == "Neg":
            nodes.append(node("Neg", [first], [made]))
        elif kind == "Constant":
            nodes.append(node("Constant", [], [made], value=held("", [1.0, 0.5, -1.0])))
        elif kind == "If":
            branches = {
                "then_branch": body(
                    [node("Sub", [first, second], [f"t{index}"])], [value(f"t{index}", [3])]
                ),
                "else_branch": body(
                    [node("Abs", [first], [f"e{index}"])], [value(f"e{index}", [3])]
                ),
            }
            nodes.append(node("If", ["c"], [made], **branches))
        else:
            nodes.append(node(kind, [first, second], [made]))
        names.append(made)
    outputs = draw(st.lists(st.sampled_from(names[2:]), min_size=1, max_size=3, unique=True))
    return model(
        nodes,
        [value("x", [3]), value("c", [], TensorProto.BOOL)],
        [value(name, [3]) for name in outputs],
        [held("w", [3.0, -1.0, 2.0])],
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(made=_models(), condition=st.booleans())
def test_every_legal_cut_of_a_random_graph_gives_the_whole(
    made: object, condition: bool, tmp_path: Path
) -> None:
    check_every_cut(made, {"x": X, "c": np.array(condition)}, tmp_path)


def test_inputs_and_outputs_have_fixed_dimensions_only_if_that_is_asked_for(
    tmp_path: Path,
) -> None:
    made = model(
        [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])],
        [value("x", ["N", 3])],
        [value("y", ["N", 3])],
    )
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {TensorName("x"): (5, 3)})

    def dims(path: Path) -> list[list[int | str]]:
        declared = onnx.load(path).graph
        return [
            [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in (*declared.input, *declared.output)
        ]

    for start, stop in ((0, 2), (0, 1), (1, 2)):
        path = tmp_path / f"{start}-{stop}.onnx"
        extract(graph, start, stop, path, specs, is_fixed=True)
        assert dims(path) == [[5, 3], [5, 3]]
    extract(graph, 0, 2, path, specs)
    assert dims(path) == [["N", 3], ["N", 3]]
