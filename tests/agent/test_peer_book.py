"""The allow-list of an agent: who is on it, under which name, and that it is on disk first."""

from __future__ import annotations

import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.agent.peer_book import PeerBook
from edge_agent.agent.peering import Peering
from edge_agent.config import load_settings
from edge_agent.endpoints import Endpoint
from edge_agent.errors import Busy, EdgeAgentError, StorageError, UnknownPeer, UsageError
from edge_agent.peers import MAX_PEERS, Origin, Peer, PublicKey, public_key
from edge_agent.store.peers import PeerStore


def key(number: int) -> PublicKey:
    return public_key(number.to_bytes(32, "big"))


AT = (Endpoint(host="pi2", port=7600),)
ELSEWHERE = (Endpoint(host="192.168.1.20", port=7600),)
PI2 = Peer(key=key(2), name="pi2", endpoints=AT, origin=Origin.INVITED, added_at_s=1.5e9)
PI3 = Peer(key=key(3), name="pi3")
FIXED = Peer(key=key(4), name="fixed", endpoints=AT, origin=Origin.CONFIGURED)
NEW_KEY = key(99)


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path / "state")


@pytest.fixture
def book(store: PeerStore) -> PeerBook:
    """One peer of the config file, two others."""
    made = PeerBook(store, (FIXED,))
    made.add(PI2)
    made.add(PI3)
    return made


def refused(
    kind: type[EdgeAgentError], book: PeerBook, peer: Peer, *, is_told: bool = False
) -> str:
    before = book.peers
    with pytest.raises(kind) as told:
        book.add(peer, is_told=is_told)
    assert book.peers == before
    return str(told.value)


def test_nobody_is_on_it_at_first(store: PeerStore) -> None:
    book = PeerBook(store, ())
    assert (len(book), book.peers, book.by_key(PI2.key)) == (0, (), None)
    with pytest.raises(UnknownPeer) as told:
        book.find("pi2")
    assert str(told.value) == 'peer "pi2" is not known; known: none'


def test_who_is_added_is_on_it_after_a_restart_behind_those_of_the_config_file(
    book: PeerBook, store: PeerStore
) -> None:
    assert len(book) == 3
    assert book.peers == (FIXED, PI2, PI3)
    assert store.load() == (PI2, PI3)
    assert PeerBook(store, (FIXED,)).peers == (FIXED, PI2, PI3)
    assert PeerBook(store, ()).peers == (PI2, PI3)


def test_a_peer_is_found_by_its_name_id_or_key(book: PeerBook) -> None:
    for peer in (FIXED, PI2, PI3):
        assert book.by_key(peer.key) == peer
        for name in (peer.name, peer.id, peer.key):
            assert book.find(name) == peer
    with pytest.raises(UnknownPeer) as told:
        book.find('pi"4')
    assert str(told.value) == 'peer "pi\\"4" is not known; known: fixed, pi2, pi3'


def test_a_peer_with_a_next_key_is_found_by_both(book: PeerBook) -> None:
    changed = replace(PI2, next_key=NEW_KEY)
    book.change(PI2, changed)
    for one in (PI2.key, NEW_KEY):
        assert book.by_key(one) == changed
        assert book.find(one) == changed


def test_a_name_that_is_taken_is_refused_with_what_to_do(book: PeerBook) -> None:
    for name in (PI3.name, PI3.id, PI3.key):
        assert refused(UsageError, book, Peer(key=key(5), name=name)) == (
            f'name "{name}": belongs to the peer {PI3.id}; choose another, or '
            f"`edge-agent peer rename {name} …` first"
        )
        with pytest.raises(UsageError, match="belongs to the peer"):
            book.check_free(name)
    book.check_free("pi4")


def test_the_other_device_is_told_how_to_call_itself_otherwise(book: PeerBook) -> None:
    assert refused(UsageError, book, Peer(key=key(5), name="pi3"), is_told=True) == (
        f'the name "pi3" belongs to another device there ({PI3.id}): choose another for this one '
        "with `edge-agent serve --name NAME`"
    )


def test_a_name_that_is_none_is_refused(book: PeerBook) -> None:
    assert refused(UsageError, book, Peer(key=key(5), name="-")).startswith('name: got "-", want ')


