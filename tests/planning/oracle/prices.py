"""What routes give, worked out a second time: plain arithmetic that planning is held against.

Nothing of `edge_agent.planning` is used here. The formulas are those of the documentation:
computing, sending, throughput, energy and memory of a problem's routes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.distributions import Metrics, PlacedArm, PlacedFork, PlacedSubgraph, Route, Step
from edge_agent.problems import Link, Problem
from edge_agent.profiles import HOST_UNIT, Configuration, SegmentTimes
from edge_agent.summaries import Fork

LEAST_LEFT_OF_A_PROCESSOR = 0.05


@dataclass(slots=True)
class Cost:
    """What one request that takes a route costs."""

    latency_s: float = 0.0
    error_s: float = 0.0
    joules: float = 0.0
    wire_bytes: float = 0.0
    busy_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of every resource."""

    def add(self, other: Cost) -> None:
        """Take in what happens after all that is here."""
        self.latency_s += other.latency_s
        self.error_s += other.error_s
        self.joules += other.joules
        self.wire_bytes += other.wire_bytes
        for resource, busy_s in other.busy_s.items():
            self.busy_s[resource] += busy_s


def link_between(problem: Problem, source: DeviceId, target: DeviceId) -> Link | None:
    """The link that carries bytes in that direction."""
    for link in problem.links:
        if link.source == source and link.target == target:
            return link
    return None


def times_for(problem: Problem, device: DeviceId, configuration: Configuration) -> SegmentTimes:
    """The latency profile of a configuration."""
    (found,) = (t for t in problem.device(device).times if t.configuration == configuration)
    return found


def unit_slowdown(problem: Problem, device: DeviceId, unit: UnitId) -> float:
    """An observed slowdown stands for itself; else load takes its part of a processor, of which a
    twentieth is left, and heat or power make every unit slower."""
    now = problem.statistics_of(device)
    for which, observed in now.slowdowns:
        if which == unit:
            return observed
    ours = 1.0
    if unit == HOST_UNIT:
        ours = max(LEAST_LEFT_OF_A_PROCESSOR, 1.0 - now.load_fraction)
    return 1.0 / ours / now.speed_fraction


def core_watts(problem: Problem, device: DeviceId) -> float:
    """Power above idle of one core."""
    owner = problem.device(device)
    for unit in owner.units:
        if unit.id == HOST_UNIT:
            return (unit.busy_w - unit.idle_w) / owner.cores
    return 0.0


def run_watts(problem: Problem, device: DeviceId, configuration: Configuration) -> float:
    """Power above idle while one run goes on."""
    if configuration.threads > 0:
        return configuration.threads * core_watts(problem, device)
    (unit,) = (u for u in problem.device(device).units if u.id == configuration.unit)
    return (unit.busy_w - unit.idle_w) / configuration.instances


def run_resource(device: DeviceId, configuration: Configuration) -> str:
    """What a run keeps busy."""
    return device if configuration.threads > 0 else f"{device}/{configuration.unit}"


def run_cost(
    problem: Problem, device: DeviceId, configuration: Configuration, plain_s: float
) -> Cost:
    """A run that takes `plain_s` when nothing disturbs it."""
    took_s = plain_s * unit_slowdown(problem, device, configuration.unit)
    times = times_for(problem, device, configuration)
    cost = Cost(
        latency_s=took_s,
        error_s=took_s * times.error_fraction,
        joules=plain_s * run_watts(problem, device, configuration),
    )
    cost.busy_s[run_resource(device, configuration)] = took_s / configuration.instances
    return cost


def transfer_cost(problem: Problem, link: Link, size: float) -> Cost:
    """Bytes over a link: the first chunk passes three steps one after the other, and what follows
    is held up by the slowest of them."""
    source, target = problem.device(link.source), problem.device(link.target)
    sending_s, receiving_s = ends_s_per_byte(problem, link)
    send_s = sending_s * unit_slowdown(problem, source.id, HOST_UNIT)
    receive_s = receiving_s * unit_slowdown(problem, target.id, HOST_UNIT)
    wire_s = 1.0 / link.goodput_bytes_per_s
    size = sent_bytes(link, size)
    head = size if size < problem.chunk_bytes else problem.chunk_bytes
    cost = Cost(
        latency_s=link.latency_s
        + head * (send_s + wire_s + receive_s)
        + (size - head) * max(send_s, wire_s, receive_s),
        joules=size * link.joules_per_byte
        + size * sending_s * core_watts(problem, source.id)
        + size * receiving_s * core_watts(problem, target.id),
        wire_bytes=size,
    )
    cost.busy_s[link_resource(link)] += size / link.goodput_bytes_per_s
    cost.busy_s[source.id] += size * send_s / source.cores
    cost.busy_s[target.id] += size * receive_s / target.cores
    return cost


def sent_bytes(link: Link, size: float) -> float:
    """What a link carries for so many bytes of values."""
    return size * link.ratio


