"""What a distribution gives: the formulas by which every plan is predicted and compared.

**Computing.** A subgraph takes `slowdown * (overhead + sum of its segments + borders)`, a border
`border_s_per_byte` for each byte that crosses it (graph inputs and outputs are none). No border is
paid between subgraphs on one accelerator; between two in NHWC on the host's cores it is less by
`turn_s_per_byte`.

**Sending** b bytes takes `latency + first * (send + wire + receive) + rest * slowest`, where `wire`
is 1 / goodput, `send` and `receive` are the processor times per byte, `first` is at most one
chunk, `rest` the other bytes, and `slowest` the greatest of the three: chunks follow each other
through a pipeline of three steps. Where a link carries fewer bytes than values have, all three are
less by its `ratio`, and `send` and `receive` more by what narrowing and widening take. Requests
start at the owner, and answers end there.

**Throughput.** Every resource has one second per second: the cores of a device, each of its
accelerators, each link, each medium. A run keeps its resource busy for its time over the instances
that run at once, a transfer the link for bytes over goodput and the cores of both devices for its
processor time over their number. The rate is that at which the busiest resource is full.

**Energy** of a request is what the units draw above idle while they work on it: of the processor,
the share of its cores; of links, `joules_per_byte`. It is that of the undisturbed work, whatever
others delay it.

**Memory.** Weights are there once for each unit and layout, whatever routes and threads use them;
each subgraph has an arena for its activations, for each of its instances, as large as what its
segments need at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_agent.devices import DeviceId
from edge_agent.distributions import (
    Metrics,
    PlacedArm,
    PlacedFork,
    PlacedSubgraph,
    Route,
    Step,
)
from edge_agent.planning.cost import subgraph_s
from edge_agent.planning.present import slowdown
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import HOST_UNIT, Configuration, SegmentTimes
from edge_agent.subgraphs import SegmentRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """A subgraph or an arm at work, for one request."""

    what: PlacedSubgraph | PlacedArm
    segments: SegmentRange
    device: DeviceId
    resource: str
    plain_s: float
    """Without what others do to it."""
    took_s: float
    """With the slowdown of its unit."""
    error_s: float
    start_s: float
    """After the request arrived, if it finds everything idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Values on their way from one device to another, for one request."""

    link: Link
    boundary: int
    """Before which segment, or the number of segments at the end."""
    size_bytes: int
    """Of the values, however few are sent for them."""
    took_s: float
    send_s: float
    """Processor time of one core, at the source and at the target."""
    receive_s: float
    wire_s: float
    """How long the link is busy."""
    start_s: float

    @property
    def sent_bytes(self) -> float:
        """What the link carries."""
        return self.size_bytes * self.link.ratio


Leg = Computing | Sending

FULL = 0.9995
"""From this share of the greatest load on, a resource is called full: it is printed as 100.0 %."""


def crossing_bytes(problem: Problem, boundary: int) -> int | None:
    """Bytes to be sent if a device ends before segment `boundary`; None where not known, or where
    something crosses that cannot leave the device."""
    if boundary == 0:
        return problem.input_bytes
    if boundary == len(problem.summary.segments):
        return problem.output_bytes
    cut = problem.summary.cuts[boundary - 1]
    return None if cut.others else cut.crossing_bytes


def sending_s(
    size_bytes: float,
    *,
    latency_s: float,
    wire_s_per_byte: float,
    send_s_per_byte: float,
    receive_s_per_byte: float,
    chunk_bytes: float,
) -> float:
    """Seconds from the first byte's departure to the last one's arrival: see the module."""
    first = min(size_bytes, chunk_bytes)
    steps = (send_s_per_byte, wire_s_per_byte, receive_s_per_byte)
    return latency_s + first * sum(steps) + (size_bytes - first) * max(steps)


def host_resource(device: DeviceId) -> str:
    """The cores of a device, as a resource."""
    return str(device)


def resource_text(problem: Problem, resource: str) -> str:
    """What a resource is called: the cores of a device are told from its accelerators."""
    is_host = any(host_resource(device.id) == resource for device in problem.devices)
    return f"cores of {resource}" if is_host else resource


def resource_of(device: DeviceId, configuration: Configuration) -> str:
    """What a run keeps busy: the cores of its device, or one of its accelerators."""
    return host_resource(device) if configuration.threads else f"{device}/{configuration.unit}"


def legs(problem: Problem, route: Route) -> tuple[Leg, ...]:
    """What happens to a request that takes `route` and finds everything idle, in order of start.

    Raises:
        ValueError: the route is none: there is no link where it needs one, a size is not known,
            or it does not run all segments once.
    """
    return _in_order(_walk(problem, route, _Runs(problem)))


def _in_order(found: Iterable[Leg]) -> tuple[Leg, ...]:
    return tuple(sorted(found, key=lambda leg: leg.start_s))


def latency_s(found: Sequence[Leg]) -> float:
    """When the last leg ends."""
    return max((leg.start_s + leg.took_s for leg in found), default=0.0)


def evaluate(problem: Problem, routes: Sequence[Route]) -> Metrics:
    """The metrics of a distribution; the formulas are above.

    Raises:
        ValueError: as `legs`, or the shares do not add up to 1.
    """
    total = sum(route.share for route in routes)
    if not routes or abs(total - 1.0) > 1e-6 or any(route.share < 0 for route in routes):
        raise ValueError(f"got shares {[r.share for r in routes]}, want a sum of 1, none below 0")
    runs = _Runs(problem)
    walked = [(route.share, _in_order(_walk(problem, route, runs))) for route in routes]
    loads = resource_loads(problem, walked)
    busiest = max(loads.values(), default=0.0)
    # A route without a share is deployed, but no request takes it.
    slowest = max((found for share, found in walked if share > 0.0), key=latency_s)
    return Metrics(
        latency_s=latency_s(slowest),
        throughput_per_s=1.0 / busiest if busiest else float("inf"),
        energy_joules=sum(share * route_joules(problem, found) for share, found in walked),
        peak_memory_bytes=max(memory_bytes(problem, routes).values(), default=0.0),
        wire_bytes=sum(share * route_bytes(found) for share, found in walked),
        latency_error_s=sum(leg.error_s for leg in slowest if isinstance(leg, Computing)),
    )


def resource_loads(
    problem: Problem, walked: Sequence[tuple[float, Sequence[Leg]]]
) -> dict[str, float]:
    """Seconds that each resource is busy per request, over routes with their shares."""
    loads: dict[str, float] = defaultdict(float)
    for share, found in walked:
        for leg in found:
            for resource, busy_s in leg_loads(problem, leg):
                loads[resource] += share * busy_s
    return dict(loads)


def leg_loads(problem: Problem, leg: Leg) -> Iterator[tuple[str, float]]:
    """Which resources a leg keeps busy, and for how many seconds."""
    match leg:
        case Computing():
            # Not took_s: an arm also waits for the transfers of its fork, which count as their own.
            which = leg.what.configuration
            busy_s = leg.plain_s * slowdown(problem, leg.device, which.unit)
            yield leg.resource, busy_s / which.instances
        case Sending():
            yield leg.link.resource, leg.wire_s
            for device, core_s in ((leg.link.source, leg.send_s), (leg.link.target, leg.receive_s)):
                yield host_resource(device), core_s / problem.device(device).cores


def route_joules(problem: Problem, found: Sequence[Leg]) -> float:
    """Modelled energy of a request above idle."""
    total = 0.0
    for leg in found:
        match leg:
            case Computing():
                device = problem.device(leg.device)
                total += leg.plain_s * busy_w(device, leg.what.configuration)
            case Sending():
                total += leg.size_bytes * sending_joules_per_byte(problem, leg.link)
    return total


def sending_joules_per_byte(problem: Problem, link: Link) -> float:
    """Modelled energy of a byte of tensors on a link: of the link, and of the processors at both
    ends."""
    source, target = problem.device(link.source), problem.device(link.target)
    send_s_per_byte, receive_s_per_byte = _undisturbed_s_per_byte(problem, link)
    return (
        link.joules_per_byte * link.ratio
        + send_s_per_byte * core_w(source)
        + receive_s_per_byte * core_w(target)
    )


def _undisturbed_s_per_byte(problem: Problem, link: Link) -> tuple[float, float]:
    source, target = problem.device(link.source), problem.device(link.target)
    return (
        source.send_s_per_byte * link.ratio + link.narrow_s_per_byte,
        target.receive_s_per_byte * link.ratio + link.widen_s_per_byte,
    )


def busy_w(device: PlannedDevice, configuration: Configuration) -> float:
    """Power above idle that one run draws: of the processor by its threads, of an accelerator its
    share of the instances."""
    if configuration.threads:
        return configuration.threads * core_w(device)
    unit = unit_of(device, configuration)
    return (unit.busy_w - unit.idle_w) / configuration.instances


def core_w(device: PlannedDevice) -> float:
    """Power above idle that one core of the processor draws."""
    host = next((unit for unit in device.units if unit.id == HOST_UNIT), None)
    return 0.0 if host is None else (host.busy_w - host.idle_w) / device.cores


def unit_of(device: PlannedDevice, configuration: Configuration) -> PlannedUnit:
    """The unit that a configuration runs on."""
    return next(unit for unit in device.units if unit.id == configuration.unit)


def route_bytes(found: Sequence[Leg]) -> float:
    """Bytes between devices per request."""
    return sum(leg.sent_bytes for leg in found if isinstance(leg, Sending))


def memory_pool(device: PlannedDevice, configuration: Configuration) -> str:
    """Which memory a configuration's weights and activations are in: the device's, named like the
    device, or that of an accelerator with memory of its own."""
    unit = unit_of(device, configuration)
    return str(device.id) if unit.memory_bytes is None else f"{device.id}/{unit.id}"


def memory_bytes(problem: Problem, routes: Sequence[Route]) -> Mapping[str, float]:
    """Bytes in every memory that a distribution uses, by `memory_pool`."""
    held: dict[Held, tuple[str, float]] = {}
    # Of many routes most steps are those of others.
    for step in {step: None for route in routes for step in route.steps}:
        held.update(held_bytes(problem, step))
    used: dict[str, float] = defaultdict(float)
    for pool, size in held.values():
        used[pool] += size
    return dict(used)


Held = tuple[object, ...]
"""Weights in a form, or the arena of a subgraph: what is in a memory once, however many routes use
it."""


def held_bytes(problem: Problem, step: Step) -> Iterator[tuple[Held, tuple[str, float]]]:
    """What a step needs in memory: (what, (`memory_pool`, bytes))."""
    for what, pieces, working in _resident(problem, step):
        device = problem.device(what.device)
        which = what.configuration
        pool = memory_pool(device, which)
        form = (device.id, which.unit, which.layout, which.is_half)
        for place, size in pieces:
            yield (*form, place), (pool, size * (0.5 if which.is_half else 1.0))
        places = tuple(place for place, _ in pieces)
        yield (device.id, which, places), (pool, float(working * which.instances))


def _resident(
    problem: Problem, step: Step
) -> Iterator[tuple[PlacedSubgraph | PlacedArm, list[tuple[object, int]], int]]:
    """What of a step is in memory: (what, weights by place, working bytes)."""
    summary = problem.summary
    match step:
        case PlacedSubgraph():
            inside = summary.segments[step.segments.start : step.segments.stop]
            yield (
                step,
                [(segment.index, segment.constant_bytes) for segment in inside],
                max(segment.working_bytes for segment in inside),
            )
        case PlacedFork():
            branches = summary.forks[step.fork].branches
            for arm in step.arms:
                yield (
                    arm,
                    [((step.fork, b), branches[b].constant_bytes) for b in arm.branches],
                    max(branches[b].working_bytes for b in arm.branches),
                )


def _walk(problem: Problem, route: Route, runs: _Runs) -> Iterator[Leg]:
    here, at, now_s = problem.owner, 0, 0.0
    count = len(problem.summary.segments)
    for index, step in enumerate(route.steps):
        device = step.home if isinstance(step, PlacedFork) else step.device
        if step.segments.start != at:
            raise ValueError(f"{route}: got segment {step.segments.start}, want {at} there")
        if step.segments.stop > count:
            raise ValueError(f"{route}: got {step.segments.stop} segments, want {count}")
        if device != here:
            sent = _sending(problem, here, device, _known_bytes(problem, at), at, now_s)
            yield sent
            now_s += sent.took_s
        if isinstance(step, PlacedFork):
            arms = fork_legs(problem, step, now_s)
            yield from arms
            now_s = latency_s(arms)
        else:
            before = route.steps[index - 1] if index else None
            after = route.steps[index + 1] if index + 1 < len(route.steps) else None
            run = runs.of(step, before, after, now_s)
            yield run
            now_s += run.took_s
        here, at = device, step.segments.stop
    if at != count:
        raise ValueError(f"{route}: got {at} segments, want {count}")
    if here != problem.owner:
        yield _sending(problem, here, problem.owner, _known_bytes(problem, count), count, now_s)


def _known_bytes(problem: Problem, boundary: int) -> int:
    size = crossing_bytes(problem, boundary)
    if size is None:
        count = len(problem.summary.segments)
        what = {0: "what a request brings", count: "the answer"}.get(
            boundary, f"what crosses before segment {boundary}"
        )
        raise ValueError(
            f"{what} cannot be sent: its size is not known, or it cannot leave the device"
        )
    return size


def processor_s_per_byte(problem: Problem, link: Link) -> tuple[float, float]:
    """Seconds of one core for each byte of tensors, at the source and at the target of a link."""
    send_s_per_byte, receive_s_per_byte = _undisturbed_s_per_byte(problem, link)
    return (
        send_s_per_byte * slowdown(problem, link.source, HOST_UNIT),
        receive_s_per_byte * slowdown(problem, link.target, HOST_UNIT),
    )


def wire_s_per_byte(link: Link) -> float:
    """Seconds for which a byte of tensors keeps a link busy."""
    return link.ratio / link.goodput_bytes_per_s


def _sending(
    problem: Problem,
    source: DeviceId,
    target: DeviceId,
    size_bytes: int,
    boundary: int,
    start_s: float,
) -> Sending:
    link = problem.link(source, target)
    if link is None:
        raise ValueError(f"there is no link from {source} to {target}")
    send_s_per_byte, receive_s_per_byte = processor_s_per_byte(problem, link)
    return Sending(
        link=link,
        boundary=boundary,
        size_bytes=size_bytes,
        took_s=sending_s(
            size_bytes,
            latency_s=link.latency_s,
            wire_s_per_byte=wire_s_per_byte(link),
            send_s_per_byte=send_s_per_byte,
            receive_s_per_byte=receive_s_per_byte,
            chunk_bytes=problem.chunk_bytes / link.ratio,
        ),
        send_s=size_bytes * send_s_per_byte,
        receive_s=size_bytes * receive_s_per_byte,
        wire_s=size_bytes * wire_s_per_byte(link),
        start_s=start_s,
    )


def times_of(problem: Problem, device: DeviceId, configuration: Configuration) -> SegmentTimes:
    """The latency profile of a configuration on a device.

    Raises:
        ValueError: the device has none.
    """
    for times in problem.device(device).times:
        if times.configuration == configuration:
            return times
    raise ValueError(f"device {device} has no latency profile of {configuration}")


class _Runs:
    """The runs of subgraphs: of the routes of a mixture most have most subgraphs in common."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[tuple[object, ...], Computing] = {}

    def of(
        self, step: PlacedSubgraph, before: Step | None, after: Step | None, start_s: float
    ) -> Computing:
        """The run of `step` between two others, if there are some."""
        key = (step, _beside(step, before), _beside(step, after))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._computing(*key)
        return replace(found, start_s=start_s)

    def _computing(
        self, step: PlacedSubgraph, before: Configuration | None, after: Configuration | None
    ) -> Computing:
        problem = self._problem
        times = times_of(problem, step.device, step.configuration)
        plain_s = subgraph_s(problem.summary, times, step.segments, before=before, after=after)
        return _timed(problem, step, step.segments, times, plain_s, 0.0)


