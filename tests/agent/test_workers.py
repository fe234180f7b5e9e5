"""A file that a worker opens before it is told what it serves."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import cast

import pytest

from edge_agent.agent.processes import Child
from edge_agent.agent.workers import OpeningAhead
from edge_agent.errors import ProtocolError, WorkerLost
from edge_agent.transport import local
from edge_agent.wire.messages import (
    Codec,
    Ready,
    decode,
)
from edge_agent.wire.opening import OpenAhead, OpenedAhead
from edge_agent.wire.parts import SubgraphFile
from tests.agent.made_lanes import epoch

FILE = SubgraphFile(path="/staging/x/model.onnx", level="all", threads=None, is_plain=True)


class FakeChild:
    """A worker of which there is only the stream."""

    def __init__(self) -> None:
        self.stream, theirs = local.pair()
        self.end_of = local.FrameStream(theirs)
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True

    def how_it_ended(self) -> str:
        return "signal 11"


@pytest.fixture
def child() -> Iterator[FakeChild]:
    made = FakeChild()
    yield made
    made.stream.close()
    made.end_of.socket.close()


@pytest.fixture
def opening(child: FakeChild) -> OpeningAhead:
    return OpeningAhead(cast(Child, child))


def test_nothing_is_waited_for_if_nothing_was_to_be_opened(opening: OpeningAhead) -> None:
    opening.wait()


def test_the_worker_hears_the_file_and_says_when_it_needs_its_path_no_more(
    opening: OpeningAhead, child: FakeChild
) -> None:
    opening.begin(FILE)
    raw, _ = child.end_of.receive()
    assert decode(Codec().to_new_worker, raw) == OpenAhead(file=FILE)
    child.end_of.send(Codec().encode(OpenedAhead()))
    opening.wait()
    assert not child.is_ended


def test_a_worker_that_dies_of_the_file_is_asked_for_its_end(
    opening: OpeningAhead, child: FakeChild
) -> None:
    opening.begin(FILE)
    child.end_of.socket.close()
    with pytest.raises(
        WorkerLost, match=r"^the worker died while it opened the model \(signal 11\)$"
    ):
        opening.wait()
    assert child.is_ended


def test_a_worker_that_was_dead_before_is_no_error_until_it_is_waited_for(
    opening: OpeningAhead, child: FakeChild
) -> None:
    child.end_of.socket.shutdown(socket.SHUT_RDWR)
    opening.begin(FILE)
    with pytest.raises(WorkerLost, match="died while it opened the model"):
        opening.wait()


def test_a_worker_that_says_something_else_is_not_believed(
    opening: OpeningAhead, child: FakeChild
) -> None:
    opening.begin(FILE)
    child.end_of.send(Codec().encode(Ready(epoch(1), (), (), 0.1)))
    with pytest.raises(ProtocolError):
        opening.wait()
