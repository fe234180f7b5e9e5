"""What is said of a divided epoch while it takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_agent.agent import deploying
from edge_agent.agent.attempts import Attempt
from edge_agent.agent.deploying import Deployer
from edge_agent.agent.layouts import Layout, PlacedStage
from edge_agent.agent.loaded import Dividing, Loaded
from edge_agent.agent.stations import OfDivided
from edge_agent.agent.trials import Deployed, Found, Means, WireRefused
from edge_agent.devices import DeviceId
from edge_agent.errors import StorageError
from edge_agent.peers import Peer, PeerCondition, public_key
from edge_agent.plans import DividedPlan, Epoch, Target
from edge_agent.problems import Surroundings
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.wire.deploying import DropEpoch, EpochFailed, EpochUnlinked
from edge_agent.wire.hosting import Closed, GiveUpRoute, Unlinked
from edge_agent.wire.messages import Message
from tests.system.running import wait_until

OWNER = Peer(key=public_key(b"1" * 32), name="owner")
HOST = Peer(key=public_key(b"2" * 32), name="host")
EPOCH = Epoch(owner=OWNER.id, incarnation=1, model=ModelId("5" * 64), number=3)
LAYOUT = Layout(
    stages=(
        PlacedStage(number=0, route=0, device=HOST.id, segments=SegmentRange(start=0, stop=2)),
    ),
    shares=(1.0,),
)
PLAN = DividedPlan(
    target=Target.LATENCY, shares=(1.0,), stages=(), is_used=True, reason="faster", epoch=3
)


class Made(SimpleNamespace):
    """One that may be in a set."""

    __hash__ = object.__hash__


class World:
    """An owner whose one trial finds what serves; `while_taking_over` is called as it takes over,
    after which nobody listens to the trial any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.while_taking_over: Callable[[], None] = lambda: None
        self.to_worker: list[Message] = []
        self.to_devices: list[tuple[DeviceId, Message]] = []
        self.alone: list[str] = []
        self.offences: list[tuple[DeviceId, str]] = []
        self.fails: list[Exception] = []
        """What the first trials end with."""
        self.worker_says: Callable[[OfDivided], None]
        world = self

        class MadeTrial:
            def __init__(
                self,
                _means: Means,
                _loaded: Loaded,
                attempt: Attempt,
                _plan: object,
                told: Callable[[OfDivided], None],
                **_options: bool,
            ) -> None:
                world.worker_says = told
                self.attempt = attempt

            def run(self, _around: object) -> Found:
                self.attempt.asked.add(HOST.id)
                if world.fails:
                    raise world.fails.pop(0)
                own = SimpleNamespace(take_over=world._take_over, tell=world.to_worker.append)
                made = Deployed(layout=LAYOUT, models={}, own=cast(Any, own))
                return Found(plan=PLAN, deployed=made)

            def give_up(self) -> None:
                pass

        monkeypatch.setattr(deploying, "Trial", MadeTrial)
        lock = threading.RLock()
        self.loaded = cast(
            Any,
            Made(
                record=SimpleNamespace(model=EPOCH.model, over=(), name="m"),
                plan=SimpleNamespace(plain_s=1.0),
                serve=SimpleNamespace(division=object(), epoch=EPOCH),
                opens_aside=True,
                dividing=Dividing(),
            ),
        )
        host = SimpleNamespace(
            is_over=lambda _: False,
            epoch=lambda _: EPOCH,
            changing=lambda _: lock,
            serve_alone=lambda loaded: self.alone.append(loaded.record.name),
        )
        peers = SimpleNamespace(
            device=OWNER.id,
            name_of=lambda device: {OWNER.id: "owner", HOST.id: "host"}[device],
            tell=lambda device, message: self.to_devices.append((device, message)),
            device_of=lambda name: {"host": HOST.id, HOST.id: HOST.id}[name],
            offend=lambda device, what: self.offences.append((device, what)),
        )
        means = SimpleNamespace(
            peers=peers,
            host=host,
            preparing=None,
            stores=SimpleNamespace(pool=None),
            is_encrypted=True,
        )
        self.peers_there: tuple[DeviceId, ...] = (HOST.id,)
        self.peers_awaited: list[tuple[DeviceId, ...]] = []
        """What is awaited at each look; at the end nothing."""
        monkeypatch.setattr(
            deploying,
            "surroundings",
            lambda *_, **__: cast(Surroundings, SimpleNamespace(peers=self.peers_there)),
        )
        monkeypatch.setattr(deploying, "awaited", self._awaited)
        monkeypatch.setattr(deploying, "POLL_S", 0.001)
        self.deployer = Deployer(cast(Means, means))

    def _awaited(self, *_: object, is_at_start: bool) -> tuple[DeviceId, ...]:
        del is_at_start
        return self.peers_awaited.pop(0) if self.peers_awaited else ()

    def _take_over(self) -> bool:
        self.while_taking_over()
        return True

    def divide(self) -> None:
        """Have it divided, to the end of that."""
        self.deployer.consider(self.loaded)
        wait_until(lambda: not self.loaded.dividing.is_running, "it to be divided")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """See `World`."""
    return World(monkeypatch)


