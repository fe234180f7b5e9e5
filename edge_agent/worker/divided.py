"""The owner's end of a divided model: which route a request takes, and what happens to one that is
lost on the way."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_agent.errors import DeadlineExceeded, EdgeAgentError, PeerLost
from edge_agent.tensors import Arrays, Shape
from edge_agent.worker.runners import Asked, Runner
from edge_agent.worker.stages import Stages

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RouteState:
    """A route as its requests see it."""

    number: int
    share: float
    """Of the traffic, above 0."""
    most: int
    """Runs that may be under way at once."""
    under_way: int = 0
    begun: int = 0
    lost: str = ""
    """Why it is of no use any more; "" if it is."""

    @property
    def is_free(self) -> bool:
        """Whether another run may begin."""
        return not self.lost and self.under_way < self.most


@dataclass(slots=True)
class _Run:
    route: RouteState
    ended: threading.Event = field(default_factory=threading.Event)
    arrays: Arrays | None = None
    error: EdgeAgentError | None = None
    is_lost: bool = False


class DividedRunner:
    """Implements `runners.Runner` and `stages.Origin`."""

    def __init__(
        self,
        routes: Sequence[RouteState],
        fallback: Runner | None,
        at_once: int | None = None,
        shapes: Mapping[str, Shape] | None = None,
    ) -> None:
        """`fallback` runs the whole model here, `at_once` as often at a time (None: any number);
        None: it does not fit. Inputs that are larger than `shapes` somewhere, or others than
        these, run here too: there may be no room for what they give rise to."""
        self._routes = tuple(routes)
        self._shapes = shapes
        self._fallback = fallback
        self._room = None if at_once is None else threading.Semaphore(at_once)
        self._numbers = itertools.count(1)
        self._changing = threading.Condition()
        self._runs: dict[int, _Run] = {}
        self._stages: Stages
        self.run_again = 0
        """Runs that were lost, or failed, and ran here instead."""

    def attach(self, stages: Stages) -> None:
        """Say who carries the tensors; before the first run."""
        self._stages = stages

    def pin_caller(self) -> None:
        """See `runners.Runner`: callers wait, and stages run on threads of their own."""

    @property
    def has_route(self) -> bool:
        """Whether a route is of use."""
        return not all(route.lost for route in self._routes)

    def run(
        self,
        feeds: Arrays,
        outputs: Sequence[str],
        asked: Asked | None = None,
    ) -> Arrays:
        """See `runners.Runner`. A run that is lost, or in which a stage fails, is run again here:
        what it failed of may be that device's own, and if it is not, the error is of this one.

        Raises also: DeadlineExceeded: it took too long, or was abandoned.
        """
        asked = asked or Asked()
        if not self._has_room_for(feeds) and self._fallback is not None:
            return self.run_alone(feeds, outputs)
        begun = self._begin(asked)
        if begun is None:
            why = "; ".join(dict.fromkeys(route.lost for route in self._routes))
            return self._run_here(feeds, outputs, why)
        number, run = begun
        try:
            if not run.ended.is_set():
                self._stages.begin(number, run.route.number, feeds, asked.until_s)
            self._await(number, run, asked.left_s)
        finally:
            with self._changing:
                asked.run = None
                del self._runs[number]
                run.route.under_way -= 1
                self._changing.notify()
        asked.check()
        if run.is_lost:
            return self._run_here(feeds, outputs, run.route.lost or "a device forgot it")
        if run.error is not None:
            if self._fallback is None or isinstance(run.error, DeadlineExceeded):
                raise run.error
            log.info("a run is run again here: a stage failed: %s", run.error)
            return self._run_here(feeds, outputs, str(run.error))
        assert run.arrays is not None
        # An output may be an input, which crosses nothing.
        return {name: run.arrays[name] if name in run.arrays else feeds[name] for name in outputs}

    def _has_room_for(self, feeds: Arrays) -> bool:
        if self._shapes is None:
            return True
        return feeds.keys() == self._shapes.keys() and all(
            _fits(feeds[name], shape) for name, shape in self._shapes.items()
        )

    def abandon(self, asked: Asked) -> None:
        """Nobody waits for it any more: it ends, or never begins."""
        with self._changing:
            asked.is_abandoned = True
            number = asked.run
            run = None if number is None else self._runs[number]
            # It may be waiting for a route.
            self._changing.notify_all()
        if number is not None and run is not None:
            run.ended.set()
            self._stages.cancel(number)

    def run_alone(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Outputs of a run of the whole model here.

        Raises:
            PeerLost: it does not fit.
            EdgeAgentError: as `run`.
        """
        if self._fallback is None:
            raise PeerLost("the model does not fit into this device alone")
        with self._room or nullcontext():
            return self._fallback.run(feeds, outputs)

    def _begin(self, asked: Asked) -> tuple[int, _Run] | None:
        """A run on the route that is free and has had least of its share; None: all are lost."""
        with self._changing:
            while True:
                asked.check()
                if not self.has_route:
                    return None
                free = [route for route in self._routes if route.is_free]
                if free:
                    break
                left_s = asked.left_s
                if left_s is not None and left_s <= 0:
                    raise DeadlineExceeded("the deadline passed before a route was free")
                self._changing.wait(left_s)
            route = min(free, key=lambda r: ((r.begun + 1) / r.share, r.number))
            route.under_way += 1
            route.begun += 1
            if route.begun > 1 << 20:
                for one in self._routes:
                    one.begun //= 2
            number = next(self._numbers)
            self._runs[number] = run = _Run(route)
            asked.run = number
            return number, run

    def _await(self, number: int, run: _Run, left_s: float | None) -> None:
        if not run.ended.wait(None if left_s is None else max(0.0, left_s)):
            self._stages.cancel(number)
            raise DeadlineExceeded("the deadline passed while the stages ran")

    def _run_here(self, feeds: Arrays, outputs: Sequence[str], why: str) -> Arrays:
        if self._fallback is None:
            raise PeerLost(f"{why}, and the model does not fit into this device alone")
        with self._changing:
            self.run_again += 1
        return self.run_alone(feeds, outputs)

    # ---- what the stages tell

    def finished(self, run: int, arrays: Arrays) -> None:
        """See `stages.Origin`."""
        with self._changing:
            found = self._runs.get(run)
        if found is not None:
            # The memory that it came in is needed for what comes next.
            found.arrays = {name: _own(value) for name, value in arrays.items()}
            found.ended.set()

    def failed(self, run: int, error: EdgeAgentError) -> None:
        """See `stages.Origin`."""
        with self._changing:
            found = self._runs.get(run)
        if found is not None:
            found.error = error
            found.ended.set()

    def lost(self, runs: Sequence[int], why: str) -> None:
        """See `stages.Origin`."""
        with self._changing:
            found = [self._runs[run] for run in runs if run in self._runs]
        for run in found:
            run.is_lost = True
            run.ended.set()
        log.info("%d runs are run again here: %s", len(found), why)

    def route_is_lost(self, number: int, why: str) -> None:
        """Nothing goes over this route any more; what is under way there is run here."""
        with self._changing:
            for route in self._routes:
                if route.number == number:
                    route.lost = why
            runs = [key for key, run in self._runs.items() if run.route.number == number]
            self._changing.notify_all()
        for run in runs:
            self._stages.cancel(run)
        self.lost(runs, why)


def _fits(value: Any, within: Shape) -> bool:
    shape = getattr(value, "shape", None)
    return (
        shape is not None
        and len(shape) == len(within)
        and all(size <= most for size, most in zip(shape, within, strict=True))
    )


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
