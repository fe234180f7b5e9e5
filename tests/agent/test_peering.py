"""Devices that meet: tokens, the list, heartbeats, keys. All sockets are real."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq

from edge_agent import clock
from edge_agent.agent.peer_sessions import STAYS_OUT
from edge_agent.agent.peering import Peering
from edge_agent.agent.twins import ONE_KEY
from edge_agent.endpoints import Endpoint
from edge_agent.errors import Busy, PeerLost, PeerRefused, UnknownPeer, UsageError
from edge_agent.peers import Origin, Peer, PeerCondition, PublicKey, device_id, raw_key
from edge_agent.store.device_key import DeviceKeyStore
from edge_agent.transport.curve import make_keys
from edge_agent.wire.peering import Goodbye, Leaving, Welcome
from edge_agent.wire.tokens import read_token, write_token
from tests.agent.made_peers import (
    Devices,
    admitted,
    beat,
    endpoint_of,
    frozen,
    joined,
    relayed,
    status_of,
    stranger,
    until,
)
from tests.relay import Relay
from tests.system.running import wait_until

UP, SILENT, GONE = PeerCondition.UP, PeerCondition.SILENT, PeerCondition.GONE


@pytest.fixture(autouse=True)
def _who_was_refused_comes_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("knocking", "peer_sessions"):
        monkeypatch.setattr(f"edge_agent.agent.{module}.REFUSED_PAUSE_S", 0.2)


def test_a_token_puts_each_device_on_the_list_of_the_other(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    peer, was_there = two.join(one.invite(60))
    assert (peer.name, peer.key, peer.origin) == ("one", one.keys.public, Origin.JOINED)
    assert peer.endpoints == (one.listens_at,)
    assert not was_there
    until(one, "two", UP)
    until(two, "one", UP)
    (there,) = one.book.peers
    assert (there.name, there.key, there.origin) == ("two", two.keys.public, Origin.INVITED)
    assert there.endpoints == ()
    trip_s = status_of(two, "one").round_trip_s
    wait_until(lambda: status_of(two, "one").round_trip_s is not None, "a round trip")
    assert trip_s is None or 0 < trip_s < 1


def test_both_are_peers_again_after_both_were_started_anew(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    joined(one, two)
    at, keys = one.listens_at, one.keys.public
    one.stop()
    two.stop()
    assert at is not None
    two = made.start("two", listens=False)
    assert status_of(two, "one").condition is GONE
    one = made.start("one", at=at)
    assert one.keys.public == keys
    until(one, "two", UP)
    until(two, "one", UP)


def test_a_device_that_listens_is_dialled_by_the_one_that_it_joined(made: Devices) -> None:
    one, two = made.start("one"), made.start("two")
    joined(one, two)
    assert one.book.find("two").endpoints == (two.listens_at,)
    # Either can make the connection, so it comes back whichever was away.
    at = two.listens_at
    assert at is not None
    two.stop()
    until(one, "two", GONE)
    assert status_of(one, "two").why == "it was stopped"
    two = made.start("two", at=at)
    until(one, "two", UP)
    until(two, "one", UP)


def test_a_token_is_good_for_one_device(made: Devices) -> None:
    one, two, three = made.start("one"), made.start("two"), made.start("three")
    token = one.invite(60)
    two.join(token)
    with pytest.raises(PeerRefused) as told:
        three.join(token)
    assert str(told.value) == (
        f'device "one": the token was used by device {device_id(two.keys.public)[:8]}… already: '
        "ask for a new one"
    )
    assert [peer.name for peer in one.book.peers] == ["two"]
    assert three.book.peers == ()
    assert one.counters["tokens refused"] == 1


def test_the_device_that_used_a_token_may_use_it_again(made: Devices) -> None:
    """Its answer may have been lost: then only the other device knows of the joining."""
    one, two = made.start("one"), made.start("two", listens=False)
    token = one.invite(60)
    two.join(token)
    two.remove("one")
    peer, was_there = two.join(token)
    assert (peer.key, was_there) == (one.keys.public, False)
    until(two, "one", UP)


def test_a_token_that_the_other_device_forgot_is_fine_for_one_that_it_knows(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    token = one.invite(60)
    two.join(token)
    two.remove("one")
    at = one.listens_at
    assert at is not None
    one.stop()
    made.start("one", at=at)
    assert two.join(token)[0].key == one.keys.public
    until(two, "one", UP)


def test_joining_a_device_that_is_there_already_asks_nobody(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    joined(one, two)
    peer, was_there = two.join(one.invite(60))
    assert (peer.name, was_there) == ("one", True)


def test_a_token_expires(made: Devices) -> None:
    one, two = made.start("one"), made.start("two")
    token = one.invite(1e-3)
    clock.sleep_s(2e-3)
    with pytest.raises(PeerRefused, match=r'^device "one": the token has expired: ask for a new'):
        two.join(token)
    assert one.book.peers == two.book.peers == ()


def test_a_token_that_was_never_given_out_is_refused(made: Devices) -> None:
    one, two = made.start("one"), made.start("two")
    forged = write_token(replace(read_token(one.invite(60)), secret=make_keys().secret))
    with pytest.raises(
        PeerRefused, match=r'^device "one" does not take the token: it was not give'
    ):
        two.join(forged)
    assert one.book.peers == two.book.peers == ()
    # Once with the token, once with the key of the device.
    assert one.counters["connections with unknown keys refused"] == 2


def test_a_token_for_another_device_at_that_address_is_not_answered(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.agent.joining.JOIN_S", 0.5)
    one, two = made.start("one"), made.start("two")
    swapped = write_token(replace(read_token(one.invite(60)), key=make_keys().public))
    with pytest.raises(PeerLost, match=r"something answers at .* it does not prove the key"):
        two.join(swapped)
    assert two.book.peers == ()


def test_a_device_that_does_not_answer_is_told_of(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.agent.joining.JOIN_S", 0.5)
    one, two = made.start("one"), made.start("two")
    token = one.invite(60)
    at = one.listens_at
    one.stop()
    with pytest.raises(PeerLost) as told:
        two.join(token)
    assert str(told.value) == (
        f'device "one": it does not answer at {at}: is its agent running, and can this device '
        "reach it there (network, firewall)?"
    )


def test_a_host_that_nobody_knows_is_told_at_once(made: Devices) -> None:
    one, two = made.start("one"), made.start("two")
    token = read_token(one.invite(60))
    nowhere = Endpoint(host="nobody.invalid", port=7600)
    with pytest.raises(PeerLost) as told:
        two.join(write_token(replace(token, endpoints=(nowhere,))))
    assert str(told.value) == 'device "one": no such host: nobody.invalid; is there a network?'


def test_a_disk_that_fails_at_the_other_device_is_not_taken_for_that_of_this_one(
    made: Devices, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = made.start("one"), made.start("two")
    token = one.invite(60)
    in_the_way = made.folder / "one" / "peers.json"
    in_the_way.mkdir()
    with pytest.raises(PeerRefused) as told:
        two.join(token)
    assert str(told.value) == 'device "one": it cannot keep its list of peers: see its log'
    assert f"{in_the_way}: cannot write: Is a directory" in caplog.text
    in_the_way.rmdir()
    # The token is as good as before.
    assert two.join(token)[0].name == "one"


def test_two_devices_of_one_name_are_told_apart_before_either_is_on_a_list(made: Devices) -> None:
    one = made.start("one")
    first, second = made.start("pi"), made.start("second")
    second.name = "pi"
    joined(one, first)
    token = one.invite(60)
    with pytest.raises(UsageError) as told:
        second.join(token)
    assert str(told.value) == (
        f'device "one": the name "pi" belongs to another device there '
        f"({device_id(first.keys.public)}): choose another for this one with `edge-agent serve "
        "--name NAME`"
    )
    assert second.book.peers == ()
    # The token is as good as before.
    second.name = "pi2"
    assert second.join(token)[0].name == "one"


def test_a_name_that_is_taken_here_leaves_the_token_unused(made: Devices) -> None:
    one, other, two = made.start("one"), made.start("other"), made.start("two")
    joined(other, two)
    two.rename("other", "one")
    token = one.invite(60)
    with pytest.raises(UsageError, match=r'^name "one": belongs to the peer'):
        two.join(token)
    two.rename("one", "other")
    two.join(token)
    until(one, "two", UP)


def test_a_device_with_a_copied_state_folder_cannot_join_its_twin(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    two.stop()
    DeviceKeyStore(made.folder / "two").save(one.keys.secret)
    two = made.start("two", listens=False)
    with pytest.raises(UsageError, match=r"copied: `edge-agent key rotate` gives this one a key"):
        two.join(one.invite(60))


def test_without_a_place_to_listen_nobody_is_invited_and_nothing_runs(made: Devices) -> None:
    alone = made.start("alone", listens=False)
    with pytest.raises(UsageError, match=r"does not listen .* `edge-agent serve --listen tcp://AD"):
        alone.invite(60)
    assert alone.statuses() == ()
    assert alone._thread is None


def test_an_address_that_is_taken_is_refused(made: Devices) -> None:
    one = made.start("one")
    assert one.listens_at is not None
    with pytest.raises(UsageError) as told:
        made.start("two", at=one.listens_at)
    assert str(told.value) == (
        f"cannot listen at {one.listens_at}: another program listens there: stop that one, or "
        "choose another port"
    )
    with pytest.raises(UsageError, match=r"no network interface of this device has that address"):
        made.start("three", at=Endpoint(host="203.0.113.7", port=7600))


def test_a_removed_peer_loses_its_open_connection_and_gets_no_other(made: Devices) -> None:
    one = made.start("one")
    with stranger() as two:
        admitted(one, two)
        line = two.connect(one)
        two.say(line, beat())
        until(one, "stranger", UP)
        line.events()
        one.remove("stranger")
        # It is told before the end.
        assert two.heard(line)[-1] == Goodbye(Leaving.REMOVED)
        wait_until(lambda: zmq.EVENT_DISCONNECTED in line.events(), "the end of the connection")
        two.say(line, beat(2))
        assert line.receive(0.3) is None
        assert two.is_refused(one)
    with pytest.raises(UnknownPeer, match=r'^peer "stranger" is not known; known: none$'):
        one.remove("stranger")


def test_a_removed_device_knows_and_does_not_come_back_with_its_old_token(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    token = one.invite(60)
    two.join(token)
    until(one, "two", UP)
    until(two, "one", UP)
    one.remove("two")
    until(two, "one", GONE)
    assert status_of(two, "one").why == "it removed this device from its list"
    with pytest.raises(PeerRefused, match=r"the device that used the token was removed her"):
        two.join(token)
    assert one.book.peers == ()
    assert two.join(one.invite(60))[0].name == "one"
    until(one, "two", UP)


def test_peers_that_were_added_by_hand_meet(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    two.add(Peer(key=one.keys.public, name="uno", endpoints=(endpoint_of(one),)))
    wait_until(lambda: "does not admit this device" in status_of(two, "uno").why, "the refusal")
    assert status_of(two, "uno").why == (
        "it does not admit this device: it was removed there, or `edge-agent peer add "
        f"{two.keys.public}` is missing there"
    )
    one.add(Peer(key=two.keys.public, name="due"))
    until(two, "uno", UP)
    until(one, "due", UP)


def test_where_a_peer_listens_is_what_it_said_last_and_what_a_user_wrote(made: Devices) -> None:
    one = made.start("one")
    written = Endpoint(host="192.0.2.1", port=7)
    with stranger() as two:
        one.add(Peer(key=two.keys.public, name="two", endpoints=(written,)))
        for told in (("tcp://127.0.0.1:9",), ("tcp://127.0.0.1:10", "tcp://127.0.0.1:11"), ()):
            hello = msgspec.structs.replace(two.hello(), endpoints=told)
            assert isinstance(two.ask_door(one, hello), Welcome)
            wanted = [str(written), *told]
            wait_until(partial(_is_reached_at, one, "two", wanted), "what it said")


def test_where_a_peer_was_reached_last_stays(made: Devices) -> None:
    one, two = made.start("one"), made.start("two")
    at = endpoint_of(one)
    # Behind what leads to it, a device knows other addresses of itself than those that work.
    one.own_endpoints = lambda: (at.at(9),)  # type: ignore[method-assign]
    token = read_token(one.invite(60))
    two.join(write_token(replace(token, endpoints=(at.at(8), at))))
    until(two, "one", UP)
    wait_until(partial(_is_reached_at, two, "one", [str(at), str(at.at(9))]), "what it said")
    # Also when it comes itself, and says nothing of where it listens.
    with stranger(one.keys) as again:
        one.stop()
        until(two, "one", GONE)
        assert isinstance(again.ask_door(two, again.hello()), Welcome)
        wait_until(partial(_is_reached_at, two, "one", [str(at)]), "what it said")


def test_a_rotated_key_of_a_peer_of_the_config_file_outlives_a_restart(made: Devices) -> None:
    two = made.start("two")
    listed = two.keys.public
    uno = Peer(key=listed, name="uno", endpoints=(endpoint_of(two),), origin=Origin.CONFIGURED)
    one = made.start("one", listens=False, peers=(uno,))
    two.add(Peer(key=one.keys.public, name="one"))
    until(one, "uno", UP)
    until(two, "one", UP)
    keys, _ = two.rotate(is_forced=False)
    wait_until(lambda: one.book.find("uno").keys == (keys.public,), "the new key")
    one.stop()
    one = made.start("one", listens=False, peers=(uno,))
    until(one, "uno", UP)


def test_peers_of_the_config_file_meet_and_are_not_stored(made: Devices) -> None:
    keys = make_keys()
    DeviceKeyStore(made.folder / "two").save(keys.secret)
    one = made.start("one", peers=(Peer(key=keys.public, name="due", origin=Origin.CONFIGURED),))
    at = Endpoint(host="localhost", port=endpoint_of(one).port)
    uno = Peer(key=one.keys.public, name="uno", endpoints=(at,), origin=Origin.CONFIGURED)
    two = made.start("two", listens=False, peers=(uno,))
    until(two, "uno", UP)
    until(one, "due", UP)
    for name in ("one", "two"):
        assert not (made.folder / name / "peers.json").exists()
    with pytest.raises(UsageError, match=r'^peer "due" stands in the config file: remove it there'):
        one.remove("due")


def test_two_that_do_not_listen_are_told_why_they_do_not_meet(made: Devices) -> None:
    one = made.start("one", listens=False)
    one.add(Peer(key=make_keys().public, name="two"))
    assert status_of(one, "two").why == (
        "nobody can connect: this agent does not listen (`serve --listen`), and where the peer "
        "listens is not known (`peer add … --at`)"
    )


def test_a_rotated_key_reaches_the_peers_and_the_old_one_is_of_no_use(made: Devices) -> None:
    one, two, three = made.start("one"), made.start("two"), made.start("three", listens=False)
    joined(one, two)
    joined(one, three)
    old = one.keys
    keys, untold = one.rotate(is_forced=False)
    assert untold == ()
    assert one.keys == keys
    for device in (two, three):
        wait_until(partial(_knows, device, keys.public), "the new key")
        until(device, "one", UP)
        assert device.book.by_key(old.public) is None
    until(one, "two", UP)
    until(one, "three", UP)
    with stranger(old) as thief:
        assert thief.is_refused(two)
    one.stop()
    again = made.start("one")
    assert again.keys.public == keys.public


def test_a_key_is_not_rotated_while_a_peer_cannot_be_told(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.agent.rotating.NOTED_S", 0.3)
    one, two = made.start("one"), made.start("two", listens=False)
    joined(one, two)
    two.stop()
    old = one.keys
    with pytest.raises(PeerLost, match=r"^not told of a new key: two \(it was stopped\)\. Wait"):
        one.rotate(is_forced=False)
    assert one.keys == old
    made.start("two", listens=False)
    until(one, "two", UP)
    one.add(Peer(key=make_keys().public, name="lost"))
    keys, untold = one.rotate(is_forced=True)
    assert untold == ("lost",)
    assert one.keys.public == keys.public != old.public
    until(one, "two", UP)


def test_of_two_rotations_at_once_the_second_is_told_to_wait(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.agent.rotating.NOTED_S", 0.5)
    one = made.start("one")
    one.add(Peer(key=make_keys().public, name="lost"))
    with ThreadPoolExecutor(1) as other:
        first = other.submit(one.rotate, is_forced=True)
        wait_until(one._rotating.locked, "the first one has begun")
        with pytest.raises(Busy, match=r"^the key is being rotated already"):
            one.rotate(is_forced=True)
        made_keys, _ = first.result()
    assert one.keys == made_keys


@pytest.fixture
def twins(made: Devices) -> tuple[Peering, Peering, Peering]:
    """A device, its peer, and another one to which the state folder of the peer was copied; the
    peer is connected, and the other one was refused."""
    one, two = made.start("one"), made.start("two", listens=False)
    joined(one, two)
    two.stop()
    shutil.copytree(made.folder / "two", made.folder / "copy")
    two = made.start("two", listens=False)
    until(one, "two", UP)
    until(two, "one", UP)
    copy = made.start("copy", listens=False)
    wait_until(lambda: status_of(copy, "one").why == ONE_KEY, "the second one is told")
    return one, two, copy


def test_two_devices_with_one_key_are_told_and_do_not_push_each_other_out(
    twins: tuple[Peering, Peering, Peering], caplog: pytest.LogCaptureFixture
) -> None:
    one, two, copy = twins
    before, at_s = status_of(one, "two"), clock.monotonic_s()
    refused = "devices with the key of another one refused"
    count = one.counters[refused]
    wait_until(lambda: one.counters[refused] > count, "it tries again")
    for device, peer in ((one, "two"), (two, "one")):
        assert status_of(device, peer).condition is UP
    after = status_of(one, "two")
    assert after.why == ONE_KEY
    assert after.for_s - before.for_s == pytest.approx(clock.monotonic_s() - at_s, abs=0.1)
    assert status_of(copy, "one").condition is GONE
    told = [record.message for record in caplog.records if ONE_KEY in record.message]
    assert told.count(f'peer "two": {ONE_KEY}') <= 1
    # The first one ends: the second one takes its place.
    two.stop()
    until(one, "two", UP)
    until(copy, "one", UP)


def test_of_two_devices_with_one_key_the_one_that_is_connected_can_rotate_it(
    twins: tuple[Peering, Peering, Peering],
) -> None:
    one, two, copy = twins
    keys, untold = two.rotate(is_forced=False)
    assert untold == ()
    wait_until(lambda: one.book.find("two").keys == (keys.public,), "the new key")
    until(two, "one", UP)
    wait_until(lambda: "does not admit this device" in status_of(copy, "one").why, "the refusal")


def test_of_two_devices_with_one_key_the_other_one_can_rotate_it_and_is_invited_anew(
    twins: tuple[Peering, Peering, Peering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.agent.rotating.NOTED_S", 0.3)
    one, _, copy = twins
    with pytest.raises(PeerLost) as told:
        copy.rotate(is_forced=False)
    assert str(told.value).startswith(f"not told of a new key: one ({ONE_KEY}). Wait until")
    keys, untold = copy.rotate(is_forced=True)
    assert untold == ("one",)
    copy.join(one.invite(60))
    until(copy, "one", UP)
    until(one, "copy", UP)
    assert one.book.find("copy").key == keys.public
    assert status_of(one, "two").condition is UP


def test_at_rest_a_device_does_what_is_due_once_for_each_round_of_heartbeats(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = made.start("one"), made.start("two"), made.start("three", listens=False)
    joined(one, two)
    joined(one, three)
    rounds: list[None] = []
    tick = one._tick

    def counted(now_s: float) -> float:
        rounds.append(None)
        return tick(now_s)

    session = one.session_of(three.keys.public)
    assert session is not None
    before = session.liveness._number
    monkeypatch.setattr(one, "_tick", counted)
    wait_until(lambda: session.liveness._number >= before + 20, "20 heartbeats")
    # Not for each that comes, nor in between; some are for what other threads ask.
    assert len(rounds) <= 30
    assert status_of(one, "two").condition is status_of(one, "three").condition is UP


def test_a_peer_that_freezes_is_silent_in_time_and_up_again_after(made: Devices) -> None:
    one, two = made.start("one", silent_s=0.5), made.start("two", listens=False, silent_s=0.5)
    joined(one, two)
    frozen_s = clock.monotonic_s()
    with frozen(two):
        until(one, "two", SILENT)
        assert 0.3 < clock.monotonic_s() - frozen_s < 1.5
    until(one, "two", UP)
    # Who was frozen itself blames nobody.
    assert status_of(two, "one").condition is UP


def test_a_peer_that_stays_silent_is_gone(made: Devices) -> None:
    one = made.start("one", silent_s=0.3, gone_s=0.6)
    two = made.start("two", listens=False)
    joined(one, two)
    with frozen(two):
        until(one, "two", SILENT)
        assert status_of(one, "two").why == STAYS_OUT
        until(one, "two", GONE)
        assert status_of(one, "two").why == STAYS_OUT
    until(one, "two", UP)
    assert status_of(one, "two").why == ""


@pytest.mark.parametrize("with_reset", [True, False])
def test_a_connection_that_is_cut_is_made_again(made: Devices, with_reset: bool) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    with relayed(one, two) as (to_door, line):
        before = to_door.counts.accepted
        assert line.cut(with_reset=with_reset) == 1
        wait_until(lambda: line.counts.accepted == 2, "a new connection")
        until(one, "two", UP)
        until(two, "one", UP)
        # By way of the door, because the other side may have another socket by now.
        wait_until(lambda: to_door.counts.accepted > before, "a knock at the door")
        assert to_door.counts.accepted == before + 1


def test_a_peer_behind_a_black_hole_is_silent_and_comes_back(made: Devices) -> None:
    one, two = made.start("one", silent_s=0.5), made.start("two", listens=False, silent_s=0.5)
    with relayed(one, two) as (to_door, line):
        for relay in (to_door, line):
            relay.black_hole()
        for device, peer in ((one, "two"), (two, "one")):
            until(device, peer, SILENT)
        for relay in (to_door, line):
            relay.heal()
        until(one, "two", UP)
        until(two, "one", UP)


def test_a_round_trip_is_what_the_way_takes_and_not_what_the_other_side_waits(
    made: Devices,
) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    with relayed(one, two) as (_, line):
        wait_until(lambda: _trip_s(two) is not None, "a round trip")
        assert _trip_s(two) < 0.02
        line.to_target.latency_s = line.to_client.latency_s = 0.03
        wait_until(lambda: _trip_s(two) > 0.06, "the latency is seen")
        # Heartbeats are 50 ms apart: what they waited for at the other side is no part of it.
        assert 0.06 < _trip_s(two) < 0.09


@pytest.mark.parametrize("way", ["to_target", "to_client"])
def test_bytes_that_were_changed_on_the_way_are_not_taken(made: Devices, way: str) -> None:
    # Nobody waits for it to be silent: libzmq ends such a connection, and another one is made.
    one, two = (
        made.start("one", silent_s=30, gone_s=60),
        made.start("two", listens=False, silent_s=30, gone_s=60),
    )
    with relayed(one, two) as (_, line):
        direction = getattr(line, way)
        for at in (3, 7, 11, 50, 90):
            before = line.counts.flipped
            direction.flip_after(at)
            wait_until(partial(_has_flipped, line, before), "the flip")
        wait_until(lambda: line.counts.accepted >= 2, "a new connection")
        seen = status_of(two, "one").round_trip_s
        wait_until(lambda: status_of(two, "one").round_trip_s != seen, "heartbeats in both ways")
        until(one, "two", UP)
        until(two, "one", UP)
        assert status_of(one, "two").offences == status_of(two, "one").offences == 0


def test_names_and_keys_do_not_cross_in_the_clear(made: Devices) -> None:
    seen = bytearray()
    one, two = made.start("name-of-one"), made.start("name-of-two", listens=False)
    with relayed(one, two) as (to_door, line):
        for relay in (to_door, line):
            relay.to_target.tap = relay.to_client.tap = seen.extend
        line.cut()
        wait_until(lambda: line.counts.accepted == 2, "a new connection")
        until(one, "name-of-two", UP)
        one.remove("name-of-two")
        until(two, "name-of-one", GONE)
    assert b"CURVE" in seen  # the greeting of ZMTP names the mechanism
    for key in (one.keys, two.keys):
        assert raw_key(key.public) not in seen
        assert key.public.encode() not in seen
        assert key.secret.raw not in seen
    for text in (b"name-of", b"hello", b"beat", b"goodbye", b"0.1.0"):
        assert text not in seen


def _has_flipped(relay: Relay, before: int) -> bool:
    return relay.counts.flipped > before


def _is_reached_at(device: Peering, name: str, wanted: list[str]) -> bool:
    return list(map(str, device.book.find(name).endpoints)) == wanted


def _knows(device: Peering, key: PublicKey) -> bool:
    return device.book.find("one").keys == (key,)


def _trip_s(device: Peering) -> Any:
    return status_of(device, "one").round_trip_s
