"""Neighbours that break the rules: each hears no more, it is said why, all of it is bounded, and
the streams beside it go on. All sockets are real."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import zmq

from edge_agent import clock
from edge_agent.endpoints import Endpoint
from edge_agent.tensors import ElementType
from edge_agent.transport.curve import make_keys
from edge_agent.transport.watched import HANDSHAKE_MS
from edge_agent.wire.messages import Message
from edge_agent.wire.parts import TensorHead
from edge_agent.wire.streaming import (
    HEAD_BYTES,
    MAX_CHUNK_BYTES,
    MAX_PART_BYTES,
    Abort,
    Cancel,
    Credit,
    Opening,
    RunFailed,
    StreamCodec,
    Tensors,
)
from edge_agent.worker.streams import MAX_WAITING, Stream, Streams
from tests.wire.made_streams import EPOCH
from tests.worker.joined_streams import MIB, End, Rig, rig, settled

CODEC = StreamCodec()
OPENING = CODEC.message(Opening(16 * MIB))
CANCEL = Cancel(epoch=EPOCH, run=1)
ENDED = "the connection is ended"
UNDISTURBED_S = 3.0
"""Longer than a message takes beside a neighbour that floods, on a device that is busy."""


@pytest.fixture
def made() -> Iterator[Rig]:
    with rig() as found:
        yield found


@pytest.fixture
def one(made: Rig) -> Streams:
    """Those that are attacked."""
    return made.streams()


@pytest.fixture(autouse=True)
def _others_are_not_disturbed(made: Rig, one: Streams) -> Iterator[None]:
    """Through all of it messages go to and fro on a good stream."""
    here, there = made.pair(one, made.streams())
    is_over = threading.Event()
    took_s: list[float] = []

    def go_on() -> None:
        while not took_s or not is_over.wait(0.005):
            at_s = clock.monotonic_s()
            for end, other in ((here, there), (there, here)):
                end.put({"x": np.zeros(200_000, np.uint8)})
                other.heard.wait_arrivals(len(took_s) + 1)
            took_s.append(clock.monotonic_s() - at_s)

    going = threading.Thread(target=go_on)
    going.start()
    try:
        yield
    finally:
        is_over.set()
        going.join()
    assert here.heard.whys == there.heard.whys == []
    assert len(took_s) > 0
    assert max(took_s) < UNDISTURBED_S


class Neighbour:
    """A DEALER that says whatever a test wants."""

    def __init__(self, made: zmq.Socket[bytes], to: End) -> None:
        self.socket = made
        self._to = to

    def say(self, *parts: bytes) -> None:
        """Send these as soon as they are taken, or nothing once the stream has ended."""
        until_s = clock.monotonic_s() + 20
        while not self._has_sent(parts):
            if self._to.heard.whys:
                return
            assert clock.monotonic_s() < until_s, "nothing more is taken"

    def _has_sent(self, parts: tuple[bytes, ...]) -> bool:
        self.socket.poll(50, zmq.POLLOUT)
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def tell(self, message: Message) -> None:
        """Send a message without tensors."""
        self.say(CODEC.message(message))

    def heard(self) -> list[Message]:
        """What comes, until nothing does for a while."""
        found: list[Message] = []
        while self.socket.poll(300):
            parts = self.socket.recv_multipart()
            if len(parts) == 1:
                found += [message for message, _ in CODEC.decode(memoryview(parts[0]))]
        return found


@contextmanager
def neighbour(to: End, opening: bytes = OPENING) -> Iterator[Neighbour]:
    """One that connects, and opens the stream unless `opening` is empty."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.linger = 0
    made.rcvhwm = 1
    made.setsockopt(zmq.RECONNECT_IVL, -1)
    try:
        made.connect(str(to.stream.endpoint))
        found = Neighbour(made, to)
        if opening:
            found.say(opening)
        yield found
    finally:
        context.destroy(linger=0)


def attacked(made: Rig, one: Streams, window_bytes: int = MIB) -> End:
    return made.listen(one, window_bytes=window_bytes)


