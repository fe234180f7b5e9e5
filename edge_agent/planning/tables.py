"""A problem as arrays: what every step of a route demands of every resource, before any weighing.

Boundaries are counted 0..n, before segment p; the places where a route may begin a subgraph are
0..n-1. `c` counts the configurations of all devices that may be used, sorted by device; `d` those
devices. What is impossible is kept apart from what it would cost, as a penalty of 0 or infinity, so
that weights of 0 never meet an infinite cost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_agent.devices import DeviceId, Layout
from edge_agent.distributions import PlacedFork
from edge_agent.planning.cost import is_divisible, keeps_tensors
from edge_agent.planning.metrics import (
    busy_w,
    crossing_bytes,
    host_resource,
    memory_pool,
    processor_s_per_byte,
    resource_of,
    sending_joules_per_byte,
    unit_of,
    wire_s_per_byte,
)
from edge_agent.planning.present import is_spared, pool_bytes, slowdown
from edge_agent.plans import Target
from edge_agent.problems import PlannedDevice, Problem
from edge_agent.profiles import Configuration, SegmentTimes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration on a device, or forks at once with a device as their home."""

    device: DeviceId
    configuration: Configuration | None
    """None: it runs nothing but forks, see `Forks`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forks:
    """How forks may run at once: `e` steps, each in a choice of its home that runs nothing else.

    Such a choice takes no time and no memory by itself, can only begin and end where its forks do,
    and demands what their arms do together.
    """

    steps: tuple[PlacedFork, ...] = ()
    places: Ints
    """(e,): the first segment of each."""
    choices: Ints
    """(e,)"""
    demands: Floats
    """(e, columns): as a row of `amounts`."""
    is_whole: bool = True
    """Whether no way is left out that may be worth it for what the tables are for."""

    @classmethod
    def none(cls, columns: int) -> Forks:
        """No fork runs at once."""
        no = np.zeros(0, np.int64)
        return cls(places=no, choices=no, demands=np.zeros((0, columns)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sends:
    """What sending costs: between two devices at each boundary, or to or from the owner at one end.

    All arrays have the same leading axes: (p, d, d), or (d,).
    """

    penalty: Floats
    """0, or infinity where nothing can be sent."""
    seconds: Floats
    joules: Floats
    size_bytes: Floats
    link_seconds: Floats
    """How long the link is busy."""
    source_seconds: Floats
    """Of the cores of the source, and of the target."""
    target_seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """The arrays of a problem for one target. Seconds are those at present, slowdowns included."""

    problem: Problem
    choices: tuple[Choice, ...]
    devices: tuple[DeviceId, ...]
    """Those with at least one choice, in the order of the problem."""
    resources: tuple[str, ...]
    pools: tuple[str, ...]
    """Memories, as `memory_pool` names them."""
    budgets: Floats
    """Bytes per pool; infinity where no budget can bind."""
    device_of: Ints
    """(c,): device of each choice."""
    first_of: Ints
    """(d,): first choice of each device."""
    seconds: Floats
    """(n, c): of each segment."""
    refusal: Floats
    """(n, c): 0, or infinity where the segment cannot run so."""
    overhead: Floats
    """(c,): seconds of starting a subgraph."""
    border_s_per_byte: Floats
    """(c,)"""
    border: Floats
    """(n, c): seconds at the border before segment p; 0 at the first."""
    barrier: Floats
    """(n, c): 0, or infinity where no border can be before segment p."""
    inner: Floats
    """(n, c): seconds at that border to a neighbour of the same group."""
    grouped: Ints
    """Choices that are in a group, group by group: between those of one group `inner` is paid
    instead of `border`."""
    group_starts: Ints
    """Where each group begins in `grouped`."""
    group_of: Ints
    """Group of each of `grouped`."""
    joules_per_s: Floats
    """(c,): energy above idle, per second at present."""
    per_round: Floats
    """(c,): 1 over the instances."""
    resource_of: Ints
    """(c,)"""
    pool_of: Ints
    """(c,)"""
    form_of: Ints
    """(c,): choices of one form share weights: those of one unit, layout and precision."""
    weights: Floats
    """(n, c): bytes of weights of each segment."""
    arenas: Floats
    """(n, c): bytes of activations of each segment, for all instances."""
    host_of: Ints
    """(d,): which resource the cores of each device are."""
    owner_host: int
    """The resource of the owner's cores."""
    link_of: Ints
    """(d, d): which resource the link is; 0 where there is none."""
    in_link_of: Ints
    """(d,): of the link from the owner."""
    out_link_of: Ints
    """(d,): of the link to the owner."""
    sends: Sends
    """(n, d, d) before each segment; nothing on the diagonal."""
    first_sends: Sends
    """(d,): of the inputs, from the owner."""
    last_sends: Sends
    """(d,): of the outputs, to the owner."""
    forks: Forks

    @property
    def memory_limits(self) -> Floats:
        """(pools,): the budgets, and what a bound on the memory leaves of them."""
        most = self.problem.bound(Target.MEMORY)
        return self.budgets if most is None else np.minimum(self.budgets, most)

    @property
    def places(self) -> int:
        """The number of segments."""
        return len(self.seconds)

    @property
    def groups(self) -> Ints:
        """(c,): the group of each choice; -1 if it is in none."""
        found = np.full(len(self.choices), -1)
        found[self.grouped] = self.group_of
        return found

    @property
    def is_fork(self) -> npt.NDArray[np.bool_]:
        """(c,): whether a choice runs nothing but forks."""
        return np.array([choice.configuration is None for choice in self.choices])


