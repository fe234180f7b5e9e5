"""Everything that a plan runs on, alive: cores, accelerators, wires, connections, stations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from edge_agent.devices import DeviceId, UnitId
from edge_agent.problems import DeviceStatistics, Link, PlannedDevice, Problem
from edge_agent.simulation.deployment import Deployment, core_w
from edge_agent.simulation.events import Events
from edge_agent.simulation.journeys import Places
from edge_agent.simulation.lengths import Length
from edge_agent.simulation.sharing import SharedResource
from edge_agent.simulation.spans import SpanLog
from edge_agent.simulation.stations import Station
from edge_agent.simulation.traces import Change, DeviceChange, LinkChange, speed
from edge_agent.simulation.transfers import Connection, End, Stream
from edge_agent.simulation.wires import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How devices exchange messages."""

    window_messages: int = 4
    """A stream's window holds so many of its largest messages, or `window_bytes` if that is
    more."""
    window_bytes: int = 8 << 20
    threads: int | None = None
    """At each end of a connection: how many of its messages may be made ready, or taken in, at
    once; each is the work of one core. None: as many as the device there has cores, as plans
    assume. A number is what-if: 1 is a transport with one thread for input and output, and gives
    less than was predicted where a connection is busier than one core can be."""

    def __post_init__(self) -> None:
        for key, number, least in (
            ("window_messages", self.window_messages, 0),
            ("window_bytes", self.window_bytes, 0),
            ("threads", self.threads, 1),
        ):
            if number is not None and number < least:
                raise ValueError(f"transport: got {key} {number}, want at least {least}")


class Network:
    """A deployment on its devices and links, as their statistics say, and as a trace goes on."""

    def __init__(
        self,
        problem: Problem,
        deployment: Deployment,
        transport: Transport,
        events: Events,
        log: SpanLog,
        trace: Sequence[Change] = (),
    ) -> None:
        self._problem = problem
        self._transport = transport
        self._events = events
        self._log = log
        self._statistics = {d.id: problem.statistics_of(d.id) for d in problem.devices}
        self._resources: dict[tuple[DeviceId, UnitId | None], SharedResource] = {}
        self._wires: dict[str, Wire] = {}
        self._connections: dict[tuple[DeviceId, DeviceId], Connection] = {}
        self.stations = tuple(
            Station(
                events, plan, self._resource(plan.device, None if plan.on_cores else plan.unit), log
            )
            for plan in deployment.stations
        )
        self.streams = tuple(
            Stream(
                events,
                self._connection(plan.link),
                str(plan),
                max(transport.window_messages * plan.most_bytes, transport.window_bytes),
                Length(events),
            )
            for plan in deployment.streams
        )
        for change in sorted(trace, key=lambda change: change.at_s):
            events.at(change.at_s, partial(self._apply, change))

    def places(self) -> Places:
        """What requests pass through."""
        return Places(self.stations, self.streams, self._joules_per_byte)

    def busy_s(self) -> dict[str, float]:
        """Seconds for which every resource was busy so far."""
        busy_s = {resource.name: resource.busy_s() for resource in self._resources.values()}
        return busy_s | {wire.name: wire.busy_s() for wire in self._wires.values()}

    def waited_s(self) -> dict[str, float]:
        """Seconds that requests waited so far, by station and stream."""
        return {name: queue.waited_s() for name, queue in self.queues().items()}

    def queues(self) -> dict[str, Length]:
        """Of every station and stream, what waits for it."""
        found = {str(station.plan): station.queue for station in self.stations}
        return found | {stream.name: stream.queue for stream in self.streams}

    def _resource(self, device: DeviceId, unit: UnitId | None) -> SharedResource:
        """The cores of a device, or one of its accelerators."""
        if (device, unit) not in self._resources:
            name = str(device) if unit is None else f"{device}/{unit}"
            self._resources[device, unit] = SharedResource(
                self._events,
                name,
                lambda working: speed(self._statistics[device], working, on_cores=unit is None),
            )
        return self._resources[device, unit]

    def _connection(self, link: Link) -> Connection:
        key = (link.source, link.target)
        if key not in self._connections:
            wire = self._wires.setdefault(link.resource, Wire(self._events, link.resource))
            source, target = (self._problem.device(end) for end in key)
            send_s_per_byte, receive_s_per_byte = self._processor_s_per_byte(link)
            self._connections[key] = Connection(
                self._events,
                link,
                wire,
                (
                    self._end(source, send_s_per_byte),
                    self._end(target, receive_s_per_byte),
                ),
                chunk_bytes=self._problem.chunk_bytes,
                log=self._log,
            )
        return self._connections[key]

    def _end(self, device: PlannedDevice, s_per_byte: float) -> End:
        return End(
            cores=self._resource(device.id, None),
            threads=self._transport.threads or device.cores,
            demand=1.0 / device.cores,
            s_per_byte=s_per_byte,
        )

    def _joules_per_byte(self, link: Link) -> float:
        source, target = self._problem.device(link.source), self._problem.device(link.target)
        send_s_per_byte, receive_s_per_byte = self._processor_s_per_byte(link)
        processors = send_s_per_byte * core_w(source) + receive_s_per_byte * core_w(target)
        return link.joules_per_byte + processors

    def _processor_s_per_byte(self, link: Link) -> tuple[float, float]:
        """At the source and at the target of a link, for each byte that it carries."""
        source, target = self._problem.device(link.source), self._problem.device(link.target)
        return (
            source.send_s_per_byte + link.narrow_s_per_byte / link.ratio,
            target.receive_s_per_byte + link.widen_s_per_byte / link.ratio,
        )

    def _apply(self, change: Change) -> None:
        match change:
            case DeviceChange():
                self._be(change.statistics)
            case LinkChange():
                connection = self._connections.get((change.source, change.target))
                if connection is not None:
                    connection.carrier.fraction = change.goodput_fraction
                    self._wires[connection.link.resource].speeds_changed()

    def _be(self, statistics: DeviceStatistics) -> None:
        self._statistics[statistics.device] = statistics
        for (device, _), resource in self._resources.items():
            if device == statistics.device:
                resource.speeds_changed()
