"""Trusted devices that break the rules where models are divided, as owners of models and as hosts
of stages: what is told, counted and dropped, and that nobody else is disturbed. All sockets are
real."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from edge_agent import clock
from edge_agent.agent import attempts, hosting, plaintext
from edge_agent.agent.attempts import Attempt
from edge_agent.agent.company import Company
from edge_agent.agent.deploying import Deployer
from edge_agent.agent.dividing import Dividing
from edge_agent.agent.hosting import MOST_EPOCHS, MOST_MODELS, Hosting
from edge_agent.agent.layouts import Layout, PlacedStage
from edge_agent.agent.offences import PATIENCE
from edge_agent.agent.offers import Offered
from edge_agent.agent.peering import Peering
from edge_agent.agent.preparing import Preparing
from edge_agent.agent.workers import Serve
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import BuilderLost, Busy, ProtocolError, UsageError
from edge_agent.peers import Peer, PeerCondition
from edge_agent.plans import Epoch, Target
from edge_agent.profiles import SegmentTimes
from edge_agent.stages import Blob
from edge_agent.store.partial import PartialStore
from edge_agent.store.registry import LoadedModel
from edge_agent.subgraphs import ModelId
from edge_agent.transport.curve import make_keys
from edge_agent.wire.deploying import (
    MAX_STAGE_MODEL_BYTES,
    Deploying,
    DropEpoch,
    EpochFailed,
    EpochOpened,
    EpochUnlinked,
    FromHost,
    ListenFor,
    ListeningFor,
    OpenStages,
    PrepareStage,
    StagePrepared,
)
from edge_agent.wire.hosting import Neighbour, Unlinked
from edge_agent.wire.messages import Message
from tests.agent.made_peers import Devices, joined, status_of
from tests.agent.test_hosting import (
    FakePreparing,
    NoWorkers,
    described,
    fetched,
    open_stages,
    prepare,
    stage_model,
)
from tests.planning.made_models import configuration, times
from tests.system.running import wait_until
from tests.wire.made_deploying import CROSSINGS

MODEL = ModelId("5" * 64)
BARRED, UP = PeerCondition.BARRED, PeerCondition.UP


@dataclass
class Heard:
    """Remembers what other devices say of divided epochs. Implements `peering.DeploysTo`."""

    messages: list[Deploying] = field(default_factory=list)
    answer: Callable[[Peer, Deploying], None] = lambda _peer, _message: None

    def deploys(self, peer: Peer, message: Deploying) -> None:
        self.messages.append(message)
        self.answer(peer, message)

    def has_changed(self, peer: Peer, condition: PeerCondition) -> None:
        """It does not matter here."""


@dataclass
class World:
    """`one` is attacked by `bad`, and has a peer that behaves."""

    one: Peering
    bad: Peering
    peers: Company
    """Those of the attacked one, as its hosting sees them."""
    heard: Heard
    hosting: Hosting
    folder: Path

    @property
    def one_id(self) -> Any:
        return self.one.keys.device

    def say(self, message: Message) -> None:
        assert Company(self.bad).tell(self.one_id, message)

    def offer(self, content: bytes, really: bytes | None = None) -> Blob:
        """Content that the attacked one may have; `really` is what it gets."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.folder / sha256
        path.write_bytes(content if really is None else really)
        offered = Offered(path=path, size_bytes=len(content))
        self.bad.offers.offer(self.one_id, {sha256: offered})
        return Blob(sha256=sha256, size_bytes=len(content))

    def failed(self, count: int = 1) -> list[EpochFailed]:
        """What the attacking one was told."""

        def found() -> list[EpochFailed]:
            return [m for m in self.heard.messages if isinstance(m, EpochFailed)]

        wait_until(lambda: len(found()) >= count, "it is told")
        return found()

    def offences(self, count: int = 1) -> str:
        """Wait for so many; what the last one was."""
        wait_until(lambda: status_of(self.one, "bad").offences >= count, "the offence")
        status = status_of(self.one, "bad")
        assert status.offences == count
        session = self.one.call(lambda: self.one.session_with(self.bad.keys.device))
        assert session is not None
        return str(session.offences.last)