def heads(*sizes: int) -> Tensors:
    found = tuple(TensorHead(f"t{i}", ElementType.UINT8, (size,)) for i, size in enumerate(sizes))
    return Tensors(epoch=EPOCH, run=0, source=0, target=1, tensors=found, left_s=None, narrowed=())


BEGUN = CODEC.message(heads(1000, 1000))
PREFIX = OPENING[:4]
RULES: list[tuple[str, list[tuple[bytes, ...]], str]] = [
    ("garbage", [(b"\xff" * 100,)], "got version 255 of the protocol between workers, want 1"),
    ("text", [(b"GET / HTTP/1.1",)], "got version 71 of the protocol"),
    ("another version", [(b"\x02" + OPENING[1:],)], "got version 2 of the protocol"),
    ("half a record", [(OPENING[:-8],)], "got a message of"),
    ("no message", [(b"\x01\0\0\0\x08\0\0\0" + b"\xc1" * 8,)], "message not understood"),
    ("a huge message", [(b"\x01\0\0\0\xff\xff\xff\xff",)], "got a message of 4294967295 bytes"),
    ("three parts", [(CODEC.chunk(0, 0), b"x", b"")], "got a message of 3 parts, want 1 or 2"),
    ("many parts", [(b"",) * 1000], "got a message of 1000 parts, want 1 or 2"),
    ("garbage and a part", [(b"\xff" * 16, b"x")], "got version 255"),
    ("a long head of a chunk", [(b"\xff" * 1000, b"x")], "got 1000 bytes before a chunk"),
    ("a second opening", [(OPENING,)], "got a second opening, want one"),
    ("credit", [(CODEC.message(Credit(1)),)], "got credit for more than was sent"),
    ("an end", [(CODEC.message(Abort()),)], "got the end of a message that had not begun"),
    ("a chunk of nothing", [(CODEC.chunk(0, 0), b"x")], "got a chunk of no message"),
    ("a wrong chunk", [(BEGUN,), (CODEC.chunk(1, 0), b"x")], "got a chunk of tensor 1 at 0"),
    ("a long chunk", [(BEGUN,), (CODEC.chunk(0, 0), bytes(1001))], "got a chunk of 1001 bytes"),
    ("an empty chunk", [(BEGUN,), (CODEC.chunk(0, 0), b"")], "got a chunk of 0 bytes"),
    ("a message inside", [(BEGUN,), (BEGUN,)], "got a message before the tensors of the last one"),
    ("no credit", [(CODEC.message(heads(MIB)),)], "got 1052672 bytes of tensors, want at most"),
    ("a lie", [(CODEC.message(heads(2**48)),)], "got 281474976714752 bytes of tensors, want"),
    (
        "messages without credit",
        [(CODEC.message(heads(300_000)),)] + [(CODEC.chunk(0, 0), bytes(300_000))] * 9,
        "got a chunk of no message",
    ),
    ("a large part", [(bytes(MAX_PART_BYTES + 1),)], ENDED),
    ("a large chunk", [(BEGUN,), (CODEC.chunk(0, 0), bytes(MAX_CHUNK_BYTES + 1))], "got a chunk"),
]


@pytest.mark.parametrize(("said", "told"), [case[1:] for case in RULES], ids=[c[0] for c in RULES])
def test_who_breaks_the_rules_hears_no_more_and_it_is_said_why(
    made: Rig, one: Streams, said: list[tuple[bytes, ...]], told: str
) -> None:
    listening = attacked(made, one)
    with neighbour(listening) as bad:
        for parts in said:
            bad.say(*parts)
        assert told in listening.heard.wait_broken()
    # What libzmq itself does not take ends the connection, and nobody says why.
    assert listening.heard.is_offended == (told != ENDED)