@pytest.mark.parametrize(
    "fails",
    [
        [StorageError("damaged")],
        [WireRefused("too far off")],
        [StorageError("damaged"), WireRefused("too far off")],
        [WireRefused("too far off"), StorageError("damaged")],
    ],
    ids=lambda fails: ", ".join(type(one).__name__ for one in fails),
)
def test_what_one_trial_finds_out_is_another_one_made_without(
    world: World, fails: list[Exception]
) -> None:
    refused = any(isinstance(one, WireRefused) for one in fails)
    world.fails = list(fails)
    world.divide()
    work = world.loaded.dividing
    assert (work.state, work.what, world.fails) == ("done", "done", [])
    assert work.wire_refused == ("too far off" if refused else "")
    # Each that came to nothing is dropped on the devices that heard of it.
    assert len(world.to_devices) == len(fails)
    assert {type(message) for _, message in world.to_devices} == {DropEpoch}


def test_a_peer_that_is_about_to_come_is_awaited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    world.peers_awaited = [(HOST.id,)] * 3
    world.peers_there = ()
    tell = Dividing.tell

    def note(self: Dividing, state: str, fraction: float, what: str) -> None:
        told.append((state, what))
        tell(self, state, fraction, what)
        if len(told) == 3:
            world.peers_there = (HOST.id,)

    monkeypatch.setattr(Dividing, "tell", note)
    world.divide()
    assert told[:3] == [("waiting", 'waiting for "host"')] * 3
    assert told[-1] == ("done", "done")


@pytest.mark.parametrize("over", [(), (HOST.id,)])
def test_without_a_peer_it_is_tried_again_when_one_comes(
    world: World, over: tuple[DeviceId, ...]
) -> None:
    work, world.loaded.record.over = world.loaded.dividing, over
    world.peers_there = ()
    world.divide()
    if over:
        want = 'peer "host" is not there: it is tried again when that changes'
        assert (work.state, work.what) == ("failed", want)
    else:
        assert work.state == "none"
    world.peers_there = (HOST.id,)
    world.deployer.has_changed(HOST, PeerCondition.UP)
    wait_until(lambda: work.state == "done", "it is divided")
    # Once: it is divided now.
    world.deployer.has_changed(HOST, PeerCondition.UP)
    assert not work.is_running


def test_a_model_that_was_unloaded_is_not_tried_again(world: World) -> None:
    world.peers_there = ()
    world.divide()
    world.deployer.stop(world.loaded)
    world.deployer.has_changed(HOST, PeerCondition.UP)
    assert not world.loaded.dividing.is_wanted


def test_peers_are_told_apart_by_what_does_not_change(world: World) -> None:
    assert world.deployer.devices_of(["host", HOST.id]) == (HOST.id,)


def test_a_store_that_is_damaged_again_is_told(world: World) -> None:
    world.fails = [StorageError("damaged"), StorageError("damaged again")]
    world.divide()
    assert (world.loaded.dividing.state, world.loaded.dividing.what) == ("failed", "damaged again")


LOSSES: dict[str, tuple[Callable[[World], None], str]] = {
    "it fails": (
        lambda world: world.deployer.take(
            HOST, EpochFailed(epoch=EPOCH, code="out-of-memory", message="full")
        ),
        "host: full",
    ),
    "it cannot reach another": (
        lambda world: world.deployer.take(
            HOST, EpochUnlinked(epoch=EPOCH, device=OWNER.id, why="refused")
        ),
        "host cannot reach owner: refused",
    ),
    "it is gone": (
        lambda world: world.deployer.has_changed(HOST, PeerCondition.GONE),
        'peer "host" is gone',
    ),
    "its connection ends": (
        lambda world: world.worker_says(Unlinked(epoch=EPOCH, device=HOST.id, why="closed")),
        "host is out of reach: closed",
    ),
    "it breaks the rules of the stream": (
        lambda world: world.worker_says(
            Unlinked(epoch=EPOCH, device=HOST.id, why="lies", is_offence=True)
        ),
        "host is out of reach: lies",
    ),
}


@pytest.mark.parametrize("when", ["while it takes over", "later"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_device_that_is_lost_is_given_up_whenever_that_is_heard(
    world: World, loss: str, when: str
) -> None:
    lose, why = LOSSES[loss]
    if when == "while it takes over":
        world.while_taking_over = lambda: lose(world)
    world.divide()
    if when == "later":
        assert world.to_worker == []
        assert world.loaded.dividing.plan == PLAN
        lose(world)
    wait_until(lambda: world.alone, "this device to serve alone")
    assert world.to_worker == [GiveUpRoute(epoch=EPOCH, route=0, why=why)]
    wait_until(lambda: not world.loaded.dividing.plan.is_used, "the plan to say so")
    assert world.loaded.dividing.plan.reason == f"this device serves alone since {why}"
    assert world.alone == ["m"]
    assert world.offences == ([(HOST.id, "lies")] if "rules" in loss else [])


@pytest.mark.parametrize("when", ["while it takes over", "later"])
def test_an_epoch_that_its_worker_closes_is_dropped_whenever_that_is_heard(
    world: World, when: str
) -> None:
    if when == "while it takes over":
        world.while_taking_over = lambda: world.worker_says(Closed(epoch=EPOCH))
    world.divide()
    if when == "later":
        assert world.to_devices == []
        world.worker_says(Closed(epoch=EPOCH))
    wait_until(lambda: world.to_devices, "the hosts to be told")
    assert world.to_devices == [(HOST.id, DropEpoch(epoch=EPOCH))]
