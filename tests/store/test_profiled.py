"""What was measured of a loaded model is kept under its name, whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from edge_agent.devices import UnitId
from edge_agent.errors import BadRequest, StorageError, UsageError
from edge_agent.store.profiled import ProfiledStore
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import ModelId
from tests.planner.made_problems import GPU, SUMMARY, profiled, times

MODEL = SUMMARY.model


def file_of(root: Path) -> Path:
    return root / "profiled" / "m.json"


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    store = ProfiledStore(tmp_path)
    store.save("m", profiled(times(GPU, 1e-3, refused=(1, 3))))
    store.save("m", profiled())
    assert ProfiledStore(tmp_path).load("m", MODEL) == profiled()
    assert store.sweep() == ()


def test_a_model_of_which_nothing_is_kept_is_to_be_planned_again(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="`edge-agent replan m` measures it again"):
        ProfiledStore(tmp_path).load("m", MODEL)


def test_what_was_measured_of_another_model_under_this_name_is_not_used(tmp_path: Path) -> None:
    store = ProfiledStore(tmp_path)
    store.save("m", profiled())
    with pytest.raises(BadRequest, match="of another model"):
        store.load("m", ModelId("other"))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("v", 2, "got version 2, want 1"),
        ("v", "1", "is damaged"),
        ("more", 1, "unknown field"),
        ("model", {}, "is damaged"),
    ],
)
def test_what_another_version_wrote_is_told(
    tmp_path: Path, key: str, value: object, told: str
) -> None:
    store = ProfiledStore(tmp_path)
    store.save("m", profiled())
    stored = msgspec.json.decode(read_sealed(file_of(tmp_path)) or b"")
    write_sealed(file_of(tmp_path), msgspec.json.encode(stored | {key: value}))
    with pytest.raises(StorageError, match=f"{told}.*edge-agent replan m"):
        store.load("m", MODEL)


def test_what_was_kept_before_sizes_were_has_none(tmp_path: Path) -> None:
    store = ProfiledStore(tmp_path)
    store.save("m", replace(profiled(), input_bytes=5, output_bytes=6, pinned=(UnitId("cpu"),) * 4))
    stored = msgspec.json.decode(read_sealed(file_of(tmp_path)) or b"")
    for key in ("input_bytes", "output_bytes", "pinned"):
        del stored["model"][key]
    write_sealed(file_of(tmp_path), msgspec.json.encode(stored))
    assert store.load("m", MODEL) == profiled()


def test_pins_of_other_segments_are_damage() -> None:
    with pytest.raises(ValueError, match="pinned: got 3 segments, want 4"):
        replace(profiled(), pinned=(None,) * 3)


def test_times_of_other_segments_are_damage(tmp_path: Path) -> None:
    store = ProfiledStore(tmp_path)
    store.save("m", profiled())
    stored = msgspec.json.decode(read_sealed(file_of(tmp_path)) or b"")
    stored["model"]["profile"]["times"][0]["segment_s"].pop()
    write_sealed(file_of(tmp_path), msgspec.json.encode(stored))
    with pytest.raises(StorageError, match="times of 3 segments, want 4"):
        store.load("m", MODEL)


def test_a_file_cut_short_is_told_and_stays(tmp_path: Path) -> None:
    store = ProfiledStore(tmp_path)
    store.save("m", profiled())
    whole = file_of(tmp_path).read_bytes()
    file_of(tmp_path).write_bytes(whole[:-1])
    with pytest.raises(StorageError, match="is damaged"):
        store.load("m", MODEL)
    assert file_of(tmp_path).exists()


def test_what_belongs_to_no_loaded_name_is_removed(tmp_path: Path) -> None:
    store = ProfiledStore(tmp_path)
    for name in ("a", "b", "c.d"):
        store.save(name, profiled())
    store.collect({"b", "c.d"})
    assert sorted(p.name for p in (tmp_path / "profiled").iterdir()) == ["b.json", "c.d.json"]


def test_a_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        ProfiledStore(tmp_path).save("../m", profiled())
