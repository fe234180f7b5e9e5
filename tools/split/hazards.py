"""Knows one small model for each thing that breaks a naive division, and what each is fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, TEXT = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
)
X = np.array([[-1.5, 2.0, 0.5], [4.0, -3.0, 1.0]], np.float32)
OWN_W = np.array([[0.5, -2.0, 3.0]], np.float32)
"""What a request gives in place of `W`."""
node = helper.make_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """A model made for one hazard."""

    model: onnx.ModelProto
    feeds: dict[str, Any] = field(default_factory=lambda: {"x": X})
    external_from_bytes: int | None = None
    """From which size on its initializers are stored outside of it; None: all inside."""
    undivided: str = ""
    """A part of the reason why it is not divided at all; empty if it is."""


def _value(name: str, dims: Sequence[int | str | None] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def _held(name: str, content: Any) -> onnx.TensorProto:
    array = np.asarray(content)
    is_wide = array.dtype == np.float64
    return numpy_helper.from_array(array.astype(np.float32) if is_wide else array, name)


W = _held("w", [[1.0, 2.0, -1.0]])
IN, OUT = _value("x", [2, 3]), _value("y", [2, 3])


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any] = (IN,),
    outputs: Sequence[Any] = (OUT,),
    held: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 18,
    ir_version: int = 8,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "made", inputs, outputs, held)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions)
    )


def _body(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[Any],
    inputs: Sequence[Any] = (),
    held: Sequence[onnx.TensorProto] = (),
) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs, held)


def _any(name: str, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, None)


def _branch(operator: str, *names: str) -> onnx.GraphProto:
    return _body([node(operator, list(names), ["t"])], [_any("t")])


def _captured() -> Hazard:
    """An If reads an input, an intermediate and an initializer that no node lists."""
    then = _body([node("Mul", ["a", "w"], ["m"]), node("Add", ["m", "x"], ["t"])], [_any("t")])
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("ReduceSum", ["a"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["b"], then_branch=then, else_branch=_branch("Neg", "a")),
        node("Exp", ["b"], ["y"]),
    ]
    return Hazard(model=_model(nodes, held=[W, _held("zero", np.float32(0))]))


def _captured_through_levels() -> Hazard:
    """A Loop in an If in a Loop reads what only the outermost graph has."""
    condition = _value("go", [], BOOL)
    count = _value("i", [], INT64)
    inner = _body(
        [
            node("Identity", ["go"], ["go_on"]),
            node("Mul", ["deep", "w"], ["m"]),
            node("Add", ["m", "a"], ["next"]),
        ],
        [_value("go_on", [], BOOL), _any("next")],
        [count, condition, _any("deep")],
    )
    branch = _body([node("Loop", ["two", "", "state"], ["t"], body=inner)], [_any("t")])
    outer = _body(
        [
            node("Identity", ["on"], ["on_still"]),
            node("If", ["yes"], ["new"], then_branch=branch, else_branch=_branch("Neg", "x")),
        ],
        [_value("on_still", [], BOOL), _any("new")],
        [_value("j", [], INT64), _value("on", [], BOOL), _any("state")],
    )
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("ReduceMax", ["a"], ["most"], keepdims=0),
        node("Greater", ["most", "zero"], ["yes"]),
        node("Neg", ["x"], ["b"]),
        node("Loop", ["two", "", "b"], ["l"], body=outer),
        node("Tanh", ["l"], ["y"]),
    ]
    held = [W, _held("two", np.array(2, np.int64)), _held("zero", np.float32(0))]
    return Hazard(model=_model(nodes, held=held))


def _scan() -> Hazard:
    """A Scan reads an intermediate and an initializer from outside."""
    body = _body(
        [
            node("Add", ["state", "row"], ["sum"]),
            node("Mul", ["sum", "a"], ["m"]),
            node("Add", ["m", "w3"], ["given"]),
        ],
        [_value("sum", [3]), _value("given", [3])],
        [_value("state", [3]), _value("row", [3])],
    )
    nodes = [
        node("ReduceSum", ["x", "first"], ["a"], keepdims=0),
        node("Neg", ["a"], ["start"]),
        node("Scan", ["start", "x"], ["end", "y"], body=body, num_scan_inputs=1),
    ]
    held = [_held("w3", [1.0, 2.0, 3.0]), _held("first", np.array([0], np.int64))]
    return Hazard(model=_model(nodes, outputs=[OUT, _value("end", [3])], held=held))


def _shadowed() -> Hazard:
    """Bodies define names that the graph has too, before and behind the cut."""
    then = _body(
        [node("Mul", ["a", "k"], ["b"]), node("Exp", ["b"], ["t"])],
        [_any("t")],
        held=[_held("k", [[3.0, 2.0, 1.0]])],
    )
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Mul", ["a", "k"], ["h"]),
        node("ReduceMax", ["h"], ["m"], keepdims=0),
        node("Greater", ["m", "zero"], ["c"]),
        node("If", ["c"], ["i"], then_branch=then, else_branch=_branch("Neg", "a")),
        node("Sub", ["i", "k"], ["b"]),
        node("Add", ["b", "a"], ["y"]),
    ]
    return Hazard(
        model=_model(nodes, held=[_held("k", [[9.0, 8.0, 7.0]]), _held("zero", np.float32(0))])
    )


def _shared_initializer() -> Hazard:
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("Mul", ["b", "w"], ["y"]),
    ]
    return Hazard(model=_model(nodes, held=[W]))


def _input_read_on_both_sides() -> Hazard:
    nodes = [node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Add", ["b", "x"], ["y"])]
    return Hazard(model=_model(nodes))


def _default(feeds: dict[str, Any], ir_version: int = 8) -> Hazard:
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Neg", ["w"], ["n"]),
        node("Exp", ["a"], ["b"]),
        node("Add", ["b", "w"], ["c"]),
        node("Mul", ["c", "n"], ["y"]),
    ]
    inputs = [IN, _value("w", [1, 3])]
    opset = 18 if ir_version > 3 else 8
    return Hazard(
        model=_model(nodes, inputs, held=[W], opset=opset, ir_version=ir_version), feeds=feeds
    )


def _overridden() -> Hazard:
    """An initializer that is an input too, with a value from the request."""
    return _default({"x": X, "w": OWN_W})


def _not_overridden() -> Hazard:
    return _default({"x": X})


def _inputs_of_old_models() -> Hazard:
    """IR version 3 lists every initializer as an input."""
    return _default({"x": X}, ir_version=3)


def _overridden_in_a_body() -> Hazard:
    branches = {"then_branch": _branch("Mul", "a", "w"), "else_branch": _branch("Neg", "w")}
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("ReduceMax", ["a"], ["m"], keepdims=0),
        node("Greater", ["m", "zero"], ["c"]),
        node("If", ["c"], ["y"], **branches),
    ]
    made = _model(nodes, [IN, _value("w", [1, 3])], held=[W, _held("zero", np.float32(0))])
    return Hazard(model=made, feeds={"x": X, "w": OWN_W})


def _chain(last: str = "y") -> list[onnx.NodeProto]:
    return [node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Tanh", ["b"], [last])]


def _output_is_an_intermediate() -> Hazard:
    return Hazard(model=_model(_chain(), outputs=[_value("a", [2, 3]), OUT]))


def _output_is_an_input() -> Hazard:
    return Hazard(model=_model(_chain(), outputs=[OUT, IN]))


def _output_is_an_initializer() -> Hazard:
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Exp", ["a"], ["b"]),
        node("Tanh", ["b"], ["y"]),
    ]
    return Hazard(model=_model(nodes, outputs=[_value("w", [1, 3]), OUT], held=[W]))


def _repeated_output() -> Hazard:
    a = _value("a", [2, 3])
    return Hazard(model=_model(_chain(), outputs=[a, OUT, a]))


def _empty_optional_inputs() -> Hazard:
    """Nodes leave out inputs and outputs in the middle of their lists."""
    nodes = [
        node("Clip", ["x", "", "two"], ["a"]),
        node("Unsqueeze", ["a", "axis"], ["u"]),
        node("LSTM", ["u", "lw", "lr", "", "", "h0"], ["", "h"], hidden_size=1),
        node("Exp", ["h"], ["e"]),
        node("Dropout", ["e"], ["d", ""]),
        node("Clip", ["d", "", "two"], ["z"]),
    ]
    held = [
        _held("two", np.float32(2)),
        _held("axis", np.array([0], np.int64)),
        _held("lw", np.ones((1, 4, 3), np.float32)),
        _held("lr", np.ones((1, 4, 1), np.float32)),
        _held("h0", np.ones((1, 2, 1), np.float32)),
    ]
    return Hazard(model=_model(nodes, outputs=[_value("z", [1, 2, 1])], held=held))


def _unnamed_and_equally_named() -> Hazard:
    """Nodes without a name, and equal names in bodies (in one graph ONNX Runtime refuses them)."""
    branch = _branch("Exp", "a")
    branch.node[0].name = "same"
    nodes = [
        node("Neg", ["x"], ["a"], name="same"),
        node("ReduceMax", ["a"], ["m"], keepdims=0),
        node("Greater", ["m", "zero"], ["c"]),
        node("If", ["c"], ["b"], then_branch=branch, else_branch=branch),
        node("Neg", ["b"], ["y"]),
    ]
    return Hazard(model=_model(nodes, held=[_held("zero", np.float32(0))]))


def _unsorted() -> Hazard:
    return Hazard(model=_model(_chain()[::-1]))


def _dead() -> Hazard:
    """Nodes that nobody reads, and an input that nobody reads."""
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("Exp", ["x"], ["dead"]),
        node("Tanh", ["dead"], ["dead_too"]),
        node("Exp", ["a"], ["y"]),
    ]
    made = _model(nodes, [IN, _value("unused", [5])])
    return Hazard(model=made, feeds={"x": X, "unused": np.zeros(5, np.float32)})


def _functions() -> Hazard:
    """Functions in functions, with attributes that refer to those of the caller."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    leak = node("LeakyRelu", ["v"], ["r"])
    leak.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    inner = helper.make_function("mine", "Leak", ["v"], ["r"], [leak], opsets, ["slope"])
    call = node("Leak", ["u"], ["h"], domain="mine")
    call.attribute.add(name="slope", ref_attr_name="steep", type=onnx.AttributeProto.FLOAT)
    outer = helper.make_function(
        "mine",
        "Bend",
        ["u"],
        ["g"],
        [call, node("Neg", ["h"], ["g"])],
        opsets,
        ["steep"],
    )
    nodes = [
        node("Bend", ["x"], ["a"], domain="mine", steep=0.25),
        node("Exp", ["a"], ["b"]),
        node("Bend", ["b"], ["c"], domain="mine", steep=0.5),
        node("Leak", ["c"], ["y"], domain="mine", slope=2.0),
    ]
    return Hazard(model=_model(nodes, domains=["mine"], functions=[inner, outer]))


