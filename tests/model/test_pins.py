"""Which nodes the patterns of pins mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.devices import UnitId
from edge_agent.errors import UsageError
from edge_agent.model.graph import ModelGraph
from edge_agent.model.pins import parted, pinned_units
from edge_agent.plans import Pin
from tests.model.made_models import graph_of, held, model, node, value

GPU, NPU = UnitId("gpu0"), UnitId("npu0")


@pytest.fixture
def graph(tmp_path: Path) -> ModelGraph:
    """Nodes called /a/Exp, /a/Neg, /B/Exp, "" (gives c) and /b[0]."""
    nodes = [
        node("Exp", ["x"], ["a"], name="/a/Exp"),
        node("Neg", ["a"], ["b"], name="/a/Neg"),
        node("Exp", ["b"], ["b2"], name="/B/Exp"),
        node("Neg", ["b2"], ["c"]),
        node("Exp", ["c"], ["y"], name="/b[0]"),
    ]
    return graph_of(model(nodes, [value("x", [3])], [value("y", [3])]), tmp_path)


def pin(pattern: str, unit: UnitId = GPU) -> Pin:
    return Pin(pattern=pattern, unit=unit)


@pytest.mark.parametrize(
    ("pattern", "positions"),
    [
        ("/a/Exp", [0]),
        ("/a/*", [0, 1]),
        ("*/Exp", [0, 2]),
        ("/?/Exp", [0, 2]),
        ("/[a-z]/*", [0, 1]),
        ("/[!a-z]/*", [2]),
        ("*", [0, 1, 2, 3, 4]),
        ("/b[[]0]", [4]),
    ],
)
def test_a_pattern_means_the_nodes_whose_names_match_it_case_included(
    graph: ModelGraph, pattern: str, positions: list[int]
) -> None:
    pinned = pinned_units(graph, [pin(pattern)])
    assert [at for at, unit in enumerate(pinned) if unit is not None] == positions
    assert {pinned[at] for at in positions} == {GPU}


def test_a_node_whose_name_holds_brackets_is_meant_by_its_name(graph: ModelGraph) -> None:
    assert pinned_units(graph, [pin("/b[0]")]) == (None, None, None, None, GPU)


def test_a_node_without_a_name_has_that_of_its_first_output(graph: ModelGraph) -> None:
    assert pinned_units(graph, [pin("c")]) == (None, None, None, GPU, None)


def test_the_first_output_may_be_left_out(tmp_path: Path) -> None:
    made = model(
        [node("TopK", ["x", "k"], ["", "at"]), node("Neg", ["at"], ["y"])],
        [value("x", [3]), value("k", [1], 7)],
        [value("y", [3], 7)],
    )
    assert pinned_units(graph_of(made, tmp_path), [pin("at")]) == (GPU, None)


def test_without_pins_nothing_is_pinned(graph: ModelGraph) -> None:
    assert pinned_units(graph, []) == (None,) * 5


def test_several_pins_hold_together_and_may_agree_on_a_node(graph: ModelGraph) -> None:
    pins = [pin("/a/*"), pin("/B/*", NPU), pin("/a/Neg")]
    assert pinned_units(graph, pins) == (GPU, GPU, NPU, None, None)


def test_a_node_that_is_pinned_to_two_units_is_refused_by_name(graph: ModelGraph) -> None:
    with pytest.raises(UsageError) as told:
        pinned_units(graph, [pin("/a/*"), pin("*/Neg", NPU)])
    assert str(told.value) == (
        'pin "*/Neg=npu0": node 1 "/a/Neg" (Neg) is pinned to gpu0 too; want one unit for each node'
    )


def test_a_pattern_that_matches_nothing_tells_the_names_that_are_like_it(
    graph: ModelGraph,
) -> None:
    with pytest.raises(UsageError) as told:
        pinned_units(graph, [pin("/b/Neg")])
    text = str(told.value)
    assert text.startswith('pin "/b/Neg=gpu0": no node has a name like "/b/Neg"; nodes are called ')
    assert text.partition("; nodes are called ")[2].split(", ")[0] == "/a/Neg"


def test_a_pattern_like_nothing_tells_the_first_names(graph: ModelGraph) -> None:
    with pytest.raises(UsageError, match=r"; nodes are called /a/Exp, /a/Neg, /B/Exp$"):
        pinned_units(graph, [pin("classifier")])


def test_a_model_of_constants_alone_has_no_names_to_tell(tmp_path: Path) -> None:
    made = model([node("Exp", ["w"], ["y"])], [], [value("y", [1])], [held("w", [1.0])])
    graph = graph_of(made, tmp_path)
    assert len(graph.nodes) == 0
    with pytest.raises(UsageError, match=r'no node has a name like "a"$'):
        pinned_units(graph, [pin("a")])


@pytest.mark.parametrize(
    ("pinned", "positions"),
    [
        ((), ()),
        ((GPU,), ()),
        ((None, None, None), ()),
        ((GPU, GPU, NPU, NPU), (2,)),
        ((None, GPU, None, None, NPU), (1, 2, 4)),
    ],
)
def test_nodes_that_are_pinned_differently_are_parted(
    pinned: tuple[UnitId | None, ...], positions: tuple[int, ...]
) -> None:
    assert parted(pinned) == positions
