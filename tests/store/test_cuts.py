"""Stages that were cut are found again, the ones used last, as long as their model is loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from edge_agent.store.cuts import MOST_STAGES, CutKey, CutStore
from edge_agent.subgraphs import ModelId, SampleSetId, SegmentRange
from edge_agent.tensors import TensorName
from tests.store.made_stage import MODEL, stage

X, Y = (TensorName("x"), (1, 2)), (TensorName("y"), (3,))
KEY = CutKey(
    model=MODEL,
    shapes=(X, Y),
    samples=None,
    starts=(0, 3, 5),
    segments=SegmentRange(start=1, stop=3),
)


def test_a_stage_is_found_for_exactly_what_it_was_cut_for(tmp_path: Path) -> None:
    store = CutStore(tmp_path)
    store.put(KEY, stage())
    again = CutStore(tmp_path)
    assert again.get(KEY) == stage()
    assert again.get(replace(KEY, shapes=(Y, X))) == stage()
    for other in (
        replace(KEY, model=ModelId("2" * 64)),
        replace(KEY, shapes=(X,)),
        replace(KEY, samples=SampleSetId("3" * 64)),
        replace(KEY, starts=(0, 3, 6)),
        replace(KEY, segments=SegmentRange(start=1, stop=2)),
    ):
        assert again.get(other) is None


def test_what_is_damaged_is_cut_again(tmp_path: Path) -> None:
    store = CutStore(tmp_path)
    store.put(KEY, stage())
    (path,) = (tmp_path / "cuts" / MODEL).iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert store.get(KEY) is None
    assert store.collect({MODEL}) == set()
    assert list((tmp_path / "cuts" / MODEL).iterdir()) == []


def test_only_the_stages_used_last_of_each_model_are_kept(tmp_path: Path) -> None:
    store = CutStore(tmp_path)
    keys = [replace(KEY, starts=(0, 3, 5 + number)) for number in range(MOST_STAGES + 2)]
    for number, key in enumerate(keys):
        before = set((tmp_path / "cuts").rglob("*.json"))
        store.put(key, stage(str(number)))
        (made,) = set((tmp_path / "cuts").rglob("*.json")) - before
        os.utime(made, (1000 + number, 1000 + number))
    assert store.get(keys[0]) is not None  # which is a use
    kept = store.collect({MODEL})
    assert len(kept) == MOST_STAGES
    assert [number for number, key in enumerate(keys) if store.get(key) is None] == [1, 2]
    assert stage("0").id in kept


def test_the_stages_of_models_that_are_not_loaded_are_forgotten(tmp_path: Path) -> None:
    store, other = CutStore(tmp_path), ModelId("2" * 64)
    store.put(KEY, stage("a"))
    store.put(replace(KEY, model=other), stage("b", model=other))
    assert store.collect({other}) == {stage("b").id}
    assert store.get(KEY) is None
    assert store.sweep() == ()
