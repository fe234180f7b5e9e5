"""Each kind of difficulty is found where it is, and a model without any has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.model.admit import AdmissionLimits, read_model
from edge_agent.model.graph import ModelGraph
from edge_agent.model.hazards import KINDS, find_hazards
from edge_agent.model.specs import infer_specs
from tests.model.made_models import body, graph_of, held, model, value

X, Y = value("x", [3]), value("y", [3])
YES = value("c", [], TensorProto.BOOL)


def named(operator: str, inputs: list[str], outputs: list[str], **rest: Any) -> Any:
    return helper.make_node(operator, inputs, outputs, name=f"node of {outputs[0]}", **rest)


def clean() -> Any:
    nodes = [named("Add", ["x", "w"], ["a"]), named("Relu", ["a"], ["y"])]
    return model(nodes, [X], [Y], [held("w", [1.0, 2.0, 3.0])])


def hazards(made: Any, folder: Path) -> dict[str, tuple[str, ...]]:
    graph = graph_of(made, folder)
    return {h.kind: h.where for h in find_hazards(graph, infer_specs(graph, {}))}


def test_a_clean_model_has_none(tmp_path: Path) -> None:
    assert hazards(clean(), tmp_path) == {}


def capturing() -> Any:
    branches = {
        f"{side}_branch": body([helper.make_node("Add", ["a", "w"], [side])], [value(side, [3])])
        for side in ("then", "else")
    }
    nodes = [named("Neg", ["x"], ["a"]), named("If", ["c"], ["y"], **branches)]
    return model(nodes, [X, YES], [Y], [held("w", [1.0, 2.0, 3.0])])


def hiding() -> Any:
    loop = body(
        [
            helper.make_node("Add", ["a", "a"], ["twice"]),
            helper.make_node("Identity", ["keep"], ["keep_on"]),
        ],
        [value("keep_on", [], TensorProto.BOOL), value("twice", [3])],
        inputs=[
            value("i", [], TensorProto.INT64),
            value("keep", [], TensorProto.BOOL),
            value("a", [3]),
        ],
    )
    nodes = [
        named("Neg", ["x"], ["a"]),
        named("Abs", ["a"], ["b"]),
        named("Loop", ["times", "go", "b"], ["y"], body=loop),
    ]
    constants = [held("times", np.array(2, np.int64)), held("go", np.array(True))]
    return model(nodes, [X], [Y], constants)


def overridable(ir_version: int) -> Callable[[], Any]:
    def make() -> Any:
        made = clean()
        made.ir_version = ir_version
        made.graph.input.append(value("w", [3]))
        return made

    return make


def giving(*names: str) -> Callable[[], Any]:
    def make() -> Any:
        made = clean()
        made.graph.output.extend(value(name, [3]) for name in names)
        return made

    return make


def calling(*names: str) -> Callable[[], Any]:
    def make() -> Any:
        made = clean()
        for node, name in zip(made.graph.node, names, strict=True):
            node.name = name
        return made

    return make


def out_of_order() -> Any:
    made = clean()
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def dead() -> Any:
    made = clean()
    made.graph.node.extend([named("Neg", ["a"], ["d"]), named("Abs", ["d"], ["e"])])
    return made


def with_unused_input() -> Any:
    made = clean()
    made.graph.input.append(value("spare", [1]))
    return made


def with_function() -> Any:
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "mine", "twice", ["v"], ["u"], [helper.make_node("Add", ["v", "v"], ["u"])], opsets
    )
    nodes = [named("twice", ["x"], ["a"], domain="mine"), named("Relu", ["a"], ["y"])]
    return model(nodes, [X], [Y], functions=[function], domains=["mine"])


def contributed() -> Any:
    nodes = [named("Gelu", ["x"], ["a"], domain="com.microsoft"), named("Relu", ["a"], ["y"])]
    return model(nodes, [X], [Y], domains=["com.microsoft"])


def of_unknown_rank() -> Any:
    made = clean()
    made.graph.input[0].type.tensor_type.ClearField("shape")
    made.graph.node[0].CopyFrom(named("Neg", ["x"], ["a"]))
    return made


def wrongly_declared() -> Any:
    made = clean()
    made.graph.value_info.append(value("a", [4]))
    return made


def empty() -> Any:
    nodes = [named("Concat", ["x", "none"], ["a"], axis=0), named("Relu", ["a"], ["y"])]
    return model(nodes, [X], [Y], [held("none", np.zeros(0, np.float32))])


def of_strings() -> Any:
    text = value("x", [3], TensorProto.STRING)
    return model([named("Identity", ["x"], ["y"])], [text], [value("y", [3], TensorProto.STRING)])


def of_sequences() -> Any:
    nodes = [
        named("SequenceConstruct", ["x", "x"], ["s"]),
        named("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [3]))
    made = model(nodes, [X], [value("y", [6])])
    made.graph.output.append(helper.make_value_info("s", kind))
    return made


def of_bfloat16() -> Any:
    nodes = [
        named("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
        named("Cast", ["a"], ["y"], to=TensorProto.FLOAT),
    ]
    return model(nodes, [X], [Y])


def sparse() -> Any:
    made = clean()
    del made.graph.initializer[:]
    values = held("w", np.float32([5]))
    indices = held("", np.array([1], np.int64))
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    return made


def drawing() -> Any:
    nodes = [named("RandomNormalLike", ["x"], ["a"]), named("Add", ["x", "a"], ["y"])]
    return model(nodes, [X], [Y])


def open_shaped() -> Any:
    made = clean()
    made.graph.input[0].CopyFrom(value("x", ["N", 3]))
    return made


def sharing() -> Any:
    made = clean()
    made.graph.node[1].CopyFrom(named("Mul", ["a", "w"], ["y"]))
    return made


def leaving_out() -> Any:
    nodes = [named("Clip", ["x", "", "w"], ["y"])]
    return model(nodes, [X], [Y], [held("w", np.array(1, np.float32))])


CASES: list[tuple[str, Callable[[], Any], tuple[str, ...]]] = [
    ("bodies that capture outer values", capturing, ('node 1 "node of y" (If): "a", "w"',)),
    ("names in bodies that hide outer names", hiding, ('node 2 "node of y" (Loop): "a"',)),
    ("initializers that a request may override", overridable(8), ("w",)),
    ("initializers listed as inputs (IR version 3)", overridable(3), ("w",)),
    ("outputs that are inputs", giving("x"), ("x",)),
    ("outputs that are constants", giving("w"), ("w",)),
    ("outputs that are read inside", giving("a"), ("a",)),
    ("outputs listed more than once", giving("y"), ('"y" 2 times',)),
    ("nodes without a name", calling("", "n"), ("node 0 (Add)",)),
    ("nodes with equal names", calling("n", "n"), ('"n" 2 times',)),
    ("nodes out of order", out_of_order, ('node 0 "node of y" (Relu)',)),
    (
        "nodes that no output needs",
        dead,
        ('node 2 "node of d" (Neg)', 'node 3 "node of e" (Abs)'),
    ),
    ("inputs that nothing reads", with_unused_input, ("spare",)),
    ("functions inside the model", with_function, ("mine::twice",)),
    ("values of unknown type", contributed, ("a",)),
    ("operators of other domains than ai.onnx", contributed, ("com.microsoft::Gelu ×1",)),
    ("values of unknown rank", of_unknown_rank, ("x", "a", "y")),
    (
        "wrong declarations of values",
        wrongly_declared,
        ('"a" is declared float32[4], but is float32[3]',),
    ),
    ("tensors without elements", empty, ('"none" is float32[0]',)),
    ("strings", of_strings, ("x", "y")),
    (
        "sequences, maps and optionals",
        of_sequences,
        (
            '"s" is sequence(float32[3])',
            'node 0 "node of s" (SequenceConstruct)',
            'node 1 "node of y" (ConcatFromSequence)',
        ),
    ),
    ("types that numpy lacks", of_bfloat16, ('"a" is bfloat16',)),
    ("sparse initializers", sparse, ("w",)),
    (
        "operators that draw random numbers without a seed",
        drawing,
        ('node 0 "node of a" (RandomNormalLike)',),
    ),
    ("open dimensions of inputs", open_shaped, ('"x" is float32[N,3]',)),
    ("constants that several nodes read", sharing, ('"w" by 2 nodes',)),
    ("operands left out", leaving_out, ('node 0 "node of y" (Clip)',)),
]


@pytest.mark.parametrize(("kind", "make", "where"), CASES, ids=[case[0] for case in CASES])
def test_each_kind_is_found_where_it_is(
    kind: str, make: Callable[[], Any], where: tuple[str, ...], tmp_path: Path
) -> None:
    assert hazards(make(), tmp_path)[kind] == where


def test_external_data_are_found_but_not_weights_that_stay_in_the_file(tmp_path: Path) -> None:
    made = model(
        [named("Add", ["x", "w"], ["y"])],
        [value("x", [2048])],
        [value("y", [2048])],
        [held("w", np.zeros(2048, np.float32))],
    )
    path = tmp_path / "inside.onnx"
    onnx.save(made, path)
    lean = ModelGraph.from_model(read_model(path, AdmissionLimits(), is_lean=True), path)
    assert find_hazards(lean, infer_specs(lean, {})) == ()
    onnx.save(made, tmp_path / "out.onnx", save_as_external_data=True, location="w.bin")
    graph = ModelGraph.load(tmp_path / "out.onnx")
    (found,) = find_hazards(graph, infer_specs(graph, {}))
    assert (found.kind, found.where) == ("external data", ("w.bin",))


def test_every_kind_has_a_test() -> None:
    assert set(KINDS) == {kind for kind, _, _ in CASES} | {"external data"}
