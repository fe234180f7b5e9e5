"""Leave to use the device, and progress, over the builder's channel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edge_agent import clock
from edge_agent.builder.__main__ import Channel
from edge_agent.builder.benches import Slices
from edge_agent.errors import ProtocolError
from edge_agent.transport import local
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.wire.messages import (
    Admit,
    AskGrant,
    BuilderMessage,
    Codec,
    Grant,
    Message,
    Progress,
    decode,
)

CODEC = Codec()


class Counted:
    def __init__(self) -> None:
        self.grants = 0
        self.reports: list[tuple[float, str]] = []

    def ask(self) -> None:
        self.grants += 1

    def report(self, fraction: float, what: str) -> None:
        self.reports.append((fraction, what))


class AgentEnd:
    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream

    def send(self, message: Message) -> None:
        self.stream.send(CODEC.encode(message))

    def receive(self) -> BuilderMessage:
        raw, _ = self.stream.receive(clock.monotonic_s() + 10.0)
        message: BuilderMessage = decode(CODEC.from_builder, raw)
        return message


@contextmanager
def channel() -> Iterator[tuple[Channel, AgentEnd]]:
    ours, theirs = local.pair()
    with ours, theirs:
        yield Channel(FrameStream(theirs)), AgentEnd(FrameStream(ours))


def test_leave_is_asked_for_at_once_and_then_once_per_slice() -> None:
    counted = Counted()
    slices = Slices(counted.ask, counted.report)
    started_s = clock.monotonic_s()
    while clock.monotonic_s() - started_s < 0.07:
        slices.grant()
    assert 2 <= counted.grants <= 4


def test_time_spent_waiting_for_leave_is_not_working_time() -> None:
    slices = Slices(lambda: clock.sleep_s(0.05), Counted().report)
    started_s, working_s = clock.precise_s(), slices.working_s()
    slices.grant()
    waited_s = (clock.precise_s() - started_s) - (slices.working_s() - working_s)
    assert waited_s >= 0.05


def test_progress_is_that_of_the_step_within_the_whole() -> None:
    counted = Counted()
    slices = Slices(counted.ask, counted.report)
    slices.progress(0.5, "all")
    slices.first_fraction, slices.last_fraction = 0.6, 0.8
    slices.progress(0.0, "begin")
    slices.progress(1.0, "end")
    assert counted.reports == [(0.5, "all"), (0.6, "begin"), (pytest.approx(0.8), "end")]


def test_a_grant_is_waited_for() -> None:
    with channel() as (builder, agent):
        agent.send(Grant())
        builder.ask_grant()
        assert agent.receive() == AskGrant()


def test_another_message_instead_of_a_grant_breaks_the_protocol() -> None:
    with channel() as (builder, agent):
        agent.send(Admit("/m.onnx"))
        with pytest.raises(ProtocolError, match="got Admit, want Grant"):
            builder.ask_grant()


def test_an_agent_that_is_gone_ends_the_wait_for_a_grant() -> None:
    with channel() as (builder, agent):
        agent.stream.close()
        with pytest.raises(ConnectionLost):
            builder.ask_grant()


def test_progress_is_told_at_most_ten_times_a_second_but_begin_and_end_always() -> None:
    with channel() as (builder, agent):
        for step in range(1000):
            builder.report(step / 999, f"step {step}")
        builder.send(AskGrant())
        told = []
        while isinstance(message := agent.receive(), Progress):
            told.append(message.what)
    assert (told[0], told[-1]) == ("step 0", "step 999")
    assert len(told) <= 20
