"""What is made of the evidence of placement; tests/units looks at real providers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from edge_agent.devices import ProviderUse, UnitId
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.evidence import (
    NOT_SAID,
    PROFILE,
    RECORD,
    UNOPENED,
    WHOLE,
    Evidence,
    placed,
    placement_of,
    profiled,
    refused_whole,
)
from edge_agent.engine.placing import kernels
from edge_agent.errors import DeadlineExceeded, ModelRefused
from edge_agent.model.graph import ModelGraph
from edge_agent.model.naming import write_named
from edge_agent.tensors import ValueSpecs

CPU = ProviderUse(provider="CPUExecutionProvider")
NPU = UnitId("npu")


def named(path: Path) -> tuple[Path, tuple[str, ...]]:
    copy = path.with_name("named.onnx")
    return copy, write_named(ModelGraph.load(path), copy, ValueSpecs())


def evidence(ran_on: tuple[str, ...], reasons: tuple[str, ...]) -> Evidence:
    names = tuple(f"n{i}" for i in range(len(ran_on)))
    return Evidence(
        provider="NpuProvider", names=names, ran_on=ran_on, reasons=reasons, how=PROFILE
    )


def test_the_processor_takes_every_node_that_is_left_when_providers_are_asked(
    convnet: Path,
) -> None:
    path, names = named(convnet)
    found = placement_of(path, CPU, names, {})
    assert found.how == WHOLE
    # The normalisation became part of the convolution before.
    assert found.ran_on == ("CPUExecutionProvider", "", *["CPUExecutionProvider"] * 7)
    assert found.reasons == ("",) * 9


def test_nodes_in_bodies_count_with_the_node_around_them(branching: Path) -> None:
    path, names = named(branching)
    found = placement_of(path, CPU, names, {})
    assert (found.ran_on, found.how) == (("CPUExecutionProvider",), RECORD)


def test_nodes_of_functions_count_with_the_call(functional: Path) -> None:
    path, names = named(functional)
    found = placement_of(path, CPU, names, {})
    assert found.ran_on == ("CPUExecutionProvider", "CPUExecutionProvider")


def test_names_that_no_node_has_are_seen_nowhere(relu: Path) -> None:
    path, _ = named(relu)
    found = placement_of(path, CPU, ("n0", "n1"), {})
    assert found.ran_on == ("CPUExecutionProvider", "")


def test_a_run_is_profiled_and_leaves_no_file(
    functional: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = named(functional)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    found = profiled(path, CPU, False, {"x": np.ones(2, np.float32)}, None)
    assert found == {"CPUExecutionProvider": ("_inlfunc_n0_n0.0", "n1")}
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_run_that_is_profiled_can_be_cancelled(
    convnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = named(convnet)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    cancel = Cancellation()
    cancel.cancel(DeadlineExceeded("too long"))
    feeds = {"x": np.ones((1, 3, 32, 32), np.float32)}
    with pytest.raises(DeadlineExceeded, match="too long"):
        profiled(path, CPU, False, feeds, cancel)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_model_that_does_not_open_is_refused_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelRefused, match=r"^ONNX Runtime refuses it: "):
        placement_of(path, CPU, ("n0",), {}, Cancellation())
    assert capfd.readouterr() == ("", "")


def test_what_looks_at_a_model_leaves_no_file(convnet: Path) -> None:
    path, names = named(convnet)
    before = set(os.listdir(path.parent)), set(os.listdir())
    placement_of(path, CPU, names, {})
    assert (set(os.listdir(path.parent)), set(os.listdir())) == before


def test_a_placement_tells_each_refused_node_by_its_label_with_the_best_reason() -> None:
    other = "CPUExecutionProvider"
    found = evidence(
        ("NpuProvider", other, other, "", "NewProvider"), ("", "n0 feeds n1x and n1", "", "", "")
    )
    labels = tuple(f'node {i} "conv"' for i in range(5))
    placement = placed(NPU, found, labels, ("", "by rule", "by rule", "", ""))
    assert (placement.taken, placement.removed, placement.evidence) == (1, 1, PROFILE)
    assert [(r.position, r.label, r.ran_on, r.reason) for r in placement.refused] == [
        (1, labels[1], "cpu", 'node 0 "conv" feeds n1x and node 1 "conv"'),
        (2, labels[2], "cpu", "by rule"),
        (4, labels[4], "NewProvider", NOT_SAID),
    ]


def test_a_model_that_does_not_open_on_a_unit_has_all_nodes_refused() -> None:
    placement = refused_whole(NPU, ("n0", "n1"), ("a", "b"), "n1 is bad" + "!" * 999)
    assert (placement.taken, placement.removed, placement.evidence) == (0, 0, UNOPENED)
    assert [r.label for r in placement.refused] == ["a", "b"]
    assert {r.ran_on for r in placement.refused} == {"cpu"}
    assert placement.refused[0].reason == "b is bad" + "!" * 292 + "..."


def test_kernels_are_read_from_a_profile() -> None:
    """Events as ONNX Runtime 1.27 wrote them, shortened."""
    gpu, cpu = {"provider": "WebGpuExecutionProvider"}, {"provider": "CPUExecutionProvider"}
    profile = [
        {"cat": "Session", "name": "model_run", "args": {}},
        {"cat": "Node", "name": "n0_token_1_kernel_time", "args": {"op_name": "Conv", **gpu}},
        {"cat": "Node", "name": "n2_kernel_time", "args": {"op_name": "Gather", **cpu}},
        {"cat": "Node", "name": "n2_fence_before", "args": {"op_name": "Gather"}},
        {"cat": "Node", "name": "n9_kernel_time", "args": {"op_name": "Concat", **gpu}},
    ]
    assert kernels(profile) == {
        "WebGpuExecutionProvider": ("n0_token_1", "n9"),
        "CPUExecutionProvider": ("n2",),
    }
