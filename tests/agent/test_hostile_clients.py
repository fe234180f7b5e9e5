"""Clients that send garbage, halves, too much, or go away: they are counted, others are served."""

from __future__ import annotations

import socket

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.errors import ProtocolError
from edge_agent.transport.local import ConnectionLost
from edge_agent.wire.frames import MAX_MESSAGE_BYTES, pack_prefix
from edge_agent.wire.messages import (
    AskStatus,
    Done,
    Failure,
    Result,
)
from tests.agent.rig import ClientEnd, Rig, X, framed, infer_frame, wait_until

FRAME = infer_frame("r", X)
MESSAGE_END = len(FRAME) - X.nbytes


def assert_serves(rig: Rig) -> None:
    client = rig.client()
    client.infer("well-behaved")
    np.testing.assert_array_equal(client.y(), X * 2)
    client.close()


def nested(depth: int) -> bytes:
    return pack_prefix(depth, 0) + b"\x91" * depth


GARBAGE = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(4096),
    "the next version": b"EAG\x02" + FRAME[4:],
    "no message": pack_prefix(0, 0),
    "an endless message": pack_prefix(2**32 - 1, 0),
    "a message over the limit": pack_prefix(MAX_MESSAGE_BYTES + 1, 0),
    "nothing but brackets": nested(100_000),
    "a message of an agent": framed(Done("x")),
    "an unknown kind": pack_prefix(1 + 5 + 5, 0) + msgspec.msgpack.encode({"kind": "evil"}),
    "a question with a payload": pack_prefix(len(msgspec.msgpack.encode({"kind": "status"})), 8)
    + msgspec.msgpack.encode({"kind": "status"})
    + bytes(8),
}


@pytest.mark.parametrize("case", sorted(GARBAGE))
def test_garbage_is_answered_counted_and_ends_its_connection_only(case: str) -> None:
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        client.send_bytes(GARBAGE[case])
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert (answer.request, answer.code) == (None, ProtocolError.code)
        assert client.is_ended()
        assert_serves(rig)
        assert rig.counters["messages not understood"] == 1


def test_a_client_still_sending_when_it_is_given_up_can_read_why() -> None:
    with Rig() as rig:
        client = rig.client()
        client.send_bytes(b"\xff" * (4 << 20))
        answer = client.answer()
        assert isinstance(answer, Failure)
        assert answer.code == ProtocolError.code
        assert client.is_ended()


@pytest.mark.parametrize("cut", [1, 15, 16, 17, MESSAGE_END - 1, MESSAGE_END, len(FRAME) - 1])
def test_a_client_that_goes_away_in_a_frame_is_forgotten(cut: int) -> None:
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        client.send_bytes(FRAME[:cut])
        if cut >= MESSAGE_END:
            wait_until(lambda: rig.in_flight() == (1, 8), "the request is admitted")
        client.close()
        wait_until(lambda: rig.counters["connections broken inside a frame"], "it is counted")
        wait_until(lambda: rig.load() == (0, 0, 0), "the connection is forgotten")
        assert_serves(rig)


def test_a_payload_that_does_not_come_gives_its_share_of_the_limits_back() -> None:
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        client.send_bytes(infer_frame("slow", X, deadline_s=0.1)[:-1])
        wait_until(lambda: rig.in_flight() == (1, 8), "the request is admitted")
        wait_until(lambda: rig.counters["payloads that did not arrive"], "it is given up")
        wait_until(lambda: rig.load() == (0, 0, 0), "nothing of it is held")
        with pytest.raises(ConnectionLost):
            client.receive()
        assert_serves(rig)


@pytest.mark.parametrize("cut", [0, 1, 16, MESSAGE_END, len(FRAME) - 1])
def test_a_frame_in_two_pieces_is_a_frame(cut: int) -> None:
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        client.send_bytes(FRAME[:cut])
        assert_serves(rig)
        client.send_bytes(FRAME[cut:])
        np.testing.assert_array_equal(client.y(), X * 2)


