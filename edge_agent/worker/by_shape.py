"""Which subgraphs a request runs on, by the shapes of its inputs, and how often which shapes come.

Both need the shapes of every request, so that they are looked at once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge_agent import clock
from edge_agent.errors import RunFailed
from edge_agent.tensors import Arrays, ShapeSet
from edge_agent.wire.parts import (
    MAX_COUNTED_SHAPES,
    ShapeCount,
    ShapeCounts,
)

log = logging.getLogger(__name__)

WINDOW = 1024
"""When so many requests are counted, all counts are halved: older ones fade."""
REPORT_S = 1.0
_MUCH_SHARE = 0.05
_MUCH_GROWTH = 1.25


class ShapeCounter:
    """Counts recent requests by shapes, in bounded room; any thread may use it.

    With more than `MAX_COUNTED_SHAPES` different ones, a new one takes the place of the rarest and
    its count: none is counted too low, and none too high by more than one in so many of all
    requests (Space-Saving: Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent and
    Top-k Elements in Data Streams, ICDT 2005).
    """

    def __init__(
        self, before: Iterable[ShapeCount], now_s: Callable[[], float] = clock.monotonic_s
    ) -> None:
        """`before` is what was counted already."""
        counts = {c.shapes: c.count for c in before}
        # In lists of one: a request looks its shapes up once, which takes most of the time here.
        self._counts = {shapes: [count] for shapes, count in counts.items()}
        self._total = sum(counts.values())
        self._counting = threading.Lock()
        self._now_s = now_s
        self._has_news = False
        self._looked_s = now_s()
        self._told = counts

    def count(self, shapes: ShapeSet) -> None:
        """A request of these shapes came."""
        with self._counting:
            counted = self._counts.get(shapes)
            if counted is not None:
                counted[0] += 1
            else:
                self._count_new(shapes)
            self._total += 1
            if self._total >= WINDOW:
                self._fade()
        self._has_news = True

    def _count_new(self, shapes: ShapeSet) -> None:
        counts = self._counts
        before = 0
        if len(counts) >= MAX_COUNTED_SHAPES:
            (before,) = counts.pop(min(counts, key=counts.__getitem__))
        counts[shapes] = [before + 1]

    def _fade(self) -> None:
        self._counts = {shapes: [n // 2] for shapes, (n,) in self._counts.items() if n > 1}
        self._total = sum(n for (n,) in self._counts.values())

    def will_count(self) -> None:
        """A request is under way to `count`: whoever waits meanwhile must not wait for ever."""
        self._has_news = True

    def wait_s(self) -> float | None:
        """Seconds until there may be something to tell; None: not before the next request."""
        if not self._has_news:
            return None
        return max(0.0, self._looked_s + REPORT_S - self._now_s())

    def news(self) -> ShapeCounts | None:
        """What to tell the agent now; None if that has not changed much since the last time."""
        self._looked_s = self._now_s()
        self._has_news = False
        with self._counting:
            counts = {shapes: n for shapes, (n,) in self._counts.items()}
        if not _differ(counts, self._told):
            return None
        self._told = counts
        return tuple(ShapeCount(shapes, count) for shapes, count in counts.items())


def _differ(now: Mapping[ShapeSet, int], before: Mapping[ShapeSet, int]) -> bool:
    total, total_before = sum(now.values()), sum(before.values())
    if not total or total >= _MUCH_GROWTH * total_before:
        return True
    moved = sum(
        abs(now.get(shapes, 0) / total - before.get(shapes, 0) / total_before)
        for shapes in {*now, *before}
    )
    return moved >= _MUCH_SHARE


class Runner(Protocol):
    """A chain of sessions for some or all shapes."""

    core: int | None
    """Where its callers belong; None: anywhere."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """See `runners.Runner`."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A runner, and room for as many runs at once as were planned for it."""

    runner: Runner
    room: threading.Semaphore | None
    """None where all callers together are no more than that."""


class ByShape:
    """`runners.Runner` for a model with open dimensions.

    A specialised chain that fails where the general one does not is not used again.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        general: Choice,
        specialised: Mapping[ShapeSet, Choice],
        counter: ShapeCounter | None,
    ) -> None:
        """Make it on a thread that is bound to no core."""
        self._inputs = tuple(inputs)
        self._general = general
        self._specialised = dict(specialised)
        self._counter = counter
        choices = (general, *specialised.values())
        self._binds = any(choice.runner.core is not None for choice in choices)
        self._anywhere = os.sched_getaffinity(0)
        self._caller = threading.local()

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """See `runners.Runner`; a request that also gives what might be left out runs on the
        general chain."""
        if len(feeds) != len(self._inputs):
            return self._run_on(self._general, feeds, outputs)
        shapes = tuple([feeds[name].shape for name in self._inputs])
        if self._counter is not None:
            self._counter.count(shapes)
        choice = self._specialised.get(shapes)
        if choice is None:
            return self._run_on(self._general, feeds, outputs)
        try:
            return self._run_on(choice, feeds, outputs)
        except RunFailed as error:
            answer = self._run_on(self._general, feeds, outputs)
            if self._specialised.pop(shapes, None) is not None:
                log.warning("the subgraphs for %s are given up: %s", shapes, error)
            return answer

    def _run_on(self, choice: Choice, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        if self._binds:
            self._bind_caller(choice.runner.core)
        if choice.room is None:
            return choice.runner.run(feeds, outputs)
        with choice.room:
            return choice.runner.run(feeds, outputs)

    def pin_caller(self) -> None:
        """See `runners.Runner`: where a caller belongs is known with each request."""

    def _bind_caller(self, core: int | None) -> None:
        if getattr(self._caller, "core", None) != core:
            os.sched_setaffinity(0, self._anywhere if core is None else {core})
            self._caller.core = core
