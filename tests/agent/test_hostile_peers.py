"""Devices that are trusted and break the rules, or are not and try: each is told, counted, bounded,
and disturbs nobody else. All sockets are real."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from edge_agent import clock
from edge_agent.agent import door, kept_words, peer_sessions
from edge_agent.agent.offences import PATIENCE
from edge_agent.agent.peering import Peering
from edge_agent.peers import KeyPair, Peer, PeerCondition, device_id
from edge_agent.transport.curve import keys_of, make_keys
from edge_agent.transport.peer_sockets import HIGH_WATER
from edge_agent.wire.contents import AskProbe, ContentCodec
from edge_agent.wire.peering import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Beat,
    DoorAnswer,
    Goodbye,
    Hello,
    Join,
    Joined,
    Leaving,
    NewKey,
    PeerCodec,
    PeerMessage,
    Refused,
    Welcome,
    decode_from,
)
from edge_agent.wire.tokens import Token, read_token
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
from tests.system.running import wait_until

GUEST = "guest"
UP, BARRED, GONE = PeerCondition.UP, PeerCondition.BARRED, PeerCondition.GONE


@pytest.fixture
def one(made: Devices) -> Peering:
    """The device that is attacked; it has a peer that behaves."""
    found = made.start("one")
    joined(found, made.start("good", listens=False))
    return found


@pytest.fixture
def bad(one: Peering) -> Iterator[Stranger]:
    """A device that the first one trusts."""
    with stranger() as found:
        admitted(one, found, "bad")
        yield found


@pytest.fixture(autouse=True)
def _others_are_not_disturbed(one: Peering) -> Iterator[None]:
    """Through all of it the good peer is up, and was so from the beginning."""
    for_s, at_s = status_of(one, "good").for_s, clock.monotonic_s()
    yield
    status = status_of(one, "good")
    assert status.condition is UP
    assert status.for_s == pytest.approx(for_s + clock.monotonic_s() - at_s, abs=0.5)
    assert status.offences == 0
    assert one.counters["internal errors with peers"] == 0


def line_to(one: Peering, bad: Stranger) -> RawSocket:
    """A connection of the bad device over which its heartbeat came."""
    made = bad.connect(one)
    bad.say(made, beat())
    until(one, "bad", UP)
    return made


# ---- who is not on the list


def test_an_unknown_key_gets_nothing_and_is_counted(one: Peering) -> None:
    with stranger() as unknown:
        before = one.counters["connections with unknown keys refused"]
        assert unknown.is_refused(one)
        assert one.counters["connections with unknown keys refused"] == before + 1
        # Nor at the socket of a peer, whose port anybody can find.
        port = _port_of_good(one)
        line = unknown.dial(endpoint_of(one).at(port), one.keys.public)
        unknown.say(line, beat())
        assert line.receive(0.3) is None
        assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in line.events()


def test_a_peer_gets_nothing_at_the_socket_of_another_one(one: Peering, bad: Stranger) -> None:
    line = bad.dial(endpoint_of(one).at(_port_of_good(one)), one.keys.public)
    bad.say(line, Goodbye(Leaving.STOPPED))
    assert line.receive(0.3) is None
    assert zmq.EVENT_HANDSHAKE_FAILED_AUTH in line.events()


def test_a_client_without_encryption_gets_nothing(one: Peering) -> None:
    with stranger() as plain:
        for port in (endpoint_of(one).port, _port_of_good(one)):
            line = plain.dial(endpoint_of(one).at(port), one.keys.public, is_plain=True)
            plain.say(line, plain.hello())
            assert line.receive(0.3) is None
            assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in line.events()


def test_whoever_only_speaks_tcp_reads_a_greeting_and_is_cut_off(one: Peering) -> None:
    port = endpoint_of(one).port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: one\r\n\r\n" * 4)
        said = b""
        while True:
            try:
                found = raw.recv(4096)
            except ConnectionResetError:
                break
            if not found:
                break
            said += found
    # The greeting of ZMTP 3 (RFC 23) has 64 bytes; libzmq says no more than that.
    assert len(said) <= 64
    for text in (one.keys.public.encode(), b"one", b"good", b"0.1"):
        assert text not in said


@contextmanager
def crowd(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections to a port on which nothing is said."""
    with ExitStack() as held:
        yield [
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(count)
        ]