def _untyped() -> Hazard:
    """Types and ranks that ONNX cannot infer."""
    nodes = [
        node("FastGelu", ["x"], ["a"], domain="com.microsoft"),
        node("QuickGelu", ["a"], ["b"], domain="com.microsoft"),
        node("Neg", ["b"], ["y"]),
    ]
    return Hazard(model=_model(nodes, outputs=[_any("y")], domains=["com.microsoft"]))


def _unknown_rank() -> Hazard:
    nodes = [
        node("Reshape", ["x", "s"], ["a"]),
        node("Exp", ["a"], ["b"]),
        node("Neg", ["b"], ["z"]),
    ]
    inputs = [IN, _value("s", ["rank"], INT64)]
    made = _model(nodes, inputs, [_any("z")])
    return Hazard(model=made, feeds={"x": X, "s": np.array([3, 1, 2])})


def _wrong_declarations() -> Hazard:
    made = _model(_chain())
    made.graph.value_info.extend([_value("a", [7, 9]), _value("b", [5])])
    return Hazard(model=made)


def _dynamic() -> Hazard:
    made = _model(_chain(), [_value("x", ["n", None])], [_value("y", ["n", None])])
    return Hazard(model=made)


def _scalars_and_nothing() -> Hazard:
    """A scalar and tensors without elements cross."""
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Slice", ["x", "from", "from", "axis"], ["e"]),
        node("Neg", ["e"], ["f"]),
        node("Concat", ["f", "x"], ["g"], axis=0),
        node("Concat", ["none", "g"], ["h"], axis=0),
        node("Mul", ["h", "s"], ["y"]),
    ]
    held = [
        _held("from", np.array([0], np.int64)),
        _held("axis", np.array([0], np.int64)),
        _held("none", np.zeros((0, 3), np.float32)),
    ]
    return Hazard(model=_model(nodes, held=held))


