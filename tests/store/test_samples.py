"""Sets of samples on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.errors import StorageError
from edge_agent.store.samples import SampleStore
from edge_agent.subgraphs import SampleSetId


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore(tmp_path)


def files(root: Path, sample_set: SampleSetId) -> list[Path]:
    return sorted((root / "samples" / sample_set).iterdir())


def test_what_was_put_comes_back_in_its_order(store: SampleStore) -> None:
    samples = (b"b", b"", b"a" * 100_000)
    assert store.get(store.put(samples)) == samples


def test_equal_sets_have_one_id_and_others_another(store: SampleStore) -> None:
    first = store.put([b"a", b"b"])
    assert store.put([b"a", b"b"]) == first
    others = [store.put(s) for s in ([b"b", b"a"], [b"ab"], [b"a"], [b"a", b"b", b""])]
    assert len({first, *others}) == 5


def test_nothing_but_the_samples_is_left_of_putting_them(
    store: SampleStore, tmp_path: Path
) -> None:
    sample_set = store.put([b"a", b"b"])
    store.put([b"a", b"b"])
    assert [p.name for p in files(tmp_path, sample_set)] == ["0000.sample", "0001.sample"]
    assert list((tmp_path / "samples" / "staging").iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "cut", "removed", "swapped", "all removed"])
def test_damage_is_told_and_mended_by_putting_them_again(
    store: SampleStore, tmp_path: Path, damage: str
) -> None:
    sample_set = store.put([b"first", b"other"])
    first, other = files(tmp_path, sample_set)
    match damage:
        case "changed":
            first.write_bytes(first.read_bytes().replace(b"first", b"worst"))
        case "cut":
            os.truncate(first, 10)
        case "removed":
            other.unlink()
        case "swapped":
            content = first.read_bytes()
            first.write_bytes(other.read_bytes())
            other.write_bytes(content)
        case _:
            first.unlink()
            other.unlink()
            first.parent.rmdir()
    with pytest.raises(StorageError, match="damaged"):
        store.get(sample_set)
    assert store.put([b"first", b"other"]) == sample_set
    assert store.get(sample_set) == (b"first", b"other")


def test_sets_that_nobody_keeps_are_removed_whatever_their_state(
    store: SampleStore, tmp_path: Path
) -> None:
    kept, unwanted = store.put([b"kept"]), store.put([b"unwanted"])
    files(tmp_path, unwanted)[0].unlink()
    assert store.collect({kept}) == (unwanted,)
    assert store.get(kept) == (b"kept",)
    assert sorted(p.name for p in (tmp_path / "samples").iterdir()) == sorted([kept, "staging"])


def test_what_a_dead_process_left_is_swept(store: SampleStore, tmp_path: Path) -> None:
    kept = store.put([b"kept"])
    left = tmp_path / "samples" / "staging" / "left"
    left.mkdir()
    (left / "0000.sample").write_bytes(b"half")
    assert store.sweep() == (left,)
    assert not left.exists()
    assert store.get(kept) == (b"kept",)


def test_a_full_disk_is_told_and_leaves_nothing(small_disk: Path) -> None:
    store = SampleStore(small_disk)
    with pytest.raises(StorageError, match="bytes free, want"):
        store.put([bytes(200 << 10), bytes(200 << 10)])
    assert [p.name for p in (small_disk / "samples").iterdir()] == ["staging"]
    assert list((small_disk / "samples" / "staging").iterdir()) == []
