from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.model.fusion import held_together
from tests.model.made_models import graph_of, held, model, node, value

ONE = held("one", np.float32(1))


def free_cuts(
    folder: Path, nodes: Sequence[Any], weights: Sequence[Any] = (), domains: Sequence[str] = ()
) -> list[str]:
    """Outputs of the nodes behind which a cut parts nothing that belongs together."""
    made = model(
        nodes,
        [value("x", None)],
        [value("y", None)],
        [ONE, held("w", np.ones((4, 4, 1, 1), np.float32)), held("b", np.ones(4)), *weights],
        domains=domains,
    )
    graph = graph_of(made, folder)
    together = held_together(graph)
    return [
        graph.nodes[position - 1].output[0]
        for position in range(1, len(graph.nodes))
        if not together[position]
    ]


def test_a_convolution_keeps_its_normalisation_activation_and_residual(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["start"]),
        node("Conv", ["start", "w"], ["c1"]),
        node("BatchNormalization", ["c1", "b", "b", "b", "b"], ["n1"]),
        node("Clip", ["n1"], ["a1"]),
        node("Conv", ["a1", "w", "b"], ["c2"]),
        node("Add", ["c2", "start"], ["sum"]),
        node("Relu", ["sum"], ["a2"]),
        node("MaxPool", ["a2"], ["y"], kernel_shape=[1, 1]),
    ]
    assert free_cuts(tmp_path, nodes) == ["start", "a1", "a2"]


def test_a_value_with_two_readers_ends_what_a_kernel_takes_in(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "b"], ["q"]),
        node("Relu", ["q"], ["r"]),
        node("MatMul", ["r", "q"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes) == ["q", "r"]


def test_an_activation_written_out_stays_with_its_convolution(tmp_path: Path) -> None:
    swish = [
        node("Conv", ["x", "w"], ["c"]),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["c", "s"], ["m"]),
        node("Identity", ["m"], ["y"]),
    ]
    assert free_cuts(tmp_path, swish) == []
    hard_swish = [
        node("Conv", ["x", "w"], ["c"]),
        node("Add", ["c", "one"], ["plus"]),
        node("Clip", ["plus", "", "one"], ["clipped"]),
        node("Mul", ["c", "clipped"], ["m"]),
        node("Div", ["m", "one"], ["d"]),
        node("Transpose", ["d"], ["y"]),
    ]
    assert free_cuts(tmp_path, hard_swish) == ["d"]


def test_gelu_written_out_stays_together(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "b"], ["h"]),
        node("Div", ["h", "one"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["f"]),
        node("Mul", ["h", "f"], ["g"]),
        node("Mul", ["g", "one"], ["gelu"]),
        node("MatMul", ["gelu", "w"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes) == ["gelu"]


def test_layer_normalisation_takes_in_the_residual_that_only_it_reads(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "b"], ["q"]),
        node("Add", ["q", "x"], ["r"]),
        node("LayerNormalization", ["r", "b"], ["ln"]),
        node("MatMul", ["ln", "w"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes) == ["ln"]
    nodes[-1] = node("MatMul", ["ln", "r"], ["y"])
    assert free_cuts(tmp_path, nodes) == ["r", "ln"]


def test_layer_normalisation_written_out_stays_together(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "x"], ["r"]),
        node("ReduceMean", ["r"], ["mean"], axes=[-1]),
        node("Sub", ["r", "mean"], ["d"]),
        node("Pow", ["d", "one"], ["sq"]),
        node("ReduceMean", ["sq"], ["var"], axes=[-1]),
        node("Add", ["var", "one"], ["eps"]),
        node("Sqrt", ["eps"], ["std"]),
        node("Div", ["d", "std"], ["n"]),
        node("Mul", ["n", "b"], ["scaled"]),
        node("Add", ["scaled", "b"], ["ln"]),
        node("MatMul", ["ln", "w"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes) == ["ln"]
    nodes[-1] = node("MatMul", ["ln", "r"], ["y"])
    assert free_cuts(tmp_path, nodes) == ["r", "ln"]


def test_quantisation_stays_with_the_operator_between(tmp_path: Path) -> None:
    scale, zero = held("s", np.float32(1)), held("z", np.uint8(0))
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q0"]),
        node("DequantizeLinear", ["q0", "s", "z"], ["d0"]),
        node("Conv", ["d0", "w"], ["c"]),
        node("Relu", ["c"], ["a"]),
        node("QuantizeLinear", ["a", "s", "z"], ["q1"]),
        node("DequantizeLinear", ["q1", "s", "z"], ["d1"]),
        node("MaxPool", ["d1"], ["m"], kernel_shape=[1, 1]),
        node("QuantizeLinear", ["m", "s", "z"], ["q2"]),
        node("DequantizeLinear", ["q2", "s", "z"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes, [scale, zero]) == ["q0", "q1", "q2"]


def test_the_quantisation_of_a_model_input_holds_nothing_before_it(tmp_path: Path) -> None:
    scale, zero = held("s", np.float32(1)), held("z", np.uint8(0))
    nodes = [
        node("MaxPool", ["x"], ["m"], kernel_shape=[1, 1]),
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Add", ["m", "d"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes, [scale, zero]) == ["m", "q"]


def test_dynamic_quantisation_stays_with_all_its_products(tmp_path: Path) -> None:
    weights = [held("q", np.ones((4, 4), np.uint8)), held("zero", np.uint8(0))]
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["u", "s", "z"]),
        node("MatMulInteger", ["u", "q", "z", "zero"], ["i1"]),
        node("Cast", ["i1"], ["f1"], to=1),
        node("Mul", ["f1", "s"], ["p1"]),
        node("MatMulInteger", ["u", "q", "z", "zero"], ["i2"]),
        node("Cast", ["i2"], ["f2"], to=1),
        node("Mul", ["f2", "s"], ["p2"]),
        node("MatMul", ["p1", "p2"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes, weights) == ["p2"]


def test_operators_of_other_domains_hold_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], domain="com.microsoft"),
        node("Relu", ["a"], ["c"]),
        node("Relu", ["c"], ["y"]),
    ]
    assert free_cuts(tmp_path, nodes, domains=["com.microsoft"]) == ["a", "c"]


def test_nodes_far_apart_do_not_hold_what_lies_between(tmp_path: Path) -> None:
    chain = [node("Softmax", [f"t{i}"], [f"t{i + 1}"]) for i in range(80)]
    nodes = [
        node("Relu", ["x"], ["t0"]),
        node("Sigmoid", ["t0"], ["gate"]),
        *chain,
        node("Conv", ["t80", "w"], ["c"]),
        node("Mul", ["t0", "gate"], ["g"]),
        node("Add", ["c", "g"], ["y"]),
    ]
    assert "t40" in free_cuts(tmp_path, nodes)
