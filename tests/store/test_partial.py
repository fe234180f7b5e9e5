"""Tensors on their way here: resumed where they were, used only when their hash is right."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from edge_agent.errors import AlreadyRunning, ProtocolError, StorageError
from edge_agent.store.partial import PartialStore

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> PartialStore:
    return PartialStore(tmp_path)


def test_what_came_whole_is_right_and_can_be_read(store: PartialStore) -> None:
    with store.open(SHA256, len(CONTENT)) as partial:
        for at in range(0, len(CONTENT), 1000):
            assert partial.received_bytes == at
            assert not partial.is_whole
            partial.write(at, memoryview(CONTENT)[at : at + 1000])
        assert partial.is_whole
        partial.check()
        for _ in range(2):
            assert b"".join(map(bytes, partial)) == CONTENT
        assert partial.path.stat().st_mode & 0o777 == 0o600
        partial.discard()
        assert not partial.path.exists()


def test_a_transfer_goes_on_where_it_was(store: PartialStore, tmp_path: Path) -> None:
    with store.open(SHA256, len(CONTENT)) as partial:
        partial.write(0, CONTENT[:70_000])
    with PartialStore(tmp_path).open(SHA256, len(CONTENT)) as partial:
        assert partial.received_bytes == 70_000
        partial.write(70_000, CONTENT[70_000:])
        partial.check()


@pytest.mark.parametrize(
    ("offset_bytes", "count"), [(1, 10), (0, 10), (70_001, 10), (70_000, len(CONTENT)), (-1, 5)]
)
def test_what_does_not_come_next_is_refused_and_changes_nothing(
    store: PartialStore, offset_bytes: int, count: int
) -> None:
    with store.open(SHA256, len(CONTENT)) as partial:
        partial.write(0, CONTENT[:70_000])
        with pytest.raises(ProtocolError) as told:
            partial.write(offset_bytes, bytes(count))
        assert str(told.value) == (
            f"tensor {SHA256[:12]}…: got {count} bytes at {offset_bytes}, want at most "
            f"{len(CONTENT) - 70_000} at 70000"
        )
        partial.write(70_000, CONTENT[70_000:])
        partial.check()


def test_another_content_is_thrown_away_and_may_come_anew(store: PartialStore) -> None:
    wrong = bytearray(CONTENT)
    wrong[50_000] ^= 1
    with store.open(SHA256, len(CONTENT)) as partial:
        partial.write(0, bytes(wrong))
        with pytest.raises(ProtocolError, match=f"tensor {SHA256[:12]}…: got bytes with the SHA"):
            partial.check()
        assert partial.received_bytes == 0
        partial.write(0, CONTENT)
        partial.check()


def test_a_file_that_is_too_long_is_begun_anew(store: PartialStore, tmp_path: Path) -> None:
    (tmp_path / "partial" / f"{SHA256}.part").write_bytes(CONTENT + b"x")
    with store.open(SHA256, len(CONTENT)) as partial:
        assert partial.received_bytes == 0


def test_an_empty_tensor_is_whole_at_once(store: PartialStore) -> None:
    with store.open(hashlib.sha256().hexdigest(), 0) as partial:
        assert partial.is_whole
        partial.check()
        assert list(partial) == []


def test_two_do_not_receive_one_tensor(store: PartialStore) -> None:
    with (
        store.open(SHA256, len(CONTENT)),
        pytest.raises(AlreadyRunning, match="is being received already"),
        store.open(SHA256, len(CONTENT)),
    ):
        pass
    with store.open(SHA256, len(CONTENT)):
        pass


@pytest.mark.parametrize(
    ("sha256", "size_bytes"),
    [("../../etc/passwd", 1), (SHA256.upper(), 1), (SHA256[1:], 1), ("", 1), (SHA256, -1)],
)
def test_what_is_no_hash_or_size_is_refused(
    store: PartialStore, sha256: str, size_bytes: int
) -> None:
    with pytest.raises(ProtocolError, match="got a tensor"):
        store.open(sha256, size_bytes)


def test_what_has_no_room_is_refused_before_it_comes(store: PartialStore) -> None:
    disk = os.statvfs("/")
    with (
        pytest.raises(StorageError, match=r"bytes free, want"),
        store.open(SHA256, disk.f_blocks * disk.f_frsize * 1000),
    ):
        pass


def test_a_link_in_its_place_is_not_followed(store: PartialStore, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (tmp_path / "partial" / f"{SHA256}.part").symlink_to(target)
    with pytest.raises(StorageError), store.open(SHA256, len(CONTENT)):
        pass
    assert target.read_bytes() == b"mine"


def test_what_is_not_wanted_is_removed_but_for_what_is_being_received(store: PartialStore) -> None:
    other = "0" * 64
    for sha256 in (SHA256, other):
        with store.open(sha256, 10) as partial:
            partial.write(0, b"12345")
    with store.open("1" * 64, 10) as busy:
        removed = store.collect({SHA256})
        assert [path.name for path in removed] == [f"{other}.part"]
        assert busy.path.exists()
    assert len(store.collect(set())) == 2


def test_how_much_came_is_told_without_opening(store: PartialStore) -> None:
    assert store.received_bytes(SHA256) == 0
    with store.open(SHA256, len(CONTENT)) as partial:
        partial.write(0, CONTENT[:70_000])
    assert store.received_bytes(SHA256) == 70_000


def test_what_is_discarded_is_gone_unless_it_is_being_received(store: PartialStore) -> None:
    other = "0" * 64
    with store.open(SHA256, len(CONTENT)) as partial, store.open(other, 10):
        partial.write(0, CONTENT)
        store.discard([SHA256])
        assert partial.path.exists()
    store.discard([SHA256, "1" * 64])
    assert not partial.path.exists()
    assert store.received_bytes(other) == 0


def test_one_that_is_removed_while_it_is_opened_is_made_anew(
    store: PartialStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def opened(path: Path, *arguments: int) -> int:
        fd = really_open(path, *arguments)
        monkeypatch.setattr(os, "open", really_open)
        store.discard([SHA256])
        return fd

    partial = store.open(SHA256, len(CONTENT))
    monkeypatch.setattr(os, "open", opened)
    with partial:
        partial.write(0, CONTENT)
    assert partial.path.read_bytes() == CONTENT
