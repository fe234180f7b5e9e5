"""Streams over lines that are cut, slow, wrong or dead: the end is told once, and soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from edge_agent import clock
from edge_agent.endpoints import Endpoint
from edge_agent.transport.curve import make_keys
from edge_agent.transport.watched import HANDSHAKE_MS
from tests.relay import Relay
from tests.wire.made_streams import is_all_same
from tests.worker.joined_streams import MIB, End, Rig, cost, rig

HERE, THERE = (make_keys() for _ in range(2))
ENDED = "the connection is ended"
AFTER_A_CUT_S = 2.0


@pytest.fixture
def made() -> Iterator[Rig]:
    with rig() as found:
        yield found


@contextmanager
def relayed(
    made: Rig, *, window_bytes: int = 16 * MIB, most_ahead_bytes: int = MIB, is_open: bool = True
) -> Iterator[tuple[Relay, End, End]]:
    """Both ends of an encrypted stream, the first listens, and what is between them."""
    here, there = made.streams(), made.streams()
    listening = made.listen(here, HERE, THERE, window_bytes=window_bytes)
    to = listening.stream.endpoint
    with Relay((to.host, to.port), most_ahead_bytes=most_ahead_bytes) as relay:
        if not is_open:
            relay.black_hole()
        at = Endpoint(host=relay.host, port=relay.port)
        dialled = made.dial(there, at, THERE, HERE, window_bytes=window_bytes)
        if is_open:
            for end in (listening, dialled):
                end.heard.wait_opened()
        yield relay, listening, dialled


@pytest.mark.parametrize("with_reset", [True, False])
def test_a_cut_in_the_middle_of_messages_ends_both_sides(made: Rig, with_reset: bool) -> None:
    with relayed(made) as (relay, listening, dialled):
        relay.to_target.cut_after(10 * MIB + 12_345, with_reset=with_reset)
        array = np.arange(MIB, dtype=np.uint8)
        for end in (listening, dialled):
            for run in range(100):
                end.put({"x": array}, run)
        for end in (listening, dialled):
            assert end.heard.wait_broken() == ENDED
            # What came before is whole and in order.
            runs = [arrived.message.run for arrived in end.heard.arrivals]
            assert runs == list(range(len(runs)))
            assert all(is_all_same({"x": array}, got.arrays) for got in end.heard.arrivals)
        assert len(listening.heard.arrivals) <= 10


@pytest.mark.parametrize("passed_bytes", [10, 100_000, 3 * MIB + 77])
def test_a_wrong_byte_ends_an_encrypted_stream_and_is_never_taken(
    made: Rig, passed_bytes: int
) -> None:
    with relayed(made) as (relay, listening, dialled):
        relay.to_target.flip_after(passed_bytes)
        array = np.arange(MIB, dtype=np.uint8)
        for run in range(20):
            dialled.put({"x": array}, run)
        assert listening.heard.wait_broken() == ENDED
        assert dialled.heard.wait_broken() == ENDED
        assert all(is_all_same({"x": array}, got.arrays) for got in listening.heard.arrivals)
        assert len(listening.heard.arrivals) <= passed_bytes // MIB


def test_a_line_that_is_dead_and_then_cut_ends_soon_after_the_cut(made: Rig) -> None:
    with relayed(made) as (relay, listening, dialled):
        relay.black_hole()
        for end in (listening, dialled):
            for run in range(40):
                end.put({"x": np.zeros(MIB, np.uint8)}, run)
        clock.sleep_s(0.3)
        for end in (listening, dialled):
            assert end.heard.told == ["opened"]
        at_s = clock.monotonic_s()
        relay.cut()
        for end in (listening, dialled):
            assert end.heard.wait_broken() == ENDED
        assert clock.monotonic_s() - at_s < AFTER_A_CUT_S


def test_a_line_that_is_dead_for_a_while_and_loses_nothing_goes_on(made: Rig) -> None:
    with relayed(made) as (relay, listening, dialled):
        relay.black_hole(keep=True)
        for end in (listening, dialled):
            for run in range(10):
                end.put({"x": np.full(MIB, run, np.uint8)}, run)
        clock.sleep_s(0.3)
        relay.heal()
        for end in (listening, dialled):
            for run, got in enumerate(end.heard.wait_arrivals(10)):
                assert (got.arrays["x"] == run).all()


@pytest.mark.long
def test_a_neighbour_that_never_proves_its_key_is_given_up(made: Rig) -> None:
    with relayed(made, is_open=False) as (_, listening, dialled):
        at_s = clock.monotonic_s()
        assert dialled.heard.wait_broken() == "the connection is unproven"
        assert clock.monotonic_s() - at_s < HANDSHAKE_MS / 1000 + 3
        assert listening.heard.told == []


def test_over_a_slow_line_as_much_is_under_way_as_the_window_allows(made: Rig) -> None:
    window, count, latency_s = 4, 24, 0.02
    window_bytes = window * cost(MIB)
    with relayed(made, window_bytes=window_bytes, most_ahead_bytes=16 * MIB) as (
        relay,
        listening,
        dialled,
    ):
        relay.to_target.latency_s = relay.to_client.latency_s = latency_s
        at_s = clock.monotonic_s()
        for run in range(count):
            dialled.put({"x": np.zeros(MIB, np.uint8)}, run)
        listening.heard.wait_arrivals(count)
        took_s = clock.monotonic_s() - at_s
    # Each window is there once in the time to and fro.
    least_s = (count / window - 1) * 2 * latency_s + latency_s
    assert took_s > least_s
    # Time for the bytes themselves, on a device that does something else too.
    assert took_s < 2 * least_s + 2.0