def _text() -> Hazard:
    nodes = [
        node("Cast", ["x"], ["a"], to=TEXT),
        node("Flatten", ["t"], ["b"], axis=0),
        node("Concat", ["a", "b"], ["c"], axis=0),
        node("Identity", ["c"], ["y"]),
    ]
    made = _model(nodes, [IN, _value("t", [3], TEXT)], [_any("y", TEXT)])
    return Hazard(model=made, feeds={"x": X, "t": np.array(["é", "", "c"], object)})


def _sequences() -> Hazard:
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=0),
        node("SequenceInsert", ["s", "x"], ["r"]),
        node("SequenceErase", ["r", "at"], ["q"]),
        node("ConcatFromSequence", ["q"], ["y"], axis=0),
    ]
    held = [_held("at", np.array(0, np.int64))]
    return Hazard(model=_model(nodes, outputs=[_any("y")], held=held))


def _optionals() -> Hazard:
    """An optional with a value and one without."""
    nodes = [
        node("Optional", ["x"], ["o"]),
        node("Optional", [], ["n"], type=helper.make_tensor_type_proto(FLOAT, None)),
        node("OptionalHasElement", ["n"], ["c"]),
        node("OptionalGetElement", ["o"], ["g"]),
        node("Not", ["c"], ["is_none"]),
        node("Where", ["is_none", "g", "zero"], ["y"]),
    ]
    return Hazard(model=_model(nodes, held=[_held("zero", np.float32(0))]))


