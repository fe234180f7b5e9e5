"""What is there once a plan is deployed: sessions, streams between devices, and what each request
does on its way through them.

A subgraph that several routes share is one station. What a run does is what its profile says of
it when nothing disturbs it: to begin, the segments one after the other, and taking values in and
out at borders inside the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.distributions import PlacedArm, PlacedFork, PlacedSubgraph, Route, Step
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import HOST_UNIT, Configuration, SegmentTimes


@dataclass(frozen=True, slots=True)
class StationPlan:
    """A session, or as many as it has instances, on a device."""

    device: DeviceId
    configuration: Configuration
    what: str
    """The segments, or the branches of a fork."""
    resource: str
    """What runs keep busy: named after the device, or device/unit."""
    unit: UnitId
    on_cores: bool
    lanes: int
    demand: float
    """Of its resource, for each run."""
    power_w: float
    """Above idle, of each run."""

    def __str__(self) -> str:
        return f"[{self.what}] {self.device}/{self.configuration}"


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What crosses one border over one link."""

    link: Link
    border: str
    most_bytes: int
    """Of one message."""

    def __str__(self) -> str:
        return f"{self.link.source}→{self.link.target} {self.border}"


@dataclass(frozen=True, slots=True)
class Run:
    """A request is worked on at a station."""

    station: int
    work_s: float


@dataclass(frozen=True, slots=True)
class Hop:
    """A request's values go to another device."""

    stream: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Arm:
    """A part of a fork; what is needed elsewhere goes there and comes back."""

    there: Hop | None
    run: Run
    back: Hop | None


@dataclass(frozen=True, slots=True)
class Meeting:
    """Arms that start at once; the request goes on when all of them are done."""

    arms: tuple[Arm, ...]


Leg = Run | Hop | Meeting


@dataclass(frozen=True, slots=True)
class Deployment:
    """Stations and streams by number, and each route's way through them."""

    stations: tuple[StationPlan, ...]
    streams: tuple[StreamPlan, ...]
    paths: tuple[tuple[Leg, ...], ...]
    resident_bytes: tuple[tuple[str, float], ...]
    """In every memory that is used: a device's, or device/unit."""


def core_w(device: PlannedDevice) -> float:
    """Power above idle that one busy core draws: all of them draw what the processor does."""
    for unit in device.units:
        if unit.id == HOST_UNIT:
            return (unit.busy_w - unit.idle_w) / device.cores
    return 0.0


def deploy(problem: Problem, routes: Sequence[Route]) -> Deployment:
    """Raises: ValueError if a route does not run all segments once and in order, lacks a link or a
    latency profile, or sends what cannot be sent."""
    building = _Building(problem)
    paths = tuple(building.path(route) for route in routes)
    return Deployment(
        stations=tuple(building.stations),
        streams=tuple(
            StreamPlan(link, border, building.most_bytes[link.source, link.target, border])
            for link, border in building.streams
        ),
        paths=paths,
        resident_bytes=tuple(sorted(building.resident().items())),
    )