def _beside(step: PlacedSubgraph, neighbour: Step | None) -> Configuration | None:
    if isinstance(neighbour, PlacedSubgraph) and neighbour.device == step.device:
        return neighbour.configuration
    return None


def _timed(
    problem: Problem,
    what: PlacedSubgraph | PlacedArm,
    segments: SegmentRange,
    times: SegmentTimes,
    plain_s: float,
    start_s: float,
) -> Computing:
    took_s = plain_s * slowdown(problem, what.device, what.configuration.unit)
    return Computing(
        what=what,
        segments=segments,
        device=what.device,
        resource=resource_of(what.device, what.configuration),
        plain_s=plain_s,
        took_s=took_s,
        error_s=took_s * times.error_fraction,
        start_s=start_s,
    )


def arm_computing(problem: Problem, step: PlacedFork, arm: PlacedArm, start_s: float) -> Computing:
    """The run of an arm: its branches' shares of their segments, and the borders of both sides.

    `plain_s = overhead + sum(segment * share) + border_s_per_byte * (bytes in + bytes out)`, where
    what several of the branches read counts once.
    """
    fork = problem.summary.forks[step.fork]
    times = times_of(problem, arm.device, arm.configuration)
    own = times.segment_s[fork.segments.start : fork.segments.stop]
    plain_s = times.overhead_s + times.border_s_per_byte * fork.input_bytes(arm.branches)
    for branch in (fork.branches[b] for b in arm.branches):
        plain_s += sum(s * share for s, share in zip(own, branch.work, strict=True))
        plain_s += times.border_s_per_byte * branch.output_bytes
    return _timed(problem, arm, step.segments, times, plain_s, start_s)


