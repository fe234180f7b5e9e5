from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from edge_agent.model.cost import operator_cost
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.model.work import WorkCounter
from edge_agent.summaries import Arithmetic, OperatorClass, OperatorWork
from tests.model.made_models import graph_of, held, model, node, value


def _work(graph: ModelGraph) -> tuple[OperatorWork, ...]:
    specs = infer_specs(graph, {})
    count = len(graph.nodes)
    costs = [operator_cost(graph, at, specs.tensors) for at in range(count)]
    return WorkCounter(graph, specs, costs).between(0, count)


def _graph(
    folder: Path, nodes: list[Any], shape: tuple[int, ...], weights: dict[str, Any], **rest: Any
) -> ModelGraph:
    return graph_of(
        model(
            nodes,
            [value("x", shape, rest.get("kind", TensorProto.FLOAT))],
            [value(nodes[-1].output[0], None, rest.get("result", TensorProto.FLOAT))],
            [held(name, array) for name, array in weights.items()],
        ),
        folder,
    )


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("made", "shape", "weights", "kind"),
    [
        (
            node("Conv", ["x", "w"], ["y"]),
            (1, 4, 9, 9),
            {"w": ones(6, 4, 3, 3)},
            OperatorClass.CONVOLUTION,
        ),
        (
            node("Conv", ["x", "w"], ["y"], group=2),
            (1, 4, 9, 9),
            {"w": ones(6, 2, 3, 3)},
            OperatorClass.GROUPED,
        ),
        (
            node("Conv", ["x", "w"], ["y"], group=4),
            (1, 4, 9, 9),
            {"w": ones(4, 1, 3, 3)},
            OperatorClass.DEPTHWISE,
        ),
        (node("MatMul", ["x", "w"], ["y"]), (3, 4), {"w": ones(4, 5)}, OperatorClass.PRODUCT),
        (
            node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2]),
            (1, 4, 9, 9),
            {},
            OperatorClass.POOL,
        ),
        (node("Softmax", ["x"], ["y"]), (3, 4), {}, OperatorClass.NORMALISATION),
        (node("Tanh", ["x"], ["y"]), (3, 4), {}, OperatorClass.ELEMENTWISE),
        (node("Transpose", ["x"], ["y"]), (3, 4), {}, OperatorClass.MOVEMENT),
        (node("NonZero", ["x"], ["y"]), (3, 4), {}, OperatorClass.OTHER),
    ],
)
def test_each_operator_has_its_class(
    tmp_path: Path, made: Any, shape: tuple[int, ...], weights: dict[str, Any], kind: OperatorClass
) -> None:
    result = TensorProto.INT64 if made.op_type == "NonZero" else TensorProto.FLOAT
    (found,) = _work(_graph(tmp_path, [made], shape, weights, result=result))
    assert (found.kind, found.arithmetic, found.nodes) == (kind, Arithmetic.FLOAT32, 1)


def test_an_activation_behind_a_convolution_costs_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Tanh", ["r"], ["y"]),
    ]
    graph = _graph(tmp_path, nodes, (1, 4, 9, 9), {"w": ones(6, 4, 3, 3)})
    (found,) = _work(graph)
    assert (found.kind, found.nodes) == (OperatorClass.CONVOLUTION, 1)
    assert found.operations == 6 * 49 * 2 * 4 * 9


def test_an_activation_of_a_value_that_others_read_is_counted(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Add", ["c", "r"], ["y"]),
    ]
    graph = _graph(tmp_path, nodes, (1, 4, 9, 9), {"w": ones(6, 4, 3, 3)})
    elementwise = next(w for w in _work(graph) if w.kind is OperatorClass.ELEMENTWISE)
    assert (elementwise.nodes, elementwise.operations) == (2, 2 * 6 * 49)


def test_half_precision_is_counted_as_such(tmp_path: Path) -> None:
    graph = _graph(
        tmp_path,
        [node("MatMul", ["x", "w"], ["y"])],
        (3, 4),
        {"w": ones(4, 5).astype(np.float16)},
        kind=TensorProto.FLOAT16,
        result=TensorProto.FLOAT16,
    )
    (found,) = _work(graph)
    assert found.arithmetic is Arithmetic.FLOAT16


def test_a_product_between_quantised_values_computes_in_int8_and_takes_what_is_around_it(
    tmp_path: Path,
) -> None:
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["wq", "s", "z"], ["wd"]),
        node("MatMul", ["xd", "wd"], ["p"]),
        node("QuantizeLinear", ["p", "s", "z"], ["pq"]),
        node("DequantizeLinear", ["pq", "s", "z"], ["y"]),
    ]
    weights = {
        "s": np.float32(1.0),
        "z": np.uint8(0),
        "wq": np.ones((4, 5), np.uint8),
    }
    found = {work.kind: work for work in _work(_graph(tmp_path, nodes, (3, 4), weights))}
    product, around = found[OperatorClass.PRODUCT], found[OperatorClass.ELEMENTWISE]
    assert (product.arithmetic, product.nodes) == (Arithmetic.INT8, 1)
    # What makes integers of the input, and floats of the output.
    assert (around.arithmetic, around.nodes) == (Arithmetic.INT8, 2)


def test_what_computes_in_no_floats_is_taken_by_units_for_integers(tmp_path: Path) -> None:
    (found,) = _work(
        _graph(
            tmp_path,
            [node("Add", ["x", "x"], ["y"])],
            (3, 4),
            {},
            kind=TensorProto.INT64,
            result=TensorProto.INT64,
        )
    )
    assert found.arithmetic is Arithmetic.INT8


def test_a_local_response_normalisation_counts_its_neighbours(tmp_path: Path) -> None:
    (found,) = _work(_graph(tmp_path, [node("LRN", ["x"], ["y"], size=5)], (1, 8, 4, 4), {}))
    assert found.kind is OperatorClass.NORMALISATION
    assert found.operations == 8 * 4 * 4 * (5 + 5)


def test_what_is_parted_from_its_convolution_runs_by_itself(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"])]
    graph = _graph(tmp_path, nodes, (1, 4, 9, 9), {"w": ones(6, 4, 3, 3)})
    specs = infer_specs(graph, {})
    costs = [operator_cost(graph, at, specs.tensors) for at in range(2)]
    counter = WorkCounter(graph, specs, costs)
    assert [work.kind for work in counter.between(0, 2)] == [OperatorClass.CONVOLUTION]
    assert [work.kind for work in counter.between(1, 2)] == [OperatorClass.ELEMENTWISE]


def test_a_dequantisation_that_is_parted_from_its_reader_runs_by_itself(tmp_path: Path) -> None:
    scale, zero = np.float32(0.1), np.int8(0)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["k", "s", "z"], ["w"]),
        node("MatMul", ["d", "w"], ["m"]),
        node("QuantizeLinear", ["m", "s", "z"], ["p"]),
        node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    weights = {"s": scale, "z": zero, "k": np.ones((4, 5), np.int8)}
    graph = _graph(tmp_path, nodes, (3, 4), weights)
    specs = infer_specs(graph, {})
    costs = [operator_cost(graph, at, specs.tensors) for at in range(len(graph.nodes))]
    counter = WorkCounter(graph, specs, costs)
    reader = next(at for at, made in enumerate(graph.nodes) if made.op_type == "MatMul")
    before = counter.between(reader - 1, reader)
    assert sum(work.nodes for work in before) == 1
    together = counter.between(reader - 1, reader + 1)
    assert [(work.kind, work.nodes) for work in together] == [(OperatorClass.PRODUCT, 1)]
