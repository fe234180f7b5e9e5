"""Frames over blocking stream sockets."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent import clock
from edge_agent.errors import AgentUnavailable, DeadlineExceeded, UsageError
from edge_agent.transport import local
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.wire.frames import frame_parts, pack_prefix

WAIT_S = 10.0


@contextmanager
def ends() -> Iterator[tuple[FrameStream, FrameStream]]:
    left, right = local.pair()
    with left, right:
        yield FrameStream(left), FrameStream(right)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="edge-agent-"))
    yield made
    shutil.rmtree(made)


def soon_s() -> float:
    return clock.monotonic_s() + 0.03


def test_frames_arrive_in_order_with_their_payloads() -> None:
    with ends() as (here, there):
        for number in range(5):
            here.send(f"m{number}".encode(), [memoryview(bytes([number] * number))])
        for number in range(5):
            message, payload = there.receive()
            assert (message, bytes(payload)) == (f"m{number}".encode(), bytes([number] * number))


def test_a_frame_larger_than_every_buffer_arrives_whole() -> None:
    tensors = [np.arange(n, dtype=np.uint32).view(np.uint8).data for n in (2_000_000, 3, 700_000)]
    with ends() as (here, there), ThreadPoolExecutor(1) as pool:
        sending = pool.submit(here.send, b"large", tensors)
        message, payload = there.receive(clock.monotonic_s() + WAIT_S)
        sending.result()
    assert message == b"large"
    assert bytes(payload) == b"".join(bytes(p) for p in frame_parts(b"", tensors)[1:])


def test_more_tensors_than_one_system_call_takes_arrive() -> None:
    tensors = [memoryview(bytes([n % 256])) for n in range(3000)]
    with ends() as (here, there), ThreadPoolExecutor(1) as pool:
        sending = pool.submit(here.send, b"many", tensors)
        _, payload = there.receive(clock.monotonic_s() + WAIT_S)
        sending.result()
    assert bytes(payload[::64]) == bytes(n % 256 for n in range(3000))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.binary(max_size=80), st.binary(max_size=300)), max_size=5), st.data())
def test_frames_are_received_whatever_the_pieces_in_which_they_come(
    sent: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    content = b"".join(
        bytes(part) for m, p in sent for part in frame_parts(m, [memoryview(p)] if p else [])
    )
    with ends() as (here, there):
        at, got = 0, []
        while at < len(content):
            size = data.draw(st.integers(1, len(content)))
            here.socket.sendall(content[at : at + size])
            at += size
        for _ in sent:
            message, payload = there.receive(clock.monotonic_s() + WAIT_S)
            got.append((message, bytes(payload)))
    assert got == sent


def test_a_deadline_that_passes_while_waiting_is_told() -> None:
    with ends() as (here, _), pytest.raises(DeadlineExceeded):
        here.receive(soon_s())


def test_a_deadline_that_passes_in_the_middle_of_a_frame_is_told() -> None:
    with ends() as (here, there):
        there.socket.sendall(pack_prefix(3, 0) + b"ab")
        with pytest.raises(DeadlineExceeded):
            here.receive(soon_s())


def test_a_deadline_that_passes_while_sending_is_told() -> None:
    with ends() as (here, _), pytest.raises(DeadlineExceeded):
        here.send(b"m", [memoryview(bytes(8 << 20))], soon_s())


def test_a_deadline_already_past_sends_nothing() -> None:
    with ends() as (here, there):
        with pytest.raises(DeadlineExceeded):
            here.send(b"m", [], clock.monotonic_s() - 1.0)
        with pytest.raises(DeadlineExceeded):
            there.receive(soon_s())


def test_a_short_deadline_does_not_shorten_the_next_one() -> None:
    with ends() as (here, there), ThreadPoolExecutor(1) as pool:
        with pytest.raises(DeadlineExceeded):
            here.receive(soon_s())
        waiting = pool.submit(here.receive, clock.monotonic_s() + WAIT_S)
        there.send(b"late")
        assert waiting.result()[0] == b"late"


def test_the_other_side_closing_is_a_lost_connection_for_both_directions() -> None:
    with ends() as (here, there):
        there.close()
        with pytest.raises(ConnectionLost):
            here.receive()
        with pytest.raises(ConnectionLost):
            here.send(b"m")


def test_the_other_side_closing_in_a_payload_is_a_lost_connection() -> None:
    with ends() as (here, there):
        there.socket.sendall(pack_prefix(1, 100) + b"m" + bytes(50))
        there.close()
        with pytest.raises(ConnectionLost):
            here.receive()


def test_waiting_for_the_end_returns_when_the_other_side_closes_and_reads_nothing() -> None:
    with ends() as (here, there), ThreadPoolExecutor(1) as pool:
        there.send(b"last words")
        waiting = pool.submit(here.wait_until_closed)
        there.socket.shutdown(socket.SHUT_RDWR)
        waiting.result(WAIT_S)
        assert here.receive()[0] == b"last words"


def test_a_listener_is_for_its_user_only_and_replaces_a_stale_file(folder: Path) -> None:
    path = folder / "a.sock"
    path.write_text("stale")
    before = os.umask(0o022)
    os.umask(before)
    with local.listen(path) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        stream = local.connect(path)
        accepted, _ = listener.accept()
        with accepted:
            assert local.peer_user(accepted) == os.getuid()
        stream.close()
    after = os.umask(before)
    assert after == before


def test_connecting_to_nobody_says_how_to_start_an_agent(folder: Path) -> None:
    with pytest.raises(AgentUnavailable, match="start one with `edge-agent serve`"):
        local.connect(folder / "a.sock")
    (folder / "dead.sock").write_text("")
    with pytest.raises(AgentUnavailable, match="no agent answers at"):
        local.connect(folder / "dead.sock")


def test_a_path_that_the_kernel_would_cut_is_refused_with_its_length() -> None:
    path = Path("/" + "é" * 60)
    with pytest.raises(UsageError, match="has 121 bytes, want at most 107"):
        local.connect(path)
    with pytest.raises(UsageError, match="--socket"):
        local.listen(path)
    local.check_address(Path("/" + "x" * 106))
