"""Links for planning, made of what devices measured and told each other."""

from __future__ import annotations

from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.known_peers import KnownPeer, MeasuredLink, measured_links
from edge_agent.peers import (
    Gauged,
    Peer,
    PeerCondition,
    PeerLink,
    PeerState,
    PeerStatus,
    public_key,
)

TWO = Peer(key=public_key(b"2" * 32), name="two")
THREE = Peer(key=public_key(b"3" * 32), name="three")


def known(
    peer: Peer,
    *links: PeerLink,
    trip_s: float | None = None,
    receive: float | None = None,
    send: float | None = None,
) -> KnownPeer:
    status = PeerStatus(
        peer=peer,
        condition=PeerCondition.UP,
        for_s=1.0,
        round_trip_s=trip_s,
        receive_bytes_per_s=receive,
        receive_age_s=3.0,
        send_bytes_per_s=send,
        send_age_s=7.0,
        links=links,
    )
    return KnownPeer(status=status, profile=None)


def told(
    of: DeviceId, trip_s: float = 0.1, receive: Gauged | None = None, send: Gauged | None = None
) -> PeerLink:
    return PeerLink(device=of, round_trip_s=trip_s, receive=receive, send=send)


def gauged(bytes_per_s: float, age_s: float = 1.0) -> Gauged:
    return Gauged(bytes_per_s=bytes_per_s, age_s=age_s)


def found(*peers: KnownPeer) -> dict[tuple[str, str], MeasuredLink]:
    links = measured_links(peers)
    assert len({(m.link.source, m.link.target) for m in links}) == len(links)
    return {(m.link.source, m.link.target): m for m in links}


def test_nothing_is_known_of_a_peer_that_is_not_there() -> None:
    assert found(known(TWO)) == {}
    assert found(known(TWO, trip_s=0.1)) == {}
    assert found(known(TWO, receive=1e6)) == {}


def test_latency_is_half_a_round_trip_and_each_way_has_its_goodput() -> None:
    links = found(known(TWO, trip_s=0.02, receive=1e6, send=2e6))
    there, back = links[THIS_DEVICE, TWO.id], links[TWO.id, THIS_DEVICE]
    assert len(links) == 2
    assert (there.link.latency_s, there.link.goodput_bytes_per_s) == (0.01, 2e6)
    assert (back.link.latency_s, back.link.goodput_bytes_per_s) == (0.01, 1e6)
    assert (there.age_s, back.age_s) == (7.0, 3.0)
    assert (there.is_of_other_way, back.is_of_other_way) == (False, False)


def test_the_goodput_of_one_way_stands_for_the_other_one_and_is_called_so() -> None:
    links = found(known(TWO, trip_s=0.02, receive=1e6))
    there, back = links[THIS_DEVICE, TWO.id], links[TWO.id, THIS_DEVICE]
    assert there.link.goodput_bytes_per_s == back.link.goodput_bytes_per_s == 1e6
    assert (there.is_of_other_way, back.is_of_other_way) == (True, False)


def test_of_a_link_between_two_peers_the_newest_word_counts() -> None:
    two = known(TWO, told(THREE.id, 0.1, receive=gauged(1e6, 5.0), send=gauged(2e6)), trip_s=0.1)
    three = known(THREE, told(TWO.id, 0.2, receive=gauged(3e6, 9.0), send=gauged(4e6)), trip_s=0.1)
    links = found(two, three)
    onward, back = links[TWO.id, THREE.id], links[THREE.id, TWO.id]
    assert len(links) == 2
    # Of what two sends, three says 3e6, 9 s ago, and two 2e6, 1 s ago.
    assert (onward.link.goodput_bytes_per_s, back.link.goodput_bytes_per_s) == (2e6, 4e6)
    assert onward.link.latency_s == back.link.latency_s == 0.05


def test_the_word_of_one_peer_is_enough_and_of_strangers_nothing_is_taken() -> None:
    stranger = DeviceId("s" * 20)
    links = told(THREE.id, send=gauged(1e6)), told(stranger, send=gauged(1e9))
    found_ = found(known(TWO, *links, trip_s=0.1), known(THREE))
    assert set(found_) == {(TWO.id, THREE.id), (THREE.id, TWO.id)}


def test_statistics_are_those_that_were_told_with_their_age() -> None:
    state = PeerState(
        load_fraction=0.5,
        free_memory_bytes=1,
        speed_fraction=0.9,
        battery_fraction=0.1,
        age_s=2.0,
    )
    status = PeerStatus(peer=TWO, condition=PeerCondition.UP, for_s=0.0, state=state)
    peer = KnownPeer(status=status, profile=None)
    assert peer.statistics is not None
    assert (peer.statistics.device, peer.statistics.load_fraction) == (TWO.id, 0.5)
    assert peer.statistics_age_s == 2.0
    assert known(TWO).statistics is None
    assert known(TWO).statistics_age_s is None