def ends_s_per_byte(problem: Problem, link: Link) -> tuple[float, float]:
    """Undisturbed seconds of a core at the source and at the target, per byte that is carried: what
    is narrowed is more than that."""
    return (
        problem.device(link.source).send_s_per_byte + link.narrow_s_per_byte / link.ratio,
        problem.device(link.target).receive_s_per_byte + link.widen_s_per_byte / link.ratio,
    )


def link_resource(link: Link) -> str:
    """A shared medium, or a wire of its own."""
    return f"medium {link.medium}" if link.medium else f"{link.source}→{link.target}"


def border_rate(times: SegmentTimes, device: DeviceId, neighbour: Step) -> float:
    """Seconds per byte that a subgraph pays at its border to a neighbour."""
    if isinstance(neighbour, PlacedFork) or neighbour.device != device:
        return times.border_s_per_byte
    mine, other = times.configuration, neighbour.configuration
    if mine.threads == 0 and other.threads == 0 and mine.unit == other.unit:
        return 0.0
    on_cores = mine.threads > 0 and other.threads > 0
    if on_cores and mine.layout is Layout.NHWC and other.layout is Layout.NHWC:
        return times.border_s_per_byte - times.turn_s_per_byte
    return times.border_s_per_byte


def fork_cost(problem: Problem, step: PlacedFork) -> Cost:
    """All arms at once, from the moment when the inputs are at home until the last is back."""
    fork = problem.summary.forks[step.fork]
    cost = Cost()
    wire_free_s: dict[str, float] = {}
    ends_s = [0.0]
    returns: list[tuple[float, int, PlacedArm]] = []
    for order, arm in enumerate(step.arms):
        if arm.device != step.home:
            link = _must_link(problem, step.home, arm.device)
            size = brought_bytes(fork, arm)
            sent, run = transfer_cost(problem, link, size), _arm_cost(problem, step, arm)
            begins_s = wire_free_s.get(link_resource(link), 0.0)
            wire_free_s[link_resource(link)] = (
                begins_s + sent_bytes(link, size) / link.goodput_bytes_per_s
            )
            returns.append((begins_s + sent.latency_s + run.latency_s, order, arm))
            cost.add(sent)
            cost.add(run)
    for ready_s, _, arm in sorted(returns, key=lambda r: r[:2]):
        link = _must_link(problem, arm.device, step.home)
        size = sum(fork.branches[b].output_bytes for b in arm.branches)
        back = transfer_cost(problem, link, size)
        begins_s = max(ready_s, wire_free_s.get(link_resource(link), 0.0))
        wire_free_s[link_resource(link)] = (
            begins_s + sent_bytes(link, size) / link.goodput_bytes_per_s
        )
        ends_s.append(begins_s + back.latency_s)
        cost.add(back)
    # What the transfers take of the home's cores, an arm on these cores waits for.
    moving_s = _cores_busy_with_transfers_s(problem, step)
    for arm in step.arms:
        if arm.device == step.home:
            run = _arm_cost(problem, step, arm)
            ends_s.append(run.latency_s + (moving_s if arm.configuration.threads > 0 else 0.0))
            cost.add(run)
    cost.latency_s = max(ends_s)
    return cost


def brought_bytes(fork: Fork, arm: PlacedArm) -> int:
    """What an arm reads: of each branch what it alone reads, and what several read once."""
    total = 0
    for b in arm.branches:
        shared = [one.size_bytes for one in fork.shared if b in one.branches]
        total += fork.branches[b].input_bytes - sum(shared)
    for one in fork.shared:
        if set(one.branches) & set(arm.branches):
            total += one.size_bytes
    return total


def _cores_busy_with_transfers_s(problem: Problem, step: PlacedFork) -> float:
    home = problem.device(step.home)
    fork = problem.summary.forks[step.fork]
    total_s = 0.0
    for arm in step.arms:
        if arm.device != step.home:
            there = _must_link(problem, step.home, arm.device)
            back = _must_link(problem, arm.device, step.home)
            given = sum(fork.branches[b].output_bytes for b in arm.branches)
            total_s += (
                sent_bytes(there, brought_bytes(fork, arm)) * ends_s_per_byte(problem, there)[0]
            )
            total_s += sent_bytes(back, given) * ends_s_per_byte(problem, back)[1]
    return total_s * unit_slowdown(problem, home.id, HOST_UNIT) / home.cores


def _arm_cost(problem: Problem, step: PlacedFork, arm: PlacedArm) -> Cost:
    fork = problem.summary.forks[step.fork]
    times = times_for(problem, arm.device, arm.configuration)
    plain_s = times.overhead_s
    for which in arm.branches:
        branch = fork.branches[which]
        for place, part in zip(
            range(fork.segments.start, fork.segments.stop), branch.work, strict=True
        ):
            plain_s += part * times.segment_s[place]
        plain_s += times.border_s_per_byte * branch.output_bytes
    plain_s += times.border_s_per_byte * brought_bytes(fork, arm)
    return run_cost(problem, arm.device, arm.configuration, plain_s)


def place_of(step: Step) -> DeviceId:
    """Where a step starts and ends."""
    return step.home if isinstance(step, PlacedFork) else step.device