def test_an_id_means_the_device_that_has_it_whatever_others_are_called(book: PeerBook) -> None:
    late = Peer(key=key(5), name="late")
    book.rename(PI2, late.id)
    added = book.add(late)
    assert book.find(late.id) == added
    assert book.find(PI2.id).name == late.id


def test_this_device_is_no_peer_of_itself(book: PeerBook) -> None:
    book.own(key(5))
    assert refused(UsageError, book, Peer(key=key(5), name="me")) == (
        "that is the key of this device itself; if its state folder was copied to another device, "
        "`edge-agent key rotate` makes a new key there"
    )
    book.own(key(6))
    book.add(Peer(key=key(5), name="me"))


def test_this_device_is_no_peer_of_itself_either_when_it_has_none_yet(tmp_path: Path) -> None:
    settings = load_settings({"HOME": "/h"}, state=tmp_path, socket="/s")
    with ThreadPoolExecutor(1) as executor:
        peering = Peering(settings, executor)
        me = Peer(key=peering.keys.public, name="me")
        with pytest.raises(UsageError, match="that is the key of this device itself"):
            peering.add(me)
        peering.stop()
    assert len(peering.book) == 0


def test_the_list_has_room_for_so_many_and_no_more(store: PeerStore) -> None:
    book = PeerBook(store, (FIXED,))
    for number in range(MAX_PEERS - 1):
        book.add(Peer(key=key(100 + number), name=f"p{number}"))
    assert len(book) == 64
    assert refused(Busy, book, PI2) == (
        "64 peers are known: remove one with `edge-agent peer remove`"
    )
    # One that is on it may come again.
    again = Peer(key=key(100), name="p0", endpoints=AT)
    assert book.add(again) == again
    book.remove(again)
    book.add(PI2)


def test_one_that_is_on_it_and_comes_again_keeps_all_but_where_it_listens(
    book: PeerBook, store: PeerStore
) -> None:
    again = Peer(key=PI2.key, name="other", endpoints=ELSEWHERE, origin=Origin.JOINED)
    merged = replace(PI2, endpoints=ELSEWHERE)
    assert book.add(again) == merged
    assert book.peers == (FIXED, merged, PI3)
    assert store.load() == (merged, PI3)
    # Also under a name that another one has: it is not called so.
    assert book.add(replace(again, name="pi3")) == merged
    # What it announces takes the place of what it announced before.
    assert book.add(replace(again, endpoints=())) == replace(PI2, endpoints=())


def test_what_a_user_wrote_stays_whatever_a_peer_announces(book: PeerBook) -> None:
    typed = replace(PI2, origin=Origin.ADDED, endpoints=AT, written=AT)
    written = replace(PI2, written=AT)
    assert book.add(typed) == written
    assert book.add(Peer(key=PI2.key, name="x", endpoints=ELSEWHERE, origin=Origin.JOINED)) == (
        replace(written, endpoints=(*AT, *ELSEWHERE))
    )
    # Without a place it is left where it is, and with one that is where it is.
    assert book.add(replace(typed, endpoints=(), written=())).endpoints == (*AT, *ELSEWHERE)
    assert book.add(replace(typed, endpoints=ELSEWHERE, written=ELSEWHERE)) == (
        replace(PI2, endpoints=ELSEWHERE, written=ELSEWHERE)
    )


def test_a_known_key_under_another_name_is_refused_and_not_taken_for_a_new_name(
    book: PeerBook,
) -> None:
    assert refused(UsageError, book, Peer(key=PI2.key, name="kitchen")) == (
        'that is the key of the peer "pi2": `edge-agent peer rename pi2 kitchen` calls it '
        "differently"
    )


def test_one_that_comes_again_with_its_next_key_is_the_same(book: PeerBook) -> None:
    changed = replace(PI2, next_key=NEW_KEY)
    book.change(PI2, changed)
    assert book.add(Peer(key=NEW_KEY, name="other", origin=Origin.JOINED)) == (
        replace(changed, endpoints=())
    )
    assert len(book) == 3


def test_who_is_removed_is_not_on_it_after_a_restart_either(
    book: PeerBook, store: PeerStore
) -> None:
    book.remove(PI2)
    assert book.peers == (FIXED, PI3)
    assert book.by_key(PI2.key) is None
    assert PeerBook(store, (FIXED,)).peers == (FIXED, PI3)
    with pytest.raises(UnknownPeer) as told:
        book.remove(PI2)
    assert str(told.value) == 'peer "pi2" is not known any more, or has another key: try again'
    with pytest.raises(UnknownPeer):
        book.rename(PI2, "pi4")