def fork_legs(problem: Problem, step: PlacedFork, start_s: float) -> tuple[Leg, ...]:
    """What the arms of a fork do, from `start_s` on.

    What other devices need is sent in the order of the arms, and results come back in the order
    in which they are ready; each link and medium carries one at a time. An arm on the home's cores
    takes longer by the processor time of these transfers there, over the number of cores.
    """
    fork = problem.summary.forks[step.fork]
    home_cores = problem.device(step.home).cores
    free_s: dict[str, float] = defaultdict(lambda: start_s)
    found: list[Leg] = []
    ready: list[tuple[float, int, PlacedArm]] = []
    home_s = 0.0
    for index, arm in enumerate(step.arms):
        if arm.device == step.home:
            continue
        size = fork.input_bytes(arm.branches)
        link = problem.link(step.home, arm.device)
        begin_s = start_s if link is None else free_s[link.resource]
        sent = _sending(problem, step.home, arm.device, size, step.segments.start, begin_s)
        run = arm_computing(problem, step, arm, begin_s + sent.took_s)
        free_s[sent.link.resource] = begin_s + sent.wire_s
        found += [sent, run]
        ready.append((run.start_s + run.took_s, index, arm))
        home_s += sent.send_s / home_cores
    for ready_s, _, arm in sorted(ready, key=lambda item: item[:2]):
        size = sum(fork.branches[b].output_bytes for b in arm.branches)
        link = problem.link(arm.device, step.home)
        begin_s = ready_s if link is None else max(ready_s, free_s[link.resource])
        back = _sending(problem, arm.device, step.home, size, step.segments.stop, begin_s)
        free_s[back.link.resource] = begin_s + back.wire_s
        found.append(back)
        home_s += back.receive_s / home_cores
    for arm in step.arms:
        if arm.device == step.home:
            run = arm_computing(problem, step, arm, start_s)
            if arm.configuration.threads:
                run = replace(run, took_s=run.took_s + home_s)
            found.append(run)
    return tuple(found)
