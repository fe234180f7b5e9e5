"""Who does what when under a plan: the bars of a timeline, for one request or for several.

One request follows `metrics.legs`. Several arrive at the rate that the plan is predicted to reach
and take the routes by their shares; each leg waits until what it needs is done, and until its
resource has room: runs that may go on at once share it by their number, and a link carries one
message after the other. It is a picture of the prediction, first come first served, and no
measurement.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.devices import DeviceId
from edge_agent.distributions import Distribution, PlacedArm, PlacedSubgraph, Route
from edge_agent.planning.metrics import Computing, Leg, Sending, host_resource, latency_s, legs
from edge_agent.planning.short import bytes_text, number_text
from edge_agent.plans import Target
from edge_agent.problems import Problem

LEAST_REQUESTS, MOST_REQUESTS = 6, 24
_FULL = 1.0 + 1e-9
_CORES, LINKS = "cores", "links"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A leg of a request, where it is done and when."""

    request: int
    """Counted from 0 in the order of arrival."""
    route: int
    leg: Leg
    start_s: float
    took_s: float

    @property
    def stop_s(self) -> float:
        """When it ends."""
        return self.start_s + self.took_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one resource does."""

    group: str
    """The device that it belongs to; "links"."""
    name: str
    """Of the resource within its group: cores, a unit, a link."""
    rows: tuple[tuple[Bar, ...], ...]
    """Bars of one row do not overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happens under a plan, for some requests."""

    title: str
    lanes: tuple[Lane, ...]
    requests: int
    stop_s: float


def timeline(problem: Problem, plan: Distribution) -> Timeline:
    """What happens to one request, or to several where the plan is made for the throughput or has
    several routes."""
    is_one = plan.target is not Target.THROUGHPUT and len(plan.routes) == 1
    bars = lone(problem, plan.routes[0]) if is_one else steady(problem, plan)
    requests = len({bar.request for bar in bars})
    what = "one request" if is_one else f"{requests} requests, at {_rate_text(plan)}"
    return Timeline(
        title=f"{plan.target}: {what}",
        lanes=_lanes(problem, bars),
        requests=requests,
        stop_s=max((bar.stop_s for bar in bars), default=0.0),
    )


def _rate_text(plan: Distribution) -> str:
    rate = plan.metrics.throughput_per_s
    return f"{number_text(rate)} per second" if math.isfinite(rate) else "once"


def lone(problem: Problem, route: Route) -> tuple[Bar, ...]:
    """The legs of a request that finds everything idle, as bars."""
    return tuple(
        Bar(request=0, route=0, leg=leg, start_s=leg.start_s, took_s=leg.took_s)
        for leg in legs(problem, route)
    )


def steady(problem: Problem, plan: Distribution, requests: int | None = None) -> tuple[Bar, ...]:
    """The bars of several requests at the rate of the plan, in the order of requests.

    Without `requests`, as many as show twice what is under way at once, within limits.
    """
    walked = [legs(problem, route) for route in plan.routes]
    rate = plan.metrics.throughput_per_s
    interval_s = 1.0 / rate if rate and math.isfinite(rate) else 0.0
    if requests is None:
        under_way = max(map(latency_s, walked)) / interval_s if interval_s else 1.0
        requests = min(max(LEAST_REQUESTS, math.ceil(2 * under_way)), MOST_REQUESTS)
    turns = _Turns([route.share for route in plan.routes])
    kept: dict[str, list[_Kept]] = defaultdict(list)
    bars: list[Bar] = []
    for request in range(requests):
        route = turns.take()
        done: list[Bar] = []
        for leg in walked[route]:
            before = [b.stop_s for b in done if b.leg.start_s + b.leg.took_s <= leg.start_s + 1e-12]
            ready_s = max((request * interval_s, *before))
            resource, busy_s, share = _demand(leg)
            start_s = _first_room(kept[resource], ready_s, busy_s, share)
            kept[resource].append(_Kept(start_s, start_s + busy_s, share))
            done.append(
                Bar(request=request, route=route, leg=leg, start_s=start_s, took_s=leg.took_s)
            )
        bars += done
    return tuple(bars)


class _Turns:
    """Which route is next: each as near to its share at any moment as it can be."""

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = shares
        self._due = [0.0] * len(shares)

    def take(self) -> int:
        self._due = [due + share for due, share in zip(self._due, self._shares, strict=True)]
        route = max(range(len(self._due)), key=lambda at: (self._due[at], -at))
        self._due[route] -= 1.0
        return route


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part of a resource that is taken for a time."""

    start_s: float
    stop_s: float
    share: float


