"""Damaged models in a process that may die of them, and by name what they broke before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from edge_agent.builder.made_up import find_samples
from edge_agent.builder.specs import inner_specs
from edge_agent.engine.memory import bounded_memory
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.model.divide import legal_cuts, summarise
from edge_agent.model.extract import extract
from edge_agent.model.folding import small_constants
from edge_agent.model.graph import ModelGraph
from edge_agent.model.nhwc import rewrite_nhwc
from edge_agent.model.specs import infer_specs
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName
from hostile.cases import sound, write_case
from hostile.hunt import hunt

QUICK_CASES = range(15)
LONG_CASES = range(15, 150)
MANY_CASES = range(1_000_000, 1_001_500)
PLAIN = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3, "com.microsoft" : 1]>'


def check_cases(cases: range, *, with_operators: bool = False) -> None:
    """Judge damaged models; `tools/fuzz_admission --cases N` runs one of them again."""
    outcomes = set()
    for found in hunt(cases, with_operators=with_operators):
        assert not found.is_bad, f"case {found.case}, {found.step}: {found.outcome}"
        outcomes.add(found.outcome.split(":")[0])
    assert {"refused", "admitted, not opened", "admitted, divided, right"} <= outcomes


def test_damaged_models_are_refused_or_divided_rightly_and_break_nothing() -> None:
    check_cases(QUICK_CASES)


@pytest.mark.long
def test_more_damaged_models_are_refused_or_divided_rightly_and_break_nothing() -> None:
    check_cases(LONG_CASES)


@pytest.mark.many
def test_many_damaged_models_are_refused_or_divided_rightly_and_break_nothing() -> None:
    check_cases(MANY_CASES, with_operators=True)


def test_a_number_stands_for_the_same_damaged_model_every_time(tmp_path: Path) -> None:
    among = sound(with_operators=False)
    (tmp_path / "again").mkdir()
    for number in range(20):
        path, name = write_case(number, among, tmp_path)
        again, same = write_case(number, among, tmp_path / "again")
        assert (path.read_bytes(), name) == (again.read_bytes(), same)


# ---- what was found


def graph_of(text: str, folder: Path) -> ModelGraph:
    path = folder / "model.onnx"
    onnx.save(parser.parse_model(PLAIN + text), path)
    return ModelGraph.load(path)


@pytest.mark.parametrize(
    "operator",
    [
        'ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_int64s = [1]>',
        'ai.onnx.ml.DictVectorizer<string_vocabulary = ["a"]>',
        "EyeLike<dtype = 1>",
        "own.Inner",
    ],
)
def test_operators_of_which_shape_inference_dies_are_kept_from_it(
    operator: str, tmp_path: Path
) -> None:
    text = f"""
        g (float[3] x) => (y) {{ a = com.microsoft.Unknown(x) b = {operator}(a) y = Abs(x) }}"""
    functions = """
        <domain: "own", opset_import: ["" : 17, "ai.onnx.ml" : 3]> Inner (p) => (q)
        { q = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_int64s = [1]>(p) }"""
    graph = graph_of(text + functions if "own" in operator else text, tmp_path)
    assert str(infer_specs(graph, {}).tensors[TensorName("y")]) == "float32[3]"


def test_a_body_with_an_operator_of_which_shape_inference_dies_is_kept_from_it(
    tmp_path: Path,
) -> None:
    graph = graph_of(
        """
        g (float[3] x, bool c) => (y) {
            a = com.microsoft.Unknown(x)
            b = If (c) <then_branch = t () => (o)
                    { o = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_int64s = [1]>(a) },
                else_branch = e () => (p)
                    { p = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_int64s = [1]>(a) }>
            y = Abs(x) }""",
        tmp_path,
    )
    assert str(infer_specs(graph, {}).tensors[TensorName("y")]) == "float32[3]"


def test_a_constant_of_any_size_is_not_made_while_shapes_are_inferred(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        parser.parse_model(f"""{PLAIN}
            g (float[1, 4, 8, 8] x) => (y) <int64[1] n = {{8589934592}}, int64 z = {{0}}> {{
                c = ConstantOfShape(n) r = Gather(c, z) u = com.microsoft.Gelu(x) t = Relu(u)
                y = Add(t, r) }}"""),
        path,
    )
    with bounded_memory(1 << 30):
        specs = infer_specs(ModelGraph.load(path), {}).tensors
        rewrite_nhwc(path, tmp_path / "rewritten.onnx", specs)


def test_an_output_that_is_read_inside_is_not_believed_what_is_declared_of_it(
    tmp_path: Path,
) -> None:
    graph = graph_of(
        """
        g (float[2, 2] x) => (float[77] a, float[2, 2] y)
        { a = com.microsoft.Gelu(x) y = Abs(a) }""",
        tmp_path,
    )
    specs = infer_specs(graph, {})
    assert specs.tensors[TensorName("a")].dims is None
    part = extract(graph, 1, 2, tmp_path / "part.onnx", specs)
    session = Session.open(part.path, threads=1, level=OptimisationLevel.NONE)
    a = -np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(session.run({"a": a}, ["y"])["y"], -a)


def test_sizes_beyond_what_messages_carry_are_told_as_the_largest_that_they_do(
    tmp_path: Path,
) -> None:
    huge = 2**62
    graph = graph_of(
        f"g (float[{huge}, {huge}] x) => (y) {{ a = Mul(x, x) b = Add(a, x) y = Abs(b) }}", tmp_path
    )
    summary = summarise(graph, ModelId("m"), {}, infer_specs(graph, {}))
    assert sum(segment.operations for segment in summary.segments) >= 10**18
    assert msgspec.msgpack.encode(summary)


def test_inputs_that_no_request_could_bring_are_not_made_up(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for dims, at_most in (
        ("[1000000, 1000000]", 1 << 20),
        (f"[{2**62}, {2**62}, 0]", 1 << 20),
        ("[256, 2]", 2047),
    ):
        onnx.save(parser.parse_model(f"{PLAIN} g (float{dims} x) => (y) {{ y = Abs(x) }}"), path)
        session = Session.open(path, threads=1, level=OptimisationLevel.NONE)
        assert find_samples(session, {}, at_most) is None
    assert find_samples(session, {}, 2048) is not None


def test_a_model_that_never_ends_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made = parser.parse_model(f"""{PLAIN}
        g (float[3] x) => (float[3] y) <int64 n = {{1}}, bool go = {{1}}> {{
            y = Loop (n, go, x) <body = b (int64 i, bool c, float[3] h) =>
                (bool d, float[3] k) {{ d = Identity(c) k = Add(h, x) }}> }}""")
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(2**62), "n"))
    onnx.save(made, path)
    session = Session.open(path, threads=1, level=OptimisationLevel.NONE)
    assert find_samples(session, {}, 1 << 20, run_s=0.2) is None


def test_constants_are_not_multiplied_while_they_are_folded(tmp_path: Path) -> None:
    row = numpy_helper.from_array(np.arange(64)[None], "row")
    column = numpy_helper.from_array(np.arange(64)[:, None], "column")
    nodes = [
        helper.make_node("Add", ["row", "column"], ["square"]),
        helper.make_node("Gather", ["row", "column"], ["block"]),
        helper.make_node("Range", ["row", "row", "row"], ["none"]),
        helper.make_node("Abs", ["x"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [row, column])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "model.onnx")
    specs = infer_specs(ModelGraph.load(tmp_path / "model.onnx"), {})
    assert str(specs.tensors[TensorName("y")]) == "float32[3]"


def test_a_list_of_many_texts_is_no_shape(tmp_path: Path) -> None:
    graph = graph_of("g (float[3] x) => (float[3] y) { y = Abs(x) }", tmp_path)
    few = TensorProto(name="few", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b""])
    many = TensorProto(name="many", data_type=TensorProto.STRING, dims=[2000])
    many.string_data.extend([b""] * 2000)
    known = small_constants(replace(graph, constants={"few": few, "many": many}))
    assert list(known) == ["few"]


def test_a_long_chain_of_constants_costs_no_more_than_its_length(tmp_path: Path) -> None:
    count = 2000
    held = [numpy_helper.from_array(np.float32(i), f"c{i}") for i in range(count)]
    sums = ["c0", *(f"s{i}" for i in range(1, count))]
    nodes = [helper.make_node("Add", [sums[i - 1], f"c{i}"], [sums[i]]) for i in range(1, count)]
    nodes.append(helper.make_node("Add", ["x", sums[-1]], ["y"]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "model.onnx")
    found = ModelGraph.load(tmp_path / "model.onnx")
    roots = sum(len(found.constant_roots(name)) for name in (*sums, "y"))
    assert roots < 300 * count
    # Divided all the same, and rightly.
    specs = inner_specs(found, {}, tmp_path / "probe.onnx")
    (cut, *_) = legal_cuts(found, specs)
    first = extract(found, 0, cut, tmp_path / "first.onnx", specs)
    assert first.outputs
