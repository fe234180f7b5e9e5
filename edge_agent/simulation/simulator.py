"""What a distribution gives when it is played through, event by event.

This shares no cost arithmetic with planning: it knows sessions, cores, wires and messages, and
lets requests pass through them. A plan's predicted metrics and the simulated ones are two answers
to one question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from edge_agent.distributions import Distribution, Route
from edge_agent.problems import Problem
from edge_agent.simulation.deployment import Deployment, deploy
from edge_agent.simulation.events import Events
from edge_agent.simulation.journeys import Journey
from edge_agent.simulation.network import Network, Transport
from edge_agent.simulation.results import (
    QueueUse,
    ResourceUse,
    ServedRequest,
    Simulated,
    SimulatedMetrics,
    latency_quantiles,
    steady_rate_per_s,
)
from edge_agent.simulation.spans import SpanKind, SpanLog
from edge_agent.simulation.traces import Change, check_trace
from edge_agent.simulation.workloads import ClosedLoop, Lone, OpenLoop, Routing, Turns, Workload

MOST_IN_FLIGHT = 2000
LEAST_REQUESTS = 400
"""Of a closed loop that is not told how many."""


def simulate(
    problem: Problem,
    plan: Distribution | Sequence[Route],
    workload: Workload,
    *,
    trace: Sequence[Change] = (),
    transport: Transport | None = None,
    with_spans: bool = False,
) -> Simulated:
    """Serve requests by a plan, from an idle start, while a trace goes on.

    Devices are as the problem's statistics say until the trace changes them. A closed loop is
    measured over the later half of its answers, or of its duration; others over all of them.

    Raises:
        ValueError: the routes are none on this problem, their shares do not add up to 1, the
            trace changes what is not there, or the workload asks for a route that is not there or
            would never end.
    """
    routes = tuple(plan.routes if isinstance(plan, Distribution) else plan)
    shares = tuple(route.share for route in routes)
    if not routes or abs(sum(shares) - 1.0) > 1e-6 or min(shares) < 0:
        raise ValueError(f"routes: got shares {list(shares)}, want a sum of 1, none below 0")
    check_trace(problem, trace)
    deployment = deploy(problem, routes)
    question = _Question(problem, deployment, transport or Transport(), shares)
    alone = [question.serve(Lone(route=i)) for i in range(len(routes))]
    played = question.complete(workload, alone)
    run = question.serve(played, trace, with_spans=with_spans)
    return run.seen(max(each.answered[0].latency_s for each in alone), played)


@dataclass(frozen=True, slots=True)
class _Question:
    problem: Problem
    deployment: Deployment
    transport: Transport
    shares: tuple[float, ...]

    def serve(
        self, workload: Workload, trace: Sequence[Change] = (), *, with_spans: bool = False
    ) -> _Serving:
        serving = _Serving(self, workload, trace, with_spans=with_spans)
        serving.play(workload)
        return serving

    def complete(self, workload: Workload, alone: Sequence[_Serving]) -> Workload:
        """The workload with what it left open."""
        match workload:
            case Lone() if workload.route >= len(self.shares):
                raise ValueError(
                    f"lone request: got route {workload.route}, there are {len(self.shares)}"
                )
            case ClosedLoop():
                return self._closed(workload, alone)
            case Lone() | OpenLoop():
                return workload

    def _closed(self, workload: ClosedLoop, alone: Sequence[_Serving]) -> ClosedLoop:
        took_s = [each.answered[0].latency_s for each in alone]
        in_flight = workload.in_flight or self._saturating(took_s, alone)
        requests = workload.requests
        if workload.duration_s is None:
            requests = requests or max(LEAST_REQUESTS, 10 * in_flight)
        elif requests is None and any(
            s == 0.0 for s, share in zip(took_s, self.shares, strict=True) if share > 0
        ):
            raise ValueError(
                f"closed loop: requests that take no time never fill {workload.duration_s:g} s; "
                "give a number of requests"
            )
        return ClosedLoop(
            in_flight=in_flight,
            requests=requests,
            duration_s=workload.duration_s,
            routing=workload.routing,
        )

    def _saturating(self, took_s: Sequence[float], alone: Sequence[_Serving]) -> int:
        """Twice what fits at once if nobody waits (Little: rate x latency), and the lanes."""
        busy_s: dict[str, float] = {}
        for share, each in zip(self.shares, alone, strict=True):
            for name, own_s in each.network.busy_s().items():
                busy_s[name] = busy_s.get(name, 0.0) + share * own_s
        busiest_s = max(busy_s.values(), default=0.0)
        fits = math.ceil(2 * max(took_s) / busiest_s) if busiest_s else 1
        lanes = sum(station.lanes for station in self.deployment.stations)
        return min(fits + 2 * lanes, MOST_IN_FLIGHT)


@dataclass(slots=True)
class _Snapshot:
    """What was counted when measuring began."""

    at_s: float = 0.0
    answered: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)


class _Serving:
    """Requests being served, from an idle start to the end of the workload."""

    def __init__(
        self, question: _Question, workload: Workload, trace: Sequence[Change], *, with_spans: bool
    ) -> None:
        self.answered: list[ServedRequest] = []
        self._question = question
        self._events = Events()
        self._log = SpanLog(self._events, is_kept=with_spans)
        self.network = Network(
            question.problem,
            question.deployment,
            question.transport,
            self._events,
            self._log,
            trace,
        )
        routing = Routing.BY_SHARE if isinstance(workload, Lone) else workload.routing
        self._turns = Turns(question.shares, routing)
        self._places = self.network.places()
        self._arrived = 0
        self._begin = _Snapshot()
        self._measure_after: int | None = None
        self._is_closed = False

    def play(self, workload: Workload) -> None:
        """Until it is over, or nothing can happen any more."""
        match workload:
            case Lone():
                self._events.at(workload.at_s, lambda: self._arrive(workload.route))
                self._events.run(is_over=lambda: bool(self.answered))
            case OpenLoop():
                for at_s in sorted(workload.arrivals_s):
                    self._events.at(at_s, lambda: self._arrive(self._turns.take()))
                count = len(workload.arrivals_s)
                self._events.run(is_over=lambda: len(self.answered) == count)
            case ClosedLoop():
                self._loop(workload)

    def _loop(self, workload: ClosedLoop) -> None:
        self._is_closed = True
        until_s = workload.duration_s or math.inf
        most = workload.requests or math.inf
        if workload.duration_s is not None:
            self._events.at(until_s / 2, self._begin_measuring)
        else:
            self._measure_after = int(most) // 2
        for _ in range(workload.in_flight or 1):
            self._events.after(0.0, lambda: self._arrive(self._turns.take()))
        self._events.run(is_over=lambda: len(self.answered) >= most, until_s=until_s)

    def _arrive(self, route: int) -> None:
        journey = Journey(
            self._arrived,
            route,
            self._question.deployment.paths[route],
            self._places,
            self._answer,
            arrived_s=self._events.now_s,
        )
        self._arrived += 1
        journey.begin()

    def _answer(self, journey: Journey) -> None:
        self._log.add(
            SpanKind.REQUEST,
            journey.number,
            str(self._question.problem.owner),
            journey.arrived_s,
            str(journey.route),
        )
        self.answered.append(
            ServedRequest(
                number=journey.number,
                route=journey.route,
                arrived_s=journey.arrived_s,
                answered_s=self._events.now_s,
                joules=journey.joules,
                wire_bytes=journey.wire_bytes,
            )
        )
        self._turns.end(journey.route)
        if len(self.answered) == self._measure_after:
            self._begin_measuring()
        if self._is_closed:
            self._events.after(0.0, lambda: self._arrive(self._turns.take()))

    def _begin_measuring(self) -> None:
        self._begin = _Snapshot(
            self._events.now_s,
            len(self.answered),
            self.network.busy_s(),
            self.network.waited_s(),
        )

    def seen(self, lone_s: float, workload: Workload) -> Simulated:
        """What there was, as measured since measuring began."""
        begin, measured = self._begin, self.answered[self._begin.answered :]
        ended_s = self._events.now_s
        over_s = ended_s - begin.at_s
        memory = self._question.deployment.resident_bytes
        if isinstance(workload, Lone):
            took_s = measured[0].latency_s if measured else math.inf
            rate = 1.0 / took_s if took_s else math.inf
        else:
            rate = steady_rate_per_s([request.answered_s for request in measured])

        def mean(total: float) -> float:
            return total / len(measured) if measured else math.nan

        def per_second(now: dict[str, float], before: dict[str, float], name: str) -> float:
            return (now[name] - before.get(name, 0.0)) / over_s if over_s else 0.0

        busy_s, waited_s = self.network.busy_s(), self.network.waited_s()
        return Simulated(
            metrics=SimulatedMetrics(
                latency_s=lone_s,
                throughput_per_s=rate,
                energy_joules=mean(sum(request.joules for request in measured)),
                peak_memory_bytes=max((size for _, size in memory), default=0.0),
                wire_bytes=mean(sum(request.wire_bytes for request in measured)),
            ),
            latency=latency_quantiles([request.latency_s for request in measured]),
            requests=tuple(self.answered),
            unanswered=self._arrived - len(self.answered),
            measured_from_s=begin.at_s,
            ended_s=ended_s,
            resources=tuple(
                ResourceUse(name=name, busy_fraction=per_second(busy_s, begin.busy_s, name))
                for name in busy_s
            ),
            queues=tuple(
                QueueUse(
                    name=name,
                    mean_length=per_second(waited_s, begin.waited_s, name),
                    most=queue.most,
                )
                for name, queue in self.network.queues().items()
            ),
            memory_bytes=memory,
            spans=self._log.spans(),
        )
