"""Device profiles on disk come back as they were, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.devices import DeviceId
from edge_agent.store.device_profiles import DeviceProfileStore, KeptProfile
from edge_agent.store.sealed import write_sealed
from tests.agent.test_measuring import CPU
from tests.made_profiles import profile

KEPT = KeptProfile(
    device_key="onnxruntime 1 on A76",
    units=(CPU,),
    load_fraction=0.25,
    speed_fraction=1.0,
    profile=profile(),
)
ONE, TWO = DeviceId("a" * 20), DeviceId("b" * 20)


def test_nothing_is_kept_at_first(tmp_path: Path) -> None:
    store = DeviceProfileStore(tmp_path / "state")
    assert store.load() is None
    assert store.load_peer(ONE) is None
    store.collect(())
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    DeviceProfileStore(tmp_path).save(KEPT)
    assert DeviceProfileStore(tmp_path).load() == KEPT
    assert (tmp_path / "device-profile.json").stat().st_mode & 0o7777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{}", b'{"v":2}', b"\xff"])
def test_what_another_version_wrote_is_set_aside(tmp_path: Path, content: bytes) -> None:
    write_sealed(tmp_path / "device-profile.json", content)
    assert DeviceProfileStore(tmp_path).load() is None
    assert (tmp_path / "device-profile.json.damaged-1").exists()


def test_what_peers_told_comes_back_and_that_of_others_goes(tmp_path: Path) -> None:
    store = DeviceProfileStore(tmp_path)
    store.save_peer(ONE, b"one")
    store.save_peer(TWO, b"two")
    store.save_peer(ONE, b"other")
    assert (store.load_peer(ONE), store.load_peer(TWO)) == (b"other", b"two")
    store.collect({TWO})
    assert (store.load_peer(ONE), store.load_peer(TWO)) == (None, b"two")


def test_a_damaged_file_of_a_peer_is_set_aside(tmp_path: Path) -> None:
    store = DeviceProfileStore(tmp_path)
    store.save_peer(ONE, b"one")
    (path,) = (tmp_path / "peer-profiles").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert store.load_peer(ONE) is None
    store.collect({ONE})
    assert list((tmp_path / "peer-profiles").iterdir()) == []