def test_a_peer_is_renamed_here_alone(book: PeerBook, store: PeerStore) -> None:
    renamed = book.rename(PI2, "kitchen")
    assert renamed == replace(PI2, name="kitchen")
    assert book.peers == (FIXED, renamed, PI3)
    assert store.load() == (renamed, PI3)
    assert book.find("kitchen") == renamed
    with pytest.raises(UnknownPeer):
        book.find("pi2")


def test_a_peer_may_be_renamed_to_what_it_is_called(book: PeerBook) -> None:
    assert book.rename(PI2, "pi2") == PI2


@pytest.mark.parametrize("name", ["pi3", "fixed", PI3.id, PI3.key])
def test_a_peer_is_not_renamed_to_what_another_is_called(book: PeerBook, name: str) -> None:
    with pytest.raises(UsageError, match=rf'name "{name}": belongs to the peer'):
        book.rename(PI2, name)
    with pytest.raises(UsageError, match='name: got "a b", want'):
        book.rename(PI2, "a b")
    assert book.peers == (FIXED, PI2, PI3)


def test_one_that_has_changed_since_it_was_looked_up_keeps_what_it_said(
    book: PeerBook, store: PeerStore
) -> None:
    changed = replace(PI2, endpoints=ELSEWHERE, next_key=NEW_KEY)
    book.change(PI2, changed)
    assert book.rename(PI2, "kitchen") == replace(changed, name="kitchen")
    assert store.load()[0] == replace(changed, name="kitchen")


def test_one_whose_key_has_changed_since_it_was_looked_up_is_removed_all_the_same(
    book: PeerBook, store: PeerStore
) -> None:
    between = replace(PI2, next_key=NEW_KEY)
    book.change(PI2, between)
    book.change(between, replace(PI2, key=NEW_KEY))
    with pytest.raises(UnknownPeer, match="try again"):
        book.remove(PI2)
    book.remove(between)
    assert book.peers == (FIXED, PI3)
    assert store.load() == (PI3,)


def test_what_a_peer_says_of_itself_does_not_undo_how_the_user_calls_it(book: PeerBook) -> None:
    book.rename(PI2, "kitchen")
    book.change(PI2, replace(PI2, endpoints=ELSEWHERE))
    assert book.peers[1] == replace(PI2, endpoints=ELSEWHERE, name="kitchen")


def test_what_a_peer_says_of_itself_does_not_bring_it_back(
    book: PeerBook, store: PeerStore
) -> None:
    book.remove(PI2)
    book.change(PI2, replace(PI2, endpoints=ELSEWHERE))
    assert book.peers == (FIXED, PI3)
    assert store.load() == (PI3,)


@pytest.mark.parametrize("action", ["remove", "rename"])
def test_a_peer_of_the_config_file_is_changed_there_alone(book: PeerBook, action: str) -> None:
    with pytest.raises(UsageError) as told:
        book.remove(FIXED) if action == "remove" else book.rename(FIXED, "x")
    assert str(told.value) == (
        f'peer "fixed" stands in the config file: {action} it there, and start the agent again'
    )
    assert book.peers == (FIXED, PI2, PI3)


def test_of_a_peer_of_the_config_file_nothing_is_stored_but_another_key(
    book: PeerBook, store: PeerStore, caplog: pytest.LogCaptureFixture
) -> None:
    book.add(replace(FIXED, endpoints=ELSEWHERE, origin=Origin.ADDED))
    assert store.load() == (PI2, PI3)
    told = replace(FIXED, next_key=NEW_KEY)
    book.change(FIXED, told)
    assert book.by_key(NEW_KEY) == told
    assert PeerBook(store, (FIXED,)).by_key(NEW_KEY) == told
    assert caplog.records == []
    # It uses the new one from now on.
    has = replace(FIXED, key=NEW_KEY, listed_key=FIXED.key)
    book.change(told, replace(FIXED, key=NEW_KEY))
    assert book.peers == (has, PI2, PI3)
    again = PeerBook(store, (FIXED,))
    assert again.peers == (has, PI2, PI3)
    assert again.by_key(FIXED.key) is None
    assert [record.message for record in caplog.records] == [
        'peer "fixed" has another key than the config file says: write key = '
        f'"{NEW_KEY}" in [peers.fixed] there (until then, this device remembers it)'
    ] * 2
    # The user does so, or takes it out.
    now = replace(FIXED, key=NEW_KEY)
    assert PeerBook(store, (now,)).peers == (now, PI2, PI3)
    assert PeerBook(store, ()).peers == (PI2, PI3)


