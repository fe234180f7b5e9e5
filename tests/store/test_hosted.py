"""Stages that are hosted are kept with what was built for them, as long as there is room."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.devices import DeviceId
from edge_agent.errors import StorageError
from edge_agent.plans import Target
from edge_agent.stages import StageModel
from edge_agent.store.hosted import Hosted, HostedKey, HostedStore
from edge_agent.subgraphs import ModelId
from tests.store.made_stage import MODEL, stage

OWNER = DeviceId("owner")


def key_of(
    of: StageModel, owner: DeviceId | None = OWNER, target: Target = Target.LATENCY
) -> HostedKey:
    return HostedKey(stage=of, owner=owner, target=target, threads=2)


def open_store(root: Path, max_bytes: int = 1 << 30) -> HostedStore:
    return HostedStore(root, max_bytes)


def save(store: HostedStore, root: Path, *keys: HostedKey) -> None:
    """One after the other: the first was used longest ago."""
    for number, key in enumerate(keys):
        before = set((root / "hosted").iterdir())
        store.save(Hosted(key=key))
        (made,) = set((root / "hosted").iterdir()) - before
        os.utime(made, (1000 + number, 1000 + number))


def test_a_stage_comes_back_as_it_was_for_the_same_owner_target_and_threads(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    kept = Hosted(key=key_of(stage()))
    store.save(kept)
    again = open_store(tmp_path)
    assert again.find(key_of(stage())) == kept
    assert again.all() == (kept,)
    assert again.find(key_of(stage("other"))) is None
    assert again.find(key_of(stage(), DeviceId("another"))) is None
    assert again.find(key_of(stage(), target=Target.THROUGHPUT)) is None
    assert again.find(replace(key_of(stage()), threads=None)) is None
    assert again.find(replace(key_of(stage()), half_bound=0.01)) is None
    store.remove(key_of(stage()))
    assert again.all() == ()
    assert store.sweep() == ()


def test_what_is_damaged_is_not_there_and_is_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save(Hosted(key=key_of(stage())))
    (path,) = (tmp_path / "hosted").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert store.find(key_of(stage())) is None
    assert store.all() == ()
    assert list((tmp_path / "hosted").iterdir()) == []


def test_room_is_made_by_those_used_longest_ago(tmp_path: Path) -> None:
    store = open_store(tmp_path, 9_000)
    keys = [key_of(stage(name, tensors=[name])) for name in "abc"]
    save(store, tmp_path, *keys)
    store.touch(keys[0])
    assert store.make_room(keys[2].stage, ()) == ()  # it is there already
    removed = store.make_room(stage("d", tensors=["d"]), ())
    assert [hosted.key for hosted in removed] == [keys[1]]
    assert [hosted.key for hosted in store.all()] == [keys[2], keys[0]]


def test_what_stages_share_counts_once(tmp_path: Path) -> None:
    store = open_store(tmp_path, 7_000)
    save(store, tmp_path, *(key_of(stage(name, tensors=["t"])) for name in "ab"))
    # A graph, a sample each and one tensor: 5,000 bytes, and 2,000 more.
    assert store.make_room(stage("c", tensors=["t"]), ()) == ()
    assert len(store.make_room(stage("c", tensors=["u"]), ())) == 1


def test_what_is_in_use_stays_and_a_stage_that_does_not_fit_then_is_refused(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, 6_000)
    first, second = (key_of(stage(name, tensors=[name])) for name in "ab")
    save(store, tmp_path, first, second)
    removed = store.make_room(stage("c", tensors=["c"]), {first.stage.id})
    assert [hosted.key for hosted in removed] == [second]
    with pytest.raises(StorageError) as told:
        store.make_room(stage("d", tensors=["d"], size_bytes=2000), {first.stage.id})
    assert "got 9000 bytes" in str(told.value)
    assert "want at most 6000" in str(told.value)
    assert "max_hosted_bytes" in str(told.value)
    assert [hosted.key for hosted in store.all()] == [first]


def test_stages_of_own_models_take_no_room_and_go_with_their_models(tmp_path: Path) -> None:
    store = open_store(tmp_path, 3_000)
    own, theirs = key_of(stage("a"), None), key_of(stage("b", model=ModelId("2" * 64)))
    save(store, tmp_path, own, theirs)
    assert store.make_room(theirs.stage, ()) == ()
    assert store.collect({MODEL}) == {own.stage.id, theirs.stage.id}
    assert store.collect({ModelId("3" * 64)}) == {theirs.stage.id}
    assert [hosted.key for hosted in store.all()] == [theirs]


def test_to_touch_what_was_removed_does_nothing(tmp_path: Path) -> None:
    open_store(tmp_path).touch(key_of(stage()))
    assert open_store(tmp_path).all() == ()


def test_what_is_beyond_less_room_goes_at_the_start_longest_unused_first(tmp_path: Path) -> None:
    before = HostedStore(tmp_path, 1 << 30)
    stages = [stage(name, tensors=[name]) for name in "abc"]
    for one in stages:
        key = HostedKey(stage=one, owner=DeviceId("o"), target=Target.LATENCY, threads=None)
        before.save(Hosted(key=key))
    own = HostedKey(
        stage=stage("d", tensors=["d"]), owner=None, target=Target.LATENCY, threads=None
    )
    before.save(Hosted(key=own))
    size = sum(blob.size_bytes for blob in stages[0].blobs)
    assert HostedStore(tmp_path, 1 << 30).shrink() == ()
    removed = HostedStore(tmp_path, size).shrink()
    assert [hosted.key.stage.id for hosted in removed] == [one.id for one in stages[:2]]
    # Those of this device's own models do not count.
    left = {hosted.key.stage.id for hosted in HostedStore(tmp_path, size).all()}
    assert left == {stages[2].id, own.stage.id}
    assert HostedStore(tmp_path, 0).shrink() != ()
