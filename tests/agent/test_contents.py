"""Content goes from device to device by hash: what was offered, to whom it was, whole or not at
all. All sockets are real."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent import clock
from edge_agent.agent import contents
from edge_agent.agent.offers import Offered
from edge_agent.agent.peering import Peering
from edge_agent.errors import PeerLost, ProtocolError, StorageError
from edge_agent.peers import Peer
from edge_agent.store.partial import PartialStore
from edge_agent.wire.contents import MAX_PIECE_BYTES, AskContent, Content, ContentCodec, NoContent
from edge_agent.wire.peering import Welcome
from tests.agent.made_peers import (
    Devices,
    RawSocket,
    Stranger,
    admitted,
    endpoint_of,
    frozen,
    joined,
    status_of,
    stranger,
)
from tests.system.running import wait_until


@pytest.fixture
def pair(made: Devices) -> tuple[Peering, Peering]:
    """One that listens, and one that joined it and does not listen."""
    one, two = made.start("one"), made.start("two", listens=False)
    joined(one, two)
    return one, two


def offered(device: Peering, to: Peering, folder: Path, content: bytes) -> str:
    """Have a device offer some content to another one: its hash."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = folder / sha256
    # In the store's files, what was made of a tensor lies behind it.
    path.write_bytes(content + b"forms")
    device.offers.offer(
        device.book.find(to.name).id, {sha256: Offered(path=path, size_bytes=len(content))}
    )
    return sha256


def fetched(device: Peering, source: Peering, folder: Path, sha256: str, size_bytes: int) -> bytes:
    with PartialStore(folder).open(sha256, size_bytes) as tensor:
        device.fetch(device.book.find(source.name), tensor)
        return b"".join(map(bytes, tensor))


SIZES = (0, 1, MAX_PIECE_BYTES - 1, MAX_PIECE_BYTES, MAX_PIECE_BYTES + 1, 5_000_000)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_content_comes_as_it_is_in_either_direction(
    pair: tuple[Peering, Peering], tmp_path: Path, size_bytes: int
) -> None:
    content = os.urandom(size_bytes)
    for source, target in (pair, pair[::-1]):
        sha256 = offered(source, target, tmp_path, content)
        assert fetched(target, source, tmp_path / target.name, sha256, size_bytes) == content