def test_a_client_that_goes_away_before_it_reads_its_answer_harms_nobody() -> None:
    with Rig() as rig:
        worker = rig.serving()
        client = rig.client()
        client.infer()
        run, _ = worker.take()
        client.stream.socket.shutdown(socket.SHUT_RD)
        worker.answer(run, X)
        client.close()
        wait_until(lambda: rig.load() == (0, 0, 0), "the connection is forgotten")
        worker.serve_in_thread()
        assert_serves(rig)


def test_what_follows_a_refused_request_of_a_client_that_is_gone_takes_nothing() -> None:
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        client.stream.socket.shutdown(socket.SHUT_RD)
        # The refusal finds nobody; the half request behind it came in the same piece.
        client.send_bytes(infer_frame("a", X, "other") + infer_frame("b", X)[:-1])
        wait_until(lambda: rig.counters["requests refused"], "the first one is refused")
        wait_until(lambda: rig.load() == (0, 0, 0), "the connection is forgotten")
        assert_serves(rig)


def test_a_client_that_reads_its_answer_byte_by_byte_is_served_beside_others() -> None:
    with Rig(max_bytes=64 << 20, max_request_bytes=32 << 20) as rig:
        rig.serving().serve_in_thread()
        slow = rig.client()
        large = np.ones((1 << 19, 2), np.float32)
        slow.infer("large", large)
        for _ in range(20):
            slow.stream.socket.recv(1, socket.MSG_PEEK)
            assert_serves(rig)
        np.testing.assert_array_equal(slow.y(), large * 2)


def test_two_hundred_clients_of_which_most_misbehave() -> None:
    pieces = [*GARBAGE.values(), FRAME[:5], FRAME[:MESSAGE_END], FRAME[:-1], b""]
    with Rig(max_requests=1000) as rig:
        rig.serving().serve_in_thread()
        wrong = [rig.client() for _ in range(150)]
        right = [rig.client() for _ in range(50)]
        for number, client in enumerate(wrong):
            client.send_bytes(pieces[number % len(pieces)])
        for number, client in enumerate(right):
            client.infer(f"r{number}", X * number)
        for number, client in enumerate(right):
            np.testing.assert_array_equal(client.y(), X * number * 2)
        for client in wrong:
            client.close()
        wait_until(lambda: rig.load() == (0, 0, 50), "the wrong ones are forgotten")
        bad = sum(n % len(pieces) < len(GARBAGE) for n in range(150))
        assert rig.counters["messages not understood"] == bad
        assert_serves(rig)


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=100),
            st.sampled_from([FRAME, FRAME[:30], infer_frame("q", X, "other")]),
            st.just(framed(AskStatus())),
        ),
        max_size=5,
    ),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.integers(1, 200),
)
def test_whatever_a_client_sends_the_others_are_served(
    parts: list[bytes], damage: list[tuple[int, int]], chunk: int
) -> None:
    content = bytearray(b"".join(parts))
    for at, value in damage:
        if at < len(content):
            content[at] = value
    with Rig() as rig:
        rig.serving().serve_in_thread()
        client = rig.client()
        for at in range(0, len(content), chunk):
            if not is_sent(client, bytes(content[at : at + chunk])):
                break
        assert_serves(rig)
        client.stream.socket.shutdown(socket.SHUT_WR)
        drain(client)
        client.close()
        wait_until(lambda: rig.load() == (0, 0, 0), "the connection is forgotten")
        assert_serves(rig)


def is_sent(client: ClientEnd, piece: bytes) -> bool:
    try:
        client.send_bytes(piece)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def drain(client: ClientEnd) -> None:
    """Read whatever the agent says; all of it must be answers."""
    try:
        while True:
            assert isinstance(client.answer(), Result | Failure | Done)
    except ConnectionLost:
        return
