"""The key pair of a device: one, whoever asks at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edge_agent.agent.device_keys import own_keys, replace_keys
from edge_agent.errors import StorageError
from edge_agent.store.device_key import DeviceKeyStore
from edge_agent.transport.curve import make_keys

ROOT = Path(__file__).resolve().parents[2]


def test_a_key_is_made_when_it_is_first_needed_and_kept(tmp_path: Path) -> None:
    made = own_keys(DeviceKeyStore(tmp_path))
    again = own_keys(DeviceKeyStore(tmp_path))
    assert again.public == made.public
    assert again.secret.raw == made.secret.raw
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.lock"]


def test_a_key_is_made_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    store = DeviceKeyStore(tmp_path / "a" / "state")
    assert own_keys(store).public == own_keys(store).public
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_a_key_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    store = DeviceKeyStore(tmp_path)
    made = own_keys(store)
    lock = tmp_path / "key.lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(StorageError):
        replace_keys(store, make_keys())
    assert own_keys(store).public == made.public


def test_another_pair_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    store = DeviceKeyStore(tmp_path)
    before, new = own_keys(store), make_keys()
    replace_keys(store, new)
    assert own_keys(store).public == new.public != before.public
    assert own_keys(store).secret.raw == new.secret.raw


def test_a_pair_is_stored_where_the_folder_is_not_there_or_the_key_is_damaged(
    tmp_path: Path,
) -> None:
    store, new = DeviceKeyStore(tmp_path / "state"), make_keys()
    replace_keys(store, new)
    assert own_keys(store).public == new.public
    store.path.write_bytes(b"damaged")
    with pytest.raises(StorageError, match="key: is damaged"):
        own_keys(store)
    assert store.path.read_bytes() == b"damaged"
    replace_keys(store, new)
    assert own_keys(store).public == new.public


def test_threads_that_ask_at_once_get_one_key(tmp_path: Path) -> None:
    store, start = DeviceKeyStore(tmp_path), threading.Barrier(8)

    def ask(_: int) -> str:
        start.wait()
        return own_keys(store).public

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    assert found == {own_keys(store).public}


def test_processes_that_ask_at_once_get_one_key(tmp_path: Path) -> None:
    ask = """
import sys
from pathlib import Path
from edge_agent.agent.device_keys import own_keys
from edge_agent.store.device_key import DeviceKeyStore
sys.stdin.readline()
print(own_keys(DeviceKeyStore(Path(sys.argv[1]))).public)
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", ask, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(3)
    ]
    found = {child.communicate("\n")[0].strip() for child in children}
    assert found == {own_keys(DeviceKeyStore(tmp_path)).public}
