"""Which values cross channels-last, and that parts written so compute what the whole model does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edge_agent.errors import StorageError
from edge_agent.model.borders import (
    Neighbour,
    crossing_value,
    is_crossing,
    last_between,
    write_last,
)
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from tests.model.nhwc_graphs import feeds_for, node, pointwise, run, value, write

KINDS = {"float": TensorProto.FLOAT, "double": TensorProto.DOUBLE, "uint8": TensorProto.UINT8}


def three_convolutions(path: Path) -> ModelGraph:
    """Nodes 0 to 5; "a" is read by nodes 1 and 4, "e" is an output that is read behind as well."""
    nodes = [
        node("Conv", "x w0", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w1", "c"),
        node("Relu", "c", "e"),
        node("Add", "e a", "f"),
        node("GlobalAveragePool", "f", "y"),
    ]
    constants = {"w0": pointwise(6, 4), "w1": pointwise(6, 6, seed=2)}
    outputs = [value("y", [2, 6, 1, 1]), value("e", [2, 6, 5, 7])]
    write(path, nodes, [value("x", [2, 4, 5, 7])], outputs, constants)
    return ModelGraph.load(path)


def neighbours(*bounds: int, others: Sequence[int] = (), bytes_too: bool = True) -> list[Neighbour]:
    """Parts between `bounds`, all channels-last but those in `others`."""
    return [
        Neighbour(start=a, stop=b, is_last=at not in others, moves_bytes=bytes_too)
        for at, (a, b) in enumerate(pairwise(bounds))
    ]


@pytest.mark.parametrize(
    ("bounds", "others", "names"),
    [
        ((0, 1, 6), (), {"a"}),
        ((0, 2, 6), (), {"a", "b"}),
        ((0, 3, 6), (), {"a", "c"}),
        ((0, 4, 6), (), {"a"}),  # "e" is an output of the model, which users get as it is
        ((0, 2, 4, 6), (), {"a", "b"}),
        ((0, 2, 4, 6), (1,), {"a"}),
        ((0, 2, 4, 6), (2,), {"b"}),  # "a" is read where NCHW is computed
        ((0, 2, 4, 6), (0,), set()),
        ((0, 6), (), set()),
    ],
)
def test_values_cross_so_that_are_computed_and_read_channels_last_alone(
    tmp_path: Path, bounds: tuple[int, ...], others: tuple[int, ...], names: set[str]
) -> None:
    graph = three_convolutions(tmp_path / "m.onnx")
    found = last_between(graph, neighbours(*bounds, others=others), infer_specs(graph, {}))
    assert found == names


@pytest.mark.parametrize(
    ("kind", "shape", "bytes_too", "crosses"),
    [
        ("float", [1, 2, 3, 4], False, True),
        ("uint8", [1, 2, 3, 4], True, True),
        ("uint8", [1, 2, 3, 4], False, False),
        ("double", [1, 2, 3, 4], True, False),
        ("float", [1, 2, 3], True, False),
        ("float", [1, 2, 3, 4, 5], True, False),
        ("float", None, True, False),
    ],
)
def test_only_images_of_types_that_both_sides_can_turn_cross_so(
    tmp_path: Path, kind: str, shape: list[int | str] | None, *, bytes_too: bool, crosses: bool
) -> None:
    nodes = [node("Identity", "x", "a"), node("Identity", "a", "y")]
    ends = [[value(name, shape, KINDS[kind])] for name in "xy"]
    graph = ModelGraph.load(write(tmp_path / "m.onnx", nodes, *ends, {}))
    parts = neighbours(0, 1, 2, bytes_too=bytes_too)
    assert bool(last_between(graph, parts, infer_specs(graph, {}))) is crosses


def test_a_name_that_the_model_has_already_is_not_taken(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Relu", "a", "a:channels-last"),
        node("Add", "a a:channels-last", "y"),
    ]
    ends = [[value(name, [1, 2, 3, 4])] for name in "xy"]
    graph = ModelGraph.load(write(tmp_path / "m.onnx", nodes, *ends, {}))
    found = last_between(graph, neighbours(0, 1, 2, 3), infer_specs(graph, {}))
    assert found == {"a:channels-last"}


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_parts_that_hand_over_channels_last_compute_what_the_model_does(
    tmp_path: Path, cut: int
) -> None:
    source = tmp_path / "m.onnx"
    graph = three_convolutions(source)
    specs = infer_specs(graph, {})
    names = last_between(graph, neighbours(0, cut, 6), specs)
    values: dict[str, Any] = feeds_for(source)
    wanted = run(source, values)
    for start, stop in ((0, cut), (cut, 6)):
        part = tmp_path / f"{start}.onnx"
        extract(graph, start, stop, part, specs)
        write_last(part, tmp_path / f"{start}.last.onnx", names)
        made = onnx.load(tmp_path / f"{start}.last.onnx").graph
        inside = {v.name for v in (*made.input, *made.output)}
        assert inside.isdisjoint(names)
        feeds = {v.name: values[v.name] for v in made.input}
        outputs = run(tmp_path / f"{start}.last.onnx", feeds, "ORT_ENABLE_ALL")
        values |= dict(zip((v.name for v in made.output), outputs, strict=True))
        for name in names & {v.name for v in onnx.load(part).graph.output}:
            assert values[f"{name}:channels-last"].shape == (2, 5, 7, 6)
    for name, want in zip(("y", "e"), wanted, strict=True):
        np.testing.assert_allclose(values[name], want, rtol=1e-5, atol=1e-6)


def test_a_declared_shape_follows_and_none_stays_none(tmp_path: Path) -> None:
    for shape, dims in (([1, "C", 3, 4], [1, 3, 4, "C"]), (None, None)):
        source = write(
            tmp_path / "m.onnx",
            [node("Relu", "x", "y")],
            [value("x", shape)],
            [value("y", shape)],
            {},
        )
        write_last(source, tmp_path / "last.onnx", ["x", "y"])
        made = onnx.load(tmp_path / "last.onnx").graph
        for v in (*made.input, *made.output):
            kind = v.type.tensor_type
            found = [d.dim_param or d.dim_value for d in kind.shape.dim]
            assert (found if kind.HasField("shape") else None) == dims


def test_a_value_is_turned_for_who_knows_it_by_its_crossing_name() -> None:
    values = {"a": np.arange(24).reshape(1, 2, 3, 4)}
    assert is_crossing(values, "a")
    assert is_crossing(values, "a:channels-last")
    assert not is_crossing(values, "b:channels-last")
    turned = crossing_value(values, "a:channels-last")
    assert turned.flags.c_contiguous
    assert turned.shape == (1, 3, 4, 2)
    assert turned[0, 2, 3, 1] == values["a"][0, 1, 2, 3]
    assert crossing_value(values, "a") is values["a"]
    with pytest.raises(KeyError):
        crossing_value(values, "b:channels-last")


def test_a_part_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        write_last(tmp_path / "gone.onnx", tmp_path / "last.onnx", [])