def _maps() -> Hazard:
    """A map that is fed and read on both sides."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = INT64
    kind.map_type.value_type.tensor_type.elem_type = FLOAT
    nodes = [
        node("DictVectorizer", ["m"], ["a"], domain="ai.onnx.ml", int64_vocabulary=[9, 7]),
        node("Neg", ["a"], ["b"]),
        node("CastMap", ["m"], ["c"], domain="ai.onnx.ml"),
        node("Add", ["b", "c"], ["y"]),
    ]
    made = _model(nodes, [helper.make_value_info("m", kind)], [_any("y")], domains=["ai.onnx.ml"])
    return Hazard(model=made, feeds={"m": {7: -3.0, 9: 5.0}})


def _lacking_type(kind: int) -> Callable[[], Hazard]:
    def made() -> Hazard:
        nodes = [
            node("Neg", ["x"], ["a"]),
            node("Cast", ["a"], ["h"], to=kind),
            node("Cast", ["h"], ["b"], to=FLOAT),
            node("Exp", ["b"], ["y"]),
        ]
        return Hazard(model=_model(nodes, opset=21, ir_version=10))

    return made


def _sparse() -> Hazard:
    made = _model([node("Neg", ["x"], ["a"]), node("Add", ["a", "k"], ["y"])])
    values = _held("k", [5.0, -1.0])
    indices = _held("k_indices", np.array([[0, 1], [1, 2]], np.int64))
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    return Hazard(model=made)


def _domains() -> Hazard:
    """Operators of ai.onnx.ml and com.microsoft, each with a version of its own."""
    nodes = [
        node("Normalizer", ["x"], ["a"], domain="ai.onnx.ml", norm="L2"),
        node("FusedMatMul", ["a", "w33"], ["b"], domain="com.microsoft", alpha=2.0),
        node("Scaler", ["b"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0]),
    ]
    held = [_held("w33", np.arange(9, dtype=np.float32).reshape(3, 3))]
    return Hazard(model=_model(nodes, held=held, domains=["ai.onnx.ml", "com.microsoft"]))


def _external() -> Hazard:
    nodes = [
        node("MatMul", ["x", "big"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("MatMul", ["b", "back"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    held = [
        _held("big", rng.standard_normal((3, 500)).astype(np.float32)),
        _held("back", rng.standard_normal((500, 3)).astype(np.float32)),
    ]
    return Hazard(model=_model(nodes, held=held), external_from_bytes=1024)


def _random() -> Hazard:
    """Both readers must see the same draw."""
    nodes = [
        node("RandomNormalLike", ["x"], ["r"]),
        node("Neg", ["r"], ["n"]),
        node("Add", ["r", "n"], ["zero"]),
        node("Exp", ["zero"], ["y"]),
    ]
    return Hazard(model=_model(nodes), undivided="draws random numbers without a seed")


def _opset(version: int) -> Callable[[], Hazard]:
    def made() -> Hazard:
        nodes = [
            node("Neg", ["x"], ["a"]),
            node("Softmax", ["a"], ["b"], axis=1),
            node("Add", ["b", "x"], ["y"]),
        ]
        ir_version = 3 if version < 9 else 8 if version < 19 else 10
        return Hazard(model=_model(nodes, opset=version, ir_version=ir_version))

    return made


HAZARDS: dict[str, Callable[[], Hazard]] = {
    "captured values": _captured,
    "captured through several levels": _captured_through_levels,
    "captured by a Scan": _scan,
    "shadowed names": _shadowed,
    "initializer on both sides": _shared_initializer,
    "input on both sides": _input_read_on_both_sides,
    "default overridden": _overridden,
    "default not overridden": _not_overridden,
    "default overridden in a body": _overridden_in_a_body,
    "initializers as inputs (IR 3)": _inputs_of_old_models,
    "output that is an intermediate": _output_is_an_intermediate,
    "output that is an input": _output_is_an_input,
    "output that is an initializer": _output_is_an_initializer,
    "one value as two outputs": _repeated_output,
    "empty optional inputs and outputs": _empty_optional_inputs,
    "unnamed and equally named nodes": _unnamed_and_equally_named,
    "unsorted nodes": _unsorted,
    "dead nodes and unused inputs": _dead,
    "functions": _functions,
    "values without type": _untyped,
    "values without rank": _unknown_rank,
    "wrong declarations": _wrong_declarations,
    "dynamic dimensions": _dynamic,
    "scalars and empty tensors": _scalars_and_nothing,
    "text": _text,
    "sequences": _sequences,
    "optionals": _optionals,
    "maps": _maps,
    "bfloat16": _lacking_type(TensorProto.BFLOAT16),
    "float8": _lacking_type(TensorProto.FLOAT8E4M3FN),
    "int4": _lacking_type(TensorProto.INT4),
    "sparse initializers": _sparse,
    "other domains": _domains,
    "external data": _external,
    "random operators": _random,
    "opset 7": _opset(7),
    "opset 13": _opset(13),
    "newest opset of ONNX Runtime 1.24": _opset(24),
}
"""By name; each call makes the model anew."""
