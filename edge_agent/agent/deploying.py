"""Divides loaded models over this device and its peers: plans, has the stages prepared, plans again
with what was measured of them, opens and links the best, compares it with the plan of this device
alone, and lets it serve if it is faster. What runs on a device that is lost runs here instead."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from edge_agent import clock
from edge_agent.agent.attempts import Attempt, FromDevice, HostLost, Told
from edge_agent.agent.layouts import Layout
from edge_agent.agent.loaded import Loaded
from edge_agent.agent.own_part import OwnPart
from edge_agent.agent.stations import OfDivided
from edge_agent.agent.surroundings import awaited, surroundings
from edge_agent.agent.trials import Deployed, Means, Trial, WireRefused
from edge_agent.devices import DeviceId
from edge_agent.errors import (
    BuilderLost,
    EdgeAgentError,
    PeerLost,
    ProtocolError,
    StorageError,
    UnknownPeer,
    WorkerLost,
)
from edge_agent.peers import Peer, PeerCondition
from edge_agent.plans import DividedPlan, Epoch
from edge_agent.problems import Surroundings
from edge_agent.stages import StageModel
from edge_agent.subgraphs import ModelId
from edge_agent.wire.deploying import EpochFailed, EpochUnlinked, FromHost, StagePrepared
from edge_agent.wire.hosting import Closed, GiveUpRoute, Unlinked

log = logging.getLogger(__name__)

MOST_STAGES: Final = 64
"""Of a model, of which it is remembered who has them."""
START_S: Final = 20.0
"""So long after the start of the agent peers are awaited that have not connected yet."""
MEASURED_S: Final = 120.0
"""So long a peer may take to tell what it can do."""
POLL_S: Final = 0.1


@dataclass(slots=True, eq=False)
class _Active:
    """A divided epoch that serves, or drains."""

    loaded: Loaded
    attempt: Attempt
    layout: Layout
    models: Mapping[int, StageModel]
    """By stage."""
    own: OwnPart
    plan: DividedPlan
    lost: dict[int, str] = field(default_factory=dict)
    """By route, why it is of no use any more."""


class Deployer:
    """See the module. Implements, for the owner, what `peering.DeploysTo` hears."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._peers = means.peers
        self._host = means.host
        self._changing = threading.Lock()
        self._attempts: dict[Epoch, Attempt] = {}
        self._active: dict[Epoch, _Active] = {}
        self._device_keys: dict[DeviceId, str] = {}
        self._hosts: dict[ModelId, dict[ModelId, frozenset[DeviceId]]] = {}
        """Which devices have prepared which stages of a model."""
        self._begun_s = clock.monotonic_s()
        self._alone: set[Loaded] = set()
        """Models for which no peer was there: they are considered again when one comes."""

    def surroundings(self, loaded: Loaded) -> Surroundings:
        """What a model may be planned over beside this device; it may block."""
        held_bytes = partial(self.held_bytes, loaded)
        return surroundings(
            self._peers,
            loaded,
            self.device_keys(),
            held_bytes,
            is_encrypted=self._means.is_encrypted,
        )

    def device_keys(self) -> dict[DeviceId, str]:
        """What times are valid for that peers measured last."""
        with self._changing:
            return dict(self._device_keys)

    def held_bytes(self, loaded: Loaded, device: DeviceId) -> int:
        """What a model has in the memory of a peer now."""
        with self._changing:
            active = [one for one in self._active.values() if one.loaded is loaded]
        tensors = {
            (blob.sha256, blob.size_bytes)
            for one in active
            for stage in one.layout.on(device)
            for blob in one.models[stage.number].tensors
        }
        return sum(size for _, size in tensors)

    # ---- asked by the controller

    def consider(self, loaded: Loaded, *, is_fresh: bool = False) -> None:
        """See `divides.DividesOver`; on a thread of its own, and once more, if that is being
        done already."""
        work = loaded.dividing
        if self._host.is_over(loaded) or loaded.plan is None:
            work.tell("none", 1.0, "")
            return
        with self._changing:
            work.is_wanted = True
            work.is_fresh |= is_fresh
            if work.is_running and not work.stopped.is_set():
                return
            work.is_running = True
            work.stopped = threading.Event()
        threading.Thread(
            target=self._work, args=(loaded, work.stopped), name="divide", daemon=True
        ).start()

    def devices_of(self, names: Sequence[str]) -> tuple[DeviceId, ...]:
        """See `divides.DividesOver`."""
        return tuple(dict.fromkeys(map(self._peers.device_of, names)))

    def expect(self, loaded: Loaded) -> None:
        """See `divides.DividesOver`."""
        if loaded.record.over or self._awaited(loaded) or self.surroundings(loaded).peers:
            loaded.dividing.tell("waiting", 0.0, "waiting for the plan")

    def pause(self, loaded: Loaded) -> None:
        """See `divides.DividesOver`."""
        with self._changing:
            loaded.dividing.is_wanted = False
            loaded.dividing.stopped.set()

    def stop(self, loaded: Loaded) -> None:
        """See `divides.DividesOver`."""
        self.pause(loaded)
        with self._changing:
            self._alone.discard(loaded)
        self.has_left(loaded)

    def has_left(self, loaded: Loaded) -> None:
        """See `divides.DividesOver`."""
        with self._changing:
            active = [one for one in self._active.values() if one.loaded is loaded]
        for one in active:
            self._drop(one)

    def plan_of(self, loaded: Loaded) -> DividedPlan | None:
        """The last division of a model that was tried, with what became of its routes; None: none
        was."""
        plan = loaded.dividing.plan
        if plan is None:
            return None
        with self._changing:
            active = next((a for a in self._active.values() if a.plan.epoch == plan.epoch), None)
            if active is None or active.loaded is not loaded:
                return plan
            lost = tuple(active.lost.get(n, "") for n in range(len(plan.shares)))
        return replace(plan, lost=lost)

    # ---- told by the thread of the peers

    def take(self, peer: Peer, message: FromHost) -> None:
        """A device that hosts stages says something.

        Raises: ProtocolError: of an epoch of which it was asked nothing.
        """
        told = FromDevice(device=peer.id, message=message)
        with self._changing:
            attempt = self._attempts.get(message.epoch)
            if attempt is not None:
                if peer.id not in attempt.asked:
                    what = f"it speaks of {message.epoch}, of which it was asked nothing"
                    raise ProtocolError(what)
                if isinstance(message, StagePrepared):
                    self._device_keys[peer.id] = message.device_key
                attempt.inbox.put(told)
                return
            active = self._active.get(message.epoch)
        if active is not None and peer.id in active.attempt.asked:
            self._happened(active, told)

    def has_changed(self, peer: Peer, condition: PeerCondition) -> None:
        """A peer is so from now on."""
        if condition in (PeerCondition.UP, PeerCondition.SLOW):
            with self._changing:
                alone = [one for one in self._alone if not self._host.is_over(one)]
                self._alone.clear()
            for loaded in alone:
                self.consider(loaded)
            return
        told = HostLost(device=peer.id, name=peer.name, condition=condition)
        with self._changing:
            for attempt in self._attempts.values():
                attempt.inbox.put(told)
            active = [
                one
                for epoch, one in self._active.items()
                if epoch not in self._attempts and peer.id in one.attempt.asked
            ]
        for one in active:
            self._happened(one, told)

    def _happened(self, active: _Active, told: Told) -> None:
        """Something is said of an epoch that serves, or drains."""
        name_of = self._peers.name_of
        match told:
            case HostLost(device=device, name=name, condition=condition):
                self._later(active, device, f'peer "{name}" is {condition}')
            case FromDevice(device=device, message=EpochFailed(message=text)):
                self._later(active, device, f"{name_of(device)}: {text}")
            case FromDevice(device=device, message=EpochUnlinked(device=other, why=why)):
                why = f"{name_of(device)} cannot reach {name_of(other)}: {why}"
                self._later(active, device, why)
            case Unlinked(device=device, why=why, is_offence=is_offence):
                if is_offence:
                    self._peers.offend(device, why)
                self._later(active, device, f"{name_of(device)} is out of reach: {why}")
            case Closed():
                threading.Thread(
                    target=self._drop, args=(active,), name="drop", daemon=True
                ).start()
            case _:
                pass

    def _later(self, active: _Active, device: DeviceId, why: str) -> None:
        # The data thread is asked, for which this thread must not wait.
        threading.Thread(
            target=self._lost, args=(active, device, why), name="lost", daemon=True
        ).start()

    # ---- what is lost

    def _lost(self, active: _Active, device: DeviceId, why: str) -> None:
        """Have what is on the routes over a device run here, and nothing more go there."""
        routes = active.layout.routes_over(device)
        with self._changing:
            fresh = [route for route in routes if route not in active.lost]
            active.lost.update(dict.fromkeys(fresh, why))
            is_all = active.layout.routes_over_others.issubset(active.lost)
        for route in fresh:
            active.own.tell(GiveUpRoute(epoch=active.attempt.epoch, route=route, why=why))
        if fresh:
            log.warning("%s: %s", active.loaded.record.name, why)
        if fresh and is_all and not self._host.is_over(active.loaded):
            self._serve_alone(active, why)

    def _serve_alone(self, active: _Active, why: str) -> None:
        loaded = active.loaded
        with self._host.changing(loaded):
            serve = loaded.serve
            if serve.division is None or serve.epoch != active.attempt.epoch:
                # Another plan has taken over, and the worker of this one has ended.
                self._drop(active)
                return
            try:
                self._host.serve_alone(loaded)
            except EdgeAgentError as error:
                # The divided epoch runs everything here, too.
                log.warning("%s goes on as it is: %s", loaded.record.name, error)
                return
        reason = f"this device serves alone since {why}"
        loaded.dividing.plan = replace(active.plan, is_used=False, reason=reason)

    def _told(self, epoch: Epoch, message: OfDivided) -> None:
        """The owner's worker says something, on the data thread."""
        with self._changing:
            attempt, active = self._attempts.get(epoch), self._active.get(epoch)
            if attempt is not None:
                attempt.inbox.put(message)
                return
        if active is not None:
            self._happened(active, message)

    def _drop(self, active: _Active) -> None:
        with self._changing:
            if self._active.pop(active.attempt.epoch, None) is None:
                return
        active.attempt.drop()

    # ---- dividing

    def _work(self, loaded: Loaded, stopped: threading.Event) -> None:
        while True:
            with self._changing:
                work = loaded.dividing
                if not work.is_wanted or stopped.is_set():
                    if work.stopped is stopped:
                        work.is_running = False
                    return
                work.is_wanted = False
                is_fresh, work.is_fresh = work.is_fresh, False
            try:
                self._divide_or_again(loaded, stopped, is_fresh=is_fresh)
            except BuilderLost as error:
                if not stopped.is_set() and not self._host.is_over(loaded):
                    self._failed(loaded, f"the builder died ({error})")
            except EdgeAgentError as error:
                self._failed(loaded, str(error))
            except Exception:
                log.exception("dividing %s failed", loaded.record.name)
                self._failed(loaded, "the agent failed: see its log")

    def _failed(self, loaded: Loaded, why: str) -> None:
        log.warning("%s is not divided: %s", loaded.record.name, why)
        loaded.dividing.tell("failed", 1.0, why)

    def _divide_or_again(self, loaded: Loaded, stopped: threading.Event, *, is_fresh: bool) -> None:
        if is_fresh:
            loaded.dividing.wire_refused = ""
        is_again = False
        while True:
            try:
                self._divide(loaded, stopped, is_fresh=is_fresh)
            except WireRefused as refused:
                # From now on none is asked for, so that none is refused.
                why = f"tensors are sent as they are: {refused}"
                loaded.dividing.wire_refused = str(refused)
                is_fresh = False
            except StorageError as error:
                # What was kept of a stage may be damaged, or of another version: it is forgotten
                # now.
                if is_again:
                    raise
                why, is_again = str(error), True
            else:
                return
            log.warning("%s is divided again: %s", loaded.record.name, why)

    def _divide(self, loaded: Loaded, stopped: threading.Event, *, is_fresh: bool) -> None:
        work = loaded.dividing

        def is_stopped() -> bool:
            return stopped.is_set() or self._host.is_over(loaded)

        def report(fraction: float, what: str) -> None:
            work.tell("working", fraction, what)

        plan = loaded.plan
        self._await_peers(loaded, is_stopped)
        if plan is None or plan.plain_s is None or not self.surroundings(loaded).peers:
            with self._changing:
                self._alone.add(loaded)
            if self._awaited(loaded) and plan is not None and plan.plain_s is not None:
                self.consider(loaded)  # one came meanwhile
            if loaded.record.over:
                raise PeerLost(self._nobody_there(loaded.record.over))
            work.tell("none", 1.0, "")
            return
        report(0.0, "planning over all devices")
        epoch = replace(self._host.epoch(loaded.record.model), owner=self._peers.device)
        attempt = Attempt(
            epoch=epoch,
            record=loaded.record,
            peers=self._peers,
            preparing=self._means.preparing,
            pool=self._means.stores.pool,
            is_stopped=is_stopped,
            report=report,
            hosts=self._hosts.get(loaded.record.model, {}),
        )
        with self._changing:
            self._attempts[epoch] = attempt
        trial = Trial(
            self._means, loaded, attempt, plan, partial(self._told, epoch), is_fresh=is_fresh
        )
        try:
            if not loaded.opens_aside:
                # The process that serves cannot open another epoch: one is started meanwhile.
                self._means.workers.expect_divided(is_background=self._host.others_serve())
            found = trial.run(partial(self.surroundings, loaded))
            if found.plan is not None:
                log.info("%s over %s: %s", loaded.record.name, found.plan, found.plan.reason)
            if found.deployed is not None and not is_stopped():
                self._take_over(loaded, attempt, found.deployed, found.plan)
            self._remember_hosts(loaded.record.model, attempt)
            work.plan = found.plan
            work.tell("done", 1.0, "done")
        finally:
            with self._changing:
                self._attempts.pop(epoch, None)
                active = self._active.get(epoch)
            if active is None:
                trial.give_up()
                attempt.drop()
            else:
                self._catch_up(active)

    def _awaited(self, loaded: Loaded) -> tuple[DeviceId, ...]:
        is_at_start = clock.monotonic_s() < self._begun_s + START_S
        return awaited(self._peers, loaded, is_at_start=is_at_start)

    def _await_peers(self, loaded: Loaded, is_stopped: Callable[[], bool]) -> None:
        """Wait for those of which more will soon be known: one that has just joined measures what
        it can do, and at the start of this agent they are about to connect."""
        until_s = clock.monotonic_s() + MEASURED_S
        while (devices := self._awaited(loaded)) and clock.monotonic_s() < until_s:
            if is_stopped():
                raise BuilderLost("stopped")
            names = ", ".join(f'"{self._peers.name_of(device)}"' for device in devices)
            loaded.dividing.tell("waiting", 0.0, f"waiting for {names}")
            clock.sleep_s(POLL_S)

    def _nobody_there(self, over: Sequence[str]) -> str:
        names = []
        for device in over:
            with suppress(UnknownPeer):
                names.append(f'"{self._peers.name_of(self._peers.device_of(device))}"')
        if not names:
            return "the devices that it was to be divided over are no peers any more"
        one = "peer" if len(names) == 1 else "none of the peers"
        is_there = "is not there" if len(names) == 1 else "is there"
        return f"{one} {', '.join(names)} {is_there}: it is tried again when that changes"

    def _catch_up(self, active: _Active) -> None:
        """What was said since the attempt last listened, and while it took over."""
        with suppress(queue.Empty):
            while True:
                self._happened(active, active.attempt.inbox.get_nowait())

    def _remember_hosts(self, model: ModelId, attempt: Attempt) -> None:
        known = dict(self._hosts.get(model, {}))
        for device, stage in attempt.received_bytes:
            known[stage] = known.get(stage, frozenset()) | {device}
        while len(known) > MOST_STAGES:
            del known[next(iter(known))]
        self._hosts[model] = known

    def _take_over(
        self, loaded: Loaded, attempt: Attempt, made: Deployed, plan: DividedPlan | None
    ) -> None:
        """Have a divided epoch serve.

        Raises: WorkerLost: the worker is gone, or caught in a run that nobody awaits.
        """
        assert plan is not None
        with self._host.changing(loaded):
            if self._host.is_over(loaded):
                return
            active = _Active(loaded, attempt, made.layout, made.models, made.own, plan)
            with self._changing:
                self._active[attempt.epoch] = active
            try:
                if not made.own.take_over():
                    raise WorkerLost("the worker is in a run that nobody awaits")
            except EdgeAgentError:
                with self._changing:
                    del self._active[attempt.epoch]
                raise
        log.info("%s is divided: %s", loaded.record.name, plan)