def is_at_rate(problem: Problem, target: Target) -> bool:
    """Whether requests per second matter, so that routes get shares and runs may be several."""
    return target is Target.THROUGHPUT or problem.bound(Target.THROUGHPUT) is not None


def usable(problem: Problem, device: PlannedDevice, target: Target) -> list[SegmentTimes]:
    """The latency profiles of a device that a plan may use, in the order of configurations.

    Beside the throughput, a subgraph runs once at a time.
    """
    if is_spared(problem, device.id):
        return []
    is_rate = is_at_rate(problem, target)
    return sorted(
        (
            times
            for times in device.times
            if not unit_of(device, times.configuration).banned_because
            and (is_rate or times.configuration.instances == 1)
        ),
        key=lambda times: times.configuration,
    )


def tabulate(problem: Problem, target: Target, homes: Collection[DeviceId] = ()) -> Tables | None:
    """The arrays of `problem`; None if no device may do anything.

    `homes`: devices to be among them that run nothing themselves, and get choices of forks.
    """
    found = [(device, usable(problem, device, target)) for device in problem.devices]
    found = [(device, times) for device, times in found if times or device.id in homes]
    if not any(times for _, times in found):
        return None
    devices = [device for device, _ in found]
    rows = [(device, times) for device, all_times in found for times in all_times]
    hosts = [host_resource(device.id) for device in devices]
    names = [resource_of(device.id, times.configuration) for device, times in rows]
    link_names = sorted({link.resource for link in problem.links})
    owner = host_resource(problem.owner)
    resources = tuple(dict.fromkeys((*hosts, owner, *names, *link_names)))
    pool_names = [memory_pool(device, times.configuration) for device, times in rows]
    pools = tuple(dict.fromkeys(pool_names))
    forms_of = [_form(device.id, times.configuration) for device, times in rows]
    forms = list(dict.fromkeys(forms_of))
    n = len(problem.summary.segments)
    counts = [len(all_times) for _, all_times in found]
    slow = np.array([slowdown(problem, d.id, t.configuration.unit) for d, t in rows])
    refusal = _refusal(problem, rows)
    groups = _groups(rows)
    crossing = _crossing(problem)
    per_byte = np.array([t.border_s_per_byte for _, t in rows]) * slow
    turned = np.array([t.turn_s_per_byte for _, t in rows]) * slow
    is_kept = np.array([t.configuration.threads == 0 for _, t in rows])
    barrier = np.where(np.isnan(crossing)[:, None], np.inf, 0.0) + np.array(
        [0.0 if is_divisible(t) else np.inf for _, t in rows]
    )
    barrier[0] = 0.0
    bytes_at = np.nan_to_num(crossing)[:, None]
    summary = problem.summary
    half = np.array([0.5 if t.configuration.is_half else 1.0 for _, t in rows])
    instances = np.array([float(t.configuration.instances) for _, t in rows])
    watts = np.array([busy_w(d, t.configuration) for d, t in rows])

    def ends(source: DeviceId | None, target_device: DeviceId | None, size: int | None) -> Sends:
        pairs = [(source or device.id, target_device or device.id) for device in devices]
        known = np.nan if size is None else float(size)
        return _sends(problem, np.full(len(pairs), known), pairs)

    inner_sizes = np.array(
        [
            np.nan if size is None else float(size)
            for size in (crossing_bytes(problem, p) for p in range(n))
        ]
    )
    index = {name: at for at, name in enumerate(resources)}

    def link_index(a: DeviceId, b: DeviceId) -> int:
        link = problem.link(a, b)
        return 0 if link is None else index[link.resource]

    return Tables(
        problem=problem,
        choices=tuple(Choice(device=d.id, configuration=t.configuration) for d, t in rows),
        devices=tuple(device.id for device in devices),
        resources=resources,
        pools=pools,
        budgets=np.array([float(pool_bytes(problem, pool)) for pool in pools]),
        device_of=np.repeat(np.arange(len(devices)), counts),
        first_of=np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64),
        seconds=np.array([t.segment_s for _, t in rows]).T * slow,
        refusal=refusal,
        overhead=np.array([t.overhead_s for _, t in rows]) * slow,
        border_s_per_byte=per_byte,
        border=bytes_at * per_byte,
        barrier=barrier,
        inner=bytes_at * np.where(is_kept, 0.0, per_byte - turned),
        grouped=np.array([c for group in groups for c in group], np.int64),
        group_starts=np.cumsum([0, *map(len, groups[:-1])]) if groups else np.zeros(0, np.int64),
        group_of=np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
        joules_per_s=watts / slow,
        per_round=1.0 / instances,
        resource_of=np.array([index[name] for name in names]),
        pool_of=np.array([pools.index(name) for name in pool_names]),
        form_of=np.array([forms.index(form) for form in forms_of]),
        weights=np.array([float(s.constant_bytes) for s in summary.segments])[:, None] * half,
        arenas=np.array([float(s.working_bytes) for s in summary.segments])[:, None] * instances,
        host_of=np.array([index[name] for name in hosts]),
        owner_host=index[owner],
        link_of=np.array([[link_index(a.id, b.id) for b in devices] for a in devices]),
        in_link_of=np.array([link_index(problem.owner, d.id) for d in devices]),
        out_link_of=np.array([link_index(d.id, problem.owner) for d in devices]),
        sends=sends_between(problem, [device.id for device in devices], inner_sizes),
        first_sends=ends(problem.owner, None, problem.input_bytes),
        last_sends=ends(None, problem.owner, problem.output_bytes),
        forks=Forks.none(3 + len(resources) + len(pools)),
    )


