from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from edge_agent.model.cost import OperatorCost, operator_cost
from edge_agent.model.specs import infer_specs
from tests.model.made_models import body, graph_of, held, model, node, value


def cost(
    folder: Path,
    made: Any,
    inputs: dict[str, tuple[int, ...]],
    weights: dict[str, Any],
    **rest: Any,
) -> OperatorCost:
    """The cost of one node between float inputs and constants."""
    graph = graph_of(
        model(
            [made],
            [value(n, s, rest.get("kind", TensorProto.FLOAT)) for n, s in inputs.items()],
            [value(made.output[0], rest.get("result"))],
            [held(n, w) for n, w in weights.items()],
            domains=[made.domain] if made.domain else [],
        ),
        folder,
    )
    return operator_cost(graph, 0, infer_specs(graph, {}).tensors)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def test_a_convolution_with_bias_stride_and_groups(tmp_path: Path) -> None:
    made = node("Conv", ["x", "w", "b"], ["y"], strides=[2, 2], group=2)
    found = cost(tmp_path, made, {"x": (1, 4, 9, 9)}, {"w": ones(6, 2, 3, 3), "b": ones(6)})
    outputs = 6 * 4 * 4
    assert found == OperatorCost(
        operations=outputs * (2 * 2 * 9 + 1),
        activation_bytes=4 * (4 * 81 + outputs),
        weight_bytes=4 * (6 * 2 * 9 + 6),
        is_parallel=True,
    )


