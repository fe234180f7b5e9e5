"""How runs of one deployed subgraph take turns: as many lanes as it has instances, one queue.

A lane is a session with its arena: it holds one request from the moment its run starts until what
it made has a place to go to, which is at once on the same device, and once credit was granted on
the way to another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from edge_agent.simulation.deployment import StationPlan
from edge_agent.simulation.events import Act, Events
from edge_agent.simulation.lengths import Length
from edge_agent.simulation.sharing import SharedResource
from edge_agent.simulation.spans import SpanKind, SpanLog


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: int
    work_s: float
    started: Act
    done: Act


class Station:
    """A subgraph, or an arm of a fork, as it is deployed on a device."""

    def __init__(
        self, events: Events, plan: StationPlan, resource: SharedResource, log: SpanLog
    ) -> None:
        self.plan = plan
        self.queue = Length(events)
        self._events = events
        self._resource = resource
        self._log = log
        self._free = plan.lanes
        self._waiting: deque[_Waiting] = deque()

    def run(self, request: int, work_s: float, *, started: Act, done: Act) -> None:
        """Run it for a request when a lane is free; `leave` is to be called some time after
        `done`."""
        self._waiting.append(_Waiting(request, work_s, started, done))
        self.queue.grow()
        self._start()

    def leave(self) -> None:
        """A lane is free again."""
        self._free += 1
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self.queue.shrink()
            self._begin(self._waiting.popleft())

    def _begin(self, what: _Waiting) -> None:
        began_s = self._events.now_s

        def ended() -> None:
            self._log.add(SpanKind.RUN, what.request, self._resource.name, began_s, str(self.plan))
            what.done()

        self._resource.work(what.work_s, demand=self.plan.demand, unit=self.plan.unit, done=ended)
        what.started()