@pytest.fixture
def world(made: Devices, tmp_path: Path) -> Iterator[World]:
    one, bad = made.start("one"), made.start("bad", listens=False)
    joined(one, made.start("good", listens=False))
    joined(one, bad)

    preparing = cast(Preparing, FakePreparing(tmp_path))
    peers = Company(one)
    hosts = Hosting(peers, preparing, 1 << 20, NoWorkers())
    nobody = SimpleNamespace(take=lambda *_: None, has_changed=lambda *_: None)
    one.connect(Dividing(hosts, cast(Deployer, nobody)))
    heard = Heard()
    bad.connect(heard)
    for_s, at_s = status_of(one, "good").for_s, clock.monotonic_s()
    try:
        yield World(one, bad, peers, heard, hosts, tmp_path)
        good = status_of(one, "good")
        assert (good.condition, good.offences) == (UP, 0)
        assert good.for_s == pytest.approx(for_s + clock.monotonic_s() - at_s, abs=0.5)
        assert one.counters["internal errors with peers"] == 0
    finally:
        hosts.stop()


def epoch(world: World, number: int = 1, model: ModelId = MODEL) -> Epoch:
    return Epoch(owner=world.bad.keys.device, incarnation=1, model=model, number=number)


def test_an_owner_that_describes_no_stage_is_told_and_it_counts(world: World) -> None:
    world.say(prepare(world.offer(b"\xc1" * 100), epoch(world)))
    (failed,) = world.failed()
    assert failed.code == ProtocolError.code
    assert "message not understood" in failed.message
    assert "message not understood" in world.offences()


def test_a_stage_of_another_model_counts(world: World) -> None:
    _, content = described(stage_model(ModelId("6" * 64)))
    world.say(prepare(world.offer(content), epoch(world)))
    assert world.failed()[0].message.startswith("got a stage of model 666666666666")
    assert world.offences().startswith("got a stage of model 666666666666")


def test_a_description_that_is_too_large_is_not_even_received(world: World) -> None:
    blob = Blob(sha256="a" * 64, size_bytes=MAX_STAGE_MODEL_BYTES + 1)
    world.say(prepare(blob, epoch(world)))
    assert world.failed()[0].message.startswith("got a stage described in 4194305 bytes")
    assert world.offences().startswith("got a stage described in 4194305 bytes")


def test_content_that_is_not_what_its_hash_says_counts(world: World) -> None:
    _, content = described(stage_model())
    world.say(prepare(world.offer(content, content[:-1] + b"?"), epoch(world)))
    assert "got bytes with the SHA-256" in world.failed()[0].message
    assert "got bytes with the SHA-256" in world.offences()


@pytest.mark.parametrize("is_lying", [True, False])
def test_weights_of_another_host_that_are_wrong_are_fetched_from_the_owner(
    world: World, made: Devices, is_lying: bool
) -> None:
    """`bad` is said to have what the owner's stage needs, and has something else."""
    owner = made.start("owner", listens=False)
    joined(world.one, owner)
    owner.connect(Heard())
    weights = bytes(range(256)) * 9000
    blob = world.offer(weights, b"?" * len(weights) if is_lying else weights)
    _, content = described(stage_model())
    described_as = offer(owner, world, content)
    offer(owner, world, weights)
    preparing = cast(FakePreparing, world.hosting._preparing)
    preparing.is_quick, preparing.wants = True, blob
    # Whoever is asked first: the link to the other one is not known.
    message = msgspec.structs.replace(
        prepare(described_as, replace(epoch(world), owner=owner.keys.device)),
        sources=(world.bad.keys.device,),
    )
    slow = {owner.keys.device: 1.0, world.bad.keys.device: 2.0}
    world.peers.receive_bytes_per_s = slow.__getitem__  # type: ignore[method-assign]
    assert Company(owner).tell(world.one_id, message)
    wait_until(lambda: preparing.fetched, "it is fetched")
    assert preparing.fetched == [weights]
    if is_lying:
        assert "got bytes with the SHA-256" in world.offences()
    assert status_of(world.one, "owner").offences == 0