def _form(device: DeviceId, which: Configuration) -> tuple[object, ...]:
    """What weights of equal form have in common: see `metrics.memory_bytes`."""
    return device, which.unit, which.layout, which.is_half


def _refusal(problem: Problem, rows: Sequence[tuple[PlannedDevice, SegmentTimes]]) -> Floats:
    refusal = np.zeros((len(problem.summary.segments), len(rows)))
    for c, (_, times) in enumerate(rows):
        refusal[list(times.refused), c] = np.inf
    for pin in problem.pins:
        for c, (device, times) in enumerate(rows):
            is_there = device.id == pin.device
            if not is_there or pin.unit not in (None, times.configuration.unit):
                refusal[pin.segment, c] = np.inf
    return refusal


def _crossing(problem: Problem) -> Floats:
    """Bytes at the border before each segment; NaN where not known, 0 before the first."""
    cuts = problem.summary.cuts
    known = (np.nan if cut.crossing_bytes is None else float(cut.crossing_bytes) for cut in cuts)
    return np.array([0.0, *known])


def _groups(rows: Sequence[tuple[PlannedDevice, SegmentTimes]]) -> list[list[int]]:
    """Choices of one device that share an accelerator, or are in NHWC on its cores."""
    found: dict[tuple[object, ...], list[int]] = {}
    for c, (device, times) in enumerate(rows):
        which = times.configuration
        if keeps_tensors(which, which):
            found.setdefault((device.id, which.unit), []).append(c)
        elif which.layout is Layout.NHWC:
            found.setdefault((device.id,), []).append(c)

    def has_inner(group: list[int]) -> bool:
        # One side alone may have a turn to save.
        is_kept = rows[group[0]][1].configuration.threads == 0
        return len(group) > 1 and (is_kept or any(rows[c][1].turn_s_per_byte for c in group))

    return [group for group in found.values() if has_inner(group)]


