"""Plans for single sets of input shapes: those that are asked often get subgraphs of their own,
and those that a user asks about are planned to be looked at.

One thread per model makes them, one after the other, and takes turns with the builds of other
models. It ends when there is nothing more to make; counts and questions start it again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from edge_agent.agent.builders import Builder
from edge_agent.agent.kept import Specialisation
from edge_agent.agent.lanes import Lane
from edge_agent.agent.loaded import WAITING, Loaded, ShapeWork
from edge_agent.agent.probing import Prober
from edge_agent.agent.turns import Traffic, Turn, wait_for_quiet
from edge_agent.config import Settings
from edge_agent.errors import (
    BuilderLost,
    Busy,
    EdgeAgentError,
    StorageError,
)
from edge_agent.planning.specialise import ShapePolicy, choose_shapes
from edge_agent.plans import ExecutionPlan
from edge_agent.samples import complete_shapes
from edge_agent.tensors import Shape, ShapeSet, TensorName, shape_names
from edge_agent.wire.messages import (
    Built,
    PlanInMaking,
)
from edge_agent.wire.parts import (
    General,
    ShapeCounts,
    Specialised,
)

log = logging.getLogger(__name__)

MOST_INPUTS = 64
"""Models with more of them carry their state along, whose shapes change with every request."""
MOST_REFUSED = 16
"""Sets of shapes that gained nothing are remembered, so that they are not tried again. No more than
ten can have a tenth of the requests at the same time; and what was measured of one that is tried
again is on disk."""
MOST_ANSWERS = 16
"""So many plans that users asked for are kept, and so many may be waited for."""
_BANNED = "the worker died of its units"


class Host(Protocol):
    """What the specialiser needs of the controller."""

    building: Turn
    """Held by whoever builds."""
    prober: Prober
    """Knows the device."""

    def is_over(self, loaded: Loaded) -> bool:
        """Whether the model is gone, or the agent is about to end."""
        ...

    def deploy_specialised(self, loaded: Loaded, specialised: tuple[Specialised, ...]) -> None:
        """Let another epoch serve with these, unless the model is over.

        Raises:
            EdgeAgentError: it cannot; what serves goes on serving.
        """
        ...

    def keep_on(self, loaded: Loaded) -> None:
        """Write down what is known of the model, unless it is over."""
        ...

    def sweep_after_builder(self) -> None:
        """Clear away what a builder left."""
        ...


class Specialiser:
    """Makes the specialisations of all models."""

    def __init__(
        self,
        settings: Settings,
        traffic: Traffic,
        host: Host,
        new_builder: Callable[[Settings], Builder] = Builder,
    ) -> None:
        self._settings = settings
        self._new_builder = new_builder
        self._traffic = traffic
        self._host = host
        self._policy = ShapePolicy(most=settings.specialising.most_shapes)

    # ---- what is asked

    def counts(self, lane: Lane) -> bool:
        """Whether the requests of a lane are to be counted by shape."""
        is_open = not all(spec.is_static for spec in lane.inputs)
        return self._policy.most > 0 and is_open and len(lane.inputs) <= MOST_INPUTS

    def counted(self, loaded: Loaded, counts: ShapeCounts) -> None:
        """The worker of a model tells which shapes were asked lately."""
        inputs = len(shape_names(loaded.lane.inputs))
        loaded.counted = tuple(c for c in counts if len(c.shapes) == inputs)
        self.consider(loaded)

    def plan_for(
        self, loaded: Loaded, given: Mapping[TensorName, Shape]
    ) -> ExecutionPlan | PlanInMaking:
        """The plan for these shapes; one that is not known is made while the caller asks again.

        Raises:
            InputMismatch: the shapes contradict the model.
            Busy: too many others are waited for.
            ModelQuarantined: the model is not run any more.
            EdgeAgentError: it could not be made.
        """
        general = loaded.plan
        usual = dict(general.shapes if general is not None else loaded.record.shapes)
        full = complete_shapes(loaded.lane.inputs, given, usual)
        shapes = tuple(shape for _, shape in full)
        for known in loaded.specialisations:
            if known.shapes == shapes and known.plan is not None and not known.is_stale:
                return known.plan
        if general is not None and general.shapes == full:
            return general
        loaded.lane.check_is_run()
        work = loaded.shape_work
        with work.changing:
            answer = work.answers.get(shapes)
            if answer is None and shapes not in work.asked:
                if len(work.asked) >= MOST_ANSWERS:
                    raise Busy(f"{MOST_ANSWERS} sets of shapes are waited for: ask again later")
                work.asked.append(shapes)
            elif isinstance(answer, EdgeAgentError):
                del work.answers[shapes]
        if isinstance(answer, EdgeAgentError):
            raise answer
        if answer is not None:
            return answer
        self.consider(loaded)
        return work.progress

    # ---- starting and stopping

    def consider(self, loaded: Loaded) -> None:
        """Start to make what is wanted of a model, unless that is under way."""
        work = loaded.shape_work
        with work.changing:
            if work.is_running or not self._has_work(loaded, work):
                return
            work.is_running = True
            work.stopped = threading.Event()
            work.progress = WAITING
        name = f"build-shapes-{loaded.record.name}"
        threading.Thread(target=self._run, args=(loaded, work), name=name, daemon=True).start()

    def stop(self, loaded: Loaded) -> None:
        """Stop what is being made for a model; `consider` begins again with what is left."""
        work = loaded.shape_work
        with work.changing:
            work.stopped.set()
            if work.builder is not None:
                work.builder.kill()
        self._host.building.look_again()

    def begin_anew(self, loaded: Loaded) -> None:
        """The general plan was made anew: what was compared with the one before is to be made
        again, and serves until then; what gained nothing may gain something now."""
        loaded.specialisations = tuple(
            msgspec.structs.replace(s, is_stale=True) for s in loaded.specialisations
        )
        work = loaded.shape_work
        with work.changing:
            work.answers.clear()

    # ---- the thread of one model

    def _has_work(self, loaded: Loaded, work: ShapeWork) -> bool:
        if self._host.is_over(loaded) or loaded.planning.state in ("waiting", "working"):
            return False
        return self._next(loaded, work) is not None or self._wanted_to_serve(loaded) != {
            s.shapes for s in loaded.serve.specialised
        }

    def _wanted(self, loaded: Loaded) -> tuple[ShapeSet, ...]:
        if loaded.plan is None:
            return ()  # nothing to compare with
        return choose_shapes(
            {c.shapes: c.count for c in loaded.counted},
            [s.shapes for s in loaded.specialisations if s.serve is not None],
            {s.shapes for s in loaded.specialisations if s.serve is None and not s.is_stale},
            self._policy,
        )

    def _wanted_to_serve(self, loaded: Loaded) -> set[ShapeSet]:
        wanted = self._wanted(loaded)
        return {s.shapes for s in loaded.specialisations if s.serve and s.shapes in wanted}

    def _next(self, loaded: Loaded, work: ShapeWork) -> ShapeSet | None:
        """What to make now; a user who waits goes first."""
        if work.asked:
            return work.asked[0]
        fresh = {s.shapes for s in loaded.specialisations if not s.is_stale}
        return next((shapes for shapes in self._wanted(loaded) if shapes not in fresh), None)

    def _run(self, loaded: Loaded, work: ShapeWork) -> None:
        stopped = work.stopped
        try:
            builder = self._make_all(loaded, work)
        except Exception:
            log.exception("planning of %s for single shapes failed", loaded.record.name)
            with work.changing:
                builder = _end(work)
        if builder is not None:
            builder.close()
            self._host.sweep_after_builder()
        if stopped.is_set():
            self.consider(loaded)  # what it was stopped for may be over already

    def _make_all(self, loaded: Loaded, work: ShapeWork) -> Builder | None:
        """Make what is wanted until nothing is, and have it serve; the builder that is left."""
        while True:
            is_stuck = True
            with self._host.building.held(work.stopped.is_set) as is_mine:
                if is_mine:
                    shapes = None if work.stopped.is_set() else self._next(loaded, work)
                    if shapes is not None:
                        self._make(loaded, work, shapes)
                    is_stuck = shapes is None and not self._settle(loaded, work)
            with work.changing:
                if is_stuck or work.stopped.is_set() or not self._has_work(loaded, work):
                    # In one step, so that what is wanted from now on starts another thread.
                    return _end(work)

    def _make(self, loaded: Loaded, work: ShapeWork, shapes: ShapeSet) -> None:
        result: Built | EdgeAgentError
        try:
            is_stale = any(s.shapes == shapes and s.is_stale for s in loaded.specialisations)
            ask = partial(self._ask_builder, loaded, work, shapes)
            result = loaded.ask_until_allowed(ask, is_fresh=is_stale)
            loaded.opens_aside = result.opens_aside
        except EdgeAgentError as error:
            if work.stopped.is_set() or self._host.is_over(loaded):
                return  # it is wanted as before
            result = error
            if isinstance(error, BuilderLost):
                with work.changing:
                    work.builder = None
                self._host.sweep_after_builder()
                result = EdgeAgentError(f"the builder died ({error})")
            log.warning("%s is not planned for %s: %s", loaded.record.name, shapes, result)
        with work.changing:
            if work.stopped.is_set():
                return
            self._note(loaded, work, shapes, result)

    def _note(
        self, loaded: Loaded, work: ShapeWork, shapes: ShapeSet, result: Built | EdgeAgentError
    ) -> None:
        if shapes in work.asked:
            work.asked.remove(shapes)
            work.answers[shapes] = result if isinstance(result, EdgeAgentError) else result.plan
            while len(work.answers) > MOST_ANSWERS:
                work.answers.popitem(last=False)
        if shapes in self._wanted(loaded):
            others = tuple(s for s in loaded.specialisations if s.shapes != shapes)
            loaded.specialisations = _bounded((*others, _specialisation(shapes, result)))

    def _ask_builder(
        self, loaded: Loaded, work: ShapeWork, shapes: ShapeSet, is_fresh: bool
    ) -> Built:
        with work.changing:
            if work.stopped.is_set():
                raise BuilderLost("stopped")
            if work.builder is None:
                work.builder = self._new_builder(self._settings)
            builder = work.builder
        names, serve = shape_names(loaded.lane.inputs), loaded.serve
        message = msgspec.structs.replace(
            loaded.asked_for(is_fresh=is_fresh, device=self._host.prober.known),
            shapes=tuple(zip(names, shapes, strict=True)),
            general=General(
                is_plain=loaded.plan is None or loaded.plan.is_plain,
                subgraphs=serve.subgraphs,
                instances=serve.instances,
                pinned_cores=serve.pinned_cores,
            ),
        )
        text = ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)

        def on_progress(fraction: float, what: str) -> None:
            work.progress = PlanInMaking(fraction, f"for {text}: {what}")

        def wait() -> None:
            wait_for_quiet(self._traffic, work.stopped.is_set, lambda: None)

        on_progress(0.0, "starting")
        wait()
        return builder.build(message, on_progress, wait)

    # ---- letting them serve

    def _settle(self, loaded: Loaded, work: ShapeWork) -> bool:
        """Have the wanted ones serve, and no others; whether that could be done."""
        if work.stopped.is_set():
            return True
        banned = _banned(loaded)
        if banned:
            refuse(loaded, dict.fromkeys(banned, _BANNED))
        wanted = self._wanted_to_serve(loaded)
        before = loaded.serve.specialised
        loaded.specialisations = tuple(
            s for s in loaded.specialisations if s.serve is None or s.shapes in wanted
        )
        serve = tuple(s.serve for s in loaded.specialisations if s.serve is not None)
        try:
            if {s.shapes: s for s in serve} != {s.shapes: s for s in before}:
                self._host.deploy_specialised(loaded, serve)
        except EdgeAgentError as error:
            log.warning("%s serves as before: %s", loaded.record.name, error)
            refuse(loaded, {s.shapes: f"not opened: {error}" for s in serve if s not in before})
            return False
        try:
            self._host.keep_on(loaded)
        except StorageError as error:
            log.warning("the plans of %s are not kept: %s", loaded.record.name, error)
        return True


def _banned(loaded: Loaded) -> set[ShapeSet]:
    """What was made, but before its units killed the worker."""
    return {s.shapes for s in loaded.specialisations if s.serve and loaded.bans(s.serve.subgraphs)}


def _end(work: ShapeWork) -> Builder | None:
    """The thread makes nothing more; its builder. Hold `work.changing`."""
    builder, work.builder = work.builder, None
    work.is_running = False
    return builder


def refuse(loaded: Loaded, reasons: Mapping[ShapeSet, str]) -> None:
    """These cannot be used; the general plan serves their shapes, and they are not tried again."""
    loaded.specialisations = tuple(
        msgspec.structs.replace(s, serve=None, is_stale=False, reason=reasons[s.shapes])
        if s.shapes in reasons
        else s
        for s in loaded.specialisations
    )
    kept = tuple(s for s in loaded.serve.specialised if s.shapes not in reasons)
    loaded.serve = dataclasses.replace(loaded.serve, specialised=kept)


def refuse_all(loaded: Loaded, reason: str) -> None:
    """No specialisation of the model is used from now on."""
    refuse(loaded, {s.shapes: reason for s in loaded.serve.specialised})


def _specialisation(shapes: ShapeSet, result: Built | EdgeAgentError) -> Specialisation:
    if isinstance(result, EdgeAgentError):
        return Specialisation(shapes=shapes, plan=None, reason=str(result), serve=None)
    serve = None
    if result.subgraphs:
        serve = Specialised(
            shapes=shapes,
            subgraphs=result.subgraphs,
            instances=result.instances,
            pinned_cores=result.pinned_cores,
        )
    return Specialisation(shapes=shapes, plan=result.plan, reason=result.plan.reason, serve=serve)


def _bounded(found: tuple[Specialisation, ...]) -> tuple[Specialisation, ...]:
    refused = [s for s in found if s.serve is None]
    forgotten = refused[: max(0, len(refused) - MOST_REFUSED)]
    return tuple(s for s in found if s not in forgotten)
