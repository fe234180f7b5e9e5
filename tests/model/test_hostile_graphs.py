"""Models made to do harm, or damaged so that they would: each is refused for what it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from edge_agent.errors import ModelRefused
from edge_agent.model.admit import AdmissionLimits, check, external_locations, read_model
from edge_agent.model.text import MAX_NAME_CHARACTERS
from tests.model.made_models import body, held, model, node, value

LIMITS = AdmissionLimits()
NAME = Path("model.onnx")
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def good(**changes: Any) -> Any:
    """A small model in which nothing is wrong."""
    made = {
        "nodes": [node("Add", ["x", "w"], ["a"]), node("Abs", ["a"], ["y"])],
        "inputs": [value("x", ["n", 3])],
        "outputs": [value("y", ["n", 3])],
        "held": [held("w", [1.0, 2.0, 3.0])],
    } | changes
    return model(**made)


def refusal(made: Any, **limits: int) -> str:
    with pytest.raises(ModelRefused) as caught:
        check(made, NAME, None, dataclasses.replace(LIMITS, **limits), None)
    text = str(caught.value)
    assert text.startswith("model.onnx: ")
    return text


def calling(times: int, levels: int) -> Any:
    """Functions of which each calls the one before it so many times."""
    functions = [
        helper.make_function("own", "F0", ["p"], ["q"], [node("Add", ["p", "p"], ["q"])], OPSETS)
    ]
    for level in range(1, levels):
        names = ["p", *(f"t{i}" for i in range(times - 1)), "q"]
        calls = [
            node(f"F{level - 1}", [names[i]], [names[i + 1]], domain="own") for i in range(times)
        ]
        functions.append(helper.make_function("own", f"F{level}", ["p"], ["q"], calls, OPSETS))
    call = node(f"F{levels - 1}", ["x"], ["y"], domain="own")
    return good(nodes=[call], functions=functions, domains=["own"])


# ---- how much


def test_functions_that_multiply_each_other_count_as_what_they_become() -> None:
    check(calling(times=2, levels=10), NAME, None, LIMITS, None)
    assert "got 1048576 nodes, want at most 200000" in refusal(calling(times=4, levels=11))


def test_functions_that_call_each_other_too_deep_are_refused() -> None:
    check(calling(times=1, levels=16), NAME, None, LIMITS, None)
    assert 'function "F0" is called more than 16 functions deep' in refusal(calling(1, 17))
    assert "functions deep" in refusal(calling(times=1, levels=5000))


@pytest.mark.parametrize("called", ["F", "G"])
def test_functions_that_call_themselves_are_refused(called: str) -> None:
    functions = [
        helper.make_function("own", "F", ["p"], ["q"], [node(called, ["p"], ["q"], domain="own")],
                             OPSETS),
        helper.make_function("own", "G", ["p"], ["q"], [node("F", ["p"], ["q"], domain="own")],
                             OPSETS),
    ]  # fmt: skip
    text = refusal(good(functions=functions, domains=["own"]))
    assert "functions deep, or calls itself" in text


def test_a_call_inside_a_body_counts_like_any_other() -> None:
    made = calling(times=4, levels=11)
    inner = body([node("F10", ["x"], ["t"], domain="own")], [value("t", None)])
    made.graph.node[0].CopyFrom(node("If", ["c"], ["y"], then_branch=inner, else_branch=inner))
    made.graph.input.append(value("c", [], TensorProto.BOOL))
    assert "got 2097153 nodes" in refusal(made)


def test_every_kind_of_thing_is_capped() -> None:
    inner = body([node("Abs", ["x"], ["t"])], [value("t", None)], held=[held("k", 1.0)])
    made = good(
        nodes=[
            node("If", ["c"], ["a"], then_branch=inner, else_branch=inner),
            node("Abs", ["a"], ["y"]),
        ],
        inputs=[value("x", ["n", 3]), value("c", [], TensorProto.BOOL)],
        outputs=[value("y", None), value("a", None)],
    )
    made.graph.value_info.extend([value("a", None)] * 3)
    check(made, NAME, None, LIMITS, None)
    assert "got 4 nodes, want at most 3" in refusal(made, max_nodes=3)
    assert "got 3 initializers, want at most 2" in refusal(made, max_initializers=2)
    assert "got 2 bodies, want at most 1" in refusal(made, max_bodies=1)
    assert "got 3 declared values, want at most 2" in refusal(made, max_values=2)
    assert "got 6 inputs and outputs of nodes, want at most 5" in refusal(
        good(nodes=[node("Sum", ["x"] * 5, ["y"])]), max_values=5
    )
    assert "got 3 functions, want at most 2" in refusal(calling(1, 3), max_bodies=2)
    assert "got 2 attributes, want at most 1" in refusal(
        good(nodes=[node("Gemm", ["x", "x"], ["y"], alpha=1.0, beta=1.0)]), max_values=1
    )
    assert "got 2 inputs, want at most 1" in refusal(made, max_ends=1)
    assert "got 2 outputs, want at most 1" in refusal(
        good(outputs=[value("y", None), value("a", None)]), max_ends=1
    )


def test_initializers_that_are_inputs_too_do_not_count_as_inputs() -> None:
    made = good(inputs=[value("x", ["n", 3]), value("w", [3])])
    check(made, NAME, None, dataclasses.replace(LIMITS, max_ends=1), None)


def test_more_dimensions_than_any_array_has_are_refused() -> None:
    many = [1] * 33
    text = refusal(good(inputs=[value("x", many)]))
    assert 'input "x": got 33 dimensions, want at most 32' in text
    stored = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=many, float_data=[1.0])
    assert 'tensor "w": got 33 dimensions' in refusal(good(held=[stored]))


def test_sizes_whose_product_is_no_number_of_bytes_are_refused() -> None:
    huge = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**62, 2**62], raw_data=b"1234")
    assert "which no array can have" in refusal(good(held=[huge]))
    empty = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**62, 2**62, 0])
    assert "which no array can have" in refusal(good(held=[empty]))


def test_regions_of_external_data_that_many_tensors_share_count_each_time() -> None:
    tensors = []
    for name in ("w", "v"):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1000])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
        tensors.append(tensor)
    made = good(held=tensors)
    check(made, NAME, None, LIMITS, None)
    text = refusal(made, max_external_bytes=7999)
    assert "got 8000 bytes of external tensors, want at most 7999" in text


def test_a_file_of_many_tiny_messages_is_refused_before_it_fills_the_memory(
    tmp_path: Path,
) -> None:
    from edge_agent.engine.memory import bounded_memory

    graph = b"\x0a\x00" * 3_000_000
    length = bytearray()
    rest = len(graph)
    while rest:
        length.append(rest & 0x7F | (0x80 if rest > 0x7F else 0))
        rest >>= 7
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08\x3a" + bytes(length) + graph)
    with (
        bounded_memory(64 << 20),
        pytest.raises(ModelRefused, match=r"model\.onnx: reading it takes more memory than"),
    ):
        read_model(path, LIMITS)


# ---- names


def saved(made: Any, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a\0b", r"got the name 'a\x00b', which has control characters"),
        ("a\nb", r"got the name 'a\nb', which has control characters"),
        ("\x1b[31m", r"got the name '\x1b[31m', which has control characters"),
        ("n" * 5000, "got a name of 5000 characters, want at most 4096"),
        ("n" * 2_000_000, "got a name of 2000000 characters, want at most 4096"),
    ],
)
@pytest.mark.parametrize("place", ["node", "value", "operator", "input", "attribute", "size"])
def test_names_that_nothing_could_show_are_refused(
    tmp_path: Path, name: str, reason: str, place: str
) -> None:
    made = good()
    match place:
        case "node":
            made.graph.node[0].name = name
        case "value":
            made.graph.node[0].output[0] = name
        case "operator":
            made.graph.node[0].op_type = name
        case "input":
            made.graph.input[0].name = name
        case "attribute":
            made.graph.node[0].attribute.add(name=name)
        case "size":
            made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    with pytest.raises(ModelRefused) as caught:
        read_model(saved(made, tmp_path), LIMITS)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 300


def test_long_names_in_any_alphabet_pass(tmp_path: Path) -> None:
    made = good()
    made.graph.node[0].name = "层\u00a0" * (MAX_NAME_CHARACTERS // 2)
    assert read_model(saved(made, tmp_path), LIMITS) == made


def test_a_message_does_not_grow_with_the_nodes_around_the_one_it_names() -> None:
    inner = body([node("Abs", ["gone"], ["t"])], [value("t", None)])
    for _ in range(10):
        branches = {"then_branch": inner, "else_branch": inner}
        inner = body([node("If", ["c"], ["t"], name="n" * 4000, **branches)], [value("t", None)])
    made = good(
        nodes=[node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
        inputs=[value("x", None), value("c", [], TensorProto.BOOL)],
    )
    text = refusal(made)
    assert 'input "gone" is produced by nothing' in text
    assert len(text) < 3000


# ---- operators


@pytest.mark.parametrize("version", [0, -1, 2**31, 2**62])
@pytest.mark.parametrize("domain", ["ai.onnx.ml", "com.microsoft", "own"])
def test_versions_that_no_operator_set_has_are_refused(domain: str, version: int) -> None:
    made = good(domains=[domain])
    made.opset_import[1].version = version
    assert f'got opset {version} of "{domain}", want 1 or a little more' in refusal(made)


def test_versions_that_functions_import_are_checked_as_well() -> None:
    made = calling(1, 2)
    made.functions[1].opset_import[0].version = 2**62
    assert f"got opset {2**62} of ai.onnx" in refusal(made)


def test_two_versions_of_one_operator_set_are_refused() -> None:
    made = good()
    made.opset_import.add(domain="ai.onnx", version=17)
    check(made, NAME, None, LIMITS, None)
    made.opset_import[1].version = 16
    assert 'imports two opsets of "ai.onnx"' in refusal(made)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (node("Abs", [""], ["y"]), "node 0 (Abs): input 0 has no name, but the operator needs it"),
        (node("Abs", ["x"], [""]), "node 0 (Abs): output 0 has no name"),
        (
            node("Split", ["x"], ["", "y"], axis=0),
            "node 0 (Split): output 0 has no name, but the operator needs it",
        ),
        (
            node("Concat", ["x", "x"], ["y"], axis=1.0),
            'node 0 (Concat): attribute "axis": got float, want int',
        ),
        (
            node("Constant", [], ["y"], value_floats=2.0),
            'node 0 (Constant): attribute "value_floats": got float, want floats',
        ),
        (
            node("Concat", ["x", "x"], ["y"], axis=2**31),
            'node 0 (Concat): attribute "axis": got 2147483648, want an axis of an array',
        ),
        (
            node("Constant", [], ["y"], valeu_float=2.0),
            'node 0 (Constant): attribute "valeu_float" is unknown',
        ),
    ],
)
def test_operators_that_are_used_wrongly_are_refused(made: Any, reason: str) -> None:
    assert reason in refusal(good(nodes=[made]))


@pytest.mark.parametrize(
    "equation", ["ij,jk\0->ik", "ij,jk-", "ij,j\nk->ik", "ij;jk->ik", "ij->->i"]
)
def test_equations_that_shape_inference_never_gets_to_the_end_of_are_refused(
    equation: str,
) -> None:
    made = good(nodes=[node("Einsum", ["x", "x"], ["y"], equation=equation)])
    assert 'node 0 (Einsum): attribute "equation": got' in refusal(made)
    made.graph.node[0].attribute[0].s = b"..ij, jk -> ...ik"
    check(made, NAME, None, LIMITS, None)
    inside = calling(1, 1)
    inside.functions[0].node[0].CopyFrom(node("Einsum", ["p", "p"], ["q"]))
    inside.functions[0].node[0].attribute.add(name="equation", type=3, ref_attr_name="e")
    assert 'attribute "equation" is that of a function, want it in the node' in refusal(inside)


@pytest.mark.parametrize("parts", [-1, 0, 1, 3])
def test_a_split_into_more_or_fewer_parts_than_it_has_outputs_is_refused(parts: int) -> None:
    made = good(nodes=[node("Split", ["x"], ["y", "z"], num_outputs=parts)], opset=18)
    assert f'attribute "num_outputs": got {parts}, want 2 as it has outputs' in refusal(made)
    made.graph.node[0].attribute[0].i = 2
    check(made, NAME, None, LIMITS, None)


def test_notes_among_the_attributes_pass() -> None:
    check(good(nodes=[node("Abs", ["x"], ["y"], __note=1)]), NAME, None, LIMITS, None)


def test_an_attribute_that_is_given_twice_is_refused() -> None:
    made = good(nodes=[node("Concat", ["x", "x"], ["y"], axis=0)])
    made.graph.node[0].attribute.append(made.graph.node[0].attribute[0])
    assert 'node 0 (Concat): attribute "axis" is given twice' in refusal(made)


def test_an_attribute_of_a_function_outside_of_one_is_refused() -> None:
    made = good(nodes=[node("Elu", ["x"], ["y"], alpha=1.0)])
    made.graph.node[0].attribute[0].ref_attr_name = "alpha"
    assert 'node 0 (Elu): attribute "alpha" is that of a function' in refusal(made)
    inside = calling(1, 1)
    inside.functions[0].node[0].CopyFrom(node("Elu", ["p"], ["q"]))
    inside.functions[0].node[0].attribute.add(name="alpha", type=1, ref_attr_name="alpha")
    inside.functions[0].attribute.append("alpha")
    check(inside, NAME, None, LIMITS, None)


def test_a_function_may_not_take_the_place_of_an_operator() -> None:
    constant = helper.make_function("", "Relu", ["p"], ["q"], [node("Abs", ["p"], ["q"])], OPSETS)
    text = refusal(good(functions=[constant]))
    assert 'function "Relu", which hides the operator of that name in ai.onnx' in text
    later = helper.make_function("", "Gelu", ["p"], ["q"], [node("Abs", ["p"], ["q"])], OPSETS)
    check(good(functions=[later]), NAME, None, LIMITS, None)  # not in opset 17


def test_two_functions_of_one_name_are_refused() -> None:
    made = calling(1, 2)
    made.functions.append(made.functions[0])
    assert "a function is defined twice" in refusal(made)


def test_a_function_that_does_not_give_what_it_promises_is_refused() -> None:
    made = calling(1, 1)
    made.functions[0].output[0] = "gone"
    assert 'function "F0", output "gone" is produced by nothing' in refusal(made)


# ---- constants


def test_values_that_are_stored_twice_are_refused() -> None:
    tensor = held("w", [1.0, 2.0, 3.0])
    tensor.float_data.extend([4.0, 5.0, 6.0])
    assert 'tensor "w": its values are stored twice' in refusal(good(held=[tensor]))


def sparse(dims: list[int], indices: Any, values: Any = (1.0, 2.0)) -> Any:
    made = good()
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            held("s", np.float32(values)),
            numpy_helper.from_array(np.array(indices, np.int64), "i"),
            dims,
        )
    )
    return made


@pytest.mark.parametrize(
    ("dims", "indices", "reason"),
    [
        ([2, 3], [0, 6], "an index is outside of [2, 3]"),
        ([2, 3], [-1, 0], "an index is outside of [2, 3]"),
        ([2, 3], [[0, 0], [1, 3]], "an index is outside of [2, 3]"),
        ([2, 3], [0], "got [2] values at [1] indices"),
        ([2, 3], [[0, 0, 0], [1, 1, 1]], "got [2] values at [2, 3] indices"),
        ([2, 3], [[0], [1]], "got [2] values at [2, 1] indices"),
        ([2**20, 2**20], [0, 1], "want at most 2147483647 bytes"),
        ([2**62, 2**62], [0, 1], "want at most 2147483647 bytes"),
        ([2, -3], [0, 1], "want sizes of 1 or more"),
        ([], [0, 1], "want sizes of 1 or more"),
    ],
)
def test_sparse_tensors_that_do_not_fit_are_refused(
    dims: list[int], indices: Any, reason: str
) -> None:
    text = refusal(sparse(dims, indices))
    assert 'sparse tensor "s": ' in text
    assert reason in text


def test_sparse_indices_with_fewer_values_than_their_shape_are_refused() -> None:
    made = sparse([2, 3], [0, 5])
    made.graph.sparse_initializer[0].indices.raw_data = b"12345678"
    assert 'tensor "i": got 8 bytes, want 16' in refusal(made)


def test_sparse_tensors_with_either_kind_of_indices_pass() -> None:
    check(sparse([2, 3], [0, 5]), NAME, None, LIMITS, None)
    check(sparse([2, 3], [[0, 0], [1, 2]]), NAME, None, LIMITS, None)


def test_an_entry_of_external_data_that_is_given_twice_is_refused() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    for location in ("../../etc/passwd", "w.bin"):
        tensor.external_data.add(key="location", value=location)
    with pytest.raises(ModelRefused, match='tensor "w": external data key "location" is given'):
        external_locations(good(held=[tensor]), NAME)


def test_offsets_beyond_any_file_are_refused() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    tensor.external_data.add(key="offset", value=str(2**63))
    with pytest.raises(ModelRefused, match="want a whole number of bytes"):
        external_locations(good(held=[tensor]), NAME)


# ---- what no session needs is carried along, and harms nobody


def test_training_annotations_and_metadata_change_nothing() -> None:
    made = good()
    made.metadata_props.add(key="ort_config", value="{}" * 100_000)
    training = made.training_info.add()
    training.algorithm.CopyFrom(made.graph)
    training.algorithm.node.add(op_type="NoSuchOperator", domain="com.example")
    made.graph.quantization_annotation.add(tensor_name="nothing")
    made.graph.node[0].metadata_props.add(key="k", value="v")
    made.graph.doc_string = "\x1b" * 100_000
    made.configuration.add(name="elsewhere", num_devices=2**31 - 1)
    check(made, NAME, None, LIMITS, None)


def test_types_and_bodies_that_are_nested_deeper_than_any_reader_goes_are_refused(
    tmp_path: Path,
) -> None:
    made = good()
    inner = made.graph.value_info.add(name="v").type
    for _ in range(60):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = 1
    with pytest.raises(ModelRefused, match="no valid protobuf"):
        read_model(saved(made, tmp_path), LIMITS)
    made = good()
    graph = made.graph
    for _ in range(60):
        graph = graph.node.add().attribute.add(name="g", type=onnx.AttributeProto.GRAPH).g
    graph.name = "inmost"
    with pytest.raises(ModelRefused, match="no valid protobuf"):
        read_model(saved(made, tmp_path), LIMITS)


def test_a_graph_of_nothing_is_refused() -> None:
    made = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g () => () {}')
    assert "the graph has no outputs" in refusal(made)
