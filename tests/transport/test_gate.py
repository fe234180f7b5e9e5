"""Who gets through the gate: keys that are admitted to a domain, and nobody in any other way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from edge_agent.peers import KeyPair, PublicKey
from edge_agent.transport.curve import encrypt_as_client, encrypt_as_server, make_keys
from edge_agent.transport.gate import Gate

Socket = zmq.Socket[bytes]
DOMAIN = b"door"
HERE, KNOWN, STRANGER = (make_keys() for _ in range(3))
WAIT_MS = 5000
ASKED = (DOMAIN, b"192.168.1.20", b"", b"CURVE", bytes(range(32)))


class Judging:
    """Admits some keys to some domains, and keeps what it was asked."""

    def __init__(self, *admitted: tuple[bytes, PublicKey]) -> None:
        self._admitted = admitted
        self.asked: list[tuple[bytes, PublicKey, str]] = []

    def __call__(self, domain: bytes, key: PublicKey, address: str) -> bool:
        self.asked.append((domain, key, address))
        return (domain, key) in self._admitted


@contextmanager
def context() -> Iterator[zmq.Context[Socket]]:
    made: zmq.Context[Socket] = zmq.Context()
    try:
        yield made
    finally:
        made.destroy(linger=0)


@contextmanager
def guarded(judge: Judging) -> Iterator[zmq.Context[Socket]]:
    """A context with a gate that a thread serves."""
    with context() as made:
        is_over = threading.Event()
        gate = Gate(made, judge)

        def serve() -> None:
            while not is_over.is_set():
                if gate.socket.poll(10):
                    gate.serve()
            gate.close()

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield made
        finally:
            is_over.set()
            serving.join()


def listen(made: zmq.Context[Socket], domain: bytes = DOMAIN) -> tuple[Socket, str]:
    listening = made.socket(zmq.PULL)
    encrypt_as_server(listening, HERE, domain)
    listening.bind("tcp://127.0.0.1:*")
    return listening, listening.get_string(zmq.LAST_ENDPOINT)


def keyed(keys: KeyPair) -> Callable[[Socket], None]:
    return lambda socket: encrypt_as_client(socket, keys, HERE.public)


def impatient(keys: KeyPair, server: PublicKey) -> Callable[[Socket], None]:
    """Gives a connection up on which nothing happens."""

    def prepare(socket: Socket) -> None:
        encrypt_as_client(socket, keys, server)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 300)

    return prepare


def without_encryption(_: Socket) -> None:
    """NULL is what a socket speaks of itself."""


def with_password(socket: Socket) -> None:
    socket.setsockopt(zmq.PLAIN_USERNAME, b"anybody")
    socket.setsockopt(zmq.PLAIN_PASSWORD, b"x" * 32)


def comes_through(
    listening: Socket, at: str, prepare: Callable[[Socket], None]
) -> zmq.Frame | None:
    """What comes of a message that is sent there; None: the connection was refused."""
    # The context of a stranger is its own.
    with context() as other:
        sending = other.socket(zmq.PUSH)
        prepare(sending)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        events |= zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        events |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        monitor = sending.get_monitor_socket(events)
        sending.connect(at)
        sending.send(b"hello", zmq.NOBLOCK)
        assert monitor.poll(WAIT_MS), "the connection is neither made nor refused"
        event = recv_monitor_message(monitor)["event"]
        sending.disable_monitor()
        monitor.close()
        if event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            assert not listening.poll(50)
            return None
        assert listening.poll(WAIT_MS)
        return listening.recv(copy=False)


def test_an_admitted_key_comes_through_and_is_known_by_it_in_every_frame() -> None:
    judge = Judging((DOMAIN, KNOWN.public))
    with guarded(judge) as made:
        listening, at = listen(made)
        frame = comes_through(listening, at, keyed(KNOWN))
        assert frame is not None
        assert frame.bytes == b"hello"
        assert frame.get("User-Id") == KNOWN.public
        assert judge.asked == [(DOMAIN, KNOWN.public, "127.0.0.1")]


def test_an_unknown_key_is_refused() -> None:
    judge = Judging((DOMAIN, KNOWN.public))
    with guarded(judge) as made:
        listening, at = listen(made)
        assert comes_through(listening, at, keyed(STRANGER)) is None
        assert (DOMAIN, STRANGER.public, "127.0.0.1") in judge.asked
        # Nor does it keep others out.
        assert comes_through(listening, at, keyed(KNOWN)) is not None


def test_a_key_that_is_admitted_to_another_domain_is_refused() -> None:
    judge = Judging((b"peer:a", KNOWN.public), (b"", KNOWN.public))
    with guarded(judge) as made:
        listening, at = listen(made)
        assert comes_through(listening, at, keyed(KNOWN)) is None
        assert {domain for domain, _, _ in judge.asked} == {DOMAIN}
        other, at = listen(made, b"peer:a")
        assert comes_through(other, at, keyed(KNOWN)) is not None


@pytest.mark.parametrize("prepare", [without_encryption, with_password])
def test_who_does_not_encrypt_is_refused_and_the_judge_not_even_asked(
    prepare: Callable[[Socket], None],
) -> None:
    judge = Judging((DOMAIN, KNOWN.public))
    with guarded(judge) as made:
        listening, at = listen(made)
        assert comes_through(listening, at, prepare) is None
        assert judge.asked == []


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_socket_that_does_not_encrypt_but_has_the_domain_takes_nobody(is_plain: bool) -> None:
    judge = Judging((DOMAIN, KNOWN.public))
    with guarded(judge) as made:
        listening = made.socket(zmq.PULL)
        listening.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        if is_plain:
            listening.setsockopt(zmq.PLAIN_SERVER, 1)
        listening.bind("tcp://127.0.0.1:*")
        at = listening.get_string(zmq.LAST_ENDPOINT)
        prepare = with_password if is_plain else without_encryption
        assert comes_through(listening, at, prepare) is None
        assert judge.asked == []


def test_without_a_gate_nobody_comes_through() -> None:
    with context() as made:
        listening, at = listen(made)
        assert comes_through(listening, at, keyed(KNOWN)) is None


def test_after_the_gate_is_closed_nobody_comes_through() -> None:
    with context() as made:
        judge = Judging((DOMAIN, KNOWN.public))
        Gate(made, judge).close()
        listening, at = listen(made)
        # libzmq may still find the gate for a moment, and then waits for its answer.
        assert comes_through(listening, at, impatient(KNOWN, HERE.public)) is None
        assert judge.asked == []


def test_a_server_without_the_secret_of_its_key_is_not_believed() -> None:
    judge = Judging((DOMAIN, KNOWN.public))
    with guarded(judge) as made:
        listening, at = listen(made)
        assert comes_through(listening, at, impatient(KNOWN, STRANGER.public)) is None
        assert judge.asked == []


# ---- what is asked in other forms


@contextmanager
def asking(judge: Judging) -> Iterator[Callable[..., list[bytes]]]:
    """Asks the gate with any frames, as nobody but libzmq does."""
    with context() as made:
        gate = Gate(made, judge)
        socket = made.socket(zmq.REQ)
        socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        socket.connect("inproc://zeromq.zap.01")

        def ask(*frames: bytes) -> list[bytes]:
            socket.send_multipart(frames)
            assert gate.socket.poll(WAIT_MS)
            gate.serve()
            return socket.recv_multipart()

        yield ask
        gate.close()


KEY = PublicKey("aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypq")


def test_the_answer_has_the_form_of_the_rfc() -> None:
    judge = Judging((DOMAIN, KEY))
    with asking(judge) as ask:
        assert ask(b"1.0", b"17", *ASKED) == [b"1.0", b"17", b"200", b"OK", KEY.encode(), b""]
        assert judge.asked == [(DOMAIN, KEY, "192.168.1.20")]
        other = (b"other", *ASKED[1:])
        refusal = [b"1.0", b"18", b"400", b"not admitted", b"", b""]
        assert ask(b"1.0", b"18", *other) == refusal


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"1.0",),
        (b"1.0", b"17"),
        *((b"1.0", b"17", *ASKED[:count]) for count in range(5)),
        (b"1.0", b"17", *ASKED, b""),
        (b"1.1", b"17", *ASKED),
        (b"", b"17", *ASKED),
        (b"", b"", b"", b"", b"", b"", b""),
        (b"1.0", b"17", *ASKED[:3], b"curve", ASKED[4]),
        (b"1.0", b"17", *ASKED[:3], b"GSSAPI", ASKED[4]),
        (b"1.0", b"17", *ASKED[:3], b"NULL"),
        (b"1.0", b"17", *ASKED[:3], b"NULL", ASKED[4]),
        (b"1.0", b"17", *ASKED[:3], b"PLAIN", b"user", b"x" * 32),
        (b"1.0", b"17", *ASKED[:4], ASKED[4][:-1]),
        (b"1.0", b"17", *ASKED[:4], ASKED[4] + b"x"),
        (b"1.0", b"17", *ASKED[:4], KEY.encode()),
    ],
)
def test_a_question_in_another_form_is_answered_with_no(frames: tuple[bytes, ...]) -> None:
    judge = Judging((DOMAIN, KEY))
    with asking(judge) as ask:
        request = frames[1] if len(frames) > 1 else b""
        assert ask(*frames) == [b"1.0", request, b"400", b"not admitted", b"", b""]
        assert judge.asked == []
        assert ask(b"1.0", b"18", *ASKED)[2] == b"200"


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=5) | st.sampled_from([b"1.0", *ASKED]), min_size=1, max_size=9))
def test_whatever_is_asked_is_answered(frames: list[bytes]) -> None:
    judge = Judging((DOMAIN, KEY))
    with asking(judge) as ask:
        answer = ask(*frames)
    is_right = len(frames) == 7 and (frames[0], *frames[2:]) == (b"1.0", *ASKED)
    assert (len(answer), answer[2]) == (6, b"200" if is_right else b"400")


@pytest.mark.parametrize("address", [b"\xff\xfe", b"", b"x" * 1000])
def test_an_address_of_any_form_is_only_told(address: bytes) -> None:
    judge = Judging((DOMAIN, KEY))
    with asking(judge) as ask:
        assert ask(b"1.0", b"1", DOMAIN, address, *ASKED[2:])[2] == b"200"
    assert judge.asked[0][2] == address.decode(errors="replace")


def test_nothing_to_answer_is_no_error() -> None:
    with context() as made:
        gate = Gate(made, Judging())
        gate.serve()
        gate.close()


def test_many_questions_have_several_turns() -> None:
    with context() as made:
        gate = Gate(made, Judging())
        asking: Any = made.socket(zmq.DEALER)
        asking.connect("inproc://zeromq.zap.01")
        for number in range(40):
            asking.send_multipart([b"", b"1.0", b"%d" % number, *ASKED])
        gate.serve()
        answers = []
        while asking.poll(50):
            answers.append(asking.recv_multipart()[2])
        assert answers == [b"%d" % number for number in range(32)]
        gate.serve()
        while asking.poll(50):
            answers.append(asking.recv_multipart()[2])
        assert answers == [b"%d" % number for number in range(40)]
        gate.close()
