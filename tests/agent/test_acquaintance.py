"""Devices tell each other what they can do, how they are and how their links are. All sockets are
real."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import msgspec
import psutil
import pytest

from edge_agent import clock
from edge_agent.agent import acquaintance, own_words, peering
from edge_agent.agent.company import Company
from edge_agent.agent.own_words import Sample
from edge_agent.agent.peering import Peering
from edge_agent.devices import THIS_DEVICE
from edge_agent.known_peers import KnownPeer, MeasuredLink, measured_links
from edge_agent.peers import PeerCondition
from edge_agent.telemetry import host
from edge_agent.wire.device_profiles import pack_profile
from edge_agent.wire.messages import Message
from edge_agent.wire.telling import AskProfile, Profile, Statistics, ToldGoodput, ToldLink
from tests.agent.made_peers import (
    Devices,
    RawSocket,
    Stranger,
    admitted,
    beat,
    endpoint_of,
    joined,
    status_of,
    stranger,
    until,
)
from tests.made_profiles import profile
from tests.system.running import wait_until

UP, GONE = PeerCondition.UP, PeerCondition.GONE
PI, NANO = profile("pi"), profile("nano", 4 << 30)
STATISTICS = Statistics(
    load_fraction=0.25,
    free_memory_bytes=1 << 30,
    speed_fraction=0.5,
    battery_fraction=0.75,
    profile=None,
    links=(),
)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds comes within a moment."""
    monkeypatch.setattr(peering, "SAMPLE_S", 0.05)
    monkeypatch.setattr(acquaintance, "TOLD_S", 0.1)


@pytest.fixture
def one(made: Devices) -> Peering:
    return made.start("one")


@pytest.fixture
def bad(one: Peering) -> Iterator[Stranger]:
    """A device that the first one trusts, and of which nothing is ours but the sockets."""
    with stranger() as found:
        admitted(one, found, "bad")
        yield found


def line_to(one: Peering, bad: Stranger) -> RawSocket:
    made = bad.connect(one)
    bad.say(made, beat())
    until(one, "bad", UP)
    return made


def known(device: Peering, name: str) -> KnownPeer:
    return next(peer for peer in Company(device).known() if peer.status.peer.name == name)


def knows(device: Peering, name: str, wanted: object) -> None:
    """Wait until it knows that profile of the peer."""
    wait_until(lambda: known(device, name).profile == wanted, f"the profile of {name}")


# ---- profiles


