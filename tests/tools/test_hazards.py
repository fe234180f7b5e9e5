"""What breaks a naive division does not break ours: one made model for each hazard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import split.check as checking
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.profiling.tolerance import disagreement
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays
from split.hazards import HAZARDS
from split.subjects import Subject
from tests.tools.naive import divided_naively

HARMLESS = {
    "random operators": "the draw crosses as any value; only its parts cannot be compared",
    "values without rank": "ONNX tells the element type, and a part needs no more",
    "dynamic dimensions": "the names of the dimensions are copied with the declarations",
}
"""Hazards that a naive division survives, and why."""


def right(path: Path, feeds: Arrays) -> Arrays:
    whole = Session.open(path, threads=1, level=OptimisationLevel.NONE)
    known = {n: a for n, a in feeds.items() if n in whole.takes}
    return whole.run(known, whole.output_names)


@pytest.mark.parametrize("name", HAZARDS)
def test_every_cut_computes_what_the_whole_computes(name: str) -> None:
    outcome = checking.check(Subject(kind="hazard", name=name), 100)
    assert outcome.unfit == ""
    assert outcome.wrong == []
    assert outcome.cuts > 0
    assert not outcome.refused


@pytest.mark.parametrize("name", HAZARDS)
def test_a_naive_division_breaks(name: str, tmp_path: Path) -> None:
    path, feeds = Subject(kind="hazard", name=name).open(tmp_path)
    wanted = right(path, feeds)
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    broken = [cut for cut in range(1, nodes) if is_broken(path, cut, feeds, wanted)]
    assert bool(broken) != (name in HARMLESS)


def is_broken(path: Path, cut: int, feeds: Arrays, wanted: Arrays) -> bool:
    try:
        got = divided_naively(path, cut, feeds)
    except Exception:  # whatever it stumbles over
        return True
    return disagreement(got, wanted, is_quantised=False) is not None


def test_a_naive_division_of_a_model_without_hazards_works(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(operator, [f"v{i}"], [f"v{i + 1}"])
        for i, operator in enumerate(("Neg", "Exp", "Tanh"))
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("v0", "v3")]
    graph = helper.make_graph(nodes, "clean", ends[:1], ends[1:])
    path = tmp_path / "clean.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    feeds: Arrays = {"v0": np.float32([1, -2])}
    wanted = right(path, feeds)
    assert not any(is_broken(path, cut, feeds, wanted) for cut in (1, 2))


@pytest.mark.parametrize("name", [n for n, make in HAZARDS.items() if make().undivided])
def test_what_is_not_divided_is_told(name: str, tmp_path: Path) -> None:
    path, _ = Subject(kind="hazard", name=name).open(tmp_path)
    graph = ModelGraph.load(path)
    summary = summarise(graph, ModelId("m"), {}, infer_specs(graph, {}))
    assert len(summary.segments) == 1
    assert HAZARDS[name]().undivided in str(summary.undivided_because)