def bytes_at(problem: Problem, boundary: int) -> int | None:
    """What a device sends that ends before segment `boundary`; None if it cannot."""
    if boundary == 0:
        return problem.input_bytes
    if boundary == len(problem.summary.segments):
        return problem.output_bytes
    cut = problem.summary.cuts[boundary - 1]
    return cut.crossing_bytes if not cut.others else None


def route_cost(problem: Problem, route: Route) -> Cost:
    """What one request costs that takes `route`, which must be a possible one."""
    cost = Cost()
    here = problem.owner
    for at, step in enumerate(route.steps):
        if place_of(step) != here:
            cost.add(_move(problem, here, place_of(step), step.segments.start))
            here = place_of(step)
        if isinstance(step, PlacedFork):
            cost.add(fork_cost(problem, step))
            continue
        times = times_for(problem, step.device, step.configuration)
        plain_s = times.overhead_s
        for place in range(step.segments.start, step.segments.stop):
            plain_s += times.segment_s[place]
        if at > 0:
            size = _must_know(problem.summary.cuts[step.segments.start - 1].crossing_bytes)
            plain_s += size * border_rate(times, step.device, route.steps[at - 1])
        if at + 1 < len(route.steps):
            size = _must_know(problem.summary.cuts[step.segments.stop - 1].crossing_bytes)
            plain_s += size * border_rate(times, step.device, route.steps[at + 1])
        cost.add(run_cost(problem, step.device, step.configuration, plain_s))
    if here != problem.owner:
        cost.add(_move(problem, here, problem.owner, len(problem.summary.segments)))
    return cost


def _move(problem: Problem, source: DeviceId, target: DeviceId, boundary: int) -> Cost:
    size = _must_know(bytes_at(problem, boundary))
    return transfer_cost(problem, _must_link(problem, source, target), size)


def _must_know(size: int | None) -> int:
    assert size is not None
    return size


def _must_link(problem: Problem, source: DeviceId, target: DeviceId) -> Link:
    link = link_between(problem, source, target)
    assert link is not None
    return link


Item = tuple[object, ...]
"""What is in a memory once, whatever uses it: (pool, what)."""


def pool_of(problem: Problem, device: DeviceId, unit: UnitId) -> str:
    """The memory that holds what a unit works with."""
    (found,) = (u for u in problem.device(device).units if u.id == unit)
    return device if found.memory_bytes is None else f"{device}/{unit}"


def items_of(problem: Problem, step: Step) -> dict[Item, float]:
    """Bytes of everything that has to be in memory for a step."""
    summary = problem.summary
    found: dict[Item, float] = {}
    if isinstance(step, PlacedSubgraph):
        inside = summary.segments[step.segments.start : step.segments.stop]
        parts: list[tuple[Item, int, int]] = [
            (("segment", s.index), s.constant_bytes, s.working_bytes) for s in inside
        ]
        _hold(problem, found, step.device, step.configuration, parts)
        return found
    for arm in step.arms:
        parts = [
            (("branch", step.fork, b), branch.constant_bytes, branch.working_bytes)
            for b in arm.branches
            for branch in (summary.forks[step.fork].branches[b],)
        ]
        _hold(problem, found, arm.device, arm.configuration, parts)
    return found


def _hold(
    problem: Problem,
    found: dict[Item, float],
    device: DeviceId,
    which: Configuration,
    parts: Iterable[tuple[tuple[object, ...], int, int]],
) -> None:
    pool = pool_of(problem, device, which.unit)
    most, names = 0, []
    for name, weight, working in parts:
        form = (which.unit, which.layout, which.is_half)
        found[pool, "weights", device, form, name] = weight / 2 if which.is_half else float(weight)
        most = max(most, working)
        names.append(name)
    found[pool, "arena", device, which, tuple(names)] = float(most * which.instances)


def used_bytes(problem: Problem, routes: Iterable[Route]) -> dict[str, float]:
    """Bytes in every memory for all routes together."""
    items: dict[Item, float] = {}
    for route in routes:
        for step in route.steps:
            items.update(items_of(problem, step))
    used: dict[str, float] = defaultdict(float)
    for item, size in items.items():
        used[str(item[0])] += size
    return dict(used)


def price(problem: Problem, routes: Sequence[Route]) -> Metrics:
    """All metrics of possible routes with shares that add up to 1."""
    costs = [route_cost(problem, route) for route in routes]
    busy_s: dict[str, float] = defaultdict(float)
    joules = wire_bytes = 0.0
    for route, cost in zip(routes, costs, strict=True):
        joules += route.share * cost.joules
        wire_bytes += route.share * cost.wire_bytes
        for resource, one_s in cost.busy_s.items():
            busy_s[resource] += route.share * one_s
    slowest = max(costs, key=lambda cost: cost.latency_s)
    fullest = max(busy_s.values(), default=0.0)
    return Metrics(
        latency_s=slowest.latency_s,
        throughput_per_s=1.0 / fullest if fullest > 0 else float("inf"),
        energy_joules=joules,
        peak_memory_bytes=max(used_bytes(problem, routes).values(), default=0.0),
        wire_bytes=wire_bytes,
        latency_error_s=slowest.error_s,
    )
