"""What happens to models: load, build, cut over, restart, replan, unload, and back after a start.

Every step runs on a thread of the executor; the data thread is asked for what it owns. One lock
per name keeps the steps of one model apart. Builds go one at a time, because a measurement beside
another is worth nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from edge_agent import clock
from edge_agent.agent.builders import Builder
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.divides import DividesOver, NoOthers
from edge_agent.agent.kept import save_kept, units_text
from edge_agent.agent.lanes import Lane
from edge_agent.agent.loaded import Loaded, Planning
from edge_agent.agent.moving import Moving
from edge_agent.agent.probing import Prober
from edge_agent.agent.processes import Child
from edge_agent.agent.restarting import Restarts
from edge_agent.agent.restoring import out_of_service, restored
from edge_agent.agent.specialising import Specialiser
from edge_agent.agent.stores import Stores
from edge_agent.agent.turns import GRANT_POLL_S, Turn, wait_for_quiet
from edge_agent.agent.workers import Serve, Worker, Workers, plain_subgraph
from edge_agent.config import Settings
from edge_agent.devices import DeviceId
from edge_agent.errors import (
    BuilderLost,
    Busy,
    EdgeAgentError,
    ModelRefused,
    StorageError,
    UnknownModel,
    UsageError,
    WorkerLost,
)
from edge_agent.plans import Epoch, unusable_pin
from edge_agent.samples import check_shapes
from edge_agent.store.registry import LoadedModel, check_name
from edge_agent.store.upkeep import PoolSizes
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import (
    Admitted,
    Built,
    Load,
)
from edge_agent.wire.parts import (
    ShapeCounts,
    Specialised,
)

log = logging.getLogger(__name__)

OWNER = "local"
"""Of epochs that this device serves alone."""
FIRST_REQUEST_S = 0.1
"""A build begins so long after the load: what a client asks at once goes first."""
SERVED_LATELY_S = 30.0


class Controller:
    """Owns all loaded models."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        incarnation: int,
        datapath: DataPath,
        workers: Workers,
        executor: Executor,
        prober: Prober,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._incarnation = incarnation
        self._datapath = datapath
        self._workers = workers
        self._executor = executor
        self.prober = prober
        """See `specialising.Host`."""
        self._models: dict[str, Loaded] = {}
        self._names: dict[str, threading.RLock] = {}
        self._lock = threading.Lock()
        self.building = Turn()
        """See `specialising.Host`."""
        self._collecting = threading.Lock()
        self._loads = 0
        self.is_stopping = threading.Event()
        self.specialiser = Specialiser(settings, datapath, self)
        self.moving = Moving(datapath, workers, self)
        self._restarts = Restarts(stores, datapath, workers, self.moving, self)
        self._dividing: DividesOver = NoOthers()

    def connect(self, dividing: DividesOver) -> None:
        """Say who divides models over devices; before the first model."""
        self._dividing = dividing

    # ---- looking

    def loaded(self, name: str) -> Loaded:
        """The model of that name.

        Raises:
            UnknownModel: there is none.
        """
        with self._lock:
            found = self._models.get(name)
            names = ", ".join(sorted(self._models)) or "none"
        if found is None:
            raise UnknownModel(f'model "{name}" is not loaded; loaded: {names}')
        return found

    def all_loaded(self) -> list[Loaded]:
        """All models, by name."""
        with self._lock:
            return [loaded for _, loaded in sorted(self._models.items())]

    def pool_sizes(self) -> PoolSizes:
        """What weights and graphs take on disk. Raises: StorageError."""
        return self._stores.pool.sizes()

    def _name_lock(self, name: str) -> threading.RLock:
        with self._lock:
            return self._names.setdefault(name, threading.RLock())

    def epoch(self, model: ModelId) -> Epoch:
        """A new one of that model."""
        number = self._stores.registry.next_epoch(model)
        return Epoch(owner=OWNER, incarnation=self._incarnation, model=model, number=number)

    def others_serve(self) -> bool:
        """See `moving.Host`."""
        return self._datapath.quiet_for_s() < SERVED_LATELY_S and bool(self._models)

    # ---- load and unload

    def load(self, message: Load) -> Loaded:
        """Admit a model, serve it on plain ONNX Runtime, and have its plan made.

        Raises:
            ModelRefused: it cannot be accepted; nothing of it is kept.
            UsageError, UnknownPeer: an option is wrong, such as a pin to a unit that is not there,
                or one of the samples; as above.
            StorageError: it cannot be stored.
        """
        path = Path(message.path)
        name = check_name(message.name if message.name is not None else path.stem)
        if message.pins and (reason := unusable_pin(message.pins, self.prober.device())):
            raise UsageError(reason)
        over = None if message.over is None else self._dividing.devices_of(message.over)
        with self._name_lock(name), self._loading():
            is_background = self.others_serve()
            child = self._workers.prepare(is_background=is_background)
            builder: Builder | None = None
            try:
                builder = Builder(self._settings, is_background=is_background)
                loaded = self._admit_and_open(message, name, over, builder, child)
            except BaseException:
                # It may be opening what was refused: that can take long, and nobody awaits it.
                child.kill()
                child.end()
                if builder is not None:
                    builder.close()
                    self.sweep_after_builder()
                raise
            is_replacing = self._install(loaded)
            loaded.builder = builder
        if is_replacing:
            self.collect_unused()
        self.start_build(loaded, is_fresh=False)
        return loaded

    def _admit_and_open(
        self,
        message: Load,
        name: str,
        over: tuple[DeviceId, ...] | None,
        builder: Builder,
        child: Child,
    ) -> Loaded:
        admitted = self._admit(message, builder, child)
        try:
            plain = plain_subgraph(admitted.path, message.threads)
            check_shapes(admitted.inputs, dict(message.shapes))
            serve = Serve(
                epoch=self.epoch(admitted.model),
                subgraphs=(plain,),
                instances=1,
                inputs=admitted.inputs,
                outputs=admitted.outputs,
            )
            lane = Lane(name, admitted.inputs, admitted.outputs)
            worker, _ = self.moving.open(lane, serve, child)
            record = LoadedModel(
                name=name,
                model=admitted.model,
                target=message.target,
                threads=message.threads,
                shapes=message.shapes,
                loaded_at_s=clock.wall_s(),
                source=message.path,
                subgraphs=message.subgraphs,
                pins=message.pins,
                samples=admitted.samples,
                half_bound=message.half_bound,
                over=over,
                wire=message.wire,
            )
            loaded = Loaded(record=record, lane=lane, serve=serve, worker=worker)
            self._remember(loaded)
            return loaded
        except (ModelRefused, WorkerLost) as error:
            raise ModelRefused(f"{message.path}: {error}") from error

    def _admit(self, message: Load, builder: Builder, child: Child) -> Admitted:
        """Have the model checked while the worker opens it, and put into the store after both."""
        opening = self._workers.opening_ahead(child)

        def begin(staged: str) -> None:
            opening.begin(plain_subgraph(staged, message.threads))

        def wait() -> None:
            try:
                opening.wait()
            except (ModelRefused, WorkerLost) as error:
                raise ModelRefused(f"{message.path}: {error}") from error

        return builder.admit(message.path, begin, wait, message.pins, message.samples)

    def _remember(self, loaded: Loaded) -> None:
        """Put a model on record, whole or not at all."""
        name = loaded.record.name
        try:
            self._keep(loaded)
            self._stores.registry.save(loaded.record)
        except StorageError:
            # A plan that was kept of the model before under this name is made again from its
            # profile, because what is kept names its model.
            if name not in self._models:
                self._stores.plans.remove_plan(name)
            raise

    def _install(self, loaded: Loaded) -> bool:
        """Put a model that can serve in the place of what its name stood for, if it did."""
        name = loaded.record.name
        with self._lock:
            before = self._models.get(name)
            self._models[name] = loaded
        worker = loaded.worker
        assert worker is not None
        try:
            self._datapath.cut_over(loaded.lane, worker.station)
        except WorkerLost:
            # Between being ready and now: it is restarted like any other.
            self._executor.submit(self.worker_lost, worker)
        self._datapath.call(lambda: self._datapath.lanes.add(loaded.lane))
        if before is not None:
            self._dismiss(before)
        return before is not None

    def unload(self, name: str) -> None:
        """Stop serving a model, after what is in flight, and remove it.

        Raises:
            UnknownModel: there is none of that name.
        """
        with self._name_lock(name):
            loaded = self.loaded(name)
            self._datapath.call(lambda: self._datapath.lanes.remove(name))
            self._dismiss(loaded)
            self._stores.registry.remove(name)
            self._stores.plans.remove_plan(name)
            with self._lock:
                del self._models[name]
        self.collect_unused()

    def _dismiss(self, loaded: Loaded) -> None:
        """Stop building it, answer what is in flight, and end its worker."""
        loaded.is_gone.set()
        if loaded.builder is not None:
            loaded.builder.kill()
        self.specialiser.stop(loaded)
        self._dividing.pause(loaded)
        lane = loaded.lane
        while self._datapath.call(lambda: lane.in_flight):
            if self._datapath.call(lambda: lane.needs_worker):
                self.restart(loaded)
            clock.sleep_s(GRANT_POLL_S)
        worker = loaded.worker
        if worker is not None:
            station = worker.station
            self._datapath.retire(lane, station)
            worker.child.process.wait()
        loaded.hold(())
        self._dividing.stop(loaded)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """While a model may be in the store that no name stands for yet."""
        with self._collecting:
            self._loads += 1
        try:
            yield
        except BaseException:
            self._end_loading()
            self.collect_unused()
            raise
        self._end_loading()

    def _end_loading(self) -> None:
        with self._collecting:
            self._loads -= 1

    def collect_unused(self) -> None:
        """Remove what no name stands for; if models are being loaded, the last of them does, or its
        build."""
        with self._collecting:
            if self._loads:
                return
            try:
                self._stores.collect([loaded.record for loaded in self.all_loaded()])
            except StorageError as error:
                log.warning("could not remove what is no longer used: %s", error)

    # ---- building

    def replan(self, name: str) -> Loaded:
        """Measure and plan a model again while it goes on serving.

        Raises:
            UnknownModel: there is none of that name.
            Busy: it is being planned already.
        """
        with self._name_lock(name):
            loaded = self.loaded(name)
            loaded.lane.check_is_run()
            if loaded.planning.state in ("waiting", "working"):
                raise Busy(
                    f'model "{name}" is being planned ({loaded.planning.what}): wait for that plan'
                )
            loaded.planning = Planning("waiting", 0.0, "waiting for its turn")
            loaded.banned = ()
            self.specialiser.stop(loaded)
            self._dividing.pause(loaded)
        self.start_build(loaded, is_fresh=True)
        return loaded

    def start_build(self, loaded: Loaded, *, is_fresh: bool) -> None:
        """Have a plan made, which will serve."""
        self._dividing.expect(loaded)
        threading.Thread(
            target=self._build,
            args=(loaded, is_fresh),
            name=f"build-{loaded.record.name}",
            daemon=True,
        ).start()

    def _build(self, loaded: Loaded, is_fresh: bool) -> None:
        loaded.is_gone.wait(FIRST_REQUEST_S)
        try:
            with self.building.held(loaded.is_gone.is_set) as is_mine:
                if is_mine and not loaded.is_gone.is_set():
                    self._wait_for_quiet(loaded)
                    loaded.planning = Planning("working", 0.0, "starting")
                    ask = partial(self._ask_builder, loaded)
                    self._deploy(loaded, loaded.ask_until_allowed(ask, is_fresh=is_fresh))
        except EdgeAgentError as error:
            if not loaded.is_gone.is_set() and not self.is_stopping.is_set():
                name = loaded.record.name
                what = str(error)
                if isinstance(error, BuilderLost):
                    what = f"the builder died ({error}); `edge-agent replan {name}` tries again"
                log.warning("model %s could not be planned: %s", name, what)
                loaded.planning = Planning("failed", 1.0, what)
        except Exception:
            log.exception("planning of %s failed", loaded.record.name)
            loaded.planning = Planning("failed", 1.0, "the agent failed: see its log")
        finally:
            builder, loaded.builder = loaded.builder, None
            if builder is not None:
                builder.close()
                self.sweep_after_builder()
            self.collect_unused()
            self.specialiser.consider(loaded)
            self._dividing.consider(loaded, is_fresh=is_fresh)

    def sweep_after_builder(self) -> None:
        """A builder that was killed left its workspace."""
        try:
            self._stores.pool.sweep()
            self._stores.models.sweep()
            self._stores.samples.sweep()
            self._stores.profiled.sweep()
            self._stores.cuts.sweep()
        except StorageError as error:
            log.warning("could not remove what a builder left: %s", error)

    def _ask_builder(self, loaded: Loaded, is_fresh: bool) -> Built:
        if loaded.builder is None:
            loaded.builder = Builder(self._settings)
        # What was measured before is found out again, and so is what there is to measure.
        device = None if is_fresh else self.prober.known
        message = loaded.asked_for(is_fresh=is_fresh, device=device)

        def on_progress(fraction: float, what: str) -> None:
            loaded.planning = Planning("working", fraction, what)

        built = loaded.builder.build(message, on_progress, lambda: self._wait_for_quiet(loaded))
        self.prober.learn(built.device)
        return built

    def _wait_for_quiet(self, loaded: Loaded) -> None:
        planning = loaded.planning
        waiting = replace(planning, what=f"{planning.what} (waiting until no request is under way)")

        def tell() -> None:
            loaded.planning = waiting

        wait_for_quiet(self._datapath, lambda: self.is_over(loaded), tell)
        loaded.planning = planning

    def _deploy(self, loaded: Loaded, built: Built) -> None:
        """Let the plan serve: prepare, cut over, drain, keep."""
        loaded.opens_aside = built.opens_aside
        with self._name_lock(loaded.record.name):
            if self.is_over(loaded):
                return
            serve = Serve(
                epoch=self.epoch(loaded.record.model),
                subgraphs=built.subgraphs,
                instances=built.instances,
                pinned_cores=built.pinned_cores,
                inputs=loaded.lane.inputs,
                outputs=loaded.lane.outputs,
                warm_shapes=built.plan.shapes,
                specialised=loaded.serve.specialised,
            )
            # What runs is plain already: then the plan only says what the next start opens.
            is_plain_already = built.plan.is_plain and (loaded.plan is None or loaded.plan.is_plain)
            is_plain_already &= not built.is_large and loaded.serve.division is None
            if is_plain_already:
                loaded.serve = serve
            else:
                loaded.planning = Planning("working", 1.0, "moving traffic to the plan")
                self.moving.move(loaded, serve, may_be_beside=not built.is_large)
            loaded.plan = built.plan
            self.specialiser.begin_anew(loaded)
            self._keep(loaded)
            loaded.planning = Planning("done", 1.0, "done")

    def deploy_specialised(self, loaded: Loaded, specialised: tuple[Specialised, ...]) -> None:
        """See `specialising.Host`."""
        with self._name_lock(loaded.record.name):
            if not self.is_over(loaded):
                was_divided = loaded.serve.division is not None
                self._serve_alone(loaded, specialised)
                if was_divided:
                    self._dividing.consider(loaded)

    def _serve_alone(self, loaded: Loaded, specialised: tuple[Specialised, ...]) -> None:
        epoch = self.epoch(loaded.record.model)
        serve = replace(loaded.serve, epoch=epoch, specialised=specialised, division=None)
        self.moving.move(loaded, serve, may_be_beside=True)

    def serve_alone(self, loaded: Loaded) -> None:
        """See `trials.Host`."""
        self._serve_alone(loaded, loaded.serve.specialised)

    def changing(self, loaded: Loaded) -> threading.RLock:
        """See `trials.Host`."""
        return self._name_lock(loaded.record.name)

    def counts(self, lane: Lane) -> bool:
        """See `moving.Host`."""
        return self.specialiser.counts(lane)

    def is_over(self, loaded: Loaded) -> bool:
        """See `specialising.Host`."""
        return (
            loaded.is_gone.is_set()
            or self.is_stopping.is_set()
            or loaded.lane.quarantine is not None
        )

    def shapes_counted(self, worker: Worker, counts: ShapeCounts) -> None:
        """See `moving.Host`."""

        def tell() -> None:
            found = next((m for m in self.all_loaded() if m.worker is worker), None)
            if found is not None:
                self.specialiser.counted(found, counts)

        self._executor.submit(tell)

    def keep_on(self, loaded: Loaded) -> None:
        """See `specialising.Host`."""
        with self._name_lock(loaded.record.name):
            if not self.is_over(loaded):
                self._keep(loaded)

    def _keep(self, loaded: Loaded) -> None:
        save_kept(self._stores.plans, loaded.record.name, loaded.kept(units_text(self._settings)))
        loaded.hold(self._stores.hold(loaded.serve.files))

    # ---- workers that died

    def worker_lost(self, worker: Worker) -> None:
        """See `moving.Host`."""
        found = next((m for m in self.all_loaded() if m.lane is worker.lane), None)
        if found is None:
            return
        with self._name_lock(found.record.name):
            is_gone = found.is_gone.is_set()
            if not is_gone and self._datapath.call(lambda: found.lane.active) is None:
                self.restart(found)

    def restart(self, loaded: Loaded) -> None:
        """See `moving.Host`; what waits in the lane is answered by the new worker."""
        was_divided = loaded.serve.division is not None
        loaded.serve = replace(loaded.serve, division=None)
        self._restarts.restart(loaded)
        if was_divided:
            self._dividing.has_left(loaded)
            self._dividing.consider(loaded)

    # ---- start and stop of the agent

    def restore(self) -> None:
        """Take up every model that was loaded before; before the socket opens.

        Requests are accepted at once and wait for the workers, which start in the background.
        """
        records, damages = self._stores.registry.load()
        for damage in damages:
            log.error("%s", damage)
        self._stores.collect(records)
        for record in records:
            try:
                loaded = restored(record, self._stores, self._settings, self.epoch)
            except EdgeAgentError as error:
                loaded = out_of_service(record, self.epoch(record.model), error)
                log.error("%s", loaded.lane.quarantine)
            self._models[record.name] = loaded
            self._datapath.call(partial(self._datapath.lanes.add, loaded.lane))

    def open_restored(self) -> None:
        """Start the workers of restored models, and the building of the ones without a plan."""
        for loaded in self.all_loaded():
            if loaded.lane.quarantine is None:
                self._executor.submit(self._open_restored, loaded)
                if loaded.planning.state == "waiting":
                    self.start_build(loaded, is_fresh=False)

    def _open_restored(self, loaded: Loaded) -> None:
        with self._name_lock(loaded.record.name):
            if not loaded.is_gone.is_set():
                self.restart(loaded)
                loaded.lane.restarts = 0
                self.specialiser.consider(loaded)
                self._dividing.consider(loaded)

    def stop(self) -> None:
        """Stop all building; the agent is about to end."""
        self.is_stopping.set()
        for loaded in self.all_loaded():
            if loaded.builder is not None:
                loaded.builder.kill()
            self.specialiser.stop(loaded)
            self._dividing.stop(loaded)