def offer(device: Peering, world: World, content: bytes) -> Blob:
    """Have a device offer that to the attacked one, as it is."""
    sha256 = hashlib.sha256(content).hexdigest()
    offered = Offered(size_bytes=len(content), content=content)
    device.offers.offer(world.one_id, {sha256: offered})
    return Blob(sha256=sha256, size_bytes=len(content))


def test_an_owner_has_so_many_epochs_here_and_no_more(world: World) -> None:
    for number in range(MOST_EPOCHS + 1):
        model = ModelId(f"{number:064d}")
        _, content = described(stage_model(model))
        world.say(prepare(world.offer(content), epoch(world, 1, model)))
    (failed,) = world.failed()
    assert failed.code == Busy.code
    assert failed.message == "16 epochs of it are hosted here, want at most 16"
    assert failed.epoch.model == f"{MOST_EPOCHS:064d}"
    assert world.hosting.count == MOST_EPOCHS
    assert status_of(world.one, "bad").offences == 0


def fetched_after(world: World, blob: Blob, before: bytes) -> bytes:
    """What the attacked one gets of it from the attacker, where another one sent `before`."""
    partial = PartialStore(world.folder / "one").open(blob.sha256, blob.size_bytes)
    bad = next(s.peer for s in world.one.statuses() if s.peer.name == "bad")
    with partial:
        partial.write(0, before)
        return fetched(partial, lambda: Company(world.one).fetch(bad, partial, lambda _count: None))


def test_what_another_one_sent_wrong_before_is_not_held_against_who_sends_the_rest(
    world: World,
) -> None:
    content = bytes(range(256)) * 9000  # several pieces
    assert fetched_after(world, world.offer(content), b"?" * 1_000_000) == content
    assert status_of(world.one, "bad").offences == 0


def test_who_sends_wrong_content_alone_offends_whatever_came_before(world: World) -> None:
    content = bytes(range(256)) * 9000
    blob = world.offer(content, content[:-1] + b"?")
    with pytest.raises(ProtocolError, match="got bytes with the SHA-256"):
        fetched_after(world, blob, content[:1_000_000])
    assert "got bytes with the SHA-256" in world.offences()


def test_old_epochs_and_those_of_others_count_and_begin_nothing(world: World) -> None:
    _, content = described(stage_model())
    blob = world.offer(content)
    world.say(prepare(blob, epoch(world, 7)))
    wait_until(lambda: world.hosting.count == 1, "it is begun")
    world.say(prepare(blob, epoch(world, 6)))
    assert "which is older than one that it began before" in world.offences()
    foreign = replace(epoch(world, 8), owner=world.one_id)
    world.say(prepare(blob, foreign))
    assert "which is of another device" in world.offences(2)
    assert world.hosting.count == 1


def test_what_was_not_prepared_is_not_opened_and_what_is_not_open_not_connected(
    world: World,
) -> None:
    world.say(open_stages(epoch(world)))
    assert world.offences().endswith("was not prepared")
    world.failed()
    wait_until(lambda: world.hosting.count == 0, "it is over")
    world.say(ListenFor(epoch=epoch(world, 2), device=world.one_id, key=None))
    # There is no such epoch, of which it may not know yet.
    assert world.failed(2)[1].message == "this epoch is not, or no longer, hosted here"
    assert world.offences() != ""


def test_who_goes_on_breaking_rules_is_barred_and_what_it_had_here_ends(world: World) -> None:
    _, content = described(stage_model())
    world.say(prepare(world.offer(content), epoch(world, 1000)))
    wait_until(lambda: world.hosting.count == 1, "it is begun")
    for number in range(PATIENCE):
        if number:
            world.offences(number)
        garbage = world.offer(bytes([0xC1, number]))
        world.say(prepare(garbage, epoch(world, 2000 + number)))
    wait_until(lambda: status_of(world.one, "bad").condition is BARRED, "the bar")
    wait_until(lambda: world.hosting.count == 0, "nothing is done for it")


