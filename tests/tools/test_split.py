"""The check of divisions notices what is wrong, and passes on models where nothing is."""

from __future__ import annotations

import os
import runpy
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import split.check as checking
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.tensors import Arrays, TensorName, TensorSpec
from split.subjects import Subject, Unfit, node_subjects

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_split"
LONG = pytest.mark.long
MODELS = (
    Subject(kind="node", name="test_layer_normalization_2d_axis0_expanded"),
    Subject(kind="node", name="test_range_float_type_positive_delta_expanded"),
    Subject(kind="node", name="test_attention_4d_fp16_expanded"),
    Subject(kind="node", name="test_softmax_large_number_expanded"),
    Subject(kind="node", name="test_center_crop_pad_crop_and_pad_expanded"),
)


class Made(Subject):
    """A chain of three nodes that is quickly made."""

    def open(self, folder: Path) -> tuple[Path, Arrays]:
        nodes = [helper.make_node("Abs", [f"v{i}"], [f"v{i + 1}"]) for i in range(3)]
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("v0", "v3")]
        graph = helper.make_graph(nodes, "made", ends[:1], ends[1:])
        opsets = [helper.make_opsetid("", 17)]
        path = folder / "made.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path, {"v0": np.array([-1, 2], np.float32)}


MADE = Made(kind="made", name="made")


@LONG
@pytest.mark.parametrize("subject", [pytest.param(m, id=m.name) for m in MODELS])
def test_expanded_operators_compute_in_parts_what_they_compute_whole(subject: Subject) -> None:
    outcome = checking.check(subject, 4)
    assert not outcome.unfit
    assert outcome.cuts > 0
    assert not outcome.wrong
    assert not outcome.refused


def test_a_part_that_computes_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def parted_wrongly(
        graph: ModelGraph,
        start: int,
        stop: int,
        destination: Path,
        specs: Mapping[TensorName, TensorSpec],
    ) -> Any:
        for node in graph.nodes:
            if node.op_type == "Abs":
                node.op_type = "Neg"
        return extract(graph, start, stop, destination, specs)

    monkeypatch.setattr(checking, "extract", parted_wrongly)
    outcome = checking.check(MADE, 1)
    (wrong,) = outcome.wrong
    assert wrong.startswith("before node ")
    assert "v3" in wrong


def test_a_part_that_does_not_open_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        raise ValueError("nothing was cut out")

    monkeypatch.setattr(checking, "extract", nothing)
    outcome = checking.check(MADE, 1)
    assert "ValueError: nothing was cut out" in outcome.wrong[0]


@LONG  # all backend tests are made
def test_models_of_one_node_are_no_subject_of_division(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="fewer than two nodes"):
        Subject(kind="node", name="test_relu").open(tmp_path)
    assert checking.check(Subject(kind="node", name="test_relu"), 4).unfit == "fewer than two nodes"


@LONG
def test_every_backend_test_with_a_model_is_a_subject() -> None:
    names = [subject.name for subject in node_subjects()]
    assert len(names) == len(set(names)) > 1500


class Killer(Subject):
    """Takes the process down that opens it."""

    def open(self, folder: Path) -> tuple[Path, Arrays]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError(folder)


@pytest.mark.long
def test_a_crash_is_told_and_the_other_models_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    subjects = [cls(kind="made", name=cls.__name__ + n) for n in "ab" for cls in (Made, Killer)]
    checked = runpy.run_path(str(TOOL))["_checked"](subjects, 1, 5)
    found = {subject.name: outcome for subject, outcome in checked}
    assert found.keys() == {"Madea", "Madeb", "Killera", "Killerb"}
    assert found["Killera"] is found["Killerb"] is None
    assert [found[name].cuts for name in ("Madea", "Madeb")] == [2, 2]
    assert not list(tmp_path.iterdir())
