"""The relay that makes faults: what both ends of it see, and that it leaves nothing behind."""

from __future__ import annotations

import math
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from edge_agent import clock
from tests.relay import Relay, Side
from tests.relay_faults import MIB, Direction, Flips, Occurrences, TokenBucket
from tests.relay_flows import Counts
from tests.system.running import wait_until

WAIT_S = 20.0
LONG_S = 3600.0
SEED = 7
NOISE = random.Random(1).randbytes(5_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Both ends of a connection through a relay."""

    relay: Relay
    client: socket.socket
    target: socket.socket

    def ways(self) -> Iterator[tuple[Direction, socket.socket, socket.socket]]:
        """Each direction, from where to where."""
        yield self.relay.to_target, self.client, self.target
        yield self.relay.to_client, self.target, self.client


class Opened:
    """A listening target and a relay before it."""

    def __init__(self, stack: ExitStack, seed: int) -> None:
        self._stack = stack
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listener.settimeout(WAIT_S)
        self.relay = stack.enter_context(Relay(self.listener.getsockname(), seed=seed))

    def connect(self) -> Ends:
        client = self.client()
        target = self._stack.enter_context(self.listener.accept()[0])
        target.settimeout(WAIT_S)
        return Ends(relay=self.relay, client=client, target=target)

    def client(self) -> socket.socket:
        address = ("127.0.0.1", self.relay.port)
        return self._stack.enter_context(socket.create_connection(address, WAIT_S))


@contextmanager
def opened(seed: int = SEED) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(stack, seed)


@pytest.fixture
def place() -> Iterator[Opened]:
    with opened() as made:
        yield made


@pytest.fixture
def ends(place: Opened) -> Ends:
    return place.connect()


def receive(one: socket.socket, length: int) -> bytes:
    """That many bytes, or what comes before the end."""
    found = bytearray()
    while len(found) < length and (piece := one.recv(min(2**16, length - len(found)))):
        found += piece
    return bytes(found)


def receive_all(one: socket.socket) -> tuple[bytes, bool]:
    """All up to the end, and whether that is a reset."""
    found = bytearray()
    try:
        while piece := one.recv(2**16):
            found += piece
    except ConnectionResetError:
        return bytes(found), True
    return bytes(found), False


def connect_and_receive_all(place: Opened) -> tuple[bytes, bool]:
    """See `receive_all`; a reset may come before `connect` has returned."""
    try:
        return receive_all(place.client())
    except ConnectionResetError:
        return b"", True


def is_reset(one: socket.socket) -> bool:
    return receive_all(one) == (b"", True)


def send_what_goes(one: socket.socket, stream: bytes) -> None:
    """Send it all, or up to where the connection ends."""
    try:
        one.sendall(stream)
    except (ConnectionResetError, BrokenPipeError):
        return


def has_nothing(one: socket.socket) -> bool:
    """Whether nothing has arrived, no end either."""
    one.setblocking(False)
    try:
        return one.recv(1) is None
    except BlockingIOError:
        return True
    finally:
        one.settimeout(WAIT_S)


def see_all(relay: Relay) -> None:
    """Return when the relay has seen what was sent before: it looks before it answers."""
    for _ in range(2):
        _ = relay.counts


def reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


@contextmanager
def beside() -> Iterator[Callable[..., Future[Any]]]:
    """What submits work for threads of its own."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


# The pure parts

OCCURRENCES = (124, 334, 634, 670, 834, 896, 942)
FLIPPED = {
    32: 64,
    53: 2,
    80: 32,
    121: 4,
    184: 16,
    218: 32,
    249: 64,
    313: 16,
    470: 2,
    503: 32,
    526: 1,
    539: 16,
    720: 64,
    796: 8,
    846: 1,
    859: 16,
}


def test_a_bucket_starts_empty_and_saves_up_a_pause_only_in_part() -> None:
    bucket = TokenBucket(1000.0, 5.0)
    assert bucket.take(100, 5.0) == 0
    assert bucket.wait_s(100) == 0.005
    assert bucket.wait_s(2) == 0.002
    assert bucket.take(100, 5.0078125) == 7
    assert bucket.take(100, 99.0) == 20
    assert bucket.take(3, 99.0) == 0
    assert bucket.take(3, 99.00390625) == 3


def test_a_bucket_without_a_limit_grants_everything() -> None:
    assert TokenBucket(math.inf, 0.0).take(10**9, 0.0) == 10**9


def test_a_bucket_of_less_than_a_byte_a_burst_still_grants_single_bytes() -> None:
    bucket = TokenBucket(2.0, 0.0)
    assert bucket.take(9, 0.25) == 0
    assert bucket.wait_s(9) == 0.25
    assert [bucket.take(9, 0.5), bucket.take(9, 0.5), bucket.take(9, 9.0)] == [1, 0, 1]


@given(
    rate=st.floats(1.0, 1e9),
    steps=st.lists(st.tuples(st.floats(0.0, 0.1), st.integers(1, 10**6)), max_size=20),
)
def test_a_bucket_never_grants_more_than_the_rate_and_one_burst(
    rate: float, steps: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(rate, 0.0)
    now_s, granted = 0.0, 0
    for pause_s, wanted in steps:
        now_s += pause_s
        granted += bucket.take(wanted, now_s)
        assert granted <= max(1.0, (now_s + TokenBucket.BURST_S) * rate) * (1 + 1e-9)


def test_occurrences_lie_where_the_seed_has_them() -> None:
    assert Occurrences("7").take(1000, 0.01) == OCCURRENCES
    assert Occurrences("8").take(1000, 0.01) != OCCURRENCES


def test_what_never_or_always_happens_does() -> None:
    assert Occurrences("7").take(10**6, 0.0) == ()
    assert Occurrences("7").take(4, 1.0) == (0, 1, 2, 3)


def test_as_much_happens_as_the_chance_says() -> None:
    assert len(Occurrences("7").take(10**6, 0.01)) == pytest.approx(10_000, rel=0.05)


def test_another_chance_holds_from_the_next_byte_on() -> None:
    occurrences = Occurrences("7")
    assert occurrences.take(100, 1e-9) == ()
    assert occurrences.take(3, 1.0) == (0, 1, 2)
    assert occurrences.take(100, 0.0) == ()


@given(lengths=st.lists(st.integers(0, 300), max_size=10), seed=st.integers())
def test_how_a_stream_is_divided_does_not_change_what_happens_where(
    lengths: list[int], seed: int
) -> None:
    whole, parts = Flips(str(seed)), Flips(str(seed))
    at_once = bytearray(sum(lengths))
    divided = bytearray()
    count = whole.apply(at_once, 0.02)
    for length in lengths:
        piece = bytearray(length)
        count -= parts.apply(piece, 0.02)
        divided += piece
    assert (divided, count) == (at_once, 0)


def test_a_flip_changes_one_bit_of_each_byte_hit() -> None:
    stream = bytearray(1000)
    assert Flips("7").apply(stream, 0.01) == len(FLIPPED)
    assert {n: byte for n, byte in enumerate(stream) if byte} == FLIPPED


def test_what_is_asked_for_once_counts_from_then_on() -> None:
    direction = Direction(lambda act: act(), "7")
    assert direction.passing(bytearray(10)) == 0
    direction.flip_after(3, bit=0)
    direction.flip_after(5, bit=7)
    direction.cut_after(9, with_reset=False)
    stream = bytearray(4)
    assert direction.passing(stream) == 1
    assert stream == b"\0\0\0\1"
    assert direction.cut_within(4) is None
    assert direction.cut_within(5) == (5, False)
    assert direction.cut_within(5) is None
    stream = bytearray(4)
    assert direction.passing(stream) == 1
    assert stream == b"\0\x80\0\0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latency_s", -1.0),
        ("latency_s", math.inf),
        ("bytes_per_s", 0.0),
        ("flips_per_byte", 1.5),
        ("cuts_per_mib", math.nan),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    direction = Relay(("127.0.0.1", 1), seed=SEED).to_client
    before = getattr(direction, name)
    with pytest.raises(ValueError, match=name):
        setattr(direction, name, value)
    assert getattr(direction, name) == before


# Passing


def test_five_megabytes_pass_unchanged_both_ways_at_once(ends: Ends) -> None:
    with beside() as start:
        for _, source, _ in ends.ways():
            start(source.sendall, NOISE)
        found = [start(receive, sink, len(NOISE)) for _, _, sink in ends.ways()]
        assert [each.result() == NOISE for each in found] == [True, True]
    assert ends.relay.counts == Counts(
        accepted=1, open=1, bytes_to_target=len(NOISE), bytes_to_client=len(NOISE)
    )


def test_a_peer_that_ends_what_it_sends_is_still_answered(ends: Ends) -> None:
    ends.client.sendall(b"all")
    ends.client.shutdown(socket.SHUT_WR)
    assert receive_all(ends.target) == (b"all", False)
    ends.target.sendall(b"answer")
    ends.target.close()
    assert receive_all(ends.client) == (b"answer", False)
    wait_until(lambda: ends.relay.counts.open == 0, "the connection is over")
    assert ends.relay.counts.cut == 0


def test_a_reset_by_a_peer_reaches_the_other_after_what_came_before(place: Opened) -> None:
    for index in range(2):
        ways = list(place.connect().ways())
        _, source, sink = ways[index]
        source.sendall(b"last")
        assert sink.recv(4, socket.MSG_PEEK) == b"last"
        reset(source)
        assert receive_all(sink) == (b"last", True)
    wait_until(lambda: place.relay.counts.open == 0, "both are over")


def test_a_peer_that_is_gone_is_noticed_while_the_other_only_sends(ends: Ends) -> None:
    ends.client.shutdown(socket.SHUT_WR)
    assert receive_all(ends.target) == (b"", False)
    ends.client.close()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        ends.target.sendall(NOISE * 10)


def test_a_target_that_refuses_resets_the_client(place: Opened) -> None:
    place.listener.close()
    assert connect_and_receive_all(place) == (b"", True)
    counts = place.relay.counts
    assert (counts.accepted, counts.unreached, counts.cut) == (1, 1, 0)


def test_a_target_may_move(place: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(WAIT_S)
        place.relay.target = other.getsockname()
        client = place.client()
        accepted, _ = other.accept()
        with accepted:
            client.sendall(b"here")
            assert receive(accepted, 4) == b"here"


def test_a_target_that_does_not_read_stops_the_sender(ends: Ends) -> None:
    ends.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
    ends.target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    sent = 0
    ends.client.setblocking(False)

    def is_stopped() -> bool:
        nonlocal sent
        was_full = ends.relay.counts.bytes_held == MIB
        try:
            sent += ends.client.send(NOISE[sent : sent + 2**16])
        except BlockingIOError:
            return was_full
        return False

    wait_until(is_stopped, "the sender is stopped")
    assert MIB < sent < 3 * MIB
    assert ends.relay.counts.bytes_held == MIB
    ends.client.settimeout(WAIT_S)
    with beside() as start:
        start(ends.client.sendall, NOISE[sent:])
        assert receive(ends.target, len(NOISE)) == NOISE


# Slowness


@pytest.mark.parametrize("index", [0, 1])
def test_latency_holds_each_byte_at_least_so_long(ends: Ends, index: int) -> None:
    direction, source, sink = list(ends.ways())[index]
    direction.latency_s = 0.05
    assert (direction.latency_s, [d.latency_s for d, _, _ in ends.ways()][1 - index]) == (0.05, 0.0)
    for _ in range(2):
        sent_s = clock.monotonic_s()
        source.sendall(b"x")
        assert receive(sink, 1) == b"x"
        assert clock.monotonic_s() - sent_s >= 0.05
    sent_s = clock.monotonic_s()
    source.shutdown(socket.SHUT_WR)
    assert receive(sink, 1) == b""
    assert clock.monotonic_s() - sent_s >= 0.05


def test_less_latency_lets_go_what_is_held(ends: Ends) -> None:
    ends.relay.to_target.latency_s = LONG_S
    ends.client.sendall(b"held")
    wait_until(lambda: ends.relay.counts.bytes_held == 4, "it is held")
    assert has_nothing(ends.target)
    ends.relay.to_target.latency_s = 0.0
    assert receive(ends.target, 4) == b"held"


def test_a_limit_is_shared_by_all_connections(place: Opened) -> None:
    place.relay.to_client.bytes_per_s = 1e6
    both = place.connect(), place.connect()
    with beside() as start:
        started_s = clock.monotonic_s()
        for each in both:
            each.target.sendall(NOISE[:100_000])
        found = [start(receive, each.client, 100_000) for each in both]
        assert [each.result() == NOISE[:100_000] for each in found] == [True, True]
        assert clock.monotonic_s() - started_s >= 0.2 - TokenBucket.BURST_S


def test_a_limit_that_is_lifted_holds_nothing_back(ends: Ends) -> None:
    ends.relay.to_target.bytes_per_s = 1.0
    ends.client.sendall(NOISE[:100_000])
    wait_until(lambda: ends.relay.counts.bytes_held > 50_000, "most is held")
    ends.relay.to_target.bytes_per_s = math.inf
    assert receive(ends.target, 100_000) == NOISE[:100_000]


# Loss of the connection


@pytest.mark.parametrize("with_reset", [True, False])
def test_a_cut_ends_all_connections_on_both_sides(place: Opened, with_reset: bool) -> None:
    both = place.connect(), place.connect()
    assert place.relay.cut(with_reset=with_reset) == 2
    for each in both:
        assert receive_all(each.client) == (b"", with_reset)
        assert receive_all(each.target) == (b"", with_reset)
    assert place.relay.counts == Counts(accepted=2, cut=2)
    after = place.connect()
    after.client.sendall(b"new")
    assert receive(after.target, 3) == b"new"


def test_a_cut_with_fin_is_no_reset_for_who_is_just_sending(ends: Ends) -> None:
    with beside() as start:
        sending = start(ends.client.sendall, NOISE)
        assert receive(ends.target, 100_000) == NOISE[:100_000]
        assert ends.relay.cut(with_reset=False) == 1
        rest, was_reset = receive_all(ends.target)
        assert NOISE.startswith(NOISE[:100_000] + rest)
        assert not was_reset
        assert receive_all(ends.client) == (b"", False)
        sending.result()


def test_a_cut_loses_what_is_held(ends: Ends) -> None:
    ends.relay.to_target.latency_s = LONG_S
    ends.client.sendall(b"held")
    wait_until(lambda: ends.relay.counts.bytes_held == 4, "it is held")
    ends.relay.cut()
    assert is_reset(ends.target)
    assert ends.relay.counts == Counts(accepted=1, cut=1, bytes_lost=4)


@pytest.mark.parametrize("with_reset", [True, False])
def test_the_next_connection_can_be_cut_before_the_target_hears_of_it(
    place: Opened, with_reset: bool
) -> None:
    ends = place.connect()
    place.relay.cut_next(with_reset=with_reset)
    assert connect_and_receive_all(place) == (b"", with_reset)
    after = place.connect()
    for each in (ends, after):
        each.client.sendall(b"mine")
        assert receive(each.target, 4) == b"mine"
    assert place.relay.counts == Counts(accepted=3, open=2, cut=1, bytes_to_target=8)


def test_a_cut_with_fin_after_so_many_bytes_lets_just_these_through(place: Opened) -> None:
    for index, length in ((0, 0), (0, 123_457), (1, 1)):
        direction, source, sink = list(place.connect().ways())[index]
        direction.cut_after(length, with_reset=False)
        with beside() as start:
            start(send_what_goes, source, NOISE[:300_000])
            assert receive_all(sink) == (NOISE[:length], False)
            assert receive_all(source) == (b"", False)
    assert place.relay.counts.cut == 3


def test_a_cut_with_reset_after_so_many_bytes_lets_no_more_through(ends: Ends) -> None:
    ends.relay.to_target.cut_after(123_457)
    with beside() as start:
        start(send_what_goes, ends.client, NOISE[:300_000])
        found, was_reset = receive_all(ends.target)
    assert was_reset
    assert NOISE[:123_457].startswith(found)
    counts = ends.relay.counts
    assert (counts.cut, counts.bytes_to_target) == (1, 123_457)


@pytest.mark.parametrize("seed", range(4))
def test_cuts_left_to_chance_come_where_the_seed_has_them(seed: int) -> None:
    with opened(seed) as place:
        place.relay.to_target.cuts_per_mib = 10.0
        for number in (1, 2):
            expected = Occurrences(f"{seed} {number} target cuts").take(5 * MIB, 10 / MIB)[0] + 1
            ends = place.connect()
            before = place.relay.counts.bytes_to_target
            with beside() as start:
                start(send_what_goes, ends.client, NOISE)
                found, was_reset = receive_all(ends.target)
            assert place.relay.counts.bytes_to_target - before == expected
            assert NOISE[:expected].startswith(found)
            assert was_reset or len(found) == expected
        assert place.relay.counts.cut == 2


@pytest.mark.parametrize("first", Side)
def test_a_slow_close_keeps_the_other_side_for_a_while(ends: Ends, first: Side) -> None:
    soon, late = (ends.client, ends.target)[:: 1 if first is Side.CLIENT else -1]
    started_s = clock.monotonic_s()
    assert ends.relay.close_slowly(first, other_after_s=0.2) == 1
    assert receive_all(soon) == (b"", False)
    late.sendall(b"lost")
    assert receive_all(late) == (b"", False)
    assert clock.monotonic_s() - started_s >= 0.2
    assert ends.relay.counts == Counts(accepted=1, cut=1, bytes_lost=4)


def test_what_is_slowly_closed_is_closed_once_its_peer_closes(ends: Ends) -> None:
    ends.relay.close_slowly(Side.TARGET, other_after_s=LONG_S)
    ends.client.shutdown(socket.SHUT_WR)
    assert receive_all(ends.client) == (b"", False)


# Black holes and refusals


def test_a_black_hole_takes_all_of_one_direction_and_loses_it(ends: Ends) -> None:
    ends.relay.to_target.latency_s = LONG_S
    ends.client.sendall(b"held")
    wait_until(lambda: ends.relay.counts.bytes_held == 4, "it is held")
    ends.relay.black_hole(to_client=False)
    ends.relay.to_target.latency_s = 0.0
    ends.client.sendall(NOISE)
    wait_until(lambda: ends.relay.counts.bytes_lost == len(NOISE) + 4, "all is lost")
    ends.target.sendall(b"back")
    assert receive(ends.client, 4) == b"back"
    assert has_nothing(ends.target)
    ends.relay.heal()
    ends.client.sendall(b"after")
    assert receive(ends.target, 5) == b"after"


def test_a_black_hole_that_keeps_passes_all_on_when_healed(ends: Ends) -> None:
    ends.relay.black_hole(keep=True)
    with beside() as start:
        start(ends.client.sendall, NOISE)
        ends.target.sendall(b"back")
        wait_until(lambda: ends.relay.counts.bytes_held == MIB + 4, "as much as may is held")
        assert has_nothing(ends.client)
        assert has_nothing(ends.target)
        ends.relay.heal()
        assert receive(ends.client, 4) == b"back"
        assert receive(ends.target, len(NOISE)) == NOISE
    assert ends.relay.counts.bytes_lost == 0


@pytest.mark.parametrize("with_reset", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_a_black_hole_hides_the_end_of_a_peer_until_healed(
    ends: Ends, with_reset: bool, keep: bool
) -> None:
    ends.relay.black_hole(keep=keep)
    if with_reset:
        reset(ends.client)
    else:
        ends.client.close()
    ends.target.sendall(b"to nobody")
    see_all(ends.relay)
    assert has_nothing(ends.target)
    assert ends.relay.counts.open == 1
    ends.relay.heal()
    assert receive_all(ends.target) == (b"", with_reset)


def test_in_a_black_hole_connections_are_still_accepted(place: Opened) -> None:
    place.relay.black_hole(keep=True)
    ends = place.connect()
    ends.client.sendall(b"hello")
    place.relay.heal()
    assert receive(ends.target, 5) == b"hello"


def test_who_is_refused_finds_the_same_port_open_afterwards(place: Opened) -> None:
    ends = place.connect()
    port = place.relay.port
    for _ in range(2):
        place.relay.refuse()
        place.relay.refuse()
        with pytest.raises(ConnectionRefusedError):
            place.client()
        ends.client.sendall(b"still")
        assert receive(ends.target, 5) == b"still"
        place.relay.heal()
        place.connect()
    assert (place.relay.port, place.relay.endpoint) == (port, f"tcp://127.0.0.1:{port}")
    assert place.relay.counts.accepted == 3


# Corruption


def test_flips_are_the_same_however_the_bytes_come() -> None:
    expected = bytearray(NOISE[:200_000])
    count = Flips(f"{SEED} 1 client flips").apply(expected, 1e-4)
    for piece in (200_000, 777):
        with opened() as place:
            ends = place.connect()
            ends.relay.to_client.flips_per_byte = 1e-4
            with beside() as start:
                reading = start(receive, ends.client, 200_000)
                for offset in range(0, 200_000, piece):
                    ends.target.sendall(NOISE[offset : min(offset + piece, 200_000)])
                assert reading.result() == expected
            assert (place.relay.counts.flipped, count) == (count, 20)


def test_exactly_one_bit_can_be_flipped_at_a_given_byte(ends: Ends) -> None:
    ends.client.sendall(b"before")
    assert receive(ends.target, 6) == b"before"
    ends.relay.to_target.flip_after(70_000, bit=5)
    ends.client.sendall(bytes(100_000))
    assert receive(ends.target, 100_000) == bytes(70_000) + b"\x20" + bytes(29_999)
    ends.relay.to_target.flip_after(0)
    ends.client.sendall(b"\0\0")
    byte, after = receive(ends.target, 2)
    assert (byte.bit_count(), after, ends.relay.counts.flipped) == (1, 0, 2)


# Its own end


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_its_end_resets_what_is_open_and_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = descriptors(), threading.active_count()
        with ExitStack() as stack:
            relay = stack.enter_context(Relay(listener.getsockname(), seed=SEED))
            address = ("127.0.0.1", relay.port)
            clients = [socket.create_connection(address, WAIT_S) for _ in range(3)]
            targets = [listener.accept()[0] for _ in range(3)]
            relay.close_slowly(Side.CLIENT, other_after_s=LONG_S)
            clients.append(socket.create_connection(address, WAIT_S))
            targets.append(listener.accept()[0])
            relay.black_hole(keep=True)
            relay.to_target.latency_s = LONG_S
            clients[3].sendall(NOISE[:100_000])
            wait_until(lambda: relay.counts.bytes_held == 100_000, "all is held")
            relay.refuse()
            raised = stack.enter_context(pytest.raises(KeyError))
            assert threading.active_count() == before[1] + 1
            raise KeyError("the test itself")
        assert raised
        assert is_reset(clients[3])
        for target in targets:
            target.settimeout(WAIT_S)
            assert is_reset(target)
        for each in (*clients, *targets):
            each.close()
        assert (descriptors(), threading.active_count()) == before
        assert relay.counts == Counts(accepted=4, cut=3, bytes_lost=100_000)


def test_when_it_fails_it_says_so_and_hangs_nobody() -> None:
    def fail() -> None:
        with opened() as place:
            ends = place.connect()
            chosen = ends.relay.to_target.chosen
            ends.relay.to_target.do(lambda: chosen.update(latency_s=cast(Any, "soon")))
            ends.client.sendall(b"x")
            assert is_reset(ends.target)
            with pytest.raises(RuntimeError, match="the relay has ended"):
                ends.relay.cut()

    with pytest.raises(RuntimeError, match="the relay failed"):
        fail()


# With libzmq


@contextmanager
def curve_pair() -> Iterator[tuple[Relay, zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """A DEALER, connected by CURVE through a relay, and its ROUTER."""
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.curve_secretkey = secret
        router.curve_server = True
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with Relay(("127.0.0.1", port), seed=SEED) as relay, context.socket(zmq.DEALER) as dealer:
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            dealer.curve_serverkey = public
            dealer.reconnect_ivl = 10
            for each in (router, dealer):
                each.linger = 0
            dealer.connect(relay.endpoint)
            yield relay, dealer, router


MESSAGES = (b"first", b"last", NOISE[:300_000])


def passes(dealer: zmq.Socket[bytes], router: zmq.Socket[bytes], text: bytes) -> bool:
    """Whether a message and its answer do in some time; what is under way may get lost."""
    dealer.send(text)
    while router.poll(200):
        sender, received = router.recv_multipart()
        assert received in MESSAGES
        router.send_multipart([sender, received])
        if received == text:
            return bool(dealer.poll(200)) and dealer.recv() == text
    return False


def test_libzmq_passes_messages_and_connects_again_after_a_cut() -> None:
    with curve_pair() as (relay, dealer, router):
        message = MESSAGES[-1]
        wait_until(lambda: passes(dealer, router, message), "they pass")
        for with_reset in (True, False):
            assert relay.cut(with_reset=with_reset) == 1
            wait_until(lambda: passes(dealer, router, message), "they pass again")
        assert (relay.counts.accepted, relay.counts.cut) == (3, 2)


def test_libzmq_under_curve_drops_the_connection_of_a_wrong_byte_and_not_the_byte() -> None:
    with curve_pair() as (relay, dealer, router):
        wait_until(lambda: passes(dealer, router, b"first"), "one passes")
        relay.to_target.flip_after(5000)
        dealer.send(NOISE[:10_000])
        wait_until(lambda: relay.counts.accepted == 2, "it connects again")
        wait_until(lambda: passes(dealer, router, b"last"), "one passes again")
        assert not router.poll(0)
        assert (relay.counts.flipped, relay.counts.cut) == (1, 0)