@pytest.mark.parametrize(
    ("made", "inputs", "weights", "operations"),
    [
        (node("Conv", ["x", "w"], ["y"]), {"x": (1, 2, 5)}, {"w": ones(3, 2, 2)}, 3 * 4 * 2 * 4),
        (
            node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2]),
            {"x": (1, 4, 3, 3)},
            {"w": ones(4, 5, 2, 2), "b": ones(5)},
            2 * (4 * 9) * (5 * 4) + 5 * 36,
        ),
        (
            node("Gemm", ["x", "w", "b"], ["y"], transA=1, transB=1),
            {"x": (7, 3)},
            {"w": ones(5, 7), "b": ones(5)},
            2 * 3 * 5 * 7 + 3 * 5,
        ),
        (node("Gemm", ["x", "w"], ["y"]), {"x": (3, 7)}, {"w": ones(7, 5)}, 2 * 3 * 5 * 7),
        (
            node("MatMul", ["x", "z"], ["y"]),
            {"x": (2, 8, 3, 7), "z": (2, 8, 7, 5)},
            {},
            2 * (2 * 8 * 3 * 5) * 7,
        ),
        (node("MatMul", ["x", "z"], ["y"]), {"x": (7,), "z": (7,)}, {}, 14),
        (
            node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4),
            {"x": (6, 2, 3)},
            {"w": ones(1, 16, 3), "r": ones(1, 16, 4)},
            2 * 6 * 2 * 16 * (3 + 4),
        ),
        (
            node("GRU", ["x", "w", "r"], ["y"], hidden_size=4, direction="bidirectional"),
            {"x": (6, 2, 3)},
            {"w": ones(2, 12, 3), "r": ones(2, 12, 4)},
            2 * 2 * 6 * 2 * 12 * (3 + 4),
        ),
        (
            node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
            {"x": (1, 4, 9, 9)},
            {},
            4 * 16 * 9,
        ),
        (node("GlobalAveragePool", ["x"], ["y"]), {"x": (1, 4, 9, 9)}, {}, 4 * 81),
        (
            node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y"]),
            {"x": (1, 4, 9, 9)},
            {"s": ones(4)},
            2 * 4 * 81,
        ),
        (node("LayerNormalization", ["x", "s"], ["y"]), {"x": (2, 5)}, {"s": ones(5)}, 7 * 10),
        (node("Softmax", ["x"], ["y"]), {"x": (2, 5)}, {}, 5 * 10),
        (node("ReduceMean", ["x"], ["y"], axes=[1]), {"x": (2, 5)}, {}, 10),
        (node("Relu", ["x"], ["y"]), {"x": (2, 5)}, {}, 10),
        (node("Add", ["x", "z"], ["y"]), {"x": (2, 5), "z": (5,)}, {}, 10),
        (node("Sum", ["x", "x", "x"], ["y"]), {"x": (2, 5)}, {}, 20),
        (node("Einsum", ["x", "z"], ["y"], equation="bij, bjk -> bik"),
         {"x": (2, 3, 4), "z": (2, 4, 5)}, {}, 2 * 2 * 3 * 4 * 5),
        (
            node("Resize", ["x", "", "s"], ["y"], mode="linear"),
            {"x": (1, 1, 4, 4)},
            {"s": np.float32([1, 1, 2, 2])},
            2 * 64 * 4,
        ),
        (
            node("Resize", ["x", "", "s"], ["y"], mode="nearest"),
            {"x": (1, 1, 4, 4)},
            {"s": np.float32([1, 1, 2, 2])},
            0,
        ),
        (node("Transpose", ["x"], ["y"]), {"x": (2, 5)}, {}, 0),
    ],
)  # fmt: skip
def test_operations_are_counted_as_by_hand(
    made: Any, inputs: dict[str, tuple[int, ...]], weights: dict[str, Any], operations: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    found = cost(tmp_path, made, inputs, weights)
    assert found.operations == operations
    assert found.weight_bytes == sum(4 * w.size for w in weights.values())


@pytest.mark.parametrize(
    ("made", "inputs", "weights", "result", "operations"),
    [
        (
            node("FusedConv", ["x", "w", "b", "z"], ["y"], activation="Relu"),
            {"x": (1, 2, 4, 4), "z": (1, 3, 4, 4)},
            {"w": ones(3, 2, 1, 1), "b": ones(3)},
            (1, 3, 4, 4),
            48 * (2 * 2 + 1) + 48 * 2,
        ),
        (
            node("FusedMatMul", ["x", "w"], ["y"]),
            {"x": (3, 7)},
            {"w": ones(7, 5)},
            (3, 5),
            2 * 3 * 5 * 7,
        ),
        (
            node("Attention", ["x", "w", "b"], ["y"], num_heads=2),
            {"x": (1, 6, 8)},
            {"w": ones(8, 24), "b": ones(24)},
            (1, 6, 8),
            2 * 48 * 24 + 4 * 36 * 8 + 5 * 2 * 36,
        ),
        (
            node("MultiHeadAttention", ["x", "k", "k"], ["y"], num_heads=2),
            {"x": (1, 6, 8), "k": (1, 9, 8)},
            {},
            (1, 6, 8),
            4 * 48 * 9 + 5 * 2 * 54,
        ),
        (
            node("MatMulNBits", ["x", "w"], ["y"], K=32, N=5, bits=4, block_size=32),
            {"x": (3, 32)},
            {"w": np.ones((5, 1, 16), np.uint8)},
            (3, 5),
            2 * 3 * 32 * 5,
        ),
        (node("OwnThing", ["x"], ["y"]), {"x": (3,)}, {}, (3,), 0),
    ],
)
def test_fused_operators_of_onnx_runtime_are_counted(
    made: Any,
    inputs: dict[str, tuple[int, ...]],
    weights: dict[str, Any],
    result: tuple[int, ...],
    operations: int,
    tmp_path: Path,
) -> None:
    made.domain = "com.microsoft"
    assert cost(tmp_path, made, inputs, weights, result=result).operations == operations


def test_quantised_operators_count_like_the_ones_they_stand_for(tmp_path: Path) -> None:
    weights = {
        "s": np.float32(1),
        "z": np.uint8(0),
        "w": np.ones((6, 4, 3, 3), np.uint8),
        "b": np.ones(6, np.int32),
    }
    inputs = ["x", "s", "z", "w", "s", "z", "s", "z", "b"]
    found = cost(
        tmp_path,
        node("QLinearConv", inputs, ["y"]),
        {"x": (1, 4, 5, 5)},
        weights,
        kind=TensorProto.UINT8,
    )
    assert found.operations == 6 * 9 * (2 * 4 * 9 + 1)
    assert found.activation_bytes == 4 * 25 + 6 * 9
    product = node("MatMulInteger", ["x", "w"], ["y"])
    found = cost(
        tmp_path, product, {"x": (3, 7)}, {"w": np.ones((7, 5), np.uint8)}, kind=TensorProto.UINT8
    )
    assert found.operations == 2 * 3 * 7 * 5
    assert found.activation_bytes == 21 + 4 * 15


def test_a_view_moves_no_bytes(tmp_path: Path) -> None:
    made = node("Reshape", ["x", "s"], ["y"])
    found = cost(tmp_path, made, {"x": (2, 6)}, {"s": np.array([3, 4], np.int64)})
    assert found == OperatorCost(
        operations=0, activation_bytes=0, weight_bytes=16, is_parallel=False
    )


def test_a_lookup_reads_only_the_rows_that_it_gives_out(tmp_path: Path) -> None:
    made = node("Gather", ["table", "x"], ["y"])
    found = cost(tmp_path, made, {"x": (3,)}, {"table": ones(100, 5)}, kind=TensorProto.INT64)
    assert found.weight_bytes == 3 * 5 * 4
    assert found.activation_bytes == 3 * 8 + 3 * 5 * 4


def test_unknown_shapes_and_bodies_count_as_nothing(tmp_path: Path) -> None:
    made = node("MatMul", ["x", "w"], ["y"])
    graph = graph_of(
        model([made], [value("x", ["n", 3])], [value("y", None)], [held("w", ones(3, 5))]), tmp_path
    )
    found = operator_cost(graph, 0, infer_specs(graph, {}).tensors)
    assert (found.operations, found.activation_bytes, found.weight_bytes) == (0, 0, 60)
    branch = body([node("Exp", ["x"], ["t"])], [value("t", [2])])
    made = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    graph = graph_of(
        model([made], [value("x", [2]), value("c", [], TensorProto.BOOL)], [value("y", [2])]),
        tmp_path,
    )
    found = operator_cost(graph, 0, infer_specs(graph, {}).tensors)
    assert (found.operations, found.activation_bytes) == (0, 8 + 1 + 8)


def test_operators_on_one_thread_only_are_not_parallel(tmp_path: Path) -> None:
    assert not cost(tmp_path, node("Sum", ["x", "x"], ["y"]), {"x": (3,)}, {}).is_parallel
    assert cost(tmp_path, node("Add", ["x", "x"], ["y"]), {"x": (3,)}, {}).is_parallel