def _demand(leg: Leg) -> tuple[str, float, float]:
    """(resource, seconds that it is needed, the share of it that is)."""
    match leg:
        case Computing():
            return leg.resource, leg.took_s, 1.0 / leg.what.configuration.instances
        case Sending():
            return leg.link.resource, leg.wire_s, 1.0


def _first_room(kept: Sequence[_Kept], ready_s: float, busy_s: float, share: float) -> float:
    """The first moment from `ready_s` on from which so much of the resource is free for so long."""
    starts = sorted({ready_s, *(k.stop_s for k in kept if k.stop_s > ready_s)})
    for start_s in starts:
        stop_s = start_s + busy_s
        beside = [k for k in kept if k.start_s < stop_s - 1e-12 and k.stop_s > start_s + 1e-12]
        moments = {start_s, *(k.start_s for k in beside if k.start_s > start_s)}
        fullest = max(sum(k.share for k in beside if k.start_s <= at < k.stop_s) for at in moments)
        if fullest + share <= _FULL:
            return start_s
    return starts[-1]


def _lanes(problem: Problem, bars: Sequence[Bar]) -> tuple[Lane, ...]:
    """The lanes in which something happens: devices in the order of the problem, then links."""
    by_lane: dict[tuple[str, str], list[Bar]] = defaultdict(list)
    for bar in bars:
        by_lane[_lane_of(bar.leg)].append(bar)
    places = {str(device.id): at for at, device in enumerate(problem.devices)}
    ends = len(places)

    def rank(lane: tuple[str, str]) -> tuple[int, bool, str]:
        group, name = lane
        return places.get(group, ends), name != _CORES, name

    return tuple(
        Lane(group=group, name=name, rows=_rows(by_lane[group, name]))
        for group, name in sorted(by_lane, key=rank)
    )


def _lane_of(leg: Leg) -> tuple[str, str]:
    match leg:
        case Computing():
            device = DeviceId(leg.device)
            is_host = leg.resource == host_resource(device)
            return str(device), _CORES if is_host else str(leg.what.configuration.unit)
        case Sending():
            medium = f" ({leg.link.medium})" if leg.link.medium else ""
            return LINKS, f"{leg.link.source} → {leg.link.target}{medium}"


def _rows(bars: Sequence[Bar]) -> tuple[tuple[Bar, ...], ...]:
    """Bars in as few rows as they need, each in the first one that is free."""
    rows: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: (b.start_s, b.request, b.stop_s)):
        free = next((row for row in rows if row[-1].stop_s <= bar.start_s + 1e-12), None)
        if free is None:
            rows.append([bar])
        else:
            free.append(bar)
    return tuple(map(tuple, rows))


def bar_name(bar: Bar) -> str:
    """What is written on a bar: `[0-12]` of a run, the bytes of a transfer."""
    leg = bar.leg
    match leg:
        case Computing():
            return f"[{leg.segments}]{_branches(leg.what)}"
        case Sending():
            return bytes_text(leg.sent_bytes)


def _branches(what: PlacedSubgraph | PlacedArm) -> str:
    if isinstance(what, PlacedSubgraph):
        return ""
    return f" branch {','.join(map(str, what.branches))}"


def bar_facts(bar: Bar) -> dict[str, str | int | float]:
    """What else there is to say of it."""
    leg = bar.leg
    facts: dict[str, str | int | float] = {"request": bar.request, "route": bar.route}
    match leg:
        case Computing():
            facts["segments"] = str(leg.segments)
            facts["configuration"] = str(leg.what.configuration)
        case Sending():
            facts["bytes"] = round(leg.sent_bytes)
            facts["latency_us"] = leg.link.latency_s * 1e6
            facts["wire_us"] = leg.wire_s * 1e6
            facts["send_us"] = leg.send_s * 1e6
            facts["receive_us"] = leg.receive_s * 1e6
    return facts
