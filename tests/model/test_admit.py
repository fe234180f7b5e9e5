from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edge_agent.errors import ModelRefused
from edge_agent.model.admit import (
    AdmissionLimits,
    check,
    declared_inputs,
    declared_outputs,
    external_places,
    overridable,
    read_model,
)
from edge_agent.model.values import type_of_text, type_text
from edge_agent.tensors import ElementType
from tests.model.made_models import body, held, model, node, value

LIMITS = AdmissionLimits()
NAME = Path("model.onnx")


def good(**changes: Any) -> Any:
    """A small model in which nothing is wrong."""
    made = {
        "nodes": [node("Add", ["x", "w"], ["a"], name="plus"), node("Abs", ["a"], ["y"])],
        "inputs": [value("x", ["n", 3])],
        "outputs": [value("y", ["n", 3])],
        "held": [held("w", [1.0, 2.0, 3.0])],
    } | changes
    return model(**made)


def refusal(made: Any, folder: Path | None = None, **rest: Any) -> str:
    with pytest.raises(ModelRefused) as caught:
        check(made, NAME, folder, rest.get("limits", LIMITS), rest.get("runtime_opset"))
    return str(caught.value)


def test_a_good_model_passes() -> None:
    check(good(), NAME, None, LIMITS, 17)


def test_a_model_read_again_is_the_one_that_was_written(tmp_path: Path) -> None:
    onnx.save(good(), tmp_path / "model.onnx")
    assert read_model(tmp_path / "model.onnx", LIMITS) == good()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"This is no model.", "no valid protobuf"),
        (b"\x08\x08", "has no graph"),
        (good().SerializeToString()[:-7], "is cut short"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelRefused, match=f"model.onnx: .*{reason}"):
        read_model(path, LIMITS)


