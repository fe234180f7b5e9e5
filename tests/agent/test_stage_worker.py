"""What the agent of a host makes of what the worker says that runs stages there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from edge_agent.agent.processes import Child
from edge_agent.agent.stage_worker import StageWorker
from edge_agent.devices import DeviceId
from edge_agent.errors import ProtocolError, WorkerLost
from edge_agent.transport import local
from edge_agent.wire.deploying import EpochFailed, EpochLinked, EpochUnlinked, ListeningFor
from edge_agent.wire.hosting import DividedPart, HostStages, Linked, Listening, Unlinked
from edge_agent.wire.messages import Codec, Message, Ready, RunError
from tests.system.running import wait_until
from tests.wire.made_deploying import CROSSINGS, EPOCH, KEY

FAR = DeviceId("f" * 20)
OPEN = HostStages(
    epoch=EPOCH, part=DividedPart(crossings=CROSSINGS, stages=(), neighbours=(), is_encrypted=True)
)


class World:
    """A worker process that says what a test wants."""

    def __init__(self) -> None:
        mine, theirs = local.pair()
        self.stream = local.FrameStream(theirs)
        self._socket: socket.socket = theirs
        self._codec = Codec()
        self.told: list[Message] = []
        self.offences: list[tuple[DeviceId, str]] = []
        child = SimpleNamespace(
            stream=mine, end=lambda *_: mine.close(), how_it_ended=lambda: "signal 9"
        )
        self.worker = StageWorker(cast(Child, child), EPOCH, self.told.append, self._offend)

    def _offend(self, device: DeviceId, what: str) -> None:
        self.offences.append((device, what))

    def say(self, message: Message) -> None:
        self.stream.send(self._codec.encode(message))

    def die(self) -> None:
        self._socket.close()

    def open(self) -> str:
        self.say(Ready(epoch=EPOCH, inputs=(), outputs=(), opened_s=0.0, key=KEY))
        return self.worker.open(OPEN)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.die()
    made.worker.end()


def test_what_it_says_goes_to_the_owner(world: World) -> None:
    assert world.open() == KEY
    world.say(Listening(epoch=EPOCH, device=FAR, port=7))
    world.say(Linked(epoch=EPOCH))
    world.say(Unlinked(epoch=EPOCH, device=FAR, why="it has ended"))
    want: list[Message] = [
        ListeningFor(epoch=EPOCH, device=FAR, port=7),
        EpochLinked(epoch=EPOCH),
        EpochUnlinked(epoch=EPOCH, device=FAR, why="it has ended"),
    ]
    wait_until(lambda: len(world.told) == len(want), "all of it")
    assert world.told == want
    assert world.offences == []


def test_a_neighbour_that_broke_the_rules_offends_this_device_too(world: World) -> None:
    world.open()
    world.say(Unlinked(epoch=EPOCH, device=FAR, why="got version 255", is_offence=True))
    wait_until(lambda: world.told, "it is told")
    assert world.told == [EpochUnlinked(epoch=EPOCH, device=FAR, why="got version 255")]
    assert world.offences == [(FAR, "got version 255")]


def test_its_death_is_told_with_how_it_died(world: World) -> None:
    world.open()
    world.die()
    wait_until(lambda: world.told, "it is told")
    (failed,) = world.told
    assert isinstance(failed, EpochFailed)
    assert (failed.code, failed.message) == (WorkerLost.code, "the worker died (signal 9)")


def test_an_end_that_was_wanted_is_told_to_nobody(world: World) -> None:
    world.open()
    world.worker.end()
    assert world.told == []


def test_one_that_cannot_open_says_why(world: World) -> None:
    world.say(RunError(sequence=0, code="out-of-memory", message="it does not fit", epoch=EPOCH))
    with pytest.raises(Exception, match="it does not fit"):
        world.worker.open(OPEN)


def test_one_that_dies_while_it_opens_is_told(world: World) -> None:
    world.die()
    with pytest.raises(WorkerLost, match="signal 9"):
        world.worker.open(OPEN)


def test_another_answer_is_none(world: World) -> None:
    world.say(Linked(epoch=EPOCH))
    with pytest.raises(ProtocolError, match="worker sent Linked"):
        world.worker.open(OPEN)
