"""What it costs to go from one distribution to another: weights to send, subgraphs to compile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedFork, PlacedSubgraph, Route
from edge_agent.planning.metrics import core_w, sending_joules_per_byte
from edge_agent.planning.narrowing import as_it_is
from edge_agent.problems import Link, Problem
from edge_agent.profiles import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What has to be done before another distribution can serve."""

    bytes_to_send: tuple[tuple[DeviceId, int], ...]
    """Weights that devices need and have not; those with any, in the order of the problem."""
    subgraphs_to_compile: tuple[tuple[DeviceId, int], ...]
    """How many subgraphs each device has to compile; those with any."""
    seconds: float
    """Until all is ready, with all devices at work at once."""
    joules: float
    """Modelled energy above idle, of what is sent and compiled."""

    @property
    def is_free(self) -> bool:
        """Whether nothing has to be sent or compiled: at most the shares differ."""
        return not self.bytes_to_send and not self.subgraphs_to_compile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A subgraph or an arm as it lies on a device."""

    device: DeviceId
    form: tuple[object, ...]
    """What it is compiled for; threads do not matter."""
    places: tuple[tuple[int, ...], ...]
    """The segments, or (fork, branch), whose weights it needs."""


def change(
    problem: Problem, before: Sequence[Route], after: Sequence[Route], *, compile_s: float
) -> Change:
    """What `after` needs that `before` has not; `compile_s` is the time for one subgraph.

    The owner has all weights, and a device those of every segment that it ran, on whatever unit.
    The time is that of the slowest device: its weights at the goodput of its link from the owner,
    or of its best link if there is none, and then its subgraphs one after the other. The energy is
    that of sending over these links, and of one core while it compiles: ONNX Runtime optimises a
    graph on one thread.
    """
    had = set(_parts(before))
    there = _with_alike(problem, {(part.device, place) for part in had for place in part.places})
    wanted = set(_parts(after))
    missing: dict[DeviceId, int] = {}
    for device, place in {(part.device, place) for part in wanted for place in part.places} - there:
        size = _weight_bytes(problem, place)
        if device != problem.owner and size:
            missing[device] = missing.get(device, 0) + size
    fresh: dict[DeviceId, int] = {}
    for part in wanted - had:
        fresh[part.device] = fresh.get(part.device, 0) + 1
    order = [device.id for device in problem.devices]
    seconds = (
        _sending_s(problem, device, missing.get(device, 0)) + fresh.get(device, 0) * compile_s
        for device in order
    )
    joules = (
        _sending_joules(problem, device.id, missing.get(device.id, 0))
        + fresh.get(device.id, 0) * compile_s * core_w(device)
        for device in problem.devices
    )
    return Change(
        bytes_to_send=tuple((d, missing[d]) for d in order if d in missing),
        subgraphs_to_compile=tuple((d, fresh[d]) for d in order if d in fresh),
        seconds=max(seconds),
        joules=sum(joules),
    )


def _parts(routes: Sequence[Route]) -> Iterator[_Part]:
    for step in (step for route in routes for step in route.steps):
        match step:
            case PlacedSubgraph():
                inside = range(step.segments.start, step.segments.stop)
                places: tuple[tuple[int, ...], ...] = tuple((place,) for place in inside)
                yield _part(step.device, step.configuration, places)
            case PlacedFork():
                for arm in step.arms:
                    places = tuple((step.fork, branch) for branch in arm.branches)
                    yield _part(arm.device, arm.configuration, places)


def _part(device: DeviceId, which: Configuration, places: tuple[tuple[int, ...], ...]) -> _Part:
    form = (which.unit, which.layout, which.is_half, which.falls_back)
    return _Part(device=device, form=form, places=places)


_Place = tuple[DeviceId, tuple[int, ...]]


def _with_alike(problem: Problem, there: set[_Place]) -> set[_Place]:
    """Who has all segments of a fork has its branches, and the other way about."""
    found = set(there)
    for index, fork in enumerate(problem.summary.forks):
        segments = [(place,) for place in range(fork.segments.start, fork.segments.stop)]
        branches = [(index, branch) for branch in range(len(fork.branches))]
        for device in {device for device, _ in there}:
            for one, other in ((segments, branches), (branches, segments)):
                if all((device, place) in there for place in one):
                    found |= {(device, place) for place in other}
    return found


def _weight_bytes(problem: Problem, place: tuple[int, ...]) -> int:
    if len(place) == 1:
        return problem.summary.segments[place[0]].constant_bytes
    fork, branch = place
    return problem.summary.forks[fork].branches[branch].constant_bytes


def _sending_s(problem: Problem, device: DeviceId, size_bytes: int) -> float:
    if not size_bytes:
        return 0.0
    link = _link_to(problem, device)
    if link is None:
        return float("inf")
    return link.latency_s + size_bytes / link.goodput_bytes_per_s


def _sending_joules(problem: Problem, device: DeviceId, size_bytes: int) -> float:
    if not size_bytes:
        return 0.0
    link = _link_to(problem, device)
    return float("inf") if link is None else size_bytes * sending_joules_per_byte(problem, link)


def _link_to(problem: Problem, device: DeviceId) -> Link | None:
    """The link that weights take to a device: from the owner, or else the best."""
    link = problem.link(problem.owner, device)
    if link is None:
        into = [k for k in problem.links if k.target == device]
        link = max(into, key=lambda k: k.goodput_bytes_per_s, default=None)
    return None if link is None else as_it_is(link)
