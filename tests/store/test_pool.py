"""What the pool keeps once, what it hands out, and what it notices."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.errors import ModelRefused, StorageError
from edge_agent.store.blobs import PAGE_BYTES
from edge_agent.store.manifests import EntryKind
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId
from tests.store.pool_entries import (
    add,
    blob_path,
    digest,
    intact,
    open_pool,
    stored,
    taken,
)

RAW = b"raw" * 2000
PACKED = b"packed" * 1000
OTHER_PACKED = b"other" * 1000
PACKED_AT = 2 * PAGE_BYTES


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return open_pool(tmp_path)


def test_an_entry_is_found_by_another_process(pool: Pool, tmp_path: Path) -> None:
    assert add(pool, "k", {RAW: [PACKED]}) == [PACKED_AT]
    with taken(open_pool(tmp_path), "k"):
        assert (pool.folder / "k.onnx").read_bytes() == b"graph"
    content = blob_path(pool, RAW).read_bytes()
    assert content[: len(RAW)] == RAW
    assert content[PACKED_AT:] == PACKED
    assert stored(pool) == sorted(["k.json", "k.onnx", f"blobs/{digest(RAW)}", "made/m/k"])


def test_there_is_no_entry_under_another_key(pool: Pool) -> None:
    add(pool, "k", {RAW: []})
    assert pool.get("l") is None


def test_equal_tensors_and_equal_forms_are_stored_once(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    before = blob_path(pool, RAW).stat()
    assert add(pool, "l", {RAW: [PACKED]}) == [PACKED_AT]
    assert add(pool, "model", {RAW: []}, kind=EntryKind.MODEL) == []
    after = blob_path(pool, RAW).stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
    assert os.listdir(pool.folder / "blobs") == [digest(RAW)]


def test_a_second_form_goes_behind_the_first_one(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    (offset,) = add(pool, "l", {RAW: [OTHER_PACKED]})
    assert offset == PACKED_AT + -(-len(PACKED) // PAGE_BYTES) * PAGE_BYTES
    assert intact(pool, "k")
    assert intact(pool, "l")


def test_what_is_not_published_leaves_nothing(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    before, content = stored(pool), blob_path(pool, RAW).read_bytes()

    def fail() -> None:
        with pool.adding(EntryKind.COMPILED) as adding:
            adding.form(adding.tensor([RAW]), [OTHER_PACKED])
            adding.form(adding.tensor([b"new" * 5000]), [PACKED])
            raise ModelRefused("no")

    with pytest.raises(ModelRefused):
        fail()
    assert stored(pool) == before
    assert blob_path(pool, RAW).read_bytes() == content
    assert intact(pool, "k", thorough=False)


def test_a_source_that_fails_leaves_nothing(pool: Pool) -> None:
    def chunks() -> list[bytes]:
        raise ModelRefused("cut short")

    def add_it() -> None:
        with pool.adding(EntryKind.MODEL) as adding:
            adding.tensor(chunks())

    with pytest.raises(ModelRefused):
        add_it()
    assert stored(pool) == []


def damage_graph(pool: Pool) -> Path:
    return pool.folder / "k.onnx"


def damage_manifest(pool: Pool) -> Path:
    return pool.folder / "k.json"


def damage_tensor(pool: Pool) -> Path:
    return blob_path(pool, RAW)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damaged", [damage_graph, damage_manifest, damage_tensor])
@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_a_damaged_compiled_entry_is_removed_told_and_can_be_made_again(
    pool: Pool, caplog: pytest.LogCaptureFixture, damaged: Callable[[Pool], Path], how: str
) -> None:
    add(pool, "k", {RAW: [PACKED]})
    path = damaged(pool)
    if how == "removed":
        path.unlink()
    elif how == "cut":
        os.truncate(path, 1)
    else:
        flip(path, 3)
    assert pool.get("k") is None
    if path != pool.folder / "k.json" or how != "removed":
        assert "it will be compiled again" in caplog.text
    add(pool, "k", {RAW: [PACKED]})
    assert intact(pool, "k")
    pool.collect({ModelId("m")})
    assert intact(pool, "k")
    assert len(stored(pool)) == 4


def test_a_damaged_form_is_found_and_made_again(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    add(pool, "l", {RAW: []})
    flip(blob_path(pool, RAW), PACKED_AT + 5)
    assert pool.get("k") is None
    assert intact(pool, "l")
    add(pool, "k", {RAW: [PACKED]})
    assert intact(pool, "k")
    assert intact(pool, "l")


def test_damage_behind_the_time_of_change_is_found_when_asked_for(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    path = blob_path(pool, RAW)
    found = path.stat()
    flip(path, 7)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert intact(pool, "k", thorough=False)
    assert not intact(pool, "k")


def test_a_copied_pool_is_read_once_and_believed_from_then_on(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    path = blob_path(pool, RAW)
    sealed_ns = path.stat().st_mtime_ns
    os.utime(path)
    assert intact(pool, "k", thorough=False)
    assert path.stat().st_mtime_ns == sealed_ns


def test_a_file_is_not_believed_for_the_sake_of_one_good_region(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    add(pool, "l", {RAW: []})
    flip(blob_path(pool, RAW), PACKED_AT)
    assert intact(pool, "l", thorough=False)
    assert not intact(pool, "k", thorough=False)


@pytest.mark.parametrize("damaged", [damage_graph, damage_manifest, damage_tensor])
def test_a_damaged_model_is_refused_until_it_is_loaded_again(
    pool: Pool, damaged: Callable[[Pool], Path]
) -> None:
    add(pool, "k", {RAW: []}, kind=EntryKind.MODEL)
    add(pool, "c", {RAW: [PACKED]}, model="k")
    flip(damaged(pool), 3)
    with pytest.raises(StorageError, match="load the model again from its source"):
        pool.get("k")
    add(pool, "k", {RAW: []}, kind=EntryKind.MODEL)
    assert intact(pool, "k")
    add(pool, "c", {RAW: [PACKED]}, model="k")
    assert intact(pool, "c")


def test_a_tensor_that_replaces_a_damaged_one_takes_the_forms_of_others_along(
    pool: Pool,
) -> None:
    """Their offsets would come to mean what is appended next."""
    add(pool, "k", {RAW: [PACKED]})
    flip(blob_path(pool, RAW), 0)
    add(pool, "model", {RAW: []}, kind=EntryKind.MODEL)
    add(pool, "l", {RAW: [OTHER_PACKED]})
    assert pool.get("k") is None
    assert intact(pool, "l")
    assert intact(pool, "model")


def test_the_entry_of_another_key_is_not_taken(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    add(pool, "k", {RAW: []})
    (pool.folder / "k.json").rename(pool.folder / "l.json")
    (pool.folder / "k.onnx").rename(pool.folder / "l.onnx")
    assert pool.get("l") is None
    assert "is the manifest of another entry: k" in caplog.text


def test_the_pool_holds_intact_graphs_of_its_own_only(pool: Pool, tmp_path: Path) -> None:
    add(pool, "k", {RAW: []})
    assert pool.holds(pool.folder / "k.onnx")
    assert not pool.holds(pool.folder / "k.json")
    assert not pool.holds(pool.folder / "l.onnx")
    assert not pool.holds(tmp_path / "k.onnx")
    flip(pool.folder / "k.onnx", 0)
    assert not pool.holds(pool.folder / "k.onnx")


def test_an_entry_that_is_replaced_while_it_is_used_keeps_its_regions(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    with taken(pool, "k"):
        flip(pool.folder / "k.onnx", 0)
        assert pool.get("k") is None
        add(pool, "k", {RAW: [OTHER_PACKED]})
        pool.collect(set())
        assert blob_path(pool, RAW).read_bytes()[PACKED_AT:][: len(PACKED)] == PACKED
    pool.collect(set())
    assert stored(pool) == []


def test_a_form_of_a_file_that_was_replaced_while_it_is_used_is_not_taken(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    with taken(pool, "k"):
        flip(blob_path(pool, RAW), 0)
        add(pool, "model", {RAW: []}, kind=EntryKind.MODEL)
        add(pool, "l", {RAW: [OTHER_PACKED]})
        add(pool, "k", {RAW: [PACKED]})
        assert intact(pool, "k")
        assert intact(pool, "l")


def test_a_damaged_form_that_another_entry_has_too_is_made_again_for_both(pool: Pool) -> None:
    for key in "kl":
        add(pool, key, {RAW: [PACKED]})
    flip(blob_path(pool, RAW), PACKED_AT)
    assert pool.get("k") is None
    add(pool, "k", {RAW: [PACKED]})
    assert intact(pool, "k")
    assert pool.get("l") is None
    add(pool, "l", {RAW: [PACKED]})
    assert intact(pool, "l")
    assert intact(pool, "k")


def test_drafts_are_removed_and_those_of_dead_processes_are_swept(pool: Pool) -> None:
    with pool.drafts() as drafts:
        drafts.path("0-3.onnx").write_bytes(b"part")
        assert drafts.path("0-3.onnx").parent == pool.folder
        assert pool.sweep() == ()
    assert stored(pool) == []
    for left in (".part-0011-0-3.onnx", ".part-0011.lock", ".part-0022-x", "blobs/.new-1"):
        (pool.folder / left).write_bytes(b"left")
    assert len(pool.sweep()) == 5  # and a lock that was missing
    assert stored(pool) == []


def publish_shared(pool: Pool, key: str, *contents: bytes) -> bool:
    """Add a model of tensors that may be here; whether all of them are."""
    with pool.adding(EntryKind.MODEL) as adding:
        found = [adding.share(digest(content), len(content)) for content in contents]
        if None in found:
            return False
        assert found == [f"blobs/{digest(content)}" for content in contents]
        adding.publish(key, b"graph", key).release()
    return True


def publish_adopted(pool: Pool, key: str, content: bytes, source: Path) -> None:
    source.write_bytes(content)
    with pool.adding(EntryKind.MODEL) as adding:
        location = adding.adopt(source, digest(content), len(content))
        assert location == f"blobs/{digest(content)}"
        adding.publish(key, b"graph", key).release()


def test_a_tensor_that_is_here_is_shared_as_it_is(pool: Pool) -> None:
    add(pool, "k", {RAW: [PACKED]})
    before = blob_path(pool, RAW).stat()
    assert pool.has_tensor(digest(RAW), len(RAW))
    assert pool.tensor(digest(RAW)) == blob_path(pool, RAW)
    assert publish_shared(pool, "l", RAW)
    assert blob_path(pool, RAW).stat() == before
    assert intact(pool, "l")
    manifest = pool.manifest("l")
    assert manifest is not None
    assert manifest.weight_bytes == len(RAW)
    pool.collect({ModelId("l")})
    assert intact(pool, "l")


def test_a_tensor_that_is_missing_too_short_or_damaged_is_not_shared(pool: Pool) -> None:
    assert not publish_shared(pool, "l", RAW)
    add(pool, "k", {RAW: []})
    with pool.adding(EntryKind.MODEL) as adding:
        assert adding.share(digest(RAW), len(RAW) + 1) is None
    flip(blob_path(pool, RAW), 3)
    assert not pool.has_tensor(digest(RAW), len(RAW))
    assert not publish_shared(pool, "l", RAW)
    flip(blob_path(pool, RAW), 3)  # as it was, which reading it tells
    assert not pool.has_tensor(digest(RAW), len(RAW))
    assert publish_shared(pool, "l", RAW)


def test_a_file_that_is_adopted_is_moved_and_survives_what_fails_then(
    pool: Pool, tmp_path: Path
) -> None:
    source = tmp_path / "came"
    source.write_bytes(RAW)
    with pool.adding(EntryKind.MODEL) as adding:
        adding.adopt(source, digest(RAW), len(RAW))  # and it is not published
    assert not source.exists()
    assert pool.has_tensor(digest(RAW), len(RAW))
    assert publish_shared(pool, "k", RAW)
    assert intact(pool, "k")
    pool.forget("k")
    assert pool.manifest("k") is None
    pool.collect(set())
    assert stored(pool) == []


def test_a_file_that_is_adopted_for_a_damaged_one_takes_the_forms_of_others_along(
    pool: Pool, tmp_path: Path
) -> None:
    add(pool, "k", {RAW: [PACKED]})
    with taken(pool, "k"):
        flip(blob_path(pool, RAW), 0)
        publish_adopted(pool, "l", RAW, tmp_path / "came")
        assert intact(pool, "l")
        assert pool.get("k") is None
        pool.collect({ModelId("l"), ModelId("m")})
    assert intact(pool, "l")