def test_several_are_fetched_at_once(pair: tuple[Peering, Peering], tmp_path: Path) -> None:
    one, two = pair
    many = [os.urandom(1_500_000) for _ in range(6)]
    hashes = [offered(one, two, tmp_path, content) for content in many]
    got: dict[str, bytes] = {}

    def fetch(sha256: str) -> None:
        got[sha256] = fetched(two, one, tmp_path / "two", sha256, 1_500_000)

    threads = [threading.Thread(target=fetch, args=(sha256,)) for sha256 in hashes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert status_of(one, "two").offences == 0
    assert [got[sha256] for sha256 in hashes] == many


def test_what_has_come_is_not_sent_again(pair: tuple[Peering, Peering], tmp_path: Path) -> None:
    one, two = pair
    content = os.urandom(3_000_000)
    sha256 = offered(one, two, tmp_path, content)
    store = PartialStore(tmp_path / "two")
    with store.open(sha256, len(content)) as tensor:
        tensor.write(0, content[:2_000_001])
    received: list[int] = []
    with store.open(sha256, len(content)) as tensor:
        two.fetch(two.book.find("one"), tensor, received.append)
    assert sum(received) == 999_999


def test_what_was_not_offered_to_a_peer_is_not_told_from_what_is_not_there(
    made: Devices, pair: tuple[Peering, Peering], tmp_path: Path
) -> None:
    one, two = pair
    three = made.start("three", listens=False)
    joined(one, three)
    content = b"of nobody else's business" * 100
    sha256 = offered(one, three, tmp_path, content)
    told = set()
    for asked in (sha256, "0" * 64):
        with pytest.raises(StorageError) as error:
            fetched(two, one, tmp_path / "two", asked, len(content))
        told.add(str(error.value))
    assert told == {"that was not offered to this device"}
    assert one.counters["content refused that was not offered"] == 2
    assert fetched(three, one, tmp_path / "three", sha256, len(content)) == content
    one.offers.withdraw(one.book.find("three").id, [sha256])
    with pytest.raises(StorageError, match=r"^that was not offered to this device$"):
        fetched(three, one, tmp_path / "again", sha256, len(content))


def test_nothing_behind_a_tensor_is_sent(pair: tuple[Peering, Peering], tmp_path: Path) -> None:
    one, two = pair
    sha256 = offered(one, two, tmp_path, b"tensor")
    with pytest.raises(ProtocolError, match=r"^asked for bytes up to 11 of a tensor$"):
        fetched(two, one, tmp_path / "two", sha256, len(b"tensorforms"))


def test_a_file_that_is_gone_is_told_without_its_name(
    pair: tuple[Peering, Peering], tmp_path: Path
) -> None:
    one, two = pair
    sha256 = offered(one, two, tmp_path, b"tensor")
    (tmp_path / sha256).unlink()
    with pytest.raises(StorageError, match=r"^it is not here any more$"):
        fetched(two, one, tmp_path / "two", sha256, 6)


def test_content_that_is_not_what_its_hash_says_is_thrown_away(
    pair: tuple[Peering, Peering], tmp_path: Path
) -> None:
    one, two = pair
    content = os.urandom(700_000)
    sha256 = offered(one, two, tmp_path, content)
    (tmp_path / sha256).write_bytes(content[:-1] + b"?")
    with pytest.raises(ProtocolError, match=r"got bytes with the SHA-256"):
        fetched(two, one, tmp_path / "two", sha256, len(content))
    (tmp_path / sha256).write_bytes(content)
    assert fetched(two, one, tmp_path / "two", sha256, len(content)) == content


def test_a_peer_that_is_gone_is_lost_and_what_came_is_kept(
    made: Devices, pair: tuple[Peering, Peering], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "PIECE_S", 0.5)
    one, two = pair
    content = os.urandom(4_000_000)
    sha256 = offered(one, two, tmp_path, content)
    store = PartialStore(tmp_path / "two")

    def stop_after_some(_count: int) -> None:
        one.stop()

    at = endpoint_of(one)
    with store.open(sha256, len(content)) as tensor:
        with pytest.raises(PeerLost):
            two.fetch(two.book.find("one"), tensor, stop_after_some)
        kept = tensor.received_bytes
        assert 0 < kept < len(content)
    one = made.start("one", at=at)
    offered(one, two, tmp_path, content)
    with store.open(sha256, len(content)) as tensor:
        assert tensor.received_bytes == kept

        def has_come() -> bool:
            try:
                two.fetch(two.book.find("one"), tensor)
            except PeerLost:
                return False
            return True

        wait_until(has_come, "the rest comes")
        assert b"".join(map(bytes, tensor)) == content


def test_a_peer_that_says_nothing_is_given_up(
    pair: tuple[Peering, Peering], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "PIECE_S", 0.3)
    one, two = pair
    sha256 = offered(one, two, tmp_path, b"tensor")
    with frozen(one), pytest.raises(PeerLost, match=r"^no piece of a tensor came for 0 s$"):
        fetched(two, one, tmp_path / "two", sha256, 6)


def test_a_removed_peer_gets_nothing_any_more(
    pair: tuple[Peering, Peering], tmp_path: Path
) -> None:
    one, two = pair
    sha256 = offered(one, two, tmp_path, b"tensor")
    device = one.book.find("two").id
    one.remove("two")
    assert one.offers.find(device, sha256) is None
    asked_s = clock.monotonic_s()
    with pytest.raises(PeerLost, match="connection for content"):
        fetched(two, one, tmp_path / "two", sha256, 6)
    # Told at once, not given up.
    assert clock.monotonic_s() - asked_s < contents.PIECE_S / 2


def test_pieces_that_come_when_nobody_waits_any_more_are_no_offence(
    pair: tuple[Peering, Peering], tmp_path: Path
) -> None:
    one, two = pair
    content = os.urandom(3_000_000)
    sha256 = offered(one, two, tmp_path, content)
    session = two.session_of(two.book.find("one").key)
    assert session is not None

    told: list[object] = []

    def ask_and_forget() -> None:
        for number in range(contents.MOST_ASKED):
            session.contents.ask(sha256, number, MAX_PIECE_BYTES, told.append)
        session.contents.forget()

    two.call(ask_and_forget)
    assert [str(answer) for answer in told] == [
        "the connection for content has ended"
    ] * contents.MOST_ASKED
    # This comes after all that was under way.
    assert fetched(two, one, tmp_path / "again", sha256, len(content)) == content
    assert status_of(two, "one").offences == 0


# ---- what a peer may not do


@pytest.fixture
def line(made: Devices) -> Iterator[tuple[Peering, Stranger, RawSocket]]:
    """A raw connection for content to a device."""
    one = made.start("one")
    with stranger() as bad:
        admitted(one, bad, "bad")
        welcome = bad.ask_door(one, bad.hello())
        assert isinstance(welcome, Welcome)
        yield one, bad, bad.dial(endpoint_of(one).at(welcome.content_port), one.keys.public)


CODEC = ContentCodec()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01\x00\x00\x00\x00",
        b"\x01\xff\xff\xff\xff",
        b"\x02\x01\x00\x00\x00x",
        CODEC.encode(Content(77), b"a piece that nobody asked for"),
        CODEC.encode(NoContent(number=78, code="storage", message="x")),
        CODEC.encode(Content(79)),
        CODEC.encode(NoContent(number=0, code="error", message="x"), b"piece"),
    ],
)
def test_garbage_about_content_is_an_offence(
    line: tuple[Peering, Stranger, RawSocket], message: bytes
) -> None:
    one, _, raw = line
    raw.send(message)
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")


@pytest.mark.parametrize(
    "change", [{"sha256": "../x"}, {"length_bytes": MAX_PIECE_BYTES + 1}, {"offset_bytes": -1}]
)
def test_questions_out_of_bounds_are_an_offence(
    line: tuple[Peering, Stranger, RawSocket], change: dict[str, object]
) -> None:
    one, _, raw = line
    asked = {"number": 1, "sha256": "0" * 64, "offset_bytes": 0, "length_bytes": 1} | change
    raw.send(CODEC.encode(AskContent(**asked)))  # type: ignore[arg-type]
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")


def test_a_peer_cannot_have_any_number_of_pieces_read_for_it(
    line: tuple[Peering, Stranger, RawSocket], tmp_path: Path
) -> None:
    one, _, raw = line
    content = os.urandom(MAX_PIECE_BYTES)
    sha256 = hashlib.sha256(content).hexdigest()
    (tmp_path / sha256).write_bytes(content)
    peer: Peer = one.book.find("bad")
    one.offers.offer(peer.id, {sha256: Offered(path=tmp_path / sha256, size_bytes=len(content))})
    ask = AskContent(number=1, sha256=sha256, offset_bytes=0, length_bytes=MAX_PIECE_BYTES)
    with frozen(one):
        for _ in range(200):
            raw.send(CODEC.encode(ask))
    wait_until(lambda: status_of(one, "bad").offences >= 1, "the offence")
