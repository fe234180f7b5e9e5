"""What becomes of connections, as libzmq tells it: the kinds that a caller may go by."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
import zmq

from edge_agent import clock
from edge_agent.endpoints import Endpoint, parse_endpoint
from edge_agent.errors import UsageError
from edge_agent.transport.watched import (
    ALL_BUT_UNREACHED,
    ALL_WITH_AN_END,
    HANDSHAKE_MS,
    MOST_EVENTS,
    Context,
    LinkEvent,
    Watched,
)

LOOPBACK = Endpoint(host="127.0.0.1", port=0)
CAME, OPEN, ENDED = LinkEvent.CAME, LinkEvent.OPEN, LinkEvent.ENDED


class Made:
    """Makes sockets that are closed with the test."""

    def __init__(self) -> None:
        self._context: Context = zmq.Context()
        self._sockets: list[Watched] = []

    def socket(self, monitored: int = ALL_BUT_UNREACHED) -> Watched:
        found = Watched(
            self._context,
            zmq.DEALER,
            max_bytes=1000,
            high_water=4,
            linger_ms=0,
            monitored=monitored,
        )
        found.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._sockets.append(found)
        return found

    def pair(self) -> tuple[Watched, Watched]:
        listening, dialling = self.socket(), self.socket()
        dialling.connect(listening.bind(LOOPBACK))
        for one in (listening, dialling):
            told(one, OPEN)
        return listening, dialling

    def end(self) -> None:
        for one in self._sockets:
            if not one.socket.closed:
                one.close()
        self._context.destroy(linger=0)


@pytest.fixture
def made() -> Iterator[Made]:
    found = Made()
    yield found
    found.end()


def told(by: Watched, last: LinkEvent, timeout_s: float = 10.0) -> list[tuple[LinkEvent, int]]:
    """What it tells up to that event."""
    found: list[tuple[LinkEvent, int]] = []
    until_s = clock.monotonic_s() + timeout_s
    while last not in [event for event, _ in found]:
        assert clock.monotonic_s() < until_s, found
        by.monitor.poll(100)
        found += by.numbered_events()
    return found


def test_a_connection_comes_opens_and_ends_and_is_known_by_its_number(made: Made) -> None:
    listening, dialling = made.socket(), made.socket()
    dialling.connect(listening.bind(LOOPBACK))
    (came, number), (opened, _) = told(listening, OPEN)
    assert (came, opened) == (CAME, OPEN)
    assert [event for event, _ in told(dialling, OPEN)] == [OPEN]
    assert dialling.events() == []
    dialling.close()
    assert told(listening, ENDED) == [(ENDED, number)]


def test_what_is_no_zeromq_comes_and_ends_under_one_number(made: Made) -> None:
    listening = made.socket(ALL_WITH_AN_END)
    at = listening.bind(LOOPBACK)
    for text in (b"GET / HTTP/1.1\r\n\r\n" * 9, b"", b"\xff" * 64, bytes(64)):
        with suppress(OSError), socket.create_connection((at.host, at.port), timeout=10) as raw:
            raw.sendall(text)
        found = told(listening, ENDED)
        assert found[0] == (CAME, found[-1][1])
        assert OPEN not in [event for event, _ in found]


def test_who_reaches_nobody_is_told_only_if_it_asks(made: Made) -> None:
    with socket.socket() as held:
        # It holds the port and does not listen.
        held.bind((LOOPBACK.host, 0))
        at = LOOPBACK.at(held.getsockname()[1])
        asking, other = made.socket(ALL_WITH_AN_END), made.socket()
        for one in (other, asking):
            one.connect(at)
        assert [event for event, _ in told(asking, LinkEvent.UNREACHED)] == [LinkEvent.UNREACHED]
        assert other.events() == []


def test_an_address_that_cannot_be_listened_at_says_why(made: Made) -> None:
    taken = made.socket().bind(LOOPBACK)
    with pytest.raises(UsageError, match="another program listens there"):
        made.socket().bind(taken)
    with pytest.raises(UsageError, match="no network interface of this device has that address"):
        made.socket().bind(Endpoint(host="192.0.2.1", port=0))


def test_where_it_listens_is_told_with_the_port(made: Made) -> None:
    at = made.socket().bind(LOOPBACK)
    assert at.host == LOOPBACK.host
    assert at.port
    if socket.has_ipv6:
        with suppress(UsageError):
            assert made.socket().bind(Endpoint(host="::1", port=0)).host == "::1"


def test_parts_come_as_they_were_sent_or_not_at_all(made: Made) -> None:
    listening, dialling = made.pair()
    assert listening.receive_parts() is None
    sent: list[list[bytes | bytearray | memoryview]] = [
        [b"x"],
        [b"", b""],
        [b"a", bytearray(b"b"), memoryview(b"c")],
    ]
    for parts in sent:
        assert dialling.send_parts(parts, copy=True)
        assert listening.socket.poll(5000)
        found = listening.receive_parts()
        assert found is not None
        assert [part.bytes for part in found] == [bytes(part) for part in parts]
    assert listening.receive_parts() is None


def test_nothing_blocks_when_too_much_waits(made: Made) -> None:
    alone = made.socket()
    alone.bind(LOOPBACK)
    assert not alone.send_parts([b"x"], copy=True)
    _, dialling = made.pair()
    count = 0
    while dialling.send_parts([bytes(1000), b"x"], copy=True):
        count += 1
        assert count < 1_000_000
    assert not dialling.send_parts([b"x"], copy=False)


def test_a_part_that_is_too_large_ends_the_connection(made: Made) -> None:
    listening, dialling = made.pair()
    dialling.send_parts([bytes(1000)], copy=True)
    assert listening.socket.poll(5000)
    dialling.send_parts([bytes(1001)], copy=True)
    told(listening, ENDED)
    told(dialling, ENDED)


def test_many_events_are_told_in_several_turns(made: Made) -> None:
    listening = made.socket()
    at = listening.bind(LOOPBACK)
    for _ in range(MOST_EVENTS):
        socket.create_connection((at.host, at.port), timeout=10).close()
    found: list[LinkEvent] = []
    until_s = clock.monotonic_s() + 10
    while found.count(ENDED) < MOST_EVENTS:
        assert clock.monotonic_s() < until_s
        news = listening.events()
        assert len(news) <= MOST_EVENTS
        found += news
    assert found.count(CAME) == MOST_EVENTS


def test_events_that_nobody_reads_hold_up_neither_connections_nor_the_end(made: Made) -> None:
    listening, dialling = made.pair()
    at = parse_endpoint("bound", listening.socket.get_string(zmq.LAST_ENDPOINT))
    # Two events each; libzmq's own limit is reached by 1000.
    for _ in range(1200):
        socket.create_connection((at.host, at.port), timeout=10).close()
    assert dialling.send_parts([b"x"], copy=True)
    assert listening.socket.poll(5000)
    listening.close()


@pytest.mark.long
def test_who_proves_nothing_is_ended_in_time(made: Made) -> None:
    listening = made.socket(ALL_WITH_AN_END)
    at = listening.bind(LOOPBACK)
    with socket.create_connection((at.host, at.port), timeout=10):
        found = told(listening, ENDED, HANDSHAKE_MS / 1000 + 3)
    assert [event for event, _ in found] == [CAME, LinkEvent.UNPROVEN, ENDED]
