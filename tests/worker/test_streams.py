"""Streams between workers over real sockets: what is put on one side arrives on the other, within
the window, and who is told of what."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from edge_agent import clock
from edge_agent.endpoints import Endpoint
from edge_agent.errors import UsageError, WorkerLost
from edge_agent.peers import KeyPair
from edge_agent.transport.curve import make_keys
from edge_agent.wire.streaming import Cancel, RunFailed, Stale
from edge_agent.worker.flows import Arrived
from edge_agent.worker.streams import Stream, Streams
from tests.system.running import wait_until
from tests.wire.made_streams import (
    EPOCH,
    NESTED,
    NUMERIC,
    TEXTS,
    array_of,
    is_all_same,
    tensors_of,
)
from tests.worker.joined_streams import LOOPBACK, MIB, WAIT_S, End, Heard, Rig, cost, rig, settled

HERE, THERE, STRANGER = (make_keys() for _ in range(3))
SIZES = [0, 1, 7, 128 * 1024 - 1, 128 * 1024, 128 * 1024 + 1, MIB - 1, MIB, MIB + 1, 5 * MIB]
KEYS = [pytest.param(None, id="plain"), pytest.param((HERE, THERE), id="curve")]
Keys = tuple[KeyPair, KeyPair] | None


@pytest.fixture
def made() -> Iterator[Rig]:
    with rig() as found:
        yield found


@pytest.fixture
def one(made: Rig) -> Streams:
    return made.streams()


@pytest.fixture
def two(made: Rig) -> Streams:
    return made.streams()


def bytes_of(size: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def many_values() -> list[dict[str, Any]]:
    return [
        {},
        *({"x": bytes_of(size, size)} for size in SIZES),
        {f"t{size}": bytes_of(size, size) for size in SIZES},
        {str(kind): array_of(kind, (3, 5)) for kind in NUMERIC},
        {str(kind): array_of(kind, (100_001,)) for kind in NUMERIC},
        {"text": TEXTS, **{f"v{i}": value for i, value in enumerate(NESTED)}},
        {"scalar": np.float32(0.5).reshape(()), "none": np.zeros((0, 3))},
    ]


@pytest.mark.parametrize("keys", KEYS)
def test_values_arrive_as_they_were_in_both_directions(
    made: Rig, one: Streams, two: Streams, keys: Keys
) -> None:
    ends = made.pair(one, two, keys)
    sent = many_values()
    for end in ends:
        for run, values in enumerate(sent):
            end.put(values, run)
    for end in ends:
        got = end.heard.wait_arrivals(len(sent))
        assert [arrived.message.run for arrived in got] == list(range(len(sent)))
        for values, arrived in zip(sent, got, strict=True):
            assert is_all_same(values, arrived.arrays)


@pytest.mark.parametrize("keys", KEYS)
def test_windows_that_hold_one_message_let_both_directions_through(
    made: Rig, one: Streams, two: Streams, keys: Keys
) -> None:
    ends = made.pair(one, two, keys, window_bytes=cost(2 * MIB))
    for end in ends:
        for run in range(10):
            end.put({"x": bytes_of(2 * MIB, run)}, run)
    for end in ends:
        for run, arrived in enumerate(end.heard.wait_arrivals(10)):
            assert is_all_same({"x": bytes_of(2 * MIB, run)}, arrived.arrays)


def test_many_threads_put_and_release_at_once(made: Rig, one: Streams, two: Streams) -> None:
    ends = made.pair(one, two, window_bytes=4 * MIB, holds=True)
    each, threads = 200, 4

    def put(end: End, first: int) -> None:
        for run in range(first, first + each):
            end.put({"x": np.full(run % 50 * 1000, run % 251, np.uint8)}, run)

    def release(end: End) -> None:
        for at in range(each * threads):
            end.stream.release(end.heard.wait_arrivals(at + 1)[at])

    working = [
        threading.Thread(target=put, args=(end, number * each))
        for end in ends
        for number in range(threads)
    ]
    working += [threading.Thread(target=release, args=(end,)) for end in ends]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    for end in ends:
        runs = [arrived.message.run for arrived in end.heard.arrivals]
        assert sorted(runs) == list(range(each * threads))
        for number in range(threads):
            of_one = [run for run in runs if run // each == number]
            assert of_one == sorted(of_one)
        for arrived in end.heard.arrivals:
            run = arrived.message.run
            assert (arrived.arrays["x"] == run % 251).all()
            assert arrived.arrays["x"].size == run % 50 * 1000


def test_what_steers_arrives_as_it_was_and_before_what_waits(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening, dialled = made.pair(one, two, window_bytes=cost(MIB))
    listening.heard.holds = True
    for run in range(2):
        dialled.put({"x": bytes_of(MIB)}, run)
    sent = [
        Cancel(epoch=EPOCH, run=1),
        RunFailed(epoch=EPOCH, run=1, stage=0, code="model-failed", message="no"),
        Stale(epoch=EPOCH, run=2),
    ]
    for message in sent:
        dialled.stream.steer(message)
    listening.heard.wait(lambda: len(listening.heard.messages) == 3, "three messages")
    assert listening.heard.messages == sent
    assert len(listening.heard.wait_arrivals(1)) == 1


def test_a_cancelled_run_is_not_sent_and_its_credit_is_there_again(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening, dialled = made.pair(one, two, window_bytes=cost(8 * MIB), holds=True)
    for run in range(4):
        dialled.put({"x": bytes_of(8 * MIB, run)}, run)
    listening.heard.wait_arrivals(1)
    dialled.stream.cancel(1)
    dialled.stream.cancel(3)
    # Not before: a run that has begun may arrive all the same.
    wait_until(lambda: dialled.stream.outflow.waiting == 1, "two are cancelled")
    listening.stream.release(listening.heard.arrivals[0])
    got = listening.heard.wait_arrivals(2)
    assert [arrived.message.run for arrived in got] == [0, 2]
    listening.stream.release(got[1])
    dialled.put({"x": bytes_of(8 * MIB)}, 4)
    assert listening.heard.wait_arrivals(3)[2].message.run == 4


def test_runs_that_are_cancelled_at_any_moment_leave_the_stream_as_it_was(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening, dialled = made.pair(one, two, window_bytes=cost(6 * MIB))
    for run in range(40):
        dialled.put({"x": bytes_of(3 * MIB), "y": bytes_of(3 * MIB)}, run)
        clock.sleep_s(run % 5 * 0.0005)
        dialled.stream.cancel(run)
    dialled.put({"x": bytes_of(6 * MIB)}, 40)
    listening.heard.wait(lambda: [a for a in listening.heard.arrivals if a.message.run == 40], "40")
    assert not listening.heard.whys


# ---- the window


def test_who_never_releases_gets_no_more_than_the_window_holds(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening, dialled = made.pair(one, two, window_bytes=3 * cost(2 * MIB), holds=True)
    array = bytes_of(2 * MIB)
    before = psutil.Process().memory_info().rss
    for run in range(200):
        dialled.put({"x": array}, run)
    listening.heard.wait_arrivals(3)
    assert settled(lambda: len(listening.heard.arrivals)) == 3
    grown = psutil.Process().memory_info().rss - before
    # Three that arrived, and what ZeroMQ and the kernel hold; the others are all the same array.
    assert grown < 64 * MIB
    listening.stream.release(listening.heard.arrivals[0])
    assert len(listening.heard.wait_arrivals(4)) == 4


def test_memory_stays_as_it_is_over_many_messages(made: Rig, one: Streams, two: Streams) -> None:
    listening, dialled = made.pair(one, two, window_bytes=8 * MIB)
    array = bytes_of(MIB)
    process = psutil.Process()

    def send(first: int, stop: int) -> int:
        for run in range(first, stop):
            dialled.put({"x": array}, run)
        listening.heard.wait(lambda: listening.heard.told.count("arrived") == stop, f"{stop}")
        return int(process.memory_info().rss)

    # It keeps what it is told of, and with it the tensors.
    listening.heard.on_arrival = lambda *_: listening.heard.arrivals.clear()
    warm = send(0, 100)
    assert send(100, 400) - warm < 24 * MIB


def test_a_message_larger_than_the_window_of_the_other_side_breaks_the_stream(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening, dialled = made.pair(one, two, window_bytes=cost(1000))
    dialled.put({"x": bytes_of(1000)}, 0)
    listening.heard.wait_arrivals(1)
    dialled.put({"x": bytes_of(1001)}, 1)
    why = dialled.heard.wait_broken()
    assert why == "run 1 needs 5097 bytes, which is more than the window of the other side"
    assert len(listening.heard.arrivals) == 1


def test_inputs_that_are_joined_never_wait_for_each_other_where_all_come_in_one_order(
    made: Rig,
) -> None:
    """A sends each run to B and C, both send it on to D, and D needs both at once."""
    runs, size = 200, 150_000
    a, b, c, d = (made.streams() for _ in range(4))
    one_message = cost(size)
    forwarders = []
    from_a = []
    joined: dict[int, list[tuple[Stream, Arrived]]] = {}
    done = Heard()

    def join(stream: Stream, arrived: Arrived) -> None:
        waiting = joined.setdefault(arrived.message.run, [])
        waiting.append((stream, arrived))
        if len(waiting) == 2:
            del joined[arrived.message.run]
            for each, its in waiting:
                each.release(its)
            done.steered(stream, Stale(epoch=EPOCH, run=arrived.message.run))

    for middle in (b, c):
        into = made.listen(middle, window_bytes=one_message, holds=True)
        from_a.append(made.dial(a, into.stream.endpoint))
        last = made.listen(d, window_bytes=one_message, holds=True)
        last.heard.on_arrival = join
        onwards = made.dial(middle, last.stream.endpoint)
        forwarders.append(onwards)

        def forward(stream: Stream, arrived: Arrived, onwards: End = onwards) -> None:
            # As a stage does: its input is kept until its output may leave.
            onwards.stream.put(*tensors_of(dict(arrived.arrays), arrived.message.run))
            stream.release(arrived)

        into.heard.on_arrival = forward
    array = bytes_of(size)
    for run in range(runs):
        for end in from_a:
            end.put({"x": array}, run)
    done.wait(lambda: len(done.messages) == runs, f"{runs} runs")
    assert joined == {}


# ---- who is told of what


@pytest.mark.parametrize("keys", KEYS)
def test_both_sides_hear_that_they_are_open_before_anything_else(
    made: Rig, one: Streams, two: Streams, keys: Keys
) -> None:
    for _ in range(20):
        here, there = keys or (None, None)
        listening = made.listen(one, here, there)
        listening.put({"x": bytes_of(10)})
        listening.stream.steer(Stale(epoch=EPOCH, run=0))
        dialled = made.dial(two, listening.stream.endpoint, there, here)
        dialled.put({"x": bytes_of(10)})
        for end in (listening, dialled):
            end.heard.wait_arrivals(1)
            assert end.heard.told[0] == "opened"
            assert end.heard.told.count("opened") == 1


@pytest.mark.parametrize("keys", KEYS)
def test_the_other_side_hears_once_that_one_closed(
    made: Rig, one: Streams, two: Streams, keys: Keys
) -> None:
    for closing in (0, 1):
        ends = made.pair(one, two, keys)
        ends[closing].stream.close()
        assert ends[1 - closing].heard.wait_broken() == "the connection is ended"
        ends[1 - closing].put({})
        ends[1 - closing].stream.close()
        assert ends[closing].heard.told == ["opened"]


def test_after_a_close_in_a_call_nothing_more_is_told(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening, dialled = made.pair(one, two)
    good = made.pair(one, two)
    is_ready = threading.Event()
    # All of it is there when the first one is told.
    one.post(good[0].stream, lambda _: is_ready.wait(WAIT_S))
    listening.heard.on_arrival = lambda stream, _: stream.close()
    for run in range(50):
        dialled.put({"x": bytes_of(100)}, run)
        dialled.stream.steer(Stale(epoch=EPOCH, run=run))
    good[1].put({})
    two.post(good[1].stream, lambda _: is_ready.set())
    dialled.heard.wait_broken()
    good[0].heard.wait_arrivals(1)
    assert listening.heard.told.count("arrived") == 1
    assert listening.heard.told[-1] == "arrived"


def test_a_receiver_that_fails_breaks_its_stream_alone(
    made: Rig, one: Streams, two: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such stage")

    good = made.pair(one, two)
    listening, dialled = made.pair(one, two)
    listening.heard.on_arrival = fail
    dialled.put({})
    assert listening.heard.wait_broken() == "an error of this worker: no such stage"
    assert dialled.heard.wait_broken() == "the connection is ended"
    # Even where it fails at hearing of the end.
    third, fourth = made.pair(one, two)
    third.heard.broken = fail  # type: ignore[assignment, method-assign]
    fourth.stream.close()
    good[0].put({})
    assert good[1].heard.wait_arrivals(1)
    settled(lambda: len(caplog.records))
    good[1].put({})
    assert good[0].heard.wait_arrivals(1)


def test_one_end_of_streams_has_many_neighbours(made: Rig, one: Streams, two: Streams) -> None:
    ends = [made.pair(one, two) for _ in range(10)]
    for number, (listening, dialled) in enumerate(ends):
        listening.put({"x": bytes_of(MIB + number, number)})
        dialled.put({"x": bytes_of(number, number)})
    for number, (listening, dialled) in enumerate(ends):
        got = dialled.heard.wait_arrivals(1)[0].arrays
        assert is_all_same({"x": bytes_of(MIB + number, number)}, got)
        got = listening.heard.wait_arrivals(1)[0].arrays
        assert is_all_same({"x": bytes_of(number, number)}, got)


# ---- the end


def test_streams_stop_with_full_queues_and_a_neighbour_that_does_not_take_them(made: Rig) -> None:
    one, two = made.streams(), made.streams()
    ends = made.pair(one, two, window_bytes=64 * MIB)
    is_over = threading.Event()
    two.post(ends[1].stream, lambda _: is_over.wait(WAIT_S))
    for run in range(100):
        ends[0].put({"x": bytes_of(MIB)}, run)
    at_s = clock.monotonic_s()
    one.stop()
    assert clock.monotonic_s() - at_s < 5
    is_over.set()
    assert ends[1].heard.wait_broken() == "the connection is ended"
    assert ends[0].heard.told == ["opened"]


def test_after_the_end_nothing_happens_and_nothing_can_be_made(made: Rig) -> None:
    streams = made.streams()
    listening = made.listen(streams)
    streams.stop()
    streams.stop()
    listening.put({"x": bytes_of(5)})
    listening.stream.steer(Stale(epoch=EPOCH, run=0))
    listening.stream.cancel(0)
    listening.stream.close()
    with pytest.raises(WorkerLost, match="the worker is ending"):
        made.listen(streams)
    with pytest.raises(WorkerLost, match="the worker is ending"):
        made.dial(streams, Endpoint(host="127.0.0.1", port=9))
    assert listening.heard.told == []


def test_what_is_asked_for_while_it_ends_is_made_or_refused(made: Rig) -> None:
    for _ in range(20):
        streams = made.streams()
        refused: list[bool] = []

        def listen(streams: Streams = streams, refused: list[bool] = refused) -> None:
            try:
                while True:
                    made.listen(streams).stream.close()
            except WorkerLost:
                refused.append(True)

        asking = [threading.Thread(target=listen) for _ in range(3)]
        for thread in asking:
            thread.start()
        clock.sleep_s(0.005)
        streams.stop()
        for thread in asking:
            thread.join()
        assert refused == [True] * 3


def test_an_address_that_is_taken_says_so_and_leaves_the_rest_as_it_is(
    made: Rig, one: Streams, two: Streams
) -> None:
    good = made.pair(one, two)
    taken = good[0].stream.endpoint
    with pytest.raises(UsageError, match="another program listens there"):
        two.listen(taken, HERE, THERE.public, Heard(), MIB)
    good[0].put({})
    good[1].heard.wait_arrivals(1)
    assert taken != LOOPBACK


# ---- keys


def test_a_wrong_key_is_refused_and_the_right_one_is_taken_later(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening = made.listen(one, HERE, THERE)
    to = listening.stream.endpoint
    assert made.dial(two, to, STRANGER, HERE).heard.wait_broken() == "the connection is refused"
    impostor = made.dial(two, to, THERE, STRANGER)
    plain = made.dial(two, to)
    right = made.dial(two, to, THERE, HERE)
    right.put({"x": bytes_of(5)})
    assert listening.heard.wait_arrivals(1)
    assert listening.heard.told.count("opened") == 1
    for wrong in (impostor, plain):
        assert wrong.heard.wait_broken() in (
            "the connection is unproven",
            "the connection is ended",
        )
    assert listening.heard.whys == []


def test_who_has_no_right_to_connect_does_not_disturb_who_has(
    made: Rig, one: Streams, two: Streams
) -> None:
    listening, dialled = made.pair(one, two, (HERE, THERE))
    to = listening.stream.endpoint
    wrong = [
        made.dial(two, to, STRANGER, HERE),
        made.dial(two, to),
        made.dial(two, to, THERE, THERE),
    ]
    for end in wrong:
        end.heard.wait_broken()
    dialled.put({"x": bytes_of(MIB)})
    assert listening.heard.wait_arrivals(1)
    # Its own end is noticed all the same.
    dialled.stream.close()
    assert listening.heard.wait_broken() == "the connection is ended"


@pytest.mark.parametrize("keys", KEYS)
def test_a_second_connection_ends_the_stream(
    made: Rig, one: Streams, two: Streams, keys: Keys
) -> None:
    listening, dialled = made.pair(one, two, keys)
    here, there = keys or (None, None)
    second = made.dial(two, listening.stream.endpoint, there, here)
    why = listening.heard.wait_broken()
    # What the second one says may be taken before it is told that there is one.
    assert why in ("the other side connected a second time", "got a second opening, want one")
    for end in (dialled, second):
        assert end.heard.wait_broken() == "the connection is ended"


def test_who_dials_where_nobody_listens_hears_so(made: Rig, one: Streams) -> None:
    with socket.socket() as held:
        # It holds the port and does not listen.
        held.bind((LOOPBACK.host, 0))
        dialled = made.dial(one, LOOPBACK.at(held.getsockname()[1]))
        dialled.put({})
        assert dialled.heard.wait_broken() == "the connection is unreached"