class _Building:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.stations: list[StationPlan] = []
        self.streams: list[tuple[Link, str]] = []
        self.most_bytes: dict[tuple[DeviceId, DeviceId, str], int] = defaultdict(int)
        self._weights: dict[tuple[object, ...], tuple[str, float]] = {}
        self._arenas: dict[int, tuple[str, float]] = {}

    def path(self, route: Route) -> tuple[Leg, ...]:
        """What a request does on that route."""
        here, reached = self.problem.owner, 0
        legs: list[Leg] = []
        for number, step in enumerate(route.steps):
            there = step.home if isinstance(step, PlacedFork) else step.device
            if step.segments.start != reached:
                raise ValueError(
                    f"route {route}: got segment {step.segments.start} after {reached} segments"
                )
            if there != here:
                legs.append(self._hop(here, there, reached))
            match step:
                case PlacedSubgraph():
                    around = (
                        (route.steps[number - 1] if number else None),
                        (route.steps[number + 1] if number + 1 < len(route.steps) else None),
                    )
                    legs.append(self._run(step, *around))
                case PlacedFork():
                    legs.append(Meeting(tuple(self._arm(step, arm) for arm in step.arms)))
            here, reached = there, step.segments.stop
        if reached != len(self.problem.summary.segments):
            raise ValueError(
                f"route {route}: got {reached} segments, want {len(self.problem.summary.segments)}"
            )
        if here != self.problem.owner:
            legs.append(self._hop(here, self.problem.owner, reached))
        return tuple(legs)

    def resident(self) -> dict[str, float]:
        """Bytes in every memory: weights once for each unit and layout, and the arenas."""
        found: dict[str, float] = defaultdict(float)
        for memory, size in (*self._weights.values(), *self._arenas.values()):
            found[memory] += size
        return found

    def _hop(self, source: DeviceId, target: DeviceId, border: int) -> Hop:
        if border == 0:
            size: int | None = self.problem.input_bytes
        elif border == len(self.problem.summary.segments):
            size = self.problem.output_bytes
        else:
            cut = self.problem.summary.cuts[border - 1]
            size = None if cut.others else cut.crossing_bytes
        if size is None:
            raise ValueError(
                f"what crosses before segment {border} cannot go from {source} to {target}: its "
                "size is not known, or it cannot leave a device; cut the route elsewhere"
            )
        return self._over(source, target, f"before segment {border}", size)

    def _over(self, source: DeviceId, target: DeviceId, border: str, size_bytes: int) -> Hop:
        link = next(
            (k for k in self.problem.links if k.source == source and k.target == target), None
        )
        if link is None:
            raise ValueError(f"got a hop from {source} to {target}, which no link joins")
        size_bytes = round(size_bytes * link.ratio)
        if (link, border) not in self.streams:
            self.streams.append((link, border))
        key = (source, target, border)
        self.most_bytes[key] = max(self.most_bytes[key], size_bytes)
        return Hop(self.streams.index((link, border)), size_bytes)

    def _run(self, step: PlacedSubgraph, before: Step | None, after: Step | None) -> Run:
        times = self._times(step.device, step.configuration)
        work_s = times.overhead_s
        for segment in range(step.segments.start, step.segments.stop):
            work_s += times.segment_s[segment]
        if before is not None:
            work_s += self._border_s(step, times, step.segments.start, before)
        if after is not None:
            work_s += self._border_s(step, times, step.segments.stop, after)
        inside = self.problem.summary.segments[step.segments.start : step.segments.stop]
        station = self._station(
            step.device,
            step.configuration,
            str(step.segments),
            [(segment.index, segment.constant_bytes) for segment in inside],
            max(segment.working_bytes for segment in inside),
        )
        return Run(station, work_s)

    def _arm(self, step: PlacedFork, arm: PlacedArm) -> Arm:
        fork = self.problem.summary.forks[step.fork]
        branches = fork.branches
        own = [branches[b] for b in arm.branches]
        times = self._times(arm.device, arm.configuration)
        taken_in = fork.input_bytes(arm.branches)
        given_out = sum(branch.output_bytes for branch in own)
        work_s = times.overhead_s + times.border_s_per_byte * (taken_in + given_out)
        for branch in own:
            for segment, part in enumerate(branch.work, step.segments.start):
                work_s += part * times.segment_s[segment]
        numbers = ",".join(map(str, arm.branches))
        run = Run(
            self._station(
                arm.device,
                arm.configuration,
                f"fork {step.fork}: {numbers}",
                [((step.fork, b), branches[b].constant_bytes) for b in arm.branches],
                max(branch.working_bytes for branch in own),
            ),
            work_s,
        )
        if arm.device == step.home:
            return Arm(None, run, None)
        return Arm(
            self._over(step.home, arm.device, f"into fork {step.fork}", taken_in),
            run,
            self._over(arm.device, step.home, f"out of fork {step.fork}", given_out),
        )

    def _border_s(
        self, step: PlacedSubgraph, times: SegmentTimes, border: int, neighbour: Step
    ) -> float:
        """What taking values in or out costs this side."""
        size = self.problem.summary.cuts[border - 1].crossing_bytes
        if size is None:
            raise ValueError(f"what crosses before segment {border} has no known size")
        own = step.configuration
        s_per_byte = times.border_s_per_byte
        if isinstance(neighbour, PlacedSubgraph) and neighbour.device == step.device:
            other = neighbour.configuration
            if own.unit == other.unit and not own.threads and not other.threads:
                return 0.0
            in_nhwc = own.layout is Layout.NHWC and other.layout is Layout.NHWC
            if in_nhwc and own.threads and other.threads:
                s_per_byte -= times.turn_s_per_byte
        return s_per_byte * size

    def _times(self, device: DeviceId, configuration: Configuration) -> SegmentTimes:
        for times in self.problem.device(device).times:
            if times.configuration == configuration:
                return times
        raise ValueError(f"device {device} has no latency profile of {configuration}")

    def _station(
        self,
        device_id: DeviceId,
        configuration: Configuration,
        what: str,
        weights: Sequence[tuple[object, int]],
        working_bytes: int,
    ) -> int:
        device = self.problem.device(device_id)
        unit = next(u for u in device.units if u.id == configuration.unit)
        plan = _station_plan(device, unit, configuration, what)
        if plan not in self.stations:
            self.stations.append(plan)
        number = self.stations.index(plan)
        own_memory = unit.memory_bytes is not None
        memory = f"{device.id}/{unit.id}" if own_memory else str(device.id)
        self._arenas[number] = (memory, float(working_bytes * configuration.instances))
        for place, size_bytes in weights:
            form = (device.id, unit.id, configuration.layout, configuration.is_half, place)
            shrunk = 0.5 if configuration.is_half else 1.0
            self._weights[form] = (memory, size_bytes * shrunk)
        return number


def _station_plan(
    device: PlannedDevice, unit: PlannedUnit, configuration: Configuration, what: str
) -> StationPlan:
    on_cores = configuration.threads > 0
    at_once = configuration.instances
    if on_cores:
        power_w = core_w(device) * configuration.threads
    else:
        power_w = (unit.busy_w - unit.idle_w) / at_once
    return StationPlan(
        device=device.id,
        configuration=configuration,
        what=what,
        resource=str(device.id) if on_cores else f"{device.id}/{unit.id}",
        unit=unit.id,
        on_cores=on_cores,
        lanes=at_once,
        demand=1.0 / at_once,
        power_w=power_w,
    )
