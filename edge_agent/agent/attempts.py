"""One try to divide a model over devices, up to stages that are opened and linked: what is asked of
each device, and what they answer. A thread of its own runs it."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import msgspec

from edge_agent import clock
from edge_agent.agent.layouts import Layout, PlacedStage, neighbours_of
from edge_agent.agent.offers import Offered, content_of
from edge_agent.agent.other_devices import OtherDevices
from edge_agent.agent.own_part import OwnPart
from edge_agent.agent.plaintext import check_plaintext
from edge_agent.agent.preparing import Prepared, Preparing
from edge_agent.agent.stations import OfDivided
from edge_agent.agent.surroundings import Known
from edge_agent.agent.workers import OPEN_TIMEOUT_S, Serve
from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import (
    BuilderLost,
    EdgeAgentError,
    PeerLost,
    ProtocolError,
    UsageError,
    error_from_code,
)
from edge_agent.peers import PeerCondition
from edge_agent.plans import Epoch
from edge_agent.problems import check_times
from edge_agent.profiles import StageTimes
from edge_agent.stages import Blob, Crossing, StageModel
from edge_agent.store.hosted import HostedKey
from edge_agent.store.pool import Pool
from edge_agent.store.registry import LoadedModel
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Shape, TensorName
from edge_agent.wire.deploying import (
    DialTo,
    DropEpoch,
    EpochFailed,
    EpochLinked,
    EpochOpened,
    EpochUnlinked,
    FromHost,
    HostedStage,
    ListenFor,
    ListeningFor,
    OfferStages,
    OpenStages,
    PrepareStage,
    StagePrepared,
    StageProgress,
)
from edge_agent.wire.hosting import (
    Compare,
    Compared,
    Dial,
    DividedPart,
    Linked,
    Listen,
    Listening,
    RouteShare,
    Unlinked,
    key_problem,
)
from edge_agent.wire.messages import Message

log = logging.getLogger(__name__)

SILENCE_S: Final = 600.0
"""A device that says nothing of a stage for so long is given up."""
LINK_S: Final = 30.0
"""How long opening and linking may take on each device, beside the opening of sessions."""

Report = Callable[[float, str], None]


class Peers(OtherDevices, Known, Protocol):
    """What is needed of `company.Company`."""

    @property
    def device(self) -> DeviceId:
        """The id of this device."""
        ...

    def own_endpoints(self) -> tuple[Endpoint, ...]:
        """Where other devices reach this one; () if it does not listen."""
        ...

    def dials(self, device: DeviceId) -> bool:
        """Whether this device made the connection to that peer."""
        ...

    def name_of(self, device: DeviceId) -> str:
        """What people call a peer, or this device."""
        ...

    def device_of(self, name: str) -> DeviceId:
        """The peer of that name, id or key. Raises: UnknownPeer: it is not trusted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrepared:
    """A stage of the owner's own device is ready."""

    stage: int
    prepared: Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFailed:
    """A stage of the owner's own device cannot be had."""

    error: EdgeAgentError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost:
    """A device is out of reach."""

    device: DeviceId
    name: str
    """By which it was known: it may have been removed."""
    condition: PeerCondition


@dataclass(frozen=True, slots=True, kw_only=True)
class FromDevice:
    """What a device that hosts stages says."""

    device: DeviceId
    message: FromHost