def sends_between(problem: Problem, devices: Sequence[DeviceId], sizes: Floats) -> Sends:
    """(k, d, d): what sending each of `sizes`, (k,), from each device to each costs; NaN cannot be
    sent."""
    pairs = [(a, b) for a in devices for b in devices]
    every = np.repeat(sizes[:, None], len(pairs), axis=1)
    return _shaped(_sends(problem, every, pairs), (len(sizes), len(devices), len(devices)))


def _sends(
    problem: Problem,
    sizes: Floats,
    pairs: Sequence[tuple[DeviceId, DeviceId]],
) -> Sends:
    """What sending `sizes`, of the same last axis as `pairs`, costs; NaN cannot be sent."""
    rates = np.array([_rates(problem, a, b) for a, b in pairs])
    ratios = np.array([_ratio(problem, a, b) for a, b in pairs])
    is_far = np.array([a != b for a, b in pairs])
    limits = np.array([_limit(problem, b) for _, b in pairs])
    latency, wire, send, receive, joules, source_cores, target_cores = rates.T
    known = np.nan_to_num(sizes)
    first = np.minimum(known, problem.chunk_bytes / ratios)
    is_possible = np.isfinite(wire) & ~np.isnan(sizes) & (known <= limits)
    wire = np.where(np.isfinite(wire), wire, 0.0)
    steps = np.stack([send, wire, receive])
    seconds = latency + first * steps.sum(axis=0) + (known - first) * steps.max(axis=0)
    return Sends(
        penalty=np.where(is_far & ~is_possible, np.inf, 0.0),
        seconds=np.where(is_far, seconds, 0.0),
        joules=np.where(is_far, known * joules, 0.0),
        size_bytes=np.where(is_far, known * ratios, 0.0),
        link_seconds=np.where(is_far, known * wire, 0.0),
        source_seconds=np.where(is_far, known * send / source_cores, 0.0),
        target_seconds=np.where(is_far, known * receive / target_cores, 0.0),
    )


def _limit(problem: Problem, device: DeviceId) -> float:
    most = problem.device(device).most_crossing_bytes
    return np.inf if most is None else float(most)


def _rates(
    problem: Problem,
    source: DeviceId,
    target: DeviceId,
) -> tuple[float, ...]:
    """(latency; seconds per byte of wire, sender and receiver; joules per byte; cores of both)."""
    link = problem.link(source, target)
    if link is None:
        return 0.0, np.inf, 0.0, 0.0, 0.0, 1.0, 1.0
    return (
        link.latency_s,
        wire_s_per_byte(link),
        *processor_s_per_byte(problem, link),
        sending_joules_per_byte(problem, link),
        float(problem.device(source).cores),
        float(problem.device(target).cores),
    )


def _ratio(problem: Problem, source: DeviceId, target: DeviceId) -> float:
    link = problem.link(source, target)
    return 1.0 if link is None else link.ratio


def _shaped(sends: Sends, shape: tuple[int, ...]) -> Sends:
    return Sends(
        penalty=sends.penalty.reshape(shape),
        seconds=sends.seconds.reshape(shape),
        joules=sends.joules.reshape(shape),
        size_bytes=sends.size_bytes.reshape(shape),
        link_seconds=sends.link_seconds.reshape(shape),
        source_seconds=sends.source_seconds.reshape(shape),
        target_seconds=sends.target_seconds.reshape(shape),
    )
