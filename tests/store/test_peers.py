"""The allow-list on disk: it comes back as it was, or nobody is trusted."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.endpoints import Endpoint
from edge_agent.peers import Origin, Peer, public_key
from edge_agent.store.peers import PeerStore
from edge_agent.store.sealed import read_sealed, write_sealed

FIRST = Peer(
    key=public_key(b"1" * 32),
    name="pi2",
    endpoints=(Endpoint(host="192.168.1.20", port=7600), Endpoint(host="fd00::1", port=1)),
    origin=Origin.INVITED,
    added_at_s=1.5e9,
    next_key=public_key(b"n" * 32),
)
SECOND = Peer(key=public_key(b"2" * 32), name="a", origin=Origin.JOINED)
LOST = "no device of it is trusted any more: invite or add them again"


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path)


def test_nobody_is_trusted_at_first(store: PeerStore, tmp_path: Path) -> None:
    assert store.load() == ()
    assert list(tmp_path.iterdir()) == []


def test_the_peers_come_back_in_their_order_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    PeerStore(folder).save(iter((FIRST, SECOND)))
    assert PeerStore(folder).load() == (FIRST, SECOND)
    PeerStore(folder).save((SECOND,))
    assert PeerStore(folder).load() == (SECOND,)
    PeerStore(folder).save(())
    assert PeerStore(folder).load() == ()
    assert [path.name for path in folder.iterdir()] == ["peers.json"]
    assert (folder / "peers.json").stat().st_mode & 0o7777 == 0o600


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_damaged_list_is_set_aside_and_nobody_is_trusted(
    store: PeerStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_cut: bool
) -> None:
    store.save((FIRST, SECOND))
    path = tmp_path / "peers.json"
    damaged = path.read_bytes()
    damaged = damaged[:-1] if is_cut else damaged.replace(b'"pi2"', b'"pi3"')
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert store.load() == ()
    assert (tmp_path / "peers.json.damaged-1").read_bytes() == damaged
    assert not path.exists()
    assert f"kept as peers.json.damaged-1; {LOST}" in caplog.text
    assert store.load() == ()
    store.save((SECOND,))
    assert store.load() == (SECOND,)


def without_key(peer: dict[str, Any]) -> None:
    del peer["key"]


def told(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda peer: peer.update({field: value})


@pytest.mark.parametrize(
    "change",
    [
        without_key,
        told("key", "k" * 52),
        told("key", FIRST.key[:-1]),
        told("key", None),
        told("next_key", "k"),
        told("next_key", "1" * 52),
        told("name", "../x"),
        told("name", ""),
        told("name", 1),
        told("endpoints", ["tcp://pi2:7600"]),
        told("endpoints", [{"host": "pi2"}]),
        told("origin", "nowhere"),
        told("added_at_s", "today"),
    ],
)
def test_a_list_with_one_wrong_peer_is_set_aside_whole(
    store: PeerStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[dict[str, Any]], None],
) -> None:
    store.save((SECOND, FIRST))
    path = tmp_path / "peers.json"
    peers = json.loads(read_sealed(path) or b"")
    change(peers[1])
    write_sealed(path, json.dumps(peers).encode())
    with caplog.at_level(logging.WARNING):
        assert store.load() == ()
    assert f"{path}: " in caplog.text
    assert "; kept as peers.json.damaged-1" in caplog.text
    assert LOST in caplog.text
    assert sorted(one.name for one in tmp_path.iterdir()) == ["peers.json.damaged-1"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b"[[]]", b"[" * 100_000])
def test_a_sealed_file_with_other_content_is_set_aside(
    store: PeerStore, tmp_path: Path, content: bytes
) -> None:
    write_sealed(tmp_path / "peers.json", content)
    assert store.load() == ()
    assert (tmp_path / "peers.json.damaged-1").exists()


def test_a_field_that_a_later_version_wrote_is_passed_over(
    store: PeerStore, tmp_path: Path
) -> None:
    store.save((FIRST,))
    path = tmp_path / "peers.json"
    peers = json.loads(read_sealed(path) or b"")
    peers[0]["color"] = "blue"
    write_sealed(path, json.dumps(peers).encode())
    assert store.load() == (FIRST,)