def has_ended(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.settimeout(0)
    try:
        while connection.recv(4096):
            pass  # the greeting of ZMTP
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_of_a_crowd_at_the_door_the_oldest_are_ended_and_who_is_trusted_gets_in(
    one: Peering, bad: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    surplus = 40
    with crowd(endpoint_of(one).port, door.MOST_CONNECTIONS + surplus) as held:
        wait_until(lambda: all(map(has_ended, held[:surplus])), "the oldest are ended")
        assert not any(map(has_ended, held[surplus:]))
        assert one.counters["connections without a proof ended"] == surplus
        assert isinstance(bad.ask_door(one, bad.hello()), Welcome)
    told = f"more than {door.MOST_CONNECTIONS} connections at {endpoint_of(one)} prove no key"
    assert [told in record.message for record in caplog.records].count(True) == 1


@pytest.mark.parametrize("kind", ["port", "content_port"])
def test_a_crowd_at_the_sockets_of_a_peer_costs_it_nothing(
    one: Peering, bad: Stranger, kind: str
) -> None:
    line = line_to(one, bad)
    welcome = bad.ask_door(one, bad.hello())
    assert isinstance(welcome, Welcome)
    content = bad.dial(endpoint_of(one).at(welcome.content_port), one.keys.public)
    content.send(ContentCodec().encode(AskProbe(number=1, length_bytes=8)))
    assert content.receive() is not None
    line.events()
    content.events()
    surplus = 40
    with crowd(getattr(welcome, kind), peer_sessions.MOST_CONNECTIONS + surplus) as held:
        wait_until(lambda: all(map(has_ended, held[:surplus])), "the oldest are ended")
        assert one.counters["connections without a proof ended"] == surplus
        content.send(ContentCodec().encode(AskProbe(number=2, length_bytes=8)))
        assert content.receive() is not None
        # Heartbeats go on in both directions.
        bad.say(line, beat(2))
        wait_until(lambda: _echoed(bad, line) == 2, "it is heard")
    assert line.events() | content.events() == set()
    assert status_of(one, "bad").offences == 0


def test_a_peer_that_holds_many_proven_connections_offends(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    welcome = bad.ask_door(one, bad.hello())
    assert isinstance(welcome, Welcome)
    line.events()
    at = endpoint_of(one).at(welcome.port)
    for number in range(2, 2 * peer_sessions.MOST_CONNECTIONS + 1):
        more = bad.dial(at, one.keys.public)
        bad.say(more, beat(number))
        wait_until(partial(_is_proven, more), "the connection")
    assert status_of(one, "bad").offences == 0
    bad.dial(at, one.keys.public)
    wait_until(lambda: zmq.EVENT_DISCONNECTED in line.events(), "all of them are ended")
    assert status_of(one, "bad").offences == 1
    session = one.session_of(bad.keys.public)
    assert session is not None
    assert session.offences.last == "it holds more connections than it may"


# ---- tokens


def test_a_peer_with_a_stale_token_is_told(one: Peering, bad: Stranger) -> None:
    token = read_token(one.invite(1e-3))
    clock.sleep_s(2e-3)
    answer = bad.ask_door(one, _join(bad), _keys_of(token))
    assert answer == Refused("peer-refused", "the token has expired: ask for a new one")
    assert one.counters["tokens refused"] == 1


def test_a_replayed_token_admits_nobody_else(one: Peering, bad: Stranger) -> None:
    token = read_token(one.invite(60))
    with stranger() as first:
        assert isinstance(first.ask_door(one, _join(first, "first"), _keys_of(token)), Joined)
        answer = bad.ask_door(one, _join(bad, "again"), _keys_of(token))
        used_by = device_id(first.keys.public)[:8]
    assert answer == Refused(
        "peer-refused", f"the token was used by device {used_by}… already: ask for a new one"
    )
    assert [peer.name for peer in one.book.peers] == ["good", "bad", "first"]


def test_two_that_use_one_token_at_once_are_not_both_taken(one: Peering) -> None:
    token = read_token(one.invite(60))
    with stranger() as first, stranger() as second:
        both = (first, second)
        lines = [who.dial(endpoint_of(one), one.keys.public, _keys_of(token)) for who in both]
        for who, line in zip(both, lines, strict=True):
            who.say(line, _join(who, f"name-{line is lines[0]}"))
        answers = [line.receive() for line in lines]
    kinds = [type(_decoded(raw)) for raw in answers]
    assert sorted(kind.__name__ for kind in kinds) == ["Joined", "Refused"]
    assert len(one.book.peers) == 2


def test_a_token_is_good_for_nothing_but_joining(one: Peering) -> None:
    token = read_token(one.invite(60))
    with stranger() as guest:
        answer = guest.ask_door(one, guest.hello(), _keys_of(token))
        assert answer == Refused("peer-refused", "this device does not admit that key for this")
        port = _port_of_good(one)
        line = guest.dial(endpoint_of(one).at(port), one.keys.public, _keys_of(token))
        guest.say(line, beat())
        assert line.receive(0.3) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": "x" * 52}, "protocol"),
        ({"key": "short"}, "protocol"),
        ({"name": ""}, "usage"),
        ({"name": "../up"}, "usage"),
        ({"endpoints": ("tcp://a:1",) * 17}, "protocol"),
    ],
)
def test_a_join_that_makes_no_sense_is_told_and_leaves_the_token(
    one: Peering, change: dict[str, Any], told: str
) -> None:
    token = read_token(one.invite(60))
    with stranger() as guest:
        answer = guest.ask_door(
            one, msgspec.structs.replace(_join(guest), **change), _keys_of(token)
        )
        assert isinstance(answer, Refused)
        assert answer.code == told
        assert isinstance(guest.ask_door(one, _join(guest), _keys_of(token)), Joined)


# ---- what a trusted device may not do


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        bytes([PROTOCOL]),
        bytes([PROTOCOL]) + os.urandom(64),
        bytes([PROTOCOL]) + msgspec.msgpack.encode({"kind": "load", "path": "/etc/passwd"}),
        bytes([PROTOCOL]) + msgspec.msgpack.encode({"kind": "models"}),
        bytes([PROTOCOL]) + msgspec.msgpack.encode({"kind": "beat", "number": -1}),
        bytes([PROTOCOL]) + msgspec.msgpack.encode([[[[[]]]]] * 100),
    ],
    ids=["empty", "version", "random", "load", "models", "negative", "nested"],
)
def test_garbage_is_counted_and_leads_to_a_bar(one: Peering, bad: Stranger, garbage: bytes) -> None:
    line = line_to(one, bad)
    for count in range(1, PATIENCE + 1):
        assert status_of(one, "bad").condition is not BARRED
        line.send(garbage)
        wait_until(partial(_has_offences, one, count), f"offence {count}")
    status = status_of(one, "bad")
    assert status.condition is BARRED
    assert "message not understood" in status.why
    assert status.why.endswith("nothing is taken for 30 s")
    assert one.counters["offences of peers"] == PATIENCE
    wait_until(lambda: zmq.EVENT_DISCONNECTED in line.events(), "the connection is ended")
    # At the door it reads why.
    answer = bad.ask_door(one, bad.hello())
    assert isinstance(answer, Refused)
    assert answer.code == "busy"
    assert "message not understood" in answer.message


