"""Finds a plan of a model over several devices, has it prepared and opened, and finds out if it is
faster than the plan of this device alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from edge_agent import clock
from edge_agent.agent.attempts import Attempt, Peers, Ready
from edge_agent.agent.builders import Builder
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.layouts import Layout, crossings_of, layout_of, shares_of
from edge_agent.agent.loaded import Loaded
from edge_agent.agent.moving import Moving
from edge_agent.agent.own_part import OwnPart
from edge_agent.agent.planners import Planners
from edge_agent.agent.preparing import Preparing
from edge_agent.agent.stations import OfDivided
from edge_agent.agent.stores import Stores
from edge_agent.agent.turns import Turn, wait_for_quiet
from edge_agent.agent.workers import Serve, Workers
from edge_agent.config import Settings
from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.distributions import Distribution, Infeasible, Planned
from edge_agent.errors import BuilderLost, EdgeAgentError, StorageError
from edge_agent.plans import DeployedStage, DividedPlan, Epoch, ExecutionPlan, SentAs, Target
from edge_agent.problems import Surroundings
from edge_agent.profiles import StageTimes
from edge_agent.stages import Crossing, StageModel
from edge_agent.store.cuts import key_of
from edge_agent.store.stage_content import missing, places
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import Shape, TensorName, WireType
from edge_agent.wire.cutting import CutStages
from edge_agent.wire.hosting import Compare, Compared, RouteShare
from edge_agent.wire.planning import PlanLoaded
from edge_agent.wire.routes import unpack

log = logging.getLogger(__name__)

ROUNDS: Final = 4
"""Most times that a plan is made with what was measured of the one before."""
COMPARE_S: Final = 4.0
"""After so long of comparing, others may use the device."""
MOST_COMPARING_S: Final = 90.0


class Host(Protocol):
    """What is needed of the controller."""

    building: Turn
    """Held by whoever measures on this device."""

    def epoch(self, model: ModelId) -> Epoch:
        """A new one of that model."""
        ...

    def is_over(self, loaded: Loaded) -> bool:
        """Whether the model is gone, or the agent is about to end."""
        ...

    def others_serve(self) -> bool:
        """Whether a new process should give way to what serves."""
        ...

    def changing(self, loaded: Loaded) -> threading.RLock:
        """Held by who changes what serves a model."""
        ...

    def serve_alone(self, loaded: Loaded) -> None:
        """Have the plan of this device alone serve a model again. Raises: EdgeAgentError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What it takes to divide models."""

    settings: Settings
    stores: Stores
    datapath: DataPath
    workers: Workers
    moving: Moving
    planners: Planners
    preparing: Preparing
    peers: Peers
    host: Host

    @property
    def is_encrypted(self) -> bool:
        """Whether what crosses between workers is."""
        return not self.settings.peering.plaintext_streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """An epoch that could serve."""

    layout: Layout
    models: Mapping[int, StageModel]
    """By stage."""
    own: OwnPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of a trial."""

    plan: DividedPlan | None
    """None: no plan over several devices is worth a try."""
    deployed: Deployed | None = None
    """What is to serve; None: this device alone."""


class WireRefused(Exception):
    """Answers are too far off with tensors in fewer bits; its text says how far."""


