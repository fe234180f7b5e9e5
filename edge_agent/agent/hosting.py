"""What this device does for models of others: it prepares stages and has workers run them, as their
owners ask. An owner's epochs end when it says so, or is gone."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import msgspec

from edge_agent import clock
from edge_agent.agent.other_devices import OtherDevices
from edge_agent.agent.plaintext import SETTING, check_plaintext
from edge_agent.agent.preparing import Prepared, Preparing
from edge_agent.agent.processes import Child
from edge_agent.agent.stage_worker import StageWorker
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import (
    Busy,
    EdgeAgentError,
    PeerLost,
    ProtocolError,
    StorageError,
    UsageError,
)
from edge_agent.peers import Peer, PeerCondition, device_id
from edge_agent.plans import Epoch
from edge_agent.stages import StageModel
from edge_agent.store.hosted import HostedKey
from edge_agent.store.partial import Partial
from edge_agent.subgraphs import ModelId
from edge_agent.wire.deploying import (
    MAX_STAGE_MODEL_BYTES,
    DialTo,
    DropEpoch,
    EpochOpened,
    FromOwner,
    HostedStage,
    ListenFor,
    OfferStages,
    OpenStages,
    PrepareStage,
    StagePrepared,
    StageProgress,
    failure,
)
from edge_agent.wire.hosting import (
    MAX_CANDIDATES,
    Dial,
    DividedPart,
    HostStages,
    Listen,
    StageHere,
    key_problem,
)
from edge_agent.wire.messages import (
    Message,
    decode,
)
from edge_agent.wire.parts import MAX_TOLD_CHARACTERS

log = logging.getLogger(__name__)

MOST_MODELS: Final = 1024
"""Of an owner, of which it is remembered which epoch began last."""
MOST_EPOCHS: Final = 16
"""Of one owner at once."""
MOST_WAITING: Final = 1024
"""Messages of one epoch that wait."""
PROGRESS_S: Final = 0.5
"""How often an owner is told how far preparing is."""
_STAGE_MODEL: Final = msgspec.msgpack.Decoder(StageModel)


class Peers(OtherDevices, Protocol):
    """What is needed of `company.Company`."""

    def peer(self, device: DeviceId) -> Peer | None:
        """The peer with that id."""
        ...

    def receive_bytes_per_s(self, device: DeviceId) -> float:
        """Goodput of the link from a peer to this device; 0 if it is not there or not known."""
        ...

    def fetch(self, peer: Peer, tensor: Partial, on_received: Callable[[int], None]) -> None:
        """Get what is missing of a tensor from a peer."""
        ...


class StartsWorkers(Protocol):
    """What is needed of `workers.Workers`."""

    def prepare_to_host(self) -> Child:
        """A process that loads ONNX Runtime, or has done so."""
        ...

    def expect_divided(self, *, is_background: bool) -> None:
        """One will be wanted soon."""
        ...


@dataclass(slots=True)
class _Place:
    """Of an epoch of one owner."""

    owner: Peer
    stopped: threading.Event = field(default_factory=threading.Event)
    inbox: queue.Queue[FromOwner | None] = field(
        default_factory=lambda: queue.Queue(maxsize=MOST_WAITING)
    )


class Hosting:
    """All epochs of other devices."""

    def __init__(
        self,
        peers: Peers,
        preparing: Preparing,
        max_window_bytes: int,
        workers: StartsWorkers,
        *,
        allows_plaintext: bool = False,
    ) -> None:
        """`max_window_bytes` is what may come in at once for one epoch; `allows_plaintext`: what
        crosses need not be encrypted (see `plaintext`)."""
        self._peers = peers
        self._preparing = preparing
        self._max_window_bytes = max_window_bytes
        self._workers = workers
        self._allows_plaintext = allows_plaintext
        self._changing = threading.Lock()
        self._epochs: dict[Epoch, _Place] = {}
        self._newest: dict[str, OrderedDict[ModelId, tuple[int, int]]] = {}
        """The last epoch of each model that an owner began, by its id."""
        self._is_stopped = False

    # ---- what the thread of the peers calls

    def take(self, owner: Peer, message: FromOwner) -> None:
        """An owner asks something.

        Raises: ProtocolError: what it must not.
        """
        epoch = message.epoch
        if epoch.owner not in {device_id(key) for key in owner.keys}:
            raise ProtocolError(f"it speaks of {epoch}, which is of another device")
        with self._changing:
            place = self._epochs.get(epoch)
            if place is not None and owner.key not in place.owner.keys:
                raise ProtocolError(f"it speaks of {epoch}, which is of another device")
            begins = isinstance(message, PrepareStage | OfferStages | OpenStages)
            if place is None and begins:
                place = self._begin(owner, epoch)
        if place is None:
            if not begins and not isinstance(message, DropEpoch):
                error = Busy("this epoch is not, or no longer, hosted here")
                self._later(self._fail, owner, epoch, error)
            return
        if isinstance(message, DropEpoch):
            self.forget(epoch)
            return
        try:
            place.inbox.put_nowait(message)
        except queue.Full:
            raise ProtocolError(f"it asks more of {epoch} at once than it may") from None

    def _begin(self, owner: Peer, epoch: Epoch) -> _Place | None:
        """A new epoch; None: it was refused. Hold the lock."""
        number = epoch.incarnation, epoch.number
        begun = self._newest.setdefault(epoch.owner, OrderedDict())
        newest = begun.get(epoch.model, number)
        own = sum(place.owner.key in owner.keys for place in self._epochs.values())
        if number < newest:
            raise ProtocolError(f"it begins {epoch}, which is older than one that it began before")
        if own >= MOST_EPOCHS or self._is_stopped:
            self._later(
                self._fail,
                owner,
                epoch,
                Busy(f"{own} epochs of it are hosted here, want at most {MOST_EPOCHS}"),
            )
            return None
        begun[epoch.model] = number
        begun.move_to_end(epoch.model)
        if len(begun) > MOST_MODELS:
            begun.popitem(last=False)
        self._epochs[epoch] = place = _Place(owner)
        hosted = _HostedEpoch(epoch, place, self, self._peers, self._preparing)
        threading.Thread(target=hosted.run, name="hosted", daemon=True).start()
        return place

    @staticmethod
    def _later(action: Callable[..., None], *arguments: object) -> None:
        # Telling a peer waits for the thread that calls this.
        threading.Thread(target=action, args=arguments, name="refusing", daemon=True).start()

    def has_changed(self, peer: Peer, condition: PeerCondition) -> None:
        """An owner is so from now on."""
        if condition not in (PeerCondition.GONE, PeerCondition.BARRED):
            return
        with self._changing:
            for place in self._epochs.values():
                if place.owner.key in peer.keys:
                    _stop(place)

    def _fail(self, owner: Peer, epoch: Epoch, error: EdgeAgentError) -> None:
        self._peers.tell(owner.id, failure(epoch, error))

    # ---- what hosted epochs need

    def worker(self) -> Child:
        """A process that will run stages."""
        return self._workers.prepare_to_host()

    def expect_worker(self) -> None:
        """`worker` will be wanted soon."""
        self._workers.expect_divided(is_background=False)

    def check_windows(self, message: OpenStages) -> None:
        """Raises: UsageError: more may come in than there is room for."""
        total = sum(neighbour.window_bytes for neighbour in message.neighbours)
        if total > self._max_window_bytes:
            raise UsageError(
                f"the tensors under way need {total} bytes here, want at most "
                f"{self._max_window_bytes}: raise max_bytes_in_flight under [limits] on this device"
            )

    def forget(self, epoch: Epoch) -> None:
        """It is over."""
        with self._changing:
            place = self._epochs.pop(epoch, None)
        if place is not None:
            _stop(place)

    def check_encrypted(self, message: OpenStages) -> None:
        """Raises: UsageError: it is not, although this device wants it."""
        if not message.is_encrypted and not self._allows_plaintext:
            raise UsageError(
                f"tensors are to cross unencrypted, which this device does not allow: remove "
                f"{SETTING} of the owner"
            )

    @property
    def count(self) -> int:
        """How many epochs are hosted."""
        with self._changing:
            return len(self._epochs)

    def stop(self) -> None:
        """End all of them."""
        with self._changing:
            self._is_stopped = True
            places = list(self._epochs.values())
            self._epochs.clear()
        for place in places:
            _stop(place)


def _stop(place: _Place) -> None:
    """End what is done there."""
    place.stopped.set()
    # When it is full, its thread has enough to look at `stopped` for.
    with suppress(queue.Full):
        place.inbox.put_nowait(None)


class _HostedEpoch:
    """One epoch, on a thread of its own: what its owner asks is done in order."""

    def __init__(
        self, epoch: Epoch, place: _Place, hosting: Hosting, peers: Peers, preparing: Preparing
    ) -> None:
        self._epoch = epoch
        self._place = place
        self._hosting = hosting
        self._peers = peers
        self._preparing = preparing
        self._prepared: dict[int, Prepared] = {}
        self._offering = ExitStack()
        self._offered: set[tuple[DeviceId, ModelId]] = set()
        self._worker: StageWorker | None = None
        self._is_encrypted = True
        self._unlinked: set[DeviceId] = set()
        """To which of its neighbours the worker has not been told to connect."""

    def run(self) -> None:
        """Until it is over."""
        try:
            while not self._place.stopped.is_set():
                message = self._place.inbox.get()
                if message is not None and not self._place.stopped.is_set():
                    self._do(message)
        except EdgeAgentError as error:
            if not self._place.stopped.is_set():
                log.warning("%s cannot be hosted: %s", self._epoch, error)
                self._failed(error)
        except Exception:
            log.exception("hosting %s failed", self._epoch)
            self._failed(EdgeAgentError("the agent failed: see its log"))
        finally:
            if self._worker is not None:
                self._worker.end()
            for prepared in self._prepared.values():
                self._preparing.release(prepared.hosted.key.stage.id)
            self._offering.close()
            self._hosting.forget(self._epoch)

    def _failed(self, error: EdgeAgentError) -> None:
        self._tell(failure(self._epoch, error))

    def _blamed(self, what: str) -> ProtocolError:
        """The error that the owner broke a rule, which is counted."""
        self._peers.offend(self._place.owner.id, what)
        return ProtocolError(what)

    def _tell(self, message: Message) -> None:
        self._peers.tell(self._place.owner.id, message)

    def _do(self, message: FromOwner) -> None:
        match message:
            case PrepareStage():
                self._prepare(message)
            case OfferStages():
                self._offer(message)
            case OpenStages():
                self._open(message)
            case ListenFor(device=device, key=key):
                at = self._peers.listens_at
                if at is None:
                    raise UsageError("this agent does not listen, so that no worker of it can")
                worker = self._linking(message)
                if key is None:
                    check_plaintext([at.host])
                worker.tell(Listen(epoch=self._epoch, device=device, key=key, at=at.at(0)))
            case DialTo():
                self._dial(message)
            case DropEpoch():
                pass  # it was looked at when it came

    def _linking(self, message: ListenFor | DialTo) -> StageWorker:
        """The worker, which is to connect to a neighbour now. Raises: ProtocolError: it must
        not."""
        if self._worker is None:
            raise self._blamed(f"{self._epoch} is not open")
        if message.device not in self._unlinked:
            raise self._blamed(
                f"told to connect to {message.device}: it is no neighbour, or was told before"
            )
        if problem := key_problem(message.key, is_encrypted=self._is_encrypted):
            raise self._blamed(f"told to connect to {message.device}: got {problem}")
        self._unlinked.remove(message.device)
        return self._worker

    def _prepare(self, message: PrepareStage) -> None:
        if self._worker is not None:
            raise self._blamed(f"{self._epoch} is open: nothing more is prepared for it")
        stage = self._stage_model(message)
        self._hosting.expect_worker()
        owner = self._place.owner
        key = HostedKey(
            stage=stage,
            owner=owner.id,
            target=message.target,
            threads=message.threads,
            half_bound=message.half_bound,
        )
        prepared = self._preparing.prepare(
            key,
            _Sources(self._peers, owner, message.sources).fetch,
            _Telling(self._epoch, message.stage, self._tell),
            self._place.stopped.is_set,
            is_fresh=message.is_fresh,
        )
        self._preparing.hold(stage.id)
        before = self._prepared.get(message.stage)
        self._prepared[message.stage] = prepared
        if before is not None:
            self._preparing.release(before.hosted.key.stage.id)
        built = prepared.built
        self._tell(
            StagePrepared(
                epoch=self._epoch,
                stage=message.stage,
                device_key=built.device_key,
                times=built.times,
                plan=str(built.plan)[:MAX_TOLD_CHARACTERS],
                measured_s=built.plan.measured_s,
                received_bytes=prepared.received_bytes,
            )
        )

    def _offer(self, message: OfferStages) -> None:
        """Let another host of this owner have what both need."""
        wanted = frozenset(message.stages)
        if self._peers.peer(message.device) is None:
            return
        for hosted in self._preparing.hosted_for(self._place.owner.id):
            stage, to = hosted.key.stage, message.device
            if stage.id in wanted and (to, stage.id) not in self._offered:
                with suppress(StorageError):  # then it is fetched elsewhere
                    content = self._preparing.content_of(stage)
                    self._offering.enter_context(self._peers.offers.offering(to, content))
                    self._offered.add((to, stage.id))

    def _stage_model(self, message: PrepareStage) -> StageModel:
        if message.model.size_bytes > MAX_STAGE_MODEL_BYTES:
            raise self._blamed(
                f"got a stage described in {message.model.size_bytes} bytes, want at most "
                f"{MAX_STAGE_MODEL_BYTES}"
            )
        fetch = partial(self._peers.fetch, self._place.owner)
        raw = self._preparing.read(message.model, fetch, self._place.stopped.is_set)
        try:
            stage: StageModel = decode(_STAGE_MODEL, raw)
        except ProtocolError as error:
            raise self._blamed(str(error)) from error
        if stage.model != self._epoch.model:
            raise self._blamed(f"got a stage of model {stage.model[:12]} for {self._epoch}")
        return stage

    def _open(self, message: OpenStages) -> None:
        if self._worker is not None:
            raise self._blamed(f"{self._epoch} is open")
        self._hosting.check_windows(message)
        self._hosting.check_encrypted(message)
        part = DividedPart(
            crossings=message.crossings,
            stages=tuple(map(self._here, message.stages)),
            neighbours=message.neighbours,
            is_encrypted=message.is_encrypted,
        )
        child = self._hosting.worker()
        self._worker = StageWorker(child, self._epoch, self._tell, self._peers.offend)
        try:
            key = self._worker.open(HostStages(epoch=self._epoch, part=part))
        except StorageError:
            # As after an update of ONNX Runtime: the next time they are built again.
            for prepared in self._prepared.values():
                self._preparing.forget(prepared.hosted.key)
            raise
        self._is_encrypted = message.is_encrypted
        self._unlinked = {neighbour.device for neighbour in message.neighbours}
        self._tell(EpochOpened(epoch=self._epoch, key=key or None))

    def _here(self, stage: HostedStage) -> StageHere:
        prepared = self._prepared.get(stage.number)
        if prepared is None or prepared.hosted.key.stage.id != stage.id:
            raise self._blamed(f"stage {stage.number} of {self._epoch} was not prepared")
        return prepared.here(stage.number)

    def _dial(self, message: DialTo) -> None:
        known = [endpoint.host for endpoint in self._peers.reached_at(message.device)]
        hosts = dict.fromkeys([*known, *message.addresses])
        to = tuple(Endpoint(host=host, port=message.port) for host in hosts)[:MAX_CANDIDATES]
        if not to:
            raise UsageError(f"no address of device {message.device} is known")
        worker = self._linking(message)
        if message.key is None:
            check_plaintext(endpoint.host for endpoint in to)
        worker.tell(Dial(epoch=self._epoch, device=message.device, key=message.key, to=to))


class _Sources:
    """Where the content of a stage may be had: from its owner, and from others that host the same;
    first where the link is best."""

    def __init__(self, peers: Peers, owner: Peer, others: Iterable[DeviceId]) -> None:
        self._peers = peers
        self._owner = owner
        self._others = tuple(others)

    def fetch(self, tensor: Partial, on_received: Callable[[int], None]) -> None:
        """See `preparing.Fetching`."""
        known = [peer for device in self._others if (peer := self._peers.peer(device)) is not None]
        ranked = sorted(
            (self._owner, *known),
            key=lambda peer: self._peers.receive_bytes_per_s(peer.id),
            reverse=True,
        )
        for peer in ranked:
            if peer is not self._owner:
                with suppress(PeerLost, StorageError, ProtocolError):
                    self._peers.fetch(peer, tensor, on_received)
                    return
            else:
                self._peers.fetch(peer, tensor, on_received)
                return


class _Telling:
    """Tells an owner from time to time how far the preparing of a stage is."""

    def __init__(self, epoch: Epoch, stage: int, tell: Callable[[Message], None]) -> None:
        self._epoch = epoch
        self._stage = stage
        self._tell = tell
        self._told_s = float("-inf")

    def __call__(self, fraction: float, what: str) -> None:
        """So far it is."""
        now_s = clock.monotonic_s()
        if now_s - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            self._tell(
                StageProgress(
                    epoch=self._epoch,
                    stage=self._stage,
                    fraction=min(max(fraction, 0.0), 1.0),
                    what=what[:MAX_TOLD_CHARACTERS],
                )
            )