def test_a_peer_of_the_config_file_cannot_have_the_key_of_this_device(store: PeerStore) -> None:
    with pytest.raises(UsageError) as told:
        PeerBook(store, (FIXED,)).own(FIXED.key)
    assert str(told.value) == (
        'peer "fixed" of the config file has the key of this device itself: write the key that '
        "`edge-agent key show` prints on the other device"
    )


def test_the_config_file_wins_over_what_is_stored_of_the_same_device(store: PeerStore) -> None:
    store.save((PI2, PI3))
    configured = Peer(key=PI2.key, name="kitchen", origin=Origin.CONFIGURED)
    book = PeerBook(store, (configured,))
    assert book.peers == (configured, PI3)
    assert book.by_key(PI2.key) == configured
    with pytest.raises(UnknownPeer):
        book.find("pi2")


def test_the_config_file_wins_also_with_the_next_key_of_a_stored_device(store: PeerStore) -> None:
    store.save((replace(PI2, next_key=NEW_KEY),))
    configured = Peer(key=NEW_KEY, name="kitchen", origin=Origin.CONFIGURED)
    book = PeerBook(store, (configured,))
    assert book.peers == (configured,)
    assert book.by_key(NEW_KEY) == configured
    assert book.by_key(PI2.key) is None


def test_a_stored_peer_whose_name_the_config_file_gives_to_another_is_called_by_its_id(
    store: PeerStore,
) -> None:
    store.save((PI2, PI3))
    configured = Peer(key=key(5), name="pi2", origin=Origin.CONFIGURED)
    book = PeerBook(store, (configured,))
    assert book.peers == (configured, replace(PI2, name=PI2.id), PI3)
    assert book.find("pi2") == configured
    assert book.find(PI2.id).key == PI2.key
    # What is stored is what it was called before.
    assert store.load() == (PI2, PI3)


def test_when_the_disk_refuses_nothing_has_changed(
    book: PeerBook, store: PeerStore, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    shutil.copytree(state, tmp_path / "kept")
    shutil.rmtree(state)
    state.write_text("a file stands in the way")
    before = book.peers
    for action in (
        lambda: book.add(Peer(key=key(5), name="pi5")),
        lambda: book.add(replace(PI2, endpoints=ELSEWHERE)),
        lambda: book.remove(PI2),
        lambda: book.rename(PI2, "kitchen"),
        lambda: book.change(PI2, replace(PI2, next_key=NEW_KEY)),
    ):
        with pytest.raises(StorageError, match=re.escape(f"{state}: cannot create the folder")):
            action()
        assert book.peers == before
        assert book.by_key(PI2.key) == PI2
        assert book.by_key(NEW_KEY) is book.by_key(key(5)) is None
    state.unlink()
    shutil.move(tmp_path / "kept", state)
    assert store.load() == (PI2, PI3)
    book.rename(PI2, "kitchen")
    assert [peer.name for peer in store.load()] == ["kitchen", "pi3"]


def test_what_changes_nothing_does_not_need_the_disk(book: PeerBook, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "state")
    assert book.add(PI2) == PI2
    assert book.rename(PI2, "pi2") == PI2
    book.change(PI2, PI2)
    assert not (tmp_path / "state").exists()


def test_threads_that_add_at_once_lose_nobody(store: PeerStore) -> None:
    book, start = PeerBook(store, ()), threading.Barrier(8)

    def add(thread: int) -> None:
        start.wait()
        for number in range(4):
            book.add(Peer(key=key(100 * thread + number + 1), name=f"p{thread}-{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert {peer.name for peer in book.peers} == {f"p{t}-{n}" for t in range(8) for n in range(4)}
    assert store.load() == book.peers


def test_of_threads_that_add_one_name_at_once_one_wins(store: PeerStore) -> None:
    book, start = PeerBook(store, ()), threading.Barrier(8)

    def add(thread: int) -> bool:
        start.wait()
        try:
            book.add(Peer(key=key(thread + 1), name="pi"))
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(8))) == 1
    assert len(book) == 1
    assert store.load() == book.peers