Told = FromDevice | OfDivided | OwnPrepared | OwnFailed | HostLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What was prepared of a layout."""

    layout: Layout
    models: Mapping[int, StageModel]
    """By stage."""
    own: Mapping[int, Prepared]
    """Of the stages of this device."""
    told: Mapping[int, StagePrepared]
    """Of the other ones."""


@dataclass(slots=True)
class Attempt:
    """See the module."""

    epoch: Epoch
    record: LoadedModel
    peers: Peers
    preparing: Preparing
    pool: Pool
    is_stopped: Callable[[], bool]
    report: Report
    inbox: queue.SimpleQueue[Told] = field(default_factory=queue.SimpleQueue)
    """Any thread may put something in."""
    hosts: Mapping[ModelId, frozenset[DeviceId]] = field(default_factory=dict)
    """Devices that have prepared stages of the model before, by `StageModel.id`."""
    asked: set[DeviceId] = field(default_factory=set)
    """Devices that have heard of the epoch, if only to offer what they have."""
    needed: frozenset[DeviceId] = frozenset()
    """Those that host a stage: without one of them it fails."""
    received_bytes: Counter[tuple[DeviceId, ModelId]] = field(default_factory=Counter)
    """What was sent to each device for each stage, by `StageModel.id`."""

    # ---- preparing

    def prepare(self, layout: Layout, models: Mapping[int, StageModel], *, is_fresh: bool) -> Ready:
        """Have every device prepare its stages.

        Raises:
            PeerLost: a device is lost, or says nothing any more.
            BuilderLost: it was stopped.
            EdgeAgentError: a stage cannot be had.
        """
        self.needed = frozenset(layout.devices)
        with ExitStack() as offered:
            for device in layout.devices:
                if device == THIS_DEVICE:
                    self._prepare_here(layout, models, is_fresh=is_fresh)
                else:
                    self._ask_to_prepare(device, layout, models, offered, is_fresh=is_fresh)
            own, told = self._await_prepared(layout, models)
        return Ready(layout=layout, models=models, own=own, told=told)

    def _ask_to_prepare(
        self,
        device: DeviceId,
        layout: Layout,
        models: Mapping[int, StageModel],
        offered: ExitStack,
        *,
        is_fresh: bool,
    ) -> None:
        record = self.record
        sources = self._offered_by_others(device)
        for stage in layout.on(device):
            model = models[stage.number]
            described = msgspec.msgpack.encode(model)
            blob = _blob(described)
            content = content_of(model, self.pool) | {
                blob.sha256: Offered(size_bytes=blob.size_bytes, content=described)
            }
            offered.enter_context(self.peers.offers.offering(device, content))
            self._tell(
                device,
                PrepareStage(
                    epoch=self.epoch,
                    stage=stage.number,
                    model=blob,
                    target=record.target,
                    threads=record.threads,
                    half_bound=record.half_bound,
                    is_fresh=is_fresh,
                    sources=sources,
                ),
            )

    def _offered_by_others(self, device: DeviceId) -> tuple[DeviceId, ...]:
        """Other hosts, which are told to let the device have what both need."""
        has: dict[DeviceId, list[ModelId]] = {}
        for stage, hosts in self.hosts.items():
            for host in hosts - {device}:
                has.setdefault(host, []).append(stage)
        sources = []
        for host, stages in has.items():
            message = OfferStages(epoch=self.epoch, device=device, stages=tuple(stages))
            if self.peers.tell(host, message):
                self.asked.add(host)
                sources.append(host)
        return tuple(sources)

    def _tell(self, device: DeviceId, message: Message) -> None:
        self.asked.add(device)
        if not self.peers.tell(device, message):
            raise PeerLost(f'peer "{self.peers.name_of(device)}" is not there')

    def _prepare_here(
        self, layout: Layout, models: Mapping[int, StageModel], *, is_fresh: bool
    ) -> None:
        def work() -> None:
            for stage in layout.on(THIS_DEVICE):
                try:
                    prepared = self.preparing.prepare(
                        self._key(models[stage.number]),
                        None,
                        partial(self._own_progress, stage.number),
                        self.is_stopped,
                        is_fresh=is_fresh,
                    )
                except EdgeAgentError as error:
                    self.inbox.put(OwnFailed(error=error))
                    return
                except Exception as error:
                    log.exception("a stage could not be prepared")
                    self.inbox.put(OwnFailed(error=EdgeAgentError(f"the agent failed: {error}")))
                    return
                self.inbox.put(OwnPrepared(stage=stage.number, prepared=prepared))

        threading.Thread(target=work, name="own-stages", daemon=True).start()

    def _key(self, model: StageModel) -> HostedKey:
        record = self.record
        return HostedKey(
            stage=model,
            owner=None,
            target=record.target,
            threads=record.threads,
            half_bound=record.half_bound,
        )

    def _own_progress(self, stage: int, fraction: float, what: str) -> None:
        progress = StageProgress(epoch=self.epoch, stage=stage, fraction=fraction, what=what)
        self.inbox.put(FromDevice(device=THIS_DEVICE, message=progress))

    def _await_prepared(
        self, layout: Layout, models: Mapping[int, StageModel]
    ) -> tuple[dict[int, Prepared], dict[int, StagePrepared]]:
        own: dict[int, Prepared] = {}
        told: dict[int, StagePrepared] = {}
        fractions = dict.fromkeys((stage.number for stage in layout.stages), 0.0)
        heard_s = dict.fromkeys(layout.devices, clock.monotonic_s())
        where = {stage.number: stage.device for stage in layout.stages}
        while len(own) + len(told) < len(layout.stages):
            came = self._next()
            if came is None:
                self._check_silence({where[n] for n in where if n not in own | told}, heard_s)
            match came:
                case OwnPrepared(stage=stage, prepared=prepared):
                    own[stage] = prepared
                    fractions[stage] = 1.0
                case OwnFailed(error=error):
                    raise error
                case FromDevice(device=device, message=StageProgress() as progress):
                    heard_s[device] = clock.monotonic_s()
                    if where.get(progress.stage) == device:
                        fractions[progress.stage] = progress.fraction
                        name = self.peers.name_of(device)
                        mean = sum(fractions.values()) / len(fractions)
                        self.report(mean, f"{name}: {progress.what}")
                case FromDevice(device=device, message=StagePrepared() as prepared_there):
                    heard_s[device] = clock.monotonic_s()
                    if where.get(prepared_there.stage) == device:
                        self._check_told(device, prepared_there, models)
                        told[prepared_there.stage] = prepared_there
                        key = device, models[prepared_there.stage].id
                        self.received_bytes[key] += prepared_there.received_bytes
                        fractions[prepared_there.stage] = 1.0
                case _:
                    pass
        return own, told

    def _check_told(
        self, device: DeviceId, told: StagePrepared, models: Mapping[int, StageModel]
    ) -> None:
        """Raises: ProtocolError: its times are none of that stage."""
        segments = models[told.stage].segments
        try:
            for times in told.times:
                check_times(f"stage {told.stage}, {times.configuration}", times)
            StageTimes(segments=segments, times=told.times, device_key="", division="")
        except ValueError as error:
            raise self._blamed(device, str(error)) from None

    def _blamed(self, device: DeviceId, what: str) -> ProtocolError:
        """The error that a device broke a rule, which is counted."""
        self.peers.offend(device, what)
        return ProtocolError(f"{self.peers.name_of(device)}: {what}")

    def _check_silence(
        self, awaited: Iterable[DeviceId], heard_s: Mapping[DeviceId, float]
    ) -> None:
        """Raises: PeerLost: one of these devices says nothing any more. The builder of this one is
        looked after by who started it."""
        for device in awaited:
            if device != THIS_DEVICE and clock.monotonic_s() - heard_s[device] > SILENCE_S:
                name = self.peers.name_of(device)
                raise PeerLost(f'peer "{name}" said nothing for {SILENCE_S:.0f} s')

    def _next(self) -> Told | None:
        """What came next; None: nothing for a while.

        Raises: PeerLost: a device is lost; BuilderLost: it was stopped; EdgeAgentError: a device
            cannot go on.
        """
        if self.is_stopped():
            raise BuilderLost("stopped")
        try:
            came = self.inbox.get(timeout=0.5)
        except queue.Empty:
            return None
        match came:
            case HostLost(device=device, name=name, condition=condition) if device in self.needed:
                raise PeerLost(f'peer "{name}" is lost: it is {condition}')
            case FromDevice(device=device, message=EpochFailed(code=code, message=text)) if (
                device in self.needed
            ):
                error = error_from_code(code, text)
                raise type(error)(f"{self.peers.name_of(device)}: {text}") from None
            case FromDevice(device=device, message=EpochUnlinked(device=other, why=why)) if (
                device in self.needed
            ):
                one, two = map(self.peers.name_of, (device, other))
                raise PeerLost(f"{one} cannot reach {two}: {why}")
            case Unlinked(device=device, why=why, is_offence=is_offence):
                if is_offence:
                    raise self._blamed(device, why)
                raise PeerLost(f"this device cannot reach {self.peers.name_of(device)}: {why}")
            case _:
                return came

    # ---- opening and linking

    def open(
        self,
        ready: Ready,
        crossings: Sequence[Crossing],
        routes: Sequence[RouteShare],
        own: OwnPart,
        serve: Serve,
        shapes: Sequence[tuple[TensorName, Shape]],
        *,
        is_encrypted: bool,
    ) -> None:
        """Have every device open its stages, and connect them all.

        Raises: as `prepare`.
        """
        self.report(1.0, "opening the stages")
        layout, models = ready.layout, ready.models
        at = partial(
            neighbours_of,
            layout=layout,
            crossings=crossings,
            models=models,
            routes=routes,
            owner=self.peers.device,
        )
        hosts = [device for device in layout.devices if device != THIS_DEVICE]
        named = _named(layout, self.peers.device)
        neighbours = {device: at(device, layout=named) for device in (*hosts, self.peers.device)}
        for device in hosts:
            self._tell(
                device,
                OpenStages(
                    epoch=self.epoch,
                    crossings=tuple(crossings),
                    stages=tuple(self._hosted(stage, models) for stage in layout.on(device)),
                    neighbours=neighbours[device],
                    is_encrypted=is_encrypted,
                ),
            )
        part = DividedPart(
            crossings=tuple(crossings),
            stages=tuple(
                ready.own[stage.number].here(stage.number) for stage in layout.on(THIS_DEVICE)
            ),
            neighbours=neighbours[self.peers.device],
            routes=tuple(routes),
            shapes=tuple(shapes),
            is_encrypted=is_encrypted,
        )
        own_key = own.open(replace(serve, division=part))
        keys: dict[DeviceId, str | None] = {self.peers.device: own_key or None}
        until_s = clock.monotonic_s() + OPEN_TIMEOUT_S
        while len(keys) <= len(hosts):
            came = self._until(until_s, "open its stages")
            if isinstance(came, FromDevice) and isinstance(came.message, EpochOpened):
                device, key = came.device, came.message.key
                if device not in hosts or device in keys:
                    raise self._blamed(device, "it opened stages that it was not asked to open")
                if problem := key_problem(key, is_encrypted=is_encrypted):
                    raise self._blamed(device, f"it opened its stages with {problem}")
                keys[device] = key
        pairs = {
            (min(device, n.device), max(device, n.device))
            for device, found in neighbours.items()
            for n in found
        }
        self._link(sorted(pairs), keys, own)

    def _hosted(self, stage: PlacedStage, models: Mapping[int, StageModel]) -> HostedStage:
        record = self.record
        return HostedStage(
            number=stage.number,
            model=models[stage.number].id,
            target=record.target,
            threads=record.threads,
            half_bound=record.half_bound,
        )

    def _until(self, until_s: float, what: str) -> Told | None:
        if clock.monotonic_s() > until_s:
            raise PeerLost(f"a device did not {what} in time")
        return self._next()

    def _link(
        self,
        pairs: Sequence[tuple[DeviceId, DeviceId]],
        keys: Mapping[DeviceId, str | None],
        own: OwnPart,
    ) -> None:
        """Have the workers connect to each other: one of each pair listens, and then the other
        one dials."""
        self.report(1.0, "connecting the stages")
        me = self.peers.device
        dialling: dict[tuple[DeviceId, DeviceId], None] = {}
        for pair in pairs:
            listening, other = self._listening(*pair)
            dialling[listening, other] = None
            if listening == me:
                at = self.peers.listens_at
                assert at is not None
                if keys[other] is None:
                    check_plaintext([at.host])
                own.tell(Listen(epoch=self.epoch, device=other, key=keys[other], at=at.at(0)))
            else:
                self._tell(listening, ListenFor(epoch=self.epoch, device=other, key=keys[other]))
        unlinked = {me, *keys}
        until_s = clock.monotonic_s() + LINK_S
        while unlinked:
            match self._until(until_s, "connect to the others"):
                case Listening(device=other, port=port):
                    self._dial(me, other, port, keys, own)
                case FromDevice(device=device, message=ListeningFor(device=other, port=port)):
                    if (device, other) not in dialling:
                        raise self._blamed(device, f"it listens for {other}, which nobody asked")
                    del dialling[device, other]
                    self._dial(device, other, port, keys, own)
                case Linked():
                    unlinked.discard(me)
                case FromDevice(device=device, message=EpochLinked()):
                    unlinked.discard(device)
                case _:
                    pass

    def _listening(self, one: DeviceId, other: DeviceId) -> tuple[DeviceId, DeviceId]:
        """Which of a pair listens, and which dials: as their agents do, if one of them is here."""
        peers = self.peers
        if peers.device in (one, other):
            peer = other if one == peers.device else one
            can_peer, can_this = bool(peers.reached_at(peer)), peers.listens_at is not None
            if can_peer and (peers.dials(peer) or not can_this):
                return peer, peers.device
            if can_this:
                return peers.device, peer
        elif peers.reached_at(other):
            return other, one
        elif peers.reached_at(one):
            return one, other
        names = " nor ".join(map(peers.name_of, (one, other)))
        raise UsageError(
            f"neither {names} listens: start one of them with `edge-agent serve --listen "
            "tcp://ADDRESS:PORT`"
        )

    def _dial(
        self,
        listening: DeviceId,
        dialling: DeviceId,
        port: int,
        keys: Mapping[DeviceId, str | None],
        own: OwnPart,
    ) -> None:
        peers, key = self.peers, keys[listening]
        if listening == peers.device:
            endpoints = peers.own_endpoints()
        else:
            endpoints = peers.reached_at(listening)
        hosts = tuple(dict.fromkeys(endpoint.host for endpoint in endpoints))
        if dialling == peers.device:
            to = tuple(Endpoint(host=host, port=port) for host in hosts)
            if key is None:
                check_plaintext(hosts)
            own.tell(Dial(epoch=self.epoch, device=listening, key=key, to=to))
        else:
            self._tell(
                dialling,
                DialTo(epoch=self.epoch, device=listening, key=key, port=port, addresses=hosts),
            )

    # ---- comparing, and the end

    def compare(self, own: OwnPart, message: Compare) -> Compared:
        """What more rounds showed.

        Raises: as `prepare`.
        """
        own.tell(message)
        until_s = clock.monotonic_s() + message.budget_s + SILENCE_S
        while True:
            came = self._until(until_s, "answer while it was measured")
            if isinstance(came, Compared):
                return came

    def drop(self) -> None:
        """No device need do anything for it any more."""
        for device in self.asked:
            self.peers.tell(device, DropEpoch(epoch=self.epoch))


def _blob(content: bytes) -> Blob:
    return Blob(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def _named(layout: Layout, owner: DeviceId) -> Layout:
    """The layout in which this device goes by the id that others know."""
    return Layout(
        stages=tuple(
            PlacedStage(
                number=stage.number,
                route=stage.route,
                device=owner if stage.device == THIS_DEVICE else stage.device,
                segments=stage.segments,
            )
            for stage in layout.stages
        ),
        shares=layout.shares,
    )