@pytest.mark.parametrize("dies", [True, False])
def test_who_sends_half_of_a_message_holds_no_more_than_that(
    made: Rig, one: Streams, dies: bool
) -> None:
    """It dies between two chunks, or says nothing more: others go on, nothing has arrived, and
    what it holds of the window is what it announced."""
    listening = attacked(made, one)
    with neighbour(listening) as bad:
        bad.say(CODEC.message(heads(600_000)))
        bad.say(CODEC.chunk(0, 0), bytes(200_000))
        bad.tell(CANCEL)  # which may come inside of a message
        listening.heard.wait(lambda: listening.heard.messages == [CANCEL], "it has come")
        if not dies:
            assert settled(lambda: listening.stream.inflow.held_bytes) == 600_000 + HEAD_BYTES
            assert listening.heard.whys == []
    # In both cases it is gone now.
    assert listening.heard.wait_broken() == ENDED
    assert not listening.heard.is_offended
    assert listening.heard.arrivals == []


def test_who_goes_on_sending_what_was_not_released_is_ended(made: Rig, one: Streams) -> None:
    listening = made.listen(one, window_bytes=10 * HEAD_BYTES, holds=True)
    with neighbour(listening) as bad:
        for _ in range(11):
            bad.tell(heads())
        why = listening.heard.wait_broken()
        assert why == "got 4096 bytes of tensors, want at most 0"
        assert len(listening.heard.arrivals) == 10


def test_random_bytes_end_a_stream_or_are_nothing(made: Rig, one: Streams) -> None:
    drawn = random.Random(5)
    for _ in range(20):
        listening = attacked(made, one)
        with neighbour(listening) as bad:
            for _ in range(3):
                bad.say(
                    *(drawn.randbytes(drawn.randint(1, 60)) for _ in range(drawn.randint(1, 3)))
                )
            listening.heard.wait_broken()
            assert listening.heard.arrivals == []


def test_who_listens_may_break_the_rules_as_well(made: Rig, one: Streams) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        bad = context.socket(zmq.DEALER)
        bad.linger = 0
        port = bad.bind_to_random_port("tcp://127.0.0.1")
        dialled = made.dial(one, Endpoint(host="127.0.0.1", port=port))
        dialled.put({"x": np.zeros(MIB, np.uint8)})
        Neighbour(bad, dialled).say(b"\0" * 16)
        assert dialled.heard.wait_broken().startswith("got version 0 of the protocol")
    finally:
        context.destroy(linger=0)


def test_who_only_speaks_tcp_hears_a_greeting_and_ends_nothing(made: Rig, one: Streams) -> None:
    listening = attacked(made, one)
    to = listening.stream.endpoint
    for text in (b"GET / HTTP/1.1\r\n\r\n" * 9, b"", b"\xff" * 64):
        with socket.create_connection((to.host, to.port), timeout=10) as raw:
            raw.sendall(text)
    with neighbour(listening) as good:
        good.tell(heads())
        listening.heard.wait_arrivals(1)
        for text in (b"GET / HTTP/1.1\r\n\r\n" * 9, b"", b"\xff" * 64):
            with socket.create_connection((to.host, to.port), timeout=10) as raw:
                raw.sendall(text)
        clock.sleep_s(0.1)
        good.tell(heads())
        listening.heard.wait_arrivals(2)
    assert listening.heard.wait_broken() == ENDED


@pytest.mark.long
def test_the_end_is_told_though_others_hold_connections_that_prove_nothing(
    made: Rig, one: Streams
) -> None:
    here, there = make_keys(), make_keys()
    listening = made.listen(one, here, there)
    to = listening.stream.endpoint
    held = [socket.create_connection((to.host, to.port), timeout=10) for _ in range(5)]
    dialled = made.dial(made.streams(), to, there, here)
    listening.heard.wait_opened()
    held += [socket.create_connection((to.host, to.port), timeout=10) for _ in range(5)]
    dialled.stream.close()
    # Those that were there before may be the neighbour, until they are given up.
    assert listening.heard.wait_broken(HANDSHAKE_MS / 1000 + 5) == ENDED
    for raw in held:
        raw.close()


# ---- what is no fault, and bounded


