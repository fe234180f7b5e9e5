"""What a device does for models of others: what it takes from an owner, what it refuses, and when
that ends."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from edge_agent import clock
from edge_agent.agent import hosting, plaintext
from edge_agent.agent.hosting import MOST_EPOCHS, Hosting
from edge_agent.agent.offers import Offered, Offers
from edge_agent.agent.preparing import Prepared, Preparing
from edge_agent.agent.processes import Child
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import (
    BuilderLost,
    EdgeAgentError,
    PeerLost,
    ProtocolError,
    StorageError,
)
from edge_agent.peers import Peer, PeerCondition, public_key
from edge_agent.plans import Epoch, Target
from edge_agent.stages import Blob, StageModel
from edge_agent.store.hosted import Hosted, HostedKey
from edge_agent.store.partial import Partial, PartialStore
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.transport.curve import make_keys
from edge_agent.wire.deploying import (
    MAX_STAGE_MODEL_BYTES,
    DialTo,
    DropEpoch,
    EpochFailed,
    FromOwner,
    HostedStage,
    ListenFor,
    OfferStages,
    OpenStages,
    PrepareStage,
)
from edge_agent.wire.hosting import Neighbour, StageHere
from edge_agent.wire.messages import Built, Message
from tests.system.running import wait_until
from tests.wire.made_deploying import CROSSINGS

OWNER = Peer(key=public_key(b"1" * 32), name="owner")
OTHER = Peer(key=public_key(b"2" * 32), name="other")
MODEL = ModelId("5" * 64)
MOST_BYTES = 1 << 20
BUILT = cast(
    Built, SimpleNamespace(device_key="k", times=(), plan=SimpleNamespace(measured_s=None))
)


def epoch(number: int = 1, owner: Peer = OWNER, incarnation: int = 1) -> Epoch:
    return Epoch(owner=owner.id, incarnation=incarnation, model=MODEL, number=number)


def stage_model(model: ModelId = MODEL) -> StageModel:
    return StageModel(
        model=model,
        segments=SegmentRange(start=0, stop=1),
        starts=(0,),
        nodes=1,
        graph=Blob(sha256="e" * 64, size_bytes=1),
        tensors=(),
        samples=(),
        inputs=(),
        outputs=(),
        shapes=(),
    )


def described(stage: StageModel) -> tuple[Blob, bytes]:
    content = msgspec.msgpack.encode(stage)
    blob = Blob(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    return blob, content


def prepare(blob: Blob, of: Epoch, number: int = 0) -> PrepareStage:
    return PrepareStage(
        epoch=of,
        stage=number,
        model=blob,
        target=Target.LATENCY,
        threads=None,
        half_bound=None,
        is_fresh=False,
        sources=(),
    )


def open_stages(of: Epoch, window_bytes: int = 1024) -> OpenStages:
    return OpenStages(
        epoch=of,
        crossings=CROSSINGS,
        stages=(
            HostedStage(
                number=0, model="e" * 64, target=Target.LATENCY, threads=None, half_bound=None
            ),
        ),
        neighbours=(Neighbour(device=OWNER.id, stages=(-1,), window_bytes=window_bytes),),
        is_encrypted=True,
    )


@dataclass
class FakePeers:
    """Remembers what is told, and has the content that owners offer."""

    told: deque[tuple[DeviceId, Message]] = field(default_factory=deque)
    content: dict[str, bytes] = field(default_factory=dict)
    offences: list[tuple[DeviceId, str]] = field(default_factory=list)
    offers: Offers = field(default_factory=Offers)
    listens_at: Endpoint | None = None

    def tell(self, device: DeviceId, message: Message) -> bool:
        self.told.append((device, message))
        return True

    def offend(self, device: DeviceId, what: str) -> None:
        self.offences.append((device, what))

    def reached_at(self, device: DeviceId) -> tuple[Endpoint, ...]:
        del device
        return ()

    def peer(self, device: DeviceId) -> Peer | None:
        return next((p for p in (OWNER, OTHER) if p.id == device), None)

    def receive_bytes_per_s(self, device: DeviceId) -> float:
        del device
        return 0.0

    def fetch(self, peer: Peer, tensor: Partial, on_received: Callable[[int], None]) -> None:
        del peer
        if tensor.sha256 not in self.content:
            raise StorageError("that was not offered to this device")
        tensor.write(tensor.received_bytes, self.content[tensor.sha256])
        on_received(tensor.size_bytes)
        tensor.check()

    def failures(self) -> list[tuple[DeviceId, str, str]]:
        found = [(device, m) for device, m in self.told if isinstance(m, EpochFailed)]
        return [(device, m.code, m.message) for device, m in found]


def fetched(
    partial: Partial, fetch: Callable[[], None], is_stopped: Callable[[], bool] = lambda: False
) -> bytes:
    """All of it: the connection for content may come a moment after the other one."""
    until_s = clock.monotonic_s() + 10.0
    while True:
        try:
            fetch()
            return b"".join(map(bytes, partial))
        except PeerLost:
            if is_stopped() or clock.monotonic_s() > until_s:
                raise
            clock.sleep_s(0.01)


@dataclass
class FakePreparing:
    """Waits until it is stopped, as a stage that takes long."""

    folder: Path
    is_quick: bool = False
    """Has every stage ready at once instead."""
    wants: Blob | None = None
    """What it fetches for each stage."""
    fetched: list[bytes] = field(default_factory=list)
    in_use: Counter[ModelId] = field(default_factory=Counter)
    hosted: tuple[Hosted, ...] = ()
    began: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def read(
        self,
        blob: Blob,
        fetch: Callable[[Partial, Callable[[int], None]], None],
        is_stopped: Callable[[], bool],
    ) -> bytes:
        store = PartialStore(self.folder / str(next(self.numbers)))
        with store.open(blob.sha256, blob.size_bytes) as partial:
            return fetched(partial, lambda: fetch(partial, lambda _count: None), is_stopped)

    def prepare(
        self,
        key: HostedKey,
        fetch: Callable[[Partial, Callable[[int], None]], None],
        report: object,
        is_stopped: Callable[[], bool],
        *,
        is_fresh: bool,
    ) -> Prepared:
        del report, is_fresh
        self.began.set()
        if self.wants is not None:
            self.fetched.append(self.read(self.wants, fetch, is_stopped))
        if self.is_quick:
            return Prepared(hosted=Hosted(key=key, built=BUILT), received_bytes=0)
        try:
            while not is_stopped():
                clock.sleep_s(0.005)
            raise BuilderLost("stopped")
        finally:
            self.ended.set()

    def hosted_for(self, owner: DeviceId) -> tuple[Hosted, ...]:
        return tuple(one for one in self.hosted if one.key.owner == owner)

    def content_of(self, stage: StageModel) -> dict[str, Offered]:
        return {stage.graph.sha256: Offered(size_bytes=1, content=b"x")}

    def hold(self, stage: ModelId) -> None:
        self.in_use[stage] += 1

    def release(self, stage: ModelId) -> None:
        self.in_use[stage] -= 1


class NoWorkers:
    """Of an agent that was to open nothing. Implements `hosting.StartsWorkers`."""

    def prepare_to_host(self) -> Child:
        raise AssertionError("nothing was to be opened")

    def __init__(self) -> None:
        self.expected = 0

    def expect_divided(self, *, is_background: bool) -> None:
        assert not is_background
        self.expected += 1


@dataclass
class Made:
    hosting: Hosting
    peers: FakePeers
    preparing: FakePreparing

    def offered(self, stage: StageModel) -> Blob:
        blob, content = described(stage)
        self.peers.content[blob.sha256] = content
        return blob

    def failed(self, count: int = 1) -> list[tuple[DeviceId, str, str]]:
        wait_until(lambda: len(self.peers.failures()) >= count, "told that it failed")
        return self.peers.failures()

    def is_empty(self) -> bool:
        return self.hosting.count == 0


@contextmanager
def _made(folder: Path) -> Iterator[Made]:
    peers, preparing = FakePeers(), FakePreparing(folder)

    hosting = Hosting(peers, cast(Preparing, preparing), MOST_BYTES, NoWorkers())
    made = Made(hosting, peers, preparing)
    try:
        yield made
    finally:
        hosting.stop()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    with _made(tmp_path) as found:
        yield found


def test_an_owner_speaks_of_its_own_epochs_alone(made: Made) -> None:
    blob = made.offered(stage_model())
    made.hosting.take(OWNER, prepare(blob, epoch()))
    assert made.preparing.began.wait(10)
    for message in (
        prepare(blob, epoch()),
        open_stages(epoch()),
        ListenFor(epoch=epoch(), device=OTHER.id, key=None),
        DropEpoch(epoch=epoch()),
    ):
        with pytest.raises(ProtocolError, match="which is of another device"):
            made.hosting.take(OTHER, message)
    assert not made.preparing.ended.is_set()
    assert made.hosting.count == 1


def test_an_owner_that_changes_its_key_goes_on_with_its_epochs(made: Made) -> None:
    blob = made.offered(stage_model())
    made.hosting.take(OWNER, prepare(blob, epoch()))
    made.hosting.take(replace(OWNER, next_key=public_key(b"9" * 32)), DropEpoch(epoch=epoch()))
    wait_until(made.is_empty, "the epoch is over")


def test_an_epoch_older_than_another_one_is_refused(made: Made) -> None:
    blob = made.offered(stage_model())
    made.hosting.take(OWNER, prepare(blob, epoch(5, incarnation=2)))
    for old in (epoch(4, incarnation=2), epoch(9, incarnation=1)):
        with pytest.raises(ProtocolError, match="which is older than one that it began before"):
            made.hosting.take(OWNER, prepare(blob, old))
    made.hosting.take(OWNER, prepare(blob, epoch(6, incarnation=2)))
    assert made.hosting.count == 2


def test_an_owner_has_so_many_epochs_at_once(made: Made) -> None:
    blob = made.offered(stage_model())
    for number in range(1, MOST_EPOCHS + 1):
        made.hosting.take(OWNER, prepare(blob, epoch(number)))
    made.hosting.take(OWNER, prepare(blob, epoch(MOST_EPOCHS + 1)))
    ((device, code, text),) = made.failed()
    assert (device, code) == (OWNER.id, "busy")
    assert text == f"{MOST_EPOCHS} epochs of it are hosted here, want at most {MOST_EPOCHS}"
    # Another one has room of its own.
    made.hosting.take(OTHER, prepare(blob, epoch(1, OTHER)))
    assert made.hosting.count == MOST_EPOCHS + 1


def test_what_is_not_hosted_is_told(made: Made) -> None:
    made.hosting.take(OWNER, ListenFor(epoch=epoch(), device=OTHER.id, key=None))
    ((device, code, text),) = made.failed()
    assert (device, code, text) == (
        OWNER.id,
        "busy",
        "this epoch is not, or no longer, hosted here",
    )
    made.hosting.take(OWNER, DropEpoch(epoch=epoch()))  # which is so already
    assert made.is_empty()
    assert len(made.peers.failures()) == 1


@pytest.mark.parametrize("condition", [PeerCondition.GONE, PeerCondition.BARRED])
def test_an_owner_that_is_gone_has_nothing_done_for_it(
    made: Made, condition: PeerCondition
) -> None:
    blob = made.offered(stage_model())
    made.hosting.take(OWNER, prepare(blob, epoch()))
    assert made.preparing.began.wait(10)
    for mild in (PeerCondition.SLOW, PeerCondition.SILENT, PeerCondition.UP):
        made.hosting.has_changed(OWNER, mild)
    made.hosting.has_changed(OTHER, condition)
    assert not made.preparing.ended.wait(0.1)
    made.hosting.has_changed(OWNER, condition)
    assert made.preparing.ended.wait(10)
    wait_until(made.is_empty, "the epoch is over")
    assert made.peers.failures() == []


def test_an_epoch_that_is_dropped_ends_what_is_done_for_it(made: Made) -> None:
    blob = made.offered(stage_model())
    made.hosting.take(OWNER, prepare(blob, epoch()))
    assert made.preparing.began.wait(10)
    made.hosting.take(OWNER, DropEpoch(epoch=epoch()))
    assert made.preparing.ended.wait(10)
    wait_until(made.is_empty, "the epoch is over")
    assert made.peers.failures() == []


def _too_large() -> tuple[list[FromOwner], str]:
    blob = Blob(sha256="a" * 64, size_bytes=MAX_STAGE_MODEL_BYTES + 1)
    return [prepare(blob, epoch())], "got a stage described in 4194305 bytes, want at most 4194304"


def _not_offered() -> tuple[list[FromOwner], str]:
    blob, _ = described(stage_model())
    return [prepare(blob, epoch())], "that was not offered to this device"


def _not_open() -> tuple[list[FromOwner], str]:
    begun = open_stages(epoch())
    return [begun], "stage 0 of"


def _too_much_under_way() -> tuple[list[FromOwner], str]:
    return [open_stages(epoch(), MOST_BYTES + 1)], f"need {MOST_BYTES + 1} bytes here, want at most"


@pytest.mark.parametrize("case", [_too_large, _not_offered, _not_open, _too_much_under_way])
def test_what_cannot_be_done_is_told_and_ends_the_epoch(
    made: Made, case: Callable[[], tuple[list[FromOwner], str]]
) -> None:
    messages, want = case()
    for message in messages:
        made.hosting.take(OWNER, message)
    ((device, _, text),) = made.failed()
    assert device == OWNER.id
    assert want in text
    wait_until(made.is_empty, "the epoch is over")


def test_streams_without_encryption_are_refused_unless_the_device_allows_them(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = msgspec.structs.replace(open_stages(epoch()), is_encrypted=False)
    made.hosting.take(OWNER, plain)
    ((_, code, text),) = made.failed()
    assert (code, text) == (
        "usage",
        "tensors are to cross unencrypted, which this device does not allow: remove "
        "plaintext_streams in [peering] of the settings of the owner",
    )
    wait_until(made.is_empty, "the epoch is over")
    monkeypatch.setattr(made.hosting, "_allows_plaintext", True)
    made.hosting.take(OWNER, msgspec.structs.replace(plain, epoch=epoch(2)))
    assert "was not prepared" in made.failed(2)[1][2]


@dataclass
class Opening:
    """Epochs of which the stages are opened, with a worker that remembers what it is told."""

    made: Made
    to_worker: list[Message] = field(default_factory=list)

    def open(self, number: int, *, is_encrypted: bool = True) -> None:
        """`OWNER` has one opened, whose neighbours are itself and `OTHER`."""
        message = open_stages(epoch(number))
        neighbours = (
            *message.neighbours,
            msgspec.structs.replace(message.neighbours[0], device=OTHER.id),
        )
        self.made.hosting.take(
            OWNER,
            msgspec.structs.replace(message, neighbours=neighbours, is_encrypted=is_encrypted),
        )

    def connect(self, number: int, message: ListenFor | DialTo, key: str | None) -> None:
        self.made.hosting.take(
            OWNER, msgspec.structs.replace(message, epoch=epoch(number), key=key)
        )


@pytest.fixture
def opening(made: Made, monkeypatch: pytest.MonkeyPatch) -> Opening:
    found = Opening(made)
    worker = SimpleNamespace(
        tell=found.to_worker.append, end=lambda: None, open=lambda _message: make_keys().public
    )
    here = StageHere(number=0, subgraphs=(), pinned_cores=(), inputs=(), outputs=(), threads=1)
    monkeypatch.setattr(hosting, "StageWorker", lambda *_: worker)
    monkeypatch.setattr(hosting._HostedEpoch, "_here", lambda *_: here)
    monkeypatch.setattr(NoWorkers, "prepare_to_host", lambda _: None)
    monkeypatch.setattr(made.hosting, "_allows_plaintext", True)
    made.peers.listens_at = Endpoint(host="192.0.2.7", port=7600)
    return found


TO_CONNECT = [
    pytest.param(ListenFor(epoch=epoch(), device=OTHER.id, key=None), id="listen"),
    pytest.param(
        DialTo(epoch=epoch(), device=OTHER.id, key=None, port=1, addresses=("192.0.2.7",)),
        id="dial",
    ),
]


@pytest.mark.parametrize("message", TO_CONNECT)
def test_a_host_connects_unencrypted_nowhere_that_others_could_listen(
    made: Made, opening: Opening, monkeypatch: pytest.MonkeyPatch, message: ListenFor | DialTo
) -> None:
    monkeypatch.setattr(plaintext, "in_own_namespace", lambda: False)
    opening.open(1, is_encrypted=False)
    opening.connect(1, message, None)
    ((_, code, text),) = made.failed()
    assert code == "usage"
    assert text.startswith("tensors are to cross unencrypted over 192.0.2.7, want loopback or")
    assert opening.to_worker == []
    # In a namespace of its own, and with a key anywhere, it does.
    wait_until(made.is_empty, "the epoch is over")
    monkeypatch.setattr(plaintext, "in_own_namespace", lambda: True)
    opening.open(2, is_encrypted=False)
    opening.connect(2, message, None)
    wait_until(lambda: len(opening.to_worker) == 1, "it connects")
    monkeypatch.setattr(plaintext, "in_own_namespace", lambda: False)
    opening.open(3)
    opening.connect(3, message, make_keys().public)
    wait_until(lambda: len(opening.to_worker) == 2, "it connects")


@pytest.mark.parametrize("message", TO_CONNECT)
def test_a_worker_is_told_to_connect_once_to_each_neighbour_with_a_key_as_was_said(
    made: Made, opening: Opening, message: ListenFor | DialTo
) -> None:
    key = make_keys().public
    third = Peer(key=public_key(b"3" * 32), name="third")
    stranger = msgspec.structs.replace(message, device=third.id)
    wrong: list[tuple[bool, ListenFor | DialTo, str | None, str]] = [
        (True, stranger, key, f"told to connect to {third.id}: it is no neighbour, or was told"),
        (True, message, None, f"told to connect to {OTHER.id}: got no key, want one"),
        (False, message, key, f"told to connect to {OTHER.id}: got a key, want none"),
    ]
    for number, (is_encrypted, asked, with_key, want) in enumerate(wrong, start=1):
        opening.open(number, is_encrypted=is_encrypted)
        opening.connect(number, asked, with_key)
        (*_, (_, code, text)) = made.failed(number)
        assert (code, text[: len(want)]) == (ProtocolError.code, want)
        assert made.peers.offences[-1] == (OWNER.id, text)
        wait_until(made.is_empty, "the epoch is over")
    assert opening.to_worker == []
    opening.open(9)
    opening.connect(9, message, key)
    opening.connect(9, message, key)
    assert made.failed(4)[-1][2].endswith("it is no neighbour, or was told before")
    assert len(opening.to_worker) == 1


def test_a_stage_of_another_model_is_refused(made: Made) -> None:
    blob = made.offered(stage_model(ModelId("6" * 64)))
    made.hosting.take(OWNER, prepare(blob, epoch()))
    ((_, code, text),) = made.failed()
    assert code == ProtocolError.code
    assert text.startswith("got a stage of model 666666666666")


def test_what_is_no_stage_is_refused(made: Made) -> None:
    content = b"\xc1" * 100
    blob = Blob(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    made.peers.content[blob.sha256] = content
    made.hosting.take(OWNER, prepare(blob, epoch()))
    ((_, code, text),) = made.failed()
    assert code == ProtocolError.code
    assert "message not understood" in text


@pytest.mark.parametrize(
    "message",
    [
        ListenFor(epoch=epoch(), device=OTHER.id, key=None),
        DialTo(epoch=epoch(), device=OTHER.id, key=None, port=1, addresses=("10.0.0.1",)),
    ],
)
def test_connections_of_what_is_not_open_are_refused(made: Made, message: FromOwner) -> None:
    made.peers.listens_at = Endpoint(host="127.0.0.1", port=7600)
    made.hosting.take(OWNER, OfferStages(epoch=epoch(), device=OTHER.id, stages=("e" * 64,)))
    made.hosting.take(OWNER, message)
    ((_, code, text),) = made.failed()
    assert (code, text) == (ProtocolError.code, f"{epoch()} is not open")
    wait_until(made.is_empty, "the epoch is over")


def test_what_is_not_hosted_for_an_owner_is_offered_to_nobody(made: Made) -> None:
    made.hosting.take(OWNER, OfferStages(epoch=epoch(), device=OTHER.id, stages=("e" * 64,)))
    made.hosting.take(OWNER, ListenFor(epoch=epoch(), device=OTHER.id, key=None))
    made.failed()  # it has dealt with both
    assert made.peers.offers.find(OTHER.id, "e" * 64) is None


def test_a_stage_prepared_again_is_in_use_once_and_none_after_the_end(made: Made) -> None:
    made.preparing.is_quick = True
    one = stage_model()
    other = replace(one, nodes=2)
    blobs = [made.offered(one), made.offered(one), made.offered(other)]
    for blob in blobs:
        made.hosting.take(OWNER, prepare(blob, epoch()))
    wait_until(lambda: len(made.peers.told) == len(blobs), "all are prepared")
    assert +made.preparing.in_use == Counter({other.id: 1})
    made.hosting.take(OWNER, DropEpoch(epoch=epoch()))
    wait_until(lambda: not +made.preparing.in_use, "nothing is in use")


def test_what_is_offered_again_is_offered_once(made: Made) -> None:
    made.preparing.is_quick = True
    stage = stage_model()
    key = HostedKey(
        stage=stage, owner=OWNER.id, target=Target.LATENCY, threads=None, half_bound=None
    )
    made.preparing.hosted = (Hosted(key=key),)
    calls = []
    offer = made.peers.offers.offer

    def counted(device: DeviceId, content: Mapping[str, Offered]) -> None:
        calls.append(device)
        offer(device, content)

    made.peers.offers.offer = counted  # type: ignore[method-assign]
    message = OfferStages(epoch=epoch(), device=OTHER.id, stages=(stage.id,))
    for _ in range(5):
        made.hosting.take(OWNER, message)
    made.hosting.take(OWNER, prepare(made.offered(stage), epoch()))
    wait_until(lambda: len(made.peers.told) == 1, "it has dealt with all")
    assert calls == [OTHER.id]
    assert made.peers.offers.find(OTHER.id, stage.graph.sha256) is not None
    made.hosting.take(OWNER, DropEpoch(epoch=epoch()))
    wait_until(
        lambda: made.peers.offers.find(OTHER.id, stage.graph.sha256) is None, "it is withdrawn"
    )


def test_a_worker_is_expected_where_a_stage_is_prepared_and_not_where_it_is_offered(
    made: Made,
) -> None:
    made.preparing.is_quick = True
    workers = cast(NoWorkers, made.hosting._workers)
    made.hosting.take(OWNER, OfferStages(epoch=epoch(), device=OTHER.id, stages=("e" * 64,)))
    made.hosting.take(OWNER, prepare(made.offered(stage_model(ModelId("6" * 64))), epoch()))
    made.failed()
    assert workers.expected == 0
    made.hosting.take(OWNER, prepare(made.offered(stage_model()), epoch(2)))
    wait_until(lambda: len(made.peers.told) == 2, "it is prepared")
    assert workers.expected == 1


def test_nothing_is_prepared_for_an_epoch_that_is_open(made: Made, opening: Opening) -> None:
    opening.open(1)
    made.hosting.take(OWNER, prepare(made.offered(stage_model()), epoch()))
    ((_, code, text),) = made.failed()
    assert code == ProtocolError.code
    assert text.endswith("is open: nothing more is prepared for it")
    assert made.peers.offences == [(OWNER.id, text)]


def test_an_error_of_the_agent_itself_is_told(made: Made) -> None:
    blob = made.offered(stage_model())

    def broken(*_: object, **__: object) -> Prepared:
        raise RuntimeError("a bug")

    made.preparing.prepare = broken  # type: ignore[method-assign]
    made.hosting.take(OWNER, prepare(blob, epoch()))
    ((_, code, text),) = made.failed()
    assert (code, text) == (EdgeAgentError.code, "the agent failed: see its log")
    wait_until(made.is_empty, "the epoch is over")
