"""A peer with several addresses is reached at the one that works best. Relays stand for networks of
different speed; all sockets are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_agent.agent import gauging, roaming
from edge_agent.agent.peering import Peering
from edge_agent.endpoints import Endpoint
from edge_agent.peers import Peer, PeerCondition
from edge_agent.transport.curve import keys_of
from edge_agent.wire.peering import Refused, Sound, Sounded, Welcome
from edge_agent.wire.tokens import read_token
from tests.agent.made_peers import (
    Devices,
    admitted,
    endpoint_of,
    status_of,
    stranger,
    until,
)
from tests.agent.test_contents import fetched, offered
from tests.relay import Relay
from tests.system.running import wait_until

UP, SILENT = PeerCondition.UP, PeerCondition.SILENT
SLOW, FAST = "127.0.0.2", "127.0.0.3"


@dataclass(frozen=True, slots=True)
class Way:
    """To a device by one of its addresses: its door, and the sockets of one peer."""

    relays: tuple[Relay, ...]

    def limit(self, bytes_per_s: float | None) -> None:
        for relay in self.relays:
            relay.to_client.bytes_per_s = relay.to_target.bytes_per_s = bytes_per_s

    def delay(self, latency_s: float) -> None:
        for relay in self.relays:
            relay.to_client.latency_s = relay.to_target.latency_s = latency_s

    def cut(self) -> None:
        for relay in self.relays:
            relay.black_hole()

    def heal(self) -> None:
        for relay in self.relays:
            relay.heal()


@dataclass(frozen=True, slots=True)
class Pair:
    """One device that listens, another one that dials it, and the two ways between them."""

    one: Peering
    two: Peering
    slow: Way
    fast: Way

    def is_at(self, host: str) -> bool:
        """Whether the second is connected at this address, and the first is up."""
        return self.place == host and status_of(self.two, "one").condition is UP

    @property
    def place(self) -> str | None:
        """Where the second is connected, also while a heartbeat is late."""
        endpoint = status_of(self.two, "one").endpoint
        return None if endpoint is None else endpoint.host


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST_S", 0.1), ("EVERY_S", 0.4), ("AGAIN_S", 0.1), ("BETWEEN_S", 0.0)):
        monkeypatch.setattr(roaming, name, value)
    monkeypatch.setattr(roaming, "TRIAL_S", 2.0)
    monkeypatch.setattr(roaming, "REST_S", 0.2)
    monkeypatch.setattr("edge_agent.agent.door.MESSAGES_PER_S", 1000.0)


@pytest.fixture
def pair(made: Devices) -> Iterator[Pair]:
    """Two that met on the slow way, of 1.25 MB/s; the other one has ten times as much."""
    one = made.start("one", silent_s=0.5)
    two = made.start("two", listens=False, silent_s=0.5)
    door = endpoint_of(one)
    one.add(Peer(key=two.keys.public, name="two"))
    one.own_endpoints = tuple  # type: ignore[method-assign]
    with stranger(two.keys) as scout:
        welcome = scout.ask_door(one, scout.hello())
        assert isinstance(welcome, Welcome)
    with ExitStack() as relays:

        def way(host: str) -> Way:
            first = relays.enter_context(Relay((door.host, door.port), at=(host, door.port)))
            ports = (welcome.port, welcome.content_port)
            others = [Relay((door.host, port), at=(host, port)) for port in ports]
            return Way((first, *map(relays.enter_context, others)))

        slow, fast = way(SLOW), way(FAST)
        slow.limit(1.25e6)
        fast.limit(12.5e6)
        fast.delay(0.2)
        places = tuple(Endpoint(host=host, port=door.port) for host in (SLOW, FAST))
        two.add(Peer(key=one.keys.public, name="one", endpoints=places))
        found = Pair(one, two, slow, fast)
        wait_until(lambda: found.is_at(SLOW), "they met on the slow way")
        yield found
        two.stop()


def test_a_connection_moves_to_the_faster_way_and_nobody_misses_a_heartbeat(pair: Pair) -> None:
    since_s = status_of(pair.one, "two").for_s
    pair.fast.delay(0.0)
    wait_until(lambda: pair.is_at(FAST), "the faster way")
    for device, peer in ((pair.one, "two"), (pair.two, "one")):
        status = status_of(device, peer)
        assert (status.condition, status.offences) == (UP, 0)
        assert status.for_s >= since_s

    # What is measured from now on is of that way, and it stays there.
    def is_measured() -> bool:
        found = status_of(pair.two, "one").receive_bytes_per_s
        return found is not None and 9e6 < found < 16e6

    wait_until(is_measured, "its goodput")
    for _ in range(50):
        assert pair.place == FAST
        wait_until(lambda: status_of(pair.two, "one").round_trip_s is not None, "a round trip")


@pytest.mark.long
def test_when_the_faster_way_is_cut_the_other_one_is_used_until_it_heals(pair: Pair) -> None:
    pair.fast.delay(0.0)
    wait_until(lambda: pair.is_at(FAST), "the faster way")
    pair.fast.cut()
    until(pair.two, "one", SILENT)
    wait_until(lambda: pair.is_at(SLOW), "the other way")
    pair.fast.heal()
    wait_until(lambda: pair.is_at(FAST), "the faster way again")


@pytest.mark.long
def test_a_way_that_is_little_better_is_no_reason_to_move(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    before = roaming.Roaming._decide

    def decide(self: roaming.Roaming, now_s: float) -> None:
        tried.append(now_s)
        before(self, now_s)

    monkeypatch.setattr(roaming.Roaming, "_decide", decide)
    # So slow that the load of the machine hardly counts.
    pair.slow.limit(1e6)
    pair.fast.limit(1.25e6)
    tried.clear()
    wait_until(lambda: len(tried) >= 1, "the end of what was tried when it was much faster")
    pair.fast.delay(0.0)
    tried.clear()
    wait_until(lambda: len(tried) >= 3, "reviews")
    assert pair.place == SLOW


@pytest.mark.long
def test_a_transfer_of_content_is_not_broken_by_a_move(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauging, "FIRST_S", 1000.0)
    content = bytes(2_500_000)
    sha256 = offered(pair.one, pair.two, tmp_path, content)
    pair.fast.delay(0.0)
    # It takes two seconds, in which there are several trials.
    assert fetched(pair.two, pair.one, tmp_path / "to", sha256, len(content)) == content
    wait_until(lambda: pair.is_at(FAST), "the faster way")


def test_a_door_sends_peers_what_they_ask_for_and_others_nothing(made: Devices) -> None:
    one = made.start("one")
    with stranger() as peer, stranger() as other:
        admitted(one, peer)
        assert peer.ask_door(one, Sound(1000)) == Sounded(bytes(1000))
        assert other.is_refused(one)
        # A token lets nobody ask for that.
        invited = keys_of(read_token(one.invite(60)).secret)
        assert isinstance(other.ask_door(one, Sound(1), invited), Refused)
