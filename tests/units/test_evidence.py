"""Placement on real providers, where they are installed: what is taken, what is not, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.devices import ComputeUnit
from edge_agent.engine.evidence import NOT_SAID, placed, placement_of
from edge_agent.engine.offers import candidates
from edge_agent.engine.tiny import quantised_model
from edge_agent.model.graph import ModelGraph
from edge_agent.model.naming import write_named
from edge_agent.model.refusable import rules_against
from edge_agent.model.specs import infer_specs
from edge_agent.profiles import Placement
from edge_agent.tensors import Arrays

Unit = Callable[[str], ComputeUnit]
SIDE = 16
FLOAT = TensorProto.FLOAT
X = np.linspace(-1, 1, SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
make = helper.make_node


def model_of(
    nodes: list[Any],
    held: dict[str, np.ndarray],
    *,
    rows: int | str = SIDE,
    more_inputs: tuple[Any, ...] = (),
) -> bytes:
    def square(name: str) -> Any:
        return helper.make_tensor_value_info(name, FLOAT, [rows, SIDE])

    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "made", [square("x"), *more_inputs], [square("y")], constants)
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(made.SerializeToString())


def place(unit: ComputeUnit, content: bytes, folder: Path, feeds: Arrays) -> Placement:
    path = folder / "model.onnx"
    path.write_bytes(content)
    graph = ModelGraph.load(path)
    specs = infer_specs(graph, {})
    names = write_named(graph, folder / "named.onnx", specs)
    evidence = placement_of(folder / "named.onnx", unit.use(unit.layouts[0], 1), names, feeds)
    labels = [graph.label(i) for i in range(len(names))]
    return placed(unit.id, evidence, labels, rules_against(graph, specs, unit))


def broken_up() -> bytes:
    """Seven nodes: no provider but the CPU's has a kernel for Det, and none for what reads
    constants alone is asked."""
    nodes = [
        make("Relu", ["x"], ["a"], "same"),
        make("MatMul", ["a", "w"], ["b"], "same"),
        make("Det", ["b"], ["d"]),
        make("Identity", ["b"], ["c"]),
        make("Mul", ["c", "d"], ["e"]),
        make("Sigmoid", ["e"], ["y"]),
    ]
    return model_of(nodes, {"w": np.eye(SIDE, dtype=np.float32)})


def branching() -> bytes:
    """An If whose taken branch holds a Det."""

    def branch(*nodes: Any) -> Any:
        given = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
        return helper.make_graph(list(nodes), "body", [], [given])

    nodes = [
        make(
            "If",
            ["flag"],
            ["c"],
            then_branch=branch(make("Det", ["x"], ["det"]), make("Mul", ["x", "det"], ["t"])),
            else_branch=branch(make("Neg", ["x"], ["f"])),
        ),
        make("Relu", ["c"], ["y"]),
    ]
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    return model_of(nodes, {}, more_inputs=(flag,))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("openvino", NOT_SAID),
        ("webgpu", "the provider has no kernel for Det of these types"),
        ("cuda", "the provider has no kernel for Det of these types"),
        ("qnn", "the provider says: Operators of type `Det` are not supported by QNN EP"),
    ],
)
def test_the_node_that_a_provider_has_no_kernel_for_is_the_one_that_is_refused(
    unit: Unit, name: str, reason: str, tmp_path: Path
) -> None:
    placement = place(unit(name), broken_up(), tmp_path, {"x": X})
    (refused,) = placement.refused
    assert (refused.position, refused.ran_on, refused.reason) == (2, "cpu", reason)
    assert "Det" in refused.label
    # ONNX Runtime takes Identity away before it asks providers.
    assert (placement.taken, placement.removed) == (4, 1)


@pytest.mark.parametrize("name", ["cpu", "openvino", "webgpu", "cuda"])
def test_a_graph_of_common_operators_is_taken_whole(unit: Unit, name: str, tmp_path: Path) -> None:
    nodes = [
        make("Relu", ["x"], ["a"]),
        make("MatMul", ["a", "w"], ["b"]),
        make("Sigmoid", ["b"], ["y"]),
    ]
    content = model_of(nodes, {"w": np.eye(SIDE, dtype=np.float32)})
    placement = place(unit(name), content, tmp_path, {"x": X})
    assert (placement.taken, placement.refused, placement.removed) == (3, (), 0)


@pytest.mark.parametrize("name", ["webgpu", "cuda"])
def test_a_body_that_runs_elsewhere_counts_with_the_node_around_it(
    unit: Unit, name: str, tmp_path: Path
) -> None:
    """A session opens even with the fallback to the processor forbidden (1.27): that looks at the
    main graph alone."""
    feeds = {"x": X, "flag": np.array(True)}
    placement = place(unit(name), branching(), tmp_path, feeds)
    (refused,) = placement.refused
    assert (refused.position, refused.ran_on, placement.taken) == (0, "cpu", 1)
    assert refused.reason == "inside of it: the provider has no kernel for Det of these types"


def test_a_quantised_graph_is_taken_whole_by_the_npu(unit: Unit, tmp_path: Path) -> None:
    content = quantised_model(SIDE, bytes(SIDE * SIDE), 1.0)
    placement = place(unit("qnn"), content, tmp_path, {"x": np.ones((SIDE, SIDE), np.float32)})
    # The weights are dequantised by a node that reads constants alone, which is none of the model.
    assert (placement.taken, placement.refused, placement.removed) == (5, (), 0)


def test_open_dimensions_are_why_the_npu_refuses(unit: Unit, tmp_path: Path) -> None:
    nodes = [make("Relu", ["x"], ["a"]), make("Sigmoid", ["a"], ["y"])]
    placement = place(unit("qnn"), model_of(nodes, {}, rows="n"), tmp_path, {"x": X})
    assert placement.taken == 0
    assert {refused.reason for refused in placement.refused} == {
        "the provider says: a dimension of its tensors is open"
    }


def test_a_plugin_that_was_loaded_is_found_again_as_a_plugin(unit: Unit) -> None:
    """ONNX Runtime lists it among its own providers from then on."""
    unit("qnn")
    (again,) = (c for c in candidates() if c.provider == "QNNExecutionProvider")
    assert again.library != ""