def test_an_owner_with_any_number_of_models_takes_no_more_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "MOST_MODELS", 3)
    assert MOST_MODELS == 1024
    blob = Blob(sha256="a" * 64, size_bytes=10)
    for number in range(6):
        model = ModelId(f"{number:064d}")
        world.say(prepare(blob, epoch(world, 5, model)))
        world.failed(number + 1)  # it was not offered
    (remembered,) = world.hosting._newest.values()
    assert list(remembered) == [f"{number:064d}" for number in (3, 4, 5)]
    # Of those that it remembers, an older one is an offence all the same.
    world.say(prepare(blob, epoch(world, 4, ModelId(f"{5:064d}"))))
    assert "older than one" in world.offences()


# ---- hosts


def timed(seconds: tuple[float, ...], **other: Any) -> SegmentTimes:
    return replace(times(configuration(), seconds), **other)


WRONG_TIMES = {
    "of too many segments": timed((1.0, 2.0)),
    "of none": timed(()),
    "not a number": timed((float("nan"),)),
    "negative": timed((-1.0,)),
    "endless": timed((1.0,), overhead_s=float("inf")),
    "of a segment that is not there": timed((1.0,), refused=(3,)),
}


def attempt_of(world: World) -> Attempt:
    record = SimpleNamespace(target=Target.LATENCY, threads=None, half_bound=None, name="m")
    return Attempt(
        epoch=Epoch(owner=world.one_id, incarnation=1, model=MODEL, number=1),
        record=cast(LoadedModel, record),
        peers=Company(world.one),
        preparing=cast(Preparing, None),
        pool=cast(Any, None),
        is_stopped=lambda: False,
        report=lambda *_: None,
    )


def asked(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    answer: FromHost,
    to: type[Deploying] = PrepareStage,
) -> Attempt:
    """The attacked one has a stage prepared by `bad`, which says that to such a message."""
    monkeypatch.setattr(attempts, "content_of", lambda *_: {})
    attempt = attempt_of(world)

    def take(peer: Peer, message: Deploying) -> None:
        attempt.inbox.put(attempts.FromDevice(device=peer.id, message=cast(FromHost, message)))

    def reply(_peer: Peer, message: Deploying) -> None:
        if isinstance(message, to):
            threading.Thread(target=Company(world.bad).tell, args=(world.one_id, answer)).start()

    taking = SimpleNamespace(take=take, has_changed=lambda *_: None)
    world.one.connect(Dividing(world.hosting, cast(Deployer, taking)))
    world.heard.answer = reply
    return attempt


def layout(world: World) -> Layout:
    device = world.bad.keys.device
    segments = stage_model().segments
    stage = PlacedStage(number=0, route=0, device=device, segments=segments)
    return Layout(stages=(stage,), shares=(1.0,))


def prepared(attempt: Attempt, told: tuple[SegmentTimes, ...]) -> StagePrepared:
    return StagePrepared(
        epoch=attempt.epoch,
        stage=0,
        device_key="k",
        times=told,
        plan="plain",
        measured_s=None,
        received_bytes=0,
    )


@pytest.mark.parametrize("wrong", WRONG_TIMES.values(), ids=list(WRONG_TIMES))
def test_a_host_that_tells_times_that_cannot_be_is_told_of_and_it_counts(
    world: World, monkeypatch: pytest.MonkeyPatch, wrong: SegmentTimes
) -> None:
    answer = prepared(attempt_of(world), (timed((1.0,)), wrong))
    attempt = asked(world, monkeypatch, answer)
    with pytest.raises(ProtocolError, match=r"^bad: stage "):
        attempt.prepare(layout(world), {0: stage_model()}, is_fresh=False)
    assert world.offences().startswith("stage ")
    attempt.drop()
    wait_until(lambda: DropEpoch(epoch=attempt.epoch) in world.heard.messages, "it is dropped")