class Trial:
    """One trial for one model, by one thread."""

    def __init__(
        self,
        means: Means,
        loaded: Loaded,
        attempt: Attempt,
        plan: ExecutionPlan,
        told: Callable[[OfDivided], None],
        *,
        is_fresh: bool,
    ) -> None:
        """`plan` is that of this device alone; `told` hears what its worker says of the epoch."""
        self._means = means
        self._loaded = loaded
        self._attempt = attempt
        self._plan = plan
        self._told = told
        self._is_fresh = is_fresh
        self._models: dict[SegmentRange, StageModel] = {}
        self._own: OwnPart | None = None
        self._narrowed: frozenset[tuple[DeviceId, DeviceId]] = frozenset()
        """From where to where tensors are sent in fewer bits."""
        self._preparing_s = 0.0
        """What the last layout took."""

    def run(self, around: Callable[[], Surroundings]) -> Found:
        """Plan, prepare, plan again, open, compare. `around` is what there is to plan over.

        Raises: WireRefused; as `Attempt`.
        """
        planned = self._planned(around())
        best = _best(planned)
        if best is None:
            if self._loaded.record.over:
                raise EdgeAgentError(f"no division over the peers is possible: {_why_not(planned)}")
            return Found(plan=None)
        ready: Ready | None = None
        for _ in range(ROUNDS):
            layout = layout_of(best)
            if ready is not None and layout.is_like(ready.layout):
                break
            ready = self._prepared(layout)
            self._keep_times(ready, planned.division)
            planned = self._planned(around())
            after = _best(planned)
            if after is None:
                reason = "measured, no division is predicted to be faster than this device alone"
                return Found(plan=self._told_of(best, ready, reason))
            best = after
        if ready is None or layout_of(best) != ready.layout:
            ready = self._prepared(layout_of(best))
        return self._opened(best, ready)

    def give_up(self) -> None:
        """Nothing of it will serve."""
        if self._own is not None:
            self._own.discard()
            self._own = None

    # ---- planning

    def _planned(self, around: Surroundings) -> Planned:
        loaded = self._loaded
        self._attempt.report(0.0, "planning over all devices")
        answer = self._means.planners.ask(
            PlanLoaded(
                name=loaded.record.name,
                model=loaded.record.model,
                around=around,
                targets=(loaded.record.target,),
                is_divided=bool(loaded.record.over),
            ),
            is_unwanted=self._attempt.is_stopped,
        )
        planned = unpack(answer.planned)
        self._narrowed = frozenset(planned.narrowed)
        return planned

    # ---- preparing

    def _prepared(self, layout: Layout) -> Ready:
        begun_s = clock.monotonic_s()
        self._cut(layout)
        models = {stage.number: self._models[stage.segments] for stage in layout.stages}
        ready = self._attempt.prepare(layout, models, is_fresh=self._is_fresh)
        self._preparing_s = clock.monotonic_s() - begun_s
        return ready

    @property
    def _whole(self) -> SegmentRange:
        return SegmentRange(start=0, stop=len(self._plan.segments))

    def _cut(self, layout: Layout) -> None:
        """Have the models of its stages, and the whole as one, for the samples that belong to
        it."""
        asked = self._asked_for({*layout.parts, self._whole} - self._models.keys())
        self._models |= self._kept(asked)
        wanted = {*asked.ranges} - self._models.keys()
        if not wanted:
            return
        self._attempt.report(0.0, "cutting the stages out")
        means = self._means
        stopped = self._attempt.is_stopped
        message = self._asked_for(wanted)
        with means.host.building.held(stopped) as is_mine:
            if not is_mine or stopped():
                raise BuilderLost("stopped")
            builder = Builder(means.settings, is_background=True)
            try:
                stages = builder.cut_stages(
                    message, lambda: wait_for_quiet(means.datapath, stopped, lambda: None)
                )
            finally:
                builder.close()
        self._models |= {stage.segments: stage for stage in stages}

    def _asked_for(self, parts: Iterable[SegmentRange]) -> CutStages:
        record = self._loaded.record
        return CutStages(
            model=record.model,
            shapes=self._plan.shapes,
            samples=record.samples,
            ranges=tuple(sorted(parts, key=lambda part: (part.start, part.stop))),
            starts=tuple(segment.nodes[0] for segment in self._plan.segments),
        )

    def _kept(self, asked: CutStages) -> dict[SegmentRange, StageModel]:
        """Those that were cut out before, which may spare the start of a builder."""
        stores = self._means.stores
        found: dict[SegmentRange, StageModel] = {}
        for part in asked.ranges:
            try:
                stage = stores.cuts.get(key_of(asked, part))
                if stage is not None and not missing(stage, stores.pool):
                    found[part] = stage
            except StorageError as error:
                log.warning("%s; the stage is cut again", error)
        return found

    def _keep_times(self, ready: Ready, division: str) -> None:
        """Keep what was measured of the stages on other devices."""
        record = self._loaded.record
        for stage in ready.layout.stages:
            told = ready.told.get(stage.number)
            if told is None:
                continue
            times = StageTimes(
                segments=stage.segments,
                times=told.times,
                device_key=told.device_key,
                division=division,
            )
            self._means.stores.peer_times.add(record.name, record.model, stage.device, times)

    # ---- opening and comparing

    def _opened(self, best: Distribution, ready: Ready) -> Found:
        begun_s = clock.monotonic_s()
        loaded, attempt, means = self._loaded, self._attempt, self._means
        outputs = [spec.name for spec in loaded.lane.outputs]
        crossings = crossings_of(ready.layout, ready.models, outputs, THIS_DEVICE, self._wire_of)
        at_once = {n: prepared.built.instances for n, prepared in ready.own.items()}
        routes = shares_of(
            ready.layout,
            best.metrics.throughput_per_s,
            best.metrics.latency_s,
            at_once,
        )
        own = self._own = OwnPart(
            means.datapath,
            means.workers,
            means.moving,
            loaded,
            self._told,
            others_serve=means.host.others_serve(),
        )
        with means.host.changing(loaded):
            serve = self._serve()
            try:
                attempt.open(
                    ready,
                    crossings,
                    routes,
                    own,
                    serve,
                    self._shapes(),
                    is_encrypted=means.is_encrypted,
                )
            except StorageError:
                # As after an update of ONNX Runtime: the next time they are built again.
                for prepared in ready.own.values():
                    means.preparing.forget(prepared.hosted.key)
                raise
        deployed_s = self._preparing_s + clock.monotonic_s() - begun_s
        sent_as = tuple(_sent_as(crossings))
        compared = self._compared(own, routes, is_narrowed=bool(sent_as))
        if compared.wrong and sent_as:
            raise WireRefused(compared.wrong)
        is_asked = bool(loaded.record.over) and not compared.wrong
        reason = _reason(compared)
        if is_asked:
            reason = f"divided as asked, whether it pays or not: {compared.evidence}"
        told = self._told_of(best, ready, reason, compared, sent_as, is_asked=is_asked)
        plan = replace(told, deployed_s=deployed_s)
        if not plan.is_used:
            self.give_up()
            return Found(plan=plan)
        return Found(
            plan=plan, deployed=Deployed(layout=ready.layout, models=ready.models, own=own)
        )

    def _serve(self) -> Serve:
        """What this device serves alone, with the epoch of the trial."""
        return replace(self._loaded.serve, epoch=self._attempt.epoch, division=None)

    def _shapes(self) -> Sequence[tuple[TensorName, Shape]]:
        required = {spec.name for spec in self._loaded.lane.inputs if not spec.has_default}
        return [(name, shape) for name, shape in self._plan.shapes if name in required]

    def _wire_of(self, source: DeviceId, target: DeviceId) -> WireType | None:
        allowed = self._loaded.record.wire
        return allowed.type if allowed and (source, target) in self._narrowed else None

    def _compared(
        self, own: OwnPart, routes: Sequence[RouteShare], *, is_narrowed: bool
    ) -> Compared:
        loaded, means, attempt = self._loaded, self._means, self._attempt
        is_latency = loaded.record.target is Target.LATENCY
        whole = self._models[self._whole]
        found = places(whole, means.stores.pool)
        message = Compare(
            epoch=attempt.epoch,
            samples=tuple(str(found[blob.sha256]) for blob in whole.samples),
            budget_s=COMPARE_S,
            callers=1 if is_latency else sum(route.most for route in routes),
            alone_callers=1 if is_latency else max(loaded.serve.instances, 1),
            is_quantised=self._plan.is_quantised,
            float_bound=self._float_bound(is_narrowed=is_narrowed),
        )
        until_s = clock.monotonic_s() + MOST_COMPARING_S
        while True:
            left = max(0.0, until_s - clock.monotonic_s())
            attempt.report(
                1.0 - left / MOST_COMPARING_S, "comparing with the plan of this device alone"
            )
            with means.host.building.held(attempt.is_stopped) as is_mine:
                if not is_mine:
                    raise BuilderLost("stopped")
                wait_for_quiet(means.datapath, attempt.is_stopped, lambda: None)
                compared = attempt.compare(own, message)
            if compared.is_decided or not left or loaded.record.over:
                return compared

    def _float_bound(self, *, is_narrowed: bool) -> float | None:
        """As `Compare` has it: as much as the user allows to whatever there is."""
        record = self._loaded.record
        bounds = [record.half_bound] if record.half_bound is not None else []
        if is_narrowed and record.wire is not None:
            bounds.append(record.wire.bound)
        return max(bounds, default=None)

    # ---- telling

    def _told_of(
        self,
        best: Distribution,
        ready: Ready,
        reason: str,
        compared: Compared | None = None,
        sent_as: tuple[SentAs, ...] = (),
        *,
        is_asked: bool = False,
    ) -> DividedPlan:
        name_of = self._means.peers.name_of
        stages = []
        for stage in ready.layout.stages:
            told, own = ready.told.get(stage.number), ready.own.get(stage.number)
            plan = "" if own is None else str(own.built.plan)
            measured_s = None if own is None else own.built.plan.measured_s
            stages.append(
                DeployedStage(
                    number=stage.number,
                    route=stage.route,
                    device=stage.device,
                    name=name_of(stage.device),
                    segments=stage.segments,
                    plan=plan if told is None else told.plan,
                    measured_s=measured_s if told is None else told.measured_s,
                    received_bytes=self._attempt.received_bytes[
                        stage.device, ready.models[stage.number].id
                    ],
                )
            )
        return DividedPlan(
            target=best.target,
            shares=ready.layout.shares,
            stages=tuple(stages),
            is_used=is_asked or (compared is not None and compared.is_faster),
            reason=reason,
            predicted_per_s=best.metrics.throughput_per_s,
            predicted_latency_s=best.metrics.latency_s,
            measured_per_s=_rate(compared.divided_s if compared else None),
            measured_latency_s=compared.latency_s if compared else None,
            alone_per_s=_rate(compared.alone_s if compared else None),
            alone_over_divided=compared.alone_over_divided if compared else None,
            control=compared.control if compared else None,
            epoch=self._attempt.epoch.number,
            is_encrypted=self._means.is_encrypted,
            sent_as=sent_as,
            wire_refused=self._loaded.dividing.wire_refused,
        )


def _best(planned: Planned) -> Distribution | None:
    """The best that is predicted, if other devices have a part in it."""
    best = planned.best[0] if planned.best else None
    if not isinstance(best, Distribution):
        return None
    devices = {part.device for route in best.routes for part in route.parts()}
    return best if devices - {THIS_DEVICE} else None


def _why_not(planned: Planned) -> str:
    """Why there is no division."""
    best = planned.best[0] if planned.best else None
    return best.reason if isinstance(best, Infeasible) else "none was found"


def _sent_as(crossings: Iterable[Crossing]) -> Iterator[SentAs]:
    for crossing in crossings:
        if crossing.wire is not None:
            yield SentAs(source=crossing.source, target=crossing.target, wire=crossing.wire)


def _reason(compared: Compared) -> str:
    if compared.wrong:
        return f"its answers cannot be used: {compared.wrong}"
    if compared.is_faster:
        return f"measured faster than this device alone: {compared.evidence}"
    return f"not measured faster than this device alone beyond the noise: {compared.evidence}"


def _rate(per_request_s: float | None) -> float | None:
    return 1.0 / per_request_s if per_request_s else None