def test_each_knows_what_the_other_can_do_and_hears_when_that_changes(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    one.own.learn(PI, 1.0)
    joined(one, two)
    knows(two, "one", PI)
    assert known(one, "two").profile is None
    assert Company(two).own_profile() is None
    two.own.learn(NANO, 1.0)
    assert Company(two).own_profile() == NANO
    knows(one, "two", NANO)
    one.own.learn(profile("pi5"), 1.0)
    knows(two, "one", profile("pi5"))
    summary = known(one, "two").status.profile
    assert summary is not None
    assert (summary.name, summary.cores, summary.memory_bytes) == ("nano, Cortex-A76", 4, 4 << 30)
    assert [unit.id for unit in summary.units] == ["cpu", "npu"]


def _told_profile(device: Peering, name: str) -> bool:
    """Whether the peer said which profile it has."""
    session = device.session_of(device.book.find(name).key)
    assert session is not None
    heard = session.acquaintance.heard_last
    return heard is not None and heard.profile is not None


def test_after_a_start_the_profile_comes_from_disk_while_the_peer_is_away(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    one.own.learn(PI, 1.0)
    joined(one, two)
    knows(two, "one", PI)
    folder = made.folder / "two" / "peer-profiles"
    wait_until(lambda: list(folder.glob("*.bin")), "the file")
    at, id_ = endpoint_of(one), one.keys.device
    two.stop()
    one.stop()
    two = made.start("two", listens=False)
    assert known(two, "one").status.condition is GONE
    assert known(two, "one").profile == PI
    assert known(two, "one").statistics is None
    two.stop()
    # Nor is it asked for again.
    asked: list[object] = []
    monkeypatch.setattr(acquaintance.Acquaintance, "asked", asked.append)
    one, two = made.start("one", at=at), made.start("two", listens=False)
    one.own.learn(PI, 1.0)
    until(two, "one", UP)
    wait_until(lambda: _told_profile(two, "one"), "its hash")
    clock.sleep_s(0.2)
    assert asked == []
    assert [path.stem for path in folder.iterdir()] == [id_]


def test_a_peer_that_is_removed_is_forgotten_also_on_disk(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    one.own.learn(PI, 1.0)
    joined(one, two)
    knows(two, "one", PI)
    folder = made.folder / "two" / "peer-profiles"
    wait_until(lambda: list(folder.glob("*.bin")), "the file")
    two.remove("one")
    assert Company(two).known() == ()
    wait_until(lambda: not list(folder.iterdir()), "it is gone")


def test_a_profile_follows_a_key_that_was_rotated(made: Devices) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    one.own.learn(PI, 1.0)
    joined(one, two)
    knows(two, "one", PI)
    one.rotate(is_forced=False)
    wait_until(lambda: two.book.find("one").keys == (one.keys.public,), "the new key")
    knows(two, "one", PI)


# ---- how they are


def test_each_knows_how_the_other_is_and_how_long_ago_it_was_so(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = made.start("one"), made.start("two", listens=False)
    sample = Sample(
        load_fraction=0.5, free_memory_bytes=3 << 30, speed_fraction=0.4, battery_fraction=0.9
    )
    monkeypatch.setattr(one.own, "look", lambda: sample)
    one.own.learn(NANO, 0.8)
    joined(one, two)
    wait_until(lambda: known(two, "one").statistics is not None, "statistics")
    knows(two, "one", NANO)
    found = known(two, "one").statistics
    assert found is not None
    assert (found.device, found.load_fraction) == (one.keys.device, 0.5)
    assert (found.free_memory_bytes, found.battery_fraction) == (3 << 30, 0.9)
    # Half of what it could do when it was measured.
    wait_until(lambda: _speed(two) == pytest.approx(0.5), "the speed")
    age_s = known(two, "one").statistics_age_s
    assert age_s is not None
    assert 0 <= age_s < 2
    one.stop()
    until(two, "one", GONE)
    assert known(two, "one").statistics is None


def _speed(device: Peering) -> float:
    found = known(device, "one").statistics
    assert found is not None
    return found.speed_fraction


def test_what_is_measured_here_is_what_the_system_says(one: Peering) -> None:
    sample = one.own.look()
    assert sample.free_memory_bytes == pytest.approx(host.free_memory_bytes(), rel=0.2)
    assert 0 <= sample.load_fraction <= 1


def test_what_did_not_change_is_told_seldom_and_what_did_at_once(
    one: Peering, bad: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquaintance, "TOLD_S", 1000.0)
    sample = Sample(
        load_fraction=0.5, free_memory_bytes=1 << 30, speed_fraction=None, battery_fraction=None
    )
    monkeypatch.setattr(one.own, "look", lambda: sample)
    line = line_to(one, bad)
    heard: list[Statistics] = []

    def is_told(load_fraction: float) -> bool:
        raw = line.receive(0.05)
        message = None if raw is None else bad.codec.from_peer.decode(raw[1:])
        if isinstance(message, Statistics):
            heard.append(message)
        return bool(heard) and heard[-1].load_fraction == load_fraction

    wait_until(partial(is_told, 0.5), "what it is like")
    monkeypatch.setattr(one.own, "look", lambda: replace(sample, load_fraction=0.55))
    until_s = clock.monotonic_s() + 0.5
    while clock.monotonic_s() < until_s:
        assert not is_told(0.55)
    monkeypatch.setattr(one.own, "look", lambda: replace(sample, load_fraction=0.9))
    wait_until(partial(is_told, 0.9), "the news")
    assert len(heard) == 2


# ---- links


def test_the_owner_knows_the_links_between_two_peers_of_it(made: Devices) -> None:
    one = made.start("one")
    two, three = made.start("two"), made.start("three", listens=False)
    joined(one, two)
    joined(one, three)
    joined(two, three)
    ids = (THIS_DEVICE, two.keys.device, three.keys.device)
    wanted = {(a, b) for a in ids for b in ids if a != b}

    def links() -> tuple[MeasuredLink, ...]:
        return measured_links(Company(one).known())

    def ends() -> set[tuple[str, str]]:
        return {(found.link.source, found.link.target) for found in links()}

    def are_all_known() -> bool:
        return ends() == wanted and not any(found.is_of_other_way for found in links())

    wait_until(are_all_known, "all links, each way")
    for found in links():
        assert found.link.goodput_bytes_per_s > 1e6
        assert 0 <= found.link.latency_s < 0.5
        assert 0 <= found.age_s < 20
    (own,) = known(one, "two").links
    assert own.device == three.keys.device
    three.stop()
    until(one, "three", GONE)
    until(two, "three", GONE)
    wait_until(lambda: len(ends()) == 2, "links of who is gone are gone")


# ---- who tells nonsense


def say(bad: Stranger, line: RawSocket, message: Message) -> None:
    assert bad.say(line, message)


@pytest.mark.parametrize(
    "field",
    [
        {"load_fraction": float("nan")},
        {"load_fraction": -0.1},
        {"free_memory_bytes": 1e30},
        {"free_memory_bytes": -1},
        {"speed_fraction": float("inf")},
        {"links": [{"device": "a" * 20, "round_trip_s": 0.0}] * 3000},
    ],
    ids=["nan", "load", "too much memory", "negative memory", "speed", "many links"],
)
def test_a_peer_that_lies_is_counted_and_what_it_said_before_holds(
    one: Peering, bad: Stranger, field: dict[str, object]
) -> None:
    line = line_to(one, bad)
    say(bad, line, STATISTICS)
    wait_until(lambda: known(one, "bad").statistics is not None, "statistics")
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(STATISTICS))
    assert line.send(b"\x01" + msgspec.msgpack.encode(plain | field))
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")
    statistics = known(one, "bad").statistics
    assert statistics is not None
    assert statistics.load_fraction == 0.25
    say(bad, line, replace_struct(STATISTICS, load_fraction=0.5))
    wait_until(lambda: _load(one) == 0.5, "it is listened to")
    assert one.counters["internal errors with peers"] == 0


def replace_struct(message: Statistics, **changes: object) -> Statistics:
    return msgspec.structs.replace(message, **changes)


def _load(device: Peering) -> float | None:
    found = known(device, "bad").statistics
    return None if found is None else found.load_fraction


def test_a_profile_that_makes_no_sense_is_refused_once_and_not_asked_for_again(
    one: Peering, bad: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquaintance, "ASK_AGAIN_S", 0.05)
    line = line_to(one, bad)
    nonsense = pack_profile(PI).replace(b"cpu", b"npu")
    digest = hashlib.sha256(nonsense).digest()
    say(bad, line, replace_struct(STATISTICS, profile=digest))
    await_question(bad, line)
    say(bad, line, Profile(nonsense))
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")
    assert known(one, "bad").profile is None
    with pytest.raises(AssertionError, match="nobody asks"):
        await_question(bad, line, 0.5)
    # One that does is welcome.
    packed = pack_profile(PI)
    say(bad, line, replace_struct(STATISTICS, profile=hashlib.sha256(packed).digest()))
    await_question(bad, line)
    say(bad, line, Profile(packed))
    knows(one, "bad", PI)
    assert status_of(one, "bad").condition in (UP, PeerCondition.SLOW)


def test_a_profile_that_did_not_come_is_asked_for_again(
    one: Peering, bad: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquaintance, "ASK_AGAIN_S", 0.1)
    line = line_to(one, bad)
    packed = pack_profile(PI)
    say(bad, line, replace_struct(STATISTICS, profile=hashlib.sha256(packed).digest()))
    await_question(bad, line)
    await_question(bad, line)
    # What it sends is another one, as after a change: it is not taken, and asked for again.
    say(bad, line, Profile(pack_profile(NANO)))
    await_question(bad, line)
    say(bad, line, Profile(packed))
    knows(one, "bad", PI)
    assert status_of(one, "bad").offences == 0


def test_a_profile_that_nobody_asked_for_is_an_offence(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    say(bad, line, Profile(pack_profile(PI)))
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")
    assert known(one, "bad").profile is None


def test_a_link_from_a_device_to_itself_is_an_offence(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    link = ToldLink(device=bad.keys.device, round_trip_s=0.0, send=ToldGoodput(1e6, 0.0))
    say(bad, line, replace_struct(STATISTICS, links=(link,)))
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")
    assert known(one, "bad").statistics is None


def test_more_free_memory_than_there_is_is_not_believed(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    packed = pack_profile(NANO)
    digest = hashlib.sha256(packed).digest()
    say(bad, line, replace_struct(STATISTICS, free_memory_bytes=2**48, profile=digest))
    await_question(bad, line)
    say(bad, line, Profile(packed))
    knows(one, "bad", NANO)
    statistics = known(one, "bad").statistics
    assert statistics is not None
    assert statistics.free_memory_bytes == 4 << 30


def test_who_asks_for_a_profile_that_is_not_known_gets_no_answer(
    one: Peering, bad: Stranger
) -> None:
    line = line_to(one, bad)
    say(bad, line, AskProfile())
    until_s = clock.monotonic_s() + 0.3
    while clock.monotonic_s() < until_s:
        raw = line.receive(0.1)
        assert raw is None or not isinstance(bad.codec.from_peer.decode(raw[1:]), Profile)
    assert status_of(one, "bad").offences == 0


def await_question(bad: Stranger, line: RawSocket, timeout_s: float = 5.0) -> None:
    """Wait until the profile of the bad device is asked for."""
    until_s = clock.monotonic_s() + timeout_s
    while clock.monotonic_s() < until_s:
        raw = line.receive(0.1)
        if raw is not None and isinstance(bad.codec.from_peer.decode(raw[1:]), AskProfile):
            return
    raise AssertionError("nobody asks")


# ---- what it costs


@pytest.mark.long
@pytest.mark.alone
def test_looking_and_telling_take_next_to_nothing_of_a_core() -> None:
    sampler = own_words.Sampler(own_words.only_the_agent)
    sampler.look()
    process, count = psutil.Process(), 200
    before = process.cpu_times()
    for _ in range(count):
        sampler.look()
    after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    assert used_s / count / own_words.SAMPLE_S < 0.005
