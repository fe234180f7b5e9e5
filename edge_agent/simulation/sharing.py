"""How work of several requests shares the cores of a device, or an accelerator.

**One second per second.** A resource gives one second of itself per second. A run in a
configuration with k instances takes 1/k of it while it lasts: k of them at once were measured to
take the time in the profile, and fill it; what would fit beside them was not measured, so nothing
is assumed to. Processor time of one core, of c cores, takes 1/c. What is there at once and asks
for no more than the whole goes on at full speed. If it asks for more, first comes what sends and
receives: a thread that wakes for a short while is let in before those that compute without a
pause, as schedulers do. The runs share what is left in proportion to what they ask for, as time
slices do, and kernels of several streams on an accelerator. The sum is the whole resource
exactly, so that nothing is lost and nothing gained by sharing.

**Load.** What others take, heat, or an observed slowdown make work slower for as long as they
last: what is left of it then goes on at the new speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_agent.devices import UnitId
from edge_agent.simulation.events import Act, Due, Events


@dataclass(slots=True, eq=False)
class _Work:
    left_s: float
    """At full speed."""
    demand: float
    unit: UnitId
    comes_first: bool
    done: Act
    speed: float
    """Of its unit, 1 undisturbed."""
    share: float = 0.0
    """How much of what it asks for it gets, 0 to 1."""


class SharedResource:
    """The cores of a device, or one of its accelerators."""

    def __init__(self, events: Events, name: str, speed_of: Callable[[UnitId], float]) -> None:
        self.name = name
        self._events = events
        self._speed_of = speed_of
        self._work: list[_Work] = []
        self._settled_s = 0.0
        self._used = 0.0
        self._busy_s = 0.0
        self._next: Due | None = None

    def work(
        self,
        work_s: float,
        *,
        demand: float,
        unit: UnitId,
        done: Act,
        comes_first: bool = False,
    ) -> None:
        """Do what takes `work_s` at full speed and asks for `demand` of the whole, then `done`."""
        if work_s == 0.0:
            self._events.after(0.0, done)
            return
        self._settle()
        speed = self._speed_of(unit)
        self._work.append(_Work(work_s, demand, unit, comes_first, done, speed))
        self._share()

    def speeds_changed(self) -> None:
        """Go on at the speeds that units have now."""
        self._settle()
        for work in self._work:
            work.speed = self._speed_of(work.unit)
        self._share()

    def busy_s(self) -> float:
        """Seconds of itself that it gave so far."""
        self._settle()
        return self._busy_s

    def _settle(self) -> None:
        passed_s = self._events.now_s - self._settled_s
        self._settled_s = self._events.now_s
        if passed_s > 0.0:
            self._busy_s += passed_s * self._used
            for work in self._work:
                work.left_s -= passed_s * work.share * work.speed

    def _share(self) -> None:
        asked_first = asked_else = 0.0
        for work in self._work:
            if work.comes_first:
                asked_first += work.demand
            else:
                asked_else += work.demand
        share_first = 1.0 if asked_first <= 1.0 else 1.0 / asked_first
        left = max(1.0 - asked_first, 0.0)
        share_else = 1.0 if asked_else <= left else left / asked_else
        self._used = asked_first * share_first + asked_else * share_else
        soonest: _Work | None = None
        soonest_s = float("inf")
        for work in self._work:
            work.share = share_first if work.comes_first else share_else
            rate = work.share * work.speed
            if rate > 0.0 and (ends_s := max(work.left_s, 0.0) / rate) < soonest_s:
                soonest, soonest_s = work, ends_s
        if self._next is not None:
            self._next.call_off()
            self._next = None
        if soonest is not None:
            ended = soonest
            self._next = self._events.after(soonest_s, lambda: self._end(ended))

    def _end(self, work: _Work) -> None:
        self._next = None
        self._settle()
        self._work.remove(work)
        self._share()
        work.done()
