"""The long-term key on disk: nobody else can read it, and a wrong one is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge_agent.errors import StorageError
from edge_agent.peers import SecretKey, base32
from edge_agent.store.device_key import DeviceKeyStore
from edge_agent.store.folder import free_bytes
from edge_agent.store.sealed import write_sealed

RAW = bytes(range(32))
OTHER = b"o" * 32
TELLS = (
    ": others may know this device's secret key. Make it yours alone (`chmod 600`), and if anybody "
    "may have read it, `edge-agent key rotate`"
)


@pytest.fixture
def store(tmp_path: Path) -> DeviceKeyStore:
    return DeviceKeyStore(tmp_path / "state")


@pytest.fixture
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def kept(store: DeviceKeyStore) -> bytes | None:
    secret = store.load()
    return None if secret is None else secret.raw


def refused(store: DeviceKeyStore) -> str:
    with pytest.raises(StorageError) as told:
        store.load()
    return str(told.value)


def test_there_is_none_at_first(store: DeviceKeyStore) -> None:
    assert store.load() is None
    assert not store.path.exists()


def test_the_key_is_there_after_a_restart_and_the_last_one_counts(tmp_path: Path) -> None:
    DeviceKeyStore(tmp_path).save(SecretKey(OTHER))
    DeviceKeyStore(tmp_path).save(SecretKey(RAW))
    assert kept(DeviceKeyStore(tmp_path)) == RAW
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.usefixtures("_no_umask")
def test_nobody_else_can_read_it_whatever_the_umask_is(store: DeviceKeyStore) -> None:
    for raw in (RAW, OTHER):
        store.save(SecretKey(raw))
        assert store.path.stat().st_mode & 0o7777 == 0o600
    assert store.path.parent.stat().st_mode & 0o7777 == 0o700


def test_saving_makes_the_file_private_again(store: DeviceKeyStore) -> None:
    store.save(SecretKey(RAW))
    store.path.chmod(0o644)
    store.save(SecretKey(OTHER))
    assert kept(store) == OTHER


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_that_only_its_owner_can_read_is_taken(store: DeviceKeyStore, mode: int) -> None:
    store.save(SecretKey(RAW))
    store.path.chmod(mode)
    assert kept(store) == RAW


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o666, 0o777])
def test_a_file_that_others_can_use_is_refused_until_it_is_private(
    store: DeviceKeyStore, mode: int
) -> None:
    store.save(SecretKey(RAW))
    store.path.chmod(mode)
    assert refused(store) == f"{store.path}: got mode {mode:04o}, want 0600{TELLS}"
    store.path.chmod(0o600)
    assert kept(store) == RAW


def test_a_link_is_refused(store: DeviceKeyStore, tmp_path: Path) -> None:
    store.save(SecretKey(RAW))
    store.path.rename(tmp_path / "elsewhere")
    store.path.symlink_to(tmp_path / "elsewhere")
    assert refused(store) == f"{store.path}: is a link or no file{TELLS}"


def test_saving_replaces_a_link_and_not_what_it_points_at(
    store: DeviceKeyStore, tmp_path: Path
) -> None:
    store.save(SecretKey(RAW))
    shutil.copy(store.path, tmp_path / "elsewhere")
    store.path.unlink()
    store.path.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    store.save(SecretKey(OTHER))
    assert not store.path.is_symlink()
    assert kept(store) == OTHER
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_a_folder_in_its_place_is_told(store: DeviceKeyStore) -> None:
    store.path.mkdir(parents=True)
    assert refused(store).startswith(f"{store.path}: cannot read: Is a directory")


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file away needs root")
def test_the_file_of_another_user_is_refused(store: DeviceKeyStore) -> None:
    store.save(SecretKey(RAW))
    os.chown(store.path, 12345, -1)
    assert refused(store) == f"{store.path}: belongs to user 12345, want 0{TELLS}"


def test_a_file_cut_short_anywhere_is_refused_and_kept(store: DeviceKeyStore) -> None:
    store.save(SecretKey(RAW))
    whole = store.path.read_bytes()
    for length in range(len(whole)):
        store.path.write_bytes(whole[:length])
        assert refused(store).startswith(f"{store.path}: is damaged")
        assert store.path.read_bytes() == whole[:length]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"secret":1}',
        b"\xff",
        msgspec.json.encode({"secret": base32(RAW), "more": 1}),
        msgspec.json.encode({"secret": base32(RAW[1:])}),
        msgspec.json.encode({"secret": base32(RAW + b"x")}),
        msgspec.json.encode({"secret": base32(RAW)[:-1] + "r"}),
        msgspec.json.encode({"secret": base32(RAW)[:-1] + "1"}),
        msgspec.json.encode({"secret": "é" * 52}),
    ],
)
def test_a_sealed_file_without_a_key_is_refused_without_telling_what_it_holds(
    store: DeviceKeyStore, content: bytes
) -> None:
    store.save(SecretKey(RAW))
    write_sealed(store.path, content)
    told = refused(store)
    assert told.startswith(f"{store.path}: holds no key: ")
    assert told.endswith(
        "; restore it from a copy, or move it away and make a new key with `edge-agent key rotate "
        "--force`, which every peer has to be told by hand"
    )
    assert base32(RAW)[:10] not in told


def test_a_full_disk_is_told_and_the_key_before_stays(small_disk: Path) -> None:
    store = DeviceKeyStore(small_disk)
    store.save(SecretKey(RAW))
    (small_disk / "much").write_bytes(bytes(free_bytes(small_disk)))
    with pytest.raises(StorageError, match=r"key: cannot write: No space left on device; free"):
        store.save(SecretKey(OTHER))
    assert kept(store) == RAW
    assert sorted(path.name for path in small_disk.iterdir()) == ["key", "much"]