def test_a_host_that_tells_times_that_can_be_is_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = prepared(attempt_of(world), (timed((1.0,)), timed((0.0,), refused=(0,))))
    attempt = asked(world, monkeypatch, answer)
    ready = attempt.prepare(layout(world), {0: stage_model()}, is_fresh=False)
    assert ready.told == {0: answer}
    assert status_of(world.one, "bad").offences == 0


def test_a_host_that_listens_for_somebody_nobody_spoke_of_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = attempt_of(world)
    answer = ListeningFor(epoch=attempt.epoch, device=world.one_id, port=1)
    attempt = asked(world, monkeypatch, answer)
    attempt.needed = frozenset({world.bad.keys.device})
    Company(world.bad).tell(world.one_id, answer)
    with pytest.raises(ProtocolError, match="which nobody asked"):
        attempt._link([], {}, cast(Any, None))
    assert "which nobody asked" in world.offences()


def test_a_host_that_listens_twice_for_the_same_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, bad = attempt_of(world), world.bad.keys.device
    answer = ListeningFor(epoch=attempt.epoch, device=world.one_id, port=1)
    attempt = asked(world, monkeypatch, answer)
    monkeypatch.setattr(Attempt, "_listening", lambda *_: (bad, world.one_id))
    monkeypatch.setattr(Company, "reached_at", lambda *_: (Endpoint(host="127.0.0.1", port=1),))
    to_worker: list[Message] = []
    own = cast(Any, SimpleNamespace(tell=to_worker.append))
    for _ in range(2):
        Company(world.bad).tell(world.one_id, answer)
    keys = {device: make_keys().public for device in (bad, world.one_id)}
    with pytest.raises(ProtocolError, match="which nobody asked"):
        attempt._link([(bad, world.one_id)], keys, own)
    assert len(to_worker) == 1
    assert "which nobody asked" in world.offences()


def opening(
    attempt: Attempt,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    laid: Layout,
    *,
    is_encrypted: bool = True,
) -> None:
    """Have stages opened as they are laid out."""
    neighbour = Neighbour(device=world.one_id, stages=(-1,), window_bytes=1)
    monkeypatch.setattr(attempts, "neighbours_of", lambda *_, **__: (neighbour,))
    models = {stage.number: stage_model() for stage in laid.stages}
    ready = attempts.Ready(layout=laid, models=models, own={}, told={})
    own = cast(Any, SimpleNamespace(open=lambda _serve: make_keys().public, tell=lambda _: None))
    serve = Serve(epoch=attempt.epoch, subgraphs=(), instances=1)
    attempt.open(ready, CROSSINGS, (), own, serve, (), is_encrypted=is_encrypted)


WRONG_KEYS = [
    pytest.param(True, None, "it opened its stages with no key, want one", id="none"),
    pytest.param(False, make_keys().public, "it opened its stages with a key, want none", id="one"),
]


@pytest.mark.parametrize(("is_encrypted", "key", "want"), WRONG_KEYS)
def test_a_host_whose_worker_has_a_key_where_none_is_wanted_or_none_counts(
    world: World, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool, key: str | None, want: str
) -> None:
    answer = EpochOpened(epoch=attempt_of(world).epoch, key=key)
    attempt = asked(world, monkeypatch, answer, OpenStages)
    with pytest.raises(ProtocolError, match=f"^bad: {want}$"):
        opening(attempt, world, monkeypatch, layout(world), is_encrypted=is_encrypted)
    assert world.offences() == want