def test_who_does_not_open_is_sent_nothing_but_may_send(made: Rig, one: Streams) -> None:
    listening = attacked(made, one)
    with neighbour(listening, opening=b"") as odd:
        for run in range(10):
            listening.put({"x": np.zeros(MIB, np.uint8)}, run)
        odd.tell(heads())
        listening.heard.wait_arrivals(1)
        assert odd.heard() == [Opening(MIB), Credit(HEAD_BYTES)]
        assert listening.heard.whys == []


def test_a_window_of_one_byte_is_told_when_something_is_to_be_sent(made: Rig, one: Streams) -> None:
    listening = attacked(made, one)
    with neighbour(listening, CODEC.message(Opening(1))) as odd:
        odd.tell(CANCEL)
        listening.heard.wait(lambda: listening.heard.messages == [CANCEL], "it goes on")
        assert listening.heard.whys == []
        listening.put({}, 3)
        why = listening.heard.wait_broken()
        assert why == "run 3 needs 4096 bytes, which is more than the window of the other side"
        assert not listening.heard.is_offended


def test_a_neighbour_that_stops_reading_holds_no_more_than_what_was_put(
    made: Rig, one: Streams
) -> None:
    listening = attacked(made, one)
    array = np.zeros(MIB, np.uint8)
    with neighbour(listening, CODEC.message(Opening(2**48))):
        listening.heard.wait_opened()
        before = psutil.Process().memory_info().rss
        for run in range(300):
            listening.put({"x": array}, run)
        waiting = settled(lambda: listening.stream.outflow.waiting)
        assert waiting > 200
        assert psutil.Process().memory_info().rss - before < 64 * MIB
        for run in range(300):
            listening.stream.cancel(run)
        assert settled(lambda: listening.stream.outflow.waiting) == 0
        assert listening.heard.whys == []
    assert listening.heard.wait_broken() == ENDED
    assert not listening.heard.is_offended


def test_a_flood_of_steering_messages_is_heard_and_disturbs_nobody(made: Rig, one: Streams) -> None:
    listening = attacked(made, one)
    with neighbour(listening) as bad:
        count = 5000
        for run in range(count):
            bad.tell(Cancel(epoch=EPOCH, run=run))
        heard = listening.heard
        heard.wait(lambda: len(heard.messages) == count, "all of them")
        # As many as fit into a part.
        many = [CODEC.message(Cancel(epoch=EPOCH, run=run)) for run in range(count)]
        bad.say(b"".join(many)[: MAX_PART_BYTES // 2 // len(many[0]) * len(many[0])])
        heard.wait(lambda: len(heard.messages) > count, "one part")
        assert heard.whys == []


def test_who_has_itself_answered_and_does_not_read_is_ended(made: Rig, one: Streams) -> None:
    failed = RunFailed(epoch=EPOCH, run=1, stage=0, code="model-failed", message="x" * 4096)
    listening = attacked(made, one)

    def answer(stream: Stream, _: object) -> None:
        stream.steer(failed)

    listening.heard.on_steering = answer
    part = CODEC.message(CANCEL) * 100
    with neighbour(listening) as bad:
        for _ in range(MAX_WAITING):
            bad.say(part)
            if listening.heard.whys:
                break
        why = listening.heard.wait_broken()
    count, _, text = why.partition(" ")
    assert text == "messages wait for the other side, which does not take them"
    assert MAX_WAITING < int(count) < MAX_WAITING + 2000


def test_credit_for_who_does_not_read_is_kept_in_one_sum(made: Rig, one: Streams) -> None:
    listening = attacked(made, one, window_bytes=100 * HEAD_BYTES)
    count = 3 * MAX_WAITING
    with neighbour(listening) as bad:
        # Enough for all that is between them, so that nothing more is taken.
        for run in range(40):
            listening.put({"x": np.zeros(MIB // 4, np.uint8)}, run)
        settled(lambda: listening.stream.outflow.waiting)
        for _ in range(count // 64):
            bad.say(CODEC.message(heads()) * 64)
        listening.heard.wait_arrivals(count)
        assert listening.stream.outflow.steering <= 2
        granted = [m.granted_bytes for m in bad.heard() if isinstance(m, Credit)]
        assert sum(granted) == count * HEAD_BYTES
        assert listening.heard.whys == []
