"""Models with what breaks a naive splitter, in two stages at every place where they can be divided:
admitted by another device, the stages compute together what the whole computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.pooling import pooled
from edge_agent.builder.specs import inner_specs
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused
from edge_agent.model.cuts import places
from edge_agent.model.graph import ModelGraph
from edge_agent.samples import random_arrays
from edge_agent.store.models import ModelStore
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays
from tests.builder.made_hosts import Here
from tests.model.made_models import body, held, model, node, value

WIDE = np.linspace(-1, 1, 40 * 40, dtype=np.float32).reshape(40, 40)
"""Large enough to lie outside of the graph."""
ENDS = ([value("x", [1, 40])], [value("y", [1, 40])])


def weight_as_default() -> Any:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "w1"], ["b"])]
    nodes.append(node("MatMul", ["b", "w"], ["y"]))
    inputs = [*ENDS[0], value("w", [40, 40])]
    return model(nodes, inputs, ENDS[1], [held("w", WIDE), held("w1", np.ones(40))])


def captured_in_branches() -> Any:
    then = body([node("MatMul", ["a", "w"], ["t"])], [value("t", None)])
    other = body(
        [node("Add", ["a", "inner"], ["e"])],
        [value("e", None)],
        held=[held("inner", np.arange(40.0))],
    )
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["i"], then_branch=then, else_branch=other),
        node("Add", ["i", "a"], ["y"]),
    ]
    return model(nodes, *ENDS, [held("w", WIDE), held("zero", np.float32(0))])


def inside_and_out() -> Any:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("MatMul", ["a", "w"], ["b"]),
        node("Add", ["b", "a"], ["y"]),
    ]
    outputs = [*ENDS[1], value("a", [1, 40]), value("w", [40, 40])]
    return model(nodes, ENDS[0], outputs, [held("w", WIDE)])


def texts() -> Any:
    nodes = [
        node("Cast", ["x"], ["t"], to=TensorProto.STRING),
        node("Identity", ["t"], ["u"]),
        node("Cast", ["u"], ["v"], to=TensorProto.FLOAT),
        node("Add", ["v", "v"], ["y"]),
    ]
    return model(nodes, *ENDS)


def half_floats() -> Any:
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
        node("Identity", ["h"], ["i"]),
        node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    return model(nodes, *ENDS)


def constants_of_constants() -> Any:
    nodes = [
        node("Constant", [], ["k"], value=numpy_helper.from_array(WIDE, "k")),
        node("Transpose", ["k"], ["kt"]),
        node("MatMul", ["x", "kt"], ["a"]),
        node("Shape", ["a"], ["s"]),
        node("Reshape", ["a", "s"], ["b"]),
        node("MatMul", ["b", "kt"], ["c"]),
        node("Constant", [], ["list"], value_floats=WIDE.ravel().tolist()),
        node("Reshape", ["list", "sizes"], ["l"]),
        node("MatMul", ["c", "l"], ["y"]),
    ]
    return model(nodes, *ENDS, [held("sizes", np.array([40, 40], np.int64))])


def out_of_order_with_dead_nodes() -> Any:
    nodes = [
        node("Add", ["b", "a"], ["y"]),
        node("Exp", ["a"], ["dead"]),
        node("MatMul", ["a", "w"], ["b"]),
        node("Relu", ["x"], ["a"]),
    ]
    return model(nodes, *ENDS, [held("w", WIDE)])


def own_functions() -> Any:
    opset = helper.make_opsetid("", 17)
    twice = helper.make_function(
        "own",
        "Twice",
        ["i"],
        ["o"],
        [node("Add", ["i", "i"], ["o"])],
        [opset],
    )
    nodes = [
        node("Twice", ["x"], ["a"], domain="own"),
        node("MatMul", ["a", "w"], ["b"]),
        node("Twice", ["b"], ["y"], domain="own"),
    ]
    return model(nodes, *ENDS, [held("w", WIDE)], functions=[twice], domains=["own"])


def old_form() -> Any:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])]
    inputs = [*ENDS[0], value("w", [40, 40])]
    return model(nodes, inputs, ENDS[1], [held("w", WIDE)], opset=8, ir_version=3)


def sizes_by_value() -> Any:
    nodes = [
        node("NonZero", ["x"], ["z"]),
        node("Transpose", ["z"], ["zt"]),
        node("GatherND", ["x", "zt"], ["g"]),
        node("Relu", ["g"], ["r"]),
        node("ReduceSum", ["r"], ["y"], keepdims=1),
    ]
    return model(nodes, ENDS[0], [value("y", ["n"])])


MADE: tuple[Callable[[], Any], ...] = (
    weight_as_default,
    captured_in_branches,
    inside_and_out,
    texts,
    half_floats,
    constants_of_constants,
    out_of_order_with_dead_nodes,
    own_functions,
    old_form,
    sizes_by_value,
)


def legal_places(owner: Here, loaded: ModelId, scratch: Path) -> list[int]:
    with pooled(loaded, ModelStore(owner.settings.state), owner.pool) as entry:
        graph = ModelGraph.load(entry.graph)
        specs = inner_specs(graph, {}, scratch / "probe.onnx")
        return [p.position for p in places(graph, specs) if p.blocked_because is None]


def opened(path: Path) -> Session:
    """Without what is fused, which is another sum in another order, so that equal is equal."""
    return Session.open(path, threads=1, level=OptimisationLevel.NONE)


@pytest.mark.parametrize("made", MADE)
def test_two_stages_compute_what_the_whole_computes(
    tmp_path: Path, made: Callable[[], Any]
) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(made(), source)
    owner, host = Here(tmp_path / "owner"), Here(tmp_path / "host")
    loaded = owner.load(source)
    whole = opened(source)
    feeds = random_arrays(whole.inputs, {}, np.random.default_rng(5))
    want = whole.run(feeds, whole.output_names)
    cuts = legal_places(owner, loaded, tmp_path)
    assert cuts
    for cut in cuts:
        values: Arrays = dict(feeds)
        for stage in owner.cut(loaded, [(0, 1), (1, 2)], (0, cut)):
            host.receive(stage, owner)
            host.admit(stage)
            session = opened(host.pool.graph(stage.id))
            assert set(session.takes) == {spec.name for spec in stage.inputs}
            given = {name: values[name] for name in session.takes if name in values}
            values |= session.run(given, session.output_names)
        for name, array in want.items():
            np.testing.assert_array_equal(values[name], array, err_msg=f"{name}, cut at {cut}")


def test_a_stage_into_which_nothing_comes_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("RandomNormal", [], ["r"], shape=[1, 40], seed=1.0),
        node("Relu", ["r"], ["s"]),
        node("Add", ["x", "s"], ["y"]),
    ]
    onnx.save(model(nodes, *ENDS), tmp_path / "m.onnx")
    owner = Here(tmp_path / "owner")
    loaded = owner.load(tmp_path / "m.onnx")
    with pytest.raises(ModelRefused, match="nothing comes into it; choose other cuts"):
        owner.cut(loaded, [(0, 1)], (0, 2))