@pytest.mark.parametrize("key", ["a" * 52, "b" * 52, "1" + "a" * 51, "b" * 51 + "A"])
def test_what_is_no_key_is_not_even_understood(
    world: World, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    answer = EpochOpened(epoch=attempt_of(world).epoch, key=key)
    asked(world, monkeypatch, answer)
    Company(world.bad).tell(world.one_id, answer)
    assert "key" in world.offences()


def test_a_host_that_opens_twice_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = EpochOpened(epoch=attempt_of(world).epoch, key=make_keys().public)
    attempt = asked(world, monkeypatch, answer, OpenStages)
    # Another device, too, has stages, and has not opened them.
    both = layout(world)
    other = replace(both.stages[0], number=1, device=DeviceId("d" * 20))
    both = replace(both, stages=(*both.stages, other))
    monkeypatch.setattr(Attempt, "_tell", lambda *_: None)
    for _ in range(2):
        Company(world.bad).tell(world.one_id, answer)
    with pytest.raises(ProtocolError, match="that it was not asked to open"):
        opening(attempt, world, monkeypatch, both)
    assert "that it was not asked to open" in world.offences()


def test_a_host_whose_stream_breaks_the_rules_while_it_is_tried_counts(
    world: World,
) -> None:
    attempt, bad = attempt_of(world), world.bad.keys.device
    attempt.inbox.put(Unlinked(epoch=attempt.epoch, device=bad, why="lies", is_offence=True))
    with pytest.raises(ProtocolError, match=r"^bad: lies$"):
        attempt._next()
    assert world.offences() == "lies"


def test_what_a_device_says_that_only_offers_what_it_has_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hosts no stage, so that whether it reaches another one, or has failed, is nothing to the
    epoch; to have opened something is an offence."""
    epoch = attempt_of(world).epoch
    answer = prepared(attempt_of(world), (timed((1.0,)),))
    attempt = asked(world, monkeypatch, answer)
    attempt.needed = frozenset({world.one_id})
    said: list[FromHost] = [
        EpochUnlinked(epoch=epoch, device=world.one_id, why="lies"),
        EpochFailed(epoch=epoch, code="error", message="lies"),
        answer,
    ]
    for message in said:
        Company(world.bad).tell(world.one_id, message)
    for message in said:
        until_s = clock.monotonic_s() + 10.0
        while (came := attempt._next()) is None:
            assert clock.monotonic_s() < until_s
        assert came == attempts.FromDevice(device=world.bad.keys.device, message=message)


@pytest.mark.parametrize("is_own", [False, True])
def test_an_owner_connects_unencrypted_nowhere_that_others_could_listen(
    world: World, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """It listens for a device that only dials, and dials one that listens."""
    monkeypatch.setattr(plaintext, "in_own_namespace", lambda: is_own)
    elsewhere = Endpoint(host="192.0.2.7", port=7600)
    monkeypatch.setattr(Company, "listens_at", elsewhere)
    monkeypatch.setattr(Company, "reached_at", lambda *_: (elsewhere,))
    me, bad = world.one_id, world.bad.keys.device
    monkeypatch.setattr(Attempt, "_listening", lambda *_: (me, bad))
    to_worker: list[Message] = []
    own = cast(Any, SimpleNamespace(tell=to_worker.append))
    attempt = attempt_of(world)
    attempt.is_stopped = lambda: True  # nobody answers here
    keys = {bad: None}
    for connect in (
        lambda: attempt._link([(me, bad)], keys, own),
        lambda: attempt._dial(bad, me, 7601, keys, own),
    ):
        to_worker.clear()
        if is_own:
            with suppress(BuilderLost):
                connect()
            assert len(to_worker) == 1
        else:
            with pytest.raises(UsageError, match=r"unencrypted over 192\.0\.2\.7, want loopback"):
                connect()
            assert to_worker == []


def test_times_are_decoded_as_they_were_sent() -> None:
    """What is checked above is what comes: MessagePack carries NaN and infinity."""
    raw = msgspec.msgpack.encode(timed((float("nan"), float("inf"))))
    found = msgspec.msgpack.decode(raw, type=SegmentTimes)
    assert found.segment_s[0] != found.segment_s[0]
    assert found.segment_s[1] == float("inf")
