"""What is kept of a model between two starts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edge_agent.agent.kept import Kept, Specialisation, load_kept, save_kept
from edge_agent.store.records import PlanStore
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName
from edge_agent.wire.parts import (
    ShapeCount,
    Specialised,
    SubgraphFile,
)
from tests.agent.made_lanes import spec

FILE = SubgraphFile(path="/c/graph.onnx", level="none", threads=2, is_plain=False)
KEPT = Kept(
    model=ModelId("a" * 64),
    inputs=(spec("x", "N", None, 3),),
    outputs=(spec("y"),),
    subgraphs=(FILE,),
    instances=2,
    pinned_cores=(0, 1),
    warm_shapes=((TensorName("x"), (1, 2, 3)),),
    specialisations=(
        Specialisation(
            shapes=((1, 2, 3), ()),
            plan=None,
            reason="it is faster",
            serve=Specialised(
                shapes=((1, 2, 3), ()),
                subgraphs=(
                    SubgraphFile(path="/c/s.onnx", level="none", threads=1, is_plain=False),
                ),
                instances=1,
                pinned_cores=(),
            ),
            is_stale=True,
        ),
        Specialisation(shapes=((4, 2, 3), ()), plan=None, reason="it failed", serve=None),
    ),
    counted=(ShapeCount(((1, 2, 3), ()), 40),),
)


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    plans = PlanStore(tmp_path)
    save_kept(plans, "m", KEPT)
    assert load_kept(plans, "m", KEPT.model) == KEPT


def test_nothing_kept_is_nothing(tmp_path: Path) -> None:
    assert load_kept(PlanStore(tmp_path), "m", KEPT.model) is None


def test_what_was_kept_of_another_model_under_the_name_is_not_used(tmp_path: Path) -> None:
    plans = PlanStore(tmp_path)
    save_kept(plans, "m", KEPT)
    assert load_kept(plans, "m", ModelId("b" * 64)) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": 5}', b"[" * 100_000])
def test_what_another_version_kept_is_made_again(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plans = PlanStore(tmp_path)
    plans.save_plan("m", content)
    with caplog.at_level(logging.WARNING):
        assert load_kept(plans, "m", KEPT.model) is None
    assert "is made again" in caplog.text