def test_garbage_at_the_door_counts_too(one: Peering, bad: Stranger) -> None:
    knock = bad.dial(endpoint_of(one), one.keys.public)
    for _ in range(PATIENCE):
        knock.send(bytes([PROTOCOL]) + b"\xff")
        assert isinstance(_decoded(knock.receive()), Refused)
    assert status_of(one, "bad").condition is BARRED
    assert one.counters["messages at the door not understood"] == PATIENCE


def test_messages_in_several_parts_are_not_understood(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    line.send(bad.codec.encode(beat(2)), b"more")
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")


def test_another_version_of_the_protocol_is_told_and_is_no_offence(
    one: Peering, bad: Stranger
) -> None:
    knock = bad.dial(endpoint_of(one), one.keys.public)
    for _ in range(PATIENCE + 1):
        knock.send(bytes([PROTOCOL + 1]) + b"whatever comes next year")
        assert _decoded(knock.receive()) == Refused(
            "other-version",
            f"got version {PROTOCOL + 1} of the protocol between devices, want {PROTOCOL}: update "
            "edge-agent on this device",
        )
    status = status_of(one, "bad")
    assert (status.condition, status.offences) == (GONE, 0)
    assert status.why.startswith(f"got version {PROTOCOL + 1} of the protocol")


def test_what_begins_with_no_version_is_an_offence_and_asks_for_no_update(
    one: Peering, bad: Stranger
) -> None:
    knock = bad.dial(endpoint_of(one), one.keys.public)
    knock.send(b"GET / HTTP/1.1")
    assert _decoded(knock.receive()) == Refused(
        "protocol", "message not understood: it begins with 71, want a version"
    )
    assert status_of(one, "bad").offences == 1


def test_a_flood_is_held_back_and_leads_to_a_bar(
    one: Peering, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that what is held back is read on soon.
    monkeypatch.setattr(peer_sessions, "MESSAGES_PER_S", 500.0)
    with stranger() as bad:
        admitted(one, bad, "bad")
        _flood_until_barred(one, bad)


def _flood_until_barred(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    before_bytes = psutil.Process().memory_info().rss
    message = bad.codec.encode(beat(2))
    sent = 0
    until_s = clock.monotonic_s() + 20
    while status_of(one, "bad").condition is not BARRED:
        assert clock.monotonic_s() < until_s
        for _ in range(2000):
            sent += line.send(message)
    assert sent > PATIENCE * peer_sessions.MESSAGES_PER_S
    assert "more messages than it may" in status_of(one, "bad").why
    assert psutil.Process().memory_info().rss - before_bytes < 32 * 2**20


LIBZMQ_READ_BYTES = 8192
"""What libzmq reads from a connection at a time."""


def flooded(one: Peering, who: Stranger, message: bytes, keys: KeyPair) -> list[DoorAnswer]:
    """What the door answers to many messages until it ends the connection."""
    knock = who.dial(endpoint_of(one), one.keys.public, keys)
    ends = {zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_AUTH}
    until_s = clock.monotonic_s() + 10
    answers: list[DoorAnswer] = []
    while not knock.events() & ends:
        assert clock.monotonic_s() < until_s, "the door reads on"
        for _ in range(100):
            knock.send(message)
        while (raw := knock.receive(0)) is not None:
            answers.append(_decoded(raw))
    who.hang_up(knock)
    return answers


def test_a_flood_at_the_door_is_ended_and_leads_to_a_bar(
    one: Peering, bad: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MESSAGES_PER_S", 20.0)
    hello = bad.codec.encode(bad.hello())
    answers = flooded(one, bad, hello, bad.keys)
    assert {type(answer) for answer in answers} <= {Welcome}
    assert len(answers) <= door.MESSAGES_AT_ONCE + door.MESSAGES_PER_S
    assert status_of(one, "bad").offences == 1
    # It comes back at once, and is not even admitted.
    assert bad.is_refused(one)
    # What libzmq had read is taken, and no more: its queue, which it fills again when it is half
    # empty, and what came with the reads of its buffer.
    under_way = 2 * HIGH_WATER + 3 * LIBZMQ_READ_BYTES // len(hello)
    assert 1 <= one.counters["messages at the door dropped"] <= under_way
    while status_of(one, "bad").condition is not BARRED:
        flooded(one, bad, hello, bad.keys)
    assert status_of(one, "bad").offences == PATIENCE
    assert status_of(one, "bad").why.startswith("it says more at the door than it may: nothing is")


def test_a_flood_with_a_token_is_ended(
    one: Peering, bad: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    token = read_token(one.invite(60))
    with stranger() as guest:
        join = guest.codec.encode(_join(guest))
        answers = flooded(one, guest, join, _keys_of(token))
        assert {type(answer) for answer in answers} <= {Joined}
        with stranger() as other:
            assert other.is_refused(one, _keys_of(token))
    wait_until(lambda: one.book.by_key(guest.keys.public), "it has joined")
    assert [f'joined as "{GUEST}"' in r.message for r in caplog.records].count(True) == 1
    # Nobody else is held off.
    assert isinstance(bad.ask_door(one, bad.hello()), Welcome)


def test_a_message_that_is_too_large_is_an_offence(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    line.send(b"x" * (MAX_MESSAGE_BYTES + 1))
    wait_until(partial(_has_offences, one, 1), "the offence")
    session = one.session_of(bad.keys.public)
    assert session is not None
    assert session.offences.last == "got a message of 262145 bytes, want at most 262144"


def test_messages_that_libzmq_does_not_take_end_the_connection_and_then_the_patience(
    one: Peering, bad: Stranger
) -> None:
    line = line_to(one, bad)
    huge = b"x" * (2 * MAX_MESSAGE_BYTES + 1)
    line.send(huge)
    before_bytes = psutil.Process().memory_info().rss
    until_s = clock.monotonic_s() + 30
    while status_of(one, "bad").condition is not BARRED:
        assert clock.monotonic_s() < until_s
        if zmq.EVENT_HANDSHAKE_SUCCEEDED in line.events(0.1):
            line.send(huge)
    assert "connects again and again" in status_of(one, "bad").why
    assert psutil.Process().memory_info().rss - before_bytes < 32 * 2**20


def test_a_peer_that_stops_reading_holds_nothing_up(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    until_s = clock.monotonic_s() + 2
    number = 2
    while clock.monotonic_s() < until_s:
        # It goes on with its own heartbeats, and never takes ours.
        bad.say(line, beat(number))
        number += 1
        clock.sleep_s(0.05)
    assert status_of(one, "good").condition is UP
    one.remove("bad")


def test_a_peer_cannot_take_the_key_of_another_one(one: Peering, bad: Stranger) -> None:
    good = one.book.find("good")
    line = line_to(one, bad)
    bad.say(line, NewKey(good.key))
    wait_until(lambda: status_of(one, "bad").offences == 1, "the offence")
    assert one.book.find("bad").keys == (bad.keys.public,)
    assert one.book.by_key(good.key) == good
    bad.say(line, NewKey(one.keys.public))
    wait_until(lambda: status_of(one, "bad").offences == 2, "the offence")
    assert one.book.find("bad").keys == (bad.keys.public,)


def test_a_peer_cannot_have_any_number_of_keys_written_to_disk(one: Peering, bad: Stranger) -> None:
    line = line_to(one, bad)
    saved: list[object] = []
    save = one.book._store.save

    def counted(peers: Iterable[Peer]) -> None:
        saved.append(peers)
        save(peers)

    one.book._store.save = counted  # type: ignore[method-assign]
    most = int(kept_words.CHANGES_AT_ONCE)
    for _ in range(most + 3):
        bad.say(line, NewKey(make_keys().public))
    wait_until(partial(_has_offences, one, 3), "the offences")
    wait_until(lambda: len(saved) == most, "the others are kept")
    # Nor by what it says at the door, which is no offence: it says it again when it connects.
    for port in range(1, 10):
        hello = msgspec.structs.replace(bad.hello(), endpoints=(f"tcp://127.0.0.1:{port}",))
        assert isinstance(bad.ask_door(one, hello), Welcome)
    assert len(saved) == most
    assert status_of(one, "bad").offences == 3


def test_what_a_peer_says_of_times_cannot_make_it_look_better_than_it_is(
    one: Peering, bad: Stranger
) -> None:
    line = line_to(one, bad)
    for number in range(2, 12):
        while not isinstance(ours := _heard(line), Beat):
            pass
        bad.say(line, Beat(number=number, echo=ours.number, held_s=1e6))
    wait_until(lambda: status_of(one, "bad").round_trip_s == 0.0, "a round trip")
    # Nor can it say that its heartbeats come once in a year.
    answer = bad.ask_door(one, _with_beat(bad.hello(), 1e6))
    assert isinstance(answer, Refused)
    assert answer.message.startswith("message not understood: Expected `float` <= 10.0")


def test_endpoints_that_a_peer_tells_are_addresses_alone(one: Peering, bad: Stranger) -> None:
    hello = Hello(
        name="bad",
        endpoints=("tcp://evil.example:1", "tcp://0.0.0.0:7", "ipc:///x", "tcp://127.0.0.1:9"),
        version="raw",
        beat_s=0.05,
        agent="",
    )
    assert isinstance(bad.ask_door(one, hello), Welcome)
    wait_until(lambda: one.book.find("bad").endpoints, "what it told is kept")
    assert list(map(str, one.book.find("bad").endpoints)) == ["tcp://127.0.0.1:9"]


def test_a_peer_that_dies_in_the_middle_leaves_nothing(one: Peering, bad: Stranger) -> None:
    lines = [line_to(one, bad)]
    before = psutil.Process().num_fds()
    for _ in range(10):
        bad.hang_up(lines.pop())
        lines.append(line_to(one, bad))
    wait_until(lambda: psutil.Process().num_fds() <= before + 2, "no descriptor is left")


def _port_of_good(one: Peering) -> int:
    session = one.session_of(one.book.find("good").key)
    assert session is not None
    listener = session._listener
    assert listener is not None
    return listener.endpoint.port


def _is_proven(line: RawSocket) -> bool:
    return zmq.EVENT_HANDSHAKE_SUCCEEDED in line.events(5)


def _echoed(who: Stranger, line: RawSocket) -> int | None:
    raw = line.receive(1)
    assert raw is not None
    message = decode_from(who.codec.from_peer, raw)
    return message.echo if isinstance(message, Beat) else None


def _join(who: Stranger, name: str = GUEST) -> Join:
    return Join(key=who.keys.public, name=name, endpoints=(), version="raw")


def _heard(line: RawSocket) -> PeerMessage:
    raw = line.receive()
    assert raw is not None
    message: PeerMessage = decode_from(PeerCodec().from_peer, raw)
    return message


def _with_beat(hello: Hello, beat_s: float) -> Hello:
    return msgspec.structs.replace(hello, beat_s=beat_s)


def _has_offences(one: Peering, count: int) -> bool:
    return status_of(one, "bad").offences == count


def _keys_of(token: Token) -> KeyPair:
    return keys_of(token.secret)


def _decoded(raw: bytes | None) -> DoorAnswer:
    assert raw is not None, "there is no answer"
    answer: DoorAnswer = decode_from(PeerCodec().from_door, raw)
    return answer


def test_what_a_peer_says_cannot_command_a_terminal_or_forge_a_row(
    one: Peering, bad: Stranger
) -> None:
    hello = msgspec.structs.replace(bad.hello(), version="\x1b[2J\nFAKE  up")
    assert isinstance(bad.ask_door(one, hello), Welcome)
    assert status_of(one, "bad").version == "�[2J�FAKE  up"
    knock = bad.dial(endpoint_of(one), one.keys.public)
    for _ in range(PATIENCE):
        field = {"kind": "hello", "\x1b[2J\n": 1}
        knock.send(bytes([PROTOCOL]) + msgspec.msgpack.encode(field))
        assert isinstance(_decoded(knock.receive()), Refused)
    assert status_of(one, "bad").condition is BARRED
    assert status_of(one, "bad").why.isprintable()