def test_a_file_above_the_limit_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xff" * 11)
    with pytest.raises(ModelRefused, match="got 11 bytes, want at most 10"):
        read_model(path, AdmissionLimits(max_file_bytes=10))


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="cannot be read: No such file"):
        read_model(tmp_path / "absent.onnx", LIMITS)
    with pytest.raises(ModelRefused, match="cannot be read: Is a directory"):
        read_model(tmp_path, LIMITS)
    with pytest.raises(ModelRefused, match="is no regular file"):
        read_model(Path(os.devnull), LIMITS)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(position=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_damaged_file_passes_or_is_refused_but_never_fails_otherwise(
    position: int, byte: int, tmp_path: Path
) -> None:
    content = bytearray(good().SerializeToString())
    content[position % len(content)] = byte
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with contextlib.suppress(ModelRefused):
        found = read_model(path, LIMITS)
        external_places(found, path)
        check(found, path, tmp_path, LIMITS, None)


def _with(made: Any, change: Callable[[Any], object]) -> Any:
    change(made)
    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            _with(good(), lambda m: setattr(m, "ir_version", 99)),
            f"got IR version 99, want 1 to {onnx.IR_VERSION}",
        ),
        (_with(good(), lambda m: m.ClearField("ir_version")), "got IR version 0"),
        (_with(good(), lambda m: m.ClearField("opset_import")), "imports no operator set"),
        (
            _with(good(), lambda m: setattr(m.opset_import[0], "version", 900)),
            f"got opset 900 of ai.onnx, want 1 to {onnx.defs.onnx_opset_version()}",
        ),
        (good(outputs=[]), "the graph has no outputs"),
        (
            good(nodes=[node("Frobnicate", ["x"], ["y"], name="foo")]),
            'node 0 "foo" (Frobnicate): operator ai.onnx::Frobnicate is unknown at opset 17',
        ),
        (
            good(nodes=[node("Gelu", ["x"], ["y"])]),
            "node 0 (Gelu): operator ai.onnx::Gelu is unknown at opset 17",
        ),
        (
            good(nodes=[node("Abs", ["x"], ["y"], domain="com.example")], domains=["com.example"]),
            'node 0 (Abs): operator domain "com.example" is unknown',
        ),
        (
            good(nodes=[node("Scaler", ["x"], ["y"], domain="ai.onnx.ml")]),
            'node 0 (Scaler): the model imports no opset of "ai.onnx.ml"',
        ),
        (
            good(
                nodes=[node("EPContext", ["x"], ["y"], domain="com.microsoft")],
                domains=["com.microsoft"],
            ),
            "com.microsoft::EPContext is not accepted",
        ),
        (
            good(nodes=[node("Conv", ["x"], ["y"])]),
            "node 0 (Conv): got 1 inputs, want 2 to 3",
        ),
        (
            good(nodes=[node("Add", ["x", "gone"], ["y"], name="plus")]),
            'node 0 "plus" (Add): input "gone" is produced by nothing',
        ),
        (
            good(nodes=[node("Abs", ["x"], ["y"]), node("Neg", ["x"], ["y"])]),
            'node 1 (Neg): output "y" is already the output of node 0 (Abs)',
        ),
        (
            good(nodes=[node("Abs", ["x"], ["w"]), node("Abs", ["w"], ["y"])]),
            'node 0 (Abs): output "w" is already an input or initializer of the graph',
        ),
        (good(inputs=[value("x", [3]), value("x", [3])]), 'input "x" is declared twice'),
        (good(held=[held("w", [1.0]), held("w", [2.0])]), 'initializer "w" is stored twice'),
        (good(outputs=[value("z", [3])]), 'output "z" is produced by nothing'),
        (
            good(nodes=[node("Add", ["x", "y"], ["a"]), node("Abs", ["a"], ["y"])]),
            "node 0 (Add) lies on a cycle",
        ),
        (
            good(held=[TensorProto(name="w", data_type=1, dims=[3], raw_data=bytes(11))]),
            'tensor "w": got 11 bytes, want 12 for float32[3]',
        ),
        (
            good(held=[TensorProto(name="w", data_type=1, dims=[3], float_data=[1, 2])]),
            'tensor "w": got 2 values, want 3 for float32[3]',
        ),
        (
            good(held=[TensorProto(name="w", data_type=777, dims=[3])]),
            'tensor "w": got element type number 777',
        ),
        (
            good(held=[TensorProto(name="w", data_type=1, dims=[3, -1])]),
            'tensor "w": got shape [3, -1], want sizes of 0 or more',
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(made: Any, message: str) -> None:
    text = refusal(made)
    assert text.startswith("model.onnx: ")
    assert message in text


def test_an_opset_newer_than_the_runtime_is_refused() -> None:
    assert "got opset 17 of ai.onnx, want 1 to 16" in refusal(good(), runtime_opset=16)


def test_operators_of_known_domains_and_own_functions_pass() -> None:
    twice = helper.make_function(
        "own",
        "Twice",
        ["p"],
        ["q"],
        [node("Add", ["p", "p"], ["q"])],
        [helper.make_opsetid("", 17)],
    )
    made = good(
        nodes=[
            node("NotKnownToOnnx", ["x"], ["a"], domain="com.microsoft"),
            node("Twice", ["a"], ["b"], domain="own"),
            node("Scaler", ["b"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[1.0]),
        ],
        functions=[twice],
        domains=["com.microsoft", "own", "ai.onnx.ml", "com.example.unused"],
    )
    check(made, NAME, None, LIMITS, None)


def test_a_function_is_checked_as_well() -> None:
    broken = helper.make_function(
        "own",
        "Twice",
        ["p"],
        ["q"],
        [node("Add", ["p", "r"], ["q"])],
        [helper.make_opsetid("", 17)],
    )
    text = refusal(good(functions=[broken]))
    assert 'function "Twice", node 0 (Add): input "r" is produced by nothing' in text


def _with_if(then: Any) -> Any:
    other = body([node("Abs", ["x"], ["e"])], [value("e", None)])
    return good(
        nodes=[node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        inputs=[value("x", ["n", 3]), value("c", [], TensorProto.BOOL)],
    )


def test_bodies_may_read_what_is_around_them_and_nothing_else() -> None:
    check(
        _with_if(body([node("Add", ["x", "w"], ["t"])], [value("t", None)])),
        NAME,
        None,
        LIMITS,
        None,
    )
    text = refusal(_with_if(body([node("Add", ["x", "e"], ["t"])], [value("t", None)])))
    assert "node 0 (If), in its body: node 0 (Add)" in text
    assert 'input "e" is produced by nothing' in text


def test_counts_over_the_limits_are_refused() -> None:
    few = dataclasses.replace(LIMITS, max_nodes=1)
    assert "got 2 nodes, want at most 1" in refusal(good(), limits=few)
    none = dataclasses.replace(LIMITS, max_initializers=0)
    assert "got 1 initializers, want at most 0" in refusal(good(), limits=none)


def test_bodies_nested_too_deep_are_refused() -> None:
    inner = body([node("Abs", ["x"], ["t"])], [value("t", None)])
    for _ in range(3):
        inner = body(
            [node("If", ["c"], ["t"], then_branch=inner, else_branch=inner)], [value("t", None)]
        )
    check(_with_if(inner), NAME, None, LIMITS, None)
    shallow = dataclasses.replace(LIMITS, max_depth=3)
    assert "nested more than 3 deep" in refusal(_with_if(inner), limits=shallow)


def _external(**entries: str) -> Any:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


@pytest.mark.parametrize(
    "location",
    [
        "",
        ".",
        "/etc/passwd",
        "../w.bin",
        "a/../../w.bin",
        "a//w.bin",
        "a/",
        "C:w.bin",
        "c:/w.bin",
        "a\\w.bin",
        "a\0b",
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_external_data_outside_of_the_folder_are_refused(location: str) -> None:
    made = good(held=[_external(location=location)])
    with pytest.raises(ModelRefused, match=r'model.onnx: tensor "w": got external data location'):
        external_places(made, NAME)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-1"}, 'offset "-1", want a whole number'),
        ({"offset": "1e3"}, 'offset "1e3"'),
        ({"offset": "9" * 40}, "want a whole number"),
        ({"length": "twelve"}, 'length "twelve"'),
        ({"length": "8"}, "external data of 8 bytes, want 12 bytes for shape"),
        ({"prepacked_0": "k|0|64|x"}, 'external data key "prepacked_0"'),
    ],
)
def test_numbers_and_keys_of_external_data_are_checked(
    entries: dict[str, str], message: str
) -> None:
    made = good(held=[_external(location="w.bin", **entries)])
    with pytest.raises(ModelRefused) as caught:
        external_places(made, NAME)
    assert message in str(caught.value)


def test_all_external_places_are_found_once() -> None:
    constant = _external(location="d/c.bin")
    inner = body([node("Add", ["x", "k"], ["t"])], [value("t", None)], held=[_external_as("k")])
    made = _with_if(inner)
    made.graph.node.append(node("Constant", [], ["k2"], value=constant))
    made.graph.initializer.append(_external(location="./b.bin"))
    made.graph.initializer[-1].name = "b"
    made.functions.append(
        helper.make_function(
            "own",
            "F",
            [],
            ["q"],
            [node("Constant", [], ["q"], value=_external(location="a.bin"))],
            [helper.make_opsetid("", 17)],
        )
    )
    made.graph.initializer.append(_external(location="b.bin"))
    places = external_places(made, NAME)
    assert sorted(p.location for p in places) == ["a.bin", "b.bin", "d/c.bin", "k.bin"]


def _external_as(name: str) -> Any:
    tensor = _external(location=f"{name}.bin")
    tensor.name = name
    return tensor


def test_external_data_must_be_there_and_long_enough(tmp_path: Path) -> None:
    made = good(held=[_external(location="w.bin", offset="4", length="12")])
    check(made, NAME, None, LIMITS, None)
    assert 'external data file "w.bin" cannot be read' in refusal(made, tmp_path)
    (tmp_path / "w.bin").write_bytes(b"\0" * 15)
    assert 'external data file "w.bin" has 15 bytes, want 16 or more' in refusal(made, tmp_path)
    (tmp_path / "w.bin").write_bytes(b"\0" * 16)
    check(made, NAME, tmp_path, LIMITS, None)


def test_narrow_types_share_the_entries_of_a_typed_field() -> None:
    tensors = [
        helper.make_tensor("i4", TensorProto.INT4, [3], [1, -2, 3]),
        helper.make_tensor("half", TensorProto.FLOAT16, [3], np.float16([1, 2, 3])),
        helper.make_tensor("pair", TensorProto.COMPLEX64, [2], np.complex64([1, 2j])),
        helper.make_tensor("flags", TensorProto.BOOL, [2], [True, False]),
        helper.make_tensor("text", TensorProto.STRING, [2], ["a", "b"]),
        helper.make_tensor("none", TensorProto.FLOAT, [0], []),
    ]
    check(
        good(held=[held("w", [1.0]), *tensors], opset=21, ir_version=10), NAME, None, LIMITS, None
    )


def test_inputs_with_initializers_have_a_default() -> None:
    inputs = [value("x", ["n", 3]), value("w", [3])]
    made = good(inputs=inputs)
    found = [(str(spec), spec.has_default) for spec in declared_inputs(made)]
    assert found == [("float32[n,3]", False), ("float32[3]", True)]
    old = good(inputs=inputs, ir_version=3, opset=8)
    assert [spec.name for spec in declared_inputs(old)] == ["x"]
    assert [spec.name for spec in declared_outputs(made)] == ["y"]
    assert overridable(made) == ("w",)
    assert overridable(good()) == ()
    assert overridable(good(inputs=inputs, ir_version=3, opset=8)) == ()


def test_sequences_and_optionals_at_the_border_are_named() -> None:
    made = good(
        nodes=[node("Abs", ["x"], ["y"]), node("SequenceConstruct", ["x"], ["s"])],
        outputs=[
            value("y", ["n", 3]),
            helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        ],
    )
    found = [(spec.name, str(spec), spec.dims) for spec in declared_outputs(made)]
    assert found[1:] == [("s", "seq(tensor(float))", None)]


@pytest.mark.parametrize(
    ("text", "element_type", "has_default"),
    [
        ("seq(tensor(float))", ElementType.FLOAT32, False),
        ("map(string,tensor(double))", ElementType.FLOAT64, False),
        ("seq(map(int64,tensor(float)))", ElementType.FLOAT32, False),
        ("optional(tensor(bfloat16))", ElementType.BFLOAT16, True),
        ("optional(seq(tensor(string)))", ElementType.STRING, True),
    ],
)
def test_inputs_that_are_no_tensors_have_their_type(
    text: str, element_type: ElementType, has_default: bool
) -> None:
    made = good(inputs=[onnx.ValueInfoProto(name="x", type=type_of_text(text))])
    (spec,) = declared_inputs(made)
    assert (str(spec), spec.element_type, spec.has_default) == (text, element_type, has_default)
    assert type_text(type_of_text(text)) == text


def test_sizes_that_exporters_do_not_know_are_unknown() -> None:
    made = good(inputs=[value("x", [-1, "", None, 0])])
    assert declared_inputs(made)[0].dims == (None, None, None, 0)
    untyped = onnx.ValueInfoProto(name="x")
    assert declared_inputs(good(inputs=[untyped])) == ()
